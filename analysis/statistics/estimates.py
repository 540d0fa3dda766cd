"""Intervals, pooling, multiplicity and verdicts; effects are d = ln(B/A), so +0.01 is 1 % slower.

Each docstring names its method and the reason for choosing it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

from treehammer.analysis.statistics.verdict import MAX_JOBS_NAMED, Verdict

#: Error rate of a family of tests.
ALPHA = 0.05
#: Probability of a decision for which the number of additional jobs is computed.
TARGET_POWER = 0.8


@dataclass(frozen=True)
class Estimate:
    """A mean effect with its standard error and the degrees of freedom of its t distribution."""

    mean: float
    se: float
    df: float

    @property
    def p(self) -> float:
        """Two-sided p-value of the null hypothesis of no effect."""
        return 2 * float(special.stdtr(self.df, -abs(self.mean) / self.se))

    def interval(self, level: float = ALPHA) -> tuple[float, float]:
        """Compute the interval that misses the true mean with probability ``level``."""
        half_width = -float(special.stdtrit(self.df, level / 2)) * self.se
        return self.mean - half_width, self.mean + half_width


def estimate_paired(d: Sequence[float]) -> Estimate | None:
    """Estimate the mean of paired effects, one per job; None with fewer than two or no spread.

    Identical ratios from several jobs indicate a clock that is too coarse, not certainty.
    """
    effects = np.asarray(d, dtype=float)
    if len(effects) < 2 or _has_no_spread(effects):
        return None
    return Estimate(float(effects.mean()), math.sqrt(_squared_error(effects)), len(effects) - 1)


def estimate_unpaired(a: Sequence[float], b: Sequence[float]) -> Estimate | None:
    """Estimate the difference of mean ln(value) of unpaired jobs, with Welch's degrees of freedom.

    Weaker than pairs: any other difference between the two sets of jobs is part of the effect.
    Welch rather than Mann-Whitney because a verdict needs an interval, and equal spread cannot be
    assumed between nodes.  Values are positive, in any one unit.
    """
    if min(len(a), len(b)) < 2:
        return None
    log_a, log_b = np.log(a), np.log(b)
    if _has_no_spread(log_a) or _has_no_spread(log_b):
        return None
    error_a, error_b = _squared_error(log_a), _squared_error(log_b)
    df = (error_a + error_b) ** 2 / (error_a**2 / (len(a) - 1) + error_b**2 / (len(b) - 1))
    return Estimate(float(log_b.mean() - log_a.mean()), math.sqrt(error_a + error_b), df)


def _squared_error(values: npt.NDArray[np.float64]) -> float:
    """Squared standard error of the mean."""
    return float(values.var(ddof=1)) / len(values)


def _has_no_spread(values: npt.NDArray[np.float64]) -> bool:
    return bool(np.ptp(values) <= 1e-12)


@dataclass(frozen=True)
class PooledEstimate:
    """A random-effects mean over sites: ``tau`` is the standard deviation between sites, in ln."""

    estimate: Estimate
    tau: float
    sites: int


def pool_estimates(sites: Sequence[Estimate]) -> PooledEstimate | None:
    """Compute the random-effects mean over sites (Paule-Mandel, Hartung-Knapp).

    Where sites agree better than their errors allow, Hartung and Knapp's interval becomes too
    narrow; it is then replaced by the plain one with the same t quantile (Röver, Knapp and Friede,
    BMC Med Res Methodol 15:99, 2015).

    Returns:
        The pooled estimate; None with fewer than two sites.
    """
    if len(sites) < 2:
        return None
    means = np.array([site.mean for site in sites])
    variances = np.array([site.se**2 for site in sites])

    def weighted_mean(tau2: float) -> tuple[float, float, float]:
        """Mean, sum of weights, and weighted squared deviations divided by their expectation."""
        weights = 1 / (variances + tau2)
        total = float(weights.sum())
        mean = float(weights @ means) / total
        return mean, total, float(weights @ (means - mean) ** 2) / (len(sites) - 1)

    tau2 = 0.0
    if weighted_mean(0.0)[2] > 1:
        # The deviations fall as tau² grows, and are below their expectation at the plain variance.
        tau2 = optimize.brentq(lambda value: weighted_mean(value)[2] - 1, 0, means.var(ddof=1))
    mean, total, dispersion = weighted_mean(tau2)
    estimate = Estimate(mean, math.sqrt(max(dispersion, 1.0) / total), len(sites) - 1)
    return PooledEstimate(estimate, math.sqrt(tau2), len(sites))


@dataclass(frozen=True)
class AdjustedTest:
    """A test within its family: adjusted p-value, and the level of its adjusted interval.

    The interval at ``level`` excludes 0 exactly when the test is rejected.
    """

    p: float
    level: float


def adjust_holm(p_values: Sequence[float], alpha: float = ALPHA) -> list[AdjustedTest]:
    """Adjust the headline tests by Holm: any false claim in the family has probability ``alpha``.

    Test i in order of p is judged at alpha/(m - i).  From the first test that fails on, all share
    its level, so that intervals and rejections agree.
    """
    if not p_values:
        return []
    order = np.argsort(p_values, kind="stable")
    ranked = np.asarray(p_values)[order]
    remaining = np.arange(len(ranked), 0, -1)
    failed = np.flatnonzero(ranked > alpha / remaining)
    last = failed[0] if len(failed) else len(ranked) - 1
    adjusted, levels = np.empty(len(ranked)), np.empty(len(ranked))
    adjusted[order] = np.minimum(np.maximum.accumulate(ranked * remaining), 1)
    levels[order] = alpha / np.maximum(remaining, remaining[last])
    return [AdjustedTest(float(p), float(level)) for p, level in zip(adjusted, levels, strict=True)]


def adjust_benjamini_hochberg(
    p_values: Sequence[float], alpha: float = ALPHA
) -> list[AdjustedTest]:
    """Control the false-discovery rate over site rows, with Benjamini and Yekutieli's intervals.

    With R of m tests rejected, every interval is taken at R * alpha / m (JASA 100:71, 2005).
    """
    if not p_values:
        return []
    m = len(p_values)
    passed = np.flatnonzero(np.sort(p_values) <= alpha * np.arange(1, m + 1) / m)
    level = alpha * (int(passed[-1]) + 1 if len(passed) else 1) / m
    return [AdjustedTest(float(p), level) for p in stats.false_discovery_control(p_values)]


def decide_verdict(estimate: Estimate, level: float, delta: float) -> Verdict:
    """Derive a verdict from the adjusted interval and the equivalence margin ±delta."""
    low, high = estimate.interval(level)
    if abs(estimate.mean) > delta and not low <= 0 <= high:
        return Verdict.FASTER if estimate.mean < 0 else Verdict.SLOWER
    return Verdict.SAME if -delta < low and high < delta else Verdict.UNDECIDED


def estimate_jobs_needed(estimate: Estimate, n: int, level: float, delta: float) -> int | None:
    """Compute how many more units (jobs or sites) make a decision likely.

    Assumes that mean and spread stay as they are.  An effect beyond ±delta must be distinguished
    from 0, a smaller one from the nearer edge of ±delta.  ``n`` is the present number of units.

    Returns:
        Units that reach :data:`TARGET_POWER`; None beyond :data:`MAX_JOBS_NAMED`.
    """
    beyond = abs(estimate.mean) > delta
    gap = abs(estimate.mean) if beyond else delta - abs(estimate.mean)
    effect_size = gap / (estimate.se * math.sqrt(n))

    def first(units: npt.NDArray[np.int64]) -> int | None:
        """Index of the first number of units, in rising order, at which a decision is likely."""
        # Only the tail on the side of the effect: the other one is negligible, and NaN far out.
        limit = -special.stdtrit(units - 1, level / 2)
        power = stats.nct.sf(limit, units - 1, effect_size * np.sqrt(units))
        reached = np.flatnonzero(power >= TARGET_POWER)
        return int(reached[0]) if len(reached) else None

    low, grid = 1, np.append(2 ** np.arange(1, int(math.log2(MAX_JOBS_NAMED)) + 1), MAX_JOBS_NAMED)
    while (place := first(grid)) is not None:
        low, high = int(grid[place - 1]) if place else low, int(grid[place])
        if high - low == 1:
            return max(high - n, 1)
        grid = np.unique(np.linspace(low + 1, high, 32).astype(np.int64))
    return None
