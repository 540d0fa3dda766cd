"""Limits on unauthenticated TLS connections: header size, timeouts, shutdown."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from treehammer.testbed.credentials import CertificateAuthority
from treehammer.web.core.request_limits import ClientLimits
from treehammer.web.core.responses import AsciiJSONResponse, RequestRefusedError
from treehammer.web.service import overload_guard, service_process
from treehammer.web.service.overload_guard import RequestGuard

#: Shortened timeouts of the service, and the patience of the tests.
HEADER_TIMEOUT_S, KEEP_ALIVE_S, READ_TIMEOUT_S, CHECK_INTERVAL_S = 0.4, 0.4, 0.8, 0.1
PATIENCE_S = 60.0
#: An endless request must end within this time, whatever the speed of the machine.
SENDING_S = 20.0

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"

Connect = Callable[[], ssl.SSLSocket]


async def _answer(request: Request) -> Response:
    """Respond with the size of the body, or refuse without reading it."""
    if "large" in request.url.path:
        return PlainTextResponse(b"a" * 20_000_000)
    if "refuse" in request.url.path:
        return PlainTextResponse("no", 403)
    return PlainTextResponse(str(len(await request.body())))


def _refuse(_request: Request, refusal: RequestRefusedError) -> Response:
    return AsciiJSONResponse(refusal.body, refusal.status, refusal.headers)


class TlsServer:
    """A TLS server with its clients."""

    def __init__(self, folder: Path, *, behind_proxy: bool = False) -> None:
        authority = CertificateAuthority(folder)
        self._context = ssl.create_default_context(cafile=str(authority.ca))
        routes = [Route("/{path:path}", _answer, methods=["GET", "POST"])]
        self.guard = overload_guard.ConnectionGuard(ClientLimits(), lambda _address: False)
        app = RequestGuard(Starlette(routes=routes), ClientLimits(), _refuse)
        config = service_process.configure_uvicorn(app, self.guard, behind_proxy=behind_proxy)
        config.ssl = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        config.ssl.load_cert_chain(*authority.issue_server_certificate())
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._server = service_process.ServiceServer(config, self.guard, None)
        self._thread = threading.Thread(target=self._server.run, args=([self._listening],))
        self._thread.start()
        self._clients: list[socket.socket] = []

    def connect(self) -> ssl.SSLSocket:
        """Open a client connection."""
        client = self._context.wrap_socket(self.open_socket(), server_hostname="127.0.0.1")
        self._clients.append(client)
        return client

    def open_socket(self) -> socket.socket:
        """Connect without a handshake."""
        plain = socket.create_connection(self._listening.getsockname(), timeout=PATIENCE_S)
        self._clients.append(plain)
        return plain

    def is_connected(self, client: ssl.SSLSocket) -> bool:
        """Return whether the server's side of a connection is open."""
        return any(
            one.peer == client.getsockname() for one in list(self.guard._connections.values())
        )

    def stop(self) -> float:
        """Stop the server and return the seconds it took."""
        start = time.monotonic()
        self.guard.stop()
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
        return time.monotonic() - start

    def close(self) -> None:
        """Close all clients and the server."""
        for client in self._clients:
            client.close()
        self._server.force_exit = True
        self.stop()
        assert not self._thread.is_alive()
        self._listening.close()


@pytest.fixture
def server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[TlsServer]:
    """A server with short timeouts; the parameter is whether it is behind a proxy."""
    for name in ("HEADER_TIMEOUT_S", "KEEP_ALIVE_S", "READ_TIMEOUT_S", "CHECK_INTERVAL_S"):
        monkeypatch.setattr(overload_guard, name, globals()[name])
    server = TlsServer(tmp_path, behind_proxy=getattr(request, "param", False))
    yield server
    server.close()


def read_response(client: ssl.SSLSocket) -> tuple[int, bytes]:
    """Read the next response: status and body."""
    response = http.client.HTTPResponse(client)
    response.begin()
    return response.status, response.read()


