"""Intervals, pooling, multiplicity and verdicts; effects are d = ln(B/A), so +0.01 is 1 % slower.

The formulas are scipy's and statsmodels'; what is chosen here, and why, is said in each docstring.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats
from statsmodels.stats.meta_analysis import combine_effects
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import CompareMeans, DescrStatsW

from treehammer.analysis.statistics.verdict import MAX_JOBS_NAMED, Verdict

#: Error rate of a family of tests.
ALPHA = 0.05
#: Chance of a decision that the number of jobs still needed is computed for.
TARGET_POWER = 0.8


@dataclass(frozen=True)
class Estimate:
    """A mean effect with its standard error and the degrees of freedom of its t distribution."""

    mean: float
    se: float
    df: float

    @property
    def p(self) -> float:
        """Two-sided p-value of 'no effect'."""
        return float(2 * stats.t.sf(abs(self.mean) / self.se, self.df))

    def interval(self, level: float = ALPHA) -> tuple[float, float]:
        """The interval that misses the true mean with probability ``level``."""
        low, high = stats.t.interval(1 - level, self.df, loc=self.mean, scale=self.se)
        return float(low), float(high)


def estimate_paired(d: Sequence[float]) -> Estimate | None:
    """Mean of paired effects, one a job; None with fewer than two or without any spread.

    Identical ratios from several jobs mean a clock too coarse for what it timed, not certainty.
    """
    effects = np.asarray(d, dtype=float)
    if len(effects) < 2 or _has_no_spread(effects):
        return None
    described = DescrStatsW(effects)
    return Estimate(float(described.mean), float(described.std_mean), len(d) - 1)


def estimate_unpaired(a: Sequence[float], b: Sequence[float]) -> Estimate | None:
    """Difference of the means of ln(value) between unpaired jobs, with Welch's degrees of freedom.

    Weaker than pairs: whatever else differed between the two sets of jobs is part of the effect.
    Welch rather than Mann-Whitney because a verdict needs an interval, and equal spread cannot be
    assumed between nodes.  Values are positive, in any one unit.
    """
    if min(len(a), len(b)) < 2:
        return None
    log_a, log_b = np.log(a), np.log(b)
    if _has_no_spread(log_a) or _has_no_spread(log_b):
        return None
    means = CompareMeans(DescrStatsW(log_b), DescrStatsW(log_a))
    difference = float(means.d1.mean - means.d2.mean)
    return Estimate(difference, float(means.std_meandiff_separatevar), float(means.dof_satt()))


def _has_no_spread(values: npt.NDArray[np.float64]) -> bool:
    return bool(np.ptp(values) <= 1e-12)


@dataclass(frozen=True)
class PooledEstimate:
    """A random-effects mean over sites: ``tau`` is the spread between sites, in ln."""

    estimate: Estimate
    tau: float
    sites: int


def pool_estimates(sites: Sequence[Estimate]) -> PooledEstimate | None:
    """Random-effects mean over sites (Paule-Mandel, Hartung-Knapp); None with fewer than two.

    Where sites agree better than their errors allow, Hartung and Knapp's interval becomes too
    narrow; it is then replaced by the plain one with the same t quantile (Röver, Knapp and Friede,
    BMC Med Res Methodol 15:99, 2015).
    """
    if len(sites) < 2:
        return None
    # Its I², which is not used, divides by zero where sites agree exactly.
    with np.errstate(divide="ignore"):
        combined = combine_effects(
            np.array([site.mean for site in sites]),
            np.array([site.se**2 for site in sites]),
            method_re="iterated",
            use_t=True,
        )
    se = max(combined.sd_eff_w_re_hksj, combined.sd_eff_w_re)
    estimate = Estimate(float(combined.mean_effect_re), float(se), len(sites) - 1)
    return PooledEstimate(estimate, math.sqrt(max(float(combined.tau2), 0.0)), len(sites))


@dataclass(frozen=True)
class AdjustedTest:
    """A test within its family: adjusted p-value, and the level of its adjusted interval.

    The interval at ``level`` excludes 0 exactly when the test is rejected.
    """

    p: float
    level: float


def adjust_holm(p_values: Sequence[float], alpha: float = ALPHA) -> list[AdjustedTest]:
    """Holm's step-down over the headline tests: no false claim in the family, but with ``alpha``.

    Test i in order of p is judged at alpha/(m - i); from the first that fails on, all share its
    level, so that intervals and rejections agree.
    """
    if not p_values:
        return []
    rejected, adjusted, _, _ = multipletests(p_values, alpha=alpha, method="holm")
    order = np.argsort(p_values, kind="stable")
    last = min(int(rejected.sum()), len(p_values) - 1)
    levels = np.empty(len(p_values))
    levels[order] = [alpha / (len(p_values) - min(i, last)) for i in range(len(p_values))]
    return [AdjustedTest(float(p), float(level)) for p, level in zip(adjusted, levels, strict=True)]


def adjust_benjamini_hochberg(
    p_values: Sequence[float], alpha: float = ALPHA
) -> list[AdjustedTest]:
    """False-discovery control over the site rows, with Benjamini and Yekutieli's intervals.

    With R of m rejected every interval is taken at R * alpha / m (JASA 100:71, 2005).
    """
    if not p_values:
        return []
    rejected, adjusted, _, _ = multipletests(p_values, alpha=alpha, method="fdr_bh")
    level = alpha * max(int(rejected.sum()), 1) / len(p_values)
    return [AdjustedTest(float(p), level) for p in adjusted]


def decide_verdict(estimate: Estimate, level: float, delta: float) -> Verdict:
    """``faster``, ``slower``, ``same`` or ``undecided`` from the adjusted interval and ±delta."""
    low, high = estimate.interval(level)
    if abs(estimate.mean) > delta and not low <= 0 <= high:
        return Verdict.FASTER if estimate.mean < 0 else Verdict.SLOWER
    return Verdict.SAME if -delta < low and high < delta else Verdict.UNDECIDED


def estimate_jobs_needed(estimate: Estimate, n: int, level: float, delta: float) -> int | None:
    """How many more units make a decision likely (:data:`POWER`); None beyond :data:`MOST_JOBS`.

    Assumes that mean and spread stay as they are.  An effect beyond ±delta has to be told from 0,
    a smaller one from the nearer edge of ±delta; ``n`` is the number of units (jobs, or sites).
    """
    beyond = abs(estimate.mean) > delta
    gap = abs(estimate.mean) if beyond else delta - abs(estimate.mean)
    effect_size = gap / (estimate.se * math.sqrt(n))

    def first(units: npt.NDArray[np.int64]) -> int | None:
        """Where among rising numbers of units the decision becomes likely."""
        # The tail on the side of the effect; statsmodels' power adds the other one, which decides
        # nothing here and is NaN far out.
        limit = stats.t.isf(level / 2, units - 1)
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
