"""Servers of a load: faults, a full listen queue, a replayed recording, and a redirector."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import daemon_faults
import pytest
from cached_software import set_up_cached
from captured_runs import run_captured
from job_factory import write_payload_job
from load_generator import (
    LOOP_FOLDER,
    Generator,
    Row,
    failures,
    find_area,
    find_url,
    latencies,
    total,
)
from local_servers import send_answer, serve_http, serve_tcp
from simulated_load import parse_log

from treehammer.collectors.record.xrootd_recording import parse_recording
from treehammer.collectors.software import providers
from treehammer.collectors.worker.run.xrootd_settings import RecorderPlugin
from treehammer.load.kit.treehammer_load.server.log_formats import select_format
from treehammer.testbed.components.xrootd_storage import (
    DATASET_FOLDER,
    XrootdStorage,
    storage_folder,
)
from treehammer.testbed.workspace import Workspace

#: Operations per second of the loads of this module.
RATE_HZ = 50
READ_PACE = {"period_s": 0.2, "block_kb": 10}


def sum_failures(rows: list[Row]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(json.loads(row["failures"]))
    return counts


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
        step_rows = [row for row in rows if row["step"] == step]
        assert total(step_rows, "scheduled") == RATE_HZ
        assert total(step_rows, "done") + total(step_rows, "failed") == RATE_HZ
        done.append(total(step_rows, "done"))
    worst = done.index(min(done))
    assert RATE_HZ in done[:worst], done
    assert RATE_HZ in done[worst:], done
    return min(done)


def stop_load(running: Generator, kind: str) -> list[Row]:
    """End a load five seconds after the fault, and return its rows."""
    running.wait_for(running.progress() + 5)
    running.process.terminate()
    return [row for row in running.read_rows() if row["operation"] == kind]


def test_stalled_server_shows_in_tail(start: Any, storage: XrootdStorage) -> None:
    running = start("open", find_url(storage, "root"), 8, clients=10, rate_hz=5)
    running.wait_for(1.5)
    with daemon_faults.suspend_daemon(storage.box, "xrootd-SITE_A"):
        running.wait_for(running.progress() + 1.5)  # progress may lag on a busy machine
    rows = running.read_rows()
    assert (total(rows, "scheduled"), total(rows, "done")) == (400, 400)
    histogram = latencies(rows)
    assert histogram.maximum > 0.9
    assert histogram.quantile(0.99) > 0.85
    assert histogram.quantile(0.9) > 0.2, "operations in the stall count from their own instants"


def test_killed_server_gives_failures_and_schedule_is_kept(
    start: Any, storage: XrootdStorage
) -> None:
    running = start("read", find_url(storage, "root"), 300, clients=10, **READ_PACE)
    running.wait_for(2)
    with daemon_faults.stop_daemon(storage.box, [storage], "xrootd-SITE_A", signal.SIGKILL):
        running.wait_for(running.progress() + 2)
    rows = stop_load(running, "read")
    assert failures(rows) <= {"refused", "reset", "timeout", "server-error", "unfinished"}
    assert failures(rows) & {"refused", "reset"}
    assert check_schedule(rows) == 0


def test_suspended_server_gives_timeouts_and_schedule_is_kept(
    start: Any, storage: XrootdStorage
) -> None:
    axes = {"timeout_s": 1, "clients": 10, "rate_hz": 5}
    running = start("open", find_url(storage, "http"), 300, **axes)
    running.wait_for(2)
    with daemon_faults.suspend_daemon(storage.box, "xrootd-SITE_A"):
        # An operation times out within 2 s; those of the last 2 s may still succeed.
        running.wait_for(running.progress() + 5)
    rows = stop_load(running, "open")
    assert "timeout" in failures(rows)
    assert failures(rows) <= {"timeout", "reset", "unfinished"}
    assert check_schedule(rows) == 0


def test_file_that_vanishes_or_is_locked_is_classed(start: Any, storage: XrootdStorage) -> None:
    path = Path(find_url(storage, "file"))
    running = start("open", find_url(storage, "root"), 300, clients=10, rate_hz=5)
    running.wait_for(2)
    path.chmod(0)
    try:
        running.wait_for(running.progress() + 1)
        path.rename(path.with_name("away"))
        running.wait_for(running.progress() + 1)
        path.with_name("away").rename(path)
    finally:
        path.chmod(0o644)
    rows = stop_load(running, "open")
    check_schedule(rows)
    assert failures(rows) - {"unfinished"} == {"not-found", "not-permitted"}


def test_truncated_file_gives_wrong_data(start: Any, storage: XrootdStorage) -> None:
    path = Path(find_url(storage, "file"))
    content = path.read_bytes()
    running = start("read", find_url(storage, "http"), 300, clients=10, **READ_PACE)
    running.wait_for(2)
    os.truncate(path, 0)
    try:
        running.wait_for(running.progress() + 1.5)
    finally:
        path.write_bytes(content)
    rows = stop_load(running, "read")
    check_schedule(rows)
    assert failures(rows) - {"unfinished"} == {"wrong-data"}


@pytest.fixture
def root_software(kit: str) -> providers.SoftwareSetup:
    return set_up_cached("6.40.00", kit)


def test_storm_names_the_planted_limit(
    start: Any, storage: XrootdStorage, root_software: providers.SoftwareSetup
) -> None:
    good, federation = find_url(storage, "root"), find_url(storage, "federation")
    looping = good.replace(DATASET_FOLDER, LOOP_FOLDER)
    axes = {"clients": 10, "files": 2, "retries": 1, "timeout_s": 30}

    def storm(url: str, **changes: Any) -> tuple[dict[str, int], dict[str, float]]:
        running = start("storm", url, 60, **{**axes, **changes})
        return dict(sum_failures(running.read_rows())), running.read_figures()

    failures, figures = storm(good)
    assert failures == {}
    assert (figures["files_failed"], figures["reopens"], figures["lost_s"]) == (0, 0, 0)
    for changes in ({}, {"setup": root_software}):
        failures, figures = storm(looping, **changes)
        # 20 files, each opened twice; XRootD's client follows 16 redirects of each open.
        assert failures == {"redirect-limit": 40}
        assert (figures["files_failed"], figures["reopens"]) == (20, 20)
        assert (figures["redirect_limits"], figures["redirects"]) == (40, 40 * 17)
        assert figures["lost_s"] > 0
    with daemon_faults.suspend_daemon(storage.box, "xrootd-SITE_A"):
        failures, figures = storm(good, files=1, retries=0, timeout_s=2)
    assert failures == {"timeout": 10}
    assert (figures["timeouts"], figures["stalls"]) == (10, 0)
    assert 10 <= figures["lost_s"] < 60, "each client lost about its time limit of 2 s"
    with ExitStack() as stack:
        # Only the one that starts last can find the storage ready again.
        for site, parts in zip(storage.box.sites, ([storage], []), strict=True):
            name = f"xrootd-{site}"
            stack.enter_context(daemon_faults.stop_daemon(storage.box, parts, name, signal.SIGKILL))
        failures, _ = storm(good)
        assert failures == {"refused": 40}
        failures, figures = storm(federation, timeout_s=2)
        assert failures == {"stalled": 40}
        assert (figures["stalls"], figures["waits"], figures["waited_s"]) == (40, 40, 0)


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
        send_answer(self, status)


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


@contextmanager
def slow_daemon(box: Workspace, name: str) -> Iterator[None]:
    """Let a daemon run for 20 ms a second while the block runs, so that it answers slowly."""
    stop = threading.Event()

    def alternate() -> None:
        while not stop.is_set():
            with daemon_faults.suspend_daemon(box, name):
                stop.wait(1.0)
            stop.wait(0.02)

    thread = threading.Thread(target=alternate, name=f"slow {name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("direction, clients, files", [("read", 4, 10), ("write", 64, 2)])
def test_slow_server_behind_a_redirector_is_named(
    start: Any, storage: XrootdStorage, direction: str, clients: int, files: int
) -> None:
    _, slow, _ = storage.storage_address("SITE_A")
    slow_site = slow_daemon(storage.box, "xrootd-SITE_A")
    axes: dict[str, Any] = {"clients": clients, "files": files, "direction": direction}
    if direction == "read":
        url, area = find_url(storage, "federation"), ""
    else:
        url, area = "", find_area(storage, "federation")
        axes["size_mb"] = 0.1
    with slow_site:
        # On a busy machine the server misses some of its 20 ms; the load ends with its last file.
        running = start("stream", url, 200, writable=area, timeout_s=100, **axes)
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


def measure_start_s(software: providers.SoftwareSetup, folder: Path) -> float:
    """Measure how long a payload takes to start on this machine at the moment."""
    began = time.monotonic()
    run(software, folder, "import treehammer_load\n")
    return time.monotonic() - began


#: Format of the log, as the settings of ``log-parse`` declare it.
LOG_FORMAT = {
    "time": r"(?P<second>\d+-\d+-\d+T\d+:\d+:\d+)(?P<fraction>\.\d+) ",
    "clock": "%Y-%m-%dT%H:%M:%S",
    "begin": r"\[(?P<request>\d+)\] > (?P<operation>\w+)",
    "end": r"\[(?P<request>\d+)\] < (?P<code>\d+)",
    "operations": {"HEAD": "open"},
}


def answer_slowly(log: Path, seconds: float) -> Callable[[socket.socket], None]:
    """Return a function that answers a request in some seconds, and logs when."""
    numbers = itertools.count()

    def write(text: str) -> None:
        with log.open("a", encoding="utf-8") as stream:
            stream.write(f"{datetime.now().isoformat(timespec='microseconds')} {text}\n")

    def answer(connection: socket.socket) -> None:
        if connection.recv(65536):
            number = next(numbers)
            write(f"[{number}] > HEAD")
            time.sleep(seconds)
            write(f"[{number}] < 0")
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\n")

    return answer


def test_full_listen_queue_is_seen_from_both_sides(
    start: Any, software: providers.SoftwareSetup, tmp_path: Path
) -> None:
    log = tmp_path / "server.log"
    start_us = round((time.time() + max(3.0, 10 * measure_start_s(software, tmp_path))) * 1e6)
    axes = {"clients": 24, "rate_hz": 4, "timeout_s": 40, "load": {"start_us": start_us}}
    with serve_tcp(answer_slowly(log, 0.05), backlog=1) as port:
        watch = start("watch", "", 5, **axes)
        client = start("open", f"http://127.0.0.1:{port}/data", 0.5, **axes).read_operations()
        watched = watch.read_operations()
    calls = list(parse_log(log.read_text().splitlines(), select_format(LOG_FORMAT)))
    waited = latencies(client)
    # No call is slow in the server's log; clients wait for the kernel to send SYN again after 1 s.
    assert total(client, "done") > 10
    assert sum(not call.failure for call in calls) >= total(client, "done")
    served = sorted(call.duration_us / 1e6 for call in calls)
    assert waited.maximum > 1
    assert served[len(served) // 2] < waited.quantile(0.5)
    figures = watch.read_figures()
    assert figures["listen_overflows"] > 0
    connects = [row for row in watched if row["operation"] == "connect"]
    assert total(connects, "failed") > 0
    assert {row["side"] for row in connects} == {"server"}
    assert 0 < figures["cpu_share"] <= 1
    table = (watch.folder / "log").read_text().splitlines()
    assert table[0].startswith("step,seconds,cpu_s,io_wait_s")
    assert len(table) > 3


#: Opens a file twice at a time, and reads it in between; a stat is answered from the open.
PROGRAM = """
import sys, time
from XRootD import client
first, second = client.File(), client.File()
for file in (first, second):
    assert file.open(sys.argv[1])[0].ok
