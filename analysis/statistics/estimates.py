"""Estimates, multiplicity, verdicts and plans; effects are d = ln(B/A), so +0.01 is 1 % slower.

Each docstring names its method and the reason for choosing it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean, stdev, variance

from treehammer.analysis.statistics.distributions import (
    chi_squared_quantile,
    f_tail,
    shifted_student_tail,
    student_quantile,
    student_tail,
)
from treehammer.analysis.statistics.verdict import (
    ALPHA,
    MAX_JOBS_NAMED,
    MIN_HOSTS,
    MIN_JOBS,
    MIN_SITES,
    Verdict,
)

#: Spread up to which values count as equal: rounding leaves less, and measurements more.
MIN_SPREAD = 1e-12
#: Probability of a decision for which a new campaign is planned.
TARGET_POWER = 0.8


@dataclass(frozen=True)
class Estimate:
    """A mean effect with its standard error and the degrees of freedom of its t distribution.

    The error is positive: values without spread give no estimate.  ``shared`` is the part of its square
    that further launches in the same hours would leave, see :data:`SHARED_SCATTER`.
    """

    mean: float
    se: float
    df: float
    shared: float = 0.0

    @property
    def p(self) -> float:
        """Two-sided p-value of the null hypothesis of no effect."""
        return self.p_beyond(0.0)

    def p_beyond(self, delta: float) -> float:
        """Compute the p-value of 'the effect lies within ±delta', against 'beyond'.

        It is at most a level exactly when the whole interval of that level lies beyond.
        """
        return min(2 * self._tail(abs(self.mean) - delta), 1.0)

    def p_within(self, delta: float) -> float:
        """Compute the p-value of 'the effect lies beyond ±delta': two one-sided tests.

        It is at most a level exactly when the interval of twice that level lies within.
        """
        return self._tail(delta - abs(self.mean))

    def interval(self, level: float = ALPHA) -> tuple[float, float]:
        """Compute the interval that misses the true mean with probability ``level``."""
        half_width = student_quantile(self.df, level / 2) * self.se
        return self.mean - half_width, self.mean + half_width

    def _tail(self, distance: float) -> float:
        return student_tail(self.df, distance / self.se)


#: Standard deviation (ln) of what all launches of one hour on one host may share in a ratio of times: the
#: upper limit from campaigns of one pair of releases over four hours, whose most likely value is 0 (see
#: docs/benchmarks.md).  A limit that is known adds no uncertainty of its own.
SHARED_SCATTER = 0.002
#: Degrees of freedom beyond which Student's t is the normal distribution.
_MAX_DF = 1e6

#: Scatter (ln) of the launches of equal sides, as measured on busy and quiet machines, and the number of
#: launches that it counts for beside a comparison's own controls, of which there may be one.
USUAL_SCATTER, USUAL_LAUNCHES = 0.015, 8
#: Error rate at which launches are said to scatter more than those of equal sides.
SCATTER_ALPHA = 0.001


def find_scatter(ratios: Sequence[float], controls: int, mean_square: float) -> tuple[float, ...]:
    """Find out whether launches scatter beyond doubt more than those of equal sides (F test).

    Args:
        ratios: ln(B/A) of each launch.
        controls: number of launches of equal sides.
        mean_square: of their ln(A/A).

    Returns:
        The standard deviations of equal and of these launches; () where they may be the same.
    """
    if len(ratios) < MIN_JOBS:
        return ()
    df = controls + USUAL_LAUNCHES
    usual = (controls * mean_square + USUAL_LAUNCHES * USUAL_SCATTER**2) / df
    ratio = variance(ratios) / usual
    p = f_tail(len(ratios) - 1, df, ratio)
    return (math.sqrt(usual), stdev(ratios)) if p <= SCATTER_ALPHA else ()


def estimate_mean(values: Collection[float]) -> Estimate | None:
    """Estimate a mean by Student's t; None with fewer than two values or no spread.

    Identical ratios from several jobs indicate a clock that is too coarse, not certainty.
    """
    effects, n = [float(value) for value in values], len(values)
    if n < 2 or max(effects) - min(effects) <= MIN_SPREAD:
        return None
    mean = math.fsum(effects) / n
    square = math.fsum((effect - mean) ** 2 for effect in effects) / (n - 1)
    return Estimate(mean, math.sqrt(square / n), n - 1)


def combine_estimates(parts: Sequence[Estimate], weights: Sequence[float]) -> Estimate:
    """Combine independent estimates linearly, with Welch's and Satterthwaite's degrees of freedom.

    Equal spread cannot be assumed between nodes or sites.
    """
    mean = sum(weight * part.mean for part, weight in zip(parts, weights, strict=True))
    squares = [(weight * part.se) ** 2 for part, weight in zip(parts, weights, strict=True)]
    total = sum(squares)
    df = total**2 / sum(square**2 / part.df for square, part in zip(squares, parts, strict=True))
    shared = sum(weight**2 * part.shared for part, weight in zip(parts, weights, strict=True))
    return Estimate(mean, math.sqrt(total), df, shared)


def add_shared_scatter(estimate: Estimate, hours: int) -> Estimate:
    """Add what the launches of one host share within each of some hours.

    Three launches leave their own error uncertain: Satterthwaite's degrees of freedom (power 2) made a
    nominal 5 % to 7 or 8 %, and power 1 the 0.5 % of ten rows to 1.4 %; these keep 5 %, and make it 0.8 %.
    """
    shared = SHARED_SCATTER**2 / hours
    total = estimate.se**2 + shared
    df = min(estimate.df * (total / estimate.se**2) ** (estimate.df / (estimate.df + 2)), _MAX_DF)
    return Estimate(estimate.mean, math.sqrt(total), df, shared)


def average_estimates(parts: Sequence[Estimate]) -> Estimate:
    """Estimate the plain mean of these hosts or sites; it does not hold for others."""
    return combine_estimates(parts, [1 / len(parts)] * len(parts))


def has_enough_jobs(jobs_per_host: Collection[int]) -> bool:
    """Return whether :func:`estimate_over_hosts` can answer.

    Three jobs on one host, two on each of two hosts, or one on each of three hosts: fewer leave
    less than two degrees of freedom, where an interval is six times as wide as the spread.
    """
    if len(jobs_per_host) >= MIN_HOSTS:
        return True
    needed = MIN_JOBS if len(jobs_per_host) == 1 else 2
    return bool(jobs_per_host) and min(jobs_per_host) >= needed


def estimate_over_hosts(
    by_host: Mapping[str, Sequence[float]], hours: Mapping[str, int] | None = None
) -> Estimate | None:
    """Estimate the mean effect of a site's hosts, of which each counts once.

    Jobs on one host are not independent: from three hosts on, Student's t is taken over the host
    means.  With one or two hosts the jobs are independent for a claim about just these hosts, but for
    what all jobs of an hour share.

    Args:
        by_host: host -> effects of its launches or jobs.
        hours: host -> number of hours in which they ran, for times; None for values without clocks.
    """
    if not has_enough_jobs([len(values) for values in by_host.values()]):
        return None
    if len(by_host) >= MIN_HOSTS:
        return estimate_mean([fmean(values) for values in by_host.values()])
    estimates = []
    for host, values in sorted(by_host.items()):
        estimate = estimate_mean(values)
        if estimate is None:
            return None
        estimates.append(add_shared_scatter(estimate, hours[host]) if hours else estimate)
    return average_estimates(estimates)


@dataclass(frozen=True)
class PooledEstimate:
    """A mean over ``sites`` sites, of which those that share a host count as one.

    From four sites on it speaks of sites like these: ``tau`` is the standard deviation between
    them (ln), ``prediction`` the 95 % interval of the effect as one more site would measure it with
    as many jobs.  Both are None below, where it speaks of just these sites.
    """

    estimate: Estimate
    sites: int
    tau: float | None = None
    prediction: tuple[float, float] | None = None


def pool_estimates(groups: Sequence[Sequence[Estimate]]) -> PooledEstimate | None:
    """Compute the mean over sites; None with fewer than two.

    From four groups on it is Hartung and Knapp's interval with equal weights, which is Student's t
    over their means.  Weights by inverse variance are worse here: with three hosts a site they
    are themselves so uncertain that the nominal 5 % become 6 to 11 % (see decision 0023).

    Args:
        groups: estimates of the sites, together where sites share a host.
    """
    sites = list(chain.from_iterable(groups))
    if len(sites) < 2:
        return None
    separate = [average_estimates(group) for group in groups]
    over_sites = estimate_mean([estimate.mean for estimate in separate])
    if len(separate) < MIN_SITES or over_sites is None:
        return PooledEstimate(average_estimates(sites), len(separate))
    between = len(separate) * over_sites.se**2
    tau = math.sqrt(max(between - fmean(estimate.se**2 for estimate in separate), 0.0))
    one_more = replace(over_sites, se=math.sqrt(between + over_sites.se**2))
    return PooledEstimate(over_sites, len(separate), tau, one_more.interval())


@dataclass(frozen=True)
class AdjustedTest:
    """A test within its family: adjusted p-value, and the level of its adjusted interval.

    The interval at ``level`` excludes 0 exactly when the test is rejected.
    """

    p: float
    level: float


def adjust_holm(p_values: Sequence[float]) -> list[AdjustedTest]:
    """Adjust the headline tests by Holm: any false claim in the family has probability :data:`ALPHA`.

    Test i in order of p is judged at alpha/(m - i).  From the first test that fails on, all share
    its level, so that intervals and rejections agree.
    """
    m, p = len(p_values), 0.0
    order = sorted(range(m), key=p_values.__getitem__)
    passed = next((i for i in range(m - 1) if p_values[order[i]] > ALPHA / (m - i)), m - 1)
    adjusted = {}
    for rank, index in enumerate(order):
        p = max(p, min(p_values[index] * (m - rank), 1.0))
        adjusted[index] = AdjustedTest(p, ALPHA / max(m - rank, m - passed))
    return [adjusted[index] for index in range(m)]


def adjust_benjamini_hochberg(p_values: Sequence[float]) -> list[AdjustedTest]:
    """Control the false-discovery rate over site rows, with Benjamini and Yekutieli's intervals.

    With R of m tests rejected, every interval is taken at R * alpha / m (JASA 100:71, 2005).
    """
    m, p = len(p_values), 1.0
    order = sorted(range(m), key=p_values.__getitem__)
    passed = [rank for rank, index in enumerate(order, 1) if p_values[index] <= ALPHA * (rank / m)]
    level = ALPHA * ((passed[-1] if passed else 1) / m) if m else ALPHA
    adjusted = {}
    for rank, index in reversed(list(enumerate(order, 1))):
        p = min(p, p_values[index] / (rank / m))
        adjusted[index] = AdjustedTest(p, level)
    return [adjusted[index] for index in range(m)]


#: Adjusts the p-values of one family of tests.
Adjustment = Callable[[Sequence[float]], list[AdjustedTest]]


@dataclass(frozen=True)
class Judgement:
    """A verdict with the level of its interval.

    ``p`` and ``p_adjusted`` belong to 'no effect'.  ``planned_level`` is the level at which the
    same family would judge a new campaign.
    """

    verdict: Verdict
    level: float = ALPHA
    p: float | None = None
    p_adjusted: float | None = None
    planned_level: float = ALPHA


def judge_family(
    estimates: Sequence[Estimate], delta: float, adjust: Adjustment, share: float = 1.0
) -> list[Judgement]:
    """Judge estimates together; each of three claims has a family of its own.

    Relevant: the whole interval lies beyond ±delta.  Same: two one-sided tests place it within.
    Different: it excludes 0.  The first claim that holds is the verdict.

    Args:
        estimates: the family.
        delta: margin of effects that count as none.
        adjust: correction for the size of the family.
        share: share of the error rate that this look at the data has; see
            :func:`~treehammer.analysis.statistics.verdict.share_error_rate`.
    """
    relevant = adjust_for_looks([estimate.p_beyond(delta) for estimate in estimates], adjust, share)
    same = adjust_for_looks([estimate.p_within(delta) for estimate in estimates], adjust, share)
    different = adjust_for_looks([estimate.p for estimate in estimates], adjust, share)
    judgements = []
    for estimate, beyond, within, nonzero in zip(estimates, relevant, same, different, strict=True):
        if beyond.p <= ALPHA:
            verdict = Verdict.FASTER if estimate.mean < 0 else Verdict.SLOWER
            level = beyond.level
        elif within.p <= ALPHA:
            verdict, level = Verdict.SAME, 2 * within.level
        else:
            verdict = Verdict.DIFFERENT if nonzero.p <= ALPHA else Verdict.UNDECIDED
            level = nonzero.level
        planned_level = min(beyond.level, within.level)
        judgements.append(Judgement(verdict, level, estimate.p, nonzero.p, planned_level))
    return judgements


def adjust_for_looks(
    p_values: Sequence[float], adjust: Adjustment, share: float
) -> list[AdjustedTest]:
    """Adjust p-values for their family, and each for several looks by Bonferroni.

    Args:
        p_values: of the tests of one family.
        adjust: correction for the size of the family.
        share: share of the error rate that this look at the data has.
    """
    adjusted = adjust([min(p / share, 1.0) for p in p_values])
    return [AdjustedTest(test.p, test.level * share) for test in adjusted]


def plan_units(estimate: Estimate, n: int, level: float, delta: float) -> int | None:
    """Compute the number of units (jobs, hosts or sites) that will likely decide a new campaign.

    Planned for a true effect of 0 ('same') and of 2 delta ('slower'), whatever was observed: to
    plan for the observed effect and to look again as jobs come in would double the false verdicts.
    The spread is taken at its upper 80 % limit, since few units estimate it badly (Browne,
    Statistics in Medicine 14:1933, 1995).

    Args:
        estimate: of the present units.
        n: number of present units.
        level: error rate at which the family will judge each claim.
        delta: margin of effects that count as none.

    Returns:
        Units that reach :data:`TARGET_POWER`; None beyond :data:`MAX_JOBS_NAMED`.
    """
    sum_of_squares = max(estimate.se**2 - estimate.shared, 0.0) * n * estimate.df
    spread = math.sqrt(sum_of_squares / chi_squared_quantile(estimate.df, TARGET_POWER))
    # 'Same' must hold at both edges, and each may take half of the remaining risk.
    powers = {level / 2: TARGET_POWER, level: (1 + TARGET_POWER) / 2}

    def is_decided(units: int) -> bool:
        """Return whether t tests with so many units will likely find an effect of delta."""
        reach = delta / math.sqrt(spread**2 / units + estimate.shared)
        return all(
            shifted_student_tail(units - 1, student_quantile(units - 1, tail), reach) >= power
            for tail, power in powers.items()
        )

    numbers = range(2, MAX_JOBS_NAMED + 1)
    index = bisect_left(numbers, True, key=is_decided)
    return numbers[index] if index < len(numbers) else None
