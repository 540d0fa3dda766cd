"""Attacks that try to keep the service from serving others, each on a real process."""

from __future__ import annotations

import gzip
import json
import socket
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from service_process import PATIENCE_S, VICTIM, AttackedService, run_attacked_service
from service_thread import make_body, make_sent_measurement

from treehammer.sql.core.access_keys import mint_job_token

HEALTH = "/api/v1/health"
OPEN_SIGN_IN = (
    b"POST /sign-in HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\na"
)
HALF_SENT_HEADERS = b"GET / HTTP/1.1\r\nHost: x\r\nX: "
#: Longest time of an answer to a victim during an attack.
VICTIM_PATIENCE_S = 20.0


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    """Sockets to close at the end."""
    with ExitStack() as stack:
        yield stack


def close_later(clients: ExitStack, sockets: Sequence[socket.socket]) -> None:
    for one in sockets:
        clients.callback(one.close)


def require_service(service: AttackedService, times: int = 3) -> None:
    """Check that a client from another address is served."""
    for _ in range(times):
        status, _, document = service.request("GET", HEALTH, timeout_s=VICTIM_PATIENCE_S)
        assert (status, document["status"]) == (200, "ok"), service.log.read_text()


@pytest.mark.parametrize("sent", [OPEN_SIGN_IN, HALF_SENT_HEADERS, b""], ids=["body", "head", "-"])
def test_open_requests_leave_room_for_others(
    tmp_path: Path, clients: ExitStack, sent: bytes
) -> None:
    with run_attacked_service(tmp_path, open_files=512) as service:
        close_later(clients, service.open_with(sent, 512))
        require_service(service)
        service.wait_for_log("refusing address 127.0.0.1")
        service.wait_for_log("serve_max_connections_per_address")
        assert service.terminate() < 30


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01"], ids=["-", "half a hello"])
def test_unfinished_handshakes_leave_room_for_others(
    tmp_path: Path, clients: ExitStack, sent: bytes
) -> None:
    with run_attacked_service(tmp_path, open_files=512, with_tls=True) as service:
        close_later(clients, service.open_with(sent, 512))
        require_service(service)
        service.wait_for_log("serve_max_connections_per_address")
        assert service.terminate() < 30


def test_late_body_is_refused(tmp_path: Path, clients: ExitStack) -> None:
    with run_attacked_service(tmp_path) as service:
        paths = (b"/sign-in", b"/sign-out", b"/api/v1/measurements", b"/api/v1/campaigns", b"/")
        waiting = [
            opened
            for path in paths
            for opened in service.open_with(OPEN_SIGN_IN.replace(b"/sign-in", path), 1)
        ]
        close_later(clients, waiting)
        for path, one in zip(paths, waiting, strict=True):
            answer = one.recv(10_000)
            expected = b" 408 " if path == b"/sign-in" else b"HTTP/1.1 "
            assert expected in answer, (path, answer)
            while answer:  # The connection does not stay open either.
                answer = one.recv(10_000)


def test_slow_readers_of_static_files_do_not_delay_the_end(
    tmp_path: Path, clients: ExitStack
) -> None:
    with run_attacked_service(tmp_path, "--read-access", "public") as service:
        require_service(service)
        before = service.read_memory()
        request = b"GET /static/vendor/vega.min.mjs HTTP/1.1\r\nHost: x\r\n\r\n"
        # The kernel holds some megabytes for each reader, more than one file.
        close_later(clients, [open_slow_reader(service, 20 * request) for _ in range(50)])
        require_service(service)
        assert service.read_memory() - before < 100_000_000
        assert service.terminate() < 30


def open_slow_reader(service: AttackedService, request: bytes) -> socket.socket:
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.settimeout(PATIENCE_S)
    reader.connect(("127.0.0.1", service.port))
    reader.sendall(request)
    assert reader.recv(100).startswith(b"HTTP/1.1 200")
    return reader


