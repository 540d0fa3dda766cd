"""Events of one job and the starts that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from treehammer.collectors.job_state import JobState
from treehammer.submit.batch.htcondor.hold_codes import (
    HELD_CLASS,
    find_hold_cause,
    format_hold_reason,
)
from treehammer.submit.batch.interface import AttemptStatus

#: HTCondor's numbers of event types.
EXECUTE, EVICTED, TERMINATED, SHADOW_EXCEPTION, ABORTED = 1, 4, 5, 7, 9
HELD, RELEASED, DISCONNECTED, RECONNECTED, RECONNECT_FAILED = 12, 13, 22, 23, 24
CLUSTER_REMOVED, TRANSFER = 36, 40
#: Reason of an eviction whose event gives none.
EVICTED_BY_NODE = "evicted by its node"
#: Event types that change the state of a job.
USEFUL_EVENTS = frozenset(
    {EXECUTE, EVICTED, TERMINATED, SHADOW_EXCEPTION, ABORTED, HELD, RELEASED, DISCONNECTED}
    | {RECONNECTED, RECONNECT_FAILED, CLUSTER_REMOVED, TRANSFER}
)


@dataclass(frozen=True)
class JobEvent:
    """One event of one job; ``attempt`` is 0 if the event names no start."""

    kind: int
    proc: int
    time_us: int
    attempt: int
    values: Mapping[str, str]


class GuessedAttemptStatus(AttemptStatus):
    """Attempt whose number is a guess until its output has arrived."""


@dataclass(frozen=True)
class ExecutionStart:
    """One start of a job according to its events; see :class:`AttemptStatus`.

    Attributes:
        executing: the job itself began, not only the transfer of its input.
        shadow_error: a problem that may turn out to be the end of this start.
        disconnected_us: when its node stopped answering, 0 while it answers.
        is_number_guessed: no event gave the number, as in the grid universe, where another pool counts.
    """

    started_us: int = 0
    ended_us: int = 0
    state: str = JobState.RUNNING.value
    exit_code: int | None = None
    failure_class: str = ""
    reason: str = ""
    host: str = ""
    executing: bool = False
    shadow_error: str = ""
    disconnected_us: int = 0
    is_number_guessed: bool = False

    @property
    def is_open(self) -> bool:
        """Whether its end is unknown."""
        return self.state == JobState.RUNNING.value

    def as_lost(self, time_us: int, failure_class: str, reason: str) -> ExecutionStart:
        """Return this start as ended by the infrastructure."""
        return replace(
            self,
            state=JobState.LOST.value,
            ended_us=time_us,
            failure_class=failure_class,
            reason=reason,
        )

    def to_attempt_status(self, number: int) -> AttemptStatus:
        """Convert to the batch interface's attempt."""
        kind = GuessedAttemptStatus if self.is_number_guessed else AttemptStatus
        return kind(
            number,
            JobState(self.state),
            self.started_us,
            self.ended_us,
            self.exit_code,
            self.reason,
            self.failure_class,
            self.host,
        )


@dataclass
class JobEventState:
    """State of one job according to its events so far.

    Attributes:
        starts: number -> start.
        hold_reason: reason of the current hold, '' if the job is not held.
        hold_class: failure class of the last hold.
        removal_reason: reason of the removal, None if the job was not removed.
        is_over: the job left the queue by itself.
        ended_us: end of the job, 0 if it has not ended.
    """

    starts: dict[int, ExecutionStart] = field(default_factory=dict)
    hold_reason: str = ""
    hold_class: str = HELD_CLASS
    removal_reason: str | None = None
    is_over: bool = False
    ended_us: int = 0

    def apply(self, event: JobEvent) -> None:
        """Apply an event. Applying it twice changes nothing."""
        transition = _JOB_TRANSITIONS.get(event.kind, JobEventState._apply_to_start)
        transition(self, event, event.attempt or max(self.starts, default=0))

    def _apply_execution(self, event: JobEvent, number: int) -> None:
        if event.attempt:
            self._add_start(event)
            return
        guess = number if number and self.starts[number].is_open else number + 1
        self._add_start(replace(event, attempt=guess))
        self.starts[guess] = replace(self.starts[guess], is_number_guessed=True)

    def _apply_transfer(self, event: JobEvent, _number: int) -> None:
        if event.attempt:
            self._add_start(event)

    def _apply_release(self, _event: JobEvent, _number: int) -> None:
        self.hold_reason = ""

    def _apply_removal(self, event: JobEvent, _number: int) -> None:
        self.removal_reason, self.ended_us = event.values.get("Reason", ""), event.time_us

    def _apply_to_start(self, event: JobEvent, number: int) -> None:
        if not number:
            return
        start = self.starts.setdefault(number, ExecutionStart())
        self.starts[number] = _apply_shadow_event(start, event)
        if event.kind == TERMINATED:
            self.is_over, self.hold_reason, self.ended_us = True, "", event.time_us

    def _add_start(self, event: JobEvent) -> None:
        number, values = event.attempt, event.values
        start = self.starts.get(number, ExecutionStart(started_us=event.time_us))
        for earlier, other in self.starts.items():
            if earlier < number and other.is_open:
                reason = other.shadow_error or "its shadow ended without an event"
                self.starts[earlier] = other.as_lost(event.time_us, "lost", reason)
        if event.kind == EXECUTE and not start.executing:
            started = event.time_us if start.is_open else start.started_us
            host = values.get("SlotName", "") or values.get("ExecuteHost", "")
            start = replace(start, started_us=started, executing=True, host=host)
        self.starts[number] = start
        if start.is_open:
            self.hold_reason = ""

    def _apply_hold(self, event: JobEvent, number: int) -> None:
        hold = [
            event.values.get(name, "")
            for name in ("HoldReason", "HoldReasonCode", "HoldReasonSubCode")
        ]
        self.hold_reason = format_hold_reason(*hold)
        self.hold_class = find_hold_cause(*hold).failure_class
        start = self.starts.get(number)
        # The hold caused an eviction just before it.
        if start and (
            start.is_open or (start.failure_class == "evicted" and _belongs_to(start, event))
        ):
            self.starts[number] = start.as_lost(event.time_us, self.hold_class, self.hold_reason)


