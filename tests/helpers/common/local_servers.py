"""Servers on this machine for tests, also with short queues, and HTTP doors that break the rules."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope
from captured_runs import run_captured
from machine_requirements import skip_or_fail


def make_authority(folder: Path) -> Path:
    """Write a certificate of 127.0.0.1, with its key, to a grid-style folder of authorities."""
    if not shutil.which("openssl"):
        skip_or_fail("openssl is not installed")
    file = folder / "host.pem"
    key = ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    subject = ("-subj", "/CN=storage", "-addext", "subjectAltName=IP:127.0.0.1")
    for command in (
        ("req", "-x509", "-newkey", *key, "-nodes", "-days", "2", *subject),
        ("x509", "-in", str(file), "-noout", "-hash"),
    ):
        out = ("-keyout", str(file), "-out", str(file)) if command[0] == "req" else ()
        done = run_captured(["openssl", *command, *out], check=True)
    (folder / f"{done.stdout.strip()}.0").symlink_to(file)
    return file


@contextmanager
def serve_http(
    handler: type[BaseHTTPRequestHandler] = SimpleHTTPRequestHandler,
    folder: Path | None = None,
    certificate: Path | None = None,
) -> Iterator[int]:
    """Answer requests in a thread, without a log; yield the port.

    Args:
        handler: handler of requests.
        folder: folder of a handler that serves files.
        certificate: file of certificate and key, to serve over TLS.
    """
    quiet: type = type("Quiet", (handler,), {"log_message": lambda *_: None})
    answer = partial(quiet, directory=str(folder)) if folder else quiet
    with ThreadingHTTPServer(("127.0.0.1", 0), answer) as server:
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def send_answer(
    handler: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str
) -> None:
    """Send a complete answer, without its body to HEAD; ``_`` in the name of a header is a hyphen."""
    stated = {name.replace("_", "-"): value for name, value in headers.items()}
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **stated}.items():
        handler.send_header(name, value)
    with suppress(ConnectionError):
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)


def drip(connection: socket.socket) -> None:
    """Answer with a byte now and then, of a line that never ends."""
    with suppress(OSError):
        connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            connection.sendall(b"2")
            time.sleep(0.05)


@contextmanager
def serve_tcp(
    answer: Callable[[socket.socket], None] | None = None, backlog: int | None = None
) -> Iterator[int]:
    """Accept connections and answer one after the other, or stay silent; yield the port."""
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as server:
        silent = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                if answer is None:
                    silent.append(connection)
                    continue
                with connection, suppress(OSError):
                    connection.settimeout(60)
                    answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in silent:
            connection.close()


class MailSink:
    """Mailboxes of an SMTP server."""

    def __init__(self) -> None:
        self.mails: list[Envelope] = []

    async def handle_DATA(  # noqa: N802 - name given by aiosmtpd
        self, _server: Any, _session: Any, envelope: Envelope
    ) -> str:
        self.mails.append(envelope)
        return "250 accepted"


@contextmanager
def serve_mail(sink: MailSink, **options: Any) -> Iterator[int]:
    """Accept mail; yield the port.

    Args:
        sink: keeps the mails.
        options: of aiosmtpd's controller.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    controller = Controller(sink, hostname="127.0.0.1", port=port, **options)
    controller.start()
    try:
        yield port
    finally:
        controller.stop()


def parse_mails(sink: MailSink) -> list[EmailMessage]:
    """Parse the received mails."""
    mails = (mail.content for mail in sink.mails)
    return [message_from_bytes(mail, policy=default) for mail in mails if isinstance(mail, bytes)]


CONTENT = bytes(os.urandom(1 << 14))
SIZE = len(CONTENT)


