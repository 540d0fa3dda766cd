"""ASGI application of the results service: API routes, pages, error pages and middleware."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from http import HTTPStatus
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from treehammer.collectors.job_spec import CAMPAIGNS_PATH, MEASUREMENTS_PATH
from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.record.metric_catalogue import MAX_IDENTITY
from treehammer.config import Settings, load_settings
from treehammer.errors import StoreError
from treehammer.program_output import SystemdNotifier
from treehammer.version import __version__
from treehammer.verticals import import_parts
from treehammer.web.addresses import CURRENT_REQUEST, link_to, wants_html
from treehammer.web.api import openapi, page_data, prometheus_metrics
from treehammer.web.api.ingest import CampaignIngest, MeasurementIngest
from treehammer.web.api.openapi import build_description
from treehammer.web.api.page_data import (
    DESCRIPTION_PATH,
    HEALTH_PATH,
    LIVE_PATH,
    MEASUREMENT_PATH,
    TOKEN_PATH,
)
from treehammer.web.api.prometheus_metrics import ServiceMetrics
from treehammer.web.core import responses
from treehammer.web.core.auth import AccessControl
from treehammer.web.core.live_database import LiveDatabase
from treehammer.web.core.measurement_writer import MeasurementWriter, WriteMeasurements
from treehammer.web.core.request_limits import RequestLimits
from treehammer.web.display_formats import build_environment
from treehammer.web.page import PageContent, PageResources
from treehammer.web.page_service import PageContext
from treehammer.web.pages import load_pages, sign_in_page
from treehammer.web.sections import Link, Paragraph, end_sentence, headline, quiet
from treehammer.web.service.middleware import AuditJournal, RequestLog, SlashRedirects

#: Seconds for the last measurements to be written when the service stops.
WRITER_CLOSE_TIMEOUT_S = 5.0

_STATUS_REMEDIES = {
    400: "Correct the address, or start from the overview.",
    404: "Check the spelling, or start from the overview.",
    405: "Pages support GET only.",
    500: "Report the time and the address to the operator of this service; its log has the details.",
    503: "No data is lost. Try again in a few seconds.",
}


def create_app(
    database: LiveDatabase,
    access_control: AccessControl,
    settings: Settings | None = None,
    *,
    reading: LiveDatabase | None = None,
    write: WriteMeasurements | None = None,
    limits: RequestLimits | None = None,
) -> Starlette:
    """Create the application.

    Args:
        access_control: authorizes requests; refreshed while the application runs.
        settings: of the pages, see :class:`PageRoutes`.
        reading: the same database for reads, so that they do not wait for writes.
        write: stores measurements, by default in the database.
    """
    reading = reading or database
    pages = PageRoutes(reading, access_control, settings)
    limits = limits or RequestLimits()
    metrics = ServiceMetrics()
    writer = MeasurementWriter(
        metrics.meter(write or database.add), mark_bad_replicas=database.mark_bad_replicas
    )
    metrics.observe_writer(writer)
    journal = AuditJournal(reading.write_audit)
    ingest = MeasurementIngest(access_control, writer, limits)
    endpoints = _ApiEndpoints(access_control, writer, reading, limits)
    upload = metrics.time_commit("campaign")(database.apply_upload)
    campaigns = CampaignIngest(access_control, upload, limits)
    routes: list[BaseRoute] = [
        Route(MEASUREMENTS_PATH, ingest.post_measurements, methods=["POST"]),
        Route(
            responses.allow_any_text(MEASUREMENT_PATH),
            endpoints.get_measurement,
            name="measurement",
        ),
        Route(CAMPAIGNS_PATH, campaigns.post_campaign, methods=["POST"]),
        Route(TOKEN_PATH, endpoints.get_token),
        *chain.from_iterable(
            part.list_routes(access_control, reading.find_owner) for part in import_parts("api")
        ),
        Route(HEALTH_PATH, endpoints.get_health),
        Route(LIVE_PATH, endpoints.get_live),
        Route(DESCRIPTION_PATH, endpoints.get_description, name="openapi"),
        *prometheus_metrics.service_metrics_routes(access_control, metrics, reading.measure_size),
        *pages.routes,
    ]
    render = pages.render_refusal
    app = Starlette(
        routes=routes,
        middleware=[Middleware(RequestLog, render=render, metrics=metrics, journal=journal)],
        exception_handlers=dict.fromkeys(
            (responses.RequestRefusedError, HTTPException, ClientDisconnect),
            partial(responses.handle_error, render),
        ),
        lifespan=lambda _app: _run_lifespan(access_control, writer, journal),
    )
    app.state.limits = limits
    SlashRedirects(app.router)
    return app


@dataclass(frozen=True)
class _ApiEndpoints:
    """Endpoints of the API without a corresponding page."""

    access_control: AccessControl
    writer: MeasurementWriter
    database: LiveDatabase
    limits: RequestLimits

    async def get_description(self, _request: Request) -> Response:
        description = await asyncio.to_thread(_encode_description, self.limits)
        return Response(description, media_type="application/json")

    async def get_live(self, _request: Request) -> Response:
        return responses.AsciiJSONResponse(_describe_health("ok"))

    async def get_health(self, _request: Request) -> Response:
        if not _describe_failure(self.access_control, self.writer):
            return responses.AsciiJSONResponse(_describe_health("ok"))
        headers = responses.service_unavailable("").headers
        return responses.AsciiJSONResponse(_describe_health("unavailable"), 503, headers)

    async def get_token(self, request: Request) -> Response:
        grant = await self.access_control.authenticate(request)
        token = responses.Token.model_validate(grant, from_attributes=True)
        return responses.AsciiJSONResponse(token.model_dump())

    async def get_measurement(self, request: Request) -> Response:
        await self.access_control.require_reader(request)
        id_ = str(request.path_params["measurement_id"])
        record = None
        try:
            if len(id_) <= MAX_IDENTITY:
                record = await asyncio.to_thread(self.database.find_measurement, id_)
        except StoreError:
            raise responses.service_unavailable("the database cannot be read now") from None
        if record is None:
            raise responses.RequestRefusedError(404, "there is no measurement with this identity")
        return responses.AsciiJSONResponse(record, headers={"Cache-Control": "no-store"})


def _describe_health(status: Literal["ok", "unavailable"]) -> dict[str, Any]:
    now_us = current_us()
    return responses.Health(status=status, version=__version__, time_us=now_us).model_dump()


@cache
def _encode_description(limits: RequestLimits) -> bytes:
    return bytes(responses.AsciiJSONResponse(build_description(limits)).body)


@asynccontextmanager
async def _run_lifespan(
    access_control: AccessControl, writer: MeasurementWriter, journal: AuditJournal
) -> AsyncIterator[None]:
    """Refresh keys, write measurements and refusals, and report to systemd until the end."""
    with suppress(StoreError):  # The periodic refresh logs it.
        await access_control.refresh()
    writer.start()
    report = SystemdNotifier.from_environment().report_forever(
        lambda: writer.is_alive, lambda: _describe_failure(access_control, writer)
    )
    loops = (access_control.refresh_forever(), journal.flush_forever(), report)
    tasks = [asyncio.create_task(loop) for loop in loops]
    try:
        yield
    finally:
        await writer.close(WRITER_CLOSE_TIMEOUT_S)
        await journal.flush()
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def _describe_failure(access_control: AccessControl, writer: MeasurementWriter) -> str:
    """Return why the service accepts no measurements now; '' if it does."""
    if writer.failure:
        return f"the database cannot be written to: {writer.failure}"
    return "" if access_control.is_fresh else "keys cannot be read"


STATIC_DIR = Path(__file__).parents[1] / "static"
#: The documentation of a checkout, once it is built.
DOCS_DIR = Path(__file__).resolve().parents[2] / "site"


class PageRoutes:
    """All pages of a database that is only read, and the response to a refused request."""

    def __init__(
        self,
        database: LiveDatabase,
        access_control: AccessControl,
        settings: Settings | None = None,
    ) -> None:
        pages, settings = load_pages(), settings or load_settings()
        has_docs = not settings.serve_docs and (DOCS_DIR / "index.html").exists()
        assets = responses.VersionedFiles(STATIC_DIR)
        self._context = PageContext(
            access_control,
            build_environment(),
            assets,
            {page.name: page.menu for page in pages if page.menu},
            PageResources(database, settings),
            settings.serve_docs or ("/docs" if has_docs else ""),
        )
        routes: list[BaseRoute] = [self._context.declared_route(page) for page in pages]
        routes += [
            Route("/robots.txt", get_robots, methods=["GET"]),
            self._context.page_route("/metrics", prometheus_metrics.metrics_view, "metrics"),
            self._context.declared_route(openapi.reference_page),
            *page_data.routes(self._context),
            *sign_in_page.routes(self._context),
            Mount("/static", assets, name="static", middleware=[Middleware(GZipMiddleware)]),
        ]
        if has_docs:
            routes.append(Mount("/docs", StaticFiles(directory=DOCS_DIR, html=True)))
        self.routes: list[BaseRoute] = sorted(routes, key=_count_fixed_characters, reverse=True)

    def render_refusal(self, request: Request, refusal: responses.RequestRefusedError) -> Response:
        """Respond to a refused request with a page for browsers, with JSON otherwise."""
        responses.note_refusal(request, refusal)
        status, sentence, headers = refusal.status, refusal.body["error"], refusal.headers
        if refusal.body.keys() > {"error"} or not wants_html(request):
            return responses.AsciiJSONResponse(refusal.body, status, headers)
        if status == 401:
            return sign_in_page.sign_in_view(self._context, request, sentence, headers)
        CURRENT_REQUEST.set(request)
        sections = (
            headline(end_sentence(sentence)),
            Paragraph(_STATUS_REMEDIES.get(status, "")),
            Paragraph(Link("Overview", link_to("overview"))),
            quiet(f"Status {status}"),
        )
        content = PageContent(HTTPStatus(status).phrase, sections, status=status)
        response = self._context.render_html(content, request)
        response.headers.update(headers)
        return response


async def get_robots(_request: Request) -> Response:
    """Tell crawlers to stay away from views that are computed for each address."""
    hidden = [page.path.partition("{")[0] for page in load_pages() if not page.is_crawled]
    rules = "".join(f"Disallow: {path}\n" for path in ("/*?", "/api/", *hidden))
    text = f"User-agent: *\n{rules}Crawl-delay: 10\n"
    return PlainTextResponse(text, headers={"Cache-Control": "max-age=86400"})


def _count_fixed_characters(route: BaseRoute) -> int:
    """Count those of a path outside parameters: of two paths that match, the longer one is meant."""
    return len(re.sub(r"{.*?}", "", route.path if isinstance(route, Route) else ""))
