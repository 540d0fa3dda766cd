"""Attacks that try to keep a running service from serving others, or from ending."""

from __future__ import annotations

import gzip
import resource
import socket
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

from client_attacks import OPEN_SIGN_IN, attack, fill_host, join_statuses
from polling import wait_until
from proxied_service import PATIENCE_S, VICTIM, ProxiedService, mint_token
from service_thread import make_body, make_sent_measurement

from treehammer.collectors.job_spec import STARTS_PATH

SERVED = "others are served"
MANY = 512

# --- starvation

HALF_SENT_HEADERS = b"GET / HTTP/1.1\r\nHost: HOST\r\nX: "
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01"
START = {"barrier": "b", "jobs": 2, "wait_s": 60, "lead_s": 1, "waited_s": 0}


class SlowClients:
    """Clients that send a part and wait, in the background while other attacks go on."""

    def __init__(self, service: ProxiedService) -> None:
        self._pool = ThreadPoolExecutor(5)
        self.memory = self._pool.submit(fill_memory, service)
        self._ends = {
            "body": self._pool.submit(self._wait, service, OPEN_SIGN_IN),
            "upload": self._pool.submit(self._wait, service, OPEN_SIGN_IN.replace(b"/sign-in", b"/api/v1/measurements")),
            "headers": self._pool.submit(self._wait, service, HALF_SENT_HEADERS),
            "handshake": self._pool.submit(self._wait, service, HALF_A_HELLO, with_tls=False),
        }  # fmt: skip

    def _wait(self, service: ProxiedService, sent: bytes, *, with_tls: bool = True) -> float:
        connection = service.connect("127.0.0.4") if with_tls else service.open_socket("127.0.0.4")
        start_s = time.monotonic()
        with connection, suppress(ConnectionError):
            connection.sendall(fill_host(service, sent))
            while connection.recv(10_000):
                pass
        return time.monotonic() - start_s

    def describe(self, *names: str) -> str:
        """Describe after how many seconds, in tens, the connections were closed."""
        tens = {10 * round(self._ends[name].result() / 10) for name in names}
        return f"closed after {' or '.join(f'{seconds} s' for seconds in sorted(tens))}"


SLOW_CLIENTS: dict[str, SlowClients] = {}


def open_many(
    service: ProxiedService, stack: ExitStack, sent: bytes, *, tls: bool
) -> list[socket.socket]:
    """Open many connections that send a part of a request; those that fail are left out."""
    opened: list[socket.socket] = []
    for _ in range(MANY):
        with suppress(OSError):
            connection = stack.enter_context(service.connect() if tls else service.open_socket())
            connection.sendall(fill_host(service, sent))
            opened.append(connection)
    return opened


@attack("512 open `POST /sign-in` without a token, half-sent headers or silent connections")
def open_many_requests(service: ProxiedService) -> str:
    refused = 0
    for sent in (OPEN_SIGN_IN, HALF_SENT_HEADERS, b""):
        with ExitStack() as stack:
            opened = open_many(service, stack, sent, tls=True)
            assert len(opened) == MANY
            service.require_service()
            for connection in opened:
                connection.setblocking(False)
                with suppress(OSError):
                    refused += b" 429 " in connection.recv(1000)
    return f"429 to some; {SERVED}" if refused else SERVED


@attack("4,800 unfinished handshakes from 20 addresses")
def open_from_many_addresses(service: ProxiedService) -> str:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        for number in range(4800):
            source = f"127.0.1.{number % 20 + 1}"
            stack.enter_context(service.open_socket(source)).sendall(HALF_A_HELLO)
        service.require_service()
    return SERVED


@attack("512 TLS handshakes that are never finished")
def open_many_handshakes(service: ProxiedService) -> str:
    for sent in (b"", HALF_A_HELLO):
        with ExitStack() as stack:
            assert len(open_many(service, stack, sent, tls=False)) == MANY
            service.require_service()
    return f"{SERVED}; {SLOW_CLIENTS[service.proxy].describe('handshake')}"


@attack("a body that never ends, on any path")
def send_endless_bodies(service: ProxiedService) -> str:
    return SLOW_CLIENTS[service.proxy].describe("body", "upload")


