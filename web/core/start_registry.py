"""Common starts of jobs: registered jobs, and the start time once all are present or the wait ends.

The registry is kept in memory only. Every request of a job is complete, so that a restarted service
recovers the missing jobs, the time waited and the start time.  A key and a job may open a share of the
barriers only.  Beyond that, their own barriers whose start has passed give way.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

#: Requests per second of all jobs of one barrier, and the shortest pause of one job.
_REQUESTS_PER_S, _MIN_POLL_S = 50.0, 0.5
#: Seconds beyond two polls of every job between the agreement and the first launch.
_NOTICE_S = 2.0
#: Barriers that are kept, and the seconds without any request for which they are after their start.
MAX_BARRIERS, KEEP_S = 2000, 86_400.0
#: Seconds without any request, besides two polls, for which a barrier waits for its jobs.
IDLE_S = 600.0
#: The shares of one key and of one job are these parts of all barriers.
KEY_DIVISOR, JOB_DIVISOR = 4, 40


class BarrierConflictError(Exception):
    """A job expects another number of jobs than the earlier ones."""


class TooManyBarriersError(Exception):
    """The registry is full of barriers in use."""


class BarrierShareError(Exception):
    """A key or job has opened as many barriers as it may; the message names which of them."""


@dataclass(frozen=True)
class BarrierId:
    """Identity of a barrier; jobs of different groups never meet, whatever they call their campaign."""

    group: str
    campaign_id: str
    name: str


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
    key_id: str
    job: tuple[str, str]
    first_s: float
    seen_s: float
    members: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    start_us: int | None = None
    present: int = 0

    @property
    def poll_s(self) -> float:
        """Seconds between two requests of one job."""
        return max(_MIN_POLL_S, self.jobs / _REQUESTS_PER_S)

    def has_started(self, now_s: float) -> bool:
        """Decide if the common start has passed."""
        return self.start_us is not None and self.start_us < now_s * 1e6

    def is_abandoned(self, now_s: float) -> bool:
        """Decide if no job needs the barrier any more."""
        keep_s = KEEP_S if self.start_us is not None else IDLE_S + 2 * self.poll_s
        return now_s - self.seen_s > keep_s


class StartRegistry:
    """All barriers of a service.

    Args:
        now_s: returns seconds since 1970 UTC.
    """

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._barriers: dict[BarrierId, _Barrier] = {}

    def register(self, id_: BarrierId, arrival: Arrival, key_id: str) -> StartState:
        """Note that a job waits at a barrier, and set the common start if it was the last.

        Args:
            id_: identity of the barrier.
            arrival: the job.
            key_id: key that signed the job's token.

        Raises:
            BarrierConflictError: earlier jobs expect another number of jobs.
            BarrierShareError: the key or job may not open a further barrier.
            TooManyBarriersError: a new barrier does not fit.
        """
        now_s = self._now_s()
        barrier = self._barriers.get(id_) or self._open_barrier(id_, arrival, key_id, now_s)
        if barrier.jobs != arrival.jobs:
            raise BarrierConflictError(
                f"{barrier.jobs} jobs are to start together, not {arrival.jobs}"
            )
        barrier.seen_s = now_s
        barrier.first_s = min(barrier.first_s, now_s - arrival.waited_s)
        jobs = barrier.absent if arrival.absent else barrier.members
        if len(jobs) < barrier.jobs:
            jobs.add(arrival.job_id)
        poll_s = barrier.poll_s
        if barrier.start_us is None and arrival.start_us is not None:
            barrier.start_us, barrier.present = arrival.start_us, arrival.present or 1
        member_count = len(barrier.members)
        # A job that withdrew and came in another attempt counts once.
        decided_count = len(barrier.members | barrier.absent)
        is_due = decided_count >= barrier.jobs or now_s - barrier.first_s >= arrival.wait_s
        if barrier.start_us is None and member_count and is_due:
            notice_s = _NOTICE_S + 2 * poll_s + arrival.lead_s
            barrier.start_us, barrier.present = round((now_s + notice_s) * 1e6), member_count
        present = member_count if barrier.start_us is None else barrier.present
        return StartState(barrier.start_us, present, barrier.jobs, poll_s)

    def _open_barrier(
        self, id_: BarrierId, arrival: Arrival, key_id: str, now_s: float
    ) -> _Barrier:
        for other, barrier in [*self._barriers.items()]:
            if barrier.is_abandoned(now_s):
                del self._barriers[other]
        job = (id_.campaign_id, arrival.job_id)
        self._make_room(
            "job",
            JOB_DIVISOR,
            lambda candidate: (candidate.key_id, candidate.job) == (key_id, job),
            now_s,
        )
        self._make_room("key", KEY_DIVISOR, lambda candidate: candidate.key_id == key_id, now_s)
        if len(self._barriers) >= MAX_BARRIERS:
            raise TooManyBarriersError
        barrier = self._barriers[id_] = _Barrier(arrival.jobs, key_id, job, now_s, now_s)
        return barrier

    def _make_room(
        self, name: str, divisor: int, is_of: Callable[[_Barrier], bool], now_s: float
    ) -> None:
        """Make room for one more barrier within a share, in place of those that have started."""
        share = max(1, MAX_BARRIERS // divisor)
        barriers = {id_: barrier for id_, barrier in self._barriers.items() if is_of(barrier)}
        excess = len(barriers) + 1 - share
        started = [id_ for id_, barrier in barriers.items() if barrier.has_started(now_s)]
        if excess > len(started):
            raise BarrierShareError(name)
        for id_ in sorted(started, key=lambda id_: barriers[id_].seen_s)[: max(excess, 0)]:
            del self._barriers[id_]
