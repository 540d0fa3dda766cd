"""Queue of a pool's schedd: adding clusters exactly once, queries and actions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from treehammer.collectors.shared_files import is_locked
from treehammer.errors import BatchError
from treehammer.submit.batch.htcondor.connection import (
    PoolConnection,
    PoolUnreachableError,
    configured_bindings,
    is_refusal,
    known_values,
)
from treehammer.submit.batch.htcondor.job_status import CANCEL_REASON, SPOOLING, ClassAdValues
from treehammer.submit.batch.htcondor.submission_folder import QueuedCluster, Submission


class ScheddQueue:
    """Queue of the schedd behind a connection."""

    def __init__(self, connection: PoolConnection) -> None:
        self.connection = connection

    def add(self, submission: Submission) -> QueuedCluster:
        """Submit a cluster exactly once.

        Raises:
            PoolUnreachableError: it is unknown whether the cluster is queued.
            BatchError: the cluster is not queued.
        """
        for pause in (*self.connection.pauses_s, None):
            try:
                return submission.record_cluster(self._add_once(submission))
            except PoolUnreachableError as error:
                # The daemon was not found, so nothing was queued.
                raise BatchError(error.message, where=error.where, hint=error.hint) from error
            except _SubmissionRefusedError as error:
                raise BatchError(
                    f"HTCondor does not accept the jobs ({error})",
                    where=str(submission.description_file),
                    hint="Nothing of this cluster was submitted. Correct the template or the site.",
                ) from error
            except _SubmissionInDoubtError as error:
                cluster = self.find_cluster(submission)
                if cluster is not None:
                    return submission.record_cluster(cluster)
                if is_refusal(error):
                    refused = self.connection.unreachable_error(error)
                    raise BatchError(
                        refused.message, where=refused.where, hint=refused.hint
                    ) from error
                if pause is None:
                    raise BatchError(
                        f"HTCondor does not accept the jobs ({error})",
                        where=f"pools.{self.connection.pool.name}",
                        hint="Nothing of this cluster was submitted. Try again later.",
                    ) from error
                time.sleep(pause)
        raise AssertionError("the last pause is None")

    def _add_once(self, submission: Submission) -> QueuedCluster:
        text = submission.description_file.read_text(encoding="utf-8")
        items = ({"job_id": job_id} for job_id in submission.job_ids)
        spool = self.connection.pool.spool
        with configured_bindings(self.connection.pool) as htcondor:
            try:
                description = htcondor.Submit(text)
            except (htcondor.HTCondorException, ValueError) as error:
                raise _SubmissionRefusedError(str(error)) from error

            def submit(schedd: Any) -> QueuedCluster:
                result = schedd.submit(description, spool=spool, itemdata=items)
                if spool:
                    schedd.spool(result)
                queued = result.clusterad().get("QDate")
                return QueuedCluster(result.cluster(), int(queued or time.time()))

            try:
                return self.connection.command_schedd(submit)
            except ValueError as error:
                raise _SubmissionRefusedError(str(error)) from error
            except htcondor.HTCondorException as error:
                raise _SubmissionInDoubtError(" ".join(str(error).split())) from error

    def resolve_unconfirmed(
        self, submission: Submission, *, holds_lock: bool
    ) -> QueuedCluster | None:
        """Find out whether a submission without a recorded cluster is queued.

        ``holds_lock`` if the caller holds the campaign's lock, so that no submitter is alive.
        """
        abandoned = holds_lock or not is_locked(submission.lock_file)
        cluster = self.find_cluster(submission)
        if cluster is None or not abandoned:
            return cluster
        if self.connection.pool.spool and self._is_half_spooled(submission):
            # Its inputs will never arrive.
            self.act_on_jobs("Remove", submission.constraint, CANCEL_REASON)
            submission.remove()
            return None
        return submission.record_cluster(cluster)

    def _is_half_spooled(self, submission: Submission) -> bool:
        constraint = f"{submission.constraint} && HoldReasonCode == {SPOOLING}"
        return bool(
            self.connection.query_schedd(
                lambda schedd: schedd.query(constraint, ["ProcId"], limit=1)
            )
        )

    def find_cluster(self, submission: Submission) -> QueuedCluster | None:
        """Find a submission's cluster in queue and history.

        Raises:
            PoolUnreachableError: HTCondor does not answer.
        """
        constraint = submission.constraint
        projection = ["ClusterId", "QDate"]
        ads = self.query_ads(constraint, projection, limit=1)
        if not ads:
            ads = self.connection.query_schedd(
                lambda schedd: schedd.history(constraint, projection, match=1)
            )
        for ad in ads:
            return QueuedCluster(int(ad["ClusterId"]), int(ad.get("QDate") or time.time()))
        return None

    def query_ads(
        self, constraint: str, projection: Sequence[str], limit: int = -1
    ) -> Sequence[ClassAdValues]:
        """Query ads of the queue, including ads of clusters that are not fully materialized."""

        def query(schedd: Any) -> Sequence[ClassAdValues]:
            with configured_bindings(self.connection.pool) as htcondor:
                options = htcondor.QueryOpts.IncludeClusterAd
                return known_values(
                    schedd.query(constraint, list(projection), limit=limit, opts=options)
                )

        return self.connection.query_schedd(query)

    def act_on_jobs(self, action: str, constraint: str, reason: str) -> None:
        """Apply an action (``Remove``, ``Release``) to all jobs that match a constraint.

        Raises:
            PoolUnreachableError: HTCondor does not answer.
        """

        def act(schedd: Any) -> None:
            with configured_bindings(self.connection.pool) as htcondor:
                # HTCondor drops a reason without a code.
                schedd.act(getattr(htcondor.JobAction, action), constraint, (reason, 0))

        self.connection.query_schedd(act)


class _SubmissionRefusedError(Exception):
    """The description is invalid; a retry cannot help."""


class _SubmissionInDoubtError(Exception):
    """The schedd did not confirm whether it accepted the jobs."""
