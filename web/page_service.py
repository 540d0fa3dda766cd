"""Service of pages: routes, queries, rendering as HTML, CSV or JSON, figures as files, and feeds."""

from __future__ import annotations

import functools
import json
import logging
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

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
from treehammer.web import addresses, arranged_table
from treehammer.web.core import responses
from treehammer.web.core.auth import AccessControl, session_token
from treehammer.web.core.live_database import run_queries
from treehammer.web.display_formats import build_environment
from treehammer.web.figures.drawing import FIGURE_FORMATS
from treehammer.web.page import Page, PageContent, PageResources, QueryPool
from treehammer.web.sections import Downloads

_LOG = logging.getLogger("treehammer.service")

#: Files drawn at the same time; other requests wait.
MAX_DRAWING_PROCESSES = 2
#: Maximum duration of drawing one file, in seconds.
DRAWING_TIMEOUT_S = 60

#: Pages are 5 % larger than at level 9 and compressed in a third of the time.
GZIP_LEVEL = 5
#: Queries running at the same time; others wait, so that the service stays responsive.
MAX_CONCURRENT_QUERIES = 6
#: Seconds that a query waits for its turn.
QUEUE_TIMEOUT_S = 60
#: Pages load resources from this service only and contain no inline scripts.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self'{styles}; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)


def make_drawing_pool(_resources: PageResources) -> QueryPool:
    """Make the pool of drawn files: they take seconds, and waiting requests must not block pages."""
    return QueryPool(anyio.CapacityLimiter(MAX_DRAWING_PROCESSES))


def draw_file(form: str, title: str, address: str, **drawing: Any) -> bytes:
    """Draw a file with a title and its address, and arguments of :func:`.draw_chart`, in a process."""
    creator = f"Treehammer {__version__}"
    drawing["metadata"] = {"Title": title, "Subject": address, "Creator": creator}
    return _run_drawing(form, json.dumps(drawing, sort_keys=True).encode())


def _run_drawing(form: str, text: bytes) -> bytes:
    words = [sys.executable, "-P", "-m", "treehammer.web.figures.drawing", form]
    try:
        process = subprocess.run(
            words, input=text, capture_output=True, timeout=DRAWING_TIMEOUT_S, check=True
        )
    except subprocess.TimeoutExpired:
        _LOG.warning("drawing a figure took longer than %d s", DRAWING_TIMEOUT_S)
        raise responses.service_unavailable(
            "drawing the figure took too long; choose a smaller one"
        ) from None
    except (OSError, subprocess.CalledProcessError) as error:
        output = getattr(error, "stderr", b"") or b""
        _LOG.error("drawing a figure failed: %s %s", error, output.decode(errors="replace")[-500:])
        raise responses.RequestRefusedError(
            500, f"drawing the figure as {form} failed; see the service's log"
        ) from None
    return process.stdout


def make_figure_response(name: str, form: str, content: bytes) -> Response:
    """Make the response of a file; pictures are shown, other formats downloaded."""
    disposition = "inline" if form in ("png", "svg") else "attachment"
    headers = {
        "Content-Disposition": f'{disposition}; filename="{name}.{form}"',
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
        "Cache-Control": "no-store",
    }
    return Response(content, headers=headers, media_type=FIGURE_FORMATS[form])


#: Entries of a feed at most.
MAX_FEED_ENTRIES = 50
#: Characters that no text of a feed may have.
_NOT_IN_XML = re.compile("[\x00-\x1f\ufffe\uffff]")


#: Answers a request from the store in a thread; raises for invalid requests.
PageHandler = Callable[[Store, Request], PageContent | Response]


