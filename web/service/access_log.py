"""One line of log for each request: who, what, how it ended and how long it took; never a token.

How long it took until the answer began is told in the answer, too, as browsers' tools show it.
Mistakes of ours are logged with their traceback, and answered.
"""

from __future__ import annotations

import logging
import time

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treehammer.web.core.responses import RefusalRenderer, RequestRefusedError

_ACCESS = logging.getLogger("treehammer.access")
_LOG = logging.getLogger("treehammer.service")

#: Characters of an address that are logged.
_MAX_PATH_CHARS = 200


class AccessLog:
    """Logs requests at the level INFO; addresses without what follows '?'.

    ``Server-Timing`` of an answer holds the milliseconds until its first byte: of a page, all it took.

    Args:
        app: that handles them.
        say: answers where the application made a mistake.
    """

    def __init__(self, app: ASGIApp, say: RefusalRenderer) -> None:
        self._app = app
        self._say = say

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        status = 0

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                took = f"total;dur={1000 * (time.monotonic() - began):.1f}"
                MutableHeaders(scope=message)["Server-Timing"] = took
            await send(message)

        try:
            await self._app(scope, receive, noting)
        except Exception:
            _LOG.exception("a request failed, which is our fault")
            if not status:
                mistake = RequestRefusedError(
                    500, "the service has made a mistake; its log says more"
                )
                await self._say(Request(scope), mistake)(scope, receive, noting)
        if _ACCESS.isEnabledFor(logging.INFO):
            _log_request(scope, status, time.monotonic() - began)


def _log_request(scope: Scope, status: int, seconds: float) -> None:
    client = scope.get("client") or ("-", 0)
    path = scope.get("raw_path", b"?")[:_MAX_PATH_CHARS].decode("ascii", "replace")
    note = scope.get("state", {}).get("note", "")
    _ACCESS.info(
        "%s %s %s %d %.1f ms%s",
        client[0],
        scope["method"],
        path if path.isprintable() else ascii(path),
        status,
        1000 * seconds,
        f" ({note})" if note else "",
    )
