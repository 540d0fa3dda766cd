"""Loads in simulated time: schedules, closed loops, sending, recording, written files and ends."""

from __future__ import annotations

import json
import random
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_load import SimulatedStorage, SimulatedTimer, run_load

from treehammer.collectors.kit.treehammer_kit.payload_task import PayloadError
from treehammer.collectors.record.latency_histograms import LatencyHistogram
from treehammer.collectors.record.operation_steps import find_operation_problems
from treehammer.load.kit.treehammer_load import (
    load_driver,
    operation,
    recorder,
    schedules,
    workloads,
)
from treehammer.load.kit.treehammer_load.clients import make_client
from treehammer.load.kit.treehammer_load.load_driver import ClosedLoop, ClosedLoopDriver, LoadTimer
from treehammer.load.kit.treehammer_load.load_figures import summarize_loop, summarize_rows
from treehammer.load.kit.treehammer_load.load_task import LoadTask
from treehammer.load.kit.treehammer_load.operation import (
    NO_CEILING,
    CeilingShare,
    Flight,
    LoadFile,
    Operation,
    StorageClient,
)
from treehammer.load.kit.treehammer_load.recorder import Recorder, StepClock
from treehammer.load.kit.treehammer_load.written_files import WrittenFiles

FILE = LoadFile("root://host//a", 1_000_000)


@pytest.fixture
def timer() -> SimulatedTimer:
    return SimulatedTimer()


def opens(rate: float, end_s: float) -> Iterator[Operation]:
    instants = schedules.pace_at_rate(rate, 0.0, end_s)
    operations: Iterator[Operation] = schedules.schedule_opens(instants, 1, [FILE], seed=1)
    return operations


def test_quiet_load_is_recorded_exactly(timer: SimulatedTimer) -> None:
    rows = run_load(opens(50, 4), 4.0, timer, SimulatedStorage(timer))
    counts = [(r["scheduled"], r["done"], r["failed"], r["late"]) for r in rows]
    assert counts == [(50, 50, 0, 0)] * 4
    assert {r["server"] for r in rows} == {"server:1094"}
    assert [r["step_start_us"] for r in rows] == [1_000_000 * n for n in range(1, 5)]
    assert not any(r["generator_limited"] for r in rows)
    assert [r["generator_cpu"] for r in rows] == pytest.approx([0.1] * 4)
    figures = summarize_rows(rows)
    assert figures["attempted_hz"] == figures["achieved_hz"] == 50
    assert figures["latency_max_s"] == pytest.approx(0.002, rel=0.01)
    assert figures["failed_share"] == figures["late_share"] == figures["limited_steps"] == 0
    assert summarize_rows([{**row, "operation": "stat"} for row in rows]) == figures


@pytest.mark.parametrize(("answer_s", "done"), [(0.002, [50, 50, 50]), (1.5, [0, 25, 50])])
def test_running_load_states_the_answers_of_its_last_step(
    tmp_path: Path, timer: SimulatedTimer, answer_s: float, done: list[int]
) -> None:
    steps = StepClock(1.0, 1_000_000)
    path = tmp_path / "progress"
    recorder = Recorder(steps, clients=1, progress=str(path))
    storage = SimulatedStorage(timer, answer_s=answer_s)
    driver = load_driver.LoadDriver(storage, recorder, steps, timer, NO_CEILING)
    documents: list[Any] = []
    for instant in (0.5, 1.5, 2.5):
        timer.at(instant, lambda: documents.append(path.exists() and json.loads(path.read_text())))
    driver.run(opens(50, 3), 3.0)
    assert documents[0] is False
    documents.append(json.loads(path.read_text()))  # the last step, not what follows its end
    assert [document["step"] for document in documents[1:]] == [0, 1, 2]
    assert not any(document["failed"] for document in documents[1:])
    assert [document["done"] for document in documents[1:]] == pytest.approx(done, abs=1)
    assert list(tmp_path.iterdir()) == [path]


