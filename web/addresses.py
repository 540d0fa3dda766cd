"""Addresses: of the current request, of other pages, and of rows' pages.

They are never built from the Host header, which any client can choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from treehammer.errors import ConfigError

if TYPE_CHECKING:
    # Reports draw figures without the service.
    from starlette.requests import Request

    from treehammer.tables import Row

HTML, JSON, CSV = "html", "json", "csv"
FORMATS = (HTML, JSON, CSV)
#: Parameter that asks for a chart of the page as a file.
DRAWING = "drawing"
#: Parameters for parts of a page; links to the page leave them out.
PARTIAL_PARAMETERS = ("part", "version", DRAWING)
#: Characters of a path that need no quoting.
_SAFE_IN_PATHS = "/:@!$&'()*+,;=~"

#: The request that is answered, in the thread or task that answers it.
CURRENT_REQUEST: ContextVar[Request] = ContextVar("current request")


def requested_path(request: Request | None = None) -> str:
    """Return the path of a request, by default the current one, quoted."""
    # request.url would start with the Host header.
    return quote((request or CURRENT_REQUEST.get()).scope["path"], safe=_SAFE_IN_PATHS)


def requested_address(request: Request) -> str:
    """Return the path and query of a request."""
    query = request.scope["query_string"].decode("latin-1")
    return requested_path(request) + (f"?{query}" if query else "")


def requested_format(request: Request) -> str:
    """Return the output format that a request names; an unknown one is refused."""
    output_format = request.query_params.get("format", HTML)
    if output_format not in FORMATS:
        raise ConfigError(f"format must be one of {', '.join(FORMATS)}, not {output_format[:40]!r}")
    return output_format


def wants_html(request: Request) -> bool:
    """Return whether a browser sent the request and errors should be pages."""
    output_format = request.query_params.get("format", HTML)
    return output_format not in (CSV, JSON) and "text/html" in request.headers.get("accept", "")


def has_page(name: str) -> bool:
    """Return whether the service has a route of this name; those of verticals may lack."""
    return any(route.name == name for route in CURRENT_REQUEST.get().app.routes)


def link_to(name: str, /, *, query: Mapping[str, Any] | None = None, **parts: Any) -> str:
    """Return the address of a route with quoted parts; empty values of the query are left out."""
    quoted = {key: quote(str(value), safe="") for key, value in parts.items()}
    # Starlette's url_for tries all routes in turn: too slow for pages with thousands of links.
    route = next(route for route in CURRENT_REQUEST.get().app.routes if route.name == name)
    path = str(route.url_path_for(name, **quoted))
    parameters = {key: value for key, value in (query or {}).items() if value not in ("", None)}
    return f"{path}?{urlencode(parameters, doseq=True)}" if parameters else path


def link_rows(name: str, /, **keys: str) -> Callable[[Row], str]:
    """Build a function that links a row by keys of its values; without one there is no link."""

    def link(row: Row) -> str:
        parts = {part: row[key] for part, key in keys.items()}
        return link_to(name, **parts) if all(parts.values()) else ""

    return link


def link_to_same_page(**changes: Any) -> str:
    """Return the address of the current page with changed parameters; None removes a parameter."""
    removed = {*changes, *PARTIAL_PARAMETERS}
    items = CURRENT_REQUEST.get().query_params.multi_items()
    unchanged = [(name, value) for name, value in items if name not in removed]
    new = [(name, value) for name, value in changes.items() if value is not None]
    return f"?{urlencode([*unchanged, *new])}"
