"""Closed loops in simulated time, and loads that write."""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulated_load import SimulatedStorage, SimulatedTimer

from treehammer.collectors.kit.treehammer_kit.payload_task import PayloadError
from treehammer.collectors.kit.treehammer_load import load_driver, operation, workloads
from treehammer.collectors.kit.treehammer_load.clients import make_client
from treehammer.collectors.kit.treehammer_load.load_driver import (
    ClosedLoop,
    ClosedLoopDriver,
    LoadTimer,
)
from treehammer.collectors.kit.treehammer_load.load_task import LoadTask, WrittenFiles
from treehammer.collectors.kit.treehammer_load.operation import (
    NO_CEILING,
    CeilingShare,
    Flight,
    LoadFile,
    Operation,
    StorageClient,
)
from treehammer.collectors.kit.treehammer_load.recorder import Recorder, StepClock, summarize_loop
from treehammer.collectors.record.operation_steps import find_operation_problems

FILE = LoadFile("root://host//a", 1_000_000)
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
    rows = recorder.list_rows(driver.run_loop(load, end_s), every_step=True)
    assert not find_operation_problems(rows)
    return driver, rows, summarize_loop(rows, recorder.spans, 1.0, by_server=True)


def test_rates_are_those_of_the_main_operation_alone() -> None:
    """Other operations before and after the copies take their own time."""
    timer = SimulatedTimer()
    steps = StepClock(1.0, 1_000_000)
    recorder = Recorder(steps, 1)
    storage = SimulatedStorage(timer, answer_s=0.5)
    driver = ClosedLoopDriver(storage, recorder, steps, timer)
    names = ("mkdir", "copy", "copy", "delete")
    sequence = (Operation(0.0, name, 0, FILE) for name in names)
    end_s = driver.run_loop(ClosedLoop([sequence]), 60.0)
    figures = summarize_loop(recorder.list_rows(end_s, every_step=True), recorder.spans, 1.0)
    assert figures["total_s"] == pytest.approx(1.0)
    assert figures["total_mb"] > 0
    assert figures["achieved_mb_per_s"] == pytest.approx(figures["total_mb"] / figures["total_s"])
    assert figures["achieved_hz"] == pytest.approx(2.0)


def test_each_client_sends_when_its_last_operation_ended() -> None:
    timer = SimulatedTimer()
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


def test_closed_loop_stops_at_the_ceiling() -> None:
    timer = SimulatedTimer()
    storage = SimulatedStorage(timer, answer_s=0.001)
    ceiling = CeilingShare(mb_per_s=0.001)  # a hundred reads of 10 bytes a second
    driver, rows, figures = run_loop([1000] * 8, 5.0, timer, storage, ceiling)
    assert not driver.is_complete
    assert len(storage.sent) == pytest.approx(500, abs=2)
    assert sum(sent < 1 for sent in storage.sent) == pytest.approx(100, abs=2), "no burst"
    assert figures["achieved_hz"] == pytest.approx(100, rel=0.05)
    assert not any(row["late"] for row in rows)


def test_too_many_clients_are_refused() -> None:
    ceiling = CeilingShare(clients=8)
    task = LoadTask([FILE], {"clients": 9}, {}, 1, 0, 1, None, 0, 1.0, 5.0, ceiling=ceiling)
    with pytest.raises(PayloadError, match="the door permits 8 to this job"):
        workloads.open_files(task, SPAN)
    assert replace(task, axes={"clients": 8}).read_clients() == 8


def test_stall_delays_the_next_operation_instead_of_adding_late_ones() -> None:
    timer = SimulatedTimer()
    storage = SimulatedStorage(timer, answer_s=0.1, stall=(0.15, 1.15))
    _, rows, figures = run_loop([4], 60.0, timer, storage)
    assert storage.sent == pytest.approx([0.0, 0.1, 1.15, 1.25])
    assert sum(row["late"] for row in rows) == 0
    assert figures["latency_max_s"] == pytest.approx(1.05, rel=0.01)


def test_long_operations_count_with_all_their_time() -> None:
    timer = SimulatedTimer()
    _, rows, figures = run_loop([1], 60.0, timer, SimulatedStorage(timer, answer_s=3.5))
    assert [(row["step"], row["scheduled"], row["step_s"]) for row in rows] == [
        (0, 1, 1.0),
        (1, 0, 1.0),
        (2, 0, 1.0),
        (3, 0, pytest.approx(0.5)),
    ]
    assert figures["achieved_hz"] == pytest.approx(1 / 3.5)


def test_end_of_load_cuts_sequences() -> None:
    timer = SimulatedTimer()
    driver, rows, _ = run_loop([100], 2.0, timer, SimulatedStorage(timer, answer_s=0.3))
    assert not driver.is_complete
    assert sum(row["done"] for row in rows) == 7
    assert timer.now() < 2.0 + 0.3 + 0.1


