"""SQL expressions of measurements: catalogue columns, outcomes, sums of metrics, and subjects.

:mod:`treehammer.collectors.record.outcome` defines the outcomes. Impossible values of metrics and of
latency histograms enter no sum. Subjects are the few texts that millions of measurements and roll-ups
share; they are read once and kept in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from treehammer.collectors.job_spec import TIMED
from treehammer.collectors.record.metric_catalogue import LATENCY_BINS
from treehammer.collectors.record.outcome import NOT_SUPPORTED, UNSUPPORTED_LABELS, Outcome
from treehammer.sql.core.column_types import REAL
from treehammer.sql.core.measurement_columns import (
    DIMENSION_OF,
    DIMENSIONS,
    EXTRA_PREFIX,
    SUBJECT,
    decode_numbers,
    stored_columns,
)
from treehammer.sql.core.schema import dimension_tables, extra, measurement, rollup_day

#: Kind in roll-ups of measurements without a kind.
UNKNOWN_KIND = "unknown"
#: Larger values are not credible; their squares might be infinite.
MAX_CREDIBLE = 1e120
#: Squares of smaller values count as 0; PostgreSQL refuses results that underflow.
MIN_SQUARABLE = 1e-150
#: More reads in one bin are not credible; their sum might overflow.
MAX_BIN_READS = 2**36
#: Limit for bins of roll-ups, which are sums already.
UNLIMITED_READS = 2**63
#: Latency histogram, of measurements and of roll-ups.
HISTOGRAM_COLUMN = "read_latency_hist"
#: Measurements of later attempts; made once, as copying the many columns takes long.
LATER = measurement.alias("later")
#: Conditions of roll-ups of good timed measurements.
GOOD_ROLLUPS = (rollup_day.c.kind == TIMED, rollup_day.c.outcome == Outcome.GOOD.value)
_TABLE = dimension_tables[SUBJECT.name]
_TABLES: WeakKeyDictionary[Engine, SubjectTable] = WeakKeyDictionary()


def catalogue_column(name: str) -> sa.Column[Any]:
    """Return the column of a catalogue name; packed lists have none.

    Raises:
        KeyError: no such column exists.
    """
    dimension = DIMENSION_OF.get(name)
    return measurement.c[name] if dimension is None else dimension_tables[dimension.name].c[name]


def select_columns(names: Iterable[str]) -> sa.Select[Any]:
    """Select catalogue columns, ordered as in :func:`stored_columns`, of all measurements."""
    columns = stored_columns(names)
    return sa.select(*(catalogue_column(name) for name in columns)).select_from(
        join_dimensions(columns)
    )


def join_dimensions(names: Iterable[str]) -> sa.FromClause:
    """Join the measurements to the dimensions that hold any of these columns."""
    needed = {DIMENSION_OF[name] for name in names if name in DIMENSION_OF}
    joined: sa.FromClause = measurement
    for dimension in DIMENSIONS:
        if dimension in needed:
            joined = joined.join(dimension_tables[dimension.name])
    return joined


def join_metric(
    tables: sa.FromClause, name: str, number: int
) -> tuple[sa.FromClause, sa.ColumnElement[Any]]:
    """Return the column of a metric, and the tables joined to it if a test defined it.

    Args:
        tables: the measurements, with the dimensions of catalogue metrics; all of them are kept.
        name: of the catalogue, or with :data:`EXTRA_PREFIX`.
        number: distinguishes several metrics of one query.
    """
    if not name.startswith(EXTRA_PREFIX):
        return tables, catalogue_column(name)
    metric_table = extra.alias(f"extra{number}")
    of_measurement = metric_table.c.measurement_id == measurement.c.measurement_id
    has_name = metric_table.c.name == name.removeprefix(EXTRA_PREFIX)
    joined = tables.outerjoin(metric_table, sa.and_(of_measurement, has_name))
    return joined, metric_table.c.value


def measurements_where(name: str, condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Convert a condition on catalogue column ``name`` to one on measurements, without a join.

    The condition may hold other columns of its dimension.
    """
    if (dimension := DIMENSION_OF.get(name)) is None:
        return condition
    rows = sa.select(dimension_tables[dimension.name].c.id).where(condition)
    return measurement.c[dimension.key].in_(rows)


def select_subjects(name: str, values: Collection[str]) -> sa.Select[Any]:
    """Select the numbers of the subjects with any of these values of a column; '' is unknown."""
    column: sa.ColumnElement[str] = _TABLE.c[name]
    is_unknown = column.is_(None) if "" in values else sa.false()
    return sa.select(_TABLE.c.id).where(sa.or_(column.in_([*filter(None, values)]), is_unknown))


def literal_text(text: str) -> sa.ColumnClause[str]:
    """Write a text out in SQL.

    Databases do not see that two parameters, of SELECT and GROUP BY, are equal.
    """
    return sa.literal_column(f"'{text}'")


@cache
def outcome_column() -> sa.ColumnElement[str]:
    """Label of a measurement's outcome."""
    failure_class, kind = measurement.c.failure_class, measurement.c.failure_kind
    completed = sa.case(
        (measurement.c.plausible == sa.true(), literal_text(Outcome.GOOD.value)),
        else_=literal_text(Outcome.IMPLAUSIBLE.value),
    )
    label = sa.func.coalesce(failure_class, completed)
    unsupported = kind == literal_text(NOT_SUPPORTED)
    return sa.case(
        *(
            (sa.and_(unsupported, failure_class == literal_text(name)), literal_text(label))
            for name, label in UNSUPPORTED_LABELS.items()
        ),
        else_=label,
    )