def test_stall_shows_in_tail_and_does_not_delay_sending(timer: SimulatedTimer) -> None:
    storage = SimulatedStorage(timer, stall=(1.5, 2.5))
    rows = run_load(opens(50, 4), 4.0, timer, storage)
    assert storage.sent == pytest.approx(list(schedules.pace_at_rate(50, 0.0, 4.0)))
    assert sum(r["done"] for r in rows) == 200
    assert not any(r["generator_limited"] for r in rows)
    whole = LatencyHistogram.sum(LatencyHistogram.decode(r["latency"]) for r in rows)
    assert whole.maximum == pytest.approx(1.0, rel=0.01)
    assert whole.quantile(0.99) == pytest.approx(0.98, abs=0.03)
    # A quarter of all instants lie in the stall: as many as without the generator's patience.
    assert whole.quantile(0.74) < 0.01 < whole.quantile(0.76)


def test_slow_generator_is_marked(timer: SimulatedTimer) -> None:
    rows = run_load(opens(50, 4), 4.0, timer, SimulatedStorage(timer, send_s=0.021))
    assert sum(r["scheduled"] for r in rows) == 200
    assert all(r["generator_limited"] for r in rows)
    assert max(r["lateness_max_s"] for r in rows) == pytest.approx(0.2, abs=0.01)
    # Latency counts from the schedule, so the wait for the generator is in it.
    assert LatencyHistogram.decode(rows[3]["latency"]).maximum == pytest.approx(0.2, abs=0.01)
    assert set(summarize_rows(rows)) == {"limited_steps", "late_share"}


@pytest.mark.parametrize("rate, answered_s", [(0.25, 4.0), (50, 16.0)])
def test_rates_of_idle_and_late_time(rate: float, answered_s: float, timer: SimulatedTimer) -> None:
    rows = run_load(opens(rate, 8), 8.0, timer, SimulatedStorage(timer, stall=(0.1, answered_s)))
    figures = summarize_rows(rows)
    assert figures["attempted_hz"] == rate
    assert figures["achieved_hz"] == pytest.approx(rate * 8 / max(answered_s, 8), rel=0.01)


def test_operations_without_answer_end_as_unfinished(timer: SimulatedTimer) -> None:
    storage = SimulatedStorage(timer, answer_s=1e9, timeout_s=5.0)
    rows = run_load(opens(50, 2), 2.0, timer, storage)
    assert [json.loads(r["failures"]) for r in rows] == [{"unfinished": 50}] * 2
    assert timer.now() == pytest.approx(2.0 + 5.0 + load_driver.STOP_GRACE_S, abs=0.1)


def test_signal_ends_load_with_what_it_has(timer: SimulatedTimer) -> None:
    storage = SimulatedStorage(timer, stall=(0.9, 1e9))
    timer.at(1.25, timer._stop.set)
    rows = run_load(opens(50, 100), 100.0, timer, storage)
    assert [sum(r[name] for r in rows) for name in ("done", "failed")] == [45, 18]
    assert rows[-1]["step_s"] == pytest.approx(0.25)
    assert timer.now() < 1.25 + load_driver.STOP_GRACE_S + 0.1


def test_load_ends_though_generator_cannot_follow(timer: SimulatedTimer) -> None:
    storage = SimulatedStorage(timer, send_s=0.5, timeout_s=3.0)
    rows = run_load(opens(50, 2), 2.0, timer, storage)
    assert timer.now() < 2.0 + 3.0 + 2.0
    assert sum(r["scheduled"] for r in rows) == 100
    assert json.loads(rows[0]["failures"])["unfinished"] == 40


def test_flights_are_bounded(monkeypatch: pytest.MonkeyPatch, timer: SimulatedTimer) -> None:
    monkeypatch.setattr(load_driver, "MAX_IN_FLIGHT", 10)
    rows = run_load(opens(50, 2), 2.0, timer, SimulatedStorage(timer, stall=(0.5, 1.5)))
    assert sum(r["done"] for r in rows) == 100
    assert any(r["generator_limited"] for r in rows)


