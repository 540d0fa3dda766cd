"""Distributions, estimates, verdicts and sequential plans: reference values and error rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy  # loads its modules when they are used
from hypothesis import example, given, settings
from hypothesis import strategies as st
from simulated_campaign import SimulatedCampaign, ask, evidence, rows

from treehammer.analysis.statistics.distributions import (
    chi_squared_quantile,
    f_tail,
    shifted_student_tail,
    student_quantile,
    student_tail,
)
from treehammer.analysis.statistics.estimates import (
    Estimate,
    adjust_benjamini_hochberg,
    adjust_holm,
    estimate_mean,
    estimate_over_hosts,
    has_enough_jobs,
    judge_family,
    plan_units,
    pool_estimates,
)
from treehammer.analysis.statistics.verdict import (
    ALPHA,
    CERTAIN_VERDICTS,
    DEFAULT_DELTA,
    LOOKS,
    SEQUENTIAL_JOBS,
    SEQUENTIAL_LAUNCHES,
    Verdict,
    is_open,
    plan_looks,
    share_error_rate,
)
from treehammer.sql.core.evidence import VerdictEvidence

P_VALUES = st.lists(st.floats(1e-9, 0.999), max_size=12)


def test_paired_mean_equals_textbook_interval() -> None:
    # Student 1908: extra hours of sleep; mean 1.58, t = 4.0621 with 9 degrees of freedom.
    sleep = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    estimate = estimate_mean(sleep)
    assert estimate is not None
    assert estimate.mean == pytest.approx(1.58)
    assert estimate.mean / estimate.se == pytest.approx(4.0621, abs=5e-5)
    assert estimate.p == pytest.approx(0.002833, abs=5e-7)
    assert estimate.interval() == pytest.approx((0.7001142, 2.4598858), abs=1e-6)


def test_four_sites_are_pooled_by_t_over_their_means() -> None:
    means = [0.01, 0.05, 0.09, 0.02, 0.04]
    pooled = pool_estimates([[Estimate(mean, 0.01, 5)] for mean in means])
    assert pooled is not None
    assert pooled.estimate == estimate_mean(means)
    tau = math.sqrt(np.var(means, ddof=1) - 0.01**2)
    assert pooled.tau == pytest.approx(tau)
    half = float(scipy.stats.t.isf(0.025, 4)) * float(np.std(means, ddof=1)) * math.sqrt(1 + 1 / 5)
    assert pooled.prediction == pytest.approx((0.042 - half, 0.042 + half))


def test_fewer_sites_speak_of_themselves() -> None:
    pooled = pool_estimates([[Estimate(0.02, 0.01, 7)], [Estimate(0.02, 0.01, 7)]])
    assert pooled is not None
    assert pooled.estimate.se == pytest.approx(0.01 / math.sqrt(2))
    assert pooled.estimate.df == pytest.approx(14)
    assert (pooled.tau, pooled.prediction) == (None, None)


@pytest.mark.parametrize(
    "jobs, enough",
    [([], False), ([2], False), ([3], True), ([3, 1], False), ([2, 2], True), ([1, 1, 1], True)],
)
def test_required_jobs_depend_on_hosts(jobs: list[int], enough: bool) -> None:
    noise = np.random.default_rng(2)
    by_host = {str(host): noise.normal(0, 1, count).tolist() for host, count in enumerate(jobs)}
    assert has_enough_jobs(jobs) == enough
    assert (estimate_over_hosts(by_host) is not None) == enough


@given(st.lists(st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=6), min_size=3, max_size=6))
def test_repeated_jobs_on_a_host_add_nothing_at_site(groups: list[list[float]]) -> None:
    once = estimate_over_hosts({str(host): values for host, values in enumerate(groups)})
    twice = estimate_over_hosts({str(host): values * 9 for host, values in enumerate(groups)})
    assert (once is None) == (twice is None)
    if once and twice:
        assert (twice.mean, twice.se) == pytest.approx((once.mean, once.se), abs=1e-9)
        assert twice.df == len(groups) - 1


def test_holm_adjustment_equals_manual_calculation() -> None:
    adjusted = adjust_holm([0.04, 0.01, 0.03])
    assert [test.p for test in adjusted] == pytest.approx([0.06, 0.03, 0.06])
    # The smallest p-value is rejected at alpha/3; 0.03 fails at alpha/2, as do the larger ones.
    assert [test.level for test in adjusted] == pytest.approx([ALPHA / 2, ALPHA / 3, ALPHA / 2])


def test_benjamini_hochberg_equals_manual_calculation() -> None:
    adjusted = adjust_benjamini_hochberg([0.01, 0.02, 0.03, 0.5])
    assert [test.p for test in adjusted] == pytest.approx([0.04, 0.04, 0.04, 0.5])
    assert [test.level for test in adjusted] == pytest.approx([3 / 4 * ALPHA] * 4)


@given(P_VALUES)
def test_adjusted_intervals_agree_with_rejections(p_values: list[float]) -> None:
    for adjust in (adjust_holm, adjust_benjamini_hochberg):
        for p, test in zip(p_values, adjust(p_values), strict=True):
            if abs(test.p - ALPHA) < 1e-9:
                continue
            quantile = float(scipy.stats.t.isf(p / 2, 9))
            low, high = Estimate(quantile, 1.0, 9).interval(test.level)
            assert (test.p < ALPHA) == (not low <= 0 <= high)


def judge(estimate: Estimate) -> Verdict:
    return judge_family([estimate], DEFAULT_DELTA, adjust_holm)[0].verdict


@pytest.mark.parametrize(
    "mean, se, verdict",
    [
        (-0.05, 0.005, Verdict.FASTER),
        (0.05, 0.005, Verdict.SLOWER),
        (0.05, 0.015, Verdict.DIFFERENT),  # not 0, but possibly smaller than delta
        (0.001, 0.002, Verdict.SAME),
        (0.01, 0.002, Verdict.SAME),  # not 0, but smaller than delta
        (0.018, 0.004, Verdict.DIFFERENT),  # not 0, but possibly larger than delta
        (0.05, 0.05, Verdict.UNDECIDED),
        (0.0, 0.05, Verdict.UNDECIDED),
    ],
)
def test_verdicts(mean: float, se: float, verdict: Verdict) -> None:
    assert judge(Estimate(mean, se, 9)) is verdict


ESTIMATES = st.lists(
    st.builds(Estimate, st.floats(-0.2, 0.2), st.floats(1e-3, 0.1), st.integers(2, 30)),
    min_size=1,
    max_size=12,
)


@given(ESTIMATES)
def test_swapping_sides_swaps_verdicts(estimates: list[Estimate]) -> None:
    swapped = {Verdict.FASTER: Verdict.SLOWER, Verdict.SLOWER: Verdict.FASTER}
    mirrored = [Estimate(-estimate.mean, estimate.se, estimate.df) for estimate in estimates]
    for adjust in (adjust_holm, adjust_benjamini_hochberg):
        judgements = judge_family(estimates, DEFAULT_DELTA, adjust)
        mirrored_judgements = judge_family(mirrored, DEFAULT_DELTA, adjust)
        for one, other in zip(judgements, mirrored_judgements, strict=True):
            assert other.verdict is swapped.get(one.verdict, one.verdict)
            assert other.level == one.level


@given(ESTIMATES)
@example([Estimate(0.0, 1 / 256, 2)] * 3)
def test_shown_interval_supports_the_claim(estimates: list[Estimate]) -> None:
    """Compare each verdict with the interval at its level, except on the edge of rounding."""
    for adjust in (adjust_holm, adjust_benjamini_hochberg):
        for estimate, judged in zip(
            estimates, judge_family(estimates, DEFAULT_DELTA, adjust), strict=True
        ):
            low, high = (end - estimate.mean for end in estimate.interval(judged.level))
            low, high = estimate.mean + low * (1 - 1e-6), estimate.mean + high * (1 - 1e-6)
            beyond = low > DEFAULT_DELTA or high < -DEFAULT_DELTA
            within = low > -DEFAULT_DELTA and high < DEFAULT_DELTA
            assert judged.level <= 2 * ALPHA
            if judged.verdict in CERTAIN_VERDICTS:
                assert beyond
            elif judged.verdict is Verdict.SAME:
                assert within
            elif judged.verdict is Verdict.DIFFERENT:
                assert not low <= 0 <= high


@pytest.mark.parametrize("level", [0.05, 0.05 / 70, 0.05 / 10_000])
@pytest.mark.parametrize("spread", [0.13, 0.045, 0.005])
def test_plan_is_minimal_at_every_level(spread: float, level: float) -> None:
    """Check families of thousands as well, where the formula's tail underflows."""
    df = 1e9  # The spread is as good as known.

    def chances(jobs: int) -> tuple[float, float]:
        limits = [float(scipy.stats.t.isf(tail, jobs - 1)) for tail in (level / 2, level)]
        noise = np.random.default_rng(3)
        t = noise.normal(DEFAULT_DELTA, spread / math.sqrt(jobs), 20_000) / (
            spread * np.sqrt(noise.chisquare(jobs - 1, 20_000) / (jobs - 1) / jobs)
        )
        return float((t > limits[0]).mean()), float((t > limits[1]).mean())

    planned = plan_units(Estimate(0.0, spread, df), 1, level, DEFAULT_DELTA)
    assert planned is not None
    relevant, same = chances(planned)
    assert relevant >= 0.78
    assert same >= 0.88
    if planned > 3:
        relevant, same = chances(planned - 1)
        assert relevant <= 0.82 or same <= 0.92


