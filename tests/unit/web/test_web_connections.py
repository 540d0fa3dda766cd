"""Connections before anybody has shown a token, over TLS: what they may take, and how long they last."""

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
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from treehammer.testbed.install.certificate_authority import CertificateAuthority
from treehammer.web.service import http_connection

#: What stands for the service's seconds, and more than what anything of it may take.
HEADER_TIMEOUT_S, REFUSED_BODY_TIMEOUT_S, CLOSE_TIMEOUT_S, PATIENCE_S = 0.4, 0.8, 0.1, 10.0
#: Bytes that nobody sends before a refusal has become the end of the connection.
MOST = 320_000_000

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"

Connect = Callable[[], ssl.SSLSocket]


async def _answer(request: Request) -> Response:
    """Read the body, unless told to refuse."""
    if "refuse" in request.url.path:
        return PlainTextResponse("no", 403)
    return PlainTextResponse(str(len(await request.body())))


class Stage:
    """A server, and what connects to it."""

    def __init__(self, folder: Path) -> None:
        authority = CertificateAuthority(folder)
        self._context = ssl.create_default_context(cafile=str(authority.ca))
        routes = [Route("/{path:path}", _answer, methods=["GET", "POST"])]
        config = uvicorn.Config(
            Starlette(routes=routes),
            http=http_connection.BoundedHttpProtocol,
            log_config=None,
            ws="none",
        )
        config.load()
        config.ssl = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        config.ssl.load_cert_chain(*authority.issue_server_certificate())
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._listening],))
        self._thread.start()
        self._clients: list[ssl.SSLSocket] = []

    def connect(self) -> ssl.SSLSocket:
        """A client."""
        plain = socket.create_connection(self._listening.getsockname(), timeout=PATIENCE_S)
        client = self._context.wrap_socket(plain, server_hostname="127.0.0.1")
        self._clients.append(client)
        return client

    def stop(self) -> float:
        """Ask it to end; the seconds that it takes."""
        start = time.monotonic()
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
        return time.monotonic() - start

    def close(self) -> None:
        """End everything."""
        for client in self._clients:
            client.close()
        self._server.force_exit = True
        self.stop()
        assert not self._thread.is_alive()
        self._listening.close()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    for name in ("HEADER_TIMEOUT_S", "REFUSED_BODY_TIMEOUT_S", "CLOSE_TIMEOUT_S"):
        monkeypatch.setattr(http_connection, name, globals()[name])
    made = Stage(tmp_path)
    yield made
    made.close()


def answer(client: ssl.SSLSocket) -> tuple[int, bytes]:
    """The next answer: status and body."""
    told = http.client.HTTPResponse(client)
    told.begin()
    return told.status, told.read()


def pour(client: ssl.SSLSocket, piece: bytes = b"a" * 65_536) -> int:
    """Send until the other side has enough: how much it took."""
    sent = 0
    while sent < MOST:
        try:
            client.sendall(piece)
        except OSError:
            break
        sent += len(piece)
    return sent


def ends(client: ssl.SSLSocket) -> float:
    """The seconds until the other side ends the connection."""
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
        b"POST /refuse HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    ],
    ids=["value", "name", "address", "second request", "trailer", "trailer of a refused one"],
)
def test_headers_without_end_are_cut(stage: Stage, begin: bytes) -> None:
    client = stage.connect()
    client.sendall(begin)
    assert pour(client) < MOST
    another = stage.connect()
    another.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer(another) == (200, b"0")


def test_many_headers_are_cut(stage: Stage) -> None:
    client = stage.connect()
    client.sendall(HEAD)
    assert pour(client, b"X: y\r\n" * 10_000) < MOST


def test_too_much_is_told(stage: Stage) -> None:
    client = stage.connect()
    client.sendall(HEAD + b"X: " + b"a" * (http_connection.MAX_HEADER_BYTES - len(HEAD) - 3))
    assert answer(client) == (431, b'{"error": "the headers are larger than 65536 bytes"}')


def test_the_rest_of_a_piece_is_no_header(stage: Stage) -> None:
    client = stage.connect()
    large = HEAD + b"X: " + b"a" * 50_000 + b"\r\nContent-Length: 200000\r\n\r\n" + b"b" * 200_000
    for _ in range(2):
        client.sendall(large)
        assert answer(client) == (200, b"200000")
    # A body in many chunks, and another request right behind it, whose headers come in two pieces.
    client.sendall(CHUNKED + b"5\r\nabcde\r\n" * 30_000 + b"0\r\nX: y\r\n\r\n" + HEAD)
    client.sendall(b"Content-Length: 0\r\n\r\n")
    assert answer(client) == (200, b"150000")
    assert answer(client) == (200, b"0")


@pytest.mark.parametrize(
    "sent", [b"", HEAD, b"\r\n", HEAD + b"X: y\r\n"], ids=["nothing", "half", "lines", "header"]
)
def test_who_keeps_the_service_waiting_is_sent_away(stage: Stage, sent: bytes) -> None:
    client = stage.connect()
    client.sendall(sent)
    assert ends(client) < PATIENCE_S / 2


def test_byte_by_byte_is_no_help(stage: Stage) -> None:
    for begin in (HEAD, b"POST /refuse HTTP/1.1\r\nContent-Length: 10000\r\n\r\n"):
        client = stage.connect()
        client.sendall(begin)
        start = time.monotonic()
        with suppress(OSError):
            while time.monotonic() - start < PATIENCE_S:
                client.sendall(b"a")
                time.sleep(0.05)
        assert time.monotonic() - start < PATIENCE_S / 2


def test_who_is_slow_with_a_body_is_waited_for(stage: Stage) -> None:
    client = stage.connect()
    client.sendall(HEAD + b"Content-Length: 4\r\n\r\n")
    for _ in range(4):
        time.sleep(HEADER_TIMEOUT_S / 2)
        client.sendall(b"a")
    assert answer(client) == (200, b"4")
    # Refused before it was read: what is still on its way does not cost the answer.
    client.sendall(b"POST /refuse HTTP/1.1\r\nContent-Length: 4\r\n\r\n")
    time.sleep(HEADER_TIMEOUT_S)
    client.sendall(b"aaaa")
    assert answer(client) == (403, b"no")
    client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer(client) == (200, b"0")


def test_stopping_waits_for_nobody_who_asks_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "HEADER_TIMEOUT_S", 2 * PATIENCE_S)
    for sent in (b"", HEAD, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"nonsense\r\n\r\n"):
        stage.connect().sendall(sent)
    socket.create_connection(stage._listening.getsockname()).close()
    busy = stage.connect()
    busy.sendall(HEAD + b"Content-Length: 4\r\n\r\n")
    time.sleep(0.2)
    threading.Timer(0.3, busy.sendall, (b"aaaa",)).start()
    assert stage.stop() < 3
    assert answer(busy) == (200, b"4"), "what was under way is finished"