def test_preparation_counts_to_first_step_without_marking_it(timer: SimulatedTimer) -> None:
    steps = recorder.StepClock(10.0, 0, first=3)
    assert [steps.find_step(due) for due in (25.0, 30.0, 39.99, 40.0)] == [3, 3, 3, 4]
    timer.time_s = 1.0
    early = Operation(-1.0, "open", 0, FILE, keep=True)
    operations = [early, Operation(1.5, "read", 0, FILE, [(0, 10)])]
    rows = run_load(iter(operations), 2.0, timer, SimulatedStorage(timer))
    due = [(r["step"], r["operation"], r["late"], r["bytes"]) for r in rows if r["scheduled"]]
    assert due == [(0, "open", 1, 0), (1, "read", 0, 10)]
    assert not any(r["generator_limited"] for r in rows)


def test_too_many_servers_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder_of_steps = recorder.Recorder(recorder.StepClock(1.0, 0), clients=1)
    for number in range(6):
        flight = Flight(Operation(0.1, "open", 0, FILE), lambda: 0.1, recorder_of_steps.record)
        flight.send()
        flight.end(f"s{number}:1", "reset" if number % 2 else "")
    assert len(recorder_of_steps.list_rows(1.0)) == 6
    monkeypatch.setattr(recorder, "MAX_ROWS", 5)
    (row,) = recorder_of_steps.list_rows(1.0)
    assert not find_operation_problems([row])
    assert (row["server"], row["scheduled"], row["done"]) == ("", 6, 3)
    assert json.loads(row["failures"]) == {"reset": 3}


@pytest.mark.parametrize(("is_loop", "end_s"), [(False, 2.0), (True, 0.4), (True, 2.0)])
def test_late_sendings_limit_only_short_operations_of_loops(is_loop: bool, end_s: float) -> None:
    loop_recorder = Recorder(StepClock(1.0, 0), 1)
    loop_recorder.is_loop = is_loop
    instants = iter((0.05, end_s))
    flight = Flight(Operation(0.0, "open", 0, FILE), lambda: next(instants), loop_recorder.record)
    flight.send()
    flight.end("server:1094", "")
    (row,) = loop_recorder.list_rows(1.0)
    assert row["generator_limited"] == bool(row["late"]) == (not is_loop or end_s < 0.5)


@pytest.mark.parametrize("rate", [1000.0, 201.0])
def test_schedule_stops_at_the_ceiling(rate: float, timer: SimulatedTimer) -> None:
    """Whatever a test asks for, its job sends no more than its share of the door's ceiling."""
    storage = SimulatedStorage(timer)
    rows = run_load(opens(rate, 10), 10.0, timer, storage, CeilingShare(opens_per_s=200))
    sent = Counter(int(instant) for instant in storage.sent)
    assert sent == pytest.approx(dict.fromkeys(range(10), 200), abs=5)
    assert sum(r["scheduled"] for r in rows) == rate * 10, "what was not sent is unfinished"
    assert all(r["generator_limited"] for r in rows if r["step"] > 5)
    assert sum(r["held"] for r in rows) > rate * 5, "most wait for the ceiling"


def test_schedule_at_the_ceiling_is_not_delayed(timer: SimulatedTimer) -> None:
    storage = SimulatedStorage(timer)
    instants = [due_s for due_s in schedules.pace_at_rate(50, 0.0, 10.0) for _ in range(4)]
    operations = schedules.schedule_opens(iter(instants), 1, [FILE], seed=1)
    rows = run_load(operations, 10.0, timer, storage, CeilingShare(opens_per_s=200))
    assert not any(r["held"] for r in rows)
    assert storage.sent == pytest.approx(instants)


