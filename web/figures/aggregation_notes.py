"""Notes on values aggregated in a figure's points, such as tests, variants and datasets.

A mean over several kinds of work depends on their mix, and a step may be a step of the mix. Counts are
derived from the figure's own groups, along a time axis for all days together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from treehammer.hctests.matrix.identity import drop_release_axis
from treehammer.sql.read.figure_query import TIME_UNITS
from treehammer.sql.read.measurement_selection import Scalar
from treehammer.text_formatting import pluralize
from treehammer.web.display.variant_labels import VARIANT_COLUMN

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

PointKey = tuple[Scalar, ...]


@dataclass(frozen=True)
class Aggregation:
    """Number of values per column of :data:`AGGREGATED_COLUMNS`.

    Attributes:
        group_columns: columns that distinguish points, without time.
        counts_by_point: values of these columns -> column -> number of values in that point; only
            columns with several values.
        counts_in_figure: column -> number of values in the whole figure.
    """

    group_columns: tuple[str, ...] = ()
    counts_by_point: Mapping[PointKey, Mapping[str, int]] = field(default_factory=dict)
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
        different = [
            AGGREGATED_COLUMNS[column]
            for column in _WORK_COLUMNS
            if self.counts_in_figure.get(column, 0) > 1
            and column not in self.largest_counts
            and not _is_grouped_by(column, groups)
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
    values = _collect_values(columns, rows)
    places = [columns.index(name) for name in distinguishing]
    keys = [tuple(row[place] for place in places) for row in rows]
    total_counts = {column: len(set(values[column])) for column in AGGREGATED_COLUMNS}
    aggregated = {
        column: values[column]
        for column, count in total_counts.items()
        if count > 1 and column not in distinguishing
    }
    counts = _count_by_point(keys, aggregated)
    return Aggregation(distinguishing, counts, total_counts)


def _collect_values(
    columns: Sequence[str], rows: Sequence[Sequence[Scalar]]
) -> dict[str, Sequence[Scalar]]:
    """Collect the values of each column; variants without releases, which are counted apart."""
    values: dict[str, Sequence[Scalar]] = {
        name: [row[place] for row in rows] for place, name in enumerate(columns)
    }
    values[VARIANT_COLUMN] = [
        drop_release_axis(str(variant or "")) for variant in values[VARIANT_COLUMN]
    ]
    return values


def _count_by_point(
    keys: Sequence[PointKey], values: Mapping[str, Sequence[Scalar]]
) -> dict[PointKey, dict[str, int]]:
    """Count the distinct values of each column behind each point."""
    counts = {key: dict.fromkeys(values, 0) for key in keys} if values else {}
    for column, of_rows in values.items():
        for key, _ in set(zip(keys, of_rows, strict=True)):
            counts[key][column] += 1
    return counts


def _is_grouped_by(column: str, groups: Sequence[str]) -> bool:
    """Return whether groups are meant to differ in a column."""
    axes = any(name.startswith("axis_") and name != "axis_root" for name in groups)
    variants = axes or {"test_name", _LABEL} & {*groups}
    return column in groups or (column == VARIANT_COLUMN and bool(variants))


def _format_counts(counts: Mapping[str, int]) -> Iterable[str]:
    return (
        pluralize(count, AGGREGATED_COLUMNS[column])
        for column, count in counts.items()
        if count > 1
    )


def _join_words(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
