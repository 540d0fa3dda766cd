"""Turns of paired mode on the worker's and the payload's side: order, calibration, protocol, estimate."""

from __future__ import annotations

import codecs
import ctypes
import io
import itertools
import math
import os
import random
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from captured_runs import run_captured

from treehammer.collectors.job_spec import MIN_LAUNCH_CPU_S, ExecutionLimits, total_cpu_s
from treehammer.collectors.kit.treehammer_kit import columns, loop_libraries, turn_server
from treehammer.collectors.kit.treehammer_kit.columns.uproot_analysis import StepTurns
from treehammer.collectors.kit.treehammer_kit.columns.uproot_files import count_step_entries
from treehammer.collectors.kit.treehammer_kit.pass_summary import PASS_PHASES, FileRead, PassRead
from treehammer.collectors.kit.treehammer_kit.payload_report import PayloadReport
from treehammer.collectors.kit.treehammer_kit.payload_task import PayloadError, PayloadTask
from treehammer.collectors.kit.treehammer_kit.turn_server import TurnFigures, serve_turns
from treehammer.collectors.worker.child_processes import BoundedLog, ForkedCall, StopSignals
from treehammer.collectors.worker.run import launch
from treehammer.collectors.worker.run.launch import reserve_core, vary_layout
from treehammer.collectors.worker.run.payload_process import LaunchedPayload, run_payload
from treehammer.collectors.worker.turns import (
    TURN_CPU_NS,
    PayloadEndedError,
    TurnConductor,
    TurnError,
    TurnPipes,
    TurnRecord,
    choose_segment_entries,
    estimate_ratio,
    parse_answer,
    split_entries,
)


class FakeSide:
    """A payload whose every entry takes the same CPU time."""

    def __init__(self, name: str, log: list[tuple[str, str]], entries: int, ns: int) -> None:
        self._name, self._log, self._entries, self._ns = name, log, entries, ns
        self.read: list[tuple[int, int]] = []

    def ask(self, command: str) -> tuple[int, ...]:
        self._log.append((self._name, command))
        word, *numbers = command.split()
        if word == "open":
            return (self._entries,)
        if word == "discard":
            self.read.clear()
        if word != "run":
            return (0,)
        first, last = map(int, numbers)
        self.read.append((first, last))
        return (last - first) * self._ns, (last - first) * self._ns, 1, 0, 0, 0


class SlowStart(FakeSide):
    """A payload whose first pass takes twice as long."""

    def ask(self, command: str) -> tuple[int, ...]:
        answer = super().ask(command)
        if command.startswith("run"):
            factor = 1 if (self._name, "close") in self._log else 2
            answer = (answer[0] * factor, *answer[1:])
        return answer


def conduct(
    *, first: str = "A", entries: int = 1000, ns: int = 187_500, limit: float = 0.0, files: int = 1
) -> tuple[TurnRecord, list[tuple[str, str]], dict[str, FakeSide]]:
    log: list[tuple[str, str]] = []
    sides = {name: FakeSide(name, log, entries, ns) for name in "AB"}
    record = TurnConductor(
        sides=sides,
        first=first,
        file_count=files,
        evict=lambda: log.append(("", "evict")),
        elapsed_share=lambda: limit,
    ).conduct()
    return record, log, sides


def runs_by_pass(log: list[tuple[str, str]]) -> list[list[str]]:
    """Return the sides of the counted turns in order, pass by pass."""
    passes: list[list[str]] = []
    counted = log[[command for _, command in log].index("discard") :]
    for side, command in counted:
        if command.startswith("open") and (not passes or passes[-1]):
            passes.append([])
        elif command.startswith("run"):
            passes[-1].append(side)
    return passes


