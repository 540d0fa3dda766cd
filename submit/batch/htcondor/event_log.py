"""Event log of a submission, read as far as it goes.

HTCondor follows each event with one of type 028 that repeats it as attributes and, because of
``job_ad_information_attrs``, adds the number of the start and the time; only these are read.  The
bindings' reader (``JobEventLog``) resumes and waits for torn events, but replaces the time and type of
these by those of the event 028 itself, yields nothing of a replaced log, and keeps two files open for
each.

A log may be missing, replaced, or lack events: :meth:`EventLog.needs_schedd` says when the schedd has
to be asked.
"""

from __future__ import annotations

import calendar
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from treehammer.collectors.job_spec import JobState
from treehammer.submit.batch.htcondor.job_events import (
    EventType,
    ExecutionStart,
    JobEvent,
    JobEvents,
    parse_int,
)
from treehammer.submit.batch.htcondor.submit_description import (
    ATTEMPT_ATTRIBUTE,
    EVENT_LOG_NAME,
    TIME_ATTRIBUTE,
    Submission,
)
from treehammer.submit.batch.interface import BatchEvent, JobStatus

#: Time without an event after which the schedd is asked about an open job, and until it is asked again.
CONFIRM_AFTER_US = 60_000_000
_EVENT_END = "\n...\n"
#: Cluster and proc of an event, and the number of the type that it repeats.
_EVENT_HEAD = re.compile(
    r"028 \((\d+)\.(-?\d+)\..*?^TriggerEventTypeNumber = (\d+)$", re.MULTILINE | re.DOTALL
)
_AD_ATTRIBUTE = re.compile(r"^(\w+) = (.*)$", re.MULTILINE)
#: First event of a whole log: submission of the cluster, or of its first job.
FIRST_EVENT = re.compile(rb"(?:035|000(?= \(\d+\.0+\.)) \((\d+)\.")
#: Reason of jobs that have not had their turn, and its cause where nobody removed others of the cluster.
_REMOVED_CLUSTER = "lost: its cluster was removed from the queue before the job's turn came"
_AT_LIMIT = "HTCondor does so at MAX_JOBS_PER_OWNER; resume queues it"
#: Offsets of time zones are multiples of this many seconds.
_ZONE_STEP_S = 900


def parse_events(text: str, cluster: int) -> Iterator[JobEvent]:
    """Yield the useful events of a cluster from log text that ends with a complete event."""
    useful_types = frozenset(EventType)
    for block in text.split(_EVENT_END):
        head = _EVENT_HEAD.match(block)
        if not head or int(head[1]) != cluster or int(head[3]) not in useful_types:
            continue
        values = {key: _unquote(value) for key, value in _AD_ATTRIBUTE.findall(block)}
        if values.get("MyType") == "FileTransferEvent" and values.get("Type") != "2":
            continue  # only the start of an input transfer is useful
        time_us = _find_time_us(values)
        number = parse_int(values.get(ATTEMPT_ATTRIBUTE)) or 0
        yield JobEvent(EventType(int(head[3])), int(head[2]), time_us, number, values)


def _find_time_us(values: Mapping[str, str]) -> int:
    """Return the time of an event in microseconds since 1970 UTC, 0 if it is invalid.

    HTCondor's time has milliseconds, but as a rule no zone: it is local to the writer.
    """
    try:
        moment = datetime.fromisoformat(values.get("EventTime", ""))
    except ValueError:
        return 0
    second = parse_int(values.get(TIME_ATTRIBUTE))
    if moment.tzinfo is None and second is not None:
        local_s = calendar.timegm(moment.timetuple())
        offset_s = round((local_s - second) / _ZONE_STEP_S) * _ZONE_STEP_S
        return (local_s - offset_s) * 1_000_000 + moment.microsecond
    return int(moment.timestamp() * 1e6)


def _unquote(value: str) -> str:
    """Return a ClassAd string literal without its quotation marks."""
    if value.startswith('"') and value.endswith('"'):
        return value[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    return value


class EventLog:
    """Event log of a cluster, read as far as it goes.

    Attributes:
        jobs: proc -> state, of the jobs with events.
        is_complete: it begins with the submission, and was not replaced or shortened since.
        is_cluster_removed: all its jobs have left the queue.
        pause_reason: why HTCondor materializes no more jobs; '' while it does.
        confirmed_us: when the schedd last confirmed what the log says, in microseconds since 1970 UTC;
            before, when the submission was written.
    """

    def __init__(self, submission: Submission, cluster: int) -> None:
        self.submission = submission
        self.cluster = cluster
        self.jobs: dict[int, JobEvents] = {}
        self.is_complete = False
        self.is_cluster_removed = False
        self.pause_reason = ""
        self.confirmed_us = submission.staged_s * 1_000_000
        self._inode = self._offset = 0
        self._is_replaced = False

    def constraint(self, procs: Collection[int] = ()) -> str:
        """Return the ClassAd expression that matches the cluster, or only these of its jobs."""
        parts = [self.submission.constraint, f"ClusterId == {self.cluster}"]
        if procs:
            parts.append(f"({' || '.join(f'ProcId == {proc}' for proc in procs)})")
        return " && ".join(parts)

    def batch_id(self, proc: int) -> str:
        """Return the batch id of a job."""
        return self.submission.batch_id(self.cluster, proc)

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
                is_whole = FIRST_EVENT.match(stream.readline()) and not self._is_replaced
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
        for event in parse_events(text, self.cluster):
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
        jobs = [job for job in map(self.jobs.get, procs) if job is None or not job.is_final]
        if jobs and (self.is_cluster_removed or not self.is_complete):
            return True
        due_us = now_us - CONFIRM_AFTER_US
        return any(max(self.confirmed_us, job.last_us if job else 0) < due_us for job in jobs)

    def may_hold(self, reason: str) -> bool:
        """Return whether a job or the cluster may be held for a reason with this text."""
        holds = (job.hold.reason for job in self.jobs.values() if job.hold)
        return not self.is_complete or any(reason in text for text in (self.pause_reason, *holds))

    def remove_unstarted(self, proc: int) -> None:
        """Add that a job was removed with its cluster, before it was in the queue."""
        reasons = {j.removal_reason for j in self.jobs.values() if j.removal_reason and j.ended_us}
        reason = f"{_REMOVED_CLUSTER}: {min(reasons, default=_AT_LIMIT)}"
        self.job(proc).apply(JobEvent(EventType.ABORTED, proc, 0, 0, {"Reason": reason}))

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
            restarted = replace(last, state=JobState.LOST, exit_code=None, event=BatchEvent.LOST)
            attempts.append(replace(restarted, reason="the other pool restarted it"))
        return replace(status, attempts=(*attempts, replace(last, number=number)))
