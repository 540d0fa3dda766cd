"""Loads of real servers: exact counts, failures, TLS, copy programs, whole files, namespace calls."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from certificate_authority import CertificateAuthority
from load_generator import Row, failures, find_area, find_url, latencies, list_area, total
from local_servers import send_answer, serve_http
from pelican_federation import Federation
from polling import wait_until

from treehammer.testbed.components.xrootd_storage import XrootdStorage

#: Each protocol and direction once; unit tests write and read by HTTP.
WAYS = [("root", "write"), ("http", "read")]


def server_ports(storage: XrootdStorage, door: str) -> set[int]:
    """Ports of the servers that may perform the operations of a door."""
    roots = {storage.storage_address(site)[1] for site in storage.box.sites}
    _, root, http = storage.storage_address("SITE_A")
    return {"root": {root}, "http": {http}, "federation": roots}[door]


@pytest.mark.parametrize("door", ["root", "federation"])
def test_opens_are_scheduled_and_counted_exactly(
    start: Any, storage: XrootdStorage, door: str
) -> None:
    running = start("open", find_url(storage, door), 4, clients=10, rate_hz=5)
    rows = running.read_rows()
    assert {row["operation"] for row in rows} == {"open"}
    by_step = [
        total([row for row in rows if row["step"] == step], "scheduled") for step in range(4)
    ]
    assert by_step == [50] * 4
    assert total(rows, "done") == 200
    assert latencies(rows).count == 200
    ports = {int(row["server"].rpartition(":")[2]) for row in rows}
    assert ports <= server_ports(storage, door)
    assert 0 < running.read_figures()["round_trip_s"] < 1


@pytest.mark.parametrize(
    "door, axes",
    [
        ("federation", {"pattern": "random"}),
        ("root", {"pattern": "vector", "vector": 64}),
        ("http", {"pattern": "vector", "vector": 64}),
    ],
)
def test_paced_readers_read_every_byte(
    start: Any, storage: XrootdStorage, door: str, axes: dict[str, Any]
) -> None:
    url = find_url(storage, door)
    rows = start("read", url, 4, clients=20, period_s=2, block_kb=250, **axes).read_rows()
    opened = [row for row in rows if row["operation"] == "open"]
    assert (total(opened, "scheduled"), total(opened, "done")) == (20, 20)
    reads = [row for row in rows if row["operation"] != "open"]
    assert {row["operation"] for row in reads} == {
        "vector_read" if axes["pattern"] == "vector" else "read"
    }
    assert (total(reads, "scheduled"), total(reads, "done")) == (40, 40)
    assert total(reads, "bytes") == 40 * 250_000
    assert max(row["clients"] for row in rows) == 20  # none in the time of late answers


@dataclass(frozen=True)
class Credentials:
    """Certificate and key of a server, and the environment of a client with a token."""

    certificate: Path
    environment: dict[str, str]


@pytest.fixture
def credentials(tmp_path: Path) -> Credentials:
    authority = CertificateAuthority(tmp_path / "ca")
    both, token = tmp_path / "both.pem", tmp_path / "token"
    both.write_text("".join(path.read_text() for path in authority.issue_server_certificate()))
    token.write_text("secret")
    environment = {"SSL_CERT_FILE": str(authority.ca), "BEARER_TOKEN_FILE": str(token)}
    return Credentials(both, environment)


def test_tls_is_verified(start: Any, credentials: Credentials, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(100_000))
    with serve_http(SimpleHTTPRequestHandler, tmp_path, credentials.certificate) as port:
        url = f"https://127.0.0.1:{port}/data"
        rows = start("open", url, 1, credentials.environment, rate_hz=20).read_rows()
        assert (total(rows, "done"), total(rows, "failed")) == (20, 0)
        rows = start("open", url, 1, {"SSL_CERT_FILE": ""}, rate_hz=20).read_rows()
        assert failures(rows) == {"credential"}
        # This server ignores ranges: reading would take the whole file.
        axes = {"period_s": 0.1, "block_kb": 1}
        rows = start("read", url, 1, credentials.environment, **axes).read_rows()
        assert failures(rows) == {"not-supported"}


def test_objects_of_a_federation_are_read_at_their_cache(
    start: Any, credentials: Credentials
) -> None:
    with serve_http(Federation, certificate=credentials.certificate) as port:
        url = f"pelican://127.0.0.1:{port}/vo/file"
        rows = start("open", url, 1, credentials.environment, rate_hz=20).read_rows()
        assert (total(rows, "done"), total(rows, "failed")) == (20, 0)
        assert {row["server"] for row in rows} == {f"127.0.0.1:{port}"}
        gone = f"pelican://127.0.0.1:{port}/other/file"
        rows = start("open", gone, 1, credentials.environment, rate_hz=20).read_rows()
        assert failures(rows) == {"not-found"}


class _Recorder(BaseHTTPRequestHandler):
    """Answers any request and notes command, token and size; a target makes it redirect."""

    requests: list[tuple[str, str | None, int]]
    target = ""
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.requests.append((self.command, self.headers["Authorization"], len(sent)))
        asked = self.headers["Range"]
        status = {"MKCOL": 201 if self.path.endswith("/") else 409}.get(self.command, 200)
        body = bytes(1000) if self.command == "GET" else b""
        if self.target:
            send_answer(self, 307, Location=f"{self.target}{self.path}")
        elif asked:
            send_answer(self, 206, body, Content_Range=f"{asked.replace('=', ' ')}/*")
        else:
            send_answer(self, status, body)

    do_GET = do_HEAD = do_PUT = do_DELETE = do_MKCOL = answer  # noqa: N815


@dataclass(frozen=True)
class RedirectingDoor:
    """Address of a door over TLS, and the requests that it and the server behind it received."""

    address: str
    server: str
    at_door: list[tuple[str, str | None, int]]
    at_server: list[tuple[str, str | None, int]]


@pytest.fixture
def redirecting(credentials: Credentials) -> Iterator[RedirectingDoor]:
    at_door: list[tuple[str, str | None, int]] = []
    at_server: list[tuple[str, str | None, int]] = []
    with serve_http(type("Server", (_Recorder,), {"requests": at_server})) as port:
        target = f"http://127.0.0.1:{port}"
        door = type("Door", (_Recorder,), {"requests": at_door, "target": target})
        with serve_http(door, certificate=credentials.certificate) as secure:
            address = f"https://127.0.0.1:{secure}"
            yield RedirectingDoor(address, f"127.0.0.1:{port}", at_door, at_server)


def test_token_stays_with_the_door(
    start: Any, credentials: Credentials, redirecting: RedirectingDoor
) -> None:
    axes = {"period_s": 0.1, "block_kb": 1}
    url = f"{redirecting.address}/data"
    rows = start("read", url, 4, credentials.environment, **axes).read_rows()
    assert total(rows, "failed") == 0
    assert {row["server"] for row in rows} == {redirecting.server}
    assert [token for _, token, _ in redirecting.at_server] == [None] * 41
    # Reads go to the server that answered the open; those before its answer, on a busy machine, follow it.
    first, *early = redirecting.at_door
    assert first == ("HEAD", "Bearer secret", 0)
    assert early == [("GET", "Bearer secret", 0)] * len(early)
    assert len(early) < 40


def test_uploads_follow_redirects_without_the_token(
    start: Any, credentials: Credentials, redirecting: RedirectingDoor
) -> None:
    axes = {"clients": 1, "files": 2, "size_mb": 5}
    area = f"{redirecting.address}/area"
    rows = start("stream", "", 60, credentials.environment, area, **axes).read_rows()
    assert (total(rows, "done"), total(rows, "bytes")) == (2, 10_000_000)
    expected = [("MKCOL", 0), ("PUT", 5_000_000), ("PUT", 5_000_000), *[("DELETE", 0)] * 3]
    assert redirecting.at_server == [(name, None, size) for name, size in expected]
    assert [name for name, _, _ in redirecting.at_door] == [name for name, _ in expected]
    assert {token for _, token, _ in redirecting.at_door} == {"Bearer secret"}


@pytest.mark.parametrize(("door", "direction"), WAYS)
def test_streams_write_and_read_back(
    start: Any, storage: XrootdStorage, door: str, direction: str
) -> None:
    area = find_area(storage, door)
    axes = {"clients": 4, "files": 3, "size_mb": 9.0, "direction": direction}
    running = start("stream", "", 60, writable=area, **axes)
    rows = running.read_rows()
    assert {row["operation"] for row in rows} == {f"{direction}_file"}
    assert failures(rows) == set()
    assert (total(rows, "done"), total(rows, "bytes")) == (12, 12 * 9_000_000)
    ports = {int(row["server"].rpartition(":")[2]) for row in rows}
    assert ports == server_ports(storage, door)
    figures = running.read_figures()
    assert (figures["files_removed"], figures["files_left"]) == (12, 0)
    assert figures["total_s"] > 0
    assert list_area(storage) == []


def test_stopped_load_removes_its_files(start: Any, storage: XrootdStorage) -> None:
    area = find_area(storage, "http")
    running = start("stream", "", 300, writable=area, clients=4, files=1_000, size_mb=1.0)
    wait_until(lambda: len(list_area(storage)) > 20, "nothing is written")
    running.process.terminate()
    rows = running.read_rows()
    assert failures(rows) <= {"unfinished"}
    figures = running.read_figures()
    assert "total_s" not in figures
    assert figures["files_left"] == 0
    assert figures["files_removed"] >= total(rows, "done") > 0
    assert list_area(storage) == []


@pytest.fixture
def programs(storage: XrootdStorage) -> dict[str, str]:
    """Environment that finds the testbed's xrdcp."""
    return {"PATH": f"{storage.programs}:{os.environ['PATH']}"}