def test_one_job_leaves_memory_for_other_keys(tmp_path: Path, clients: ExitStack) -> None:
    with run_attacked_service(tmp_path) as service:
        attacker, victim = service.make_key("mallory"), service.make_key("alice")
        job = mint_job_token(attacker, "campaign", "job", time.time_ns() // 1000 + 10**9)
        bomb = gzip.compress(b" " * 31_000_000)
        request = (
            f"POST /api/v1/measurements HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {job}\r\n"
            f"Content-Type: application/json\r\nContent-Encoding: gzip\r\n"
            f"Content-Length: {len(bomb) + 1}\r\n\r\n"
        ).encode()
        waiting = service.open_with(request + bomb, 5)
        close_later(clients, waiting)
        refused = [one.recv(1000) for one in waiting[1:]]
        assert all(b" 429 " in answer for answer in refused)
        body = json.dumps(make_body([make_sent_measurement("hers")])).encode()
        status, _, document = service.post(body, victim.text)
        assert (status, document["new"]) == (200, 1)


def test_uploads_per_key_are_limited(tmp_path: Path) -> None:
    with run_attacked_service(tmp_path, serve_requests_per_second=4) as service:
        attacker, victim = service.make_key("mallory"), service.make_key("alice")
        job = mint_job_token(attacker, "campaign", "job", time.time_ns() // 1000 + 10**9)
        empty = b'{"measurements": []}'
        statuses = [service.post(empty, job)[0] for _ in range(20)]
        assert statuses.count(429) >= 5
        assert service.post(empty, victim.text)[0] == 200
        assert service.post(empty, attacker.text)[0] == 200, "one job does not use up the key"


def test_extras_are_bounded(tmp_path: Path) -> None:
    with run_attacked_service(tmp_path) as service:
        key = service.make_key("mallory").text
        many = make_sent_measurement(extras={f"e{n}": 1.0 for n in range(256)})
        document = make_body([many])
        document["measurements"][0]["extras"] = {f"e{n}": 1.0 for n in range(200_000)}
        status, _, answer = service.post(json.dumps(document).encode(), key)
        assert status == 422
        assert "200000 extras; at most 256" in answer["errors"][0]["reasons"][0]
        packed = json.dumps(
            make_body(
                [make_sent_measurement(position=p, extras=many.extras) for p in range(1, 501)]
            )
        ).encode()
        status, _, answer = service.post(packed, key)
        assert (status, "send at most 10000" in answer["error"]) == (413, True)
        start = time.monotonic()
        assert service.post(json.dumps(make_body([many])).encode(), key)[0] == 200
        assert time.monotonic() - start < VICTIM_PATIENCE_S


def make_query_endless(service: AttackedService) -> None:
    """Replace the table of campaigns by a view whose rows never end."""
    with closing(sqlite3.connect(service.folder / "results.db")) as connection:
        connection.execute("PRAGMA legacy_alter_table=ON")
        connection.execute("ALTER TABLE campaign RENAME TO renamed")
        connection.execute(
            "CREATE VIEW campaign AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
            "SELECT renamed.* FROM c LEFT JOIN renamed WHERE c.x < 0"
        )
        connection.commit()


def test_slow_queries_are_cancelled(tmp_path: Path) -> None:
    with run_attacked_service(
        tmp_path, "--read-access", "public", serve_query_seconds=1
    ) as service:
        make_query_endless(service)
        status, _, document = service.request("GET", "/campaigns?format=json")
        assert (status, "took longer than 1 s" in document["error"]) == (503, True)


def test_queries_of_readers_who_left_are_cancelled(tmp_path: Path, clients: ExitStack) -> None:
    with run_attacked_service(tmp_path, "--read-access", "public") as service:
        make_query_endless(service)
        request = b"GET /campaigns?format=json HTTP/1.1\r\nHost: x\r\n\r\n"
        for one in service.open_with(request, 12):
            one.close()
        status, _, _ = service.request("GET", "/sites?format=json", timeout_s=VICTIM_PATIENCE_S)
        assert status == 200
        close_later(clients, service.open_with(request, 12))
        assert service.terminate() < 30


def test_locked_database_does_not_delay_the_end(tmp_path: Path, clients: ExitStack) -> None:
    with run_attacked_service(tmp_path) as service:
        key = service.make_key("alice").text
        body = json.dumps(make_body([make_sent_measurement()])).encode()
        request = (
            f"POST /api/v1/measurements HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode()
        with closing(sqlite3.connect(service.folder / "results.db")) as holder:
            holder.execute("BEGIN IMMEDIATE")
            (waiting,) = service.open_with(request + body, 1)
            close_later(clients, [waiting])
            require_service(service, 1)
            assert service.terminate() < 30
            assert b" 503 " in waiting.recv(1000), "it was not stored, and the client knows"


def test_requests_per_address_are_limited(tmp_path: Path) -> None:
    with run_attacked_service(tmp_path, serve_requests_per_second=2) as service:
        statuses = [service.request("GET", HEALTH, source=VICTIM)[0] for _ in range(30)]
        assert statuses.count(429) >= 5
        status, headers, document = service.request("GET", HEALTH, source=VICTIM)
        assert (status, int(headers["retry-after"]) >= 1) == (429, True)
        assert "too many requests from this address" in document["error"]
        assert service.request("GET", HEALTH, source="127.0.0.3")[0] == 200
