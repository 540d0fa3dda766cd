"""The queue of a pool's schedd: clusters are added to it exactly once, asked for, and acted on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from treehammer.collectors.files import is_locked
from treehammer.errors import BatchError
from treehammer.submit.batch.htcondor.connection import (
    Connection,
    Unreachable,
    configured,
    is_refusal,
    plain,
)
from treehammer.submit.batch.htcondor.layout import Cluster, Submission
from treehammer.submit.batch.htcondor.status import CANCEL_REASON, SPOOLING, Ad


class Queue:
    """The queue that a connection leads to."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def add(self, submission: Submission) -> Cluster:
        """Make it a cluster, exactly once.

        Raises:
            Unreachable: it is not known whether it is queued.
            BatchError: it is not queued.
        """
        for pause in (*self.connection.pauses_s, None):
            try:
                return submission.confirm(self._add_once(submission))
            except Unreachable as error:
                # Not even the daemon was found: nothing can have been queued.
                raise BatchError(error.message, where=error.where, hint=error.hint) from error
            except _Refused as error:
                raise BatchError(
                    f"HTCondor does not take the jobs ({error})",
                    where=str(submission.description),
                    hint="Nothing of this cluster was submitted. Correct the template or the site.",
                ) from error
            except _InDoubt as error:
                found = self.look_up(submission)
                if found is not None:
                    return submission.confirm(found)
                if is_refusal(error):
                    refused = self.connection.unreachable(error)
                    raise BatchError(
                        refused.message, where=refused.where, hint=refused.hint
                    ) from error
                if pause is None:
                    raise BatchError(
                        f"HTCondor does not take the jobs ({error})",
                        where=f"pools.{self.connection.pool.name}",
                        hint="Nothing of this cluster was submitted. Try again later.",
                    ) from error
                time.sleep(pause)
        raise AssertionError("the last pause is None")

    def _add_once(self, submission: Submission) -> Cluster:
        text = submission.description.read_text(encoding="utf-8")
        items = ({"job_id": job_id} for job_id in submission.job_ids)
        spool = self.connection.pool.spool
        with configured(self.connection.pool) as htcondor:
            try:
                description = htcondor.Submit(text)
            except (htcondor.HTCondorException, ValueError) as error:
                raise _Refused(str(error)) from error

            def submit(schedd: Any) -> Cluster:
                result = schedd.submit(description, spool=spool, itemdata=items)
                if spool:
                    schedd.spool(result)
                queued = result.clusterad().get("QDate")
                return Cluster(result.cluster(), int(queued or time.time()))

            try:
                return self.connection.tell(submit)
            except ValueError as error:
                raise _Refused(str(error)) from error
            except htcondor.HTCondorException as error:
                raise _InDoubt(" ".join(str(error).split())) from error

    def unconfirmed(self, submission: Submission, *, mine: bool) -> Cluster | None:
        """What became of a submission whose submitter died, or is still at it."""
        over = mine or not is_locked(submission.lock_file)
        cluster = self.look_up(submission)
        if cluster is None or not over:
            return cluster
        if self.connection.pool.spool and self._is_half_spooled(submission):
            # Its inputs will never come.
            self.act("Remove", submission.constraint, CANCEL_REASON)
            submission.remove()
            return None
        return submission.confirm(cluster)

    def _is_half_spooled(self, submission: Submission) -> bool:
        constraint = f"{submission.constraint} && HoldReasonCode == {SPOOLING}"
        return bool(
            self.connection.ask(lambda schedd: schedd.query(constraint, ["ProcId"], limit=1))
        )

    def look_up(self, submission: Submission) -> Cluster | None:
        """Ask queue and history for a submission by its name.

        Raises:
            Unreachable: there is no answer.
        """
        constraint = submission.constraint
        wanted = ["ClusterId", "QDate"]
        ads = self.ads(constraint, wanted, limit=1)
        if not ads:
            ads = self.connection.ask(lambda schedd: schedd.history(constraint, wanted, match=1))
        for ad in ads:
            return Cluster(int(ad["ClusterId"]), int(ad.get("QDate") or time.time()))
        return None

    def ads(self, constraint: str, wanted: Sequence[str], limit: int = -1) -> Sequence[Ad]:
        """Ads of the queue, with those of clusters whose jobs are still to be made."""

        def query(schedd: Any) -> Sequence[Ad]:
            with configured(self.connection.pool) as htcondor:
                options = htcondor.QueryOpts.IncludeClusterAd
                return plain(schedd.query(constraint, list(wanted), limit=limit, opts=options))

        return self.connection.ask(query)

    def act(self, action: str, constraint: str, reason: str) -> None:
        """Do something with all jobs that fulfil a constraint: ``Remove``, ``Release``.

        Raises:
            Unreachable: there is no answer.
        """

        def act(schedd: Any) -> None:
            with configured(self.connection.pool) as htcondor:
                # Without a code the reason would be lost.
                schedd.act(getattr(htcondor.JobAction, action), constraint, (reason, 0))

        self.connection.ask(act)


class _Refused(Exception):
    """The description is wrong: trying again cannot help."""


class _InDoubt(Exception):
    """The schedd did not say whether it took the jobs."""