def is_cut_off(client: ssl.SSLSocket, piece: bytes = b"a" * 65_536) -> bool:
    """Send without end, and return whether the server closes the connection in time."""
    end = time.monotonic() + SENDING_S
    while time.monotonic() < end:
        try:
            client.sendall(piece)
        except OSError:
            return True
    return False


def wait_for_end(client: ssl.SSLSocket) -> float:
    """Return the seconds until the server closes the connection."""
    start = time.monotonic()
    try:
        while client.recv(10_000):
            pass
    except TimeoutError:
        raise AssertionError("the connection does not end") from None
    except OSError:
        pass
    return time.monotonic() - start


@pytest.mark.parametrize(
    "begin",
    [
        HEAD + b"X: ",
        HEAD + b"X",
        b"GET /" + b"x" * 100,
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + HEAD + b"X: ",
        CHUNKED + b"1\r\nx\r\n0\r\nX: ",
        b"POST /refuse HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    ],
    ids=["value", "name", "address", "second request", "trailer", "trailer of a refused one"],
)
def test_endless_header_is_cut_off(server: TlsServer, begin: bytes) -> None:
    client = server.connect()
    client.sendall(begin)
    assert is_cut_off(client)
    another = server.connect()
    another.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert read_response(another) == (200, b"0")


def test_endless_headers_are_cut_off(server: TlsServer) -> None:
    client = server.connect()
    client.sendall(HEAD)
    assert is_cut_off(client, b"X: y\r\n" * 10_000)


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
#: Bodies that end elsewhere for a proxy in front that reads the headers differently.
AMBIGUOUS = {
    "length and chunks": b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    % (5 + len(SMUGGLED)),
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n0\r\n\r\n"
    % (5 + len(SMUGGLED)),
    "two lengths": b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(SMUGGLED),
    "unknown coding": b"Transfer-Encoding: xchunked\r\n\r\n",
    "coding behind a space": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "signed length": b"Content-Length: +0\r\n\r\n",
    "signed chunk": b"Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n",
}


@pytest.mark.parametrize("server", [False, True], ids=["h11", "httptools"], indirect=True)
@pytest.mark.parametrize("headers", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_ambiguous_body_smuggles_no_request(server: TlsServer, headers: bytes) -> None:
    client = server.connect()
    client.sendall(HEAD + headers + SMUGGLED)
    received = b""
    with suppress(OSError):
        while part := client.recv(10_000):
            received += part
    assert received.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 ")), received
    assert received.count(b"HTTP/1.1 ") == 1, "the connection ends"


def test_too_large_headers_get_400(server: TlsServer) -> None:
    client = server.connect()
    client.sendall(HEAD + b"X: " + b"a" * (service_process.MAX_HEADER_BYTES - len(HEAD) - 2))
    assert read_response(client)[0] == 400


def test_body_bytes_do_not_count_as_headers(server: TlsServer) -> None:
    client = server.connect()
    large = HEAD + b"X: " + b"a" * 50_000 + b"\r\nContent-Length: 200000\r\n\r\n" + b"b" * 200_000
    for _ in range(2):
        client.sendall(large)
        assert read_response(client) == (200, b"200000")
    # A body in many chunks, followed by a request whose headers arrive in two pieces.
    client.sendall(CHUNKED + b"5\r\nabcde\r\n" * 30_000 + b"0\r\nX: y\r\n\r\n" + HEAD)
    client.sendall(b"Content-Length: 0\r\n\r\n")
    assert read_response(client) == (200, b"150000")
    assert read_response(client) == (200, b"0")


@pytest.mark.parametrize(
    "sent", [b"", HEAD, b"\r\n", HEAD + b"X: y\r\n"], ids=["nothing", "half", "lines", "header"]
)
def test_incomplete_headers_time_out(server: TlsServer, sent: bytes) -> None:
    client = server.connect()
    client.sendall(sent)
    assert wait_for_end(client) < PATIENCE_S / 2


def test_sending_byte_by_byte_does_not_extend_timeout(server: TlsServer) -> None:
    for begin in (HEAD, b"POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n"):
        client = server.connect()
        client.sendall(begin)
        start = time.monotonic()
        with suppress(OSError):
            while time.monotonic() - start < PATIENCE_S:
                client.sendall(b"a")
                time.sleep(0.05)
        assert time.monotonic() - start < PATIENCE_S / 2


def test_slow_body_is_awaited(server: TlsServer) -> None:
    client = server.connect()
    client.sendall(HEAD + b"Content-Length: 4\r\n\r\n")
    for _ in range(4):
        time.sleep(HEADER_TIMEOUT_S / 2)
        client.sendall(b"a")
    assert read_response(client) == (200, b"4")
    # Refused before it was read: the response arrives although the body is still being sent.
    client.sendall(b"POST /refuse HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n")
    time.sleep(HEADER_TIMEOUT_S)
    client.sendall(b"aaaa")
    assert read_response(client) == (403, b"no")
    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert read_response(client) == (200, b"0")


def test_slow_reader_is_cut_off(server: TlsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    client = server.connect()
    client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    deadline = time.monotonic() + PATIENCE_S / 2
    while server.is_connected(client):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    monkeypatch.setattr(overload_guard, "READ_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(overload_guard, "HEADER_TIMEOUT_S", PATIENCE_S)
    reading = server.connect()
    reading.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    assert len(read_response(reading)[1]) == 20_000_000


def test_connections_of_one_address_are_limited(
    server: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.guard, "_limits", ClientLimits(connections_per_address=3))
    monkeypatch.setattr(overload_guard, "HEADER_TIMEOUT_S", PATIENCE_S)
    for _ in range(3):
        server.connect()
    with pytest.raises(
        (ssl.SSLError, ConnectionError)
    ):  # before the handshake, which costs more than a response
        server.connect()


def test_unfinished_handshakes_count_and_end(
    server: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.guard, "_limits", ClientLimits(connections_per_address=3))
    monkeypatch.setattr(overload_guard, "HANDSHAKE_TIMEOUT_S", HEADER_TIMEOUT_S)
    waiting = [server.open_socket() for _ in range(3)]
    with pytest.raises((ssl.SSLError, ConnectionError)):
        server.connect()
    for one in waiting:
        assert one.recv(1) == b""
    client = server.connect()
    client.sendall(HEAD + b"Content-Length: 4\r\n\r\naaaa")
    assert read_response(client) == (200, b"4")


def test_oldest_handshake_gives_way(server: TlsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.guard, "_limits", ClientLimits(connections=2))
    oldest, second = server.open_socket(), server.open_socket()
    client = server.connect()
    assert oldest.recv(1) == b""
    client.sendall(HEAD + b"Content-Length: 4\r\n\r\naaaa")
    assert read_response(client) == (200, b"4")
    second.setblocking(False)
    with pytest.raises(BlockingIOError):
        second.recv(1)


def test_oldest_idle_connection_gives_way(
    server: TlsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.guard, "_limits", ClientLimits(connections=2))
    monkeypatch.setattr(overload_guard, "HEADER_TIMEOUT_S", PATIENCE_S)
    oldest, second, newest = (server.connect() for _ in range(3))
    wait_for_end(oldest)
    for client in (second, newest):
        client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert read_response(client) == (200, b"0")


def test_stop_closes_idle_connections(server: TlsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overload_guard, "HEADER_TIMEOUT_S", 2 * PATIENCE_S)
    for sent in (b"", HEAD, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"nonsense\r\n\r\n"):
        server.connect().sendall(sent)
    socket.create_connection(server._listening.getsockname()).close()
    busy = server.connect()
    busy.sendall(HEAD + b"Content-Length: 4\r\n\r\n")
    time.sleep(0.2)
    threading.Timer(0.3, busy.sendall, (b"aaaa",)).start()
    assert server.stop() < PATIENCE_S / 2
    assert read_response(busy) == (200, b"4"), "a request in progress is finished"
