"""Comparison of two values of an axis, or of two selections, without storing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

from treehammer.analysis.comparison.comparison import (
    Comparison,
    ComparisonQuery,
    compare_samples,
)
from treehammer.analysis.comparison.comparison_result import (
    add_changes,
    find_measured,
    load_details,
)
from treehammer.analysis.comparison.series_changes import DETAIL_COLUMNS, DetailedSample
from treehammer.analysis.statistics.headline_rows import load_headline_rows
from treehammer.analysis.statistics.sample import SELECTION_AXIS, Sample, find_axis_value
from treehammer.analysis.statistics.verdict import ABSENT_VERDICTS
from treehammer.collectors.record.day_numbers import current_us
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.hctests.definition.model import COMMIT_AXIS
from treehammer.sql.read import figure_sql
from treehammer.sql.read.query_model import ALL_MEASUREMENTS, Condition, FigureQuery, Selection
from treehammer.sql.read.reader import ResultsReader

#: Compared axis -> locations that a series still has; all other axes keep site and door.
_SERIES_LOCATIONS = {"site": (), "storage_site": ("site",), "door": ("site",)}


@dataclass(frozen=True)
class ComparedSides:
    """Two sides to compare, as typed.

    Attributes:
        axis: the axis; of two selections :data:`.SELECTION_AXIS`.
        a: value of the axis on side A, the reference.
        b: value of the axis on side B.
        delta: effects (in ln) within ±delta count as none.
        selection: measurements of both sides.
        conditions: further conditions on either side alone.
    """

    axis: str
    a: str
    b: str
    delta: float
    selection: Selection
    conditions: tuple[tuple[Condition, ...], tuple[Condition, ...]]

    @property
    def selections(self) -> list[Selection]:
        """Selections of both sides; a single one if the sides are values of an axis."""
        both = self.selection
        sides = [
            replace(both, conditions=(*both.conditions, *further)) for further in self.conditions
        ]
        if self.axis == SELECTION_AXIS and sides[0] == sides[1]:
            raise ConfigError(
                "both sides select the same measurements", hint="Give different conditions."
            )
        return list(dict.fromkeys(sides))

    def make_query(self, a: Any, b: Any) -> ComparisonQuery:
        """Make the comparison of two measured values."""
        return ComparisonQuery(self.axis, a, b, self.delta, self.selection, *self.conditions)


class TooManyMeasurementsError(ConfigError):
    """A comparison would read too much for one request: up to ``count`` measurements."""

    def __init__(self, count: int) -> None:
        super().__init__(f"this comparison would read up to {count:,} measurements")
        self.count = count


def compare_now(
    store: ResultsReader,
    sides: ComparedSides,
    *,
    max_read: int | None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Comparison:
    """Compute a comparison without storing it.

    ``on_progress`` is called with the number of measurements read, now and then.

    Raises:
        TooManyMeasurementsError: it would read more than ``max_read`` measurements.
        ConfigError: a side is invalid.
        NothingToDoError: a side has no measurements, or nothing is comparable.
    """
    if max_read is not None:
        queries = [FigureQuery(selection=selection, kind=None) for selection in sides.selections]
        with store.connection() as connection:
            counts = [figure_sql.estimate_max_measurements(connection, q) for q in queries]
        if sum(counts) > max_read:
            raise TooManyMeasurementsError(sum(counts))
    loaded: list[list[DetailedSample]] = []
    for selection in sides.selections:

        def report(read: int, before: int = sum(map(len, loaded))) -> None:
            on_progress(before + read)

        loaded.append(_load_samples(store, selection, sides.axis, report))
    label_sides = _label_by_selection if sides.axis == SELECTION_AXIS else _select_by_value
    query, detailed = label_sides(sides, loaded)
    samples = [item.sample for item in detailed]
    comparison = compare_samples(samples, query, now_us=current_us())
    if all(row.verdict in ABSENT_VERDICTS for row in comparison.of_series):
        _require_other_axis(query, samples)
    return add_changes(comparison, detailed).comparison


def _load_samples(
    store: ResultsReader, selection: Selection, axis: str, on_progress: Callable[[int], None]
) -> list[DetailedSample]:
    try:
        rows = load_headline_rows(store, selection, DETAIL_COLUMNS, on_progress)
        samples = load_details(store, rows, axis)
    except (ValueError, AttributeError) as error:
        # Measurements uploaded by other programs may hold any text.
        raise ConfigError(
            f"the variant of a measurement is not a JSON object ({error})",
            hint="Exclude such measurements with a condition.",
        ) from error
    if not samples and selection == ALL_MEASUREMENTS:
        raise NothingToDoError("there are no measurements yet")
    if not samples:
        raise NothingToDoError(f"no measurements match {selection}")
    return samples


def _label_by_selection(
    sides: ComparedSides, loaded: Sequence[Sequence[DetailedSample]]
) -> tuple[ComparisonQuery, list[DetailedSample]]:
    """Label the samples of either selection with its conditions."""
    names = [" and ".join(map(str, side)) or "all" for side in sides.conditions]
    labeled = [
        replace(item, sample=replace(item.sample, side=name))
        for name, side in zip(names, loaded, strict=True)
        for item in side
    ]
    return sides.make_query(*names), labeled


def _select_by_value(
    sides: ComparedSides, loaded: Sequence[Sequence[DetailedSample]]
) -> tuple[ComparisonQuery, list[DetailedSample]]:
    """Take from each side the samples with its value of the axis; commits may be abbreviated."""
    values = []
    selected: list[DetailedSample] = []
    for text, side in ((sides.a, loaded[0]), (sides.b, loaded[-1])):
        samples = [item.sample for item in side]
        commits = {sample.commit or "" for sample in samples}
        value = find_measured(text, commits) if sides.axis == COMMIT_AXIS else ""
        values.append(find_axis_value(samples, sides.axis, value or text))
        selected += [item for item in side if item.sample.axis_value(sides.axis) == values[-1]]
    return sides.make_query(*values), list(loaded[0]) if len(loaded) == 1 else selected


def _require_other_axis(query: ComparisonQuery, samples: Sequence[Sample]) -> None:
    """Refuse sides whose conditions select different sites or doors: a series has one of each."""
    a, b = (
        [sample for sample in samples if sample.axis_value(query.axis) == value]
        for value in (query.a, query.b)
    )
    for column in _SERIES_LOCATIONS.get(query.axis, ("site", "door")):
        is_disjoint = {*map(attrgetter(column), a)}.isdisjoint(map(attrgetter(column), b))
        if is_disjoint and _differ_in_conditions(query, column):
            raise ConfigError(
                f"no series is on both sides, as each series has a single {column}",
                hint=f"To compare two {column}s, choose the axis {column} and give them as A and B.",
            )


def _differ_in_conditions(query: ComparisonQuery, column: str) -> bool:
    """Return whether both sides have conditions on a column, and other ones."""
    where_a, where_b = (
        {condition for condition in side if condition.column == column}
        for side in (query.where_a, query.where_b)
    )
    return bool(where_a and where_b) and where_a != where_b