#: Event type -> transition of the job; all other types change a start only.
_JOB_TRANSITIONS: Mapping[int, Callable[[JobEventState, JobEvent, int], None]] = {
    EXECUTE: JobEventState._apply_execution,
    TRANSFER: JobEventState._apply_transfer,
    HELD: JobEventState._apply_hold,
    RELEASED: JobEventState._apply_release,
    ABORTED: JobEventState._apply_removal,
}


def _belongs_to(start: ExecutionStart, event: JobEvent) -> bool:
    return abs(event.time_us - start.ended_us) < 60_000_000


def _apply_shadow_event(start: ExecutionStart, event: JobEvent) -> ExecutionStart:
    """Return a start after an event of its shadow."""
    requeued = event.kind == EVICTED and event.values.get("TerminatedAndRequeued") == "true"
    if event.kind == TERMINATED or requeued:
        return _apply_termination(start, event)
    apply = _OPEN_START_TRANSITIONS.get(event.kind)
    return apply(start, event) if apply and start.is_open else start


def _apply_disconnect(start: ExecutionStart, event: JobEvent) -> ExecutionStart:
    reason = f"disconnected: {event.values.get('DisconnectReason', '')}"
    return replace(start, shadow_error=reason, disconnected_us=event.time_us)


def _apply_reconnect(start: ExecutionStart, _event: JobEvent) -> ExecutionStart:
    return replace(start, shadow_error="", disconnected_us=0)


def _apply_failed_reconnect(start: ExecutionStart, event: JobEvent) -> ExecutionStart:
    reason = event.values.get("Reason", "") or start.shadow_error
    node = event.values.get("StartdName", "its node")
    return start.as_lost(event.time_us, "lost", f"{node}: {reason}")


def _apply_shadow_exception(start: ExecutionStart, event: JobEvent) -> ExecutionStart:
    message = event.values.get("Message", "")
    return start.as_lost(event.time_us, "lost", f"shadow exception: {message}")


def _apply_eviction(start: ExecutionStart, event: JobEvent) -> ExecutionStart:
    reason = event.values.get("Reason", "")
    message = f"evicted: {reason}" if reason else EVICTED_BY_NODE
    return start.as_lost(event.time_us, "evicted", message)


#: Event type -> transition of a start that has not ended.
_OPEN_START_TRANSITIONS: Mapping[int, Callable[[ExecutionStart, JobEvent], ExecutionStart]] = {
    DISCONNECTED: _apply_disconnect,
    RECONNECTED: _apply_reconnect,
    RECONNECT_FAILED: _apply_failed_reconnect,
    SHADOW_EXCEPTION: _apply_shadow_exception,
    EVICTED: _apply_eviction,
}


def _apply_termination(start: ExecutionStart, event: JobEvent) -> ExecutionStart:
    values = event.values
    if values.get("TerminatedNormally") == "true":
        code, reason = _parse_int(values.get("ReturnValue")), ""
    else:
        number = _parse_int(values.get("TerminatedBySignal"))
        code, reason = (-number if number else None), f"ended by signal {number or 'unknown'}"
    return replace(
        start,
        state=JobState.DONE.value,
        ended_us=event.time_us,
        exit_code=code,
        reason=reason,
        failure_class="",
    )


def _parse_int(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None
