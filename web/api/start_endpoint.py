"""``POST /api/v1/starts``: jobs of a campaign agree on a common start and compare their clocks."""

from __future__ import annotations

import time

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from treehammer.sql.auth.tokens import AccessGrant
from treehammer.web.api.response_models import StartAnswer, StartRequest
from treehammer.web.core.auth import AccessControl
from treehammer.web.core.request_bodies import BodyBudget, RequestLimits, parse_json, read_body
from treehammer.web.core.responses import (
    AsciiJSONResponse,
    RequestRefusedError,
    service_unavailable,
)
from treehammer.web.core.start_registry import (
    Arrival,
    BarrierConflictError,
    StartRegistry,
    StartState,
    TooManyBarriersError,
)

#: Bytes of a body, and of all bodies in progress; values in a body.
_BODY_BYTES, _WAITING_BYTES, _MARKS = 4000, 8_000_000, 50


class CommonStartEndpoint:
    """The endpoint.

    Args:
        access_control: authorizes tokens; only those of jobs are accepted.
        limits: of requests, except for the size of a body.
    """

    def __init__(self, access_control: AccessControl, limits: RequestLimits) -> None:
        self._access_control = access_control
        self._limits = RequestLimits(_BODY_BYTES, _BODY_BYTES, body_s=limits.body_s)
        self._budget = BodyBudget(_WAITING_BYTES)
        self._registry = StartRegistry()

    async def post_start(self, request: Request) -> Response:
        """Register a job and respond with the common start, if it is set."""
        grant = await self._access_control.require_submitter(request)
        if grant.job_id is None or grant.campaign_id is None:
            raise RequestRefusedError(403, "only the token of a job permits a common start")
        with self._budget.open_lease() as lease:
            body = await read_body(request, self._limits, lease)
        wanted = _parse_request(body)
        state = self._register(wanted, grant)
        request.state.note = f"{state.present} of {state.jobs} jobs for {grant.name}"
        answer = StartAnswer(
            time_us=time.time_ns() // 1000,
            start_us=state.start_us,
            present=state.present,
            jobs=state.jobs,
            poll_s=state.poll_s,
        )
        return AsciiJSONResponse(answer.model_dump())

    def _register(self, wanted: StartRequest, grant: AccessGrant) -> StartState:
        values = wanted.model_dump(exclude={"barrier"})
        try:
            return self._registry.register(
                str(grant.campaign_id), wanted.barrier, Arrival(str(grant.job_id), **values)
            )
        except BarrierConflictError as error:
            raise RequestRefusedError(409, str(error)) from None
        except TooManyBarriersError:
            raise service_unavailable("too many loads start at the moment") from None


def _parse_request(body: bytes) -> StartRequest:
    try:
        return StartRequest.model_validate(parse_json(body, _MARKS))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise RequestRefusedError(422, f"{where}: {first['msg']}") from None
