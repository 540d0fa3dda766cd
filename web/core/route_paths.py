"""Route paths whose parts may be any text, such as names of sites, except NUL."""

from __future__ import annotations

import re

from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from treehammer.web.core.responses import RefusalRenderer, RequestRefusedError


class TextConvertor(PathConvertor):
    """Any text with slashes and line breaks, at which Starlette's own convertors stop."""

    regex = "(?s:.*)"


class NonEmptyTextConvertor(TextConvertor):
    """Any text of at least one character."""

    regex = "(?s:.+)"


register_url_convertor("text", TextConvertor())
register_url_convertor("some", NonEmptyTextConvertor())


def allow_any_text(path: str) -> str:
    """Return a path for a route in which every part in braces may be any text."""
    return re.sub(r"\{(\w+)\}", r"{\1:text}", path)


def require_text(path: str) -> str:
    """Return a path as :func:`allow_any_text`, whose parts may not be empty."""
    return re.sub(r"\{(\w+)\}", r"{\1:some}", path)


class RejectNulMiddleware:
    """Refuses addresses with NUL, for which databases fail in different ways.

    Args:
        app: handles all other requests.
        render: builds the response to a refused request.
    """

    def __init__(self, app: ASGIApp, render: RefusalRenderer) -> None:
        self._app = app
        self._render = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection."""
        app = self._app
        if scope["type"] == "http" and ("\0" in scope["path"] or b"%00" in scope["query_string"]):
            app = self._render(
                Request(scope), RequestRefusedError(400, "an address cannot contain NUL (%00)")
            )
        await app(scope, receive, send)
