"""Queue of a pool's schedd: adding clusters exactly once, queries, and diagnosis of idle jobs."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from treehammer.collectors.shared_files import is_locked
from treehammer.errors import BatchError
from treehammer.submit.batch.htcondor.job_status import (
    CANCEL_REASON,
    HELD,
    IDLE,
    SPOOLING,
    ClassAdValues,
    hold_reason_of,
)
from treehammer.submit.batch.htcondor.pool import (
    PoolConnection,
    PoolUnreachableError,
    configured_bindings,
    is_refusal,
    known_values,
)
from treehammer.submit.batch.htcondor.submission_folder import QueuedCluster, Submission
from treehammer.submit.batch.htcondor.submit_description import SUBMISSION_ATTRIBUTE

#: JobUniverse of jobs that are forwarded to another batch system.
_GRID_UNIVERSE = 9
_DIAGNOSIS_PROJECTION = (
    "ClusterId",
    "ProcId",
    "JobStatus",
    "JobUniverse",
    "HoldReason",
    "HoldReasonCode",
    "HoldReasonSubCode",
    "GridResource",
    "GridJobStatus",
    "JobMaterializePaused",
    "JobMaterializePauseReason",
    "NumShadowStarts",
)
_REQUIREMENT_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|&&|[()\[\]{}|?]')
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


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


@dataclass(frozen=True)
class ScheddIdentity:
    """Name and version of a schedd, and the user it maps Treehammer to."""

    schedd: str
    version: str
    user: str


def check_pool(connection: PoolConnection) -> ScheddIdentity:
    """Check that collector and schedd answer and accept submissions.

    Raises:
        BatchError: one does not answer or denies access.
    """
    location = connection.schedd_ad()
    try:
        answer = connection.call_with_retries(lambda htcondor: htcondor.ping(location, "WRITE"))
    except PoolUnreachableError as error:
        # The bindings report a read-only schedd like an unreachable one: only reading distinguishes them.
        connection.call_with_retries(lambda htcondor: htcondor.ping(location, "READ"))
        raise connection.unreachable_error(
            PermissionError("DENIED: read access only, no submission")
        ) from error
    version = str(answer.get("RemoteVersion", "")).removeprefix("$CondorVersion: ")
    user = str(answer.get("MyRemoteUserName", ""))
    if not answer.get("AuthorizationSucceeded", False):
        raise connection.unreachable_error(
            PermissionError(f"DENIED to {user or 'this user'}: WRITE")
        )
    return ScheddIdentity(str(location.get("Name", "")), version.partition(" ")[0], user)


def count_matching_slots(connection: PoolConnection, requirements: str) -> tuple[int, int]:
    """Count the slots that an expression matches, and all slots of the pool.

    Raises:
        BatchError: the pool does not answer, or the expression is invalid.
    """
    with configured_bindings(connection.pool):
        import classad2

        try:
            job = classad2.ClassAd({"Requirements": classad2.ExprTree(requirements or "true")})
        except classad2.ClassAdException as error:
            raise BatchError(
                f"{requirements!r} is not a ClassAd expression",
                where="requirements",
                hint='Write it like TARGET.GLIDEIN_Site == "NAME".',
            ) from error
    slots = _query_slots(connection)
    return sum(bool(slot.matches(job)) for slot in slots), len(slots)


def _query_slots(connection: PoolConnection) -> Sequence[Any]:
    """Query all slots except dynamic ones."""

    def query(collector: Any) -> Sequence[Any]:
        with configured_bindings(connection.pool) as htcondor:
            slots = collector.query(htcondor.AdType.Startd, 'SlotType =!= "Dynamic"')
            return list(slots)

    return connection.query_collector(query)


def explain_idle_jobs(connection: PoolConnection, constraint: str) -> list[str]:
    """Explain why jobs that match a ClassAd expression do not start, a line each.

    Raises:
        BatchError: the pool does not answer.
    """

    def query(schedd: Any) -> Sequence[Any]:
        with configured_bindings(connection.pool) as htcondor:
            options = htcondor.QueryOpts.IncludeClusterAd
            projection = [SUBMISSION_ATTRIBUTE, *_DIAGNOSIS_PROJECTION]
            return known_values(
                schedd.query(f"({constraint}) && JobStatus =!= 2", projection, opts=options)
            )

    ads = connection.query_schedd(query)
    return [*_explain_held(ads), *_explain_paused(ads), *_explain_unmatched(connection, ads)]


def _explain_held(ads: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    counts: Counter[tuple[object, object]] = Counter()
    examples: dict[tuple[object, object], str] = {}
    for ad in ads:
        if ad.get("JobStatus") == HELD and ad.get("HoldReasonCode") != SPOOLING and "ProcId" in ad:
            key = ad.get("HoldReasonCode"), ad.get("HoldReasonSubCode")
            counts[key] += 1
            examples.setdefault(key, hold_reason_of(ad))
    for key, count in counts.most_common():
        yield f"{_count_jobs(count)} held, e.g.: {examples[key]}"


def _explain_paused(ads: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for ad in ads:
        if "ProcId" not in ad and ad.get("JobMaterializePaused"):
            reason = ad.get("JobMaterializePauseReason") or "no reason given"
            yield f"HTCondor materializes no more jobs of cluster {ad['ClusterId']}: {reason}"


def _explain_unmatched(
    connection: PoolConnection, ads: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Explain idle jobs without a matching slot; jobs of a submission are alike, so one is checked."""
    idle: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for ad in ads:
        if ad.get("JobStatus") == IDLE and "ProcId" in ad:
            idle[str(ad[SUBMISSION_ATTRIBUTE])].append(ad)
    slots: Sequence[Any] | None = None
    for idle_ads in idle.values():
        first = idle_ads[0]
        if first.get("JobUniverse") == _GRID_UNIVERSE:
            if not first.get("GridJobStatus"):
                yield f"{_count_jobs(len(idle_ads))} not accepted yet by {first.get('GridResource')}"
            continue
        slots = _query_slots(connection) if slots is None else slots
        job = f"ClusterId == {first['ClusterId']} && ProcId == {first['ProcId']}"
        ads_of_job = connection.query_schedd(partial(_query_first_job, constraint=job))
        reason = _unmet_requirement(ads_of_job[0], slots) if ads_of_job else ""
        if reason:
            yield f"{_count_jobs(len(idle_ads))} idle: {reason}"


