"""Reasons why queued jobs make no progress: holds, unmet requirements, lost nodes."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from treehammer.submit.batch.htcondor.event_log import EventLog
from treehammer.submit.batch.htcondor.hold_codes import SPOOLING, Hold
from treehammer.submit.batch.htcondor.job_events import (
    HELD_STATUS,
    IDLE_STATUS,
    RUNNING_STATUS,
    ClassAdValues,
)
from treehammer.submit.batch.htcondor.pool import PoolConnection
from treehammer.submit.batch.htcondor.submission_folder import Submission
from treehammer.text_formatting import pluralize

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
)
_REQUIREMENT_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|&&|[()\[\]{}|?]')
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
#: Attributes that show a lost node; the lease is that of all jobs of a submission.
_LOST_NODE_PROJECTION = (
    "ProcId",
    "RemoteHost",
    "JobDisconnectedDate",
    "LastJobLeaseRenewal",
    "JobLeaseDuration",
)


def describe_lost_nodes(connection: PoolConnection, log: EventLog) -> Iterator[str]:
    """Describe each node without contact, a line each.

    The log also knows those of a restarted schedd; a spooled job has only the ad.

    Raises:
        BatchError: the pool does not answer.
    """
    running = f"{log.submission.cluster_constraint(log.cluster)} && JobStatus == {RUNNING_STATUS}"
    ads = [ad for ad in connection.query_ads(running, _LOST_NODE_PROJECTION) if "ProcId" in ad]
    # In the grid universe, which has no lease, the other pool watches the node.
    lease_s = max((int(ad.get("JobLeaseDuration", 0)) for ad in ads), default=0)
    times_by_host: dict[str, list[int]] = defaultdict(list)
    for ad in ads if lease_s else ():
        start = log.job(int(ad["ProcId"])).last_start
        since_s = int(ad.get("JobDisconnectedDate", 0))
        if log.is_complete and start:
            since_s = start.disconnected_us // 1_000_000 if start.is_open else 0
        elif since_s < int(ad.get("LastJobLeaseRenewal", 0)):
            since_s = 0
        if since_s:
            times_by_host[str(ad.get("RemoteHost") or "its node")].append(since_s)
    for host, times in times_by_host.items():
        since, until = (
            time.strftime("%H:%M:%S", time.localtime(seconds))
            for seconds in (min(times), max(times) + lease_s)
        )
        yield (
            f"no contact to {host}, where {pluralize(len(times), 'job')} ran, since {since}; "
            f"if it stays lost, HTCondor starts the jobs again after {until}"
        )


def explain_idle_jobs(connection: PoolConnection, submissions: Iterable[Submission]) -> list[str]:
    """Explain why jobs of submissions do not start, a line each.

    Raises:
        BatchError: the pool does not answer.
    """
    constraint = " || ".join(sorted(submission.constraint for submission in submissions))
    ads = connection.query_ads(f"({constraint}) && JobStatus =!= 2", _DIAGNOSIS_PROJECTION)
    return [*_explain_held(ads), *_explain_paused(ads), *_explain_unmatched(connection, ads)]


def _count_jobs(count: int) -> str:
    return "1 job is" if count == 1 else f"{count} jobs are"


def _explain_held(ads: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    holds = [
        Hold.from_values(ad) for ad in ads if ad.get("JobStatus") == HELD_STATUS and "ProcId" in ad
    ]
    counts = Counter((hold.code, hold.subcode) for hold in holds if hold.code != SPOOLING)
    examples = {(hold.code, hold.subcode): hold for hold in reversed(holds)}
    for key, count in counts.most_common():
        yield f"{_count_jobs(count)} held, e.g.: {examples[key]}"


def _explain_paused(ads: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for ad in ads:
        if "ProcId" not in ad and ad.get("JobMaterializePaused"):
            reason = ad.get("JobMaterializePauseReason") or "no reason given"
            yield f"HTCondor materializes no more jobs of cluster {ad['ClusterId']}: {reason}"


def _explain_unmatched(connection: PoolConnection, ads: Iterable[ClassAdValues]) -> Iterator[str]:
    """Explain idle jobs without a matching slot; jobs of a cluster are alike, so one is checked."""
    idle: dict[int, list[ClassAdValues]] = defaultdict(list)
    for ad in ads:
        if ad.get("JobStatus") == IDLE_STATUS and "ProcId" in ad:
            idle[ad["ClusterId"]].append(ad)
    slots: Sequence[Any] | None = None
    for cluster, cluster_ads in idle.items():
        first, count = cluster_ads[0], _count_jobs(len(cluster_ads))
        if first.get("JobUniverse") == _GRID_UNIVERSE:
            if not first.get("GridJobStatus"):
                yield f"{count} not accepted yet by {first.get('GridResource')}"
            continue
        slots = connection.query_slots() if slots is None else slots
        job = connection.find_job(cluster, first["ProcId"])
        if job is not None and (reason := _find_unmet_requirement(job, slots)):
            yield f"{count} idle: {reason}"


def _find_unmet_requirement(job: Any, slots: Sequence[Any]) -> str:
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
    unmet = f"no slot of {len(slots)} matches all of {' && '.join(clauses)}"
    return "" if matching_slots else unmet


def split_conjunction(expression: str) -> list[str]:
    """Split an expression at its outermost ``&&`` into clauses without enclosing parentheses."""
    text, clauses = expression.strip(), []
    depth = start = first_end = 0
    for token in _REQUIREMENT_TOKEN.finditer(text):
        depth += (token[0] in _OPENING) - (token[0] in _CLOSING)
        if depth:
            continue
        first_end = first_end or token.end()
        if token[0] in ("|", "?"):
            return [text]  # binds less than &&
        if token[0] == "&&":
            clauses.append(text[start : token.start()])
            start = token.end()
    if text.startswith("(") and first_end == len(text):
        return split_conjunction(text[1:-1])
    clauses.append(text[start:])
    return (
        clauses if len(clauses) == 1 else [part for c in clauses for part in split_conjunction(c)]
    )
