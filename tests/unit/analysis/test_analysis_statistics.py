"""Intervals, pooling and multiplicity adjustment: reference values and error rates."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from treehammer.analysis.statistics.estimates import (
    ALPHA,
    Estimate,
    adjust_benjamini_hochberg,
    adjust_holm,
    decide_verdict,
    estimate_jobs_needed,
    estimate_paired,
    estimate_unpaired,
    pool_estimates,
)
from treehammer.analysis.statistics.verdict import DEFAULT_DELTA, Verdict

P_VALUES = st.lists(st.floats(1e-9, 0.999), min_size=1, max_size=12)

# Colditz et al. 1994, 13 trials of the BCG vaccine: log risk ratios and their variances, a
# standard example of meta-analysis.
BCG_EFFECTS = (-0.8893, -1.5854, -1.3481, -1.4416, -0.2175, -0.7861, -1.6209, 0.0120, -0.4694,
               -1.3713, -0.3394, 0.4459, -0.0173)  # fmt: skip
BCG_VARIANCES = (0.3256, 0.1946, 0.4154, 0.0200, 0.0512, 0.0069, 0.2230, 0.0040, 0.0564, 0.0730,
                 0.0124, 0.5325, 0.0714)  # fmt: skip


def test_paired_mean_equals_textbook_interval() -> None:
    # Student 1908: extra hours of sleep; mean 1.58, t = 4.0621 with 9 degrees of freedom.
    sleep = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    found = estimate_paired(sleep)
    assert found is not None
    assert found.mean == pytest.approx(1.58)
    assert found.mean / found.se == pytest.approx(4.0621, abs=5e-5)
    assert found.p == pytest.approx(0.002833, abs=5e-7)
    assert found.interval() == pytest.approx((0.7001142, 2.4598858), abs=1e-6)


def test_unpaired_interval_equals_scipy_on_logarithms() -> None:
    noise = np.random.default_rng(3)
    a, b = noise.lognormal(0, 0.1, 9).tolist(), noise.lognormal(0.1, 0.3, 14).tolist()
    found = estimate_unpaired(a, b)
    assert found is not None
    theirs = stats.ttest_ind(np.log(b), np.log(a), equal_var=False)
    assert found.p == pytest.approx(float(theirs.pvalue))
    interval = theirs.confidence_interval(0.95)
    assert found.interval() == pytest.approx((float(interval.low), float(interval.high)))


def test_identical_values_give_no_interval() -> None:
    assert estimate_paired([0.01] * 20) is None
    assert estimate_paired([0.01]) is None
    assert estimate_unpaired([2.0, 2.0, 2.0], [3.0, 3.1, 2.9]) is None


def test_pooling_agrees_with_published_values() -> None:
    found = pool_estimates(
        [Estimate(e, math.sqrt(v), 20) for e, v in zip(BCG_EFFECTS, BCG_VARIANCES, strict=True)]
    )
    assert found is not None
    # metafor: method PM gives tau^2 = 0.318; with test="knha" the interval of REML is
    # [-1.108, -0.321] around -0.7145 with t on 12 degrees of freedom.
    assert found.tau**2 == pytest.approx(0.318, abs=0.001)
    assert found.estimate.mean == pytest.approx(-0.7145, abs=0.002)
    assert found.estimate.interval() == pytest.approx((-1.108, -0.321), abs=0.004)
    assert found.estimate.df == 12


def test_pooling_agrees_with_explicit_formulas() -> None:
    effects, variances = np.array([0.01, 0.05, 0.09]), np.array([1e-4, 2e-4, 5e-5])

    def excess(tau2: float) -> float:
        weights = 1 / (variances + tau2)
        mean = float(weights @ effects / weights.sum())
        return float(weights @ (effects - mean) ** 2) - 2

    tau2 = optimize.brentq(excess, 0, 1)
    weights = 1 / (variances + tau2)
    mean = weights @ effects / weights.sum()
    se = math.sqrt(weights @ (effects - mean) ** 2 / 2 / weights.sum())
    found = pool_estimates(
        [Estimate(e, math.sqrt(v), 5) for e, v in zip(effects, variances, strict=True)]
    )
    assert found is not None
    assert found.tau**2 == pytest.approx(tau2, rel=1e-4)
    assert found.estimate.mean == pytest.approx(mean, rel=1e-4)
    assert found.estimate.se == pytest.approx(se, rel=1e-4)


def test_agreeing_sites_keep_nonzero_error() -> None:
    found = pool_estimates([Estimate(0.02, 0.01, 7), Estimate(0.02, 0.01, 7)])
    assert found is not None
    assert found.estimate.se == pytest.approx(0.01 / math.sqrt(2))


def test_one_site_is_not_pooled() -> None:
    assert pool_estimates([Estimate(0.02, 0.01, 7)]) is None


def test_holm_adjustment_equals_manual_calculation() -> None:
    found = adjust_holm([0.04, 0.01, 0.03])
    assert [one.p for one in found] == pytest.approx([0.06, 0.03, 0.06])
    # The smallest p-value is rejected at alpha/3; 0.03 fails at alpha/2, as do the larger ones.
    assert [one.level for one in found] == pytest.approx([ALPHA / 2, ALPHA / 3, ALPHA / 2])


def test_benjamini_hochberg_equals_manual_calculation() -> None:
    found = adjust_benjamini_hochberg([0.01, 0.02, 0.03, 0.5])
    assert [one.p for one in found] == pytest.approx([0.04, 0.04, 0.04, 0.5])
    assert [one.level for one in found] == pytest.approx([3 / 4 * ALPHA] * 4)


def test_no_tests_need_no_adjustment() -> None:
    assert adjust_holm([]) == adjust_benjamini_hochberg([]) == []


@given(P_VALUES)
@settings(max_examples=60, deadline=None)
def test_adjusted_intervals_agree_with_rejections(p_values: list[float]) -> None:
    for adjust in (adjust_holm, adjust_benjamini_hochberg):
        for p, one in zip(p_values, adjust(p_values), strict=True):
            if abs(one.p - ALPHA) < 1e-9:
                continue
            quantile = float(stats.t.isf(p / 2, 9))
            low, high = Estimate(quantile, 1.0, 9).interval(one.level)
            assert (one.p < ALPHA) == (not low <= 0 <= high)


@pytest.mark.parametrize(
    "mean, se, verdict",
    [
        (-0.05, 0.005, Verdict.FASTER),
        (0.05, 0.005, Verdict.SLOWER),
        (0.001, 0.002, Verdict.SAME),
        (0.01, 0.002, Verdict.SAME),  # significant, but smaller than delta
        (0.018, 0.004, Verdict.UNDECIDED),  # significant, but possibly larger than delta
        (0.05, 0.05, Verdict.UNDECIDED),
        (0.0, 0.05, Verdict.UNDECIDED),
    ],
)
def test_verdicts(mean: float, se: float, verdict: Verdict) -> None:
    assert decide_verdict(Estimate(mean, se, 9), ALPHA, DEFAULT_DELTA) is verdict


@given(st.floats(-0.2, 0.2), st.floats(1e-3, 0.1))
@settings(max_examples=50, deadline=None)
def test_swapping_sides_swaps_the_verdict(mean: float, se: float) -> None:
    swapped = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    here = decide_verdict(Estimate(mean, se, 9), ALPHA, DEFAULT_DELTA)
    there = decide_verdict(Estimate(-mean, se, 9), ALPHA, DEFAULT_DELTA)
    assert there is swapped.get(here, here)


@pytest.mark.parametrize("true, verdict", [(0.06, Verdict.SLOWER), (0.0, Verdict.SAME)])
def test_jobs_needed_reach_stated_power(true: float, verdict: str) -> None:
    spread, n = 0.08, 8
    more = estimate_jobs_needed(
        Estimate(true, spread / math.sqrt(n), n - 1), n, ALPHA, DEFAULT_DELTA
    )
    assert more is not None
    noise = np.random.default_rng(11)
    decided = 0
    for _ in range(200):
        again = estimate_paired(noise.normal(true, spread, n + more).tolist())
        decided += again is not None and decide_verdict(again, ALPHA, DEFAULT_DELTA) is verdict
    # The verdict "same" needs both edges, so its probability is below the one-sided 80 %.
    assert decided / 200 > (0.7 if verdict is Verdict.SLOWER else 0.5)


@pytest.mark.parametrize("level", [0.05, 0.05 / 70, 0.05 / 10_000])
@pytest.mark.parametrize("mean, spread", [(0.09, 0.13), (0.05, 0.045), (0.0, 0.05), (0.06, 0.005)])
def test_jobs_needed_are_minimal_at_every_level(mean: float, spread: float, level: float) -> None:
    """Check families of thousands as well, where the formula's tail underflows."""
    gap = abs(mean) if abs(mean) > DEFAULT_DELTA else DEFAULT_DELTA - abs(mean)

    def chance(jobs: int) -> float:
        limit = stats.t.isf(level / 2, jobs - 1)
        noise = np.random.default_rng(3)
        t = (noise.normal(gap, spread / math.sqrt(jobs), 20_000)) / (
            spread * np.sqrt(noise.chisquare(jobs - 1, 20_000) / (jobs - 1) / jobs)
        )
        return float((t > limit).mean())

    n = 2
    more = estimate_jobs_needed(
        Estimate(mean, spread / math.sqrt(n), n - 1), n, level, DEFAULT_DELTA
    )
    assert more is not None
    assert chance(n + more) >= 0.78
    assert more == 1 or chance(n + more - 1) <= 0.82


def test_unreachable_power_gives_no_job_count() -> None:
    assert (
        estimate_jobs_needed(Estimate(DEFAULT_DELTA - 1e-7, 0.5, 9), 10, ALPHA, DEFAULT_DELTA)
        is None
    )


def test_intervals_have_nominal_coverage() -> None:
    noise = np.random.default_rng(5)
    covered = pooled = 0
    trials = 300
    for _ in range(trials):
        low, high = estimate_paired(noise.normal(0.03, 0.05, 8).tolist()).interval()  # type: ignore[union-attr]
        covered += low <= 0.03 <= high
        sites = [
            estimate_paired(noise.normal(noise.normal(0.03, 0.02), 0.05, 8).tolist())
            for _ in range(5)
        ]
        found = pool_estimates([site for site in sites if site])
        assert found is not None
        low, high = found.estimate.interval()
        pooled += low <= 0.03 <= high
    assert covered / trials == pytest.approx(0.95, abs=0.035)
    assert pooled / trials > 0.92
