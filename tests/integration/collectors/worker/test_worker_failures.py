"""Ends of payloads, alone and in launches: each is classified and recorded, later executions still run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from polling import wait_until
from spool_harness import is_alive

from treehammer.collectors.job_spec import MIN_LAUNCH_CPU_S, ExecutionLimits, ExecutionSpec

#: A payload that ends in the way of its axis.
ENDS = """
import os, signal, sys

def report(text):
    open(os.environ["TREEHAMMER_RESULT"], "w").write(text)

end = os.environ["TREEHAMMER_AXIS_END"]
if end == "good":
    report('{"format": 1, "values": {"events_read": 5}, "extras": {"mine": 2.5}}')
elif end == "exit":
    sys.exit("the reason")
elif end == "reported":
    report('''{"format": 1, "values": {"events_read": 7}, "failure": {
        "failure_class": "read", "kind": "getentry", "phase": "loop",
        "message": "GetEntry returned -1", "transient": true}}''')
    sys.exit(1)
elif end != "nothing":
    os.kill(os.getpid(), getattr(signal, end))
"""


def failure(values: Any) -> tuple[str, str]:
    return values["failure_class"], values["failure_kind"]


def test_each_end_of_a_payload_is_recorded_and_the_next_execution_runs(
    bench: Any, make_spec: Callable[..., Any]
) -> None:
    # A plain SIGKILL is not classified as out of memory.
    ends = ("exit", "SIGABRT", "SIGKILL", "nothing", "reported", "good")
    specs = [make_spec(number, variant={"end": end}) for number, end in enumerate(ends, 1)]
    metrics = {"mine": {"unit": "1", "better": "", "description": ""}}
    ran = bench.run(ENDS, *specs, metrics=metrics)
    assert ran.exit_code == 1
    assert (ran.attempt["done"], ran.attempt["failed"]) == (6, 5)
    assert ran.attempt["failures"] == {"payload": 4, "read": 1}
    assert ran.attempt["ended_us"] > ran.attempt["started_us"]
    assert "payload/signal" in ran.output
    values = {end: record.values for end, record in zip(ends, ran.records, strict=True)}
    for end, kind, text in (
        ("exit", "exit", "exit code 1"),
        ("SIGABRT", "signal", "SIGABRT"),
        ("SIGKILL", "signal", "SIGKILL"),
        ("nothing", "no-result", "TREEHAMMER_RESULT"),
    ):
        assert failure(values[end]) == ("payload", kind)
        assert text in values[end]["failure_message"]
    assert (values["exit"]["exit_code"], values["exit"]["log_excerpt"]) == (1, "the reason")
    assert values["SIGABRT"]["exit_signal"] == signal.SIGABRT
    assert "exit_code" not in values["SIGABRT"]
    assert failure(values["reported"]) == ("read", "getentry")
    assert (values["reported"]["failure_transient"], values["reported"]["events_read"]) == (True, 7)
    assert "failure_class" not in values["good"]
    assert (values["good"]["plausible"], values["good"]["events_read"]) == (True, 5)
    assert ran.records[-1].extras == {"mine": 2.5}


LEAVES_FILES = """
import os, sys, time
open("notes", "w").write("why")
open("big", "wb").write(bytes(2_000_000))
os.symlink("/etc/passwd", "link")
os.mkdir("sub")
open("sub/deep", "w").write("more")
if os.environ["TREEHAMMER_AXIS_END"] == "running":
    time.sleep(100)
if os.environ["TREEHAMMER_AXIS_END"] == "exit":
    sys.exit(1)
open(os.environ["TREEHAMMER_RESULT"], "w").write('{"format": 1, "values": {}}')
"""


@pytest.mark.parametrize("work", ["", "scratch"])
@pytest.mark.parametrize("last", ["good", "running"])
def test_output_has_of_the_work_only_what_explains_failures(
    bench: Any, packed_worker: Path, make_spec: Callable[..., Any], work: str, last: str
) -> None:
    """A stopped job starts again on another node, which would receive the files of this one."""
    bench.worker = packed_worker
    bench.write_job(
        LEAVES_FILES,
        *(make_spec(n, variant={"end": end}) for n, end in enumerate(("exit", last), 1)),
    )
    options = ["--output", "output/attempt-1", *(["--work", work] if work else [])]
    output = bench.folder / "output" / "attempt-1"
    with subprocess.Popen(bench.command(*options), cwd=bench.folder) as process:
        marker = bench.folder / (work or output / "work") / "1-2" / "sub" / "deep"
        if last == "running":
            wait_until(marker.exists, "the last payload runs")
            process.terminate()
    assert process.returncode == 1
    remains = {str(p.relative_to(output / "failed")) for p in output.glob("failed/**/*")}
    files = {"1-1", "1-1/job.json", "1-1/notes", "1-1/sub", "1-1/sub/deep"}
    assert remains == (files if last == "good" else set())
    assert {path.name for path in output.iterdir()} - {"failed"} == {
        *("attempt.json", "logs", "records")
    }
    assert not (bench.folder / work / "work").exists()
    assert not work or not (bench.folder / work).exists()


def test_payload_that_ignores_sigterm_is_killed(bench: Any) -> None:
    ran = bench.run(
        "#!/bin/sh\ntrap '' TERM; exec sleep 60\n",  # Python may start too late to ignore it
        kind="executable",
        limits=ExecutionLimits(0.6, 0),
    )
    assert failure(ran.record_values) == ("payload", "timeout")
    assert ran.record_values["exit_signal"] == signal.SIGKILL


def test_memory_limit(bench: Any) -> None:
    ran = bench.run(
        "import time; hog = bytearray(b'x') * 200_000_000; time.sleep(60)",
        limits=ExecutionLimits(30.0, 100_000_000),
    )
    assert failure(ran.record_values) == ("payload", "memory")
    # Killed while it grows: the recorded size depends on the sampling.
    assert ran.record_values["tree_peak_rss_bytes"] > 100_000_000


def alive_with(marker: str) -> list[int]:
    processes = psutil.process_iter(["environ"])
    return [item.pid for item in processes if marker in str(item.info["environ"])]


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[str]:
    """A word that identifies a payload's processes; fails if any are left."""
    word = f"WORKER_TEST_{os.getpid()}_{time.monotonic_ns()}"
    yield word
    for pid in alive_with(word):
        os.kill(pid, signal.SIGKILL)


