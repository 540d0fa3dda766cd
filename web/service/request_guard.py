"""Limits of requests: number per address, length of and time for the body, response in pieces."""

from __future__ import annotations

import asyncio
import time

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treehammer.web.core.client_limits import ClientLimits, ClientQuota, client_group
from treehammer.web.core.responses import (
    RefusalRenderer,
    RequestRefusedError,
    service_unavailable,
)

#: Seconds for the body of a request to arrive, and for the next part of it.
BODY_TIMEOUT_S, BODY_PAUSE_S = 60.0, 10.0
#: Bytes of a response handed over at a time; the next piece waits until the client has read.
PIECE_BYTES = 65_536


class RequestGuard:
    """Refuses requests above the limits of their address, and bodies that come too slowly.

    It applies to every method and path, before a token is checked.

    Args:
        app: handles the requests.
        limits: per address.
        render: builds the response to a refused request.
    """

    def __init__(self, app: ASGIApp, limits: ClientLimits, render: RefusalRenderer) -> None:
        self._app = app
        self._render = render
        self._quota = ClientQuota(
            limits.requests_per_s,
            limits.connections_per_address,
            name="address",
            setting="serve_requests_per_second, serve_max_connections_per_address",
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        pieces = _PiecewiseSender(send)
        try:
            _require_one_length(scope)
            with self._quota.open_request(client_group((scope.get("client") or ("-", 0))[0])):
                await self._app(scope, _BodyReceiver(receive), pieces)
        except RequestRefusedError as refusal:
            if pieces.started:
                raise
            await self._render(Request(scope), refusal)(scope, receive, send)
        except asyncio.CancelledError:
            # uvicorn cancels requests that take too long when the service stops.
            if not pieces.started:
                stopping = service_unavailable("the service is stopping; repeat the request")
                await self._render(Request(scope), stopping)(scope, receive, send)


def _require_one_length(scope: Scope) -> None:
    """Refuse a body whose end a proxy in front may see elsewhere, to smuggle in a second request.

    Raises:
        RequestRefusedError: both headers about the length of the body are given.
    """
    names = {name for name, _ in scope["headers"]}
    if b"content-length" in names and b"transfer-encoding" in names:
        # RFC 9112, section 6.3: the rest of this connection cannot be trusted.
        raise RequestRefusedError(
            400,
            "Content-Length and Transfer-Encoding must not be given together",
            headers={"Connection": "close"},
        )


class _BodyReceiver:
    """Receives the messages of a request; its body must arrive in time."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._end_s = time.monotonic() + BODY_TIMEOUT_S
        self._complete = False

    async def __call__(self) -> Message:
        """Receive the next message.

        Raises:
            RequestRefusedError: the body is late.
        """
        if self._complete:
            return await self._receive()
        left_s = max(self._end_s - time.monotonic(), 0.0)
        try:
            async with asyncio.timeout(min(left_s, BODY_PAUSE_S)):
                message = await self._receive()
        except TimeoutError:
            # Without closing, the rest of the body would be awaited in place of a request.
            raise RequestRefusedError(
                408,
                f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s, "
                f"or paused for {BODY_PAUSE_S:.0f} s",
                headers={"Connection": "close"},
            ) from None
        self._complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message


class _PiecewiseSender:
    """Sends large parts of a response in pieces, so that a slow reader does not fill the memory.

    Attributes:
        started: whether the response has begun.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def __call__(self, message: Message) -> None:
        """Send a message."""
        self.started = True
        body = message.get("body", b"")
        if message["type"] != "http.response.body" or len(body) <= PIECE_BYTES:
            await self._send(message)
            return
        last = len(body) - 1
        for start in range(0, len(body), PIECE_BYTES):
            end = start + PIECE_BYTES
            more_body = message.get("more_body", False) or end <= last
            await self._send({**message, "body": bytes(body[start:end]), "more_body": more_body})