@pytest.mark.parametrize("first", ["A", "B"])
def test_order_is_abba_and_reversed_from_pass_to_pass(first: str) -> None:
    record, log, _ = conduct(first=first)
    passes = runs_by_pass(log)
    other = "B" if first == "A" else "A"
    assert record.passes == len(passes) == 4
    assert passes[0][:8] == [first, other, other, first] * 2
    assert passes[1][:8] == [other, first, first, other] * 2
    assert passes[::2] == [passes[0]] * 2
    assert passes[1::2] == [passes[1]] * 2


@pytest.mark.parametrize("files", [1, 3])
def test_both_sides_read_every_entry_once_in_each_pass(files: int) -> None:
    record, log, sides = conduct(files=files)
    for side in sides.values():
        read = Counter(entry for first, last in side.read for entry in range(first, last))
        assert set(read.values()) == {record.passes * files}
        assert len(read) == 1000
    assert len(record.turns["A"]) == len(record.turns["B"])
    assert log[-1][1] == "close"


def test_launch_stops_at_the_cpu_time_that_a_verdict_demands() -> None:
    """The sum of all passes may reach it before the median pass times their number does."""
    sides = {name: SlowStart(name, [], 1000, 200_000) for name in "AB"}
    record = TurnConductor(sides, "A", 1, lambda: None, lambda: 0.0).conduct()
    assert record.passes == 4  # three passes of 0.4, 0.2 and 0.2 s take 0.8 s in all
    recorded = total_cpu_s(0.2, record.passes)  # as the record states it: median pass and number
    assert record.collected_cpu_s("A") == pytest.approx(recorded)
    assert recorded >= MIN_LAUNCH_CPU_S


def test_no_pass_begins_that_would_exceed_the_wall_limit() -> None:
    assert conduct(limit=0.5)[0].passes == 1
    assert conduct(limit=0.3)[0].passes == 4


def test_cache_is_evicted_before_every_turn() -> None:
    _, log, _ = conduct()
    for number, (_, command) in enumerate(log):
        assert not command.startswith("run") or log[number - 1] == ("", "evict")


