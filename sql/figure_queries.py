"""Answers a figure in SQL: sums in the database, everything else here.

Whichever table answers, the question has two steps.  The inner one gathers sums by the numbers of
dimensions, along an index where there is one; the outer one brings the dimensions' texts to these
few rows and adds up what they have in common.  With the texts in one step, a database would sort
millions of rows by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.metrics import LATENCY_BINS
from treehammer.sql import rollups, wide
from treehammer.sql.dimensions import DIMENSION_OF, DIMENSIONS, SUBJECT
from treehammer.sql.figures import DAY, TIMES, Answer, Figure, Group, Moments, coarser, require_few
from treehammer.sql.rollups import GOOD, NO_KIND
from treehammer.sql.schema import (
    dimension_tables,
    extra,
    measurement,
    rolled_columns,
    rollup_day,
)
from treehammer.sql.selection import Scalar, condition, conditions
from treehammer.sql.wide import EXTRA_PREFIX

#: Rows that are fetched at once where many are read.
FETCH = 5000
_OUTCOME, _COUNT = "outcome", "measurements"
#: What makes groups along the indexes of days and of subjects, and the metrics that stand in both.
_ALONG = (DAY, SUBJECT.key, "kind", "plausible", "failure_class")
_COVERED = ("eff_job", "cpu_per_event_s", "wall_per_event_s")

Key = tuple[Scalar, ...]


class _Found:
    """What is known of a group so far."""

    def __init__(self, figure: Figure) -> None:
        self.outcomes: dict[str, int] = {}
        self.moments: dict[str, Moments] = {}
        self.reads = [0] * LATENCY_BINS if figure.latencies else []


def answer(connection: Connection, figure: Figure, most: int | None = None) -> Answer:
    """The groups of a figure, from the roll-ups where these can tell.

    Raises:
        ConfigError: there are more than ``most``.
    """
    rolled = figure.source == "roll-ups"
    shape = _Shape.of(figure)
    groups: dict[Key, _Found] = {}
    dialect = connection.dialect.name
    sums = (_rolled if rolled else _measured)(figure, shape, dialect)
    for key, (outcome, *numbers) in shape.rows(connection, sums):
        _add(groups.setdefault(key, _Found(figure)), figure, outcome, numbers)
        if most is not None:
            require_few(len(groups), most)
    if figure.latencies:
        reads = (_rolled_reads if rolled else _measured_reads)(figure, shape, dialect)
        most = rollups.ANY if rolled else rollups.MOST_READS
        # A database cannot add up lists.
        with connection.execute(reads.execution_options(yield_per=FETCH)) as rows:
            for *values, text in rows:
                of_group = groups[shape.key(values)].reads
                for place, count in rollups.bins(text, most):
                    of_group[place] += count
    return Answer(
        figure.source,
        tuple(
            Group(
                dict(zip(figure.by, key, strict=True)),
                found.outcomes,
                found.moments or dict.fromkeys(figure.metrics, Moments()),
                found.reads,
            )
            for key, found in sorted(groups.items(), key=lambda item: _order(item[0]))
        ),
    )


def _add(found: _Found, figure: Figure, outcome: str, numbers: Sequence[Any]) -> None:
    count, *sums = numbers
    found.outcomes[outcome] = found.outcomes.get(outcome, 0) + int(count)
    if outcome != GOOD:
        return
    each = len(sums) // max(1, len(figure.metrics))
    for place, name in enumerate(figure.metrics):
        number, total, squares, *ends = sums[each * place : each * (place + 1)]
        more = Moments(int(number), float(total), float(squares), *ends)
        before = found.moments.get(name)
        found.moments[name] = before + more if before else more


def _order(key: Key) -> list[tuple[bool, Any]]:
    return [(value is not None, value) for value in key]


@dataclass(frozen=True)
class _Shape:
    """Where the columns of a figure's groups stand.

    Attributes:
        by: as the figure has it.
        fetched: the columns that are asked of the database: the day in place of month and week.
        keys: the columns that the inner step groups by.
    """

    by: tuple[str, ...]
    fetched: tuple[str, ...]
    keys: tuple[str, ...]

    @classmethod
    def of(cls, figure: Figure) -> _Shape:
        fetched = tuple(dict.fromkeys(DAY if name in TIMES else name for name in figure.by))
        keys = (DIMENSION_OF[name].key if name in DIMENSION_OF else name for name in fetched)
        return cls(figure.by, fetched, tuple(dict.fromkeys(keys)))

    def key(self, values: Iterable[Any]) -> Key:
        """The group of a row with these values of :attr:`fetched`."""
        found = dict(zip(self.fetched, values, strict=True))
        return tuple(
            coarser(name, found[DAY]) if name in TIMES and name != DAY else found[name]
            for name in self.by
        )

    def rows(self, connection: Connection, inner: _Inner) -> Iterator[tuple[Key, Sequence[Any]]]:
        """The outer step: the group of each row, the outcome, and the sums."""
        found = inner.query.subquery("found")
        joined: sa.FromClause = found
        for dimension in DIMENSIONS:
            if dimension.key in self.keys:
                table = dimension_tables[dimension.name]
                joined = joined.join(table, found.c[dimension.key] == table.c.id)
        columns = [
            wide.column(name) if name in DIMENSION_OF else found.c[name] for name in self.fetched
        ]
        grouped = [*columns, found.c[_OUTCOME]]
        sums = [how(found.c[name]) for name, how in inner.sums.items()]
        query = sa.select(*grouped, *sums).select_from(joined).group_by(*grouped)
        with connection.execute(query.execution_options(yield_per=FETCH)) as rows:
            for row in rows:
                yield self.key(row[: len(columns)]), row[len(columns) :]


@dataclass(frozen=True)
class _Inner:
    """The inner step: rows by the keys of a shape and outcome; how each other column adds up."""

    query: sa.Select[Any]
    sums: Mapping[str, Any]


# From the roll-ups.


def _rolled(figure: Figure, shape: _Shape, dialect: str) -> _Inner:
    table = rollup_day
    # Names by place: a database may allow 30 characters.
    wanted = {_COUNT: table.c.measurements}
    for place, metric in enumerate(figure.metrics):
        number, total, squares = (table.c[name] for name in rolled_columns(metric))
        wanted |= {f"n{place}": number, f"s{place}": total, f"q{place}": squares}
    keys = [_rolled_column(table, name).label(name) for name in shape.keys]
    outcome = table.c[_OUTCOME]
    where = [*_rolled_conditions(figure, table, dialect)]
    if {DAY, SUBJECT.key} <= {*shape.keys}:
        # The rows are these groups already, but for kinds.
        columns = [column.label(name) for name, column in wanted.items()]
        query = sa.select(*keys, outcome, *columns).where(*where)
    else:
        sums = [sa.func.sum(column).label(name) for name, column in wanted.items()]
        # By what stands in the table, not by what is made of it: parameters in both would differ.
        stored = dict.fromkeys(_STORED.get(name, name) for name in (*shape.keys, _OUTCOME))
        query = sa.select(*keys, outcome, *sums).where(*where)
        query = query.group_by(*(table.c[name] for name in stored))
    return _Inner(query, dict.fromkeys(wanted, sa.func.sum))


def work(
    connection: Connection, figure: Figure, columns: Sequence[str]
) -> Sequence[Sequence[Scalar]]:
    """What was done for the good measurements of a figure that roll-ups answer: each once.

    Args:
        connection: of a reader.
        figure: whatever its groups are; only what has a metric of it counts.
        columns: of subjects, and kinds.

    Returns:
        rows with the values of ``columns``.
    """
    table, subject = rollup_day, dimension_tables[SUBJECT.name]
    numbers = [table.c[rolled_columns(metric).number] for metric in figure.metrics]
    kinds = [table.c.kind] if "kind" in columns else []
    met = (
        *_rolled_conditions(figure, table, connection.dialect.name),
        table.c[_OUTCOME] == GOOD,
        *(number > 0 for number in numbers),
    )
    # Numbers first: these few rows alone get their texts.
    query = sa.select(table.c.subject_id, *kinds).where(*met).distinct()
    done = query.subquery("done")
    wanted = [
        sa.func.nullif(done.c.kind, NO_KIND) if name == "kind" else subject.c[name]
        for name in columns
    ]
    joined = done.join(subject, done.c.subject_id == subject.c.id)
    return connection.execute(sa.select(*wanted).select_from(joined)).all()


def _rolled_reads(figure: Figure, shape: _Shape, dialect: str) -> sa.Select[Any]:
    subject = dimension_tables[SUBJECT.name]
    columns = [
        subject.c[name] if name in SUBJECT.columns else _rolled_column(rollup_day, name)
        for name in shape.fetched
    ]
    return (
        sa.select(*columns, sa.type_coerce(rollup_day.c.read_latency_hist, sa.Text))
        .select_from(rollup_day.join(subject))
        .where(*_rolled_conditions(figure, rollup_day, dialect), rollup_day.c.outcome == GOOD)
    )


def _rolled_conditions(
    figure: Figure, table: sa.Table, dialect: str
) -> Iterator[sa.ColumnElement[bool]]:
    yield from _days(figure, table)
    if figure.kind is not None:
        yield table.c.kind == (figure.kind or NO_KIND)
    for where in figure.selection.wheres:
        if where.column in SUBJECT.columns:
            subject = dimension_tables[SUBJECT.name]
            met = condition(where, subject.c[where.column], dialect)
            yield table.c.subject_id.in_(sa.select(subject.c.id).where(met))
        else:
            yield condition(where, _rolled_column(table, where.column), dialect)


#: Columns of measurements that are made of one of a roll-up.
_STORED = {"failure_class": _OUTCOME}


def _rolled_column(table: sa.Table, name: str) -> sa.ColumnElement[Any]:
    """A column as measurements have it."""
    if name == "kind":
        return sa.func.nullif(table.c.kind, NO_KIND)
    if name == "failure_class":
        return rollups.class_of(table.c.outcome)
    return table.c[name]


def _days(figure: Figure, table: sa.Table) -> Iterator[sa.ColumnElement[bool]]:
    if figure.first_day is not None:
        yield table.c.day >= figure.first_day
    if figure.last_day is not None:
        yield table.c.day <= figure.last_day


# From the measurements.


def _measured(figure: Figure, shape: _Shape, dialect: str) -> _Inner:
    wanted: dict[str, sa.ColumnElement[Any]] = {_COUNT: sa.func.count()}
    how: dict[str, Any] = {_COUNT: sa.func.sum}
    joined = wide.joined(figure.metrics)
    for place, metric in enumerate(figure.metrics):
        if metric.startswith(EXTRA_PREFIX):
            own = extra.alias(f"extra{place}")
            mine = own.c.measurement_id == measurement.c.measurement_id
            named = own.c.name == metric.removeprefix(EXTRA_PREFIX)
            joined = joined.outerjoin(own, sa.and_(mine, named))
        column = own.c.value if metric.startswith(EXTRA_PREFIX) else wide.column(metric)
        value = rollups.credible(column)
        found = (*rollups.sums(value), sa.func.min(value), sa.func.max(value))
        names = [f"{letter}{place}" for letter in "nsqlh"]
        wanted |= dict(zip(names, found, strict=True))
        how |= dict(zip(names, (*[sa.func.sum] * 3, sa.func.min, sa.func.max), strict=True))
    outcome = rollups.exact_outcome()
    if figure.raw and set(shape.keys) <= set(_ALONG) and set(figure.metrics) <= set(_COVERED):
        # Along the index, which knows classes of failures alone.
        outcome = rollups.outcome()
        keys: list[sa.ColumnElement[Any]] = [measurement.c[name] for name in shape.keys]
        grouped: list[sa.ColumnElement[Any]] = [measurement.c[name] for name in _ALONG]
    else:
        keys = [*map(_disordered, shape.keys)]
        grouped = [*keys, outcome]
    query = (
        sa.select(
            *(key.label(name) for name, key in zip(shape.keys, keys, strict=True)),
            outcome.label(_OUTCOME),
            *(column.label(name) for name, column in wanted.items()),
        )
        .select_from(joined)
        .where(*measured_conditions(figure, dialect))
        .group_by(*grouped)
    )
    return _Inner(query, how)


def _disordered(name: str) -> sa.ColumnElement[Any]:
    """A column that no index is sorted by.

    To have its groups sorted, SQLite would read a whole table in the order of an index, all over
    the disk.
    """
    column = measurement.c[name]
    return column + sa.literal_column("0") if name in (DAY, SUBJECT.key) else column


def _measured_reads(figure: Figure, shape: _Shape, dialect: str) -> sa.Select[Any]:
    histogram = measurement.c.read_latency_hist
    return (
        sa.select(*map(wide.column, shape.fetched), sa.type_coerce(histogram, sa.Text))
        .select_from(wide.joined(shape.fetched))
        .where(
            *measured_conditions(figure, dialect),
            measurement.c.plausible == sa.true(),
            measurement.c.failure_class.is_(None),
            histogram.is_not(None),
        )
    )


def measured_conditions(figure: Figure, dialect: str) -> Iterator[sa.ColumnElement[bool]]:
    """Which measurements a figure is about."""
    yield from _days(figure, measurement)
    if figure.kind is not None:
        kind = measurement.c.kind
        # As a range: after "equal to" SQLite would not group along the index, but sort all rows.
        yield kind.between(figure.kind, figure.kind) if figure.kind else kind.is_(None)
    yield from conditions(figure.selection, dialect)
