"""Event log of a submission: its events, and the starts of each job.

HTCondor follows each event with one of type 028 that repeats it as attributes and, because of
``job_ad_information_attrs``, adds the number of the start; only these are read.  The bindings' reader
(``JobEventLog``) takes 3.2 s of CPU for the 160,000 events of 10,000 jobs, this one 1.1 s (medians of
three on a shared core).

The log only saves time: it may lack events, repeat them, or be missing.
"""

from __future__ import annotations

import calendar
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from treehammer.collectors.job_spec import JobState
from treehammer.collectors.json_documents import format_json, parse_document
from treehammer.collectors.shared_files import write_atomically
from treehammer.submit.batch.htcondor.hold_codes import (
    HELD_CLASS,
    find_hold_cause,
    format_hold_reason,
)
from treehammer.submit.batch.htcondor.submission_folder import QueuedCluster, Submission
from treehammer.submit.batch.htcondor.submit_description import ATTEMPT_ATTRIBUTE, EVENT_LOG_NAME
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
_EVENT_END = "\n...\n"
_CLUSTER_HEADER = re.compile(r"028 \((\d+)\.(-?\d+)\.")
_EVENT_TYPE = re.compile(r"^TriggerEventTypeNumber = (\d+)$", re.MULTILINE)
_AD_ATTRIBUTE = re.compile(r"^(\w+) = (.*)$", re.MULTILINE)
#: Offsets of time zones are multiples of this many seconds.
_ZONE_STEP_S = 900
_SNAPSHOT_NAME = "event_log_state.json"
_SNAPSHOT_FORMAT = 2


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


@dataclass
class EventLogState:
    """State of a submission according to its event log so far."""

    inode: int = 0
    offset: int = 0
    jobs: dict[int, JobEventState] = field(default_factory=dict)
    cluster_removed: bool = False
    clock: LogClock | None = None

    @classmethod
    def read(cls, submission: Submission, spooled: Iterable[int] = ()) -> EventLogState:
        """Continue from the saved state and read the events since then.

        Args:
            submission: the submission.
            spooled: procs with event logs of their own, which are complete.
        """
        state = cls._load_snapshot(submission)
        changed = state._read_appended(submission)
        for proc in spooled:
            job = state.jobs.get(proc)
            if job is None or not job.is_over:
                changed |= state._read_whole(
                    submission, submission.job_folder(proc) / EVENT_LOG_NAME
                )
        if changed:
            with suppress(OSError):  # the log can be read again
                write_atomically(
                    submission.path / _SNAPSHOT_NAME,
                    format_json({"format": _SNAPSHOT_FORMAT, **vars(state)}),
                )
        return state

    def job_state(self, proc: int) -> JobEventState | None:
        """Return the state of one job, None without events."""
        return self.jobs.get(proc)

    @classmethod
    def _load_snapshot(cls, submission: Submission) -> EventLogState:
        try:
            document = json.loads((submission.path / _SNAPSHOT_NAME).read_text(encoding="utf-8"))
            if document.pop("format") == _SNAPSHOT_FORMAT:
                return parse_document(cls, document)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        return cls()

    def _read_appended(self, submission: Submission) -> bool:
        """Apply the events added to the log. Returns whether there were any."""
        cluster = submission.cluster
        if cluster is None:
            return False
        try:
            with submission.log_file.open("rb") as stream:
                inode = os.fstat(stream.fileno()).st_ino
                size = os.fstat(stream.fileno()).st_size
                if inode != self.inode or size < self.offset:
                    self.inode, self.offset = inode, 0  # another file; repeated events are harmless
                stream.seek(self.offset)
                data = stream.read()
        except OSError:
            return False
        # The last event may be incomplete.
        end = data.rfind(_EVENT_END.encode()) + len(_EVENT_END)
        if end < len(_EVENT_END):
            return False
        self.offset += end
        return self._apply_text(data[:end].decode("utf-8", "replace"), cluster)

    def _read_whole(self, submission: Submission, log: Path) -> bool:
        cluster = submission.cluster
        try:
            return cluster is not None and self._apply_text(
                log.read_text("utf-8", "replace"), cluster
            )
        except OSError:
            return False

    def _apply_text(self, text: str, cluster: QueuedCluster) -> bool:
        self.clock = self.clock or LogClock.from_first_event(text, cluster.queued_s)
        if self.clock is None:
            return False
        for event in parse_events(text, cluster.number, self.clock):
            if event.kind == CLUSTER_REMOVED:
                self.cluster_removed = True
            elif event.proc >= 0:
                self.jobs.setdefault(event.proc, JobEventState()).apply(event)
        return True


def parse_events(text: str, cluster: int, clock: LogClock) -> Iterator[JobEvent]:
    """Yield the useful events of a cluster from log text that ends with a complete event."""
    for block in text.split(_EVENT_END):
        head = _CLUSTER_HEADER.match(block)
        if head is None or int(head.group(1)) != cluster:
            continue
        kind = _EVENT_TYPE.search(block)
        if kind is None or int(kind.group(1)) not in USEFUL_EVENTS:
            continue
        values = {key: _unquote(value) for key, value in _AD_ATTRIBUTE.findall(block)}
        if values.get("MyType") == "FileTransferEvent" and values.get("Type") != "2":
            continue  # only the start of an input transfer is useful
        number = values.get(ATTEMPT_ATTRIBUTE, "")
        yield JobEvent(
            int(kind.group(1)),
            int(head.group(2)),
            clock.to_microseconds(values.get("EventTime", "")),
            int(number) if number.isdigit() else 0,
            values,
        )


def _unquote(value: str) -> str:
    """Return a ClassAd string literal without its quotation marks."""
    if value.startswith('"') and value.endswith('"'):
        return value[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    return value


@dataclass(frozen=True)
class LogClock:
    """Converts times of a log, which are local to its writer and have no zone, to microseconds.

    Attributes:
        shift_s: offset of the writer's time zone from UTC in seconds.
        is_local: the zone is that of this machine, whose daylight saving time is known.
    """

    shift_s: int
    is_local: bool

    @classmethod
    def from_first_event(cls, text: str, queued_s: int) -> LogClock | None:
        """Derive the zone from the first event, the queueing itself; None without events."""
        first = re.search(r'^EventTime = "([^"]*)"$', text, re.MULTILINE)
        if first is None:
            return None
        try:
            local = calendar.timegm(datetime.fromisoformat(first.group(1)).timetuple())
        except ValueError:
            return None
        shift = round((local - queued_s) / _ZONE_STEP_S) * _ZONE_STEP_S
        return cls(shift, shift == time.localtime(queued_s).tm_gmtoff)

    def to_microseconds(self, text: str) -> int:
        """Return microseconds since 1970 UTC, 0 for an invalid time."""
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return 0
        if moment.tzinfo is not None or self.is_local:
            return int(moment.timestamp() * 1e6)
        return (calendar.timegm(moment.timetuple()) - self.shift_s) * 1_000_000 + moment.microsecond
