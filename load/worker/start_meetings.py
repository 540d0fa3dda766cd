"""Meetings at which jobs agree on the instant of a common start: in a folder, or at the results service."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Dict, Optional, Protocol

from ...collectors.job_spec import START_ANSWER_KEYS, STARTS_PATH, LoadSpec
from ...collectors.json_documents import format_json, parse_json
from ...collectors.shared_files import write_atomically
from ...collectors.worker.service_client import ServiceEndpoint, ServiceResponse


@dataclass(frozen=True)
class Appointment:
    """The common start.

    Attributes:
        start_us: microseconds since 1970 UTC, on the clock that all jobs share.
        present: jobs that had arrived when it was set.
        clock_offset_s: this node's clock minus the shared one; None if both are one clock.
        clock_error_s: bound of the error of ``clock_offset_s``.
    """

    start_us: int
    present: int
    clock_offset_s: Optional[float] = None
    clock_error_s: Optional[float] = None


class RefusedError(Exception):
    """The jobs can never meet at this place; the message is one sentence."""


class Meeting(Protocol):
    """A place where jobs announce themselves and learn the common start."""

    #: Seconds between two calls of :meth:`poll`.
    pause_s: float
    #: Whether to go on after the appointment, so that a restarted place learns it again.
    repeat: bool

    def poll(self, waited_s: float, appointment: Optional[Appointment]) -> Optional[Appointment]:
        """Announce this job and request the appointment; None while jobs are missing.

        Args:
            waited_s: seconds since the first call.
            appointment: the one of the jobs, if this job has it already.

        Raises:
            OSError, ValueError: a failure that may pass.
            RefusedError: a failure that will not.
        """
        ...

    def withdraw(self) -> None:
        """Announce that this job will not come.

        Raises:
            OSError, ValueError, RefusedError: it cannot be announced.
        """
        ...


#: Seconds between two listings of the folder.
POLL_S = 0.2
#: Seconds after the agreement before which no payload is launched: all jobs look once more.
NOTICE_S = 1.0
_START_FILE, _ABSENT_PREFIX = "start.json", "absent-"


class FolderMeeting:
    """Each job leaves a file; the first that sees all of them, or has waited long enough, sets the start.

    Args:
        load: the job's part in the load.
        folder: the barrier's own folder; created if missing.
    """

    pause_s = POLL_S
    repeat = False

    def __init__(self, load: LoadSpec, folder: str) -> None:
        self._load = load
        self._folder = folder

    def poll(self, waited_s: float, appointment: Optional[Appointment]) -> Optional[Appointment]:
        """Announce this job; see :class:`Meeting`."""
        self._leave_file(str(self._load.index))
        start = self._read_start()
        if start is None and self._is_due(waited_s):
            self._set_start()
            start = self._read_start()
        return start

    def withdraw(self) -> None:
        """Announce that this job will not come; see :class:`Meeting`."""
        self._leave_file(f"{_ABSENT_PREFIX}{self._load.index}")

    def _leave_file(self, name: str) -> None:
        os.makedirs(self._folder, exist_ok=True)
        with suppress(FileExistsError):
            path = os.path.join(self._folder, name)
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))

    def _read_start(self) -> Optional[Appointment]:
        try:
            with open(os.path.join(self._folder, _START_FILE), encoding="ascii") as stream:
                return parse_json(Appointment, stream.read())
        except FileNotFoundError:
            return None

    def _is_due(self, waited_s: float) -> bool:
        # A job that withdrew and came in another attempt counts once.
        announced = {name.replace(_ABSENT_PREFIX, "") for name in os.listdir(self._folder)}
        announced_count = sum(name.isdigit() for name in announced)
        return announced_count >= self._load.participants or waited_s >= self._load.wait_s

    def _set_start(self) -> None:
        """Write the start unless another job was faster."""
        present = sum(name.isdigit() for name in os.listdir(self._folder))
        start_us = round((time.time() + NOTICE_S + self._load.lead_s) * 1e6)
        draft = os.path.join(self._folder, f"draft-{self._load.index}")
        write_atomically(draft, format_json(Appointment(start_us, present)))
        with suppress(FileExistsError):
            os.link(draft, os.path.join(self._folder, _START_FILE))
        os.unlink(draft)


#: Round trips of the first exchange and of each further one.
FIRST_ROUND_TRIPS, ROUND_TRIPS = 8, 1
#: Seconds for which the network may stall one request.
TIMEOUT_S = 10.0


class ClockComparison:
    """Offset of this node's clock from the service's, by the shortest round trip (as NTP does)."""

    def __init__(self) -> None:
        self.offset_s = 0.0
        self.error_s = float("inf")

    def add_round_trip(self, sent_s: float, received_s: float, service_s: float) -> None:
        """Take over a round trip if it is the shortest: its halves differ by its length at most."""
        error_s = (received_s - sent_s) / 2
        if 0 <= error_s < self.error_s:
            self.offset_s = (sent_s + received_s) / 2 - service_s
            self.error_s = error_s


class ServiceMeeting:
    """The jobs announce themselves at the results service, which sets the start.

    Each announcement is complete, so that a restarted service knows everything again.

    Args:
        load: the job's part in the load.
        barrier: name of the barrier within the campaign.
        endpoint: the service with the job's token.
    """

    repeat = True

    def __init__(self, load: LoadSpec, barrier: str, endpoint: ServiceEndpoint) -> None:
        self.pause_s = 1.0
        self._load = load
        self._barrier = barrier
        self._endpoint = endpoint
        self._clocks = ClockComparison()
        self._round_trips = FIRST_ROUND_TRIPS

    def poll(self, waited_s: float, appointment: Optional[Appointment]) -> Optional[Appointment]:
        """Announce this job; see :class:`Meeting`."""
        body = self._describe(
            waited_s=waited_s,
            start_us=appointment.start_us if appointment else None,
            present=appointment.present if appointment else None,
        )
        answer: Dict[str, Any] = {}
        with self._endpoint.open_session(TIMEOUT_S) as session:
            for _ in range(self._round_trips):
                sent_s = time.time()
                response = session.exchange(STARTS_PATH, body, START_ANSWER_KEYS)
                received_s = time.time()
                answer = _require_answer(response)
                self._clocks.add_round_trip(sent_s, received_s, answer["time_us"] / 1e6)
        self._round_trips = ROUND_TRIPS
        self.pause_s = float(answer["poll_s"])
        if answer["start_us"] is None:
            return None
        clocks = self._clocks
        return Appointment(
            int(answer["start_us"]), int(answer["present"]), clocks.offset_s, clocks.error_s
        )

    def withdraw(self) -> None:
        """Announce that this job will not come; see :class:`Meeting`."""
        body = self._describe(waited_s=0.0, absent=True)
        with self._endpoint.open_session(TIMEOUT_S) as session:
            _require_answer(session.exchange(STARTS_PATH, body, START_ANSWER_KEYS))

    def _describe(self, **values: Any) -> str:
        """Return the body of a request."""
        load = self._load
        common = {"jobs": load.participants, "wait_s": load.wait_s, "lead_s": load.lead_s}
        return json.dumps({"barrier": self._barrier, **common, **values})


def _require_answer(response: ServiceResponse) -> Dict[str, Any]:
    if response.permanent:
        raise RefusedError(response.reason)
    if response.reason:
        raise OSError(response.reason)
    return response.document
