"""Phases of a read that changed between two sides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from simulated_campaign import SimulatedCampaign

from treehammer.analysis.comparison.comparison import ComparisonQuery, compare_samples
from treehammer.analysis.comparison.phase_changes import (
    PHASES,
    PhaseChange,
    PhasedSample,
    attach_phases,
    compare_phases,
    describe_phases,
    stored_phases,
)
from treehammer.analysis.statistics.sample import Sample

A, B = "6.38.00", "6.40.00"


def measure_rows(
    shifts: Mapping[str, float], door_protocol: str = "file", **columns: Any
) -> list[PhasedSample]:
    """Measurements of a campaign: shifts of side B in seconds for 1 s of the loop, and some noise."""
    measured = []
    for number, row in enumerate(SimulatedCampaign(jobs=6).rows()):
        row["door_protocol"] = door_protocol
        sample = Sample.from_row(row)
        is_b = sample.axis_value("root") == B
        noise = 0.001 * (number % 5 - 2)
        shift = {name: value if is_b else 0.0 for name, value in shifts.items()}
        values = {
            "open_user_s": 0.01,
            "get_tree_user_s": 0.02 + shift.get("open", 0.0) + noise,
            "perfstats_read_s": 0.1 + shift.get("read", 0.0),
            "perfstats_unzip_s": 0.5 + shift.get("decompress", 0.0) + noise,
            "loop_cpu_s": 1.0 + sum(shift.get(name, 0.0) for name in PHASES[1:]) + 2 * noise,
            **columns,
        }
        measured.append(PhasedSample.from_row({**row, **values}, sample))
    return measured


def find_certain(changes: Sequence[PhaseChange]) -> dict[str, float]:
    return {change.phase: round(change.change, 2) for change in changes if change.is_certain}


@pytest.mark.parametrize("phase", PHASES)
def test_changed_phase_is_named(phase: str) -> None:
    changes = compare_phases(measure_rows({phase: 0.05}), "root", A, B)
    assert [change.phase for change in changes] == list(PHASES)
    assert find_certain(changes) == {phase: 0.05}
    (sentence,) = describe_phases(changes)
    assert f"% of the loop's CPU: {phase} +5." in sentence or f"{phase} +4.9" in sentence
    assert "no certain change of" in sentence


def test_loop_phases_of_each_side_add_up_to_the_loop() -> None:
    changes = compare_phases(measure_rows({"decompress": 0.05}), "root", A, B)
    assert sum(change.a_s for change in changes[1:]) == pytest.approx(1.0, abs=0.01)
    assert sum(change.b_s for change in changes[1:]) == pytest.approx(1.05, abs=0.01)


def test_equal_sides_have_no_certain_change() -> None:
    assert describe_phases(compare_phases(measure_rows({}), "root", A, B)) == []


def test_unknown_phases_are_left_out() -> None:
    assert compare_phases(measure_rows({}, perfstats_unzip_s=None), "root", A, B) == []
    # The wall time of remote reads is no CPU time.
    changes = compare_phases(measure_rows({}, door_protocol="root"), "root", A, B)
    assert [change.phase for change in changes] == ["open", "decompress", "deserialize"]


def test_wall_times_do_not_count_waits_for_a_cpu() -> None:
    waiting = measure_rows({"deserialize": 0.05}, loop_run_queue_s=1.0)
    phases = waiting[0].phases
    assert phases["decompress"] == pytest.approx(0.25, abs=0.01)
    assert sum(phases[name] for name in PHASES[1:]) == pytest.approx(waiting[0].loop_s)


def test_too_few_pairs_have_no_intervals() -> None:
    assert compare_phases(measure_rows({})[:4], "root", A, B) == []


def test_stored_phases_equal_compared_ones() -> None:
    measured = measure_rows({"read": 0.05})
    samples = [phased.sample for phased in measured]
    comparison = compare_samples(samples, ComparisonQuery("root", A, B), now_us=1)
    changes = compare_phases(measured, "root", A, B)
    rows = attach_phases(comparison.verdicts, changes)
    stored = [replace(change, label=changes[0].label) for change in stored_phases(rows)]
    assert sorted(stored, key=str) == sorted(changes, key=str)
    assert stored_phases(comparison.verdicts) == []


def test_compared_sites_are_named_by_label_alone() -> None:
    change = PhaseChange("phase", "", "half", "read", 1.0, 1.1, 0.1, 0.05, 0.15, 3)
    (sentence,) = describe_phases([change])
    assert sentence.startswith("half, by phase, in % of the loop's CPU: read +10.00 [")
