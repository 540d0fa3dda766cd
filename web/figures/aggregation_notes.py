"""What a figure takes together: tests, variants, datasets and the like that lie behind one point.

A mean over several kinds of work is one of their mix; a step in it may be a step of the mix. It is
told from the groups that a figure is made of anyway, and along a time axis for all days together.
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

#: What a campaign calls a variant: several may have one label.
_LABEL = "variant_label"
#: Column -> what one of its values is called.
AGGREGATED_COLUMNS = {
    "test_name": "test",
    VARIANT_COLUMN: "variant",
    "dataset": "dataset",
    "axis_root": "release",
    "site": "site",
    "door": "door",
}
#: Of which different points are seldom meant to have different ones.
_WORK_COLUMNS = ("test_name", VARIANT_COLUMN, "dataset")

PointKey = tuple[Scalar, ...]


@dataclass(frozen=True)
class Aggregation:
    """How many values of each column of :data:`MIXED` there are.

    Attributes:
        names: the columns whose values tell points apart, without those of time.
        each: their values -> column -> how many values lie behind that point; of columns that may have
            several alone.
        whole: column -> how many there are in all of the figure.
    """

    group_columns: tuple[str, ...] = ()
    counts_by_point: Mapping[PointKey, Mapping[str, int]] = field(default_factory=dict)
    counts_in_figure: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def largest_counts(self) -> Mapping[str, int]:
        """Column -> how many values lie behind one point at most; of those with several alone."""
        most: dict[str, int] = {}
        for of_point in self.counts_by_point.values():
            for column, count in of_point.items():
                if count > most.get(column, 1):
                    most[column] = count
        return {column: most[column] for column in AGGREGATED_COLUMNS if column in most}

    def describe_point(self, values: Mapping[str, Scalar]) -> str:
        """What lies behind the point with these values: ``4 variants, 2 datasets``, '' for one of each."""
        if not self.largest_counts:
            return ""
        counts = self.counts_by_point.get(tuple(values[name] for name in self.group_columns), {})
        return ", ".join(_format_counts(counts))

    def describe_figure(self, groups: Sequence[str]) -> str:
        """What a reader must know of it, '' for nothing: of a figure with these columns."""
        said = []
        if most := self.largest_counts:
            which = "line" if set(groups) & set(TIME_UNITS) else "point"
            same = all(
                of_point[column] == most[column]
                for of_point in self.counts_by_point.values()
                for column in most
            )
            each = f"Each {which} mixes" if same else f"{which.capitalize()}s mix up to"
            said.append(f"{each} {_join_words([*_format_counts(most)])}.")
        different = [
            AGGREGATED_COLUMNS[column]
            for column in _WORK_COLUMNS
            if self.counts_in_figure.get(column, 0) > 1
            and column not in most
            and not _is_grouped_by(column, groups)
        ]
        if different:
            said.append(f"Not all are of the same {_join_words(different)}.")
        return " ".join(said)


def count_aggregated(
    names: Iterable[str], columns: Sequence[str], rows: Sequence[Sequence[Scalar]]
) -> Aggregation:
    """What lies behind points.

    Args:
        names: the columns whose values tell points apart.
        columns: of the rows: of these names all that are not of time, and those of :data:`MIXED`.
        rows: all work that has a part in the points.
    """
    apart = tuple(name for name in names if name not in (*TIME_UNITS, "failure_class"))
    values: dict[str, Sequence[Scalar]] = {
        name: [row[place] for row in rows] for place, name in enumerate(columns)
    }
    keys = [*zip(*(values[name] for name in apart), strict=True)] if apart else [()] * len(rows)
    # Without their releases, which are counted themselves.
    values[VARIANT_COLUMN] = [drop_release_axis(str(one or "")) for one in values[VARIANT_COLUMN]]
    whole = {column: len(set(values[column])) for column in AGGREGATED_COLUMNS}
    several = [column for column, count in whole.items() if count > 1 and column not in apart]
    counts: dict[PointKey, dict[str, int]] = {}
    for column in several:
        # Each pair of a point and a value once.
        for key, _ in set(zip(keys, values[column], strict=True)):
            of_point = counts.setdefault(key, dict.fromkeys(several, 0))
            of_point[column] += 1
    return Aggregation(apart, counts, whole)


def _is_grouped_by(column: str, groups: Sequence[str]) -> bool:
    """Whether groups differ in it because that is what they are asked to be."""
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
