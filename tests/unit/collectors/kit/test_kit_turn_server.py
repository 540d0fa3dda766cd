"""Turns on the payload's side: protocol, steps that are read whole, and the gate of an event loop."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path

import pytest

from treehammer.collectors.kit.treehammer_kit import columns, turn_server
from treehammer.collectors.kit.treehammer_kit.columns.uproot_analysis import (
    StepTurns,
    count_step_entries,
)
from treehammer.collectors.kit.treehammer_kit.pass_summary import PASS_PHASES, FileRead
from treehammer.collectors.kit.treehammer_kit.payload_task import PayloadError
from treehammer.collectors.kit.treehammer_kit.turn_server import TurnFigures, TurnServer

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


class FakeReader:
    """Two files of 10 and 20 entries; the first file's loop reads both if ``together``."""

    def __init__(self, together: bool = False) -> None:
        self.log: list[object] = []
        self._entries = [30, 0] if together else [10, 20]
        self._opened = 0

    def open_turns(self, number: int) -> int:
        self._opened = self._entries[number]
        return self._opened

    def run_turn(self, first: int, last: int) -> str:
        self.log.append((first, last))
        return "5 6 7 0 1 0"

    def close_turns(self) -> list[FileRead]:
        return [make_read(self._opened)] if self._opened else []

    def discard_turns(self) -> None:
        self.log.append("discard")


def make_read(events: int) -> FileRead:
    phases = dict.fromkeys(PASS_PHASES, (0.0, 0.0, 0.0))
    return FileRead(phases, events, 0, 0, "TFile", True, -1.0, -1.0, {})


@pytest.mark.parametrize(("together", "reads"), [(False, [10, 20]), (True, [30])])
def test_passes_hold_all_files_that_were_closed(together: bool, reads: list[int]) -> None:
    one_pass = ["open 0", "run 0 10", "close", "open 1", "close"]
    commands = ["open 0", "run 0 4", "discard", *one_pass, *one_pass, "finish"]
    reader, answers = FakeReader(together), io.StringIO()
    done = TurnServer(reader, 2).serve(io.StringIO("\n".join(commands)), answers)
    assert [[read.events for read in one.files] for one in done] == [reads, reads]
    assert all(one.in_turns for one in done)
    assert reader.log == [(0, 4), "discard", (0, 10), (0, 10)]
    first, second = (30, 0) if together else (10, 20)
    figures = "5 6 7 0 1 0"
    answered = [f"{first}", figures, "0", f"{second}", "0"]
    assert answers.getvalue().split("\n") == [
        *("ready", f"{first}", figures, "0", *answered, *answered, "")
    ]


def test_early_end_of_the_turns_is_a_failure() -> None:
    with pytest.raises(PayloadError, match="ended the turns early"):
        TurnServer(FakeReader(), 2).serve(io.StringIO("open 0\n"), io.StringIO())


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


@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
def test_gate_stops_a_loop_between_two_entries(tmp_path: Path) -> None:
    source, program = tmp_path / "loops.cpp", tmp_path / "loops"
    source.write_text(GATED_LOOPS)
    include = f"-I{Path(columns.__file__).parent}"
    subprocess.run(["c++", "-std=c++17", include, "-o", program, source], check=True)
    output = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert output.split() == [
        *("3", "3", "destroyed", "10", "10", "unreadable", "end", "destroyed"),
    ]