assert first.stat()[1].size == 500_000
assert first.stat(True)[1].size == 500_000
for number in range(20):
    assert first.read(1000 * number, 5000)[0].ok
    time.sleep(0.02)
assert second.vector_read([(0, 10), (400_000, 90_000)])[0].ok
assert len(second.read(499_000, 5000)[1]) == 1000
first.close()
second.close()
"""
REPLAY_PAYLOAD = """
import treehammer_load as t
t.run(t.replay_recording, prepare=t.load_recording)
"""


def run(
    software: providers.SoftwareSetup, folder: Path, text: str, *words: str, **env: str
) -> None:
    (folder / "script.py").write_text(text)
    done = run_captured(
        [*software.build_command("python", "script.py"), *words],
        env={**software.env, **env},
        cwd=folder,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_recorded_operations_are_performed_again(
    software: providers.SoftwareSetup, storage: XrootdStorage, tmp_path: Path
) -> None:
    (door,) = (each.prefix for each in storage.doors("SITE_A") if each.name == "root")
    dataset = storage_folder(storage.box, "SITE_A") / DATASET_FOLDER.lstrip("/") / "rec"
    dataset.mkdir()
    (dataset / "data").write_bytes(os.urandom(500_000))
    plugin = RecorderPlugin(str(tmp_path), str(tmp_path), "1-1")
    run(software, tmp_path, PROGRAM, f"{door}/rec/data", **plugin.environment)
    assert plugin.keep_recording(door_url=door, started_us=1, ended_us=2)
    recorded = (tmp_path / "recordings" / "1-1.csv").read_text()
    operations = parse_recording(recorded.splitlines(keepends=True))
    assert {each.handle for each in operations} == {0, 1}

    (dataset / "recording.csv").write_text(recorded)
    (dataset / "recording.json").write_text(json.dumps({"process": {"door_url": door}}))
    job = write_payload_job(
        tmp_path,
        *(
            {"url": f"{door}/rec/{name}", "size": (dataset / name).stat().st_size}
            for name in ("recording.csv", "recording.json")
        ),
        settings={"replace": ""},
        document={"door_url": door, "load": {"step_s": 1.0, "duration_s": 60.0}},
        variant={"clients": 3, "factor": 1.0},
    )
    run(software, tmp_path, REPLAY_PAYLOAD, **job)
    result = json.loads((tmp_path / "result.json").read_text())
    done: dict[str, int] = {}
    for row in result["operations"]:
        assert row["failures"] == "{}"
        assert row["server"] == door.partition("://")[2].partition("/")[0]
        done[row["operation"]] = done.get(row["operation"], 0) + row["done"]
    assert done == {"open": 6, "stat": 3, "read": 63, "vector_read": 3, "close": 6}
    moved = sum(row["bytes"] for row in result["operations"])
    assert moved == 3 * (20 * 5000 + 90_010 + 1000)
    figures = result["extras"]
    assert figures["skipped_operations"] == 1  # the stat that the client answered itself
    limited = all(row["generator_limited"] for row in result["operations"])
    assert limited or {"open_p999_s", "read_p999_s", "vector_read_p999_s"} & {*figures}
    # The schedule is never ahead of the recording.
    assert figures["time_ratio"] > 0.95
    assert 0 <= figures["timing_error_p50_s"] <= figures["timing_error_max_s"]


#: Writes a tree of 10 clusters, then reads it with prefetching.
PREFETCH_PAYLOAD = """
import array, os
import ROOT
import treehammer_kit

