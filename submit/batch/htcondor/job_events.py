"""State and attempts of a job, derived from its events.

What the schedd's queue or history says of a job is converted to events as well, so that a log that is
missing, or lacks events of a killed daemon, leads to the same state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from treehammer.collectors.job_spec import JobState
from treehammer.collectors.record.outcome import FAILURE_CLASSES
from treehammer.submit.batch.htcondor.hold_codes import HELD_CLASS, SPOOLING, Hold, parse_int
from treehammer.submit.batch.htcondor.submit_description import ATTEMPT_ATTRIBUTE
from treehammer.submit.batch.interface import AttemptStatus, JobStatus

ClassAdValues = Mapping[str, Any]
#: HTCondor's JobStatus.
IDLE_STATUS, RUNNING_STATUS, REMOVED_STATUS, COMPLETED_STATUS, HELD_STATUS = range(1, 6)
#: Attributes of an ad that :meth:`JobEvents.apply_ad` reads.
JOB_PROJECTION = (
    "ProcId",
    "JobStatus",
    f"MATCH_EXP_{ATTEMPT_ATTRIBUTE}",
    "NumShadowStarts",
    "EnteredCurrentStatus",
    "JobStartDate",
    "JobCurrentStartDate",
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
    "GridResource",
    "RoutedToJobId",
)
#: Removal reason given by `cancel`; jobs removed by others have another.
CANCEL_REASON = "treehammer cancel"
CANCELLED_REASON = "cancelled"
#: Reason of an eviction whose event gives none.
EVICTED_BY_NODE = "evicted by its node"
#: Events of a job that are no further apart have one cause.
_SAME_CAUSE_US = 60_000_000


class EventType(IntEnum):
    """HTCondor's numbers of the events that change the state of a job or its cluster."""

    EXECUTE = 1
    EVICTED = 4
    TERMINATED = 5
    SHADOW_EXCEPTION = 7
    ABORTED = 9
    HELD = 12
    RELEASED = 13
    DISCONNECTED = 22
    RECONNECTED = 23
    RECONNECT_FAILED = 24
    CLUSTER_REMOVED = 36
    FACTORY_PAUSED = 37
    FACTORY_RESUMED = 38
    TRANSFER = 40


@dataclass(frozen=True)
class JobEvent:
    """One event of one job; ``attempt`` is 0 if the event names no start."""

    kind: EventType
    proc: int
    time_us: int
    attempt: int
    values: Mapping[str, str]


@dataclass(frozen=True)
class ExecutionStart(AttemptStatus):
    """One start of a job, which is an attempt, and what later events need of it.

    Attributes:
        executing: the job itself began, not only the transfer of its input.
        shadow_error: a problem that may turn out to be the end of this start.
        disconnected_us: when its node stopped answering, 0 while it answers.
        is_number_guessed: no event gave the number, as in the grid universe, where another pool counts.
    """

    state: JobState = JobState.RUNNING
    started_us: int = 0
    ended_us: int = 0
    exit_code: int | None = None
    reason: str = ""
    executing: bool = False
    shadow_error: str = ""
    disconnected_us: int = 0
    is_number_guessed: bool = False

    @property
    def is_open(self) -> bool:
        """Whether its end is unknown."""
        return self.state is JobState.RUNNING

    def as_lost(self, time_us: int, failure_class: str, reason: str) -> ExecutionStart:
        """Return this start as ended by the infrastructure."""
        lost = replace(self, state=JobState.LOST, ended_us=time_us)
        return replace(lost, failure_class=failure_class, reason=reason)

    def as_done(self, event: JobEvent) -> ExecutionStart:
        """Return this start as ended by itself or by a signal."""
        values = event.values
        if values.get("TerminatedNormally") == "true":
            code, reason = parse_int(values.get("ReturnValue")), ""
        else:
            number = parse_int(values.get("TerminatedBySignal"))
            code, reason = (-number if number else None), f"ended by signal {number or 'unknown'}"
        done = replace(self, state=JobState.DONE, ended_us=event.time_us, failure_class="")
        return replace(done, exit_code=code, reason=reason)

    def after(self, event: JobEvent) -> ExecutionStart:
        """Return this start, which has not ended, after an event of its shadow."""
        values = event.values
        reason = values.get("Reason", "")
        match event.kind:
            case EventType.DISCONNECTED:
                error = f"disconnected: {values.get('DisconnectReason', '')}"
                return replace(self, shadow_error=error, disconnected_us=event.time_us)
            case EventType.RECONNECTED:
                return replace(self, shadow_error="", disconnected_us=0)
            case EventType.RECONNECT_FAILED:
                reason = f"{values.get('StartdName', 'its node')}: {reason or self.shadow_error}"
                return self.as_lost(event.time_us, "lost", reason)
            case EventType.SHADOW_EXCEPTION:
                reason = f"shadow exception: {values.get('Message', '')}"
                return self.as_lost(event.time_us, "lost", reason)
            case _:
                reason = f"evicted: {reason}" if reason else EVICTED_BY_NODE
                return self.as_lost(event.time_us, "evicted", reason)