def count_done(rows: list[Row]) -> Counter[str]:
    """Count successful operations by name."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row["operation"]] += row["done"]
    return counts


@pytest.mark.parametrize(("door", "direction"), WAYS)
def test_programs_copy_files_and_compare_their_content(
    start: Any, storage: XrootdStorage, programs: dict[str, str], door: str, direction: str
) -> None:
    area = find_area(storage, door)
    axes = {"clients": 2, "files": 2, "size_mb": 5.0, "direction": direction, "client": "protocol"}
    running = start("stream", "", 60, programs, area, **axes)
    rows = running.read_rows()
    assert {row["operation"] for row in rows} == {"copy"}
    assert failures(rows) == set()
    assert (total(rows, "done"), total(rows, "bytes")) == (4, 20_000_000)
    figures = running.read_figures()
    assert figures.get("files_wrong") == (0 if direction == "write" else None)
    assert (figures["files_removed"], figures["files_left"]) == (4, 0)
    assert figures["client_cpu_s"] > 0
    assert list_area(storage) == []
    assert list(running.folder.glob("copies-*")) == []


def test_wrong_content_at_the_storage_is_counted(start: Any, tmp_path: Path) -> None:
    axes = {"clients": 2, "files": 2, "size_mb": 0.1, "direction": "write"}
    command = "sh -c 'head -c 100000 /dev/zero > $1' copy {target} {source}"
    running = start("stream", "", 60, None, f"{tmp_path}/area", client=command, **axes)
    assert total(running.read_rows(), "done") == 4
    assert running.read_figures()["files_wrong"] == 4


def test_stopped_load_ends_its_programs(start: Any, storage: XrootdStorage) -> None:
    url = find_url(storage, "file")
    command = "sh -c 'echo $$ > ../pid.new; mv ../pid.new ../pid; exec sleep 1000' {source}"
    axes = {"clients": 1, "direction": "read", "client": command.replace("../", "")}
    running = start("stream", url, 300, **axes)
    pid = running.folder / "pid"
    wait_until(pid.exists, "no program was started")
    running.process.terminate()
    assert failures(running.read_rows()) == {"unfinished"}
    assert not Path("/proc", pid.read_text().strip()).exists()


@pytest.mark.parametrize(("door", "folders"), [("root", "one"), ("http", "many")])
def test_calls_of_transfers_are_timed_by_themselves(
    start: Any, storage: XrootdStorage, door: str, folders: str
) -> None:
    area = find_area(storage, door)
    running = start("pretend", "", 60, None, area, clients=5, transfers=4, folders=folders)
    rows = running.read_rows()
    assert failures(rows) == set()
    calls = {"mkdir", "create", "stat", "locate", "open", "close", "delete", "rmdir"}
    lacking = {"root": set(), "http": {"locate", "close"}}[door]
    assert count_done(rows) == {**dict.fromkeys(calls - lacking, 20), "connect": 5}
    figures = running.read_figures()
    assert figures["total_s"] > 0
    if not figures["limited_steps"]:
        assert 0 < figures["open_p50_s"] <= figures["open_p99_s"] <= figures["total_s"]
        assert figures["failed_share"] == 0
    assert list_area(storage) == []


@pytest.mark.parametrize(("door", "axes"), [("root", {"rate_hz": 10}), ("http", {"files": 10})])
def test_deleted_files_are_watched_until_they_are_gone(
    start: Any, storage: XrootdStorage, door: str, axes: dict[str, Any]
) -> None:
    area = find_area(storage, door)
    running = start("delete", "", 1, None, area, clients=2, poll_s=0.05, **axes)
    rows = running.read_rows()
    counts = count_done(rows)
    assert counts["delete"] == 20
    # At a rate, the last deletions may be answered after the end of the load.
    assert counts["vanish"] == 20 if "files" in axes else 0 < counts["vanish"] <= 20
    if not any(row["generator_limited"] for row in rows):
        assert running.read_figures()["vanish_p99_s"] > 0