def test_unreachable_power_gives_no_plan() -> None:
    assert plan_units(Estimate(0.0, 5.0, 9), 10, ALPHA, DEFAULT_DELTA) is None


@pytest.mark.parametrize("hosts", [1, 2, 3])
def test_verdicts_of_a_host_or_site_are_rarely_wrong(hosts: int) -> None:
    """Draw effects of hosts too: a claim on hosts is about them, a claim on a site about all."""
    noise = np.random.default_rng(7)
    wrong = 0
    for _ in range(400):
        effects = noise.normal(0, 0.03, hosts)
        by_host = {
            str(host): noise.normal(effect, 0.01, 6).tolist() for host, effect in enumerate(effects)
        }
        estimate = estimate_over_hosts(by_host)
        assert estimate is not None
        true = 0.0 if hosts == 3 else effects.mean()
        wrong += judge(estimate) in CERTAIN_VERDICTS and abs(true) < DEFAULT_DELTA
    assert wrong / 400 <= 0.05


WORK: dict[str, str | int] = {"dataset": "events", "instrument_version": 1, "site": "A"}


@pytest.mark.parametrize(
    ("of_a", "of_b"),
    [
        ({**WORK, "root": "6.38"}, {**WORK, "root": "6.40"}),
        ({**WORK, "door": "root"}, {**WORK, "host": "b"}),
        (WORK, WORK),
        (WORK, {}),
        ({}, WORK),
        ({"site": "A"}, {"site": "B"}),
        ({}, {}),
    ],
)
def test_values_of_both_sides_are_kept_once(of_a: dict[str, Any], of_b: dict[str, Any]) -> None:
    evidence = VerdictEvidence(of_a=of_a, of_b=of_b)
    text = evidence.to_json()
    assert VerdictEvidence.from_json(text) == evidence
    shared = of_a.items() & of_b.items()
    assert all(text.count(f'"{name}"') == 1 for name, _ in shared)


