"""Analysis of columns: its settings, its sums, and the scheduling bound of a list of files."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treehammer.collectors.kit.treehammer_kit.columns import column_analysis
from treehammer.collectors.kit.treehammer_kit.columns.column_analysis import (
    ColumnAnalysis,
    HistogramSums,
    summarize_idle_time,
    summarize_threads,
)
from treehammer.collectors.kit.treehammer_kit.pass_summary import PASS_PHASES, FileRead, PassRead
from treehammer.collectors.kit.treehammer_kit.payload_task import PayloadError
from treehammer.collectors.kit.treehammer_kit.read_passes import FileSurvey

SETTINGS: dict[str, Any] = {"filter": "n", "minimum": 2, "bins": 4, "low": 0.0, "high": 8.0}
FILES = st.lists(st.lists(st.integers(1, 50), max_size=5), max_size=6)


def make_pass(wall_s: float, cpu_s: float, waited_s: float) -> PassRead:
    phases = {**dict.fromkeys(PASS_PHASES, (0.0, 0.0, 0.0)), "loop": (wall_s, cpu_s, 0.0)}
    return PassRead([FileRead(phases, 100, 0, 0, "TFile", True, -1.0, waited_s, {})])


def test_slow_file_stalls_its_batch_alone() -> None:
    files = [[1] * 8, [1], [1], [1], [1], [1]]
    assert column_analysis.bound_makespan(files, 2) == 6.5
    assert column_analysis.list_makespan(files, 2) == 7
    assert column_analysis.batch_makespan(files, 2) == 8 + 1 + 1
    assert column_analysis.batch_makespan([[1] * 8, [1], [1] * 8, [1]], 2) == 16
    assert column_analysis.bound_efficiency([[3]], 2) == 0.5
    assert column_analysis.bound_efficiency([], 2) == 0


def test_threads_share_the_last_files_by_clusters() -> None:
    assert column_analysis.batch_makespan([[1] * 6, [1] * 6], 6) == 2
    assert column_analysis.batch_makespan([[1] * 3, [1] * 9], 5) == 3
    assert column_analysis.batch_makespan([[1, 1], [], [1, 1]], 8) == 1


@given(FILES, st.integers(1, 9))
def test_no_schedule_beats_the_bound(files: list[list[int]], threads: int) -> None:
    bound = column_analysis.bound_makespan(files, threads)
    total = sum(itertools.chain(*files))
    for makespan in (column_analysis.list_makespan, column_analysis.batch_makespan):
        assert bound <= makespan(files, threads) <= total
        assert makespan(files, 1) == total
    # Graham: any list schedule is within a factor of 2 of the best.
    assert column_analysis.list_makespan(files, threads) <= 2 * bound
    assert 0 <= column_analysis.bound_efficiency(files, threads) <= 1


@pytest.mark.parametrize("change", [{"bins": 0}, {"low": 8}, {"filter": None, "minimum": "x"}])
def test_wrong_settings_are_named(change: dict[str, Any]) -> None:
    with pytest.raises(PayloadError, match="filter, minimum, bins, low, high"):
        ColumnAnalysis.read({**SETTINGS, **change})


def test_code_names_types_and_limits() -> None:
    code = ColumnAnalysis.read(SETTINGS).write_code({"n": "Int_t", "pt": "RVec<float>"}, ["pt"])
    assert '[](const Int_t &value) { return value >= 2.0; }, {"n"}' in code
    assert 'kept.Histo1D<RVec<float>>({"pt", "", 4, 0.0, 8.0}, "pt")' in code


def test_checksum_depends_on_bins_and_not_on_files_or_order() -> None:
    together, in_turn, other = (HistogramSums(3, 2) for _ in range(3))
    together.add("a", [0.0, 3.0, 1.0])
    together.add("b", [1.0, 0.0, 0.0])
    in_turn.add("b", [1.0, 0.0, 0.0])
    in_turn.add("a", [0.0, 1.0, 1.0])
    in_turn.add("a", [0.0, 2.0, 0.0])
    other.add("a", [0.0, 2.0, 2.0])
    other.add("b", [1.0, 0.0, 0.0])
    found = together.summarize()
    assert found == in_turn.summarize()
    assert found["histogram_entries"] == other.summarize()["histogram_entries"] == 5
    assert found["histogram_checksum"] != other.summarize()["histogram_checksum"]


def test_idle_time_leaves_out_waits_for_a_cpu() -> None:
    passes = [make_pass(9.0, 9.0, 0.0), make_pass(2.0, 2.5, 0.5), make_pass(2.0, 2.5, 0.5)]
    files = [FileSurvey(10, "TFile", 5, [100, 300])]
    assert summarize_idle_time(passes, files, 2) == {
        "eff_bound": pytest.approx(400 / 600),
        "bound_wall_s": pytest.approx(2.5 / (2 * 400 / 600)),
        "idle_thread_s": pytest.approx(1.0),
    }
    values = summarize_threads(passes, 2)
    assert values["eff_loop"] == pytest.approx(2.5 / 4)
    assert values["eff_loop_corrected"] == pytest.approx(2.5 / 3.5)
    # More CPU than the threads had: others worked, too.
    assert "eff_loop_corrected" not in summarize_threads([make_pass(2.0, 3.0, 1.5)], 2)
    assert "idle_thread_s" not in summarize_idle_time([make_pass(2.0, 3.0, -1.0)], files, 2)
