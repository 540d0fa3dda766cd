"""Tests of the service's process: addresses, systemd, memory, TLS and limits of connections."""

from __future__ import annotations

import asyncio
import http.client
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from service_thread import run_service
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from treehammer import config
from treehammer.errors import ConfigError
from treehammer.program_output import SystemdNotifier
from treehammer.testbed.credentials import CertificateAuthority
from treehammer.web.core.request_limits import ClientLimits
from treehammer.web.core.responses import AsciiJSONResponse, RequestRefusedError
from treehammer.web.service import overload_guard, service_process
from treehammer.web.service.overload_guard import RequestGuard
from treehammer.web.service.service_process import (
    ListenAddress,
    ServerCertificate,
)


def parse_address(folder: Path, **flags: Any) -> ListenAddress:
    settings = config.load_settings({"data_dir": folder}, environ={}, folder=folder)
    return ListenAddress.from_settings(
        config.apply_flags(settings, {f"serve_{k}": v for k, v in flags.items()})
    )


def test_plain_http_requires_loopback_or_proxy(tmp_path: Path) -> None:
    assert parse_address(tmp_path).url == "http://127.0.0.1:8443"
    assert parse_address(tmp_path, host="::1", port=80).url == "http://[::1]:80"
    assert parse_address(tmp_path, host="0.0.0.0", behind_proxy=True).url == "http://0.0.0.0:8443"
    certificate, key = CertificateAuthority(tmp_path).issue_server_certificate()
    encrypted = parse_address(
        tmp_path, host="0.0.0.0", certificate=certificate, certificate_key=key
    )
    assert encrypted.url == "https://0.0.0.0:8443"


def test_invalid_settings_are_named(tmp_path: Path) -> None:
    certificate, key = CertificateAuthority(tmp_path / "one").issue_server_certificate()
    other = CertificateAuthority(tmp_path / "other").issue_server_certificate()[1]
    locked, empty = tmp_path / "locked.pem", tmp_path / "empty.pem"
    empty.touch()
    subprocess.run(
        ["openssl", "pkey", "-in", str(key), "-aes128", "-passout", "pass:x", "-out", str(locked)],
        check=True,
    )
    cases: list[tuple[dict[str, Any], str]] = [
        ({"host": "0.0.0.0"}, "without a certificate, tokens would travel unencrypted to 0.0.0.0"),
        ({"certificate": certificate}, "serve_certificate_key is missing"),
        ({"certificate_key": key}, "serve_certificate is missing"),
        ({"certificate": certificate, "certificate_key": other}, "does not match the certificate"),
        ({"certificate": empty, "certificate_key": key}, "OpenSSL cannot read"),
        ({"certificate": "nowhere", "certificate_key": key}, "cannot be read (No such file"),
        ({"certificate": certificate, "certificate_key": locked}, "has a passphrase"),
        (
            {"behind_proxy": True, "certificate": certificate, "certificate_key": key},
            "mutually exclusive",
        ),
    ]
    for flags, message in cases:
        with pytest.raises(ConfigError) as caught:
            parse_address(tmp_path, **flags)
        assert message in str(caught.value)


def test_unavailable_address_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1, port {port}"):
            parse_address(tmp_path, port=port).open_socket()
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        parse_address(tmp_path, host="192.0.2.1", behind_proxy=True).open_socket()


DEPLOYMENT = Path(__file__).parents[3] / "web" / "deployment"
#: Shipped unit -> name of the unit or of an instance.
UNITS = {
    "treehammer@.service": "treehammer@8443.service",
    "treehammer-patrol.service": "treehammer-patrol.service",
}


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(30)
        yield receiver


def receive(listening: socket.socket) -> list[str]:
    return listening.recv(4096).decode().split("\n")


def test_notifier_reports_to_watchdog_while_alive(listening: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": listening.getsockname(), "WATCHDOG_USEC": "30000"}
    notifier = SystemdNotifier.from_environment(environ)
    alive, failure = True, ""

    async def report() -> list[list[str]]:
        nonlocal alive, failure
        task = asyncio.create_task(notifier.report_forever(lambda: alive, lambda: failure))
        first = await asyncio.to_thread(receive, listening)
        failure = "the disk\nis full"
        while (second := await asyncio.to_thread(receive, listening)) == first:
            pass
        alive = False
        # More than one period later nothing but messages sent before has come.
        await asyncio.sleep(0.1)
        listening.setblocking(False)
        with suppress(BlockingIOError):
            while listening.recv(4096):
                pass
        await asyncio.sleep(0.1)
        with pytest.raises(BlockingIOError):
            listening.recv(4096)
        task.cancel()
        return [first, second]

    first, second = asyncio.run(report())
    assert first == ["WATCHDOG=1", "STATUS=accepting measurements"]
    assert second == ["WATCHDOG=1", "STATUS=the disk is full"]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NOTIFY_SOCKET": "/nonexistent/notify"},
        {"NOTIFY_SOCKET": "/nonexistent/notify", "WATCHDOG_USEC": "x"},
        {"NOTIFY_SOCKET": "@treehammer-nobody-listens"},
    ],
)
def test_notifier_without_receiver_does_nothing(environ: dict[str, str]) -> None:
    SystemdNotifier.from_environment(environ).notify("READY=1")


