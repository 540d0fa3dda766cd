"""Wait of a job for the common start of its load.

A separate process announces the job and asks for the instant, since a network call may hang; the
worker keeps a single thread and ends that process at its deadline.  Nothing makes the job wait for
longer than the waiting limit of its load plus :data:`.START_PATIENCE_S` and the time until its level of the
ramp.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Dict, Iterator, NoReturn, Optional

from ...collectors.job_spec import (
    ALONE,
    LATE,
    MAX_START_SPREAD_S,
    START_PATIENCE_S,
    TOGETHER,
    LoadSpec,
)
from ...collectors.record.outcome import ExecutionError, Failure
from ...collectors.shared_files import write_atomically
from ...collectors.worker.child_processes import StopSignals, enter_helper_process, print_line
from ...collectors.worker.service_client import ServiceEndpoint
from .load_report import LoadReport
from .start_meetings import Appointment, FolderMeeting, Meeting, RefusedError, ServiceMeeting

#: Longest pause in seconds after a failed request.
_RETRY_PAUSE_S = 5.0
_POLL_INTERVAL_S = 1.0
#: Longest wait in seconds that the results service accepts.
_LONGEST_WATCH_S = 86_400.0
#: Longest time in seconds for the announcement that a job will not come.
_WITHDRAW_S = 10.0


@dataclass(frozen=True)
class LoadStart:
    """The start of an execution's load.

    Attributes:
        load: the job's part in the load.
        wait_s: seconds waited.
        appointment: the common start; None without one.
        launch_us: end of the wait, on this node's clock.
        waited: whether the job had to wait.
    """

    load: LoadSpec
    wait_s: float = 0.0
    appointment: Optional[Appointment] = None
    launch_us: int = 0
    waited: bool = False

    @property
    def start_us(self) -> Optional[int]:
        """The common start on this node's clock."""
        if self.appointment is None:
            return None
        return self.appointment.start_us + round((self.appointment.clock_offset_s or 0.0) * 1e6)

    @property
    def own_start_us(self) -> Optional[int]:
        """Start of this job's level on this node's clock."""
        common_us = self.start_us
        return None if common_us is None else common_us + round(self.load.level_start_s * 1e6)

    def require_rest_of_load(self) -> None:
        """Refuse to begin when the load of the other jobs is over.

        Raises:
            ExecutionError: the load is over.
        """
        common_us = self.start_us
        late_s = 0.0 if common_us is None else (self.launch_us - common_us) / 1e6
        if late_s >= self.load.duration_s:
            message = (
                f"The other jobs began {late_s:.0f} s ago, and their load is over; this job loaded "
                "nothing. Were there too few slots for all jobs at once?"
            )
            raise ExecutionError(Failure("submission", "late-start", "start", message))

    def describe_for_payload(self) -> Dict[str, Any]:
        """Return the object ``load`` of the payload's job.json."""
        load = self.load
        return {
            "index": load.index,
            "jobs": load.jobs,
            "start_us": self.start_us,
            "clock_offset_s": self.appointment.clock_offset_s if self.appointment else None,
            "first_step": load.first_step,
            "step_s": load.step_s,
            "duration_s": load.duration_s,
            "writable": load.writable,
            "ceiling": {
                "opens_per_s": load.max_opens_per_s,
                "clients": load.max_clients,
                "mb_per_s": load.max_mb_per_s,
            },
        }

    def values(self, began_us: Optional[int] = None) -> Dict[str, Any]:
        """Return the worker-owned values; ``began_us`` is the payload's own time of its start."""
        values: Dict[str, Any] = {"load_index": self.load.index, "load_jobs": self.load.jobs}
        if not self.waited:
            return values
        values["start_wait_s"] = self.wait_s
        own_us = self.own_start_us
        if self.appointment is None or own_us is None:
            return {**values, "start_state": ALONE}
        if began_us is None and (self.launch_us >= own_us or not self.load.lead_s):
            began_us = self.launch_us
        offset_s = (max(self.launch_us, began_us or 0) - own_us) / 1e6
        return {
            **values,
            "start_state": LATE if offset_s > MAX_START_SPREAD_S else TOGETHER,
            "start_planned_us": self.appointment.start_us,
            "start_present_jobs": self.appointment.present,
            "clock_offset_s": self.appointment.clock_offset_s,
            "clock_error_s": self.appointment.clock_error_s,
            "start_offset_s": None if began_us is None else (began_us - own_us) / 1e6,
        }