file = ROOT.TFile(os.environ["STORED"], "RECREATE")
tree = ROOT.TTree("events", "")
value = array.array("d", [0.0])
tree.Branch("value", value, "value/D")
tree.SetAutoFlush(1000)
for number in range(10_000):
    value[0] = number**0.5
    tree.Fill()
file.Write()
file.Close()
os.chmod(os.environ["STORED"], 0o644)
treehammer_kit.run('''
void read(treehammer::Pass &pass)
{
   for (Long64_t entry : pass.entries)
      pass.Add(pass.tree->GetEntry(entry));
}
''')
"""


@pytest.mark.root
def test_server_behind_redirector_and_prefetched_reads(
    storage: XrootdStorage, tmp_path: Path, kit: str
) -> None:
    doors = {door.name: door.prefix for door in storage.doors("SITE_A")}
    stored = storage_folder(storage.box, "SITE_A") / DATASET_FOLDER.lstrip("/") / "events.root"
    url = f"{doors['pinned']}/events.root"
    variant = {"branches": 1.0, "cache_mb": 0.02, "events": 1.0, "cache": "warm", "prefetch": 1}
    job = write_payload_job(tmp_path, url, variant=variant, passes=2)
    run(set_up_cached("6.40.00", kit), tmp_path, PREFETCH_PAYLOAD, STORED=str(stored), **job)
    document = json.loads((tmp_path / "result.json").read_text())
    values = document["values"]
    assert document["failure"] is None
    assert values["data_server"] == urlsplit(doors["root"]).netloc
    assert values["data_server"] != urlsplit(url).netloc
    assert values["read_calls_prefetch"] == values["read_calls"] > 1
    assert not {"read_calls_single", "skipped_forward_bytes"} & {*values}