@dataclass(frozen=True)
class PageContext:
    """Dependencies shared by all pages.

    Attributes:
        templates: see :func:`treehammer.web.display_formats.build_environment`.
        docs: address of the documentation, '' for none.
    """

    access_control: AccessControl
    templates: Environment
    assets: responses.VersionedFiles
    menu: Mapping[str, str]
    resources: PageResources
    docs: str = ""
    _limiter: anyio.CapacityLimiter = field(
        default_factory=lambda: anyio.CapacityLimiter(MAX_CONCURRENT_QUERIES)
    )

    def declared_route(self, page: Page) -> Route:
        """Create the route of a declared page."""

        def handle_page(store: Store, request: Request) -> PageContent | Response:
            request.state.help = page.help
            return page.answer(store, request, self.resources)

        pool = page.make_pool(self.resources) if page.make_pool else None
        return self.page_route(page.path, handle_page, page.name, compress=page.compress, pool=pool)

    def page_route(
        self,
        path: str,
        handle_page: PageHandler,
        name: str,
        *,
        compress: bool = True,
        pool: QueryPool | None = None,
    ) -> Route:
        """Create the route of a page, see :class:`~treehammer.web.page.Page`."""

        async def endpoint(request: Request) -> Response:
            await self.access_control.require_reader(request)
            slots = self._limiter if pool is None or pool.is_quick(request) else pool.limiter
            if addresses.DRAWING in request.query_params:
                slots = self.resources.share(make_drawing_pool).limiter
            async with _acquire_slot(slots):
                work = functools.partial(self._respond, handle_page, request)
                return await run_queries(work, request, self.resources.settings.serve_query_seconds)

        middleware = [Middleware(GZipMiddleware, compresslevel=GZIP_LEVEL)] if compress else []
        return Route(path, endpoint, name=name, methods=["GET"], middleware=middleware)

    def _respond(self, handle_page: PageHandler, request: Request) -> Response:
        addresses.CURRENT_REQUEST.set(request)
        try:
            output_format = addresses.requested_format(request)
            with self.resources.database.open_store() as store, store.one_state():
                content = handle_page(store, request)
            if isinstance(content, Response):
                return content
            if drawing := request.query_params.get(addresses.DRAWING):
                return self._draw_chart(content, drawing)
            if output_format != addresses.HTML:
                return tables_response(content, request, output_format)
            return self.render_html(content, request)
        except StoreError as error:
            raise responses.service_unavailable(
                f"the database cannot be read now: {error.message}"
            ) from error
        except NothingToDoError as error:
            raise responses.RequestRefusedError(404, error_sentence(error)) from error
        except ConfigError as error:
            raise responses.RequestRefusedError(400, error_sentence(error)) from error

    def _draw_chart(self, content: PageContent, drawing: str) -> Response:
        name, _, form = drawing.rpartition(".")
        chart = content.charts.get(name)
        if chart is None or form not in FIGURE_FORMATS:
            formats = " or ".join(FIGURE_FORMATS)
            text = f"this page has no chart {drawing[:80]!r} as {formats}"
            raise responses.RequestRefusedError(404, text)
        address = f"{addresses.requested_path()}{addresses.link_to_same_page()}".removesuffix("?")
        file = draw_file(form, content.title, address, specification=chart.specification)
        return make_figure_response("figure", form, file)

    def render_html(self, content: PageContent, request: Request) -> Response:
        """Render a page as an HTML response."""
        addresses.CURRENT_REQUEST.set(request)
        body = b""
        if content.status != 204:
            name = "part.html.j2" if content.is_part else "page.html.j2"
            template = self.templates.get_template(name)
            body = template.render(**self._template_values(request), content=content).encode()
        styles = " 'unsafe-inline'" if content.inline_styles else ""
        headers = {
            "Content-Security-Policy": CONTENT_SECURITY_POLICY.format(styles=styles),
            "Referrer-Policy": "same-origin",
            "Cache-Control": "no-cache" if self.access_control.reading_open else "no-store",
        }
        kind = "text/html; charset=utf-8" if body else None
        return Response(body, content.status, headers, kind)

    def _template_values(self, request: Request) -> dict[str, Any]:
        path = addresses.requested_path()
        return {
            # A crawler would follow each choice of each view: tens of thousands of addresses.
            "is_generated": bool(request.url.query),
            "link": addresses.link_to,
            "asset": lambda name: f"/static/{name}?v={self.assets.version}",
            "same": addresses.link_to_same_page,
            "arrange": arranged_table.arrange_table,
            "downloads": Downloads,
            "min_sortable_rows": arranged_table.MIN_SORTABLE_ROWS,
            "min_filtered_rows": arranged_table.MIN_FILTERED_ROWS,
            "menu": [
                (name, title, f"{path}/".startswith(f"{addresses.link_to(name)}/"))
                for name, title in self.menu.items()
            ],
            "path": path,
            "path_params": request.path_params,
            "signed_in": bool(session_token(request)),
            "docs": self.docs
            and f"{self.docs.rstrip('/')}/{getattr(request.state, 'help', 'pages')}/",
            "version": __version__,
        }


