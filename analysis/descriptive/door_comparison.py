"""Comparison of doors, or of their protocols, by the same work at the same sites on the same days."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from treehammer.analysis.statistics.estimates import Estimate, estimate_mean, pool_estimates
from treehammer.analysis.statistics.verdict import ALPHA
from treehammer.hctests.definition.model import drop_release_axis
from treehammer.sql.read.query_model import DAY, FigureGroup
from treehammer.sql.read.site_history import group_workload_key

#: Share of the branches up to which reads count as sparse.
MAX_SPARSE_SHARE = 0.25
#: Lag-1 correlations of days above this are not used to widen intervals further.
_MAX_CORRELATION = 0.8


class DoorMean(NamedTuple):
    """Mean of a metric of one work, read through one door at one site on one day.

    Attributes:
        door: door or protocol.
        site: site of the jobs.
        day: database day number.
        work: test, variant, dataset and release.
        mean: of good executions, positive.
    """

    door: str
    site: str
    day: int
    work: tuple[str, ...]
    mean: float


@dataclass(frozen=True)
class DoorContrast:
    """A door against the best one, in ln.

    Attributes:
        door: the other door.
        by_site: mean difference of each day with both doors, by site.
        estimate: mean over sites, or over the days of the only one; None with too few.
    """

    door: str
    by_site: Mapping[str, Sequence[float]]
    estimate: Estimate | None

    @property
    def days(self) -> int:
        """Number of days and sites with the same work through both doors."""
        return sum(map(len, self.by_site.values()))


@dataclass(frozen=True)
class DoorComparison:
    """Doors in order, the best one first.

    Attributes:
        means: all measurements of the doors.
        best: the best door; '' if none can be compared.
        contrasts: the others against it, those that differ least first.
    """

    means: Sequence[DoorMean]
    best: str = ""
    contrasts: Sequence[DoorContrast] = ()

    @property
    def level(self) -> float:
        """Probability that an interval misses its difference: 5 % for all pairs of doors together.

        The data choose the best door, so that each pair might have been compared.
        """
        return ALPHA / max(math.comb(len(self.contrasts) + 1, 2), 1)

    @cached_property
    def doors(self) -> list[str]:
        """All doors in alphabetical order."""
        return sorted({mean.door for mean in self.means})

    def list_ties(self) -> list[str]:
        """Name what each door has for itself, so that a difference need not be the door's."""
        ties = []
        for place, name in enumerate(("site", "test", "variant", "dataset", "release")):
            doors: dict[str, set[str]] = defaultdict(set)
            for mean in self.means:
                doors[(mean.site, *mean.work)[place]].add(mean.door)
            if all(len(used) == 1 for used in doors.values()):
                ties.append(name)
        return ties


def compare_doors(means: Iterable[DoorMean]) -> DoorComparison:
    """Compare doors that read the same work at the same site on the same day.

    Days are the units of a site, as all works of a day share its conditions, and sites those of the
    mean. The best one has the smallest means.
    """
    means = list(means)
    cells: dict[tuple[object, ...], dict[str, DoorMean]] = defaultdict(dict)
    for mean in means:
        cells[mean.site, mean.day, mean.work][mean.door] = mean
    shared = [[*cell.values()] for cell in cells.values() if len(cell) > 1]
    if not shared:
        return DoorComparison(means)
    effects = _fit_doors(shared)
    best, *worse = sorted(effects, key=effects.__getitem__)
    return DoorComparison(means, best, [_contrast(shared, best, door) for door in worse])


def is_sparse_read(variant: str) -> bool:
    """Return whether a variant requests a few branches.

    A list or pattern of names is a selection, as of an analysis.
    """
    try:
        branches = json.loads(variant).get("branches")
    except (ValueError, AttributeError):
        return False
    is_few = isinstance(branches, int | float) and branches <= MAX_SPARSE_SHARE
    return is_few or isinstance(branches, str)


def list_door_means(groups: Iterable[FigureGroup], by: str, metric: str) -> list[DoorMean]:
    """List the means of sparse reads by door, site, day and work."""
    means = []
    for group in groups:
        texts = {name: str(value or "") for name, value in group.by.items()}
        mean, day = group.metrics[metric].mean, group.by[DAY]
        if not (texts[by] and isinstance(day, int) and mean and mean > 0):
            continue
        if is_sparse_read(texts["variant"]):
            variant = drop_release_axis(texts["variant"])
            work = (texts["test_name"], variant, texts["dataset_hash"], texts["axis_root"])
            means.append(DoorMean(texts[by], texts["site"], day, work, mean))
    return means


