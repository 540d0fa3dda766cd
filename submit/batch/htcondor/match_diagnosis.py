"""Why jobs do not start, said at once: held, not made yet, or no slot that would take them."""

from __future__ import annotations

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

#: JobUniverse of jobs that go on to another batch system.
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


@dataclass(frozen=True)
class ScheddIdentity:
    """A schedd that answered: its name, its version, and whom it takes us for."""

    schedd: str
    version: str
    user: str


def check_pool(connection: PoolConnection) -> ScheddIdentity:
    """Reach collector and schedd, and see that we may submit.

    Raises:
        BatchError: one does not answer or does not let us in.
    """
    location = connection.schedd_ad()
    try:
        answer = connection.call_with_retries(lambda htcondor: htcondor.ping(location, "WRITE"))
    except PoolUnreachableError as error:
        # Of a schedd that lets us read alone, the bindings say no more than of one that is not there.
        connection.call_with_retries(lambda htcondor: htcondor.ping(location, "READ"))
        raise connection.unreachable_error(
            PermissionError("DENIED: we may read, not submit")
        ) from error
    version = str(answer.get("RemoteVersion", "")).removeprefix("$CondorVersion: ")
    user = str(answer.get("MyRemoteUserName", ""))
    if not answer.get("AuthorizationSucceeded", False):
        raise connection.unreachable_error(PermissionError(f"DENIED to {user or 'us'}: WRITE"))
    return ScheddIdentity(str(location.get("Name", "")), version.partition(" ")[0], user)


def count_matching_slots(connection: PoolConnection, requirements: str) -> tuple[int, int]:
    """How many slots of the pool an expression matches, and how many there are in all.

    Raises:
        BatchError: the pool does not answer, or this is no expression.
    """
    with configured_bindings(connection.pool):
        import classad2

        try:
            job = classad2.ClassAd({"Requirements": classad2.ExprTree(requirements or "true")})
        except classad2.ClassAdException as error:
            raise BatchError(
                f"{requirements!r} is no ClassAd expression",
                where="requirements",
                hint='Write it like TARGET.GLIDEIN_Site == "NAME".',
            ) from error
    slots = _query_slots(connection)
    return sum(bool(slot.matches(job)) for slot in slots), len(slots)


def _query_slots(connection: PoolConnection) -> Sequence[Any]:
    """All slots but those that were split off another."""

    def query(collector: Any) -> Sequence[Any]:
        with configured_bindings(connection.pool) as htcondor:
            slots = collector.query(htcondor.AdType.Startd, 'SlotType =!= "Dynamic"')
            return list(slots)

    return connection.query_collector(query)


def explain_idle_jobs(connection: PoolConnection, constraint: str) -> list[str]:
    """What keeps the jobs from starting of which a ClassAd expression is true.

    Raises:
        BatchError: the pool does not answer.
    """

    def query(schedd: Any) -> Sequence[Any]:
        with configured_bindings(connection.pool) as htcondor:
            options = htcondor.QueryOpts.IncludeClusterAd
            wanted = [SUBMISSION_ATTRIBUTE, *_DIAGNOSIS_PROJECTION]
            return known_values(
                schedd.query(f"({constraint}) && JobStatus =!= 2", wanted, opts=options)
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
            reason = ad.get("JobMaterializePauseReason") or "for no stated reason"
            yield f"HTCondor makes no more jobs of cluster {ad['ClusterId']}: {reason}"


def _explain_unmatched(
    connection: PoolConnection, ads: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """Idle jobs that no slot would take; those of a submission are alike, so one is looked at."""
    idle: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for ad in ads:
        if ad.get("JobStatus") == IDLE and "ProcId" in ad:
            idle[str(ad[SUBMISSION_ATTRIBUTE])].append(ad)
    slots: Sequence[Any] | None = None
    for waiting in idle.values():
        first = waiting[0]
        if first.get("JobUniverse") == _GRID_UNIVERSE:
            if not first.get("GridJobStatus"):
                yield f"{_count_jobs(len(waiting))} not taken yet by {first.get('GridResource')}"
            continue
        slots = _query_slots(connection) if slots is None else slots
        job = f"ClusterId == {first['ClusterId']} && ProcId == {first['ProcId']}"
        found = connection.query_schedd(partial(_query_first_job, constraint=job))
        why = _unmet_requirement(found[0], slots) if found else ""
        if why:
            yield f"{_count_jobs(len(waiting))} idle: {why}"


def _query_first_job(schedd: Any, constraint: str) -> Sequence[Any]:
    found: Sequence[Any] = schedd.query(constraint, limit=1)
    return found


def _unmet_requirement(job: Any, slots: Sequence[Any]) -> str:
    """What no slot fulfils; '' when one does."""
    import classad2

    if not slots:
        return "the pool has no slot at all"
    # What only time brings about says nothing against a slot.
    wanted = [
        part for part in split_conjunction(str(job.lookup("Requirements"))) if "time(" not in part
    ]
    left = list(slots)
    for part in wanted:
        job["Requirements"] = classad2.ExprTree(part)
        if not any(slot.matches(job) for slot in slots):
            return f"no slot of {len(slots)} matches {part}"
        left = [slot for slot in left if slot.matches(job)]
    return "" if left else f"no slot of {len(slots)} matches all of {' && '.join(wanted)}"


def split_conjunction(expression: str) -> list[str]:
    """The parts of an expression that ``&&`` joins, without their outermost parentheses."""
    parts, depth, start, quoted, index = [], 0, 0, False, 0
    while index < len(expression):
        character = expression[index]
        if character == "\\" and quoted:
            index += 1
        elif character == '"':
            quoted = not quoted
        elif not quoted and character in "([{":
            depth += 1
        elif not quoted and character in ")]}":
            depth -= 1
        elif not quoted and depth == 0 and character in "|?":
            return [_strip_parentheses(expression)]  # binds less than &&
        elif not quoted and depth == 0 and expression.startswith("&&", index):
            parts.append(expression[start:index])
            index += 1
            start = index + 1
        index += 1
    parts.append(expression[start:])
    if len(parts) == 1:
        inner = _strip_parentheses(expression)
        return [inner] if inner == expression.strip() else split_conjunction(inner)
    return [clause for part in parts for clause in split_conjunction(part)]


def _strip_parentheses(expression: str) -> str:
    """Without one pair of parentheses around the whole."""
    text = expression.strip()
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth, quoted = 0, False
    for index, character in enumerate(text):
        if character == '"' and text[index - 1] != "\\":
            quoted = not quoted
        depth += (not quoted) * ((character == "(") - (character == ")"))
        if depth == 0 and index < len(text) - 1:
            return text
    return text[1:-1].strip()


def _count_jobs(count: int) -> str:
    return "1 job is" if count == 1 else f"{count} jobs are"