class CommonStart:
    """Lets the executions of a job begin together with those of other jobs.

    Args:
        load: the job's part in the load.
        job_folder: absolute folder of ``job.json``.
        endpoint: the results service with this job's token; None for none.
        signals: the worker's signals.
    """

    def __init__(
        self,
        load: LoadSpec,
        job_folder: str,
        endpoint: Optional[ServiceEndpoint],
        signals: StopSignals,
    ) -> None:
        self._load = load
        self._job_folder = job_folder
        self._endpoint = endpoint
        self._signals = signals

    def wait(self, execution: str, *, is_first: bool = True) -> LoadStart:
        """Wait until the payload of an execution is to be launched.

        Args:
            execution: its name within the job.
            is_first: whether it is the job's first execution.

        Raises:
            ExecutionError: a stop signal arrived.
        """
        load = self._load
        if not load.barrier:
            return LoadStart(load)
        if not is_first:
            # Jobs whose previous execution failed come early, while the others still load.
            load = replace(load, wait_s=load.wait_s + load.duration_s)
        began = time.monotonic()
        meeting = self._open_meeting(load, f"{load.barrier}-{execution}")
        with _Attendance(meeting) as attendance:
            appointment = self._await_appointment(load, attendance, began)
            start = LoadStart(load, appointment=appointment, waited=True)
            launch_s = 0.0 if start.own_start_us is None else start.own_start_us / 1e6 - load.lead_s
            while (left_s := launch_s - time.time()) > 0:
                self._wait_for(None, left_s)
        now_us = round(time.time() * 1e6)
        return LoadStart(load, time.monotonic() - began, appointment, now_us, waited=True)

    def withdraw(self, execution: str) -> None:
        """Announce that an execution failed before its start, so that no job waits for it."""
        self._leave(self._open_meeting(self._load, f"{self._load.barrier}-{execution}"))

    @property
    def is_watch(self) -> bool:
        """Whether this job watches a server instead of loading it."""
        return self._load.is_watch

    def open_report(self, folder: str, attempt: int) -> LoadReport:
        """Open the reports of an execution to HTCondor; a job that watches has none."""
        jobs = 0 if self.is_watch else self._load.jobs
        return LoadReport(folder, attempt, jobs, os.environ)

    def announce_end(self, execution: str) -> None:
        """Announce that a job which loads has ended an execution, to those that watch."""
        if self._load.watchers and not self._load.is_watch:
            self._leave(self._open_end_meeting(execution))

    @contextmanager
    def watching_end(self, execution: str, path: str) -> Iterator[None]:
        """Let a file appear as soon as all jobs that load have ended, while the block runs.

        Nothing happens for a job that loads, or while the other jobs are silent.
        """
        meeting = self._open_end_meeting(execution) if self._load.is_watch else None
        pid = -1
        if self._load.barrier and meeting is not None:
            with suppress(OSError):
                pid = os.fork()
        if pid == 0:
            _await_end_and_exit(meeting, path)
        try:
            yield
        finally:
            if pid > 0:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

    def _open_end_meeting(self, execution: str) -> Optional[Meeting]:
        """Open the place where jobs that load say that they ended, and those that watch wait."""
        load = self._load
        longest_s = min(load.wait_s + load.level_start_s + load.duration_s, _LONGEST_WATCH_S)
        return self._open_meeting(
            replace(load, wait_s=longest_s), f"{load.barrier}-{execution}-end"
        )

    def _leave(self, meeting: Optional[Meeting]) -> None:
        """Announce, within some seconds, that this job will not come."""
        if not self._load.barrier or meeting is None:
            return
        try:
            pid = os.fork()
        except OSError:
            return
        if pid == 0:
            try:
                enter_helper_process()
                meeting.withdraw()
            finally:
                os._exit(0)
        until = time.monotonic() + _WITHDRAW_S
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() >= until:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return
            select.select([self._signals.fd], [], [], 0.1)
            self._signals.drain()

    def _open_meeting(self, load: LoadSpec, barrier: str) -> Optional[Meeting]:
        if load.folder:
            return FolderMeeting(load, os.path.join(self._job_folder, load.folder, barrier))
        if self._endpoint is None:
            return None
        return ServiceMeeting(load, barrier, self._endpoint)

    def _await_appointment(
        self, load: LoadSpec, attendance: _Attendance, began: float
    ) -> Optional[Appointment]:
        print_line(
            f"waiting for all {load.participants} jobs to start together, {load.wait_s:g} s at most"
        )
        until = began + load.wait_s + START_PATIENCE_S
        while attendance.is_open and time.monotonic() < until:
            appointment = attendance.read()
            if appointment is not None:
                if appointment.present < load.participants:
                    print_line(f"{appointment.present} of {load.participants} jobs arrived in time")
                return appointment
            self._wait_for(attendance.fd, until - time.monotonic())
        reason = attendance.problem or "no answer within the waiting limit"
        print_line(f"starting alone, without a common start: {reason}", "stderr")
        return None

    def _wait_for(self, fd: Optional[int], limit_s: float) -> None:
        """Wait until ``fd`` is readable, or for some time.

        Raises:
            ExecutionError: a stop signal arrived.
        """
        sources = [self._signals.fd] if fd is None else [self._signals.fd, fd]
        select.select(sources, [], [], max(0.0, min(limit_s, _POLL_INTERVAL_S)))
        self._signals.drain()
        self._signals.raise_if_stopped("start")


