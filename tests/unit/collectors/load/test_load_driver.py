"""Loads in simulated time: sending, recording and ends."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from simulated_load import SimulatedStorage, SimulatedTimer, run_load

from treehammer.collectors.kit.treehammer_load import load_driver, recorder, workloads
from treehammer.collectors.kit.treehammer_load.operation import (
    CeilingShare,
    Flight,
    LoadFile,
    Operation,
)
from treehammer.collectors.kit.treehammer_load.recorder import summarize_rows
from treehammer.collectors.record.operation_steps import LatencyHistogram, find_operation_problems

FILE = LoadFile("root://host//a", 1_000_000)


def opens(rate: float, end_s: float) -> Iterator[Operation]:
    instants = workloads.pace_at_rate(rate, 0.0, end_s)
    operations: Iterator[Operation] = workloads.schedule_opens(instants, 1, [FILE], seed=1)
    return operations


def test_quiet_load_is_recorded_exactly() -> None:
    timer = SimulatedTimer()
    rows = run_load(opens(50, 4), 4.0, timer, SimulatedStorage(timer))
    assert not find_operation_problems(rows)
    assert [(r["step"], r["scheduled"], r["done"], r["failed"], r["late"]) for r in rows] == [
        (step, 50, 50, 0, 0) for step in range(4)
    ]
    assert {r["server"] for r in rows} == {"server:1094"}
    assert [r["step_start_us"] for r in rows] == [1_000_000 * n for n in range(1, 5)]
    assert not any(r["generator_limited"] for r in rows)
    assert [r["generator_cpu"] for r in rows] == pytest.approx([0.1] * 4)
    figures = summarize_rows(rows)
    assert figures["attempted_hz"] == figures["achieved_hz"] == 50
    assert figures["latency_max_s"] == pytest.approx(0.002, rel=0.01)
    assert figures["failed_share"] == figures["late_share"] == figures["limited_steps"] == 0


def test_stall_shows_in_tail_and_does_not_delay_sending() -> None:
    timer = SimulatedTimer()
    storage = SimulatedStorage(timer, stall=(1.5, 2.5))
    rows = run_load(opens(50, 4), 4.0, timer, storage)
    assert storage.sent == pytest.approx(list(workloads.pace_at_rate(50, 0.0, 4.0)))
    assert sum(r["done"] for r in rows) == 200
    assert not any(r["generator_limited"] for r in rows)
    whole = LatencyHistogram.sum(LatencyHistogram.decode(r["latency"]) for r in rows)
    assert whole.maximum == pytest.approx(1.0, rel=0.01)
    assert whole.quantile(0.99) == pytest.approx(0.98, abs=0.03)
    # A quarter of all instants lie in the stall: as many as without the generator's patience.
    assert whole.share_above(0.01) == pytest.approx(0.25, abs=0.01)


def test_slow_generator_is_marked() -> None:
    timer = SimulatedTimer()
    rows = run_load(opens(50, 4), 4.0, timer, SimulatedStorage(timer, send_s=0.021))
    assert not find_operation_problems(rows)
    assert sum(r["scheduled"] for r in rows) == 200
    assert all(r["generator_limited"] for r in rows)
    assert max(r["lateness_max_s"] for r in rows) == pytest.approx(0.2, abs=0.01)
    # Latency counts from the schedule, so the wait for the generator is in it.
    assert LatencyHistogram.decode(rows[-1]["latency"]).maximum == pytest.approx(0.2, abs=0.01)
    assert set(summarize_rows(rows)) == {"limited_steps", "late_share"}


def test_busy_generator_is_marked() -> None:
    timer = SimulatedTimer(cores=0.95)
    rows = run_load(opens(50, 1), 1.0, timer, SimulatedStorage(timer))
    assert rows[0]["generator_limited"]
    assert not rows[0]["late"]


def test_operations_without_answer_end_as_unfinished() -> None:
    timer = SimulatedTimer()
    storage = SimulatedStorage(timer, answer_s=1e9, timeout_s=5.0)
    rows = run_load(opens(50, 2), 2.0, timer, storage)
    assert not find_operation_problems(rows)
    assert [json.loads(r["failures"]) for r in rows] == [{"unfinished": 50}] * 2
    assert timer.now() == pytest.approx(2.0 + 5.0 + load_driver.STOP_GRACE_S, abs=0.1)


def test_signal_ends_load_with_what_it_has() -> None:
    timer = SimulatedTimer()
    storage = SimulatedStorage(timer, stall=(0.9, 1e9))
    timer.at(1.25, timer.stop)
    rows = run_load(opens(50, 100), 100.0, timer, storage)
    assert not find_operation_problems(rows)
    done, failed = (sum(r[name] for r in rows) for name in ("done", "failed"))
    assert (done, failed) == (45, 18)
    assert rows[-1]["step_s"] == pytest.approx(0.25)
    assert timer.now() < 1.25 + load_driver.STOP_GRACE_S + 0.1


def test_load_ends_though_generator_cannot_follow() -> None:
    timer = SimulatedTimer()
    storage = SimulatedStorage(timer, send_s=0.5, timeout_s=3.0)
    rows = run_load(opens(50, 2), 2.0, timer, storage)
    assert timer.now() < 2.0 + 3.0 + 2.0
    assert sum(r["scheduled"] for r in rows) == 100
    assert json.loads(rows[0]["failures"])["unfinished"] == 40
    assert all(r["generator_limited"] for r in rows)


def test_operations_in_flight_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_driver, "MAX_IN_FLIGHT", 10)
    timer = SimulatedTimer()
    rows = run_load(opens(50, 2), 2.0, timer, SimulatedStorage(timer, stall=(0.5, 1.5)))
    assert sum(r["done"] for r in rows) == 100
    assert any(r["generator_limited"] for r in rows)


def test_preparation_counts_to_first_step_without_marking_it() -> None:
    steps = recorder.StepClock(10.0, 0, first=3)
    assert steps.find_step(25.0) == 3
    assert [steps.find_step(due) for due in (30.0, 39.99, 40.0)] == [3, 3, 4]
    timer = SimulatedTimer()
    timer.time_s = 1.0
    early = [Operation(-1.0, "open", 0, FILE, keep=True)]
    rows = run_load(
        iter([*early, Operation(1.5, "read", 0, FILE, [(0, 10)])]),
        2.0,
        timer,
        SimulatedStorage(timer),
    )
    assert [(r["step"], r["operation"], r["late"], r["generator_limited"]) for r in rows] == [
        (0, "open", 1, False),
        (1, "read", 0, False),
    ]
    assert rows[1]["bytes"] == 10


def test_too_many_servers_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    found = recorder.Recorder(recorder.StepClock(1.0, 0), clients=1)
    for number in range(6):
        flight = Flight(Operation(0.1, "open", 0, FILE), lambda: 0.1, found.record)
        flight.send()
        if number % 2:
            flight.fail("reset", f"s{number}:1")
        else:
            flight.succeed(f"s{number}:1")
    assert len(found.list_rows(1.0)) == 6
    monkeypatch.setattr(recorder, "MAX_ROWS", 5)
    (row,) = found.list_rows(1.0)
    assert not find_operation_problems([row])
    assert (row["server"], row["scheduled"], row["done"]) == ("", 6, 3)
    assert json.loads(row["failures"]) == {"reset": 3}


@pytest.mark.parametrize("rate", [5000.0, 201.0])
def test_schedule_stops_at_the_ceiling(rate: float) -> None:
    """Whatever a test asks for, its job sends no more than its share of the door's ceiling."""
    timer = SimulatedTimer()
    storage = SimulatedStorage(timer)
    rows = run_load(opens(rate, 10), 10.0, timer, storage, CeilingShare(opens_per_s=200))
    for second in range(10):
        sent = sum(second <= instant < second + 1 for instant in storage.sent)
        assert sent == pytest.approx(200, abs=1)
    assert sum(r["scheduled"] for r in rows) == rate * 10, "what was not sent is unfinished"
    assert all(r["generator_limited"] for r in rows[3:])


def test_schedule_at_the_ceiling_is_not_delayed() -> None:
    timer = SimulatedTimer()
    storage = SimulatedStorage(timer)
    run_load(opens(200, 10), 10.0, timer, storage, CeilingShare(opens_per_s=200))
    assert storage.sent == pytest.approx(list(workloads.pace_at_rate(200, 0.0, 10.0)))


def test_traffic_stops_at_the_ceiling() -> None:
    timer = SimulatedTimer()
    storage = SimulatedStorage(timer)
    instants = workloads.pace_clients(50, 0.1, 0.0, 10.0, seed=1)
    chooser = workloads.make_chunk_chooser("random", 100_000, 1)
    reads = workloads.schedule_reads(instants, 50, [FILE], 1, chooser, (0.0, 0.0))
    run_load(reads, 10.0, timer, storage, CeilingShare(mb_per_s=5))
    assert len(storage.sent) == pytest.approx(50 + 5 * 10 * 10 + 25, abs=5), (
        "50 MB/s were asked for"
    )
