"""``POST /api/v1/starts``: jobs of a campaign agree on a common start and compare their clocks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from treehammer.errors import StoreError
from treehammer.sql.auth.tokens import AccessGrant
from treehammer.web.api.response_models import StartAnswer, StartRequest
from treehammer.web.core.auth import AccessControl
from treehammer.web.core.client_limits import too_many_requests
from treehammer.web.core.request_bodies import (
    BodyBudget,
    RequestLimits,
    list_shares,
    parse_json,
    read_body,
)
from treehammer.web.core.responses import (
    AsciiJSONResponse,
    RequestRefusedError,
    service_unavailable,
)
from treehammer.web.core.start_registry import (
    Arrival,
    BarrierConflictError,
    BarrierId,
    BarrierShareError,
    StartRegistry,
    StartState,
    TooManyBarriersError,
)

#: Bytes of a body, and of all bodies in progress; values in a body.
_BODY_BYTES, _WAITING_BYTES, _MARKS = 4000, 8_000_000, 50
#: Maximum number of campaigns whose owner is kept in memory.
MAX_KNOWN_OWNERS = 10_000


class CommonStartEndpoint:
    """The endpoint.

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
        self._limits = RequestLimits(_BODY_BYTES, _BODY_BYTES)
        self._budget = BodyBudget(_WAITING_BYTES)
        self._registry = StartRegistry()

    async def post_start(self, request: Request) -> Response:
        """Register a job and respond with the common start, if it is set."""
        grant = await self._access_control.require_submitter(request)
        if grant.job_id is None or grant.campaign_id is None:
            raise RequestRefusedError(403, "only the token of a job permits a common start")
        with self._budget.open_lease(list_shares(grant)) as lease:
            body = await read_body(request, self._limits, lease)
        start_request = _parse_request(body)
        await self._require_owner(grant.campaign_id, grant.owner)
        state = self._register(start_request, grant)
        request.state.note = f"{state.present} of {state.jobs} jobs for {grant.name}"
        answer = StartAnswer(
            time_us=time.time_ns() // 1000,
            start_us=state.start_us,
            present=state.present,
            jobs=state.jobs,
            poll_s=state.poll_s,
        )
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

    def _register(self, start_request: StartRequest, grant: AccessGrant) -> StartState:
        values = start_request.model_dump(exclude={"barrier"})
        id_ = BarrierId(grant.owner, str(grant.campaign_id), start_request.barrier)
        try:
            return self._registry.register(id_, Arrival(str(grant.job_id), **values), grant.key_id)
        except BarrierConflictError as error:
            raise RequestRefusedError(409, str(error)) from None
        except BarrierShareError as error:
            raise too_many_requests(
                f"too many common starts are pending with this {error}; try again later"
            ) from None
        except TooManyBarriersError:
            raise service_unavailable("too many loads start at the moment") from None


def _parse_request(body: bytes) -> StartRequest:
    try:
        return StartRequest.model_validate(parse_json(body, _MARKS))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(map(str, first["loc"])) or "the body"
        raise RequestRefusedError(422, f"{location}: {first['msg']}") from None