@asynccontextmanager
async def _acquire_slot(pool: anyio.CapacityLimiter) -> AsyncIterator[None]:
    """Wait up to :data:`QUEUE_TIMEOUT_S` for a free slot and hold it."""
    token = object()
    try:
        with anyio.fail_after(QUEUE_TIMEOUT_S):
            await pool.acquire_on_behalf_of(token)
    except TimeoutError:
        raise responses.service_unavailable("too many requests are waiting") from None
    try:
        yield
    finally:
        pool.release_on_behalf_of(token)


def tables_response(
    content: PageContent,
    request: Request,
    output_format: str,
    *,
    about: Mapping[str, Any] | None = None,
) -> Response:
    """Send all tables of a page, or the requested one, as CSV or JSON, with values about it."""
    parameters = request.query_params
    tables, name = content.exported_tables, parameters.get("table")
    exported = [
        arranged_table.TableArrangement.parse(parameters, table.name).apply(table)
        for table in tables
        if name in (None, "", table.name)
    ]
    if not exported:
        names = ", ".join(table.name for table in tables)
        text = "this page has no tables"
        if names:
            text = f"this page has no table {name!r}; it has {names}"
        raise responses.RequestRefusedError(404, text)
    headers = {"Cache-Control": "no-store"}
    if output_format == addresses.CSV:
        headers["Content-Disposition"] = f'attachment; filename="{exported[0].name}.csv"'
        return Response(exported[0].to_csv(), headers=headers, media_type="text/csv; charset=utf-8")
    plain_tables = {table.name: table.plain_rows() for table in exported}
    body: dict[str, Any] = {"title": content.title, "tables": plain_tables}
    if about is not None:
        body["about"] = about
    return responses.AsciiJSONResponse(json.loads(json.dumps(body, default=str)), headers=headers)


def error_sentence(error: TreehammerError) -> str:
    """Write an error with its remedy as a message for readers."""
    # Readers must not learn the location of the database, nor do forms have command line options.
    where = "" if isinstance(error, NothingToDoError) else (error.where or "")
    where = where.replace("--where", "").strip()
    text = f"{where}: {error.message}" if where else error.message
    return f"{text}. {error.hint}".strip() if error.hint else text


class FeedEntry(NamedTuple):
    """A result, and the path of its page."""

    title: str
    path: str
    updated_us: int
    summary: str


def write_feed(title: str, path: str, base: str, entries: Iterable[FeedEntry]) -> bytes:
    """Write the newest entries as an Atom feed; ``base`` begins all addresses, '' if it is unknown."""
    newest = sorted(entries, key=lambda entry: entry.updated_us, reverse=True)[:MAX_FEED_ENTRIES]
    template = build_environment().get_template("feed.atom.j2")
    values = {"title": title, "path": path, "base": base, "entries": newest}
    clean = functools.partial(_NOT_IN_XML.sub, " ")
    return template.render(values, clean=clean, iso_time=_format_iso_time).encode()


def _format_iso_time(time_us: int) -> str:
    return datetime.fromtimestamp(time_us / 1e6, UTC).isoformat(timespec="seconds")
