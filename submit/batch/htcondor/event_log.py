"""Event log of a submission: the source of its jobs' states.

HTCondor follows each event with one of type 028 that repeats it as attributes and, because of
``job_ad_information_attrs``, adds the number of the start; only these are read.  The bindings' reader
(``JobEventLog``) takes three times as long and takes all times for this machine's.

A log may be missing, replaced, or lack events: :meth:`EventLog.needs_schedd` says when the schedd has
to be asked.
"""

from __future__ import annotations

import calendar
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from treehammer.collectors.job_spec import JobState
from treehammer.submit.batch.htcondor.hold_codes import parse_int
from treehammer.submit.batch.htcondor.job_events import (
    EventType,
    ExecutionStart,
    JobEvent,
    JobEvents,
)
from treehammer.submit.batch.htcondor.submission_folder import Submission
from treehammer.submit.batch.htcondor.submit_description import ATTEMPT_ATTRIBUTE, EVENT_LOG_NAME
from treehammer.submit.batch.interface import JobStatus

#: Time without an event after which the schedd is asked about an open job, and until it is asked again.
CONFIRM_AFTER_US = 60_000_000
_USEFUL_EVENTS = frozenset(EventType)
_EVENT_END = "\n...\n"
_CLUSTER_HEADER = re.compile(r"028 \((\d+)\.(-?\d+)\.")
_EVENT_TYPE = re.compile(r"^TriggerEventTypeNumber = (\d+)$", re.MULTILINE)
_EVENT_TIME = re.compile(r'^EventTime = "([^"]*)"$', re.MULTILINE)
_AD_ATTRIBUTE = re.compile(r"^(\w+) = (.*)$", re.MULTILINE)
#: First event of a whole log: submission of the cluster, or of its first job.
_SUBMISSION = re.compile(rb"(035 \(\d+\.|000 \(\d+\.0+\.)")
_HEAD_BYTES = 64
#: Offsets of time zones are multiples of this many seconds.
_ZONE_STEP_S = 900


class EventLog:
    """Event log of a cluster, read as far as it goes.

    Attributes:
        queued_s: when the cluster was queued, in seconds since 1970 UTC; 0 if unknown.
        jobs: proc -> state, of the jobs with events.
        is_complete: it begins with the submission, and was not replaced or shortened since.
        is_cluster_removed: all its jobs have left the queue.
        pause_reason: why HTCondor materializes no more jobs; '' while it does.
        confirmed_us: when the schedd last confirmed what the log says, in microseconds since 1970 UTC.
    """

    def __init__(self, submission: Submission, cluster: int) -> None:
        self.submission = submission
        self.cluster = cluster
        self.jobs: dict[int, JobEvents] = {}
        self.is_complete = False
        self.is_cluster_removed = False
        self.pause_reason = ""
        self.confirmed_us = 0
        recorded = submission.cluster
        self.queued_s = recorded.queued_s if recorded and recorded.number == cluster else 0
        self._inode = self._offset = 0
        self._is_replaced = False
        self._clock: LogClock | None = None

    def job(self, proc: int) -> JobEvents:
        """Return the state of one job."""
        return self.jobs.setdefault(proc, JobEvents(self.submission.previous_attempts))

    def read(self) -> None:
        """Apply the events that were added to the log."""
        try:
            with self.submission.log_file.open("rb") as stream:
                file = os.fstat(stream.fileno())
                if self._inode not in (0, file.st_ino) or file.st_size < self._offset:
                    # Events in between are missing; repeated ones are harmless.
                    self._offset, self._is_replaced = 0, True
                self._inode = file.st_ino
                is_whole = _SUBMISSION.match(stream.read(_HEAD_BYTES)) and not self._is_replaced
                self.is_complete = bool(is_whole)
                stream.seek(self._offset)
                data = stream.read()
        except OSError:
            self.is_complete = False
            return
        end = data.rfind(_EVENT_END.encode()) + len(_EVENT_END)
        if end >= len(_EVENT_END):  # the last event may be incomplete
            self._offset += end
            self._apply_text(data[:end].decode("utf-8", "replace"))

    def read_returned(self, proc: int) -> None:
        """Apply the events of a spooled job, whose log returned with its output."""
        if not self.job(proc).is_final:
            with suppress(OSError):
                log = self.submission.job_folder(proc) / EVENT_LOG_NAME
                self._apply_text(log.read_text("utf-8", "replace"))

    def _apply_text(self, text: str) -> None:
        self._clock = self._clock or LogClock.from_first_event(text, self.queued_s)
        for event in parse_events(text, self.cluster, self._clock):
            if event.proc >= 0:
                self.job(event.proc).apply(event)
            elif event.kind == EventType.CLUSTER_REMOVED:
                self.is_cluster_removed = True
            elif event.kind == EventType.FACTORY_PAUSED:
                self.pause_reason = event.values.get("Reason", "")
            elif event.kind == EventType.FACTORY_RESUMED:
                self.pause_reason = ""

    def needs_schedd(self, procs: Iterable[int], now_us: int) -> bool:
        """Return whether events of these jobs may be missing.

        They may if the log is incomplete, if the cluster has gone without them, and, asked once a
        minute, of a job that has been open for a minute without an event.
        """
        due_us = now_us - CONFIRM_AFTER_US
        queued_us = self.queued_s * 1_000_000
        for proc in procs:
            job = self.jobs.get(proc)
            if job is None or not job.is_final:
                is_old = max(self.confirmed_us, job.last_us if job else queued_us) < due_us
                if is_old or self.is_cluster_removed or not self.is_complete:
                    return True
        return False

    def may_hold(self, reason: str) -> bool:
        """Return whether a job or the cluster may be held for a reason with this text."""
        holds = (job.hold.reason for job in self.jobs.values() if job.hold)
        return not self.is_complete or any(reason in text for text in (self.pause_reason, *holds))

    def remove_unstarted(self, proc: int) -> None:
        """Add that a job was removed with its cluster, before it was in the queue."""
        reason = "lost: its cluster was removed from the queue before the job's turn came"
        reasons = {job.removal_reason for job in self.jobs.values() if job.removal_reason}
        if reasons:
            reason += f": {min(reasons)}"
        self.job(proc).apply(JobEvent(EventType.ABORTED, proc, 0, 0, {"Reason": reason}))

    def batch_id(self, proc: int) -> str:
        """Return the batch id of a job."""
        return self.submission.batch_id(self.cluster, proc)

    def status(self, proc: int) -> JobStatus:
        """Derive the status of a job; one without events waits for its turn."""
        batch_id, job = self.batch_id(proc), self.jobs.get(proc)
        if job is None:
            return JobStatus(batch_id, JobState.QUEUED)
        status = job.status(batch_id, cancelled=self.submission.cancellation_mark.exists())
        last = status.attempts[-1] if status.attempts else None
        if not (
            status.state.is_final and isinstance(last, ExecutionStart) and last.is_number_guessed
        ):
            return status
        # The output shows the number of the last start.
        number = max(self.submission.sandboxes(proc), default=last.number)
        attempts = [attempt for attempt in status.attempts[:-1] if attempt.number < number]
        if number > last.number:
            restarted = replace(last, state=JobState.LOST, exit_code=None, failure_class="lost")
            attempts.append(replace(restarted, reason="the other pool restarted it"))
        return replace(status, attempts=(*attempts, replace(last, number=number)))


