"""Daily series of a metric, pools of several series, and steps in their means.

Candidates for steps come from ``ruptures`` (PELT with a linear kernel, that is least squares). Each is
then tested by Student's t on the days of both sides, the weakest first, as in Otava's merge step.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from enum import StrEnum
from statistics import fmean
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from treehammer.analysis.descriptive.door_comparison import correlation_factor
from treehammer.analysis.statistics.estimates import MIN_SPREAD, Estimate, estimate_mean
from treehammer.analysis.statistics.item_effects import adjust_for_items
from treehammer.analysis.statistics.verdict import ALPHA


class ChangeState(StrEnum):
    """Whether later days confirm a change."""

    PROVISIONAL = "provisional"
    CONFIRMED = "confirmed"


class SeriesKind(StrEnum):
    """Quantity of a daily series.

    A ratio is the mean over the day's jobs of ln(release / pinned control), paired inside each job.
    A level is ln(time) of the control itself, adjusted for the hosts and variants of the day.
    """

    RATIO = "ratio"
    LEVEL = "level"


class Attribution(StrEnum):
    """Origin of a change."""

    SITE = "site"
    RELEASE = "release"
    STORAGE = "storage"
    CENTRAL = "central"
    UNKNOWN = "unknown"


class NodeIdentity(StrEnum):
    """Property by which the node of a job is recognized on other days."""

    HOST = "host name"
    MACHINE = "machine identity"
    CPU_MODEL = "CPU model"
    SITE = "site"


Values = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, order=True)
class SeriesPlace:
    """Properties of a series by which a change is attributed; ``release`` is '' for levels."""

    site: str
    storage_site: str
    door: str
    release: str = ""
    variant: str = ""


#: Series that an interval needs: that of two is thirty times as wide as their spread.
MIN_SERIES = 4
#: Component and attribute of the context -> value of a day.
Context = Mapping[str, str]


@dataclass(frozen=True)
class DailySeries:
    """Values of a series by day.

    Attributes:
        identity: identity of the series.
        place: its site, storage, door and release.
        days: day ordinals, rising.
        values: ln, one per day.
        contexts: context of each day; empty where none was recorded.
        nodes_by: property by which most nodes of a level were identified; None for ratios.
    """

    identity: str
    place: SeriesPlace
    days: npt.NDArray[np.int64]
    values: Values
    contexts: Sequence[Context] = field(default=(), repr=False)
    nodes_by: NodeIdentity | None = None

    @classmethod
    def from_days(
        cls,
        identity: str,
        place: SeriesPlace,
        values: Mapping[int, float],
        contexts: Mapping[int, Context] = MappingProxyType({}),
    ) -> DailySeries:
        """Build a series from values by day ordinal."""
        days = sorted(values)
        return cls(
            identity,
            place,
            np.array(days, dtype=np.int64),
            np.array([values[day] for day in days], dtype=float),
            [contexts.get(day, {}) for day in days],
        )

    def shift(self, day: int, size: float, until: int | None = None) -> DailySeries:
        """Return the series without a step of ``size`` on ``day``, or a drift to the day ``until``."""
        if until is None:
            share = np.where(self.days >= day, 1.0, 0.0)
        else:
            share = (self.days - day) / (until - day)
        return replace(self, values=self.values - size * share)

    def leave_out(self, first: int, end: int) -> DailySeries:
        """Return the series without the days from one to another, which stays."""
        is_outside = (self.days < first) | (self.days >= end)
        contexts = [*itertools.compress(self.contexts, is_outside)]
        days, values = self.days[is_outside], self.values[is_outside]
        return replace(self, days=days, values=values, contexts=contexts)


def pool_series(members: Sequence[DailySeries]) -> tuple[npt.NDArray[np.int64], Values]:
    """Average series by day, each less its own level; return days and values.

    Levels and days are fitted together, so that a day on which some members are missing is not
    biased by their levels.
    """
    if len(members) == 1:
        return members[0].days, members[0].values
    return adjust_for_items(
        np.repeat(np.arange(len(members)), [len(member.days) for member in members]),
        np.concatenate([member.days for member in members]),
        np.concatenate([member.values for member in members]),
    )


@dataclass(frozen=True)
class PooledDay:
    """Mean over several series of one day: a ratio minus 1, and half of its 95 % interval."""

    day: date
    change: float
    error: float | None
    series: int


def average_days(members: Sequence[DailySeries]) -> Iterator[PooledDay]:
    """Average series of ln(ratio) by day, with intervals over at least :data:`MIN_SERIES` series."""
    days, values = pool_series(members)
    level = fmean(float(member.values.mean()) for member in members) - float(np.mean(values))
    residuals: dict[int, list[float]] = defaultdict(list)
    for member in members:
        for day, value in zip(member.days, member.values - member.values.mean(), strict=True):
            residuals[int(day)].append(float(value))
    for day, value in zip(map(int, days), values, strict=True):
        estimate = estimate_mean(residuals[day]) if len(residuals[day]) >= MIN_SERIES else None
        ratio = math.exp(level + float(value))
        error = ratio * (estimate.interval()[1] - estimate.mean) if estimate else None
        yield PooledDay(date.fromordinal(day), ratio - 1, error, len(residuals[day]))


def measure_the_same(members: Sequence[DailySeries]) -> bool:
    """Return whether all days measured the same variants, so that their means are comparable."""
    variants: dict[int, set[str]] = defaultdict(set)
    for member in members:
        for day in member.days:
            variants[int(day)].add(member.place.variant)
    return len({frozenset(day_variants) for day_variants in variants.values()}) < 2


#: Days that a side of a step needs.
MIN_DAYS = 3
#: Days between two steps, or beside one, that confirm it; fewer must agree with each other.
CONFIRM_DAYS = 5
#: Measured days that a drift needs.
DRIFT_DAYS = 30
#: Days before and after a step that are compared.
WINDOW_DAYS = 30
#: Penalty of a step in variances of a day: one in 400 quiet series of 80 days gets a candidate.
PENALTY = 16.0
#: Penalty and width of the Gaussian kernel of the second opinion, in standard deviations.
SECOND_PENALTY, SECOND_WIDTH = 2.5, 1.0
#: Days by which two findings of one step may differ.
DAY_TOLERANCE = 3
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
        first_day: ordinal of that first day.
        end_day: first day ordinal after the last day.
        estimate: size in ln.
    """

    day: int
    index: int
    first: int
    last: int
    first_day: int
    end_day: int
    estimate: Estimate

    #: Last day of a drift; a step has none.
    until: ClassVar[None] = None

    @property
    def days_before(self) -> int:
        """Days before the step, since the previous one."""
        return self.index - self.first

    @property
    def days_after(self) -> int:
        """Days from the step on, until the next one."""
        return self.last - self.index

    def measure(self, series: DailySeries) -> Estimate | None:
        """Measure the step in one series, between the steps before and after it, over a month at most."""
        first_day = max(self.day - WINDOW_DAYS, self.first_day)
        places = (first_day, self.day, min(self.day + WINDOW_DAYS, self.end_day))
        first, index, last = map(int, np.searchsorted(series.days, places))
        return estimate_step(series.values, first, index, last)


