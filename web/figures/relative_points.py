"""Differences of a figure's groups from the median of the same work at all sites."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np

from treehammer.analysis.changes.daily_series import adjust_for_items
from treehammer.sql.read.figure_query import FigureGroup
from treehammer.sql.read.measurement_selection import Scalar
from treehammer.sql.read.site_history import WORKLOAD_COLUMNS, group_workload_key

GroupKey = tuple[Scalar, ...]
WorkKey = tuple[str, ...]

#: Column of the work -> columns of groups that compare its values; equal work may then differ in it.
_COMPARED = {
    "axis_root": {"axis_root", "root_version", "root_commit", "variant"},
    "door_protocol": {"door_protocol", "door"},
}


@dataclass(frozen=True)
class RelativeMean:
    """Difference of a group from the same work at all sites.

    Attributes:
        difference: ratio of times or counts, minus 1.
        rms: scatter of executions about the mean of their own work, relative to it.
        count: executions.
    """

    difference: float
    rms: float
    count: int


@dataclass(frozen=True)
class RelativeMeans:
    """Differences of a figure.

    Attributes:
        by_group: values of the group columns -> difference.
        connected: whether common work connects all places of each line.
    """

    by_group: dict[GroupKey, RelativeMean]
    connected: bool


class _WorkMean(NamedTuple):
    """Mean of one work in a group: ln of its ratio to the reference."""

    key: GroupKey
    work: WorkKey
    log_ratio: float
    variance: float
    executions: int


def compare_with_same_work(
    groups: Iterable[FigureGroup],
    site_groups: Iterable[FigureGroup],
    metric: str,
    columns: Sequence[str],
    by: str,
) -> RelativeMeans:
    """Compare the groups of a figure with the median of the same work over sites.

    Differences between places are fitted together with those between works, so that another mix of
    work at a place causes no difference. Work without a positive mean is left out.

    Args:
        groups: by the figure's columns and those of the work.
        site_groups: by site and the columns of the work.
        metric: the metric.
        columns: group columns of the figure.
        by: the one whose values are places; the others define lines.
    """
    find_work = _make_work_finder(columns)
    references = _find_references(site_groups, metric, find_work)
    lines: dict[GroupKey, list[_WorkMean]] = defaultdict(list)
    for group in groups:
        moments = group.metrics[metric]
        work = find_work(group)
        if moments.mean and moments.mean > 0 and work in references:
            line = tuple(group.by[name] for name in columns if name != by)
            key = tuple(group.by[name] for name in columns)
            log_ratio = math.log(moments.mean / references[work])
            variance = ((moments.rms or 0.0) / moments.mean) ** 2
            lines[line].append(_WorkMean(key, work, log_ratio, variance, moments.value_count))
    by_group: dict[GroupKey, RelativeMean] = {}
    connected = True
    for means in lines.values():
        values, is_connected = _fit_places(means)
        connected &= is_connected
        by_group |= _combine_means(means, values)
    return RelativeMeans(by_group, connected)


def _make_work_finder(columns: Sequence[str]) -> Callable[[FigureGroup], WorkKey]:
    """Make a function that returns a group's work without the columns that the figure compares."""
    compared_places = [
        place
        for place, name in enumerate(WORKLOAD_COLUMNS)
        if not _COMPARED.get(name, set()) & {*columns}
    ]

    def find_work(group: FigureGroup) -> WorkKey:
        work = group_workload_key(group)
        return tuple(work[place] for place in compared_places)

    return find_work


def _find_references(
    site_groups: Iterable[FigureGroup], metric: str, find_work: Callable[[FigureGroup], WorkKey]
) -> dict[WorkKey, float]:
    """Find the median of the sites' means of each work."""
    means: dict[WorkKey, list[float]] = defaultdict(list)
    for group in site_groups:
        mean = group.metrics[metric].mean
        if mean and mean > 0:
            means[find_work(group)].append(mean)
    return {work: median(values) for work, values in means.items()}


def _fit_places(means: Sequence[_WorkMean]) -> tuple[dict[GroupKey, float], bool]:
    """Fit ln(ratio) = work + place; return the places' values and whether all are connected.

    Places that share no work, directly or through others, are fitted apart.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    works = {work: number for number, work in enumerate(dict.fromkeys(mean.work for mean in means))}
    keys = {key: number for number, key in enumerate(dict.fromkeys(mean.key for mean in means))}
    items = np.array([works[mean.work] for mean in means])
    places = np.array([keys[mean.key] for mean in means])
    logs = np.array([mean.log_ratio for mean in means])
    size = len(works) + len(keys)
    edges = coo_array((np.ones(len(means)), (items, len(works) + places)), shape=(size, size))
    count, labels = connected_components(edges, directed=False)
    values = np.zeros(len(keys))
    for label in range(count):
        chosen = labels[items] == label
        _, own_items = np.unique(items[chosen], return_inverse=True)
        own_places, indices = np.unique(places[chosen], return_inverse=True)
        _, effects = adjust_for_items(own_items, places[chosen], logs[chosen])
        # Mean residual over works: each work counts once, independent of its number of days.
        work_means = np.bincount(own_items, logs[chosen] - effects[indices]) / np.bincount(
            own_items
        )
        values[own_places] = effects + work_means.mean()
    return dict(zip(keys, map(float, values), strict=True)), count == 1


def _combine_means(
    means: Iterable[_WorkMean], values: dict[GroupKey, float]
) -> dict[GroupKey, RelativeMean]:
    by_key: dict[GroupKey, list[_WorkMean]] = defaultdict(list)
    for mean in means:
        by_key[mean.key].append(mean)
    combined = {}
    for key, group_means in by_key.items():
        count = sum(mean.executions for mean in group_means)
        rms = math.sqrt(sum(mean.executions * mean.variance for mean in group_means) / count)
        combined[key] = RelativeMean(math.expm1(values[key]), rms, count)
    return combined