class LyingDoor(BaseHTTPRequestHandler):
    """A door with one file; the first folder of a path selects the misbehavior."""

    protocol_version = "HTTP/1.1"

    answer = send_answer

    def do_HEAD(self) -> None:
        kind = self.path.split("/")[1]
        if kind == "moved":
            self.answer(307, b"", Location="/here/f")
        elif kind == "digest":
            self.answer(200, CONTENT, digest="ADLER32=1A2B3C,SHA-256=" + "ab" * 32)
        elif kind == "repr":
            self.answer(200, CONTENT, REPR_DIGEST="adler=:ABorPA==:")
        elif kind == "lengthless":
            self.answer(200, CONTENT, Content_Length="", Transfer_Encoding="chunked")
        elif kind == "circle":
            self.answer(302, b"", Location=self.path)
        else:
            self.answer(200, CONTENT)

    def do_GET(self) -> None:  # noqa: PLR0912
        kind = self.path.split("/")[1]
        asked = self.headers["Range"]
        first, last = map(int, asked.removeprefix("bytes=").split("-")) if asked else (0, SIZE - 1)
        body, stated = CONTENT[first : last + 1], f"bytes {first}-{last}/{SIZE}"
        size = last - first + 1
        match kind:
            case "gone" | "leaving":  # closes without notice, before or at the end of its answer
                self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
                self.close_connection = True
                if kind == "gone":
                    return None
            case "circle" | "endless":
                return self.answer(302, b"", Location=self.path + "x" * (kind == "endless"))
            case "elsewhere" | "brackets":
                target = "file:///etc/passwd" if kind == "elsewhere" else "http://[::1/f"
                return self.answer(302, b"", Location=target)
            case "compressed":
                return self.answer(200, body, Content_Encoding="gzip")
            case "closed":
                return self.answer(302, b"", Location="http://u:secret@127.0.0.1:9/f")
            case "empty" | "no-range-of-empty":
                return self.answer(200 if kind == "empty" else 416, b"", Content_Range="bytes */0")
            case "first":  # whatever was asked for
                body, stated = CONTENT[:size], f"bytes 0-{size - 1}/{SIZE}"
            case "other":  # the right range by the header only
                body = CONTENT[:size]
            case "star":
                stated = f"bytes {first}-{last}/*"
            case "total":
                stated = f"bytes {first}-{last + 1}/{size}"
            case "unstated":
                return self.answer(206, body)
            case "units":
                stated = f"lines {first}-{last}/{SIZE}"
            case "parts":
                return self.answer(206, body, Content_Type="multipart/byteranges; boundary=x")
            case "cut" | "unframed":
                return self.cut(str(SIZE) if kind == "cut" else "")
            case "partial":
                return self.answer(206, CONTENT[:10], Content_Range=f"bytes 0-9/{SIZE}")
            case "drip-body":
                return self.drip(body, f"bytes {first}-{last}/{SIZE}")
            case "drip":
                return self.drip(body)
            case "slow-headers":
                return self.drip(b"HTTP/1.1 200 OK\r\nX-Filler: " + bytes(1000))
            case "infinite":
                return self.pour()
        status = 206 if asked else 200
        return self.answer(status, body, **({"Content_Range": stated} if asked else {}))

    def cut(self, length: str) -> None:
        self.send_response(200)
        if length:
            self.send_header("Content-Length", length)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(CONTENT[: SIZE // 2])
        self.close_connection = True

    def drip(self, body: bytes, stated: str = "") -> None:
        if not body.startswith(b"HTTP"):
            self.send_response(206 if stated else 200)
            if stated:
                self.send_header("Content-Range", stated)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
        with suppress(ConnectionError):
            for byte in body[:600]:
                self.wfile.write(bytes([byte]))
                time.sleep(0.05)

    def pour(self) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(ConnectionError):
            while True:
                self.wfile.write(CONTENT * 64)


class Pool(BaseHTTPRequestHandler):
    """A pool that notes the tokens that it gets."""

    requests: list[tuple[str, str | None]] = []

    def handle_request(self) -> None:
        self.requests.append((self.command, self.headers["Authorization"]))
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        asked = self.headers["Range"]
        if asked:
            first, last = map(int, asked.removeprefix("bytes=").split("-"))
            stated = f"bytes {first}-{last}/{SIZE}"
            send_answer(self, 206, CONTENT[first : last + 1], Content_Range=stated)
        elif self.command in ("GET", "HEAD"):
            send_answer(self, 200, CONTENT)
        else:
            send_answer(self, 201 if self.command == "PUT" else 200)

    do_GET = do_HEAD = do_PUT = do_DELETE = do_PROPFIND = handle_request  # noqa: N815


class Redirector(Pool):
    """A door that redirects every request to ``target``, without reading it."""

    requests: list[tuple[str, str | None]] = []
    target = ""

    def handle_request(self) -> None:
        self.requests.append((self.command, self.headers["Authorization"]))
        send_answer(self, 307, Location=self.target + self.path, Connection="close")

    do_GET = do_HEAD = do_PUT = do_DELETE = do_PROPFIND = handle_request  # noqa: N815


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["http", "https"])
def door(
    request: pytest.FixtureRequest, authority: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """A door over https that redirects to a pool on another port."""
    (tmp_path / "token").write_text("secret\n")
    monkeypatch.setenv("X509_CERT_DIR", str(authority.parent))
    monkeypatch.setenv("BEARER_TOKEN_FILE", str(tmp_path / "token"))
    Pool.requests.clear()
    Redirector.requests.clear()
    certificate = authority if request.param == "https" else None
    with (
        serve_http(Pool, certificate=certificate) as pool,
        serve_http(Redirector, certificate=authority) as port,
    ):
        Redirector.target = f"{request.param}://127.0.0.1:{pool}"
        yield f"https://127.0.0.1:{port}/f"
    assert {token for _, token in Redirector.requests} <= {"Bearer secret"}
    assert {token for _, token in Pool.requests} <= {None}
