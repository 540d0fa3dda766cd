"""Comparisons that end as soon as they are decided: looks, their error rate, and their notes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from comparison_questions import ask, evidence, rows
from simulated_campaign import SimulatedCampaign

from treehammer.analysis.statistics.estimates import (
    Estimate,
    adjust_benjamini_hochberg,
    estimate_mean,
    judge_family,
)
from treehammer.analysis.statistics.verdict import (
    ALPHA,
    DEFAULT_DELTA,
    LOOKS,
    SequentialPlan,
    Verdict,
    is_open,
)

#: Verdicts that are false where nothing differs.
FALSE_VERDICTS = (Verdict.FASTER, Verdict.SLOWER, Verdict.DIFFERENT)


@pytest.mark.parametrize(
    ("max_launches", "looks"),
    [(3, (3,)), (23, (3, 6, 12)), (24, (3, 6, 12, 24)), (96, LOOKS)],
)
def test_limit_leaves_the_looks_up_to_it(max_launches: int, looks: tuple[int, ...]) -> None:
    assert SequentialPlan.up_to(max_launches).looks == looks


@pytest.mark.parametrize("max_launches", [2, 97])
def test_limit_out_of_range_is_refused(max_launches: int) -> None:
    with pytest.raises(ValueError, match=f"must lie between 3 and 96, not {max_launches}"):
        SequentialPlan.up_to(max_launches)


@pytest.mark.parametrize("delta", [0.0, 1.0, -0.1])
def test_limit_of_no_effect_out_of_range_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match="must lie between 0 and 1"):
        SequentialPlan.up_to(24, delta)


@pytest.mark.parametrize(
    ("verdict", "low", "high", "expected"),
    [
        (Verdict.SAME, -0.005, 0.005, False),
        (Verdict.SLOWER, 0.021, 0.08, False),
        (Verdict.FASTER, -0.08, -0.021, False),
        (Verdict.UNDECIDED, -0.01, 0.03, True),
        (Verdict.DIFFERENT, 0.005, 0.03, True),
        (Verdict.DIFFERENT, 0.015, 0.03, False),  # its size is known
        (Verdict.NOT_ENOUGH, None, None, True),
        (Verdict.FAILED, None, None, False),
        (Verdict.VALUES_DIFFER, None, None, False),
        (Verdict.BUILD_DIFFERS, None, None, False),
    ],
)
def test_only_verdicts_that_launches_may_change_are_open(
    verdict: Verdict, low: float | None, high: float | None, expected: bool
) -> None:
    assert is_open(verdict, low, high, DEFAULT_DELTA) is expected


def test_a_look_is_judged_at_its_share_of_the_error_rate() -> None:
    estimate = Estimate(0.03, 0.002, 5)
    (judged,) = judge_family([estimate], DEFAULT_DELTA, adjust_benjamini_hochberg, looks=4)
    assert judged.verdict == Verdict.UNDECIDED or judged.level == pytest.approx(ALPHA / 4)
    p = estimate.p_beyond(DEFAULT_DELTA)
    assert p < ALPHA
    assert (judged.verdict == Verdict.SLOWER) == (4 * p <= ALPHA)
    assert judged.p_adjusted == pytest.approx(4 * estimate.p)


def _count_false_verdicts(looks: int) -> int:
    """Count campaigns of equal sides with a false verdict at any look, each look judged as one of so many."""
    noise = np.random.default_rng(1).normal(0, 0.003, (1000, LOOKS[3]))
    count = 0
    for launches in noise:
        estimates = [estimate_mean(launches[:look]) for look in LOOKS[:4]]
        count += any(
            judge_family([estimate], 1e-6, adjust_benjamini_hochberg, looks)[0].verdict
            in FALSE_VERDICTS
            for estimate in estimates
            if estimate
        )
    return count


def test_all_looks_together_keep_the_error_rate() -> None:
    assert _count_false_verdicts(looks=4) <= 1000 * ALPHA
    assert _count_false_verdicts(looks=1) > 2 * 1000 * ALPHA  # what looking again would cost


def test_comparison_says_how_many_looks_share_the_error_rate() -> None:
    samples = SimulatedCampaign(hosts=1, jobs=6, execution_noise=0.001).samples()
    fixed = ask(samples)
    ended_early = ask([replace(sample, looks=4) for sample in samples])
    (row,), (early,) = rows(fixed), rows(ended_early)
    assert evidence(early).looks == 4
    assert evidence(early).level == pytest.approx((evidence(row).level or 0) / 4)
    assert early.low is not None
    assert row.low is not None
    assert early.low < row.low
    assert any(
        "each of its up to 4 looks is judged at 1.25 %" in note for note in ended_early.notes
    )
    assert not any("looks" in note for note in fixed.notes)