def test_surviving_children_are_killed_and_accounted(bench: Any, marker: str) -> None:
    payload = f"""
        import os, sys, time
        def burn(seconds):
            end = time.process_time() + seconds
            while time.process_time() < end: pass
        ready, last = os.pipe()
        for generation in range(4):        # a chain of daemons, each in a new session
            if os.fork() == 0:
                os.setsid()
                burn(0.1)
                continue
            break
        else:
            os.write(last, b"x")
            time.sleep(100)
        if generation == 0:
            os.read(ready, 1)              # until the last daemon runs
            open(os.environ["TREEHAMMER_RESULT"], "w").write('{{"format": 1}}')
        else:
            time.sleep(100)
        # {marker}
    """
    ran = bench.run(payload, env={marker: "1"})
    assert ran.exit_code == 0
    assert not alive_with(marker)
    assert ran.record_values["processes"] == 5
    assert "[4 processes outlived the payload]" in ran.read_log("1-1.err")
    assert ran.record_values["payload_user_s"] + ran.record_values["payload_sys_s"] >= 0.4


def test_forking_processes_are_killed(bench: Any, marker: str) -> None:
    # Some hundred per second, for a limited time: concurrent tests need processes as well.
    payload = """
        import os, time
        if os.fork() == 0:
            os.setsid()
            for _ in range(2): os.fork()
            for _ in range(2000):         # each copy lives on in the next and ends: a moving target
                time.sleep(0.01)
                if os.fork(): os._exit(0)
            os._exit(0)
        time.sleep(0.5)
        open(os.environ["TREEHAMMER_RESULT"], "w").write('{"format": 1}')
    """
    ran = bench.run(payload, env={marker: "1"}, limits=ExecutionLimits(20.0, 0))
    assert ran.exit_code == 0, ran.output
    assert ran.record_values["payload_wall_s"] < 10
    assert ran.record_values["ended_us"] - ran.record_values["started_us"] < 15e6
    assert not alive_with(marker)


def test_flood_of_output_is_bounded(bench: Any) -> None:
    payload = """
        import os, sys
        print("first line", flush=True)
        line = b"0123456789abcdef" * 4096
        for _ in range(800): sys.stdout.buffer.write(line)
        print(); print("last line")
        open(os.environ["TREEHAMMER_RESULT"], "w").write('{"format": 1}')
    """
    ran = bench.run(payload)
    text = ran.read_log("1-1.out")
    assert ran.exit_code == 0
    assert len(text) < 2_000_000
    assert text.startswith("first line")
    assert text.endswith("last line\n")
    assert " bytes omitted ...]" in text


def test_payload_that_cannot_be_started(bench: Any) -> None:
    ran = bench.run("#!/no/such/interpreter\n", kind="executable")
    assert failure(ran.record_values) == ("payload", "start")


FULL = """
import errno, os, subprocess, sys
from treehammer.collectors.worker import __main__
class Full(subprocess.Popen):
    def __init__(self, *arguments, **options):
        if options.get("start_new_session"):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        super().__init__(*arguments, **options)
subprocess.Popen = Full
sys.exit(__main__.main(["run", "job.json"]))
"""


def test_failed_fork_is_a_failure_of_the_node(bench: Any) -> None:
    bench.write_job("pass")
    done = subprocess.run([sys.executable, "-c", FULL], cwd=bench.folder, timeout=60, check=False)
    ran = bench.read_result(done.returncode)
    assert failure(ran.record_values) == ("software-setup", "node")
    assert "Resource temporarily unavailable" in ran.record_values["failure_message"]
    assert "executable" not in ran.record_values["failure_message"], "the payload is not the cause"