def failure_class_column(outcome: sa.ColumnElement[str]) -> sa.ColumnElement[Any]:
    """Return the failure class behind an outcome label; NULL if the execution completed."""
    completed = (Outcome.GOOD.value, Outcome.IMPLAUSIBLE.value)
    return sa.case(
        *(
            (outcome == literal_text(label), literal_text(name))
            for name, label in UNSUPPORTED_LABELS.items()
        ),
        else_=sa.func.nullif(sa.func.nullif(outcome, completed[0]), completed[1]),
    )


def has_outcome(label: str) -> sa.ColumnElement[bool]:
    """Return the condition that a measurement has an outcome, in terms of indexed columns."""
    failure_class, kind = measurement.c.failure_class, measurement.c.failure_kind
    if label == Outcome.GOOD:
        return sa.and_(measurement.c.plausible == sa.true(), failure_class.is_(None))
    if label == Outcome.IMPLAUSIBLE:
        return sa.and_(measurement.c.plausible == sa.false(), failure_class.is_(None))
    for name, unsupported_label in UNSUPPORTED_LABELS.items():
        if label == unsupported_label:
            return sa.and_(failure_class == name, kind == NOT_SUPPORTED)
        if label == name:
            return sa.and_(failure_class == name, sa.or_(kind.is_(None), kind != NOT_SUPPORTED))
    return failure_class == label


def is_superseded() -> sa.ColumnElement[bool]:
    """Return the condition that a later attempt of the job recorded the same execution."""
    return sa.exists().where(is_repeated_later()).correlate(measurement)


def is_repeated_later() -> sa.ColumnElement[bool]:
    """Return the condition that a row of :data:`LATER` repeats a measurement in a later attempt."""
    columns = measurement.c
    key_columns = ("campaign_id", "job_id", "round", "position")
    return sa.and_(
        *(LATER.c[name] == columns[name] for name in key_columns),
        LATER.c.attempt > columns.attempt,
    )


def is_bad() -> sa.ColumnElement[bool]:
    """Return the condition that a measurement has any outcome but good."""
    return sa.or_(measurement.c.failure_class.is_not(None), measurement.c.plausible == sa.false())


def credible_value(column: sa.ColumnElement[Any]) -> sa.ColumnElement[float]:
    """Cast a metric to a real number; NULL where it is too large to be true."""
    real = sa.cast(column, REAL)
    return sa.case((real.between(-MAX_CREDIBLE, MAX_CREDIBLE), real), else_=None)


def moment_sums(value: sa.ColumnElement[float]) -> tuple[sa.ColumnElement[Any], ...]:
    """Count, sum and sum of squares of a :func:`credible_value`."""
    square = sa.case((value.between(-MIN_SQUARABLE, MIN_SQUARABLE), None), else_=value * value)
    return (
        sa.func.count(value),
        sa.func.coalesce(sa.func.sum(value), 0),
        sa.func.coalesce(sa.func.sum(square), 0),
    )


@lru_cache(maxsize=1 << 16)
def parse_bins(text: str, max_reads: int = MAX_BIN_READS) -> tuple[tuple[int, int], ...]:
    """Parse a stored histogram to the index and reads of its filled bins.

    Args:
        text: histogram as stored.
        max_reads: largest credible number of reads in a bin; :data:`UNLIMITED_READS` for sums.
    """
    histogram = decode_numbers(text)[:LATENCY_BINS]
    return tuple((index, reads) for index, reads in enumerate(histogram) if 0 < reads <= max_reads)


class SubjectTable:
    """All subjects of a database, by columns; unknown values are None.

    Args:
        rows: of the table.
    """

    def __init__(self, rows: Sequence[Sequence[Any]]) -> None:
        self._rows = rows
        self._values: dict[str, list[Any]] = {}
        self._columns: dict[str, dict[int, Any]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def select(self, *names: str) -> list[tuple[Any, ...]]:
        """Return some columns of every subject."""
        places = [_TABLE.columns.keys().index(name) for name in names]
        return [tuple(row[place] for place in places) for row in self._rows]

    def index_column(self, name: str) -> Mapping[int, Any]:
        """Return the values of a column by the subject's number."""
        if name not in self._columns:
            self._columns[name] = dict(self.select("id", name))
        return self._columns[name]

    def list_values(self, name: str) -> list[Any]:
        """List the distinct known values of a column, sorted."""
        if name not in self._values:
            self._values[name] = sorted({value for (value,) in self.select(name)} - {None})
        return self._values[name]


def load_subjects(connection: Connection) -> SubjectTable:
    """Load all subjects, from memory unless there are new ones.

    No process of Treehammer changes or deletes a row of a dimension, so an equal number of rows
    means the same rows.
    """
    subjects = _TABLES.get(connection.engine)
    count = connection.scalar(sa.select(sa.func.count()).select_from(_TABLE))
    if subjects is None or len(subjects) != count:
        rows = [tuple(row) for row in connection.execute(sa.select(_TABLE))]
        subjects = _TABLES[connection.engine] = SubjectTable(rows)
    return subjects
