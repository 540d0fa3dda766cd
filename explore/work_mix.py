"""Mix of work behind a figure's points: notes on it, and differences within the same work.

A mean over several tests, variants or datasets depends on their mix, and a step may be a step of the
mix. Counts are derived from the figure's own groups, along a time axis for all days together.
Differences are those from the median of the same work at all sites.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import NamedTuple

import numpy as np

from treehammer.analysis.statistics.item_effects import adjust_for_items
from treehammer.hctests.definition.model import drop_release_axis
from treehammer.sql.read.query_model import TIME_UNITS, FigureGroup, Scalar
from treehammer.sql.read.site_history import WORKLOAD_COLUMNS, group_workload_key
from treehammer.text_formatting import pluralize
from treehammer.web.labels import VARIANT_COLUMN

#: A campaign's label of a variant; several variants may share one.
_LABEL = "variant_label"
#: Column -> noun for one of its values.
AGGREGATED_COLUMNS = {
    "test_name": "test",
    VARIANT_COLUMN: "variant",
    "dataset": "dataset",
    "axis_root": "release",
    "site": "site",
    "door": "door",
}
#: Columns that define the work; points that differ in them are rarely meant to.
_WORK_COLUMNS = ("test_name", VARIANT_COLUMN, "dataset")

GroupKey = tuple[Scalar, ...]
WorkKey = tuple[str, ...]

#: Column of the work -> columns of groups that compare its values; equal work may then differ in it.
_COMPARED = {
    "axis_root": {"axis_root", "root_version", "root_commit", "variant"},
    "door_protocol": {"door_protocol", "door"},
}


@dataclass(frozen=True)
class Aggregation:
    """Number of values per column of :data:`AGGREGATED_COLUMNS`.

    Attributes:
        group_columns: columns that distinguish points, without time.
        counts_by_point: values of these columns -> column -> number of values in that point.
        counts_in_figure: column -> number of values in the whole figure.
    """

    group_columns: tuple[str, ...] = ()
    counts_by_point: Mapping[GroupKey, Mapping[str, int]] = field(default_factory=dict)
    counts_in_figure: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def largest_counts(self) -> Mapping[str, int]:
        """Column -> largest number of values in one point; only columns with several."""
        largest: dict[str, int] = {}
        for counts in self.counts_by_point.values():
            for column, count in counts.items():
                if count > largest.get(column, 1):
                    largest[column] = count
        return {column: largest[column] for column in AGGREGATED_COLUMNS if column in largest}

    def describe_point(self, values: Mapping[str, Scalar]) -> str:
        """Describe the values in a point, e.g. ``4 variants, 2 datasets``; '' for one of each."""
        if not self.largest_counts:
            return ""
        counts = self.counts_by_point.get(tuple(values[name] for name in self.group_columns), {})
        return ", ".join(_format_counts(counts))

    def describe_figure(self, groups: Sequence[str]) -> str:
        """Note for readers of a figure grouped by these columns; '' if none is needed."""
        sentences = (self._describe_points(groups), self._describe_work(groups))
        return " ".join(filter(None, sentences))

    def _describe_points(self, groups: Sequence[str]) -> str:
        """Describe the values in each point or line; '' if no point has several."""
        largest = self.largest_counts
        if not largest:
            return ""
        unit = "line" if set(groups) & set(TIME_UNITS) else "point"
        all_equal = all(
            counts[column] == largest[column]
            for counts in self.counts_by_point.values()
            for column in largest
        )
        subject = (
            f"Each {unit} aggregates" if all_equal else f"{unit.capitalize()}s aggregate up to"
        )
        return f"{subject} {_join_words([*_format_counts(largest)])}."

    def _describe_work(self, groups: Sequence[str]) -> str:
        """Describe the work that differs between points; '' if it is meant to or does not."""
        is_axis = any(name.startswith("axis_") and name != "axis_root" for name in groups)
        has_variants = is_axis or {"test_name", _LABEL} & {*groups}
        different = [
            AGGREGATED_COLUMNS[column]
            for column in _WORK_COLUMNS
            if self.counts_in_figure.get(column, 0) > 1
            and column not in {*self.largest_counts, *groups}
            and not (column == VARIANT_COLUMN and has_variants)
        ]
        return f"Points differ in their {_join_words(different)}." if different else ""


def count_aggregated(
    names: Iterable[str], columns: Sequence[str], rows: Sequence[Sequence[Scalar]]
) -> Aggregation:
    """Count the values behind each point.

    Args:
        names: columns that distinguish points.
        columns: columns of the rows: those of ``names`` that are not time, and :data:`AGGREGATED_COLUMNS`.
        rows: one row for each kind of work that contributes to the points.
    """
    distinguishing = tuple(name for name in names if name not in (*TIME_UNITS, "failure_class"))
    in_figure: dict[str, set[Scalar]] = {column: set() for column in AGGREGATED_COLUMNS}
    by_point: dict[GroupKey, dict[str, set[Scalar]]] = defaultdict(lambda: defaultdict(set))
    for row in rows:
        values = dict(zip(columns, row, strict=True))
        of_point = by_point[tuple(map(values.get, distinguishing))]
        # Releases are counted apart.
        values[VARIANT_COLUMN] = drop_release_axis(str(values[VARIANT_COLUMN] or ""))
        for column, distinct in in_figure.items():
            distinct.add(values[column])
            of_point[column].add(values[column])
    counts = {column: len(distinct) for column, distinct in in_figure.items()}
    counts_by_point = {
        key: {column: len(distinct) for column, distinct in of_point.items()}
        for key, of_point in by_point.items()
    }
    return Aggregation(distinguishing, counts_by_point, counts)


def _format_counts(counts: Mapping[str, int]) -> Iterable[str]:
    return (
        pluralize(count, AGGREGATED_COLUMNS[column])
        for column, count in counts.items()
        if count > 1
    )


def _join_words(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


class RelativeMean(NamedTuple):
    """Difference of a group from the same work at all sites.

    Attributes:
        executions: their number.
        difference: ratio of times or counts, minus 1.
        rms: scatter of executions about the mean of their own work, relative to it; None if each
            is the only one of its work.
    """

    executions: int
    difference: float
    rms: float | None


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
) -> tuple[dict[GroupKey, RelativeMean], bool]:
    """Compare the groups of a figure with the median of the same work over sites.

    Differences between places are fitted together with those between works, so that another mix of
    work at a place causes no difference. Work without a positive mean is left out.

    Args:
        by: the one whose values are places; the others define lines.

    Returns:
        differences by the values of the group columns, and whether common work connects all places of
        each line.
    """
    # Equal work may differ in what the figure compares.
    compared_places = [
        place
        for place, name in enumerate(WORKLOAD_COLUMNS)
        if not _COMPARED.get(name, set()) & {*columns}
    ]
    references = _find_references(_list_means(site_groups, metric, compared_places))
    lines: dict[GroupKey, list[_WorkMean]] = defaultdict(list)
    for group, work, mean in _list_means(groups, metric, compared_places):
        if work in references:
            moments = group.metrics[metric]
            line = tuple(group.by[name] for name in columns if name != by)
            key = tuple(group.by[name] for name in columns)
            variance = ((moments.rms or 0.0) / mean) ** 2
            log_ratio = math.log(mean / references[work])
            lines[line].append(_WorkMean(key, work, log_ratio, variance, moments.value_count))
    by_group: dict[GroupKey, RelativeMean] = {}
    connected = True
    for means in lines.values():
        values, is_connected = _fit_places(means)
        connected &= is_connected
        by_group |= _combine_means(means, values)
    return by_group, connected


def _list_means(
    groups: Iterable[FigureGroup], metric: str, places: Sequence[int]
) -> Iterator[tuple[FigureGroup, WorkKey, float]]:
    """List groups with a positive mean, and the parts of their work that are not compared."""
    for group in groups:
        mean = group.metrics[metric].mean
        if mean and mean > 0:
            work = group_workload_key(group)
            yield group, tuple(work[place] for place in places), mean


def _find_references(means: Iterable[tuple[FigureGroup, WorkKey, float]]) -> dict[WorkKey, float]:
    """Find the median of each work over sites."""
    site_means: dict[WorkKey, list[float]] = defaultdict(list)
    for _, work, mean in means:
        site_means[work].append(mean)
    return {work: median(values) for work, values in site_means.items()}


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
        is_label = labels[items] == label
        _, own_items = np.unique(items[is_label], return_inverse=True)
        own_places, indices = np.unique(places[is_label], return_inverse=True)
        _, effects = adjust_for_items(own_items, places[is_label], logs[is_label])
        # Mean residual over works: each work counts once, independent of its number of days.
        work_means = np.bincount(own_items, logs[is_label] - effects[indices]) / np.bincount(
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
        variance = sum(mean.executions * mean.variance for mean in group_means) / count
        rms = math.sqrt(variance) if count > len(group_means) else None
        # The fit is exact to 1e-10; zero is added, so that no zero is negative.
        combined[key] = RelativeMean(count, round(math.expm1(values[key]), 9) + 0.0, rms)
    return combined