def test_notifier_reports_three_times_per_watchdog_period() -> None:
    mine, foreign = str(os.getpid()), "1"
    for pid, usec, expected in ((mine, "9000000", 3.0), (mine, "30000000", 5.0), (foreign, "9", 5)):
        environ = {"WATCHDOG_USEC": usec, "WATCHDOG_PID": pid}
        notifier = SystemdNotifier.from_environment(environ)
        assert notifier._interval_s == pytest.approx(expected)


def test_service_reports_its_status(
    listening: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", listening.getsockname())
    with run_service(tmp_path):
        assert receive(listening) == ["WATCHDOG=1", "STATUS=accepting measurements"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("shipped, name", UNITS.items())
def test_unit_is_accepted_and_confined(shipped: str, name: str, tmp_path: Path) -> None:
    program = tmp_path / "treehammer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / name
    text = (DEPLOYMENT / shipped).read_text()
    unit.write_text(text.replace("/opt/treehammer/bin/treehammer", str(program)))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    complaints = [line for line in verified.stderr.splitlines() if unit.stem in line]
    assert (verified.returncode, complaints) == (0, [])
    # The level is in tenths of a point from 0, fully confined, to 10.
    confined = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=15", unit],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert confined.returncode == 0, confined.stdout[-300:] + confined.stderr


def fetch_serial_number(certificate: ServerCertificate, ca: Path) -> int:
    """Return the serial number of the certificate that a client receives."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            certificate.context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=answer)
        thread.start()
        context = ssl.create_default_context(cafile=str(ca))
        with (
            socket.create_connection(listening.getsockname()) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as speaking,
        ):
            shown = speaking.getpeercert() or {}
        thread.join()
        return int(str(shown["serialNumber"]), 16)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_versions_of_tls_are_refused(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    certificate = ServerCertificate(*authority.issue_server_certificate())
    # Otherwise the security level of this OpenSSL would refuse them as well.
    certificate.context.set_ciphers("ALL:@SECLEVEL=0")
    for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
        assert shake_hands(certificate, authority.ca, version) == name
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
            shake_hands(certificate, authority.ca, version)


def shake_hands(certificate: ServerCertificate, ca: Path, version: ssl.TLSVersion) -> str | None:
    """Shake hands in memory with a client that speaks one version; return the agreed one."""
    context = ssl.create_default_context(cafile=str(ca))
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(down, up, server_hostname="127.0.0.1")
    server = certificate.context.wrap_bio(up, down, server_side=True)
    for _ in range(3):
        for side in (client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return client.version()


def advance_modification_time(*files: Path) -> None:
    for file in files:
        times = file.stat()
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns + 10**9))


def test_reload_uses_renewed_certificate_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = CertificateAuthority(tmp_path)
    files = authority.issue_server_certificate()
    certificate = ServerCertificate(*files)
    first = fetch_serial_number(certificate, authority.ca)
    assert not certificate.reload_if_changed()
    authority.issue_server_certificate()
    advance_modification_time(*files)
    assert certificate.reload_if_changed()
    second = fetch_serial_number(certificate, authority.ca)
    assert second != first
    kept = files[1].read_bytes()
    files[1].write_text("half")
    assert not certificate.reload_if_changed()
    assert "is not used" in caplog.text
    assert fetch_serial_number(certificate, authority.ca) == second
    files[1].unlink()
    assert not certificate.reload_if_changed()
    files[1].write_bytes(kept)
    assert certificate.reload_if_changed()
    assert fetch_serial_number(certificate, authority.ca) == second


def test_certificate_error_names_file(tmp_path: Path) -> None:
    certificate, key = CertificateAuthority(tmp_path).issue_server_certificate()
    with pytest.raises(ConfigError, match=r"serve_certificate .*none\.pem: cannot be read"):
        ServerCertificate(tmp_path / "none.pem", key)
    with pytest.raises(ConfigError, match="does not match the certificate"):
        ServerCertificate(
            certificate, CertificateAuthority(tmp_path / "other").issue_server_certificate()[1]
        )


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
