"""Launches of paired mode: two live payloads, fallback without turns, failures and stop signals."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from treehammer.collectors.job_spec import ExecutionLimits, ExecutionSpec

#: A payload that takes turns without the kit: each entry burns CPU, on side B half as much again.
TURNS = """
import json, os, time

prefix = os.environ["TREEHAMMER_TURNS"]
variant = os.environ.get("TREEHAMMER_AXIS_RELEASE", "old")
work = 30 if variant == "new" else 20
read, passes = {}, 0

def burn(entries):
    for _ in range(entries * work):
        sum(range(1000))

%s
with open(prefix + ".commands") as commands, open(prefix + ".answers", "w", 1) as answers:
    answers.write("ready\\n")
    for line in commands:
        word, *numbers = line.split()
        if word == "finish":
            break
        answer = 0
        if word == "open":
            answer = 400
        elif word == "discard":
            read = {}
        elif word == "close":
            passes += 1
        elif word == "run":
            first, last = map(int, numbers)
            cpu, wall = time.process_time_ns(), time.monotonic_ns()
            burn(last - first)
            for entry in range(first, last):
                read[entry] = read.get(entry, 0) + 1
            answer = f"{time.process_time_ns() - cpu} {time.monotonic_ns() - wall} 1 0 0 0"
        answers.write(f"{answer}\\n")
assert set(read.values()) == {passes} and len(read) == 400
values = {"passes_done": passes, "events_read": len(read)}
with open(os.environ["TREEHAMMER_RESULT"], "w") as stream:
    json.dump({"format": 1, "values": values, "extras": {}}, stream)
"""
#: A payload that knows nothing of turns.
ALONE = """
import json, os
with open(os.environ["TREEHAMMER_RESULT"], "w") as stream:
    json.dump({"format": 1, "values": {"events_read": 7}, "extras": {}}, stream)
"""


MakeLaunch = Callable[..., list[ExecutionSpec]]


@pytest.fixture
def make_launch(make_spec: Callable[..., ExecutionSpec]) -> MakeLaunch:
    """Function that returns the executions of one launch."""
    return partial(_make_launch, make_spec)


def _make_launch(
    make_spec: Callable[..., ExecutionSpec],
    round_: int = 1,
    order: str = "AB",
    kind: str = "timed",
) -> list[ExecutionSpec]:
    specs = []
    for position, side in enumerate(order, 1):
        release = "new" if side == "B" and kind == "timed" else "old"
        spec = make_spec(
            position, kind=kind, mode="paired", side=side, variant={"release": release}
        )
        identity = {**spec.identity, "round": round_, "launch_order": order}
        specs.append(replace(spec, round=round_, identity=identity))
    return specs


@pytest.mark.parametrize("order", ["AB", "BA"])
def test_both_sides_take_turns_and_extra_work_is_found(
    bench: Any, make_launch: MakeLaunch, order: str
) -> None:
    # The order of a control changes nothing that the first launch does not show.
    control = make_launch(2, order, "control") if order == "AB" else []
    done = bench.run(TURNS % "", *make_launch(1, order), *control)
    assert done.exit_code == 0, done.output + done.errors
    by_side = {}
    for record in done.records:
        values = record.values
        side = order[int(str(values["position"])) - 1]
        by_side[str(values["kind"]), side] = values
        assert values["run_mode"] == "paired"
        assert not {"eff_payload", "eff_job"} & {*values}
        assert values["segments"] == len(values["segment_cpu_ns"]) == len(values["segment_wall_ns"])
        assert sum(values["segment_cpu_ns"]) >= 1e9
        assert float(str(values["payload_user_s"])) >= 1
        assert ("segment_cpu_log_ratio" in values) == (side == "B")
    assert by_side["timed", "A"]["passes_done"] == by_side["timed", "B"]["passes_done"]
    assert 0.2 < float(str(by_side["timed", "B"]["segment_cpu_log_ratio"])) < 0.6  # ln 1.5 is 0.41
    if control:
        assert abs(float(str(by_side["control", "B"]["segment_cpu_log_ratio"]))) < 0.2
        assert by_side["control", "A"]["segments"] == by_side["control", "B"]["segments"]


def test_payload_without_turns_runs_in_rounds(bench: Any, make_launch: MakeLaunch) -> None:
    done = bench.run(ALONE, *make_launch(1), *make_launch(2, "BA"))
    assert done.exit_code == 0, done.output + done.errors
    assert [record.values["run_mode"] for record in done.records] == ["sequential"] * 4
    assert all("eff_payload" in record.values for record in done.records)
    assert not any("segments" in record.values for record in done.records)


@pytest.mark.parametrize(
    "damage, kind",
    [
        ("if variant == 'new': raise SystemExit(3)", "exit"),
        ("if variant == 'new': burn = lambda entries: os._exit(5)", "exit"),
        ("if variant == 'new': burn = lambda entries: os.kill(os.getpid(), 11)", "signal"),
    ],
)
def test_failure_of_one_half_fails_both(
    bench: Any, make_launch: MakeLaunch, damage: str, kind: str
) -> None:
    done = bench.run(TURNS % damage, *make_launch())
    old, new = (record.values for record in done.records)
    assert (new["failure_class"], new["failure_kind"]) == ("payload", kind)
    assert (old["failure_class"], old["failure_kind"]) == ("payload", "other-half")
    assert "other half of the launch failed" in str(old["failure_message"])


def test_invalid_answer_fails_both(bench: Any, make_launch: MakeLaunch) -> None:
    done = bench.run(TURNS.replace("answer = 400", "answer = 'many'") % "", *make_launch())
    kinds = {
        (record.values["failure_kind"], record.values["failure_phase"]) for record in done.records
    }
    assert kinds == {("turns", "loop")}
    assert "invalid answer 'many' to 'open 0'" in str(done.records[0].values["failure_message"])


def test_wall_limit_ends_both(bench: Any, make_launch: MakeLaunch) -> None:
    hang = "burn = lambda entries: time.sleep(60)"
    done = bench.run(TURNS % hang, *make_launch(), limits=ExecutionLimits(2.0, 0))
    kinds = sorted(str(record.values["failure_kind"]) for record in done.records)
    assert kinds in (["timeout", "timeout"], ["other-half", "timeout"])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_worker(bench: Any, make_launch: MakeLaunch, number: int) -> None:
    mark = "open('pid', 'w').write(str(os.getpid()));"
    bench.write_job(TURNS % f"{mark} burn = lambda entries: time.sleep(0.05)", *make_launch())
    process = subprocess.Popen(
        bench.command(), cwd=bench.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    paths = [bench.folder / f"work/1-{position}/pid" for position in (1, 2)]
    wait_for(lambda: all(path.exists() and path.read_text() for path in paths))
    pids = [int(path.read_text()) for path in paths]
    process.send_signal(number)
    process.wait(timeout=60)
    wait_for(lambda: not any(is_running(pid) for pid in pids))
    if number == signal.SIGTERM:
        done = bench.read_result(process.returncode)
        assert {record.values["failure_class"] for record in done.records} == {"evicted"}
        assert len(done.records) == 2


def test_launch_with_one_side_is_refused(bench: Any, make_launch: MakeLaunch) -> None:
    done = bench.run(TURNS % "", make_launch()[0])
    assert done.exit_code == 2
    assert "must hold the sides A and B" in done.output + done.errors


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stream:
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
