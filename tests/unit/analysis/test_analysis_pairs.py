"""Reduction of executions to one value per job."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_campaign import SimulatedCampaign

from treehammer.analysis.statistics.job_pairs import (
    DIRTY_TREE,
    EARLIER_ATTEMPT,
    UNPAIRED_EXECUTION,
    collect_job_values,
    drop_dirty,
    pair_jobs,
)
from treehammer.analysis.statistics.sample import Sample

CPU = "cpu_per_event_s"


def sides(
    *values: tuple[float | None, float | None], attempt: int = 1
) -> tuple[list[Sample], list[Sample]]:
    """Build a job whose rounds have these values on sides A and B; None omits an execution."""
    template = SimulatedCampaign(jobs=1).samples()[0]
    found: tuple[list[Sample], list[Sample]] = ([], [])
    for round_, pair in enumerate(values, 1):
        for side, value in zip(found, pair, strict=True):
            if value is not None:
                side.append(replace(template, round=round_, attempt=attempt, metrics={CPU: value}))
    return found


def test_effect_is_median_log_ratio_over_rounds() -> None:
    (pair,), left_out = pair_jobs(*sides((1.0, 1.1), (2.0, 2.0), (1.0, 9.0)), CPU)
    assert pair.d == pytest.approx(math.log(1.1))
    assert pair.rounds == 3
    assert (pair.a, pair.b) == pytest.approx((4 / 3, 12.1 / 3))
    assert not left_out


def test_incomplete_rounds_are_excluded_and_counted() -> None:
    (pair,), left_out = pair_jobs(*sides((1.0, 1.5), (1.0, None), (None, 3.0)), CPU)
    assert pair.rounds == 1
    assert left_out == {UNPAIRED_EXECUTION: 2}


def test_pairs_require_the_same_attempt() -> None:
    a, _ = sides((1.0, None), attempt=1)
    _, b = sides((None, 2.0), attempt=2)
    pairs, left_out = pair_jobs(a, b, CPU)
    assert pairs == []
    assert left_out == {UNPAIRED_EXECUTION: 2}


def test_last_complete_attempt_counts() -> None:
    first, second = sides((1.0, 5.0), attempt=1), sides((1.0, 2.0), attempt=2)
    (pair,), left_out = pair_jobs(first[0] + second[0], first[1] + second[1], CPU)
    assert pair.d == pytest.approx(math.log(2))
    assert left_out == {EARLIER_ATTEMPT: 2}


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"failure_class": "open"}, "failed: open"),
        ({"plausible": False}, "implausible"),
        ({"metrics": {}}, f"no {CPU}"),
        ({"metrics": {CPU: 0.0}}, f"no {CPU}"),
    ],
)
def test_unusable_halves_are_counted_by_reason(change: dict[str, object], reason: str) -> None:
    a, b = sides((1.0, 1.0), (1.0, 2.0))
    b[0] = replace(b[0], **change)  # type: ignore[arg-type]
    (pair,), left_out = pair_jobs(a, b, CPU)
    assert pair.rounds == 1
    assert left_out == {reason: 1, UNPAIRED_EXECUTION: 1}


def test_clean_executions_replace_dirty_ones() -> None:
    a, b = sides((1.0, 1.0), (1.0, 2.0))
    dirty = replace(a[0], dirty=True)
    kept_a, kept_b, left_out = drop_dirty([dirty, a[1]], b)
    assert (kept_a, kept_b, left_out) == ([a[1]], b, {DIRTY_TREE: 1})


def test_dirty_executions_are_compared_without_clean_ones() -> None:
    a, b = ([replace(one, dirty=True) for one in side] for side in sides((1.0, 1.0)))
    assert drop_dirty(a, b) == (a, b, {})


def test_unpaired_value_is_from_last_attempt() -> None:
    early, _ = sides((9.0, None), attempt=1)
    late, _ = sides((1.0, None), (3.0, None), (8.0, None), attempt=2)
    (value,), left_out = collect_job_values(early + late, CPU)
    assert (value.value, value.mean) == (3.0, 4.0)
    assert left_out == {EARLIER_ATTEMPT: 1}


@given(st.lists(st.tuples(st.floats(1e-6, 1e3), st.floats(1e-6, 1e3)), min_size=1, max_size=5))
def test_swapping_sides_changes_only_the_sign(values: list[tuple[float, float]]) -> None:
    a, b = sides(*values)
    (there,), _ = pair_jobs(a, b, CPU)
    (back,), _ = pair_jobs(b, a, CPU)
    assert back.d == pytest.approx(-there.d)
    assert (back.a, back.b) == (there.b, there.a)