def test_traffic_stops_at_the_ceiling(timer: SimulatedTimer) -> None:
    storage = SimulatedStorage(timer)
    instants = schedules.pace_clients(50, 0.1, 0.0, 10.0, seed=1)
    chooser = schedules.make_chunk_chooser("random", 100_000, 1)
    reads = schedules.schedule_reads(instants, 50, [FILE], 1, chooser, (0.0, 0.0))
    run_load(reads, 10.0, timer, storage, CeilingShare(mb_per_s=5))
    assert len(storage.sent) == pytest.approx(50 + 5 * 10 * 10 + 25, abs=5), "of 50 MB/s"


SPAN = workloads.LoadSpan(0.0, 0.0, 60.0)


def reads(client: int, count: int) -> Iterator[Operation]:
    return (Operation(0.0, "read", client, FILE, [(n, 10)]) for n in range(count))


def run_loop(
    counts: list[int],
    end_s: float,
    timer: SimulatedTimer,
    storage: StorageClient,
    ceiling: CeilingShare = NO_CEILING,
) -> tuple[ClosedLoopDriver, list[dict[str, Any]], dict[str, float]]:
    """Run a loop with a number of reads for each client, in steps of 1 s."""
    steps = StepClock(1.0, 1_000_000)
    recorder = Recorder(steps, len(counts))
    driver = ClosedLoopDriver(storage, recorder, steps, timer, ceiling)
    load = ClosedLoop([reads(client, count) for client, count in enumerate(counts)])
    rows = recorder.list_rows(driver.run_loop(load, end_s))
    assert not find_operation_problems(rows)
    return driver, rows, summarize_loop(rows, recorder.spans, 1.0, by_server=True)


def test_rates_are_those_of_the_main_operation_alone(timer: SimulatedTimer) -> None:
    """Other operations before and after the copies take their own time."""
    steps = StepClock(1.0, 1_000_000)
    recorder = Recorder(steps, 1)
    storage = SimulatedStorage(timer, answer_s=0.5)
    driver = ClosedLoopDriver(storage, recorder, steps, timer)
    names = ("mkdir", "copy", "copy", "delete")
    sequence = (Operation(0.0, name, 0, FILE) for name in names)
    end_s = driver.run_loop(ClosedLoop([sequence]), 60.0)
    figures = summarize_loop(recorder.list_rows(end_s), recorder.spans, 1.0)
    assert figures["total_s"] == pytest.approx(1.0)
    assert figures["total_mb"] > 0
    assert figures["achieved_mb_per_s"] == pytest.approx(figures["total_mb"] / figures["total_s"])
    assert figures["achieved_hz"] == pytest.approx(2.0)


def test_each_client_sends_when_its_last_operation_ended(timer: SimulatedTimer) -> None:
    storage = SimulatedStorage(timer, answer_s=0.25)
    driver, rows, figures = run_loop([6, 2], 60.0, timer, storage)
    assert storage.sent == [0.0, 0.0, 0.25, 0.25, 0.5, 0.75, 1.0, 1.25]
    assert driver.is_complete
    assert [(row["step"], row["scheduled"], row["late"]) for row in rows] == [(0, 6, 0), (1, 2, 0)]
    assert rows[1]["step_s"] == pytest.approx(0.5)
    assert figures["total_s"] == pytest.approx(1.5)
    assert figures["total_mb"] == pytest.approx(80 / 1e6)
    assert figures["latency_max_s"] == pytest.approx(0.25, rel=0.01)
    assert figures["achieved_hz"] == pytest.approx(8 / 1.5)
    assert figures["servers"] == 1