class _Attendance:
    """Process that takes part in a meeting; its reports arrive on ``fd``, one JSON object a line."""

    def __init__(self, meeting: Optional[Meeting]) -> None:
        self.problem = "" if meeting else "the job has no results service"
        self.fd, self._pid = -1, 0
        self._received = b""
        if meeting is None:
            return
        self.fd, write_end = os.pipe()
        os.set_blocking(self.fd, False)
        try:
            self._pid = os.fork()
        except OSError as error:
            self.problem = f"the node cannot start a process: {error.strerror}"
        if self._pid == 0 and not self.problem:
            _attend_and_exit(meeting, write_end)
        os.close(write_end)

    def __enter__(self) -> _Attendance:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        if self.fd >= 0:
            os.close(self.fd)

    @property
    def is_open(self) -> bool:
        """Whether the process may still report."""
        return self._pid > 0

    def read(self) -> Optional[Appointment]:
        """Return the appointment if it was reported; notes the last problem."""
        try:
            content = os.read(self.fd, 65536)
        except BlockingIOError:
            return None
        if not content:  # the process ended
            os.waitpid(self._pid, 0)
            self._pid = 0
        *lines, self._received = (self._received + content).split(b"\n")
        for line in lines:
            report = json.loads(line)
            if "problem" not in report:
                return Appointment(**report)
            self.problem = report["problem"]
        return None


def _attend_and_exit(meeting: Meeting, write_end: int) -> NoReturn:
    """Take part in a meeting until the worker kills this process."""

    def report(document: Dict[str, Any]) -> None:
        os.write(write_end, json.dumps(document).encode() + b"\n")

    try:
        enter_helper_process()
        _attend(meeting, report)
    except RefusedError as error:
        report({"problem": str(error)})
    except Exception as error:  # no error may leave this process in the worker's code
        report({"problem": f"{type(error).__name__}: {error}"})
    finally:
        os._exit(0)


def _await_end_and_exit(meeting: Optional[Meeting], path: str) -> NoReturn:
    """Create a file once the other jobs are at a meeting, until the worker kills this process."""
    try:
        enter_helper_process()
        assert meeting is not None
        began = time.monotonic()
        while True:
            with suppress(OSError, ValueError):
                if meeting.poll(time.monotonic() - began, None) is not None:
                    write_atomically(path, "")
                    break
            time.sleep(max(meeting.pause_s, _POLL_INTERVAL_S))
    finally:
        os._exit(0)


def _attend(meeting: Meeting, report: Any) -> None:
    began, appointment, problem = time.monotonic(), None, ""
    while True:
        pause_s = _RETRY_PAUSE_S * random.uniform(0.5, 1.0)
        try:
            answer = meeting.poll(time.monotonic() - began, appointment)
            pause_s = meeting.pause_s
        except (OSError, ValueError) as error:
            answer = None
            if str(error) != problem:
                problem = str(error)
                report({"problem": problem})
        if answer is not None and appointment is None:
            appointment = answer
            report(asdict(answer))
            if not meeting.repeat:
                return
        time.sleep(pause_s)