class DoorDay(NamedTuple):
    """A door's measurements of one day: mean of ln(time), less the level of each work."""

    door: str
    day: int
    metric: str
    log_ratio: float
    measurements: int


#: Rounds of the fit of works, doors and days: works that follow each other every few days need as many.
FIT_ROUNDS = 100


def relate_door_days(groups: Iterable[FigureGroup], metric: str) -> list[DoorDay]:
    """Relate doors and days to the same work, so that another mix of work is no change.

    Each work counts once for a door and day, however many measurements it has. Works, and doors with
    their days, are fitted together: a work that began with a change would otherwise hide a part of it.
    """
    measured = [group for group in groups if (group.metrics[metric].mean or 0.0) > 0]
    moments = [group.metrics[metric] for group in measured]
    places = [(str(group.by["door"] or ""), int(group.by[DAY] or 0)) for group in measured]
    numbers = {pair: number for number, pair in enumerate(sorted(set(places)))}
    place = np.array([numbers[pair] for pair in places], dtype=int)
    works = ["\0".join(group_workload_key(group)) for group in measured]
    _, work = np.unique(works, return_inverse=True)
    values, effects = np.log([m.total / m.value_count for m in moments]), np.zeros(len(numbers))
    for _ in range(FIT_ROUNDS):
        levels = np.bincount(work, values - effects[place]) / np.bincount(work)
        effects = np.bincount(place, values - levels[work]) / np.bincount(place)
    counts = np.bincount(place, [m.value_count for m in moments])
    return [
        DoorDay(door, day, metric, float(effect), int(count))
        for (door, day), effect, count in zip(numbers, effects, counts, strict=True)
    ]


def _fit_doors(cells: Collection[Sequence[DoorMean]]) -> dict[str, float]:
    """Fit ln(mean) = work + door; return the doors' values."""
    doors = sorted({mean.door for cell in cells for mean in cell})
    # Least squares without the works' values: those are the means of what remains in each cell.
    weights, totals = np.zeros((len(doors), len(doors))), np.zeros(len(doors))
    for cell in cells:
        places = [doors.index(mean.door) for mean in cell]
        logs = np.array([math.log(mean.mean) for mean in cell])
        weights[np.ix_(places, places)] += np.eye(len(cell)) - 1 / len(cell)
        totals[places] += logs - logs.mean()
    effects = np.linalg.lstsq(weights, totals, rcond=None)[0]
    return dict(zip(doors, map(float, effects), strict=True))


def _contrast(cells: Iterable[Sequence[DoorMean]], best: str, door: str) -> DoorContrast:
    by_day: dict[tuple[str, int], list[float]] = defaultdict(list)
    for cell in cells:
        values = {mean.door: math.log(mean.mean) for mean in cell}
        if best in values and door in values:
            by_day[cell[0].site, cell[0].day].append(values[door] - values[best])
    by_site: dict[str, list[float]] = defaultdict(list)
    for (site, _), differences in sorted(by_day.items()):
        by_site[site].append(fmean(differences))
    return DoorContrast(door, by_site, _estimate_over_sites([*by_site.values()]))


def _estimate_over_sites(sites: Sequence[Sequence[float]]) -> Estimate | None:
    estimates = [*filter(None, map(estimate_days, sites))]
    if len(estimates) < len(sites):
        return estimate_mean([fmean(days) for days in sites])
    pooled = pool_estimates([[estimate] for estimate in estimates])
    return pooled.estimate if pooled else next(iter(estimates), None)


def estimate_days(values: Sequence[float]) -> Estimate | None:
    """Estimate the mean of measured days, in their order, whose neighbors may be correlated."""
    estimate = estimate_mean(values)
    factor = correlation_factor(np.array(values) - estimate.mean) if estimate else 1.0
    return estimate and replace(estimate, se=math.sqrt(factor) * estimate.se)


def correlation_factor(residuals: npt.NDArray[np.float64]) -> float:
    """Return the factor on the variance of a mean of days whose neighbors are correlated."""
    total = float(residuals @ residuals)
    # The fitted means make the estimate too small by about one part in the number of days.
    estimate = float(residuals[1:] @ residuals[:-1]) / total + 2 / len(residuals)
    correlation = min(max(estimate, 0.0), _MAX_CORRELATION)
    return (1 + correlation) / (1 - correlation)