@attack("headers that end late or never")
def send_endless_headers(service: ProxiedService) -> str:
    received = b""
    with service.connect() as connection, suppress(OSError):
        connection.sendall(fill_host(service, HALF_SENT_HEADERS))
        for _ in range(100):
            connection.sendall(b"a" * 10_000)
        received = connection.recv(1000)
    status = received.split(b" ", 2)[1].decode() if received else "a reset"
    return f"{SLOW_CLIENTS[service.proxy].describe('headers')}; {status} at 64 kB"


@attack("endless headers of a user of the service's machine, to the service itself")
def send_endless_headers_locally(service: ProxiedService) -> str:
    before = service.measure_memory()
    received = b""
    with socket.create_connection(("127.0.0.1", service.settings.serve_port)) as connection:
        connection.settimeout(PATIENCE_S)
        with suppress(ConnectionError):
            connection.sendall(fill_host(service, HALF_SENT_HEADERS))
            for _ in range(100):
                connection.sendall(b"a" * 1_000_000)
        with suppress(ConnectionError):
            received = connection.recv(1000)
    assert service.measure_memory() - before < 20_000_000
    return f"{received.split(b' ', 2)[1].decode() if received else 'closed'} at 64 kB"


@attack("155 kB of gzip data with one job's token")
def await_memory(service: ProxiedService) -> str:
    return SLOW_CLIENTS[service.proxy].memory.result()


def fill_memory(service: ProxiedService) -> str:
    """Send bodies that lack their last byte."""
    token = mint_token(service.make_key("mallory"), "memory", "memory-job")
    bomb = gzip.compress(b" " * 31_000_000) * 1
    request = (
        f"POST /api/v1/measurements HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\nContent-Encoding: gzip\r\n"
        f"Content-Length: {len(bomb) + 1}\r\n\r\n"
    )
    with ExitStack() as stack:
        opened = [stack.enter_context(service.connect()) for _ in range(5)]
        for connection in opened:
            connection.sendall(fill_host(service, request.encode()) + bomb)
        received = []
        for connection in opened:
            with suppress(ConnectionError):
                received.append(connection.recv(1000).partition(b"\r\n")[0])
        alice = service.make_key("alice").text
        hers = make_sent_measurement("hers", campaign_id="memory-hers")
        # As jobs do, she sends again what a busy service refuses.
        wait_until(
            lambda: service.send(alice, hers).is_success,
            "the service accepts her measurement",
            timeout_s=20,
        )
    refused = sum(b" 429 " in answer for answer in received)
    if refused:
        return f"429 to {refused} of {len(opened)} bodies; {SERVED}"
    return f"{SERVED}; nothing reaches the service"


@attack("uploads without pause with one job's token")
def upload_without_pause(service: ProxiedService) -> str:
    mallory = service.make_key("mallory")
    token = mint_token(mallory, "pause", "pause-job")
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    refused, sent, start_s = False, 0, time.monotonic()
    with service.make_client() as client:
        # Until more were sent than nginx permits in this time.
        while not refused and sent - 30 * (time.monotonic() - start_s) < 320:
            assert time.monotonic() - start_s < PATIENCE_S, "this machine is too slow"
            answer = client.post("/api/v1/measurements", json=make_body([]), headers=headers)
            refused, sent = answer.status_code == 429, sent + 1
    assert service.send(mallory.text).is_success, "one job does not use up the key"
    service.require_service()
    return f"{'429' if refused else 'accepted'}; {SERVED}"


@attack("requests without pause from one address")
def request_without_pause(service: ProxiedService) -> str:
    get = f"GET /api/v1/live HTTP/1.1\r\nHost: {service.host}\r\n\r\n".encode() * 100
    refused, sent, start_s = False, 0, time.monotonic()
    with ExitStack() as stack:
        connections = [stack.enter_context(service.connect("127.0.0.5")) for _ in range(10)]
        # Until more were sent than nginx permits in this time.
        while not refused and sent - 300 * (time.monotonic() - start_s) < 3500:
            assert time.monotonic() - start_s < PATIENCE_S, "this machine is too slow"
            sent += 100 * len(connections)
            for connection in connections:
                connection.sendall(get)
            for connection in connections:
                stream = connection.makefile("rb")
                for _ in range(100):
                    refused |= read_status(stream) == 429
    service.require_service()
    return f"{'429' if refused else 'accepted'}; {SERVED}"