@pytest.mark.parametrize("ns", [100, 50_000, 5_000_000, 50_000_000])
def test_turn_of_base_takes_the_wanted_cpu_time(ns: int) -> None:
    entries = conduct(entries=5_000, ns=ns)[0].segment_entries
    assert entries == max(1, min(5_000, TURN_CPU_NS // ns))


def test_sides_with_different_entries_cannot_take_turns() -> None:
    log: list[tuple[str, str]] = []
    sides = {"A": FakeSide("A", log, 10, 1), "B": FakeSide("B", log, 11, 1)}
    conductor = TurnConductor(sides, "A", 1, lambda: None, lambda: 0.0)
    with pytest.raises(TurnError, match="equally many entries, not 10 and 11"):
        conductor.conduct()


@pytest.mark.parametrize("total", [0, 1, 9, 10, 14, 15, 16, 1000])
def test_segments_cover_all_entries(total: int) -> None:
    segments = list(split_entries(total, 10))
    assert [entry for first, last in segments for entry in range(first, last)] == [*range(total)]
    assert all(5 <= last - first <= 15 for first, last in segments) or total < 5


def test_segment_has_at_least_one_entry() -> None:
    assert choose_segment_entries(10**9, 1, 7) == 1
    assert choose_segment_entries(0, 0, 7) == 7
    assert choose_segment_entries(0, 0, 0) == 1


@pytest.mark.parametrize(
    "command, text",
    [("run 0 5", "1 2 3"), ("run 0 5", "1 2 3 4 5 -6"), ("open 0", ""), ("close", "ok"),
     ("open 0", "1.5"), ("open 0", "²")],
)  # fmt: skip
def test_invalid_answers_are_refused(command: str, text: str) -> None:
    with pytest.raises(TurnError, match="invalid answer"):
        parse_answer(command, text)


@pytest.mark.parametrize("passes", [4, 10])
def test_ratio_is_antisymmetric_and_robust(passes: int) -> None:
    rng = random.Random(1)
    segments = [rng.choice([1_500_000, 24_000_000]) for _ in range(500 // passes)]
    base = [time + rng.randrange(100_000) for time in segments * passes]
    other = [round(1.02 * time * math.exp(rng.gauss(0, 0.01))) for time in base]
    for number in range(0, 500, 11):
        other[number] *= 5  # disturbed turns
    estimate = estimate_ratio(base, other, passes)
    assert estimate.mean == pytest.approx(math.log(1.02), abs=0.004)
    assert estimate_ratio(other, base, passes).mean == pytest.approx(-estimate.mean)
    assert estimate_ratio(base, base, passes).mean == 0
    assert estimate.sd > 0.1


@pytest.mark.parametrize("passes", [1, 2, 3, 4, 8])
def test_work_added_to_few_segments_counts_in_full(passes: int) -> None:
    """As when decompression is slower, which happens in the turns that begin a basket."""
    segment_times = [1_500_000] * 90 + [24_000_000] * 10
    slower = [1_500_000] * 90 + [25_000_000] * 10
    expected = math.log(sum(slower) / sum(segment_times))
    ratio = estimate_ratio(segment_times * passes, slower * passes, passes)
    assert ratio.mean == pytest.approx(expected)
    # Work that is the same in each segment changes the ratio of short ones most.
    more = [time + 100_000 for time in segment_times]
    expected = math.log(sum(more) / sum(segment_times))
    ratio = estimate_ratio(segment_times * passes, more * passes, passes)
    assert ratio.mean == pytest.approx(expected)


def test_ratio_needs_positive_times() -> None:
    with pytest.raises(ValueError, match="no segment"):
        estimate_ratio([0, 0], [1, 1], 1)


def test_forked_call_returns_result_or_error() -> None:
    assert ForkedCall(lambda: {"pid": os.getpid()}).result()["pid"] != os.getpid()

    def fail() -> None:
        raise FileNotFoundError(2, "no such file")

    with pytest.raises(FileNotFoundError):
        ForkedCall(fail).result()
    with pytest.raises(ChildProcessError, match="was killed"):
        ForkedCall(lambda: os.kill(os.getpid(), 9)).result()


def test_child_is_pinned_to_the_reserved_core(tmp_path: Path) -> None:
    with reserve_core(str(tmp_path)) as core:
        if core is None:
            pytest.skip("this machine refuses to pin processes")

        def pinned() -> set[int]:
            LaunchedPayload({}, core).start_process()
            return os.sched_getaffinity(0)

        assert core in os.sched_getaffinity(0)
        assert ForkedCall(pinned).result() == {core}


def test_ordinary_users_have_the_io_of_the_kernel() -> None:
    codecs.lookup("ascii")  # while its module is in reach

    def read_as_nobody() -> Any:
        with StopSignals() as signals, BoundedLog(os.devnull) as log:
            if os.getuid() == 0:
                os.setuid(65534)
                ctypes.CDLL(None).prctl(4, 1)  # PR_SET_DUMPABLE, which a change of the user clears
            command = ["/bin/sh", "-c", "/bin/cat /etc/passwd; /bin/sleep 0.5"]
            limits = ExecutionLimits(30.0, 0)
            return run_payload(command, {}, "/", limits, signals, log, log).values["io_read_chars"]

    assert ForkedCall(read_as_nobody).result() >= Path("/etc/passwd").stat().st_size


@pytest.mark.parametrize(
    ("side", "kind", "is_copied"),
    [("A", "control", False), ("B", "control", True), ("A", "timed", False), ("B", "timed", False)],
)
def test_layout_of_memory_is_drawn_for_each_side(side: str, kind: str, is_copied: bool) -> None:
    layouts = [vary_layout(side, kind, "/scratch/1-2") for _ in range(50)]
    assert len({len(variables["TREEHAMMER_PADDING"]) for variables in layouts}) > 10
    copies = {variables.get(loop_libraries.COPY_VARIABLE, "") for variables in layouts}
    assert (len({len(path) for path in copies}) > 10) is is_copied
    assert all(path.startswith("/scratch/1-2/") == is_copied for path in copies)


def test_launches_reserve_different_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Core 2 is the most idle, cores 0 and 1 are equally idle.
    ticks = [{0: 0, 1: 0, 2: 0}, {0: 5, 1: 5, 2: 9}]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    monkeypatch.setattr(launch, "OBSERVATION_S", 0)
    monkeypatch.setattr(launch, "_can_pin", lambda _: True)
    reads = itertools.cycle(ticks)
    monkeypatch.setattr(launch, "_read_idle_ticks", lambda: next(reads))
    base = str(tmp_path)
    with reserve_core(base) as first, reserve_core(base) as second, reserve_core(base) as third:
        assert first == 2
        assert {second, third} == {0, 1}
        with reserve_core(base) as shared:  # none is left
            assert shared == 2
    chosen = set()
    for _ in range(64):  # without locks, equally idle cores are taken at random
        with reserve_core("/dev/null") as core:
            chosen.add(core)
        ticks[1][2] = 0
    assert chosen == {0, 1, 2}


def test_pipes_carry_commands_and_answers(tmp_path: Path) -> None:
    prefix = str(tmp_path / "turns")

    def answer_once() -> str:
        with open(f"{prefix}.commands") as commands, open(f"{prefix}.answers", "w") as answers:
            answers.write("ready\n")
            answers.flush()
            command = commands.readline().strip()
            answers.write("7\nrest")
            return command

    calls: list[ForkedCall] = []
    with StopSignals() as signals:
        pipes = TurnPipes(prefix, lambda: tuple(call.fd for call in calls), signals)
        calls.append(ForkedCall(answer_once))
        pipes.wait_until_ready()
        assert pipes.ask("open 0") == (7,)
        with pytest.raises(PayloadEndedError):
            pipes.ask("close")
        pipes.close()
    assert calls[0].result() == "open 0"


class FakeReader:
    """Two files of 10 and 20 entries; the first file's loop reads both if ``together``."""

    def __init__(self, together: bool = False) -> None:
        self.log: list[object] = []
        self._entries = [30, 0] if together else [10, 20]
        self._opened = 0

    def run_pass(self) -> PassRead:
        raise NotImplementedError

    def open_turns(self, number: int) -> int:
        self._opened = self._entries[number]
        return self._opened

    def run_turn(self, first: int, last: int) -> str:
        self.log.append((first, last))
        return "5 6 7 0 1 0"

    def close_turns(self) -> list[FileRead]:
        phases = dict.fromkeys(PASS_PHASES, (0.0, 0.0, 0.0))
        read = FileRead(phases, self._opened, 0, 0, "TFile", True, -1.0, -1.0, {})
        return [read] if self._opened else []

    def discard_turns(self) -> None:
        self.log.append("discard")


@pytest.mark.parametrize(("together", "reads"), [(False, [10, 20]), (True, [30])])
def test_passes_hold_all_files_that_were_closed(
    monkeypatch: pytest.MonkeyPatch, together: bool, reads: list[int]
) -> None:
    monkeypatch.setattr(turn_server, "move_program_text", lambda: 4096)
    one_pass = ["open 0", "run 0 10", "close", "open 1", "close"]
    commands = ["open 0", "run 0 4", "discard", *one_pass, *one_pass, "finish"]
    reader, answers = FakeReader(together), io.StringIO()
    done = serve_turns(reader, 2, io.StringIO("\n".join(commands)), answers)
    assert [[read.events for read in file.files] for file in done] == [reads, reads]
    assert all(file.in_turns for file in done)
    assert reader.log == [(0, 4), "discard", (0, 10), (0, 10)]
    first, second = (30, 0) if together else (10, 20)
    figures = "5 6 7 0 1 0"
    answered = [f"{first}", figures, "0", f"{second}", "0"]
    assert answers.getvalue().split("\n") == [
        *("ready", f"{first}", figures, "4096", *answered, *answered, "")
    ]


def test_payload_without_files_takes_turns_as_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_server, "move_program_text", lambda: 0)
    commands = io.StringIO("open 0\nrun 0 30\nclose\nfinish\n")
    task = PayloadTask("timed", "", [], [], 1, 1, 1.0, 0, 1.0, {}, "")
    done = turn_server.perform_passes(
        FakeReader(together=True), task, PayloadReport(), (commands, io.StringIO())
    )
    assert [[read.events for read in one.files] for one in done] == [[30]]


def test_early_end_of_the_turns_is_a_failure() -> None:
    with pytest.raises(PayloadError, match="ended the turns early"):
        serve_turns(FakeReader(), 2, io.StringIO("open 0\n"), io.StringIO())


def test_pipes_are_opened_only_if_a_worker_offers_turns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(turn_server.TURNS_VARIABLE, raising=False)
    assert turn_server.open_pipes() is None
    monkeypatch.setenv(turn_server.TURNS_VARIABLE, str(tmp_path / "turns"))
    assert turn_server.open_pipes() is None


def test_turn_reads_the_steps_that_begin_in_it() -> None:
    filled: list[str] = []
    turns = StepTurns(iter(["abc", "def", "gh"]), filled.append)
    for last, steps in ((1, 1), (3, 1), (4, 2), (8, 3)):
        figures = turns.run(last)
        assert filled == ["abc", "def", "gh"][:steps]
        assert figures.wall_ns > 0
        assert figures.cpu_ns >= 0


def test_steps_have_equally_many_bytes() -> None:
    assert count_step_entries(14_000, 16_000_000, 2_000_000) == 1750
    assert count_step_entries(10, 100, 2_000_000) == 10
    assert count_step_entries(10, 10**9, 10) == 1
    assert count_step_entries(0, 0, 10) == 1


def test_answer_has_the_order_of_the_protocol() -> None:
    assert TurnFigures(1, 9, 2, 4, 5, 6).write_answer(3) == "1 2 3 4 5 6"


#: A loop of ten entries, stopped after 3, 3 and 10; another one that fails; a third, abandoned.
GATED_LOOPS = r"""
#include "gated_loop.hpp"
#include <iostream>
struct Marked { ~Marked() { std::cout << "destroyed" << std::endl; } };
int main()
{
   treehammer::GatedLoop *gate = nullptr;
   auto read = [&gate] {
      Marked marked;
      for (int entry = 0; entry < 10; ++entry)
         gate->Pass();
   };
   treehammer::GatedLoop whole(read, 10);
   gate = &whole;
   for (int last : {3, 3, 10, 10}) {
      whole.RunUntil(last);
      std::cout << whole.Done() << std::endl;
   }
   treehammer::GatedLoop failing([&gate] { gate->Pass(); throw std::runtime_error("unreadable"); }, 10);
   gate = &failing;
   failing.RunUntil(1);
   try {
      failing.RunUntil(2);
   } catch (const std::runtime_error &error) {
      std::cout << error.what() << std::endl;
   }
   treehammer::GatedLoop unused(read, 10), abandoned(read, 10);
   gate = &abandoned;
   abandoned.RunUntil(4);
   std::cout << "end" << std::endl;
}
"""


@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
def test_gate_stops_a_loop_between_two_entries(tmp_path: Path) -> None:
    source, program = tmp_path / "loops.cpp", tmp_path / "loops"
    source.write_text(GATED_LOOPS)
    include = f"-I{Path(columns.__file__).parent}"
    subprocess.run(["c++", "-std=c++17", include, "-o", program, source], check=True)
    output = run_captured([program], check=True).stdout
    assert output.split() == [
        *("3", "3", "destroyed", "10", "10", "unreadable", "end", "destroyed")
    ]
