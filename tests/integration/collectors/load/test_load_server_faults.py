"""Servers that fail in the middle of a load: stalled, slowed, killed, answering errors."""

from __future__ import annotations

import itertools
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from load_generator import Generator, Row, failures, find_area, find_url, latencies, total
from local_servers import serve_http

from treehammer.testbed import faults
from treehammer.testbed.components.xrootd_storage import XrootdStorage, storage_folder

#: Operations per second of the loads of this module.
RATE_HZ = 50
PACES: dict[str, dict[str, float]] = {
    "open": {"rate_hz": 5},
    "read": {"period_s": 0.2, "block_kb": 10},
}


def sum_failures(rows: list[Row]) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        found.update(json.loads(row["failures"]))
    return found


def check_schedule(rows: list[Row]) -> int:
    """Check the schedule of a load with a fault in its middle; return the fewest done in a step.

    Each step sends and ends all of its operations, and one before the fault and one after it
    succeed as a whole. The first and the last need not: on a busy machine an operation of theirs
    may reach into the fault or time out by itself.
    """
    steps = sorted({row["step"] for row in rows})
    assert steps == list(range(len(steps)))
    done = []
    for step in steps[:-1]:  # the load was stopped in the last one
        own = [row for row in rows if row["step"] == step]
        assert total(own, "scheduled") == RATE_HZ
        assert total(own, "done") + total(own, "failed") == RATE_HZ
        done.append(total(own, "done"))
    worst = done.index(min(done))
    assert RATE_HZ in done[:worst], done
    assert RATE_HZ in done[worst:], done
    return min(done)


def stop_load(running: Generator, kind: str, after_s: float = 5) -> list[Row]:
    """End a load some seconds after the fault, and return its rows."""
    running.wait_for(running.progress() + after_s)
    running.process.terminate()
    return [row for row in running.read_rows() if row["operation"] == kind]


@pytest.mark.parametrize("door", ["root", "http"])
def test_stalled_server_shows_in_tail(start: Any, storage: XrootdStorage, door: str) -> None:
    running = start("open", find_url(storage, door), 8, clients=10, rate_hz=5)
    running.wait_for(1.5)
    with faults.suspend_daemon(storage.box, "xrootd-SITE_A"):
        running.wait_for(running.progress() + 1.5)  # progress may lag on a busy machine
    rows = running.read_rows()
    assert (total(rows, "scheduled"), total(rows, "done")) == (400, 400)
    found = latencies(rows)
    assert found.maximum > 0.9
    assert found.quantile(0.99) > 0.85
    assert found.share_above(0.2) > 0.1, "operations in the stall count from their own instants"


@pytest.mark.parametrize("kind", ["open", "read"])
def test_killed_server_gives_failures_and_schedule_is_kept(
    start: Any, storage: XrootdStorage, kind: str
) -> None:
    running = start(kind, find_url(storage, "root"), 300, clients=10, **PACES[kind])
    running.wait_for(2)
    with faults.stop_daemon(storage.box, [storage], "xrootd-SITE_A", signal.SIGKILL):
        running.wait_for(running.progress() + 2)
    rows = stop_load(running, kind)
    assert failures(rows) <= {"refused", "reset", "timeout", "server-error", "unfinished"}
    assert failures(rows) & {"refused", "reset"}
    assert check_schedule(rows) == 0


@pytest.mark.parametrize("door, kind", [("root", "read"), ("http", "open")])
def test_suspended_server_gives_timeouts_and_schedule_is_kept(
    start: Any, storage: XrootdStorage, door: str, kind: str
) -> None:
    running = start(kind, find_url(storage, door), 300, timeout_s=1, clients=10, **PACES[kind])
    running.wait_for(2)
    with faults.suspend_daemon(storage.box, "xrootd-SITE_A"):
        # An operation times out within 2 s; those of the last 2 s may still succeed.
        running.wait_for(running.progress() + 5)
    rows = stop_load(running, kind)
    assert "timeout" in failures(rows)
    assert failures(rows) <= {"timeout", "reset", "unfinished"}
    assert check_schedule(rows) == 0


