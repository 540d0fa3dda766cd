"""Launches of paired mode: effects of jobs, and the control by A/A launches."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from comparison_questions import ask, evidence, rows
from simulated_campaign import SimulatedCampaign

from treehammer.analysis.comparison.comparison import ComparisonQuery
from treehammer.analysis.comparison.comparison_notes import control_notes
from treehammer.analysis.comparison.series_sides import split_sides
from treehammer.analysis.comparison.verdict_text import format_verdict
from treehammer.analysis.statistics.job_pairs import check_controls, pair_jobs
from treehammer.analysis.statistics.sample import Sample
from treehammer.analysis.statistics.verdict import THROUGH_BASE, ControlCheck
from treehammer.collectors.job_spec import CONTROL
from treehammer.hctests.definition.model import Variant

CPU, WALL = "cpu_per_event_s", "wall_per_event_s"


def make_sample(round_: int, value: float, ratio: float | None, kind: str = "timed") -> Sample:
    template = SimulatedCampaign(jobs=1).samples()[0]
    ratios = {} if ratio is None else {CPU: ratio}
    return replace(template, kind=kind, round=round_, metrics={CPU: value}, launch_ratios=ratios)


def test_effect_is_mean_of_recorded_ratios() -> None:
    a = [make_sample(round_, 1.0, None) for round_ in (1, 2, 3)]
    b = [make_sample(round_, 1.5, ratio) for round_, ratio in ((1, 0.01), (2, 0.04), (3, None))]
    (pair,), left_out = pair_jobs(a, b, CPU)
    assert pair.d == pytest.approx(0.025)
    assert pair.rounds == 2
    assert (pair.a, pair.b) == (1.0, 1.5)  # as measured, whatever the effect
    assert not left_out


def test_effect_changes_its_sign_with_the_sides() -> None:
    a, b = [make_sample(1, 1.0, None)], [make_sample(1, 1.1, 0.09)]
    (forward,), _ = pair_jobs(a, b, CPU)
    (backward,), _ = pair_jobs(b, a, CPU)
    assert backward.d == pytest.approx(-forward.d)


def test_short_launches_are_given_a_remedy_that_works_for_them() -> None:
    """Passes and events change nothing in paired mode, whose launches read on by themselves."""
    samples = [
        replace(one, loop_cpu_s=0.996, launch_ratios={CPU: 0.3, WALL: 0.3})
        for one in SimulatedCampaign(rounds=1).samples()
        if one.kind == "timed"
    ]
    found = ask(samples)
    (row,) = rows(found)
    kept = evidence(row)
    assert kept.why.startswith("0.99 s of CPU per side in a launch, at least 1 s needed")
    assert kept.remedy == "raise wall_limit_s, which ended the launches early"
    (note,) = [note for note in found.notes if note.startswith("Too little read")]
    assert note.endswith(f"enters no verdict; {kept.remedy}.")


def make_three_values() -> list[Sample]:
    """Executions of a job that launches B and C, each in three rounds, with the base A."""
    launches = [("B", 0.05), ("C", 0.02), ("C", 0.03), ("B", 0.06), ("B", 0.04), ("C", 0.016)]
    found = []
    for round_, (value, ratio) in enumerate(launches, 1):
        halves = (make_sample(round_, 1.0, None), make_sample(round_, math.exp(ratio), ratio))
        for name, one in zip(("A", value), halves, strict=True):
            found.append(replace(one, variant=Variant((("root", name),))))
    return found


def test_launches_of_another_value_are_complete() -> None:
    (series,) = split_sides(make_three_values(), "root", "A", "C")
    (pair,), left_out = pair_jobs(series.a, series.b, CPU, series.elsewhere)
    assert not left_out
    assert pair.launches == pytest.approx((0.02, 0.03, 0.016))
    assert not pair.through_base


def test_values_without_a_common_launch_are_compared_through_their_base() -> None:
    samples = make_three_values()
    (series,) = split_sides(samples, "root", "B", "C")
    (pair,), left_out = pair_jobs(series.a, series.b, CPU, series.elsewhere)
    assert not left_out
    assert pair.through_base
    assert pair.launches == pytest.approx((0.02 - 0.05, 0.03 - 0.06, 0.016 - 0.04))
    assert pair.d == pytest.approx(-0.028)
    found = ask(samples, ComparisonQuery("root", "B", "C"))
    (row,) = rows(found)
    assert evidence(row).test == f"t over launches, {THROUGH_BASE}"
    assert THROUGH_BASE in format_verdict(row)
    assert any("Through the base" in note for note in found.notes)
    assert not any("Left out" in note or "Unpaired" in note for note in found.notes)


def test_controls_of_compared_jobs_are_summarized() -> None:
    controls = [make_sample(1, 1.0, ratio, CONTROL) for ratio in (-0.01, 0.0, 0.02, 0.01)]
    others = [
        make_sample(2, 1.0, 0.5),
        make_sample(3, 1.0, None, CONTROL),
        replace(make_sample(4, 1.0, 0.9, CONTROL), job_id="another"),
        replace(make_sample(5, 1.0, 0.9, CONTROL), plausible=False),
    ]
    (check,) = check_controls([*controls, *others], {controls[0].job_id}, "root")
    assert (check.metric, check.base, check.launches) == (CPU, controls[0].variant["root"], 4)
    assert check.mean == pytest.approx(0.005)
    assert check.sd == pytest.approx(0.01291, rel=1e-3)
    assert check.low is not None
    assert check.low < 0 < check.mean
    assert not check.is_off


@pytest.mark.parametrize(
    "ratios, off",
    [
        ([0.03, 0.031, 0.029], True),
        ([-0.03, -0.031, -0.029], True),
        ([0.005, 0.0051, 0.0049], False),  # below the bound
        ([0.2, -0.1, 0.01], False),  # compatible with 0
        ([0.3], False),
    ],
)
def test_controls_are_off_beyond_interval_and_bound(ratios: list[float], off: bool) -> None:
    samples = [make_sample(1, 1.0, ratio, CONTROL) for ratio in ratios]
    (check,) = check_controls(samples, {samples[0].job_id}, "root")
    assert check.is_off is off
    (note,) = control_notes([check])
    assert ("Controls are off" in note) is off


def test_note_on_controls_names_launches_and_spread() -> None:
    check = ControlCheck(WALL, "6.38.00", 6, -0.004, 0.0123, -0.02, 0.01)
    assert [*control_notes([check])] == [
        "Controls are in order: wall −0.4 % in 6 A/A launches (standard deviation 1.2 %)."
    ]
    assert [*control_notes([])] == []


def test_cpu_is_summed_over_all_passes() -> None:
    row = {
        "variant": "{}",
        "attempt": 1,
        "round": 1,
        "instrument_version": 1,
        "dirty": False,
        "plausible": True,
        "loop_cpu_s": 0.5,
        "passes_counted": 4,
        "segment_cpu_log_ratio": 0.01,
    }
    assert Sample.from_row(row).loop_cpu_s == 2.0
    assert Sample.from_row(row).launch_ratios == {CPU: 0.01}