def started(bench: Any, payload: str, *specs: Any, **env: str) -> subprocess.Popen[bytes]:
    """Start the worker and wait until its payload runs."""
    bench.write_job(payload, *specs)
    # Output goes to a file, since no process reads a pipe here.
    with (bench.folder / "worker.out").open("wb") as out:
        process = subprocess.Popen(
            bench.command(),
            cwd=bench.folder,
            env={**os.environ, **env},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    flag = bench.folder / "running"
    wait_until(flag.exists, "the payload runs")
    return process


RUNS_LONG = """
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(100)
open(os.path.join(os.path.dirname(__file__), "..", "running"), "w").close()
time.sleep(100)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_worker_records_and_cleans_up(
    bench: Any, make_spec: Callable[..., Any], marker: str, number: signal.Signals
) -> None:
    process = started(bench, RUNS_LONG, make_spec(1), make_spec(2), make_spec(3), **{marker: "1"})
    process.send_signal(number)
    assert process.wait(20) == 1
    ran = bench.read_result(1)
    assert failure(ran.record_values) == ("evicted", "stopped")
    assert ran.record_values["failure_transient"] is True
    assert ran.attempt["stopped_by"] == number.name
    assert (ran.attempt["done"], ran.attempt["not_started"]) == (1, 2)
    assert not alive_with(marker)


def test_signal_to_all_processes_is_an_eviction(bench: Any) -> None:
    """A batch system may end the payload before the worker."""
    ran = bench.run("""
        import os, signal
        os.kill(os.getppid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    """)
    assert failure(ran.record_values) == ("evicted", "stopped")
    assert ran.attempt["stopped_by"] == "SIGTERM"


def test_unwritable_log_ends_the_payload(bench: Any, marker: str) -> None:
    payload = """
        import sys, time
        print("x" * 1_000_000); sys.stdout.flush()
        time.sleep(100)
    """
    (bench.folder / "logs").mkdir()
    (bench.folder / "logs" / "1-1.out").symlink_to("/proc/self/mem")
    ran = bench.run(payload, env={marker: "1"})
    assert failure(ran.record_values) == ("software-setup", "node")
    assert not alive_with(marker)


def test_killed_worker_kills_its_payload(bench: Any, marker: str) -> None:
    payload = RUNS_LONG.replace("if os.fork() == 0:", "if False:")
    process = started(bench, payload, **{marker: "1"})
    process.kill()
    process.wait()
    wait_until(lambda: not alive_with(marker), "the payload has ended")
    attempt = json.loads((bench.folder / "attempt.json").read_text())
    assert attempt["ended_us"] is None
    assert attempt["done"] == 0


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

    def make(round_: int = 1, order: str = "AB", kind: str = "timed") -> list[ExecutionSpec]:
        specs = []
        for position, side in enumerate(order, 1):
            variant = {"release": "new" if side == "B" and kind == "timed" else "old"}
            spec = make_spec(position, kind=kind, mode="paired", side=side, variant=variant)
            identity = {**spec.identity, "round": round_, "launch_order": order}
            specs.append(replace(spec, round=round_, identity=identity))
        return specs

    return make


def test_both_sides_take_turns_and_extra_work_is_found(bench: Any, make_launch: MakeLaunch) -> None:
    order = "BA"
    done = bench.run(TURNS % "", *make_launch(1, order), *make_launch(2, order, "control"))
    assert done.exit_code == 0, done.output + done.errors
    by_side = {}
    for record in done.records:
        values = record.values
        side = order[int(str(values["position"])) - 1]
        by_side[str(values["kind"]), side] = values
        assert values["run_mode"] == "paired"
        assert not {"eff_payload", "eff_job"} & {*values}
        assert values["segments"] == len(values["segment_cpu_ns"]) == len(values["segment_wall_ns"])
        # A launch ends by the median pass; the sum of all may be less on a busy machine.
        cpu_s = float(str(values["payload_user_s"])) + float(str(values["payload_sys_s"]))
        assert cpu_s >= 1e-9 * sum(values["segment_cpu_ns"]) >= 0.9 * MIN_LAUNCH_CPU_S
        assert ("segment_cpu_log_ratio" in values) == (side == "B")
    assert by_side["timed", "A"]["passes_done"] == by_side["timed", "B"]["passes_done"]
    assert 0.2 < float(str(by_side["timed", "B"]["segment_cpu_log_ratio"])) < 0.6  # ln 1.5 is 0.41
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
    wait_until(lambda: all(path.exists() and path.read_text() for path in paths), "both run")
    pids = [int(path.read_text()) for path in paths]
    process.send_signal(number)
    process.wait(timeout=60)
    wait_until(lambda: not any(map(is_alive, pids)), "both have ended")
    if number == signal.SIGTERM:
        done = bench.read_result(process.returncode)
        assert {record.values["failure_class"] for record in done.records} == {"evicted"}
        assert len(done.records) == 2
