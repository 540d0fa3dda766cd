"""What all pages share: the database, who may read, templates; how a view becomes an answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import anyio
from jinja2 import Environment
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from treehammer.errors import ConfigError, NothingToDoError, StoreError, TreehammerError
from treehammer.sql.write.store import Store
from treehammer.version import __version__
from treehammer.web.core.auth import READER_COOKIE, AccessControl
from treehammer.web.core.live_database import LiveDatabase
from treehammer.web.core.responses import (
    AsciiJSONResponse,
    RequestRefusedError,
    service_unavailable,
)
from treehammer.web.display.data_tables import DataTable
from treehammer.web.views.shared.static_assets import StaticAssets

HTML, JSON, CSV = "html", "json", "csv"
FORMATS = (HTML, JSON, CSV)

#: Parameters by which a page asks for a part of itself anew; they stand in no address that people see.
PARTIAL_PARAMETERS = ("part", "seen")

#: Of gzip: a page is a twentieth larger than at 9, and packed in a third of the time.
GZIP_LEVEL = 5
#: Questions that are asked of the database at a time; others wait, so that the service goes on.
MAX_CONCURRENT_QUERIES = 6
#: Seconds that a question waits for its turn.
QUEUE_TIMEOUT_S = 60
#: What browsers may load, from where: nothing but ours, and no script inside a page.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src {styles}; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_PLAIN_STYLES, _INLINE_STYLES = "'self'", "'self' 'unsafe-inline'"


@dataclass(frozen=True)
class PageView:
    """What a page has found out, and the template that lays it out.

    Attributes:
        template: its name.
        title: of the page.
        values: that the template may use.
        tables: by which ``?format=csv`` and ``json`` give the same to programs; the first one is
            what CSV holds where none is named.
        inline_styles: whether a library on the page sets styles itself, as Plotly does.
        status: of HTTP; 204 leaves the page as it is.
    """

    template: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    tables: tuple[DataTable, ...] = ()
    inline_styles: bool = False
    status: int = 200


@dataclass(frozen=True)
class QueryPool:
    """Where questions that take long wait, apart from all others.

    Attributes:
        places: how many are answered at a time.
        is_quick: whether a question takes no longer than others, so that it need not wait there.
    """

    limiter: anyio.CapacityLimiter
    is_quick: Callable[[Request], bool] = lambda _: False


#: Answers a request from the store, in a thread; what a user did wrong is raised.
PageQuery = Callable[[Store, Request], PageView | Response]


@dataclass(frozen=True)
class PageContext:
    """What all pages share.

    Attributes:
        reads: the database, which pages only read.
        access_control: authorizes readers.
        templates: see :func:`treehammer.web.display.template_environment.build_environment`.
        assets: styles and scripts.
        menu: name of the route -> title, of the pages that every page leads to.
        asks: the questions of all pages so far, by name of the route.
    """

    database: LiveDatabase
    access_control: AccessControl
    templates: Environment
    assets: StaticAssets
    menu: Mapping[str, str]
    queries: dict[str, PageQuery] = field(default_factory=dict)
    _limiter: anyio.CapacityLimiter = field(
        default_factory=lambda: anyio.CapacityLimiter(MAX_CONCURRENT_QUERIES)
    )

    def page_route(
        self,
        path: str,
        ask: PageQuery,
        name: str,
        *,
        packed: bool = True,
        room: QueryPool | None = None,
    ) -> Route:
        """The route of a page.

        Args:
            path: as Starlette writes paths.
            ask: finds out what the page shows.
            name: of the route, for links.
            packed: under gzip; not for files of which parts may be asked for.
            room: of its own; None for that of all others.
        """

        self.queries[name] = ask

        async def endpoint(request: Request) -> Response:
            await self.access_control.require_reader(request)
            places = self._limiter if room is None or room.is_quick(request) else room.limiter
            async with _acquire_slot(places):
                return await anyio.to_thread.run_sync(self._respond, ask, request)

        middleware = [Middleware(GZipMiddleware, compresslevel=GZIP_LEVEL)] if packed else []
        return Route(path, endpoint, name=name, methods=["GET"], middleware=middleware)

    def _respond(self, ask: PageQuery, request: Request) -> Response:
        try:
            wanted = requested_format(request)
            with self.database.open_store() as store:
                view = ask(store, request)
        except StoreError as error:
            raise service_unavailable(
                f"the database cannot be read now: {error.message}"
            ) from error
        except NothingToDoError as error:
            raise RequestRefusedError(404, error_sentence(error)) from error
        except ConfigError as error:
            raise RequestRefusedError(400, error_sentence(error)) from error
        if isinstance(view, Response):
            return view
        if wanted != HTML:
            return tables_response(view, request, wanted)
        return self.render_html(view, request)

    def render_html(self, view: PageView, request: Request) -> Response:
        """The page as HTML."""
        body = b""
        if view.status != 204:
            template = self.templates.get_template(view.template)
            body = template.render(
                self._template_values(request), view=view, **view.values
            ).encode()
        styles = _INLINE_STYLES if view.inline_styles else _PLAIN_STYLES
        headers = {
            "Content-Security-Policy": CONTENT_SECURITY_POLICY.format(styles=styles),
            "Referrer-Policy": "same-origin",
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-cache" if self.access_control.reading_open else "no-store",
        }
        kind = "text/html; charset=utf-8" if body else None
        return Response(body, view.status, headers, kind)

    def _template_values(self, request: Request) -> dict[str, Any]:
        """What every template may use."""
        root = request.scope.get("root_path", "")

        def link(name: str, /, **parts: Any) -> str:
            return link_to(request, name, **parts)

        return {
            "link": link,
            "asset": lambda name: f"{root}/static/{self.assets.versioned_path(name)}",
            "same": lambda **changes: link_to_same_page(request, **changes),
            "menu": [
                (name, title, _is_current(request, link(name))) for name, title in self.menu.items()
            ],
            "here": request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            "signed_in": READER_COOKIE in request.cookies,
            "version": __version__,
        }


@asynccontextmanager
async def _acquire_slot(room: anyio.CapacityLimiter) -> AsyncIterator[None]:
    """Wait for a place in a room, and keep it.

    Raises:
        Refusal: there was none within :data:`PATIENCE_S`.
    """
    place = object()
    try:
        with anyio.fail_after(QUEUE_TIMEOUT_S):
            await room.acquire_on_behalf_of(place)
    except TimeoutError:
        raise service_unavailable("too much is being asked for now") from None
    try:
        yield
    finally:
        room.release_on_behalf_of(place)


def link_to(
    request: Request, name: str, /, *, query: Mapping[str, Any] | None = None, **parts: Any
) -> str:
    """The address of a route.

    Args:
        request: under which the service is reached.
        name: of the route.
        query: what follows '?'; '' and None are left out.
        parts: of the path, any text.
    """
    quoted = {key: quote(str(value), safe="") for key, value in parts.items()}
    # Starlette tries all routes, one after the other: too long for a page of thousands of links.
    route = next(one for one in request.app.routes if one.name == name)
    path = request.scope.get("root_path", "") + str(route.url_path_for(name, **quoted))
    asked = {key: value for key, value in (query or {}).items() if value not in ("", None)}
    return f"{path}?{urlencode(asked, doseq=True)}" if asked else path


def link_to_same_page(request: Request, **changes: Any) -> str:
    """The address of this page with other parameters; None takes one away."""
    left = {*changes, *PARTIAL_PARAMETERS}
    kept = [(name, value) for name, value in request.query_params.multi_items() if name not in left]
    new = [(name, value) for name, value in changes.items() if value is not None]
    return f"?{urlencode([*kept, *new])}"


def requested_format(request: Request) -> str:
    """In what form the answer is asked for.

    Raises:
        ConfigError: in one that there is not.
    """
    wanted = request.query_params.get("format", HTML)
    if wanted not in FORMATS:
        raise ConfigError(f"format must be one of {', '.join(FORMATS)}, not {wanted!r}")
    return wanted


def wants_html(request: Request) -> bool:
    """Whether a browser asks, which gets a page also for what is refused."""
    wanted = request.query_params.get("format", HTML)
    return wanted not in (CSV, JSON) and "text/html" in request.headers.get("accept", "")


def tables_response(
    view: PageView, request: Request, wanted: str, *, about: Mapping[str, Any] | None = None
) -> Response:
    """The tables of a view for programs: all or the one named, of CSV one.

    Args:
        view: what a page has found out.
        request: may name the table.
        wanted: CSV or JSON.
        about: what JSON tells beside the tables.

    Raises:
        Refusal: there is no such table.
    """
    tables = {table.name: table for table in view.tables}
    name = request.query_params.get("table")
    if not tables or (name and name not in tables):
        known = f"; it has {', '.join(tables)}" if tables else ""
        raise RequestRefusedError(404, f"this page has no table {name or ''}{known}")
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    if wanted == CSV:
        table = tables[name] if name else view.tables[0]
        headers["Content-Disposition"] = f'attachment; filename="{table.name}.csv"'
        return Response(table.to_csv(), headers=headers, media_type="text/csv; charset=utf-8")
    chosen = [tables[name]] if name else view.tables
    tables_told = {table.name: table.plain_rows() for table in chosen}
    body: dict[str, Any] = {"title": view.title, "tables": tables_told}
    if about is not None:
        body["about"] = about
    return AsciiJSONResponse(json.loads(json.dumps(body, default=str)), headers=headers)


def error_sentence(error: TreehammerError) -> str:
    """What was wrong and what to do, for an answer."""
    # Where nothing was found is the database, and where that lies none of the reader's business;
    # and who types into a form knows no options of a command.
    where = "" if isinstance(error, NothingToDoError) else (error.where or "")
    where = where.replace("--where", "").strip()
    text = f"{where}: {error.message}" if where else error.message
    return f"{text}. {error.hint}".strip() if error.hint else text


def _is_current(request: Request, address: str) -> bool:
    path = request.url.path
    return path == address or (
        address.rstrip("/").count("/") > 0 and path.startswith(f"{address}/")
    )
