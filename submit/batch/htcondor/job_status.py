"""Status of a job, derived from queue, history and event log; nodes without contact."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from treehammer.collectors.job_spec import JobState
from treehammer.collectors.record.outcome import FAILURE_CLASSES
from treehammer.submit.batch.htcondor.event_log import (
    EVICTED_BY_NODE,
    ExecutionStart,
    JobEventState,
)
from treehammer.submit.batch.htcondor.hold_codes import (
    HELD_CLASS,
    find_hold_cause,
    format_hold_reason,
)
from treehammer.submit.batch.htcondor.submit_description import (
    ATTEMPT_ATTRIBUTE,
    SUBMISSION_ATTRIBUTE,
)
from treehammer.submit.batch.interface import AttemptStatus, JobStatus
from treehammer.text_formatting import pluralize

#: Attributes queried from queue and history.
JOB_PROJECTION = (
    "ClusterId",
    "ProcId",
    "JobStatus",
    SUBMISSION_ATTRIBUTE,
    f"MATCH_EXP_{ATTEMPT_ATTRIBUTE}",
    "NumShadowStarts",
    "EnteredCurrentStatus",
    "JobStartDate",
    "JobCurrentStartDate",
    "JobCurrentStartExecutingDate",
    "CompletionDate",
    "RemoteHost",
    "LastRemoteHost",
    "ExitCode",
    "ExitBySignal",
    "ExitSignal",
    "HoldReason",
    "HoldReasonCode",
    "HoldReasonSubCode",
    "RemoveReason",
    "VacateReason",
    "GridJobStatus",
    "GridResource",
    "RoutedToJobId",
    "StageOutFinish",
)
#: Attributes of a cluster whose jobs are materialized one after the other.
FACTORY_PROJECTION = (
    "JobMaterializeNextProcId",
    "JobMaterializePaused",
    "JobMaterializePauseReason",
)

#: HTCondor's JobStatus.
IDLE, RUNNING, REMOVED, COMPLETED, HELD, TRANSFERRING, SUSPENDED = range(1, 8)
#: HoldReasonCode while inputs are being transferred to the schedd.
SPOOLING = 16

_STATE_BY_CODE = {
    IDLE: JobState.QUEUED,
    RUNNING: JobState.RUNNING,
    TRANSFERRING: JobState.RUNNING,
    SUSPENDED: JobState.RUNNING,
    HELD: JobState.HELD,
}
#: Removal reason given by `cancel`; jobs removed by others have another.
CANCEL_REASON = "treehammer cancel"
CANCELLED_REASON = "cancelled"

ClassAdValues = Mapping[str, Any]
#: Attributes that show a lost node; the lease is that of all jobs of a submission.
LOST_NODE_PROJECTION = (
    "ProcId",
    "JobStatus",
    "RemoteHost",
    "JobDisconnectedDate",
    "LastJobLeaseRenewal",
    "JobLeaseDuration",
)


@dataclass(frozen=True)
class JobRemoval:
    """Removal of a job from the queue; ``was_requested`` if by Treehammer."""

    reason: str
    was_requested: bool
    time_us: int


def derive_status(
    batch_id: str, events: JobEventState | None, ad: ClassAdValues | None, cancelled: bool
) -> JobStatus | None:
    """Derive the status of a job; None if neither events nor ad give one.

    Args:
        batch_id: id of the job.
        events: state from its events; None without events.
        ad: from the queue or the history; None if it is in neither, or was not queried.
        cancelled: whether Treehammer cancelled it.
    """
    events = events or JobEventState()
    starts = dict(events.starts)
    if ad is not None:
        _add_last_start(starts, ad)
        state = ad.get("JobStatus")
        if state == COMPLETED:
            return _done_job_status(batch_id, starts, _to_microseconds(ad.get("CompletionDate")))
        if state == REMOVED:
            reason = str(ad.get("RemoveReason") or events.removal_reason or "")
            ended = _to_microseconds(ad.get("EnteredCurrentStatus"))
            return _removed_job_status(
                batch_id, starts, events, JobRemoval(reason, cancelled, ended)
            )
        return _open_job_status(batch_id, starts, ad)
    if events.is_over:
        return _done_job_status(batch_id, starts, events.ended_us)
    if events.removal_reason is not None:
        removal = JobRemoval(events.removal_reason, cancelled, events.ended_us)
        return _removed_job_status(batch_id, starts, events, removal)
    return None


def _to_microseconds(seconds: Any) -> int:
    return int(seconds) * 1_000_000 if isinstance(seconds, int | float) and seconds > 0 else 0


def _add_last_start(starts: dict[int, ExecutionStart], ad: ClassAdValues) -> None:
    """Add the start that the ad describes and close starts that it shows as ended.

    Events of these may be missing from the log.
    """
    number = _find_last_start(starts, ad)
    if not number or not ad.get("NumShadowStarts"):
        return
    host = str(ad.get("RemoteHost") or ad.get("LastRemoteHost") or "")
    if number not in starts:
        if ad.get("JobStatus") == IDLE and number - 1 in starts:
            return  # the number was assigned for a match that did not start the job
        started_us = _to_microseconds(ad.get("JobCurrentStartDate"))
        starts[number] = ExecutionStart(started_us=started_us, host=host)
    _update_starts(starts, ad, number, host)


def _find_last_start(starts: dict[int, ExecutionStart], ad: ClassAdValues) -> int:
    """Return the number of the last start; 0 without one.

    It is added where another pool or a job router starts the job, whose log may lack it.
    """
    other_queue = ad.get("GridResource") or ad.get("RoutedToJobId")
    if other_queue and ad.get("JobStartDate"):
        return _add_grid_start(starts, ad)
    matched = str(ad.get(f"MATCH_EXP_{ATTEMPT_ATTRIBUTE}") or "")
    return int(matched) if matched.isdigit() else 0


def _add_grid_start(starts: dict[int, ExecutionStart], ad: ClassAdValues) -> int:
    """Add the only start of a job that starts elsewhere and return its number.

    The other pool counts its own starts; the number is corrected when the output arrives.
    """
    number = max(starts, default=1)
    started_us = _to_microseconds(ad.get("JobStartDate"))
    starts.setdefault(number, ExecutionStart(started_us, is_number_guessed=True))
    return number


def _update_starts(
    starts: dict[int, ExecutionStart], ad: ClassAdValues, number: int, host: str
) -> None:
    """Close every open start but that of a running or removed job, whose host is updated."""
    # The removal ends the last start of a removed job and explains it.
    last_open = ad.get("JobStatus") in (RUNNING, TRANSFERRING, SUSPENDED, REMOVED)
    for n, start in starts.items():
        if start.is_open and (n < number or not last_open):
            starts[n] = _close_start(start, ad, last=n == number)
        elif n == number and host:
            starts[n] = replace(start, host=host)


def _close_start(start: ExecutionStart, ad: ClassAdValues, *, last: bool) -> ExecutionStart:
    """Close a start whose end is known from the ad only."""
    ended_us = _to_microseconds(ad.get("EnteredCurrentStatus"))
    state = ad.get("JobStatus") if last else None
    if state == COMPLETED:
        return _complete_start(start, ad, ended_us)
    if state == HELD:
        return start.as_lost(ended_us, _hold_class_of(ad), hold_reason_of(ad))
    reason = str(ad.get("VacateReason") or "") or start.shadow_error
    kind = "lost" if start.shadow_error else "evicted"
    return start.as_lost(ended_us, kind, reason or "evicted, no event gives a reason")


def _complete_start(start: ExecutionStart, ad: ClassAdValues, ended_us: int) -> ExecutionStart:
    """Return the start of a completed job with its exit code or signal."""
    by_signal = ad.get("ExitBySignal") is True
    code = ad.get("ExitSignal") if by_signal else ad.get("ExitCode")
    number = code if isinstance(code, int) else None
    return replace(
        start,
        state=JobState.DONE.value,
        ended_us=_to_microseconds(ad.get("CompletionDate")) or ended_us,
        exit_code=-number if by_signal and number is not None else number,
        reason=f"ended by signal {number}" if by_signal else "",
    )


def hold_reason_of(ad: ClassAdValues) -> str:
    """Format the reason of a hold with HTCondor's codes, and the remedy."""
    return format_hold_reason(*_hold_of(ad))


def _hold_class_of(ad: ClassAdValues) -> str:
    return find_hold_cause(*_hold_of(ad)).failure_class


def _hold_of(ad: ClassAdValues) -> tuple[str, object, object]:
    codes = ad.get("HoldReasonCode"), ad.get("HoldReasonSubCode")
    return str(ad.get("HoldReason") or ""), *codes


def _attempt_statuses(starts: Mapping[int, ExecutionStart]) -> tuple[AttemptStatus, ...]:
    return tuple(starts[number].to_attempt_status(number) for number in sorted(starts))


def _open_job_status(
    batch_id: str, starts: Mapping[int, ExecutionStart], ad: ClassAdValues
) -> JobStatus:
    state = _STATE_BY_CODE.get(ad.get("JobStatus", 0), JobState.QUEUED)
    if state is JobState.HELD:
        if ad.get("HoldReasonCode") == SPOOLING:
            return JobStatus(batch_id, JobState.QUEUED, _attempt_statuses(starts))
        return JobStatus(
            batch_id, state, _attempt_statuses(starts), _hold_class_of(ad), hold_reason_of(ad)
        )
    return JobStatus(batch_id, state, _attempt_statuses(starts))


def _done_job_status(batch_id: str, starts: dict[int, ExecutionStart], ended_us: int) -> JobStatus:
    last = starts.get(max(starts, default=1), ExecutionStart())
    if last.is_open or not starts:
        done = replace(last, state=JobState.DONE.value, ended_us=ended_us)
        starts[max(starts, default=1)] = done
    return JobStatus(batch_id, JobState.DONE, _attempt_statuses(starts))