def _query_first_job(schedd: Any, constraint: str) -> Sequence[Any]:
    ads: Sequence[Any] = schedd.query(constraint, limit=1)
    return ads


def _unmet_requirement(job: Any, slots: Sequence[Any]) -> str:
    """Return the requirement that no slot fulfills; '' if one slot fulfills all."""
    import classad2

    if not slots:
        return "the pool has no slots"
    # Clauses about time become true later and do not rule out a slot.
    clauses = [
        part for part in split_conjunction(str(job.lookup("Requirements"))) if "time(" not in part
    ]
    matching_slots = list(slots)
    for part in clauses:
        job["Requirements"] = classad2.ExprTree(part)
        if not any(slot.matches(job) for slot in slots):
            return f"no slot of {len(slots)} matches {part}"
        matching_slots = [slot for slot in matching_slots if slot.matches(job)]
    return (
        "" if matching_slots else f"no slot of {len(slots)} matches all of {' && '.join(clauses)}"
    )


def split_conjunction(expression: str) -> list[str]:
    """Split an expression at its outermost ``&&`` into clauses without enclosing parentheses."""
    text = _strip_parentheses(expression)
    operators = [(token[0], token.span()) for depth, token in _iterate_tokens(text) if depth == 0]
    if any(operator in ("|", "?") for operator, _ in operators):
        return [text]  # binds less than &&
    clauses, start = [], 0
    for operator, (begin, end) in operators:
        if operator == "&&":
            clauses += split_conjunction(text[start:begin])
            start = end
    return [*clauses, *split_conjunction(text[start:])] if clauses else [text]


def _strip_parentheses(expression: str) -> str:
    """Remove all parentheses that enclose the whole expression."""
    text = expression.strip()
    if text.startswith("("):
        closing = next((token for depth, token in _iterate_tokens(text) if depth == 0), None)
        if closing is not None and closing.end() == len(text):
            return _strip_parentheses(text[1:-1])
    return text


def _iterate_tokens(expression: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield strings, brackets and operators with the depth of nesting after each."""
    depth = 0
    for token in _REQUIREMENT_TOKEN.finditer(expression):
        depth += (token[0] in _OPENING) - (token[0] in _CLOSING)
        yield depth, token


def _count_jobs(count: int) -> str:
    return "1 job is" if count == 1 else f"{count} jobs are"