def test_signal_ends_a_loop() -> None:
    timer = SimulatedTimer()
    timer.at(1.0, timer.stop)
    storage = SimulatedStorage(timer, stall=(0.5, 1e9))
    driver, rows, figures = run_loop([1000], 60.0, timer, storage)
    assert not driver.is_complete
    assert sum(row["failed"] for row in rows) == 1
    assert "total_s" not in figures
    assert timer.now() < 1.0 + 1.0 + 0.1


class _RefusingStorage(StorageClient):
    def start(self, flight: Flight) -> None:
        flight.send()
        flight.fail("refused")


def test_operations_that_fail_at_once_do_not_recurse() -> None:
    timer = SimulatedTimer()
    driver, rows, figures = run_loop([5_000], 60.0, timer, _RefusingStorage(1, 30.0))
    assert driver.is_complete
    assert rows[0]["failed"] == 5_000
    assert "total_s" not in figures


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
    rows = recorder.list_rows(driver.run_loop(load, 1e4), every_step=True)
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
    found = {str(path): zlib.adler32(path.read_bytes()) for path in folder.iterdir()}
    assert found == task.require_written().adler32s
    assert len(found) == 6
    reading = replace(task, axes={**task.axes, "direction": "read"})
    broken = folder / "0-0"
    broken.write_bytes(b"x" + broken.read_bytes()[1:])
    (row,) = perform(reading, workloads.stream_files(reading, SPAN), direct=direct)
    assert (row["operation"], row["done"], row["bytes"]) == ("read_file", 5, 5 * size)
    assert json.loads(row["failures"]) == {"wrong-data": 1}
    written = remove(task)
    assert (written.removed, written.adler32s) == (6, {})
    assert list(tmp_path.iterdir()) == []


def test_readers_without_dataset_find_files_written_before(tmp_path: Path) -> None:
    task = make_task(tmp_path, clients=2, files=2, size_mb=0.01, direction="read")
    prepare(task, workloads.write_streams(task))
    (row,) = perform(task, workloads.stream_files(task, SPAN))
    assert (row["done"], row["failed"], row["bytes"]) == (4, 0, 40_000)
    assert remove(task).removed == 4


def test_readers_of_a_dataset_compare_its_checksums(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    files = [
        LoadFile(str(tmp_path / "a"), 5, adler32=zlib.adler32(b"12345")),
        LoadFile(str(tmp_path / "a"), 5, adler32=1),
        LoadFile(str(tmp_path / "a"), 4),
    ]
    task = make_task(tmp_path, files, clients=1, files=3, direction="read")
    assert list(workloads.write_streams(task)) == []
    (row,) = perform(task, workloads.stream_files(task, SPAN))
    assert (row["done"], json.loads(row["failures"])) == (1, {"wrong-data": 2})


def test_deletion_deletes_what_was_created(tmp_path: Path) -> None:
    task = make_task(tmp_path, clients=3, files=5, size_kb=2)
    prepare(task, workloads.create_files(task))
    paths = list((tmp_path / "job").iterdir())
    assert {path.stat().st_size for path in paths} == {2000}
    assert len(paths) == 15
    (row,) = perform(task, workloads.delete_files(task, SPAN))
    assert (row["operation"], row["done"], row["failed"]) == ("delete", 15, 0)
    written = remove(task)
    assert (written.removed, written.adler32s) == (0, {})
    assert list(tmp_path.iterdir()) == []


def test_deletion_at_a_rate_has_a_file_for_each_instant(tmp_path: Path) -> None:
    task = make_task(tmp_path, clients=2, rate_hz=1.5)
    created = {one.file.url: one.name for one in workloads.create_files(task)}
    assert set(created.values()) == {"create"}
    deleted = workloads.delete_files(task, SPAN)
    assert not isinstance(deleted, load_driver.ClosedLoop)
    found = list(deleted)
    assert len(found) == 180
    assert {one.file.url for one in found} <= set(created)
    assert len({one.file.url for one in found}) == 180


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
    opened, *found = first
    assert (opened.name, opened.keep) == ("open", True)
    assert Counter(one.name for one in found) == {"vector_read": 200}
    sizes = [size for one in found for _, size in one.chunks]
    assert len(sizes) == 1600
    assert 100 <= min(sizes) < 1_000
    assert 99_000 < max(sizes) <= 100_000
    for one in found:
        ends = [offset + size for offset, size in one.chunks]
        assert all(offset >= end for (offset, _), end in zip(one.chunks[1:], ends, strict=False))
        assert ends[-1] <= file.size
    assert [one.chunks for one in second][1:] != [one.chunks for one in found]


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