def parse_events(text: str, cluster: int, clock: LogClock) -> Iterator[JobEvent]:
    """Yield the useful events of a cluster from log text that ends with a complete event."""
    for block in text.split(_EVENT_END):
        head = _CLUSTER_HEADER.match(block)
        kind = _EVENT_TYPE.search(block) if head else None
        if not (head and kind and int(head[1]) == cluster and int(kind[1]) in _USEFUL_EVENTS):
            continue
        values = {key: _unquote(value) for key, value in _AD_ATTRIBUTE.findall(block)}
        if values.get("MyType") == "FileTransferEvent" and values.get("Type") != "2":
            continue  # only the start of an input transfer is useful
        time_us = clock.to_microseconds(values.get("EventTime", ""))
        number = parse_int(values.get(ATTEMPT_ATTRIBUTE)) or 0
        yield JobEvent(EventType(int(kind[1])), int(head[2]), time_us, number, values)


def _unquote(value: str) -> str:
    """Return a ClassAd string literal without its quotation marks."""
    if value.startswith('"') and value.endswith('"'):
        return value[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    return value


@dataclass(frozen=True)
class LogClock:
    """Converts times of a log, which are local to its writer and have no zone, to microseconds.

    Attributes:
        shift_s: offset of the writer's time zone from UTC in seconds; None for this machine's zone,
            whose daylight saving time is known.
    """

    shift_s: int | None = None

    @classmethod
    def from_first_event(cls, text: str, queued_s: int) -> LogClock:
        """Derive the zone from the first event, the queueing itself."""
        first = _EVENT_TIME.search(text)
        try:
            local_s = calendar.timegm(datetime.fromisoformat(first[1] if first else "").timetuple())
        except ValueError:
            return cls()
        shift_s = round((local_s - queued_s) / _ZONE_STEP_S) * _ZONE_STEP_S
        return cls(None if shift_s == time.localtime(queued_s).tm_gmtoff else shift_s)

    def to_microseconds(self, text: str) -> int:
        """Return microseconds since 1970 UTC, 0 for an invalid time."""
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return 0
        if moment.tzinfo is not None or self.shift_s is None:
            return int(moment.timestamp() * 1e6)
        return (calendar.timegm(moment.timetuple()) - self.shift_s) * 1_000_000 + moment.microsecond