@pytest.mark.parametrize("clients, rate", [(8, 100), (1, 1000)])
def test_closed_loop_stops_at_the_ceiling(clients: int, rate: int, timer: SimulatedTimer) -> None:
    storage = SimulatedStorage(timer, answer_s=0.0001)
    ceiling = CeilingShare(mb_per_s=rate * 10 / 1e6)  # of 10 bytes each
    driver, rows, figures = run_loop([6000] * clients, 5.0, timer, storage, ceiling)
    assert not driver.is_complete
    assert len(storage.sent) == pytest.approx(5 * rate, rel=0.01)
    assert sum(sent < 1 for sent in storage.sent) == pytest.approx(rate, rel=0.02), "no burst"
    assert figures["achieved_hz"] == pytest.approx(rate, rel=0.05)
    assert not any(row["late"] for row in rows)
    assert all(row["held"] == row["scheduled"] for row in rows)


@pytest.mark.parametrize("size", [1_100_000, 27_000_000, 500_000_000])
def test_whole_files_stay_below_the_ceiling(size: int, timer: SimulatedTimer) -> None:
    """Also the first file waits for its share, so that few large ones are not above the ceiling."""
    steps = StepClock(5.0, 1_000_000)
    loop_recorder = Recorder(steps, 1)
    storage = SimulatedStorage(timer, answer_s=0.01)
    driver = ClosedLoopDriver(storage, loop_recorder, steps, timer, CeilingShare(mb_per_s=5))
    file = LoadFile("root://host//a", size)
    sequence = (Operation(0.0, "read_file", 0, file) for _ in range(1000))
    rows = loop_recorder.list_rows(driver.run_loop(ClosedLoop([sequence]), 60.0))
    assert sum(row["bytes"] for row in rows) == 60 * 5_000_000 // size * size
    if rows:
        figures = summarize_loop(rows, loop_recorder.spans, 5.0)
        assert 4.9 < figures["achieved_mb_per_s"] <= 5.0


def test_slow_storage_is_not_held_back(timer: SimulatedTimer) -> None:
    storage = SimulatedStorage(timer, answer_s=1.0)
    _, rows, _ = run_loop([1000] * 64, 5.0, timer, storage, CeilingShare(mb_per_s=0.01))
    assert not any(row["held"] for row in rows), "a wait of a thousandth second each at the start"


def test_too_many_clients_are_refused() -> None:
    ceiling = CeilingShare(clients=8)
    task = LoadTask([FILE], {"clients": 9}, {}, 1, 0, 1, None, 0, 1.0, 5.0, ceiling=ceiling)
    with pytest.raises(PayloadError, match="the door permits 8 to this job"):
        workloads.open_files(task, SPAN)
    assert replace(task, axes={"clients": 8}).read_clients() == 8


def test_stall_delays_the_next_operation_instead_of_adding_late_ones(timer: SimulatedTimer) -> None:
    storage = SimulatedStorage(timer, answer_s=0.1, stall=(0.15, 1.15))
    _, rows, figures = run_loop([4], 60.0, timer, storage)
    assert storage.sent == pytest.approx([0.0, 0.1, 1.15, 1.25])
    assert sum(row["late"] for row in rows) == 0
    assert figures["latency_max_s"] == pytest.approx(1.05, rel=0.01)


def test_long_operations_count_with_all_their_time(timer: SimulatedTimer) -> None:
    _, rows, figures = run_loop([1], 60.0, timer, SimulatedStorage(timer, answer_s=3.5))
    assert [row["scheduled"] for row in rows] == [1, 0, 0, 0]
    assert [row["step_s"] for row in rows] == pytest.approx([1.0, 1.0, 1.0, 0.5])
    assert figures["achieved_hz"] == pytest.approx(1 / 3.5)


def test_signal_ends_a_loop(timer: SimulatedTimer) -> None:
    timer.at(1.0, timer._stop.set)
    storage = SimulatedStorage(timer, stall=(0.5, 1e9))
    driver, rows, _ = run_loop([1000], 60.0, timer, storage)
    assert (driver.is_complete, sum(row["failed"] for row in rows)) == (False, 1)
    assert timer.now() < 1.0 + 1.0 + 0.1


class _RefusingStorage(StorageClient):
    refusals = 10_000

    def start(self, flight: Flight) -> None:
        flight.send()
        self.refusals -= 1
        flight.end("", "refused" if self.refusals >= 0 else "")