@dataclass(frozen=True)
class Drift:
    """A steady change of the mean over all days.

    Attributes:
        day: first day ordinal.
        until: last day ordinal.
        count: measured days.
        estimate: change from the first to the last day, in ln.
    """

    day: int
    until: int
    count: int
    estimate: Estimate

    @property
    def days_before(self) -> int:
        """Days of the first half."""
        return self.count // 2

    @property
    def days_after(self) -> int:
        """Days of the second half."""
        return self.count - self.days_before

    def measure(self, series: DailySeries) -> Estimate | None:
        """Measure the drift in one series."""
        return estimate_drift(series.days, series.values, (self.day, self.until))


def find_drift(days: npt.NDArray[np.int64], values: Values, level: float) -> list[Drift]:
    """Find the drift whose test is significant at ``level``, if there is one."""
    if len(days) < DRIFT_DAYS:
        return []
    span = int(days[0]), int(days[-1])
    estimate = estimate_drift(days, values, span)
    if estimate is None or estimate.p > level:
        return []
    return [Drift(*span, len(days), estimate)]


def find_steps(days: npt.NDArray[np.int64], values: Values, level: float) -> list[Step]:
    """Find the steps whose test is significant at ``level``."""
    breaks = find_breaks(values)
    while breaks:
        if mixed := _find_mixed_run(values, breaks):
            breaks = [index for index in breaks if index not in mixed]
            continue
        steps = list(_estimate_steps(days, values, breaks))
        weakest = max(steps, key=lambda step: _adjust_p(step, len(values)))
        if _adjust_p(weakest, len(values)) <= level:
            return steps
        breaks.remove(weakest.index)
    return []


