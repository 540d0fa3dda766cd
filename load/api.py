"""``POST /api/v1/starts``: jobs of a campaign agree on a common start and compare their clocks.

The registry of jobs is kept in memory only, with the start time once all are present or the wait ends.
Every request of a job is complete, so that a restarted service recovers the missing jobs, the time
waited and the start time. A key and a job may open a share of the barriers only. Beyond that, their
own barriers whose start has passed give way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from treehammer.collectors.job_spec import STARTS_PATH
from treehammer.errors import StoreError
from treehammer.sql.core.campaign_plan import describe_problem
from treehammer.web.core import request_limits
from treehammer.web.core.auth import AccessControl
from treehammer.web.core.responses import (
    AsciiJSONResponse,
    RequestRefusedError,
    StartAnswer,
    StartRequest,
    service_unavailable,
)

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
#: Bytes of a body, and of all bodies in progress; values in a body.
_BODY_BYTES, _WAITING_BYTES, _MARKS = 4000, 8_000_000, 50
#: Maximum number of campaigns whose owner is kept in memory.
MAX_KNOWN_OWNERS = 10_000


@dataclass(frozen=True)
class BarrierId:
    """Identity of a barrier; jobs of different groups never meet, whatever they call their campaign."""

    group: str
    campaign_id: str
    name: str


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

    def make_answer(self, now_s: float) -> StartAnswer:
        """Make the answer to a job at the barrier."""
        return StartAnswer(
            time_us=int(now_s * 1e6),
            start_us=self.start_us,
            present=len(self.members) if self.start_us is None else self.present,
            jobs=self.jobs,
            poll_s=self.poll_s,
        )

    def add(self, job_id: str, arrival: StartRequest, now_s: float) -> None:
        """Add a job; after a restart of the service it brings the start time with it."""
        self.seen_s = now_s
        self.first_s = min(self.first_s, now_s - arrival.waited_s)
        jobs = self.absent if arrival.absent else self.members
        if len(jobs) < self.jobs:
            jobs.add(job_id)
        if self.start_us is None and arrival.start_us is not None:
            self.start_us, self.present = arrival.start_us, arrival.present or 1

    def is_due(self, arrival: StartRequest, now_s: float) -> bool:
        """Decide if the start is to be set: all jobs have decided, or one waited long enough."""
        if self.start_us is not None or not self.members:
            return False
        # A job that withdrew and came in another attempt counts once.
        have_all_decided = len(self.members | self.absent) >= self.jobs
        return have_all_decided or now_s - self.first_s >= arrival.wait_s

    def set_start(self, arrival: StartRequest, now_s: float) -> None:
        """Set the start late enough for every job to ask again before it."""
        notice_s = _NOTICE_S + 2 * self.poll_s + arrival.lead_s
        self.start_us, self.present = round((now_s + notice_s) * 1e6), len(self.members)

    def has_started(self, now_s: float) -> bool:
        """Decide if the common start has passed."""
        return self.start_us is not None and self.start_us < now_s * 1e6

    def is_abandoned(self, now_s: float) -> bool:
        """Decide if no job needs the barrier any more."""
        keep_s = KEEP_S if self.start_us is not None else IDLE_S + 2 * self.poll_s
        return now_s - self.seen_s > keep_s


class StartRegistry:
    """All barriers of a service."""

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._barriers: dict[BarrierId, _Barrier] = {}

    def register(
        self, id_: BarrierId, job_id: str, arrival: StartRequest, key_id: str
    ) -> StartAnswer:
        """Note that a job waits at a barrier, and set the common start if it was the last.

        Args:
            key_id: key that signed the job's token.

        Raises:
            RequestRefusedError: earlier jobs expect another number of jobs, a new barrier does not
                fit, or the key or job may not open a further one.
        """
        now_s = self._now_s()
        barrier = self._barriers.get(id_)
        if barrier is None:
            job = (id_.campaign_id, job_id)
            barrier = self._open_barrier(id_, job, arrival.jobs, key_id, now_s)
        if barrier.jobs != arrival.jobs:
            raise RequestRefusedError(
                409, f"{barrier.jobs} jobs are to start together, not {arrival.jobs}"
            )
        barrier.add(job_id, arrival, now_s)
        if barrier.is_due(arrival, now_s):
            barrier.set_start(arrival, now_s)
        return barrier.make_answer(now_s)

    def _open_barrier(
        self, id_: BarrierId, job: tuple[str, str], jobs: int, key_id: str, now_s: float
    ) -> _Barrier:
        for other, barrier in [*self._barriers.items()]:
            if barrier.is_abandoned(now_s):
                del self._barriers[other]
        self._make_room(
            "job",
            JOB_DIVISOR,
            lambda candidate: (candidate.key_id, candidate.job) == (key_id, job),
            now_s,
        )
        self._make_room("key", KEY_DIVISOR, lambda candidate: candidate.key_id == key_id, now_s)
        if len(self._barriers) >= MAX_BARRIERS:
            raise service_unavailable("too many loads start at the moment")
        barrier = self._barriers[id_] = _Barrier(jobs, key_id, job, now_s, now_s)
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
            raise request_limits.too_many_requests(
                f"too many common starts are pending with this {name}; try again later"
            )
        for id_ in sorted(started, key=lambda id_: barriers[id_].seen_s)[: max(excess, 0)]:
            del self._barriers[id_]


class CommonStartEndpoint:
    """Endpoint for jobs that start together.

    Args:
        access_control: authorizes tokens; only those of jobs are accepted.
        find_owner: reads the group that a campaign belongs to, None if it is unknown; called in a
            thread.
    """

    def __init__(
        self,
        access_control: AccessControl,
        find_owner: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        self._find_owner = find_owner
        self._owned: set[tuple[str, str]] = set()
        self._access_control = access_control
        self._limits = request_limits.RequestLimits(_BODY_BYTES, _BODY_BYTES)
        self._budget = request_limits.BodyBudget(_WAITING_BYTES)
        self._registry = StartRegistry()

    async def post_start(self, request: Request) -> Response:
        """Register a job and respond with the common start, if it is set."""
        grant = await self._access_control.require_submitter(request)
        if grant.job_id is None or grant.campaign_id is None:
            raise RequestRefusedError(403, "only the token of a job permits a common start")
        async with self._budget.read_body(request, self._limits, grant) as body:
            document = request_limits.parse_json(body, _MARKS)
        try:
            arrival = StartRequest.model_validate(document)
        except ValidationError as error:
            problem = describe_problem(error.errors(include_url=False)[0], "the body")
            raise RequestRefusedError(422, problem) from None
        await self._require_owner(grant.campaign_id, grant.owner)
        id_ = BarrierId(grant.owner, grant.campaign_id, arrival.barrier)
        answer = self._registry.register(id_, grant.job_id, arrival, grant.key_id)
        request.state.note = f"{answer.present} of {answer.jobs} jobs for {grant.name}"
        return AsciiJSONResponse(answer.model_dump())

    async def _require_owner(self, campaign_id: str, owner: str) -> None:
        """Refuse tokens for a campaign of another group; owners never change, so they are kept."""
        if (campaign_id, owner) in self._owned:
            return
        try:
            stored_owner = await asyncio.to_thread(self._find_owner, campaign_id)
        except StoreError:
            raise service_unavailable("the campaign's owner cannot be read now") from None
        if stored_owner not in (None, owner):
            raise RequestRefusedError(403, f"campaign {campaign_id} belongs to another group")
        if stored_owner:
            if len(self._owned) >= MAX_KNOWN_OWNERS:
                self._owned.clear()
            self._owned.add((campaign_id, owner))


def list_routes(
    access_control: AccessControl, find_owner: Callable[[str], str | None]
) -> list[Route]:
    """List the routes of the common start; ``find_owner`` reads the group of a campaign."""
    starts = CommonStartEndpoint(access_control, find_owner)
    return [Route(STARTS_PATH, starts.post_start, methods=["POST"])]
