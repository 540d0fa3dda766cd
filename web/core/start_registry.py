"""Common starts of jobs: registered jobs, and the start time once all are present or the wait ends.

The registry is kept in memory only. Every request of a job is complete, so that a restarted service
recovers the missing jobs, the time waited and the start time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

#: Requests per second of all jobs of one barrier, and the shortest pause of one job.
_REQUESTS_PER_S, _MIN_POLL_S = 50.0, 0.5
#: Seconds beyond two polls of every job between the agreement and the first launch.
_NOTICE_S = 2.0
#: Barriers that are kept, and the seconds for which they are without any request.
MAX_BARRIERS, KEEP_S = 2000, 86_400.0


class BarrierConflictError(Exception):
    """A job expects another number of jobs than the earlier ones."""


class TooManyBarriersError(Exception):
    """The registry is full of barriers in use."""


@dataclass(frozen=True)
class Arrival:
    """A job at a barrier; see :class:`treehammer.web.api.response_models.StartRequest`."""

    job_id: str
    jobs: int
    wait_s: float
    lead_s: float
    waited_s: float
    start_us: int | None = None
    present: int | None = None
    absent: bool = False


@dataclass(frozen=True)
class StartState:
    """State of a barrier: ``start_us`` is None while jobs are missing."""

    start_us: int | None
    present: int
    jobs: int
    poll_s: float


@dataclass
class _Barrier:
    jobs: int
    first_s: float
    seen_s: float
    members: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    start_us: int | None = None
    present: int = 0


class StartRegistry:
    """All barriers of a service, by campaign and name.

    Args:
        now_s: returns seconds since 1970 UTC.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._barriers: dict[tuple[str, str], _Barrier] = {}

    def register(self, campaign_id: str, name: str, arrival: Arrival) -> StartState:
        """Note that a job waits at a barrier, and set the common start if it was the last.

        Raises:
            BarrierConflictError: earlier jobs expect another number of jobs.
            TooManyBarriersError: a new barrier does not fit.
        """
        now_s = self._now_s()
        barrier = self._find_barrier((campaign_id, name), arrival.jobs, now_s)
        barrier.seen_s = now_s
        barrier.first_s = min(barrier.first_s, now_s - arrival.waited_s)
        (barrier.absent if arrival.absent else barrier.members).add(arrival.job_id)
        poll_s = max(_MIN_POLL_S, barrier.jobs / _REQUESTS_PER_S)
        if barrier.start_us is None and arrival.start_us is not None:
            barrier.start_us, barrier.present = arrival.start_us, arrival.present or 1
        here = len(barrier.members)
        # A job that withdrew and came in another attempt counts once.
        known = len(barrier.members | barrier.absent)
        is_due = known >= barrier.jobs or now_s - barrier.first_s >= arrival.wait_s
        if barrier.start_us is None and here and is_due:
            notice_s = _NOTICE_S + 2 * poll_s + arrival.lead_s
            barrier.start_us, barrier.present = round((now_s + notice_s) * 1e6), here
        present = here if barrier.start_us is None else barrier.present
        return StartState(barrier.start_us, present, barrier.jobs, poll_s)

    def _find_barrier(self, key: tuple[str, str], jobs: int, now_s: float) -> _Barrier:
        barrier = self._barriers.get(key)
        if barrier is None:
            self._forget_old(now_s)
            if len(self._barriers) >= MAX_BARRIERS:
                raise TooManyBarriersError
            barrier = self._barriers[key] = _Barrier(jobs, now_s, now_s)
        if barrier.jobs != jobs:
            raise BarrierConflictError(f"{barrier.jobs} jobs are to start together, not {jobs}")
        return barrier

    def _forget_old(self, now_s: float) -> None:
        for key in [key for key, one in self._barriers.items() if now_s - one.seen_s > KEEP_S]:
            del self._barriers[key]