def _find_mixed_run(values: Values, breaks: Sequence[int]) -> frozenset[int]:
    """Find the ends of a short run of days that do not agree; empty if there is none.

    Runs have :data:`MIN_DAYS` days at least: an incident of two days would be one of three with a
    wrong size, and one of four that has just ended a run that confirms it.  Where the level after the
    run is another one, the end of the larger step stays.
    """
    edges = [0, *breaks, len(values)]
    segments = [values[first:last] for first, last in itertools.pairwise(edges)]
    for place, run in enumerate(segments):
        short_days = CONFIRM_DAYS + (MIN_DAYS - 1 if place in (0, len(breaks)) else 0)
        neighbors = (*segments[max(place - 1, 0) : place], *segments[place + 1 : place + 2])
        for neighbor in neighbors if len(run) < short_days else ():
            middle = (run.mean() + neighbor.mean()) / 2
            if len(neighbor) >= len(run) and np.any((run > middle) != (run.mean() > middle)):
                return frozenset(_select_ends(edges[place : place + 2], run, neighbors))
    return frozenset()


def _select_ends(ends: Sequence[int], run: Values, neighbors: Sequence[Values]) -> Sequence[int]:
    before, after = neighbors[0], neighbors[-1]
    step = estimate_step(np.concatenate([before, after]), 0, len(before), len(before) + len(after))
    if step is None or step.p > ALPHA:
        return ends
    is_nearer = abs(run.mean() - before.mean()) < abs(run.mean() - after.mean())
    return ends[:1] if is_nearer else ends[1:]


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


def is_steady(values: Values) -> bool:
    """Return whether the means of the thirds of a series rise, or fall: a drift is no single step."""
    rises = np.diff([third.mean() for third in np.array_split(values, 3)])
    return bool(np.all(rises > 0) or np.all(rises < 0))


def estimate_step(
    values: Values, first: int, index: int, last: int, runs: Sequence[Values] = ()
) -> Estimate | None:
    """Estimate the difference of the means of ``values[index:last]`` and ``values[first:index]``.

    Student's t with the spread of both sides pooled, or of ``runs``, of which they are two, since
    the days of all come from the same jobs at the same place. Positive correlation of neighboring
    days widens the error. None without two days on a side, or without any spread.
    """
    before, after = values[first:index], values[index:last]
    if min(len(before), len(after)) < 2:
        return None
    runs = runs or (before, after)
    residuals = np.concatenate([run - run.mean() for run in runs])
    df = len(residuals) - len(runs)
    variance = float(residuals @ residuals) / df
    if variance <= MIN_SPREAD**2:
        return None
    variance *= correlation_factor(residuals)
    error = math.sqrt(variance * (1 / len(before) + 1 / len(after)))
    return Estimate(float(after.mean() - before.mean()), error, df)


def estimate_drift(
    days: npt.NDArray[np.int64], values: Values, span: tuple[int, int]
) -> Estimate | None:
    """Estimate the change from the first to the last day of a span, along a straight line.

    Positive correlation of neighboring days widens the error. None without three days, or without
    any spread.
    """
    df = len(days) - 2
    if df < 1:
        return None
    share = (days - span[0]) / (span[1] - span[0])
    centered = share - share.mean()
    squares = float(centered @ centered)
    size = float(centered @ values) / squares
    residuals = values - values.mean() - size * centered
    variance = float(residuals @ residuals) / df
    if variance <= MIN_SPREAD**2:
        return None
    return Estimate(size, math.sqrt(variance * correlation_factor(residuals) / squares), df)


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
    runs = [values[first:last] for first, last in itertools.pairwise(edges)]
    for place, (first, index, last) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        # A few days alone tell their spread too badly to prove any step.
        near = runs[max(place - 1, 0) : place + 3] if last - first < 2 * CONFIRM_DAYS else ()
        estimate = estimate_step(values, first, index, last, near)
        # Without spread there is no evidence: such a candidate is removed first.
        size = estimate or Estimate(0.0, 1.0, 1.0)
        end_day = int(days[last - 1]) + 1
        yield Step(int(days[index]), index, first, last, int(days[first]), end_day, size)
