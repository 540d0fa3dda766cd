"""The service as an ASGI application, which pages can be added to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from treehammer.collectors.service_spec import CAMPAIGNS_PATH, MEASUREMENTS_PATH
from treehammer.errors import StoreError
from treehammer.sql.write.uploaded_campaigns import CampaignUpload, UploadResult
from treehammer.version import __version__
from treehammer.web.api.campaign_ingest import CampaignIngest
from treehammer.web.api.measurement_ingest import MeasurementIngest
from treehammer.web.api.openapi import build_description
from treehammer.web.api.operations import (
    DESCRIPTION_PATH,
    HEALTH_PATH,
    MEASUREMENT_PATH,
    TOKEN_PATH,
)
from treehammer.web.core.auth import AccessControl
from treehammer.web.core.measurement_writer import MeasurementSink, MeasurementWriter
from treehammer.web.core.request_bodies import RequestLimits
from treehammer.web.core.responses import (
    AsciiJSONResponse,
    RequestRefusedError,
    handle_http_error,
    handle_refusal,
    service_unavailable,
)
from treehammer.web.core.route_paths import RejectNulMiddleware, allow_any_text
from treehammer.web.service.access_log import AccessLog

#: The longest identity of a measurement.
MAX_ID = 128


class PageProvider(Protocol):
    """Pages for people."""

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """Where they are."""
        ...

    def render_refusal(
        self, request: Request, status: int, sentence: str, headers: Mapping[str, str]
    ) -> Response:
        """The answer to a request that is not done."""
        ...


def create_app(
    store: MeasurementSink,
    doorkeeper: AccessControl,
    *,
    find: Callable[[str], dict[str, Any] | None] = lambda _: None,
    mark: Callable[[], object] | None = None,
    hand_in: Callable[[CampaignUpload], UploadResult] | None = None,
    limits: RequestLimits | None = None,
    pages: PageProvider | None = None,
) -> Starlette:
    """The application of one process.

    Args:
        store: where measurements go; used by one thread of the application's own.
        doorkeeper: tells who may do what; its watch is kept while the application runs.
        find: gives a stored measurement by its identity, as ``values`` and ``extras``.
        mark: see :class:`~treehammer.web.core.measurement_writer.MeasurementWriter`.
        hand_in: stores what submitters tell of their campaigns; without it they cannot.
        limits: of requests.
        pages: served beside the interface; without them whatever is refused is told in JSON.
    """
    limits = limits or RequestLimits()
    writer = MeasurementWriter(store, mark=mark)
    ingest = MeasurementIngest(doorkeeper, writer, limits)
    answers = _ApiEndpoints(
        doorkeeper, writer, find, bytes(AsciiJSONResponse(build_description(limits)).body)
    )
    say = partial(_render_refusal, pages)
    return Starlette(
        routes=[
            Route(MEASUREMENTS_PATH, ingest.post_measurements, methods=["POST"]),
            Route(allow_any_text(MEASUREMENT_PATH), answers.measurement, name="measurement"),
            *(
                [
                    Route(
                        CAMPAIGNS_PATH,
                        CampaignIngest(doorkeeper, hand_in, limits).post_campaign,
                        methods=["POST"],
                    )
                ]
                if hand_in
                else ()
            ),
            Route(TOKEN_PATH, answers.token),
            Route(HEALTH_PATH, answers.health),
            Route(DESCRIPTION_PATH, answers.openapi, name="openapi"),
            *(pages.routes if pages else ()),
        ],
        middleware=[Middleware(AccessLog, say=say), Middleware(RejectNulMiddleware, say=say)],
        exception_handlers={
            RequestRefusedError: partial(handle_refusal, say),
            HTTPException: partial(handle_http_error, say),
        },
        lifespan=lambda _app: _run_lifespan(doorkeeper, writer),
    )


@dataclass(frozen=True)
class _ApiEndpoints:
    """What the interface tells beside what it takes in and what pages show."""

    access_control: AccessControl
    writer: MeasurementWriter
    find_measurement: Callable[[str], dict[str, Any] | None]
    description: bytes

    async def openapi(self, _request: Request) -> Response:
        return Response(self.description, media_type="application/json")

    async def health(self, _request: Request) -> Response:
        well = self.access_control.is_fresh and not self.writer.trouble
        status = "ok" if well else "unavailable"
        body = {"status": status, "version": __version__, "time_us": time.time_ns() // 1000}
        if well:
            return AsciiJSONResponse(body)
        return AsciiJSONResponse(body, 503, service_unavailable("").headers)

    async def token(self, request: Request) -> Response:
        grant = await self.access_control.authenticate(request)
        return AsciiJSONResponse(
            {
                "role": grant.role,
                "key": grant.kid,
                "name": grant.name,
                "expires_us": grant.expires_us,
                "campaign_id": grant.campaign_id,
                "job_id": grant.job_id,
            }
        )

    async def measurement(self, request: Request) -> Response:
        await self.access_control.require_reader(request)
        id_ = str(request.path_params["measurement_id"])
        try:
            found = (
                await asyncio.to_thread(self.find_measurement, id_) if len(id_) <= MAX_ID else None
            )
        except StoreError:
            raise service_unavailable("the database cannot be read now") from None
        if found is None:
            raise RequestRefusedError(404, "there is no measurement of this identity")
        return AsciiJSONResponse(found)


def _render_refusal(
    pages: PageProvider | None, request: Request, refusal: RequestRefusedError
) -> Response:
    """A refusal as a page where there are pages; one that tells more than a sentence stays JSON."""
    if pages is None or refusal.body.keys() > {"error"}:
        return AsciiJSONResponse(refusal.body, refusal.status, refusal.headers)
    return pages.render_refusal(request, refusal.status, refusal.body["error"], refusal.headers)


@asynccontextmanager
async def _run_lifespan(
    doorkeeper: AccessControl, writer: MeasurementWriter
) -> AsyncIterator[None]:
    """While the application runs: keys are looked after, measurements are written."""
    with suppress(StoreError):  # the watch tells of it
        await doorkeeper.refresh()
    watch = asyncio.create_task(doorkeeper.refresh_forever())
    writer.start()
    try:
        yield
    finally:
        await asyncio.to_thread(writer.close)
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