@pytest.mark.parametrize("text", ['{"why":"x"} y', '{"why":"x"}{}', "{", '{"of_next":1}'])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        VerdictEvidence.from_json(text)


#: Verdicts that are false where nothing differs.
FALSE_VERDICTS = (Verdict.FASTER, Verdict.SLOWER, Verdict.DIFFERENT)


@pytest.mark.parametrize(
    ("max_launches", "looks"), [(5, (5,)), (39, (5, 10, 20)), (40, (5, 10, 20, 40)), (80, LOOKS)]
)
def test_limit_leaves_the_looks_up_to_it(max_launches: int, looks: tuple[int, ...]) -> None:
    assert plan_looks(max_launches).looks == looks


@pytest.mark.parametrize(
    ("max_launches", "delta", "message"),
    [
        (4, DEFAULT_DELTA, "5 and 80, not 4"),
        (81, DEFAULT_DELTA, "5 and 80, not 81"),
        *((40, delta, "0 and 1") for delta in (0.0, 1.0, -0.1)),
    ],
)
def test_limit_out_of_range_is_refused(max_launches: int, delta: float, message: str) -> None:
    with pytest.raises(ValueError, match=f"must lie between {message}"):
        plan_looks(max_launches, delta)


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


LOOK_REPEATS = [look * SEQUENTIAL_JOBS // SEQUENTIAL_LAUNCHES for look in LOOKS[:4]]
LOOK_SHARES = [share_error_rate(LOOKS[:4], repeats) for repeats in LOOK_REPEATS]


def test_shares_of_all_looks_are_the_error_rate() -> None:
    assert LOOK_SHARES[0] > LOOK_SHARES[1]
    assert sum(LOOK_SHARES) == pytest.approx(1)
    assert share_error_rate((5,), 2) == 1


def _count_false_verdicts(shares: Sequence[float]) -> int:
    """Count campaigns of equal sides with a false verdict at any look, each judged at its share."""
    noise = np.random.default_rng(1).normal(0, 0.003, (1000, LOOKS[3]))
    count = 0
    for launches in noise:
        estimates = [estimate_mean(launches[:look]) for look in LOOKS[:4]]
        count += any(
            judge_family([estimate], 1e-6, adjust_benjamini_hochberg, share)[0].verdict
            in FALSE_VERDICTS
            for estimate, share in zip(estimates, shares, strict=True)
            if estimate
        )
    return count


def test_all_looks_together_keep_the_error_rate() -> None:
    assert _count_false_verdicts(LOOK_SHARES) <= 1000 * ALPHA
    assert _count_false_verdicts([1.0] * 4) > 2 * 1000 * ALPHA  # what looking again would cost


def test_comparison_says_how_many_looks_share_the_error_rate() -> None:
    samples = SimulatedCampaign(hosts=1, jobs=6, execution_noise=0.001).samples()
    fixed = ask(samples)
    ended_early = ask([replace(sample, looks=4, look_share=0.6) for sample in samples])
    (row,), (early,) = rows(fixed), rows(ended_early)
    assert evidence(early).looks == 4
    assert evidence(early).level == pytest.approx(0.6 * (evidence(row).level or 0))
    assert early.low is not None
    assert row.low is not None
    assert early.low < row.low
    assert any("at most 4 looks: this one is judged at 3 %" in note for note in ended_early.notes)
    assert not any("looks" in note for note in fixed.notes)


DEGREES = st.floats(1, 1e5)


@given(DEGREES, st.floats(-5, 40))
@example(7111, 1e-5)
def test_tail_of_t_is_that_of_scipy(df: float, t: float) -> None:
    assert student_tail(df, t) == pytest.approx(
        float(scipy.special.stdtr(df, -t)), rel=1e-8, abs=1e-18
    )


@given(DEGREES, st.floats(1e-9, 0.45))
def test_quantile_of_t_is_that_of_scipy(df: float, p: float) -> None:
    assert student_quantile(df, p) == pytest.approx(-float(scipy.special.stdtrit(df, p)), rel=1e-8)


@given(st.integers(1, 500), st.integers(8, 500), st.floats(0.01, 50))
def test_tail_of_f_is_that_of_scipy(df1: int, df2: int, ratio: float) -> None:
    reference = float(scipy.special.fdtrc(df1, df2, ratio))
    assert f_tail(df1, df2, ratio) == pytest.approx(reference, rel=1e-9, abs=1e-15)


@given(st.floats(1, 1e4), st.floats(0.05, 0.95))
@settings(deadline=None)
def test_quantile_of_chi_squared_is_that_of_scipy(df: float, p: float) -> None:
    assert chi_squared_quantile(df, p) == pytest.approx(
        float(scipy.special.chdtri(df, p)), rel=2e-5
    )


@pytest.mark.parametrize("level", [0.05, 0.025, 1e-4])
@pytest.mark.parametrize("df", [1, 2, 5, 30, 999, 9999])
def test_power_is_that_of_scipy(df: int, level: float) -> None:
    limit = student_quantile(df, level)
    for shift in (0.1, 2.0, 4.0, 8.0, 20.0):
        reference = float(scipy.stats.nct.sf(limit, df, shift))
        assert shifted_student_tail(df, limit, shift) == pytest.approx(reference, abs=1e-6)