@pytest.mark.parametrize(
    "door, expected", [("root", {"not-found", "not-permitted"}), ("http", {"not-found"})]
)
def test_file_that_vanishes_or_is_locked_is_classed(
    start: Any, storage: XrootdStorage, door: str, expected: set[str]
) -> None:
    path = Path(find_url(storage, "file"))
    running = start("open", find_url(storage, door), 300, clients=10, rate_hz=5)
    running.wait_for(2)
    path.chmod(0)  # over HTTP an open is a HEAD request, which needs no right to read
    try:
        running.wait_for(running.progress() + 1)
        path.rename(path.with_name("away"))
        running.wait_for(running.progress() + 1)
        path.with_name("away").rename(path)
    finally:
        path.chmod(0o644)
    rows = stop_load(running, "open")
    check_schedule(rows)
    assert failures(rows) - {"unfinished"} == expected


@pytest.mark.parametrize("door", ["root", "http"])
def test_truncated_file_gives_wrong_data(start: Any, storage: XrootdStorage, door: str) -> None:
    path = Path(find_url(storage, "file"))
    content = path.read_bytes()
    running = start("read", find_url(storage, door), 300, clients=10, **PACES["read"])
    running.wait_for(2)
    os.truncate(path, 0)
    try:
        running.wait_for(running.progress() + 1.5)
    finally:
        path.write_bytes(content)
    rows = stop_load(running, "read")
    check_schedule(rows)
    assert failures(rows) - {"unfinished"} == {"wrong-data"}


class _Failing(BaseHTTPRequestHandler):
    """Answers with each of some statuses in turn, and counts them; 0 closes the connection."""

    protocol_version = "HTTP/1.1"
    statuses: Iterator[int]
    answers: Counter[int]

    def do_HEAD(self) -> None:
        status = next(self.statuses)
        self.answers[status] += 1
        if not status:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_errors_of_a_server_are_classed_and_counted(start: Any) -> None:
    errors = {
        500: "server-error",
        502: "server-error",
        503: "server-error",
        429: "server-error",
        504: "timeout",
        403: "not-permitted",
        507: "no-space",
        0: "reset",
    }
    answers: Counter[int] = Counter()
    statuses = itertools.chain([200] * 60, itertools.cycle([*errors, 200]))
    handler = type("Failing", (_Failing,), {"statuses": statuses, "answers": answers})
    with serve_http(handler) as port:
        url = f"http://127.0.0.1:{port}/data"
        rows = start("open", url, 4, clients=10, rate_hz=5).read_rows()
    assert total(rows, "scheduled") == sum(answers.values()) == 4 * RATE_HZ
    assert total(rows, "done") == answers.pop(200)
    expected: Counter[str] = Counter()
    for status, count in answers.items():
        expected[errors[status]] += count
    assert sum_failures(rows) == expected


@pytest.mark.parametrize("direction, clients, files", [("read", 4, 10), ("write", 64, 2)])
def test_slow_server_behind_a_redirector_is_named(
    start: Any, storage: XrootdStorage, tmp_path: Path, direction: str, clients: int, files: int
) -> None:
    _, slow, _ = storage.storage_address("SITE_A")
    slow_site = faults.slow_daemon(storage.box, "xrootd-SITE_A", stopped_s=1.0, running_s=0.02)
    axes: dict[str, Any] = {"clients": clients, "files": files, "direction": direction}
    if direction == "read":
        url, area = find_url(storage, "federation"), ""
    else:
        url, area = "", find_area(storage, "federation", tmp_path)
        axes["size_mb"] = 0.1
    with slow_site:
        running = start("stream", url, 60, writable=area, **axes)
        rows = running.read_rows()
    assert (total(rows, "done"), total(rows, "failed")) == (clients * files, 0)
    # Several operations may fit between two stops, so that the median need not show them.
    by_server = {
        server: latencies([row for row in rows if row["server"] == server]).mean
        for server in {row["server"] for row in rows}
    }
    assert len(by_server) == 2
    assert max(by_server, key=lambda server: by_server[server]).endswith(f":{slow}")
    figures = running.read_figures()
    assert figures["servers"] == 2
    # Rates are of the time from the first operation to the last end, without steps left out.
    seconds = figures["total_mb"] / figures["achieved_mb_per_s"]
    rates = figures["server_mb_per_s_min"] + figures["server_mb_per_s_max"]
    assert rates == pytest.approx(total(rows, "bytes") / seconds / 1e6)
    if area:
        assert (figures["files_removed"], figures["files_left"]) == (clients * files, 0)
        areas = [storage_folder(storage.box, site) / "load" for site in storage.box.sites]
        assert [list(area.iterdir()) for area in areas] == [[], []]