def test_operations_that_fail_at_once_do_not_recurse(timer: SimulatedTimer) -> None:
    driver, rows, figures = run_loop([5_000], 60.0, timer, _RefusingStorage(1, 30.0))
    assert (driver.is_complete, rows[0]["failed"]) == (True, 5_000)
    assert "total_s" not in figures


def test_files_are_removed_in_spite_of_broken_connections() -> None:
    written, client = WrittenFiles("root://host//job"), _RefusingStorage(2, 30.0)
    written.adler32s, written._exists, client.refusals = dict.fromkeys("abc"), True, 2
    written.remove(client, threading.Event())
    assert (written.removed, written.adler32s) == (3, {})


def make_task(folder: Path, files: list[LoadFile] | None = None, /, **axes: Any) -> LoadTask:
    written = WrittenFiles(str(folder / "job"))
    return LoadTask(files or [], axes, {}, 1, 0, 1, None, 0, 1.0, 60.0, written)


def perform(task: LoadTask, load: Any, *, direct: bool = False) -> list[dict[str, Any]]:
    """Perform a closed loop on real paths; return its rows."""
    written = task.require_written()
    recorder = Recorder(StepClock(1e4, 0), 1, observe=written.observe)
    client = make_client(task.url, 4, 30.0, direct=direct)
    timer = LoadTimer(time.monotonic())
    driver = ClosedLoopDriver(client, recorder, StepClock(1e4, 0), timer)
    rows = recorder.list_rows(driver.run_loop(load, 1e4))
    assert driver.is_complete
    client.close()
    return rows


def prepare(task: LoadTask, operations: Iterator[Operation]) -> None:
    client = make_client(task.url, 4, 30.0)
    task.require_written().prepare(client, operations, threading.Event())
    client.close()


def remove(task: LoadTask) -> WrittenFiles:
    """Remove what a task wrote; the threads of a client that is closed end by themselves."""
    written = task.require_written()
    client = make_client(task.url, 4, 30.0)
    written.remove(client, threading.Event())
    client.close()
    return written


@pytest.mark.parametrize("direct", [False, True])
def test_streams_are_written_read_back_and_removed(tmp_path: Path, direct: bool) -> None:
    size = operation.BLOCK + 5_001
    task = make_task(tmp_path, clients=3, files=2, size_mb=size / 1e6, direction="write")
    prepare(task, workloads.write_streams(task))
    (row,) = perform(task, workloads.stream_files(task, SPAN), direct=direct)
    if direct and "other" in row["failures"]:
        pytest.skip("this file system has no O_DIRECT")
    assert (row["operation"], row["done"], row["bytes"]) == ("write_file", 6, 6 * size)
    folder = tmp_path / "job"
    checksums = {str(path): zlib.adler32(path.read_bytes()) for path in folder.iterdir()}
    assert checksums == task.require_written().adler32s
    assert len(checksums) == 6
    reading = replace(task, axes={**task.axes, "direction": "read"})
    broken = folder / "0-0"
    broken.write_bytes(b"x" + broken.read_bytes()[1:])
    (row,) = perform(reading, workloads.stream_files(reading, SPAN), direct=direct)
    assert (row["operation"], row["done"], row["bytes"]) == ("read_file", 5, 5 * size)
    assert json.loads(row["failures"]) == {"wrong-data": 1}
    written = remove(task)
    assert (written.removed, written.adler32s) == (6, {})
    assert list(tmp_path.iterdir()) == []


