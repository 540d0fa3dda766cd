"""Diagnosis of jobs that do not start: held, not materialized, or without a matching slot."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from treehammer.errors import BatchError
from treehammer.submit.batch.htcondor.connection import (
    PoolConnection,
    PoolUnreachableError,
    configured_bindings,
    known_values,
)
from treehammer.submit.batch.htcondor.job_status import HELD, IDLE, SPOOLING, hold_reason_of
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


_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|&&|[()\[\]{}|?]')
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


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
    for token in _TOKEN.finditer(expression):
        depth += (token[0] in _OPENING) - (token[0] in _CLOSING)
        yield depth, token


def _count_jobs(count: int) -> str:
    return "1 job is" if count == 1 else f"{count} jobs are"
