"""Steps in the mean of a daily series: detection, tests and intervals.

Candidates come from ``ruptures`` (PELT with a linear kernel, that is least squares). Each is then
tested by Student's t on the days of both sides, the weakest first, as in Otava's merge step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from treehammer.analysis.changes.daily_series import Values
from treehammer.analysis.statistics.estimates import MIN_SPREAD, Estimate

#: Days that a side of a step needs.
MIN_DAYS = 3
#: Penalty of a step in variances of a day: one in 400 quiet series of 80 days gets a candidate.
PENALTY = 16.0
#: Penalty and width of the Gaussian kernel of the second opinion, in standard deviations.
SECOND_PENALTY, SECOND_WIDTH = 2.5, 1.0
#: Days by which two findings of one step may differ.
DAY_TOLERANCE = 3
#: Lag-1 correlations of days above this are not used to widen intervals further.
_MAX_CORRELATION = 0.8
#: Median absolute deviation of normal values, in standard deviations.
MAD = 0.6745


@dataclass(frozen=True)
class Step:
    """A step of the mean.

    Attributes:
        day: first day ordinal after the step.
        index: its place in the series.
        first: place of the first day used before it.
        last: place after the last day used after it.
        estimate: size in ln.
    """

    day: int
    index: int
    first: int
    last: int
    estimate: Estimate

    @property
    def days_before(self) -> int:
        """Days before the step, since the previous one."""
        return self.index - self.first

    @property
    def days_after(self) -> int:
        """Days from the step on, until the next one."""
        return self.last - self.index


def find_steps(days: npt.NDArray[np.int64], values: Values, level: float) -> list[Step]:
    """Find the steps whose test is significant at ``level``."""
    breaks = find_breaks(values)
    while breaks:
        steps = list(_estimate_steps(days, values, breaks))
        weakest = max(steps, key=lambda step: _adjust_p(step, len(values)))
        if _adjust_p(weakest, len(values)) <= level:
            return steps
        breaks.remove(weakest.index)
    return []


def is_seconded(days: npt.NDArray[np.int64], values: Values, day: int) -> bool:
    """Return whether a detector with a Gaussian kernel finds a step near the same day as well.

    It compares distributions rather than means, and a single wild day hardly matters to it.
    """
    spread = estimate_spread(values)
    if len(values) < 2 * MIN_DAYS or spread <= MIN_SPREAD:
        return False
    scaled = (values - np.median(values)) / spread
    breaks = _run_kernel(scaled, SECOND_PENALTY, "rbf", {"gamma": 1 / (2 * SECOND_WIDTH**2)})
    return any(abs(int(days[index]) - day) <= DAY_TOLERANCE for index in breaks)


def estimate_step(values: Values, first: int, index: int, last: int) -> Estimate | None:
    """Estimate the difference of the means of ``values[index:last]`` and ``values[first:index]``.

    Student's t with the spread of both sides pooled, since the days of both come from the same jobs
    at the same place. Positive correlation of neighboring days widens the error. None without two
    days on a side, or without any spread.
    """
    before, after = values[first:index], values[index:last]
    if min(len(before), len(after)) < 2:
        return None
    residuals = np.concatenate([before - before.mean(), after - after.mean()])
    df = len(residuals) - 2
    variance = float(residuals @ residuals) / df
    if variance <= MIN_SPREAD**2:
        return None
    variance *= _correlation_factor(residuals)
    error = math.sqrt(variance * (1 / len(before) + 1 / len(after)))
    return Estimate(float(after.mean() - before.mean()), error, df)


def estimate_spread(values: Values) -> float:
    """Estimate the standard deviation of a day from differences of neighbors, which steps leave alone."""
    if len(values) < 3:
        return 0.0
    return float(np.median(np.abs(np.diff(values)))) / MAD / math.sqrt(2)


def find_breaks(values: Values, penalty: float = PENALTY) -> list[int]:
    """Find the places of possible steps, at a penalty in variances of a day."""
    spread = estimate_spread(values)
    if len(values) < 2 * MIN_DAYS or spread <= MIN_SPREAD:
        return []
    return _run_kernel((values - np.median(values)) / spread, penalty, "linear", None)


def _adjust_p(step: Step, days: int) -> float:
    """Return the p-value, times the places of a second step where one bounds this one.

    A short run of high days is two steps, for which there are many more places than for one.
    """
    bounded = step.first > 0 or step.last < days
    return step.estimate.p * (days if bounded else 1)


def _run_kernel(
    values: Values, penalty: float, kernel: str, parameters: dict[str, Any] | None
) -> list[int]:
    """Return the places of steps; the library's last one is the end of the series."""
    # Imported here: it takes a second, and pages that show changes do not need it.
    import ruptures

    detector = ruptures.KernelCPD(kernel=kernel, min_size=MIN_DAYS, params=parameters)
    *breaks, _ = detector.fit(values.reshape(-1, 1)).predict(pen=penalty)
    return [int(index) for index in breaks]


def _estimate_steps(
    days: npt.NDArray[np.int64], values: Values, breaks: Sequence[int]
) -> Iterator[Step]:
    edges = [0, *breaks, len(values)]
    for first, index, last in zip(edges, edges[1:], edges[2:], strict=False):
        estimate = estimate_step(values, first, index, last)
        # Without spread there is no evidence: such a candidate is removed first.
        yield Step(int(days[index]), index, first, last, estimate or Estimate(0.0, 1.0, 1.0))


def _correlation_factor(residuals: Values) -> float:
    """Return the factor on the variance of a mean of days whose neighbors are correlated."""
    total = float(residuals @ residuals)
    # The fitted means make the estimate too small by about one part in the number of days.
    estimate = float(residuals[1:] @ residuals[:-1]) / total + 2 / len(residuals)
    correlation = min(max(estimate, 0.0), _MAX_CORRELATION)
    return (1 + correlation) / (1 - correlation)
