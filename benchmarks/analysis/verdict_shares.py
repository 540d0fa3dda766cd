"""Shares of cases with their exact intervals."""

from __future__ import annotations

from dataclasses import dataclass

from scipy import stats

from benchmarks.harness.ratio_figures import RatioFigure
from treehammer.analysis.statistics.verdict import Verdict

#: Claimed error rate of a family of verdicts.
FALSE_VERDICT_RATE = 0.05
#: Verdicts that are wrong where nothing differs.
WRONG_VERDICTS = (Verdict.FASTER, Verdict.SLOWER, Verdict.DIFFERENT)


@dataclass(frozen=True)
class VerdictShare:
    """Number of cases among ``total``; ``upper_bound`` is the limit of the share."""

    title: str
    count: int
    total: int
    upper_bound: float | None = None

    @property
    def fraction(self) -> float:
        """The share as a fraction."""
        return self.count / self.total

    @property
    def bounds(self) -> tuple[float, float]:
        """The 95 % Clopper–Pearson interval."""
        return clopper_pearson(self.count, self.total)

    def to_figure(self) -> RatioFigure:
        """Convert to a figure for the summary."""
        return RatioFigure(self.title, self.fraction, *self.bounds, self.total, self.upper_bound)


def clopper_pearson(count: int, of: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a share."""
    interval = stats.binomtest(count, of).proportion_ci(0.95, method="exact")
    return float(interval.low), float(interval.high)