def read_status(stream: Any) -> int:
    """Read one of several answers on a connection."""
    status = int(stream.readline().split()[1])
    length = 0
    while (line := stream.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    stream.read(length)
    return status


@attack("common starts without pause with one job's token")
def open_many_starts(service: ProxiedService) -> str:
    token = mint_token(service.make_key("mallory"), "starts", "starts-job")
    statuses = [
        service.post({**START, "barrier": f"b{n}"}, token, STARTS_PATH).status_code
        for n in range(60)
    ]
    assert set(statuses) == {200, 429}
    return f"429 above {statuses.count(200)}"


@attack("200,000 extras in one request")
def send_many_extras(service: ProxiedService) -> str:
    key = service.make_key("mallory").text
    document = make_body([make_sent_measurement("extras", campaign_id="extras")])
    document["measurements"][0]["extras"] = {f"e{n}": 1.0 for n in range(200_000)}
    extras = {f"e{n}": 1.0 for n in range(256)}
    many = [
        make_sent_measurement(position=p, campaign_id="extras", extras=extras)
        for p in range(1, 501)
    ]
    alone, together = service.post(document, key), service.send(key, *many)
    service.require_service()
    return f"{join_statuses(alone)} above 256, {join_statuses(together)} above 10,000 in a request"


@contextmanager
def endless_query(service: ProxiedService) -> Iterator[None]:
    """Replace the table of campaigns by a view whose rows never end."""
    with closing(sqlite3.connect(service.database.removeprefix("sqlite:///"))) as connection:
        connection.execute("PRAGMA legacy_alter_table=ON")
        connection.execute("ALTER TABLE campaign RENAME TO renamed")
        connection.execute(
            "CREATE VIEW campaign AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
            "SELECT renamed.* FROM c LEFT JOIN renamed WHERE c.x < 0"
        )
        connection.commit()
        try:
            yield
        finally:
            connection.execute("DROP VIEW campaign")
            connection.execute("ALTER TABLE renamed RENAME TO campaign")
            connection.commit()


@attack("a page whose query never ends")
def query_without_end(service: ProxiedService) -> str:
    reader = service.make_key("reader", "read").text
    with endless_query(service):
        answer = service.get("/campaigns?format=json", Authorization=f"Bearer {reader}")
    assert "took longer than 3 s" in answer.json()["error"]
    return f"{answer.status_code} after `serve_query_seconds`"


@attack("twelve readers who ask for it and leave")
def leave_queries(service: ProxiedService) -> str:
    reader = service.make_key("reader", "read").text
    request = f"GET /campaigns?format=json HTTP/1.1\r\nHost: {service.host}\r\nAuthorization: Bearer {reader}\r\n\r\n"
    with endless_query(service):
        for _ in range(12):
            with service.connect() as connection:
                connection.sendall(request.encode())
        answer = service.get("/sites?format=json", source=VICTIM, Authorization=f"Bearer {reader}")
    assert answer.status_code == 200
    return SERVED


# --- attacks that end the service


@attack("50 readers of static files who do not read on")
def read_slowly(service: ProxiedService) -> str:
    request = f"GET /static/vendor/vega.min.mjs HTTP/1.1\r\nHost: {service.host}\r\n\r\n".encode()
    with ExitStack() as stack:
        for _ in range(50):
            reader = stack.enter_context(service.connect())
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.sendall(20 * request)
            assert reader.recv(100).startswith(b"HTTP/1.1 200")
        service.require_service()
        return end_service(service)


def end_service(service: ProxiedService) -> str:
    """End the service, and start it again."""
    seconds = service.terminate()
    service.start()
    assert seconds < 30
    return "SIGTERM ends the service within 30 s"


@attack("SIGTERM while connections are open")
def stop_with_open_connections(service: ProxiedService) -> str:
    with ExitStack() as stack:
        for sent in (OPEN_SIGN_IN, HALF_SENT_HEADERS, b""):
            open_many(service, stack, sent, tls=True)
        return end_service(service)


@attack("a database that another process keeps locked")
def lock_the_database(service: ProxiedService) -> str:
    key = service.make_key("alice").text
    with (
        ThreadPoolExecutor(1) as pool,
        closing(sqlite3.connect(service.database.removeprefix("sqlite:///"))) as holder,
    ):
        holder.execute("BEGIN IMMEDIATE")
        delayed = pool.submit(service.send, key, make_sent_measurement("l", campaign_id="l"))
        service.require_service(1)
        time.sleep(1)
        ended = end_service(service)
        answer = delayed.result()
    return f"{answer.status_code}; {ended}"
