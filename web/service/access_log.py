"""Access log: one line per request with client, path, status and duration, never a token.

The middleware also answers unhandled exceptions with status 500 and logs their traceback.
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

#: Maximum number of logged characters of a path.
_MAX_PATH_CHARS = 200


class AccessLog:
    """Logs requests without their query at the level INFO, and sets ``Server-Timing``.

    ``Server-Timing`` holds the milliseconds until the first byte of the response, which browsers show.

    Args:
        app: handles the requests.
        render: builds the response to an unhandled exception.
    """

    def __init__(self, app: ASGIApp, render: RefusalRenderer) -> None:
        self._app = app
        self._render = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = time.monotonic()
        status = 0

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                duration = f"total;dur={1000 * (time.monotonic() - start):.1f}"
                MutableHeaders(scope=message)["Server-Timing"] = duration
            await send(message)

        try:
            await self._app(scope, receive, send_and_record)
        except Exception:
            _LOG.exception("a request failed because of a bug")
            if not status:
                refusal = RequestRefusedError(500, "internal error; see the log of the service")
                await self._render(Request(scope), refusal)(scope, receive, send_and_record)
        if _ACCESS.isEnabledFor(logging.INFO):
            _log_request(scope, status, time.monotonic() - start)


def _log_request(scope: Scope, status: int, seconds: float) -> None:
    client = scope.get("client") or ("-", 0)
    path = scope.get("raw_path", b"?")[:_MAX_PATH_CHARS].decode("ascii", "replace")
    note = scope.get("state", {}).get("note", "")
    path = path if path.isprintable() else ascii(path)
    method, milliseconds = scope["method"], round(1000 * seconds, 1)
    _ACCESS.info(
        "%s %s %s %d %.1f ms%s",
        client[0],
        method,
        path,
        status,
        milliseconds,
        f" ({note})" if note else "",
        extra={
            "client": client[0],
            "method": method,
            "path": path,
            "status": status,
            "milliseconds": milliseconds,
        },
    )