@dataclass
class JobEvents:
    """State of one job according to its events so far. Applying an event twice changes nothing.

    Attributes:
        previous_attempts: attempts before the job was requeued.
        starts: number -> start.
        hold: the current hold, None if the job is not held.
        removal_reason: reason of the removal, None if the job was not removed.
        is_over: the job left the queue by itself.
        ended_us: end of the job, 0 if it has not ended.
        last_us: time of its last event.
    """

    previous_attempts: int = 0
    starts: dict[int, ExecutionStart] = field(default_factory=dict)
    hold: Hold | None = None
    removal_reason: str | None = None
    is_over: bool = False
    ended_us: int = 0
    last_us: int = 0

    @property
    def last_number(self) -> int:
        """Number of the last start, including those before the job was requeued."""
        return max(self.starts, default=self.previous_attempts)

    @property
    def last_start(self) -> ExecutionStart | None:
        """The last start; None without one."""
        return self.starts.get(self.last_number)

    @property
    def is_final(self) -> bool:
        """Whether the job has left the queue."""
        return self.is_over or self.removal_reason is not None

    # -- events

    def apply(self, event: JobEvent) -> None:
        """Apply an event."""
        self.last_us = max(self.last_us, event.time_us)
        match event.kind:
            case EventType.EXECUTE:
                self._apply_execution(event)
            case EventType.TRANSFER:
                if event.attempt:
                    self._open_start(event, event.attempt)
            case EventType.HELD:
                self._apply_hold(event)
            case EventType.RELEASED:
                self.hold = None
            case EventType.ABORTED:
                self.removal_reason, self.ended_us = event.values.get("Reason", ""), event.time_us
            case EventType.TERMINATED:
                self._apply_termination(event)
            case _:
                self._apply_to_start(event)

    def _apply_execution(self, event: JobEvent) -> None:
        number, is_guess = event.attempt, not event.attempt
        if is_guess:
            last = self.last_start
            number = self.last_number + (0 if last and last.is_open else 1)
        start = self._open_start(event, number)
        if not start.executing:
            started_us = event.time_us if start.is_open else start.started_us
            host = event.values.get("SlotName", "") or event.values.get("ExecuteHost", "")
            start = replace(start, started_us=started_us, executing=True, host=host)
            self.starts[number] = replace(start, is_number_guessed=is_guess)

    def _open_start(self, event: JobEvent, number: int) -> ExecutionStart:
        for earlier, other in self.starts.items():
            if earlier < number and other.is_open:
                reason = other.shadow_error or "its shadow ended without an event"
                self.starts[earlier] = other.as_lost(event.time_us, "lost", reason)
        start = self.starts.setdefault(number, ExecutionStart(number, started_us=event.time_us))
        if start.is_open:
            self.hold, self.is_over = None, False
        return start

    def _apply_hold(self, event: JobEvent) -> None:
        hold = Hold.from_values(event.values)
        if hold.code == str(SPOOLING):
            return
        self.hold, self.is_over = hold, False
        number = event.attempt or self.last_number
        start = self.starts.get(number)
        # The hold caused an eviction just before it.
        if start and (start.is_open or _is_eviction_near(start, event.time_us)):
            kind = hold.find_cause().failure_class
            self.starts[number] = start.as_lost(event.time_us, kind, str(hold))

    def _apply_termination(self, event: JobEvent) -> None:
        number = event.attempt or self.last_number
        if number not in self.starts:
            # A short job of another pool; nothing says when it started.
            number = event.attempt or number + 1
            is_guess = not event.attempt
            self.starts[number] = ExecutionStart(
                number, started_us=event.time_us, is_number_guessed=is_guess
            )
        self.starts[number] = self.starts[number].as_done(event)
        self.is_over, self.hold, self.ended_us = True, None, event.time_us

    def _apply_to_start(self, event: JobEvent) -> None:
        number = event.attempt or max(self.starts, default=0)
        if not number:
            return
        start = self.starts.setdefault(number, ExecutionStart(number))
        if event.kind == EventType.EVICTED and event.values.get("TerminatedAndRequeued") == "true":
            self.starts[number] = start.as_done(event)
        elif start.is_open:
            self.starts[number] = start.after(event)

    # -- ads

    def apply_ad(self, ad: ClassAdValues) -> None:
        """Apply what queue or history says of the job, as the events that lead to it."""
        status = ad.get("JobStatus", IDLE_STATUS)
        number = self._find_started_number(ad)
        if number and number not in self.starts:
            started = ad.get("JobCurrentStartDate") or ad.get("JobStartDate")
            host = str(ad.get("RemoteHost") or ad.get("LastRemoteHost") or "")
            self._apply_values(EventType.EXECUTE, started, number, SlotName=host)
            is_guess = _is_elsewhere(ad)
            self.starts[number] = replace(self.starts[number], is_number_guessed=is_guess)
        entered = ad.get("EnteredCurrentStatus")
        if status not in (HELD_STATUS, REMOVED_STATUS):  # a hold explains a removal
            self.hold = None
        if status == HELD_STATUS:
            self._apply_values(
                EventType.HELD,
                entered,
                HoldReason=str(ad.get("HoldReason", "")),
                HoldReasonCode=str(ad.get("HoldReasonCode")),
                HoldReasonSubCode=str(ad.get("HoldReasonSubCode")),
            )
        elif status == COMPLETED_STATUS:
            by_signal = ad.get("ExitBySignal") is True
            self._apply_values(
                EventType.TERMINATED,
                ad.get("CompletionDate") or entered,
                TerminatedNormally=str(not by_signal).lower(),
                ReturnValue=str(ad.get("ExitCode", "")),
                TerminatedBySignal=str(ad.get("ExitSignal", "")),
            )
        elif status == REMOVED_STATUS:
            reason = str(ad.get("RemoveReason") or self.removal_reason or "")
            self._apply_values(EventType.ABORTED, entered, Reason=reason)
        elif status == IDLE_STATUS and self.last_start and self.last_start.is_open:
            reason = str(ad.get("VacateReason") or self.last_start.shadow_error)
            self._apply_values(
                EventType.EVICTED, entered, Reason=reason or "no event gives a reason"
            )

    def _find_started_number(self, ad: ClassAdValues) -> int:
        """Return the number of the last start that an ad shows; 0 without one."""
        if _is_elsewhere(ad):
            # The other pool counts its own starts; the output shows the number.
            return max(self.starts, default=self.previous_attempts + 1)
        matched = parse_int(str(ad.get(f"MATCH_EXP_{ATTEMPT_ATTRIBUTE}"))) or 0
        if not ad.get("NumShadowStarts"):
            return 0
        # An idle job may have the number of a match that did not start it.
        is_unused = ad.get("JobStatus") == IDLE_STATUS and matched - 1 in self.starts
        return 0 if is_unused else matched

    def _apply_values(self, kind: EventType, seconds: Any, number: int = 0, **values: str) -> None:
        is_time = isinstance(seconds, int | float) and seconds > 0
        self.apply(JobEvent(kind, 0, int(seconds) * 1_000_000 if is_time else 0, number, values))

    # -- status

    def status(self, batch_id: str, *, cancelled: bool) -> JobStatus:
        """Derive the status of the job; ``cancelled`` if Treehammer removed it."""
        if self.removal_reason is not None and not self.is_over:
            return self._removed_status(batch_id, cancelled or CANCEL_REASON in self.removal_reason)
        attempts = _list_attempts(self.starts)
        if self.is_over:
            return JobStatus(batch_id, JobState.DONE, attempts)
        if self.hold:
            kind = self.hold.find_cause().failure_class
            return JobStatus(batch_id, JobState.HELD, attempts, kind, str(self.hold))
        is_running = self.last_start is not None and self.last_start.is_open
        return JobStatus(batch_id, JobState.RUNNING if is_running else JobState.QUEUED, attempts)

    def _removed_status(self, batch_id: str, cancelled: bool) -> JobStatus:
        """Return the status of a removed job: cancelled if Treehammer removed it, else lost."""
        starts, number, last = dict(self.starts), self.last_number, self.last_start
        is_interrupted = last and (last.is_open or _is_eviction_near(last, self.ended_us))
        if cancelled:
            state, kind, reason = JobState.CANCELLED, "", CANCELLED_REASON
        else:
            state, (kind, reason) = JobState.LOST, self._find_removal_cause(last)
        if last and is_interrupted:
            starts[number] = replace(last.as_lost(self.ended_us, kind, reason), state=state)
        elif not cancelled and (
            last is None or last.state is JobState.DONE or kind == "submission"
        ):
            # The job was waiting for its next start; that one failed.
            next_start = ExecutionStart(number + 1)
            starts[number + 1] = next_start.as_lost(self.ended_us, kind, reason)
        return JobStatus(batch_id, state, _list_attempts(starts), kind, reason)

    def _find_removal_cause(self, last: ExecutionStart | None) -> tuple[str, str]:
        """Return class and reason of a removal by others.

        A template states both as ``CLASS: reason``; otherwise earlier events explain the removal.
        """
        kind, _, reason = (self.removal_reason or "").partition(": ")
        held = (self.hold.find_cause().failure_class, str(self.hold)) if self.hold else None
        if kind == HELD_CLASS and held:
            return held
        if kind in FAILURE_CLASSES and reason:
            return kind, reason
        by_whom = f"removed from the queue: {self.removal_reason or 'no reason given'}"
        if held:
            return held[0], f"{held[1]}; {by_whom}"
        if last is not None and last.failure_class and last.reason not in ("", EVICTED_BY_NODE):
            return last.failure_class, f"{last.reason}; {by_whom}"
        return "lost", by_whom


def _list_attempts(starts: Mapping[int, ExecutionStart]) -> tuple[AttemptStatus, ...]:
    return tuple(starts[number] for number in sorted(starts))


def _is_eviction_near(start: ExecutionStart, time_us: int) -> bool:
    """Return whether a start was evicted for what happened to its job at that time."""
    return start.failure_class == "evicted" and abs(time_us - start.ended_us) < _SAME_CAUSE_US


def _is_elsewhere(ad: ClassAdValues) -> bool:
    """Return whether another pool or a job router starts the job, whose log may lack it."""
    other_queue = ad.get("GridResource") or ad.get("RoutedToJobId")
    return bool(other_queue and ad.get("JobStartDate"))