def test_readers_of_a_dataset_compare_its_checksums(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    right = LoadFile(str(tmp_path / "a"), 5, adler32=zlib.adler32(b"12345"))
    files = [right, right._replace(adler32=1), LoadFile(right.url, 4)]
    task = make_task(tmp_path, files, clients=1, files=3, direction="read")
    assert list(workloads.write_streams(task)) == []
    (row,) = perform(task, workloads.stream_files(task, SPAN))
    assert (row["done"], json.loads(row["failures"])) == (1, {"wrong-data": 2})


def test_deletion_deletes_what_was_created(tmp_path: Path) -> None:
    task = make_task(tmp_path, clients=3, files=5, size_kb=2)
    prepare(task, workloads.create_files(task))
    assert [path.stat().st_size for path in (tmp_path / "job").iterdir()] == [2000] * 15
    (row,) = perform(task, workloads.delete_files(task, SPAN))
    assert (row["operation"], row["done"], row["failed"]) == ("delete", 15, 0)
    written = remove(task)
    assert (written.removed, written.adler32s) == (0, {})
    assert list(tmp_path.iterdir()) == []


def test_deletion_at_a_rate_has_a_file_for_each_instant(tmp_path: Path) -> None:
    task = make_task(tmp_path, clients=2, rate_hz=1.5)
    created = {operation.file.url: operation.name for operation in workloads.create_files(task)}
    assert set(created.values()) == {"create"}
    deleted = workloads.delete_files(task, SPAN)
    assert not isinstance(deleted, load_driver.ClosedLoop)
    urls = [operation.file.url for operation in deleted]
    assert len(urls) == len(set(urls)) == 180
    assert set(urls) <= set(created)


def test_preparation_that_fails_names_operation_and_reason(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("no folder")
    task = make_task(tmp_path, clients=1)
    with pytest.raises(PayloadError, match=r"mkdir .*/job before the load: .*writable area"):
        prepare(task, iter(()))


def test_loads_that_write_need_a_folder(tmp_path: Path) -> None:
    task = replace(make_task(tmp_path), written=None)
    for make in (workloads.stream_files, workloads.delete_files):
        with pytest.raises(PayloadError, match="set writes = true in the table"):
            make(task, SPAN)


def test_pattern_reads_random_pieces_in_its_range(tmp_path: Path) -> None:
    file = LoadFile("root://host//a", 10_000_000)
    task = make_task(tmp_path, [file], reads=200, vector=8, chunk_kb="0.1-100", clients=2)
    first, second = workloads.read_pattern(task, SPAN).sequences
    opened, *reads = first
    assert (opened.name, opened.keep) == ("open", True)
    assert Counter(read.name for read in reads) == {"vector_read": 200}
    sizes = [size for read in reads for _, size in read.chunks]
    assert len(sizes) == 1600
    assert 100 <= min(sizes) < 1_000
    assert 99_000 < max(sizes) <= 100_000
    for read in reads:
        ends = [offset + size for offset, size in read.chunks]
        assert all(offset >= end for (offset, _), end in zip(read.chunks[1:], ends, strict=False))
        assert ends[-1] <= file.size
    assert [read.chunks for read in second][1:] != [read.chunks for read in reads]


@pytest.mark.parametrize(
    "axes, message",
    [
        ({"chunk_kb": "20-10"}, "chunk_kb = '20-10': expected one number or two like 10-20"),
        ({"chunk_kb": "x"}, "chunk_kb = 'x': expected"),
        ({"chunk_kb": "500"}, "cannot be read from a file of 100000 bytes"),
        ({"vector": 201}, "vector = 201: expected a number above 0 and up to 200"),
    ],
)
def test_patterns_that_cannot_be_read_are_refused(
    tmp_path: Path, axes: dict[str, Any], message: str
) -> None:
    task = make_task(tmp_path, [LoadFile("root://host//a", 100_000)], **axes)
    with pytest.raises(PayloadError) as error:
        workloads.read_pattern(task, SPAN)
    assert message in str(error.value)


def test_content_is_that_of_the_number() -> None:
    whole = b"".join(operation.iterate_blocks(6, 3 * operation.BLOCK + 5))
    assert len(whole) == 3 * operation.BLOCK + 5
    assert whole[: operation.BLOCK] == operation.make_blocks()[6]
    assert whole[2 * operation.BLOCK : 3 * operation.BLOCK] == operation.make_blocks()[0]


FILES = [LoadFile("root://host//a", 100), LoadFile("root://host//b", 100)]


@pytest.mark.parametrize("rate", [0.3, 7.0, 50.0, 200.0])
def test_rate_gives_exact_number_of_even_instants(rate: float) -> None:
    instants = list(schedules.pace_at_rate(rate, 5.0, 25.0))
    assert len(instants) == round(20 * rate)
    assert instants[0] == 5.0
    assert [b - a for a, b in pairwise(instants)] == pytest.approx([1 / rate] * (len(instants) - 1))


def test_generators_that_load_together_alternate() -> None:
    parts = [list(schedules.pace_at_rate(2.0, 0.0, 10.0, part, 4)) for part in range(4)]
    assert sorted(chain(*parts)) == pytest.approx(list(schedules.pace_at_rate(8.0, 0.0, 10.0)))


def test_each_client_acts_once_a_period_at_its_own_phase() -> None:
    schedule = list(schedules.pace_clients(50, 10.0, 20.0, 60.0, seed=3))
    assert schedule == sorted(schedule)
    assert schedule == list(schedules.pace_clients(50, 10.0, 20.0, 60.0, seed=3))
    assert schedule != list(schedules.pace_clients(50, 10.0, 20.0, 60.0, seed=4))
    assert len(schedule) == 50 * 4
    for client in range(50):
        instants = [due for due, who in schedule if who == client]
        assert instants == pytest.approx([instants[0] + 10.0 * n for n in range(4)])
        assert 20.0 <= instants[0] < 30.0
    assert len({due for due, _ in schedule}) == 200


def test_opens_go_through_all_clients_and_files() -> None:
    operations = list(
        schedules.schedule_opens(schedules.pace_at_rate(10.0, 0.0, 10.0), 3, FILES, seed=1)
    )
    assert [op.client for op in operations[:4]] == [0, 1, 2, 0]
    assert {op.file for op in operations} == set(FILES)
    assert not any(op.keep for op in operations)


def test_readers_open_before_they_read() -> None:
    instants = schedules.pace_clients(4, 2.0, 0.0, 4.0, seed=1)
    chooser = schedules.make_chunk_chooser(schedules.CONSECUTIVE, 25, 1)
    operations = list(schedules.schedule_reads(instants, 4, FILES, 1, chooser, (-2.0, 0.0)))
    assert [(op.due_s, op.name, op.client) for op in operations[:4]] == [
        (-2.0, "open", 0),
        (-1.5, "open", 1),
        (-1.0, "open", 2),
        (-0.5, "open", 3),
    ]
    assert [op.name for op in operations[4:]] == ["read"] * 8
    for client in range(4):
        first, second = (op.chunks[0] for op in operations[4:] if op.client == client)
        assert second == ((first[0] + 25) % 100, 25)


@given(
    pieces=st.integers(1, 200),
    more=st.integers(0, 5000),
    free=st.integers(0, 5000),
    seed=st.integers(),
)
def test_vector_is_disjoint_ordered_and_complete(
    pieces: int, more: int, free: int, seed: int
) -> None:
    block = pieces + more
    choose = schedules.make_chunk_chooser(schedules.VECTOR, block, pieces)
    chunks = choose(0, block + free, random.Random(seed))
    assert len(chunks) == pieces
    assert sum(size for _, size in chunks) == block
    ends = [0]
    for offset, size in chunks:
        assert offset >= ends[-1]
        assert size > 0
        ends.append(offset + size)
    assert ends[-1] <= block + free


@given(seed=st.integers())
def test_random_block_lies_in_file(seed: int) -> None:
    choose = schedules.make_chunk_chooser(schedules.RANDOM, 40, 1)
    ((offset, size),) = choose(0, 100, random.Random(seed))
    assert size == 40
    assert 0 <= offset <= 60
