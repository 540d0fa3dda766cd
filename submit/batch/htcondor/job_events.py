"""Events of a job in HTCondor, and its state according to them: attempts, holds and removal.

What queue or history says of a job is applied like events, so that both ways lead to the same state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

from treehammer.collectors.job_spec import JobState
from treehammer.collectors.record.operation_steps import LOAD_ATTRIBUTE, LoadProgress
from treehammer.submit.batch.htcondor.submit_description import ATTEMPT_ATTRIBUTE
from treehammer.submit.batch.interface import AttemptStatus, BatchEvent, Hold, JobStatus

ClassAdValues = Mapping[str, Any]
#: HTCondor's JobStatus.
IDLE_STATUS, RUNNING_STATUS, REMOVED_STATUS, COMPLETED_STATUS, HELD_STATUS = range(1, 6)
#: Attributes of an ad that :meth:`JobEvents.apply_ad` reads.
JOB_PROJECTION = (
    *("ProcId", "JobStatus", "EnteredCurrentStatus", "GridResource", "RoutedToJobId"),
    *(f"MATCH_EXP_{ATTEMPT_ATTRIBUTE}", "NumShadowStarts", "RemoteHost", "LastRemoteHost"),
    *("JobStartDate", "JobCurrentStartDate", "CompletionDate"),
    *("ExitCode", "ExitBySignal", "ExitSignal", "RemoveReason", "VacateReason"),
    *("HoldReason", "HoldReasonCode", "HoldReasonSubCode"),
    *("JobDisconnectedDate", "LastJobLeaseRenewal", LOAD_ATTRIBUTE),
)
#: Removal reason given by `cancel`; jobs removed by others have another.
CANCEL_REASON = "treehammer cancel"
CANCELLED_REASON = "cancelled"
#: Reason of an eviction whose event gives none.
EVICTED_BY_NODE = "evicted by its node"
_NO_REASON = "no event gives a reason"
#: Reasons of an end that do not explain what happened to the job later.
_UNEXPLAINED = ("", EVICTED_BY_NODE, f"evicted: {_NO_REASON}")
#: Events of a job that are no further apart have one cause.
_SAME_CAUSE_US = 60_000_000
#: Code of a hold that lasts while the inputs of a job are sent to the schedd.
SPOOLING = 16
#: Codes of holds by a person.
PERSON_CODES = (1, 15)


def parse_int(value: object) -> int | None:
    """Convert a number of an event or an ad; None for anything else."""
    try:
        return int(str(value))
    except ValueError:
        return None


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
    ATTRIBUTE_UPDATE = 33
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
    values: ClassAdValues


@dataclass(frozen=True)
class ExecutionStart(AttemptStatus):
    """One start of a job, which is an attempt, and what later events need of it.

    Attributes:
        executing: the job itself began, not only the transfer of its input.
        shadow_error: a problem that may turn out to be the end of this start.
        disconnected_us: when its node stopped answering, 0 while it answers.
        lost_node: name of that node, '' if unknown.
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
    lost_node: str = ""
    is_number_guessed: bool = False

    @property
    def is_open(self) -> bool:
        """Whether its end is unknown."""
        return self.state is JobState.RUNNING

    def as_lost(
        self, time_us: int, event: BatchEvent, reason: str, hold: Hold | None = None
    ) -> ExecutionStart:
        """Return this start as ended by the infrastructure."""
        lost = replace(self, state=JobState.LOST, ended_us=time_us)
        return replace(lost, event=event, reason=reason, hold=hold)

    def as_done(self, event: JobEvent) -> ExecutionStart:
        """Return this start as ended by itself or by a signal."""
        values = event.values
        if values.get("TerminatedNormally") == "true":
            code, reason = parse_int(values.get("ReturnValue")), ""
        else:
            number = parse_int(values.get("TerminatedBySignal"))
            code, reason = (-number if number else None), f"ended by signal {number or 'unknown'}"
        completed = replace(self, state=JobState.DONE, ended_us=event.time_us, event=None)
        return replace(completed, exit_code=code, reason=reason)

    def after(self, event: JobEvent) -> ExecutionStart:
        """Return this start, which has not ended, after an event of its shadow."""
        values = event.values
        reason = values.get("Reason", "")
        match event.kind:
            case EventType.DISCONNECTED:
                error = f"disconnected: {values.get('DisconnectReason', '')}"
                lost = replace(self, shadow_error=error, disconnected_us=event.time_us)
                return replace(lost, lost_node=values.get("StartdName", ""))
            case EventType.RECONNECTED if event.time_us < self.disconnected_us:
                return self  # from an ad that is older than the log
            case EventType.RECONNECTED:
                return replace(self, shadow_error="", disconnected_us=0)
            case EventType.RECONNECT_FAILED:
                reason = f"{values.get('StartdName', 'its node')}: {reason or self.shadow_error}"
                return self.as_lost(event.time_us, BatchEvent.LOST, reason)
            case EventType.SHADOW_EXCEPTION:
                reason = f"shadow exception: {values.get('Message', '')}"
                return self.as_lost(event.time_us, BatchEvent.LOST, reason)
            case _:
                reason = f"evicted: {reason}" if reason else EVICTED_BY_NODE
                return self.as_lost(event.time_us, BatchEvent.EVICTED, reason)

    def is_evicted_near(self, time_us: int) -> bool:
        """Return whether it was evicted for what happened to its job at that time."""
        return self.event is BatchEvent.EVICTED and abs(time_us - self.ended_us) < _SAME_CAUSE_US

    def is_explained_by(self, hold: Hold, time_us: int) -> bool:
        """Return whether a hold of its job at that time explains its end.

        A job over a limit ends by an eviction, or by an exception of its shadow. A person who holds
        a job evicts it, but makes no exception.
        """
        if self.is_open or self.is_evicted_near(time_us):
            return True
        is_near = abs(time_us - self.ended_us) < _SAME_CAUSE_US
        return self.event is BatchEvent.LOST and is_near and hold.code not in PERSON_CODES


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
        reported_load: attempt and last step of its load, as its worker reported them.
    """

    previous_attempts: int = 0
    starts: dict[int, ExecutionStart] = field(default_factory=dict)
    hold: Hold | None = None
    removal_reason: str | None = None
    is_over: bool = False
    ended_us: int = 0
    last_us: int = 0
    reported_load: tuple[int, LoadProgress] | None = None

    @property
    def last_number(self) -> int:
        """Number of the last start, including those before the job was requeued."""
        return max(self.starts, default=self.previous_attempts)

    @property
    def last_start(self) -> ExecutionStart | None:
        """The last start; None without one."""
        return self.starts.get(self.last_number)

    @property
    def is_running(self) -> bool:
        """Whether the last start has not ended."""
        return self.last_start is not None and self.last_start.is_open

    @property
    def is_final(self) -> bool:
        """Whether the job has left the queue."""
        return self.is_over or self.removal_reason is not None

    @property
    def load(self) -> LoadProgress | None:
        """The last step of its load; None for one that has ended, or whose node is lost."""
        start, report = self.last_start, self.reported_load
        if start is None or report is None or not start.is_open or start.disconnected_us:
            return None
        return report[1] if report[0] == start.number else None

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
            case EventType.ATTRIBUTE_UPDATE:
                if event.values.get("Attribute") == LOAD_ATTRIBUTE:
                    self.reported_load = LoadProgress.from_attribute(event.values.get("Value"))
            case _:
                self._apply_to_start(event)

    def _apply_execution(self, event: JobEvent) -> None:
        number = event.attempt or self.last_number + (0 if self.is_running else 1)
        start = self._open_start(event, number)
        if not start.executing:
            started_us = event.time_us if start.is_open else start.started_us
            host = event.values.get("SlotName", "") or event.values.get("ExecuteHost", "")
            start = replace(start, started_us=started_us, executing=True, host=host)
            self.starts[number] = replace(start, is_number_guessed=not event.attempt)

    def _open_start(self, event: JobEvent, number: int) -> ExecutionStart:
        for earlier, other in self.starts.items():
            if earlier < number and other.is_open:
                reason = other.shadow_error or "its shadow ended without an event"
                self.starts[earlier] = other.as_lost(event.time_us, BatchEvent.LOST, reason)
        start = self.starts.setdefault(number, ExecutionStart(number, started_us=event.time_us))
        if start.is_open:
            self.hold, self.is_over = None, False
        return start

    def _apply_hold(self, event: JobEvent) -> None:
        values = event.values
        codes = (parse_int(values.get(name)) for name in ("HoldReasonCode", "HoldReasonSubCode"))
        hold = Hold(str(values.get("HoldReason") or ""), *codes)
        if hold.code == SPOOLING:
            return
        self.hold, self.is_over = hold, False
        number = event.attempt or self.last_number
        start = self.starts.get(number)
        if start and start.is_explained_by(hold, event.time_us):
            self.starts[number] = start.as_lost(event.time_us, BatchEvent.HELD, "", hold)

    def _apply_termination(self, event: JobEvent) -> None:
        number = event.attempt or self.last_number
        if number not in self.starts:
            # A short job of another pool; nothing says when it started.
            number = event.attempt or number + 1
            self.starts[number] = ExecutionStart(
                number, started_us=event.time_us, is_number_guessed=not event.attempt
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

    def apply_ad(self, ad: ClassAdValues) -> None:
        """Apply what queue or history says of the job, as the events that lead to it."""
        status, entered = ad.get("JobStatus", IDLE_STATUS), ad.get("EnteredCurrentStatus")
        started_s = self.last_start.started_us // 1_000_000 if self.last_start else 0
        if status in (IDLE_STATUS, HELD_STATUS) and (entered or started_s) < started_s:
            return  # the log, which is read after the queue, knows a later start
        self._apply_start(ad)
        self.reported_load = LoadProgress.from_attribute(ad.get(LOAD_ATTRIBUTE))
        if status not in (HELD_STATUS, REMOVED_STATUS):  # a hold explains a removal
            self.hold = None
        if status == HELD_STATUS:
            self._apply_values(EventType.HELD, entered, ad)
        elif status == COMPLETED_STATUS:
            values = {
                "TerminatedNormally": str(ad.get("ExitBySignal") is not True).lower(),
                "ReturnValue": ad.get("ExitCode"),
                "TerminatedBySignal": ad.get("ExitSignal"),
            }
            self._apply_values(EventType.TERMINATED, ad.get("CompletionDate") or entered, values)
        elif status == REMOVED_STATUS:
            reason = str(ad.get("RemoveReason") or self.removal_reason or "")
            self._apply_values(EventType.ABORTED, entered, {"Reason": reason})
        elif status == RUNNING_STATUS:
            self._apply_contact(ad)
        elif status == IDLE_STATUS:
            self._apply_eviction(ad)

    def _apply_eviction(self, ad: ClassAdValues) -> None:
        """Apply the end of the last start of an idle job, if no event does."""
        if self.last_start and self.is_running:
            reason = ad.get("VacateReason") or self.last_start.shadow_error or _NO_REASON
            entered = ad.get("EnteredCurrentStatus")
            self._apply_values(EventType.EVICTED, entered, {"Reason": str(reason)})

    def _find_started_number(self, ad: ClassAdValues) -> int:
        """Find the number of the last start that an ad shows; 0 without one."""
        number = parse_int(ad.get(f"MATCH_EXP_{ATTEMPT_ATTRIBUTE}")) or 0
        # An idle job may have the number of a match that did not start it.
        is_unused = ad.get("JobStatus") == IDLE_STATUS and number - 1 in self.starts
        return 0 if is_unused or not ad.get("NumShadowStarts") else number

    def _apply_start(self, ad: ClassAdValues) -> None:
        """Apply the last start that an ad shows, if no event does."""
        other_queue = ad.get("GridResource") or ad.get("RoutedToJobId")
        is_elsewhere = bool(other_queue and ad.get("JobStartDate"))
        if is_elsewhere:
            # The other pool counts its own starts; the output shows the number.
            number = max(self.starts, default=self.previous_attempts + 1)
        else:
            number = self._find_started_number(ad)
        if number and number not in self.starts:
            started = ad.get("JobCurrentStartDate") or ad.get("JobStartDate")
            host = str(ad.get("RemoteHost") or ad.get("LastRemoteHost") or "")
            self._apply_values(EventType.EXECUTE, started, {"SlotName": host}, number)
            self.starts[number] = replace(self.starts[number], is_number_guessed=is_elsewhere)

    def _apply_contact(self, ad: ClassAdValues) -> None:
        """Apply when the contact to the node was lost, and when its lease was renewed last."""
        lost_s, renewed_s = ad.get("JobDisconnectedDate"), ad.get("LastJobLeaseRenewal", 0)
        if not lost_s:
            return
        if lost_s < renewed_s:
            self._apply_values(EventType.RECONNECTED, renewed_s, {})
        elif self.last_start and not self.last_start.disconnected_us:
            values = {"StartdName": str(ad.get("RemoteHost", ""))}
            self._apply_values(EventType.DISCONNECTED, lost_s, values)

    def _apply_values(
        self, kind: EventType, seconds: Any, values: ClassAdValues, number: int = 0
    ) -> None:
        time_us = (parse_int(seconds) or 0) * 1_000_000
        self.apply(JobEvent(kind, 0, time_us, number, values))

    def status(self, batch_id: str, *, cancelled: bool) -> JobStatus:
        """Derive the status of the job; ``cancelled`` if Treehammer removed it."""
        if self.removal_reason is not None and not self.is_over:
            return self._removed_status(batch_id, cancelled or CANCEL_REASON in self.removal_reason)
        attempts = _sort_attempts(self.starts)
        if self.is_over:
            return JobStatus(batch_id, JobState.DONE, attempts)
        if self.hold:
            return JobStatus(batch_id, JobState.HELD, attempts, BatchEvent.HELD, hold=self.hold)
        state = JobState.RUNNING if self.is_running else JobState.QUEUED
        return JobStatus(batch_id, state, attempts)

    def _removed_status(self, batch_id: str, cancelled: bool) -> JobStatus:
        """Return the status of a removed job: cancelled if Treehammer removed it, else lost."""
        starts, number, last = dict(self.starts), self.last_number, self.last_start
        is_ended = last and (last.is_open or last.is_evicted_near(self.ended_us))
        ended_start = last if is_ended else None
        if cancelled:
            if ended_start:
                end = replace(ended_start, state=JobState.CANCELLED, ended_us=self.ended_us)
                starts[number] = replace(end, event=None, reason=CANCELLED_REASON)
            attempts = _sort_attempts(starts)
            return JobStatus(batch_id, JobState.CANCELLED, attempts, reason=CANCELLED_REASON)
        cause = event, reason, hold = self._find_removal_cause(last)
        if ended_start:
            starts[number] = ended_start.as_lost(self.ended_us, *cause)
        elif last is None or last.state is JobState.DONE or event is BatchEvent.SUBMISSION:
            # The job was waiting for its next start; that one failed.
            starts[number + 1] = ExecutionStart(number + 1).as_lost(self.ended_us, *cause)
        return JobStatus(batch_id, JobState.LOST, _sort_attempts(starts), event, reason, hold)

    def _find_removal_cause(
        self, last: ExecutionStart | None
    ) -> tuple[BatchEvent, str, Hold | None]:
        """Return event, reason and hold by which others removed the job.

        A template states ``EVENT: reason``; otherwise earlier events explain the removal.
        """
        text = self.removal_reason or "no reason given"
        word, _, reason = text.partition(": ")
        if word == BatchEvent.HELD and self.hold:
            return BatchEvent.HELD, "", self.hold
        if word in [*BatchEvent] and reason:
            return BatchEvent(word), reason, None
        by_whom = f"removed from the queue: {text}"
        if self.hold:
            return BatchEvent.HELD, by_whom, self.hold
        if last is not None and last.event and last.reason not in _UNEXPLAINED:
            return last.event, f"{last.reason}; {by_whom}", last.hold
        return BatchEvent.LOST, by_whom, None


def _sort_attempts(starts: Mapping[int, ExecutionStart]) -> tuple[AttemptStatus, ...]:
    return tuple(starts[number] for number in sorted(starts))
