"""SQL of figures: the database computes sums, from the roll-ups or from the measurements.

A query has two steps. The inner one groups by the numbers of dimensions, along an index if there is
one; the outer one joins the dimensions' texts to the few rows and merges rows with equal texts. In
a single step, a database would sort millions of rows by text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.metric_catalogue import LATENCY_BINS
from treehammer.collectors.record.outcome import Outcome
from treehammer.sql.core import measurement_sql
from treehammer.sql.core.column_types import text_equals
from treehammer.sql.core.measurement_columns import DIMENSION_OF, DIMENSIONS, SUBJECT
from treehammer.sql.core.measurement_sql import (
    MAX_BIN_READS,
    UNKNOWN_KIND,
    UNLIMITED_READS,
    credible_value,
    failure_class_column,
    has_outcome,
    moment_sums,
    outcome_column,
    parse_bins,
)
from treehammer.sql.core.schema import (
    dimension_tables,
    measurement,
    rollup_column_names,
    rollup_day,
)
from treehammer.sql.read.query_model import (
    DAY,
    ROLLUP_GROUPINGS,
    TIME_UNITS,
    VARIANT_COLUMN,
    FigureGroup,
    FigureQuery,
    FigureResult,
    Moments,
    Scalar,
    Selection,
    coarsen_day,
    compile_condition,
    compile_selection,
    find_axis_value,
    is_counted,
    is_variant_axis,
    require_max_groups,
)

#: Rows that are fetched at once where many are read.
FIGURE_FETCH_ROWS = 5000
_OUTCOME, _COUNT = "outcome", "measurements"

GroupKey = tuple[Scalar, ...]


class _GroupSums:
    """Sums of a group so far."""

    def __init__(self, figure: FigureQuery) -> None:
        self.outcomes: dict[str, int] = {}
        self.moments: dict[str, Moments] = {}
        self.reads = [0] * LATENCY_BINS if figure.latencies else []


def load_figure(
    connection: Connection, figure: FigureQuery, most: int | None = None
) -> FigureResult:
    """Load the groups of a figure, from the roll-ups if they suffice.

    Raises:
        ConfigError: there are more than ``most``.
    """
    grouping = _Grouping.from_columns(figure.by)
    select_sums = _select_rollups if figure.source == "roll-ups" else _select_measurements
    inner = select_sums(figure, grouping.keys, connection.dialect.name)
    groups: dict[GroupKey, _GroupSums] = {}
    for key, (outcome, *numbers) in grouping.load_groups(connection, inner):
        _add_sums(groups.setdefault(key, _GroupSums(figure)), figure, outcome, numbers)
        if most is not None:
            require_max_groups(len(groups), most)
    if figure.latencies:
        _add_latencies(connection, figure, grouping, groups)
    # Sorted by the values of each column, unknown ones first.
    ordered = sorted(
        groups.items(),
        key=lambda item: [(value is not None, isinstance(value, str), value) for value in item[0]],
    )
    return FigureResult(
        figure.source,
        tuple(
            FigureGroup(
                dict(zip(figure.by, key, strict=True)),
                sums.outcomes,
                sums.moments or dict.fromkeys(figure.metrics, Moments()),
                sums.reads,
            )
            for key, sums in ordered
        ),
    )


def _add_latencies(
    connection: Connection,
    figure: FigureQuery,
    grouping: _Grouping,
    groups: Mapping[GroupKey, _GroupSums],
) -> None:
    """Add the latencies of reads to groups, because a database cannot add up lists."""
    select_latencies, most = _select_measured_latencies, MAX_BIN_READS
    if figure.source == "roll-ups":
        select_latencies, most = _select_rolled_latencies, UNLIMITED_READS
    query = select_latencies(figure, grouping.fetched, connection.dialect.name)
    with connection.execute(query.execution_options(yield_per=FIGURE_FETCH_ROWS)) as rows:
        for *values, text in rows:
            of_group = groups[grouping.group_key(values)].reads
            for place, count in parse_bins(text, most):
                of_group[place] += count


def _add_sums(group: _GroupSums, figure: FigureQuery, outcome: str, numbers: Sequence[Any]) -> None:
    count, *sums = numbers
    group.outcomes[outcome] = group.outcomes.get(outcome, 0) + int(count)
    if outcome != Outcome.GOOD:
        return
    each = len(sums) // max(1, len(figure.metrics))
    for place, name in enumerate(figure.metrics):
        number, total, squares, *ends = sums[each * place : each * (place + 1)]
        more = Moments(int(number), float(total), float(squares), *ends)
        before = group.moments.get(name)
        group.moments[name] = before + more if before else more


@dataclass(frozen=True)
class _Grouping:
    """Columns of a figure's groups.

    Attributes:
        by: columns of the figure.
        fetched: columns of the outer step, with the day in place of month and week.
        keys: columns by which the inner step groups.
    """

    by: tuple[str, ...]
    fetched: tuple[str, ...]
    keys: tuple[str, ...]

    @classmethod
    def from_columns(cls, by: Sequence[str]) -> _Grouping:
        # Months and weeks are derived from the day, axes of load tests from the variant.
        columns = (VARIANT_COLUMN if is_variant_axis(name) else name for name in by)
        fetched = tuple(dict.fromkeys(DAY if name in TIME_UNITS else name for name in columns))
        keys = (DIMENSION_OF[name].key if name in DIMENSION_OF else name for name in fetched)
        return cls(tuple(by), fetched, tuple(dict.fromkeys(keys)))

    def group_key(self, values: Iterable[Any]) -> GroupKey:
        """Return the group of a row with these values of :attr:`fetched`."""
        row = dict(zip(self.fetched, values, strict=True))
        return tuple(_derive_value(name, row) for name in self.by)

    def load_groups(
        self, connection: Connection, inner: _InnerQuery
    ) -> Iterator[tuple[GroupKey, Sequence[Any]]]:
        """Load the groups: key of each row, the further columns and sums."""
        inner_groups = inner.query.subquery("inner_groups")
        joined: sa.FromClause = inner_groups
        for dimension in DIMENSIONS:
            if dimension.key in self.keys:
                table = dimension_tables[dimension.name]
                joined = joined.join(table, inner_groups.c[dimension.key] == table.c.id)
        columns = [
            measurement_sql.catalogue_column(name) if name in DIMENSION_OF else inner_groups.c[name]
            for name in self.fetched
        ]
        grouped = [*columns, *(inner_groups.c[name] for name in inner.extra_columns)]
        sums = [add(inner_groups.c[name]) for name, add in inner.sums.items()]
        query = sa.select(*grouped, *sums).select_from(joined).group_by(*grouped)
        with connection.execute(query.execution_options(yield_per=FIGURE_FETCH_ROWS)) as rows:
            for row in rows:
                yield self.group_key(row[: len(columns)]), row[len(columns) :]


def _derive_value(name: str, values: Mapping[str, Any]) -> Scalar:
    """Derive the value of a grouping column from the stored ones."""
    if name in TIME_UNITS and name != DAY:
        return coarsen_day(name, values[DAY])
    if is_variant_axis(name):
        return find_axis_value(values[VARIANT_COLUMN], name)
    value: Scalar = values[name]
    return value


@dataclass(frozen=True)
class _InnerQuery:
    """The inner step: rows by the keys of a grouping and other columns, and how sums add up."""

    query: sa.Select[Any]
    sums: Mapping[str, Any]
    extra_columns: tuple[str, ...] = (_OUTCOME,)


# From the roll-ups.


def _select_rollups(figure: FigureQuery, keys: Sequence[str], dialect: str) -> _InnerQuery:
    table = rollup_day.c
    # Names by place: a database may allow 30 characters.
    columns = {_COUNT: table.measurements}
    for place, metric in enumerate(figure.metrics):
        number, total, squares = (table[name] for name in rollup_column_names(metric))
        columns |= {f"n{place}": number, f"s{place}": total, f"q{place}": squares}
    # Grouped by the stored column, not by the expression: its parameters would differ.
    rollup_names = dict.fromkeys(_ROLLUP_COLUMN_NAMES.get(name, name) for name in (*keys, _OUTCOME))
    query = (
        sa.select(
            *(_rollup_column(name).label(name) for name in keys),
            table[_OUTCOME],
            *(sa.func.sum(column).label(name) for name, column in columns.items()),
        )
        .where(*_rollup_conditions(figure, dialect))
        .group_by(*(table[name] for name in rollup_names))
    )
    return _InnerQuery(query, dict.fromkeys(columns, sa.func.sum))


def load_work(
    connection: Connection, figure: FigureQuery, columns: Sequence[str]
) -> Sequence[GroupKey]:
    """Load the distinct work in a figure that roll-ups answer.

    Args:
        connection: of a reader.
        figure: the query; only good measurements with all of its metrics count as work.
        columns: of subjects, and kinds.
    """
    table = rollup_day.c
    numbers = [table[rollup_column_names(metric).value_count] for metric in figure.metrics]
    grouping = _Grouping.from_columns(columns)
    query = (
        sa.select(*(_rollup_column(name).label(name) for name in grouping.keys))
        .where(
            *_rollup_conditions(figure, connection.dialect.name),
            table[_OUTCOME] == Outcome.GOOD.value,
            *(number > 0 for number in numbers),
        )
        .distinct()
    )
    groups = grouping.load_groups(connection, _InnerQuery(query, {}, ()))
    return [*dict.fromkeys(key for key, _ in groups)]


def _select_rolled_latencies(
    figure: FigureQuery, names: Sequence[str], dialect: str
) -> sa.Select[Any]:
    subject = dimension_tables[SUBJECT.name]
    columns = [
        subject.c[name] if name in SUBJECT.columns else _rollup_column(name) for name in names
    ]
    return (
        sa.select(*columns, sa.type_coerce(rollup_day.c.read_latency_hist, sa.Text))
        .select_from(rollup_day.join(subject))
        .where(
            *_rollup_conditions(figure, dialect),
            rollup_day.c.outcome == Outcome.GOOD.value,
        )
    )


def _rollup_conditions(figure: FigureQuery, dialect: str) -> Iterator[sa.ColumnElement[bool]]:
    yield from _day_conditions(figure, rollup_day)
    if figure.kind is not None:
        yield rollup_day.c.kind == (figure.kind or UNKNOWN_KIND)
    for where in figure.selection.conditions:
        if where.column in SUBJECT.columns:
            subject = dimension_tables[SUBJECT.name]
            met = compile_condition(where, subject.c[where.column], dialect)
            yield rollup_day.c.subject_id.in_(sa.select(subject.c.id).where(met))
        else:
            yield compile_condition(where, _rollup_column(where.column), dialect)


#: Columns of measurements that are made of one of a roll-up.
_ROLLUP_COLUMN_NAMES = {"failure_class": _OUTCOME}


def _rollup_column(name: str) -> sa.ColumnElement[Any]:
    """Return a column as measurements have it."""
    if name == "kind":
        return sa.func.nullif(rollup_day.c.kind, UNKNOWN_KIND)
    if name == "failure_class":
        return failure_class_column(rollup_day.c.outcome)
    return rollup_day.c[name]


def _day_conditions(figure: FigureQuery, table: sa.Table) -> Iterator[sa.ColumnElement[bool]]:
    if figure.first_day is not None:
        yield table.c.day >= figure.first_day
    if figure.last_day is not None:
        yield table.c.day <= figure.last_day


# From the measurements.


def _select_measurements(figure: FigureQuery, keys: Sequence[str], dialect: str) -> _InnerQuery:
    expressions: dict[str, sa.ColumnElement[Any]] = {_COUNT: sa.func.count()}
    sums: dict[str, Any] = {_COUNT: sa.func.sum}
    joined = measurement_sql.join_dimensions(figure.metrics)
    for place, metric in enumerate(figure.metrics):
        joined, column = measurement_sql.join_metric(joined, metric, place)
        value = credible_value(column)
        aggregates = (*moment_sums(value), sa.func.min(value), sa.func.max(value))
        names = [f"{letter}{place}" for letter in "nsqlh"]
        expressions |= dict(zip(names, aggregates, strict=True))
        sums |= dict(zip(names, (*[sa.func.sum] * 3, sa.func.min, sa.func.max), strict=True))
    columns, outcome = [measurement.c[name] for name in keys], outcome_column()
    query = (
        sa.select(
            *columns,
            outcome.label(_OUTCOME),
            *(column.label(name) for name, column in expressions.items()),
        )
        .select_from(joined)
        .where(*measurement_conditions(figure, dialect), is_counted())
        .group_by(*columns, outcome)
    )
    return _InnerQuery(query, sums)


def _select_measured_latencies(
    figure: FigureQuery, names: Sequence[str], dialect: str
) -> sa.Select[Any]:
    histogram = measurement.c.read_latency_hist
    return (
        sa.select(*map(measurement_sql.catalogue_column, names), sa.type_coerce(histogram, sa.Text))
        .select_from(measurement_sql.join_dimensions(names))
        .where(
            *measurement_conditions(figure, dialect),
            has_outcome(Outcome.GOOD),
            histogram.is_not(None),
        )
    )


def measurement_conditions(figure: FigureQuery, dialect: str) -> Iterator[sa.ColumnElement[bool]]:
    """Return the conditions on a figure's measurements."""
    yield from _day_conditions(figure, measurement)
    if figure.kind is not None:
        yield text_equals(measurement.c.kind, figure.kind)
    yield from compile_selection(figure.selection, dialect)


def estimate_max_measurements(connection: Connection, figure: FigureQuery) -> int:
    """Estimate an upper limit of the selected measurements from roll-ups and the index of campaigns.

    It may be far more than there are, as conditions on other columns are ignored.
    """
    conditions = tuple(w for w in figure.selection.conditions if w.column in ROLLUP_GROUPINGS)
    selection = Selection(conditions=conditions)
    rolled = replace(
        figure, metrics=(), by=(), selection=selection, latencies=False, from_measurements=False
    )
    total = sum(group.measurements for group in load_figure(connection, rolled).groups)
    if not figure.selection.campaigns:
        return total
    of_campaigns = measurement.c.campaign_id.in_(figure.selection.campaigns)
    count = sa.select(sa.func.count()).select_from(measurement).where(of_campaigns)
    return min(total, connection.scalar(count) or 0)
