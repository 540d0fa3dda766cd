"""Addresses whose parts may be any text, as names of sites are; but for NUL, which no database can hold."""

from __future__ import annotations

import re

from starlette.convertors import PathConvertor, register_url_convertor
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from treehammer.web.core.responses import RefusalRenderer, RequestRefusedError


class TextConvertor(PathConvertor):
    """Any text, with slashes and line breaks; Starlette's own stops at one of them."""

    regex = "(?s:.*)"


class NonEmptyTextConvertor(TextConvertor):
    """Any text but none at all."""

    regex = "(?s:.+)"


register_url_convertor("text", TextConvertor())
register_url_convertor("some", NonEmptyTextConvertor())


def allow_any_text(path: str) -> str:
    """A path for a route, in which every part in braces may be any text."""
    return re.sub(r"\{(\w+)\}", r"{\1:text}", path)


def require_text(path: str) -> str:
    """The same where a part may not be empty, so that without it the address is another one's."""
    return re.sub(r"\{(\w+)\}", r"{\1:some}", path)


class RejectNulMiddleware:
    """Refuses addresses with NUL: SQLite would find nothing, PostgreSQL calls them a mistake.

    Args:
        app: that handles all others.
        say: answers a request that is not done.
    """

    def __init__(self, app: ASGIApp, say: RefusalRenderer) -> None:
        self._app = app
        self._say = say

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection."""
        app = self._app
        if scope["type"] == "http" and ("\0" in scope["path"] or b"%00" in scope["query_string"]):
            app = self._say(
                Request(scope), RequestRefusedError(400, "an address cannot hold NUL (%00)")
            )
        await app(scope, receive, send)
