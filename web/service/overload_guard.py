"""Guards against overload: limits of connections and of requests for each client.

Limits of connections (number per address, time for headers, clients that do not read) apply to the
transports of asyncio, below the HTTP protocol, whose class is uvicorn's and not changed: a connection
that has sent no complete request yet never reaches the application. asyncio's own server hands a TLS
connection over only after its handshake, which may take a minute: here, clients are counted, and
limited in time, before it. Limits of requests (number per address, length of and time for the body,
response in pieces) are middleware of the application.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treehammer.web.core.request_limits import ClientLimits, ClientQuota, RefusalLog, client_group
from treehammer.web.core.responses import RefusalRenderer, RequestRefusedError, service_unavailable

#: Seconds for the body of a request to arrive, and for the next part of it.
BODY_TIMEOUT_S, BODY_PAUSE_S = 60.0, 10.0
#: Bytes of a response handed over at a time; the next piece waits until the client has read.
PIECE_BYTES = 65_536
#: Seconds for which a connection may be idle after a response.
KEEP_ALIVE_S = 30
#: Seconds for the headers of a request to arrive.
HEADER_TIMEOUT_S = 10.0
#: Seconds in which a client must read some of a response that waits for it.
READ_TIMEOUT_S = 30.0
#: Seconds between two checks of all connections.
CHECK_INTERVAL_S = 1.0

_BODY = json.dumps({"error": "too many connections from this address; try again later"}).encode()
_REFUSAL = (
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After: 10\r\n"
    b"X-Content-Type-Options: nosniff\r\n"
    b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (len(_BODY), _BODY)
)

#: Address and port of a client.
_Peer = tuple[str, int]
_LOG = logging.getLogger("treehammer.service")
#: Seconds for a TLS handshake.
HANDSHAKE_TIMEOUT_S = 10.0
#: Seconds until the next attempt when no connection can be accepted, for lack of open files.
_RETRY_S = 1.0


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


class ConnectionGuard:
    """All open connections.

    Args:
        limits: of connections.
        is_exempt: whether an address, that of a trusted proxy, may open any number of connections.
    """

    def __init__(self, limits: ClientLimits, is_exempt: Callable[[str], bool]) -> None:
        self._limits = limits
        self._is_exempt = is_exempt
        self._connections: dict[_Peer, _GuardedConnection] = {}
        self._by_group: Counter[str] = Counter()
        # TLS handshakes in progress with their groups, oldest first.
        self._handshakes: dict[asyncio.Task[None], str] = {}
        self._log = RefusalLog()
        self._stopping = False

    def wrap_protocol(
        self, make_protocol: Callable[..., asyncio.Protocol]
    ) -> Callable[..., asyncio.Protocol]:
        """Return a factory of guarded protocols."""

        def make_guarded(*arguments: Any, **named: Any) -> asyncio.Protocol:
            return _GuardedConnection(make_protocol(*arguments, **named), self)

        return make_guarded

    def wrap_app(self, app: ASGIApp) -> ASGIApp:
        """Return an application that reports its requests; clients must be those of connections."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            connection = self._connections.get(tuple(scope.get("client") or ()))
            if connection is None:
                await app(scope, receive, send)
                return
            with connection.running:
                await app(scope, receive, send)

        return serve

    def admit(self, connection: _GuardedConnection) -> bool:
        """Register a new connection, unless that exceeds a limit."""
        group = client_group(connection.peer[0])
        if not self._has_room(connection.peer[0], ()):
            return False
        connection.group = group
        self._connections[connection.peer] = connection
        self._by_group[group] += 1
        return True

    def begin_handshake(self, address: str, handshake: asyncio.Task[None]) -> bool:
        """Register a TLS handshake, unless that exceeds a limit.

        Its task is cancelled if it has to make room for another client.
        """
        if not self._has_room(address, self._handshakes.values()):
            return False
        self._handshakes[handshake] = client_group(address)
        return True

    def end_handshake(self, handshake: asyncio.Task[None]) -> None:
        """Forget a handshake; a connection that follows from it has been registered."""
        self._handshakes.pop(handshake, None)

    def _has_room(self, address: str, handshakes: Collection[str]) -> bool:
        """Return whether a client may open a further connection; ``handshakes`` count as well."""
        group = client_group(address)
        allowed = self._limits.connections_per_address
        open_count = self._by_group[group] + sum(
            handshake_group == group for handshake_group in handshakes
        )
        if open_count >= allowed and not self._is_exempt(address):
            reason = f"{allowed} connections from this address are open"
            self._log.warn(reason, f"address {group}", "serve_max_connections_per_address")
            return False
        open_now = len(self._connections) + len(handshakes)
        if open_now >= self._limits.connections and not self._drop_idle():
            reason = f"{self._limits.connections} connections are open"
            self._log.warn(reason, f"address {group}", "serve_max_connections")
            return False
        return True

    def discard(self, connection: _GuardedConnection) -> None:
        """Forget a closed connection."""
        if self._connections.get(connection.peer) is connection:
            del self._connections[connection.peer]
            self._by_group[connection.group] -= 1
            if not self._by_group[connection.group]:
                del self._by_group[connection.group]

    def _drop_idle(self) -> bool:
        """Abort the oldest handshake, or the connection that has waited longest for a request.

        Returns:
            Whether there is one.
        """
        if handshake := next(iter(self._handshakes), None):
            handshake.cancel()
            self.end_handshake(handshake)
            return True
        idle = [
            connection
            for connection in self._connections.values()
            if connection.idle_since_s is not None
        ]
        if not idle:
            return False
        oldest = min(idle, key=lambda connection: connection.idle_since_s or 0.0)
        self.discard(oldest)
        oldest.abort()
        return True

    async def check_forever(self) -> None:
        """Abort overdue connections periodically until cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            self.abort_overdue()

    def abort_overdue(self) -> None:
        """Abort connections that keep the service waiting too long."""
        now_s = time.monotonic()
        for connection in list(self._connections.values()):
            if self._is_overdue(connection, now_s):
                connection.abort()

    def _is_overdue(self, connection: _GuardedConnection, now_s: float) -> bool:
        if now_s - (connection.paused_since_s or now_s) > READ_TIMEOUT_S:
            return True
        if connection.is_closing:
            # A TLS connection would go on reading until the client closes its side.
            patience_s = READ_TIMEOUT_S if connection.has_unread else CHECK_INTERVAL_S
            return connection.closing_for_s(now_s) > patience_s
        if connection.idle_since_s is None:
            return False
        patience_s = HEADER_TIMEOUT_S + (KEEP_ALIVE_S if connection.requests else 0.0)
        if self._stopping:
            patience_s = CHECK_INTERVAL_S
        return now_s - connection.idle_since_s > patience_s

    def stop(self) -> None:
        """From now on abort connections without a request in progress."""
        self._stopping = True


class _RunningRequest:
    """Context of a request in progress."""

    def __init__(self, connection: _GuardedConnection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.requests += 1
        self._connection.idle_since_s = None

    def __exit__(self, *_: object) -> None:
        self._connection.idle_since_s = time.monotonic()


class _GuardedConnection(asyncio.Protocol):
    """Connection that passes everything on to another protocol once it is admitted.

    Attributes:
        peer: address and port of the client.
        group: the part of the address that limits apply to.
        requests: number of requests so far.
        idle_since_s: when it began to wait for a request; None during a request.
        paused_since_s: since when the client reads too slowly; None if it reads.
        running: context of a request in progress.
    """

    def __init__(self, protocol: asyncio.Protocol, guard: ConnectionGuard) -> None:
        self._protocol = protocol
        self._guard = guard
        self._transport: asyncio.Transport | None = None
        self._admitted = False
        self.peer: _Peer = ("", 0)
        self.group = ""
        self.requests = 0
        self.idle_since_s: float | None = time.monotonic()
        self.paused_since_s: float | None = None
        self.running = _RunningRequest(self)
        self._closing_since_s: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Pass an admitted connection on; refuse and close any other."""
        self._transport = transport
        self.peer = tuple((transport.get_extra_info("peername") or ("", 0))[:2])
        self._admitted = self._guard.admit(self)
        if self._admitted:
            self._protocol.connection_made(transport)
            return
        transport.write(_REFUSAL)
        transport.close()
        # A client that does not close its side of TLS would keep the connection open.
        asyncio.get_running_loop().call_later(CHECK_INTERVAL_S, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._guard.discard(self)
        if self._admitted:
            self._protocol.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass data on."""
        if self._admitted:
            self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        """Pass the end of the client's data on."""
        return self._protocol.eof_received() if self._admitted else None

    def pause_writing(self) -> None:
        """Note that the client reads more slowly than the service writes."""
        self.paused_since_s = time.monotonic()
        if self._admitted:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Note that the client has read."""
        self.paused_since_s = None
        if self._admitted:
            self._protocol.resume_writing()

    @property
    def is_closing(self) -> bool:
        """Whether the service has closed its side."""
        return self._transport is not None and self._transport.is_closing()

    @property
    def has_unread(self) -> bool:
        """Whether some of a response was not sent yet."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    def closing_for_s(self, now_s: float) -> float:
        """Return the seconds since this was first called."""
        if self._closing_since_s is None:
            self._closing_since_s = now_s
        return now_s - self._closing_since_s

    def abort(self) -> None:
        """Close the connection at once, without waiting for the client."""
        if self._transport is not None:
            with suppress(RuntimeError):  # It is closed already.
                self._transport.abort()


class TlsListener:
    """Accepts TLS connections of a listening socket.

    Args:
        listening: the socket.
        context: of the certificate.
        guard: limits the clients.
        make_protocol: makes the protocol of a connection after its handshake.
    """

    def __init__(
        self,
        listening: socket.socket,
        context: ssl.SSLContext,
        guard: ConnectionGuard,
        make_protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        self._listening = listening
        self._context = context
        self._guard = guard
        self._make_protocol = make_protocol
        self._handshakes: set[asyncio.Task[None]] = set()

    async def accept_forever(self) -> None:
        """Accept connections until cancelled; handshakes in progress end with it."""
        loop = asyncio.get_running_loop()
        self._listening.setblocking(False)
        try:
            while True:
                try:
                    client, address = await loop.sock_accept(self._listening)
                except OSError as error:
                    _LOG.warning("cannot accept a connection: %s", error)
                    await asyncio.sleep(_RETRY_S)
                    continue
                task = asyncio.create_task(self._shake_hands(client, address[0]))
                self._handshakes.add(task)
                task.add_done_callback(self._handshakes.discard)
        finally:
            for task in self._handshakes:
                task.cancel()

    async def _shake_hands(self, client: socket.socket, address: str) -> None:
        task = asyncio.current_task()
        assert task is not None
        if not self._guard.begin_handshake(address, task):
            client.close()
            return
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                client,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S,
            )
        except OSError:
            pass  # The client left, took too long, or does not speak TLS.
        finally:
            self._guard.end_handshake(task)