def _removed_job_status(
    batch_id: str, starts: dict[int, ExecutionStart], events: JobEventState, removal: JobRemoval
) -> JobStatus:
    """Return the status of a removed job: cancelled if Treehammer removed it, else lost."""
    cancelled = removal.was_requested or CANCEL_REASON in removal.reason
    last = max(starts, default=0)
    interrupted = last and (starts[last].is_open or _is_eviction_by_removal(starts[last], removal))
    if cancelled:
        if interrupted:
            starts[last] = replace(
                starts[last],
                state=JobState.CANCELLED.value,
                ended_us=removal.time_us,
                failure_class="",
                reason=CANCELLED_REASON,
            )
        return JobStatus(
            batch_id, JobState.CANCELLED, _attempt_statuses(starts), "", CANCELLED_REASON
        )
    kind, reason = _removal_cause(starts.get(last), events, removal.reason)
    if interrupted:
        starts[last] = starts[last].as_lost(removal.time_us, kind, reason)
    elif not last or starts[last].state == JobState.DONE.value or kind == "submission":
        # The job was waiting for its next start; that one failed.
        starts[last + 1] = ExecutionStart().as_lost(removal.time_us, kind, reason)
    return JobStatus(batch_id, JobState.LOST, _attempt_statuses(starts), kind, reason)


def _is_eviction_by_removal(start: ExecutionStart, removal: JobRemoval) -> bool:
    """Return whether a start was evicted because its job was removed."""
    near = abs(start.ended_us - removal.time_us) < 60_000_000
    return start.failure_class == "evicted" and near


def _removal_cause(
    last: ExecutionStart | None, events: JobEventState, removal: str
) -> tuple[str, str]:
    """Return class and reason of a removal by others.

    A template states both as ``CLASS: reason``; otherwise earlier events explain the removal.
    """
    kind, _, reason = removal.partition(": ")
    if kind == HELD_CLASS and events.hold_reason:
        return events.hold_class, events.hold_reason
    if kind in FAILURE_CLASSES and reason:
        return kind, reason
    by_whom = f"removed from the queue: {removal or 'no reason given'}"
    if events.hold_reason:
        return events.hold_class, f"{events.hold_reason}; {by_whom}"
    if last is not None and last.failure_class and last.reason not in ("", EVICTED_BY_NODE):
        return last.failure_class, f"{last.reason}; {by_whom}"
    return "lost", by_whom


@dataclass(frozen=True)
class Disconnection:
    """Loss of contact to a node; ``since_s`` is in seconds since 1970, 0 if unknown."""

    host: str
    since_s: int


def find_disconnections(
    ads: Iterable[ClassAdValues], events: Mapping[int, JobEventState]
) -> Iterator[Disconnection]:
    """Find running jobs without contact to their node.

    The event log also knows those of a restarted schedd; a spooled job has only the ad.

    Args:
        ads: of one cluster, see :data:`LOST_NODE_PROJECTION`.
        events: states from the event log, by proc.
    """
    for ad in ads:
        if ad.get("JobStatus") != RUNNING:
            continue
        host, since_s = str(ad.get("RemoteHost") or "its node"), 0
        job = events.get(int(ad.get("ProcId", -1)))
        last = job.starts[max(job.starts)] if job and job.starts else None
        if last is not None:
            since_s = last.disconnected_us // 1_000_000 if last.is_open else 0
        elif int(ad.get("JobDisconnectedDate", 0)) >= int(ad.get("LastJobLeaseRenewal", 0)):
            since_s = int(ad.get("JobDisconnectedDate", 0))
        if since_s:
            yield Disconnection(host, since_s)


def describe_disconnections(disconnections: Iterable[Disconnection], lease_s: int) -> Iterator[str]:
    """Describe each lost node in a line.

    Args:
        disconnections: the disconnections.
        lease_s: seconds after which HTCondor gives up a job.
    """
    by_host: dict[str, list[Disconnection]] = defaultdict(list)
    for item in disconnections:
        by_host[item.host].append(item)
    for host, items in by_host.items():
        since_s, until_s = min(i.since_s for i in items), max(i.since_s for i in items) + lease_s
        clocks = [time.strftime("%H:%M:%S", time.localtime(when)) for when in (since_s, until_s)]
        yield (
            f"no contact to {host}, where {pluralize(len(items), 'job')} ran, since {clocks[0]}; "
            f"if it stays lost, HTCondor starts the jobs again after {clocks[1]}"
        )
