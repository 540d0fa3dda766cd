"""Meeting of jobs at the results service, which also compares the nodes' clocks with its own."""

from __future__ import annotations

import json
import time
from typing import Any, Dict, Optional

from ...job_spec import LoadSpec
from ...service_spec import START_ANSWER_KEYS, STARTS_PATH
from ..upload.service_client import ServiceEndpoint, ServiceResponse
from .appointment import Appointment, RefusedError

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
        """Announce this job; see :class:`~.appointment.Meeting`."""
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
        """Announce that this job will not come; see :class:`~.appointment.Meeting`."""
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
