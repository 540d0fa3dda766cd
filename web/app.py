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

from treehammer.collectors.service import CAMPAIGNS_PATH, MEASUREMENTS_PATH
from treehammer.errors import StoreError
from treehammer.sql.handed_in import HandedIn, Taken
from treehammer.version import __version__
from treehammer.web.access_log import AccessLog
from treehammer.web.addresses import NoNul, any_text
from treehammer.web.answers import (
    JSONAnswer,
    Refusal,
    on_http_error,
    on_refusal,
    unavailable,
)
from treehammer.web.api import DESCRIPTION_PATH, HEALTH_PATH, MEASUREMENT_PATH, TOKEN_PATH
from treehammer.web.bodies import Limits
from treehammer.web.doorkeeper import Doorkeeper
from treehammer.web.handing_in import HandingIn
from treehammer.web.ingest import Ingest
from treehammer.web.openapi import description
from treehammer.web.writer import AddsMeasurements, Writer

#: The longest identity of a measurement.
MAX_ID = 128


class ServesPages(Protocol):
    """Pages for people."""

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """Where they are."""
        ...

    def refuse(
        self, request: Request, status: int, sentence: str, headers: Mapping[str, str]
    ) -> Response:
        """The answer to a request that is not done."""
        ...


def create_app(
    store: AddsMeasurements,
    doorkeeper: Doorkeeper,
    *,
    find: Callable[[str], dict[str, Any] | None] = lambda _: None,
    mark: Callable[[], object] | None = None,
    hand_in: Callable[[HandedIn], Taken] | None = None,
    limits: Limits | None = None,
    pages: ServesPages | None = None,
) -> Starlette:
    """The application of one process.

    Args:
        store: where measurements go; used by one thread of the application's own.
        doorkeeper: tells who may do what; its watch is kept while the application runs.
        find: gives a stored measurement by its identity, as ``values`` and ``extras``.
        mark: see :class:`~treehammer.web.writer.Writer`.
        hand_in: stores what submitters tell of their campaigns; without it they cannot.
        limits: of requests.
        pages: served beside the interface; without them whatever is refused is told in JSON.
    """
    limits = limits or Limits()
    writer = Writer(store, mark=mark)
    ingest = Ingest(doorkeeper, writer, limits)
    answers = _Answers(doorkeeper, writer, find, bytes(JSONAnswer(description(limits)).body))
    say = partial(_say, pages)
    return Starlette(
        routes=[
            Route(MEASUREMENTS_PATH, ingest.post, methods=["POST"]),
            Route(any_text(MEASUREMENT_PATH), answers.measurement, name="measurement"),
            *(
                [
                    Route(
                        CAMPAIGNS_PATH,
                        HandingIn(doorkeeper, hand_in, limits).post,
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
        middleware=[Middleware(AccessLog, say=say), Middleware(NoNul, say=say)],
        exception_handlers={
            Refusal: partial(on_refusal, say),
            HTTPException: partial(on_http_error, say),
        },
        lifespan=lambda _app: _running(doorkeeper, writer),
    )


@dataclass(frozen=True)
class _Answers:
    """What the interface tells beside what it takes in and what pages show."""

    doorkeeper: Doorkeeper
    writer: Writer
    find: Callable[[str], dict[str, Any] | None]
    description: bytes

    async def openapi(self, _request: Request) -> Response:
        return Response(self.description, media_type="application/json")

    async def health(self, _request: Request) -> Response:
        well = self.doorkeeper.knows and not self.writer.trouble
        status = "ok" if well else "unavailable"
        body = {"status": status, "version": __version__, "time_us": time.time_ns() // 1000}
        if well:
            return JSONAnswer(body)
        return JSONAnswer(body, 503, unavailable("").headers)

    async def token(self, request: Request) -> Response:
        grant = await self.doorkeeper.bearer(request)
        return JSONAnswer(
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
        await self.doorkeeper.reader(request)
        id_ = str(request.path_params["measurement_id"])
        try:
            found = await asyncio.to_thread(self.find, id_) if len(id_) <= MAX_ID else None
        except StoreError:
            raise unavailable("the database cannot be read now") from None
        if found is None:
            raise Refusal(404, "there is no measurement of this identity")
        return JSONAnswer(found)


def _say(pages: ServesPages | None, request: Request, refusal: Refusal) -> Response:
    """A refusal as a page where there are pages; one that tells more than a sentence stays JSON."""
    if pages is None or refusal.body.keys() > {"error"}:
        return JSONAnswer(refusal.body, refusal.status, refusal.headers)
    return pages.refuse(request, refusal.status, refusal.body["error"], refusal.headers)


@asynccontextmanager
async def _running(doorkeeper: Doorkeeper, writer: Writer) -> AsyncIterator[None]:
    """While the application runs: keys are looked after, measurements are written."""
    with suppress(StoreError):  # the watch tells of it
        await doorkeeper.refresh()
    watch = asyncio.create_task(doorkeeper.watch())
    writer.start()
    try:
        yield
    finally:
        await asyncio.to_thread(writer.close)
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch
