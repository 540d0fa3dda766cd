"""Roll-ups: counts, sums and squares by day and subject, of measurements and of operations.

A page over a year of results reads some thousand of these rows instead of ten million measurements.
Every transaction that adds, changes or deletes measurements rebuilds the rows of their days and
subjects from the measurements; :meth:`.Store.rebuild_rollups` rebuilds all of them in the same way.

Failures that a later attempt of the job made up for are left out. Steps of load tests in which the
load generator was the limit are counted, but enter no figure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.latency_histograms import LatencyHistogram
from treehammer.collectors.record.metric_catalogue import INT64_LIMIT, LATENCY_BINS
from treehammer.collectors.record.operation_steps import CLIENT
from treehammer.collectors.record.outcome import Outcome
from treehammer.sql.core.measurement_columns import decode_latency
from treehammer.sql.core.measurement_sql import (
    HISTOGRAM_COLUMN,
    LATER,
    MAX_CREDIBLE,
    UNKNOWN_KIND,
    is_bad,
    is_repeated_later,
    literal_text,
    outcome_column,
    parse_bins,
)
from treehammer.sql.core.schema import (
    LAST_COLUMNS,
    ROLLUP_COUNTS,
    ROLLUP_METRICS,
    measurement,
    operation,
    rollup_column_names,
    rollup_day,
    rollup_operation,
)
from treehammer.sql.engine.database_engine import insert_values, load_by_ids
from treehammer.sql.read.query_model import is_counted

#: Rows that are fetched at a time.
_FETCH_ROWS = 500
#: Subjects per query; an IN list may hold 1000 on Oracle.
_MAX_SUBJECTS = 500
#: Day and number of a subject, whose rows are rebuilt together.
Owner = tuple[int, int]
#: Condition on the rows of some days and subjects in a table.
_SelectRows = partial[sa.ColumnElement[bool]]

_KEY_NAMES = ("day", "subject_id", "kind", "outcome")
_OPERATION_KEY_NAMES = ("day", "subject_id", "outcome", "side", "operation")
#: Columns of a measurement that :data:`LAST_COLUMNS` hold of the last good one.
_LAST_SOURCES = ("started_us", *LAST_COLUMNS[1:])
_SELECT_MEASUREMENTS = sa.select(
    measurement.c.day,
    measurement.c.subject_id,
    sa.func.coalesce(measurement.c.kind, literal_text(UNKNOWN_KIND)),
    outcome_column(),
    sa.type_coerce(measurement.c[HISTOGRAM_COLUMN], sa.Text),
    *(measurement.c[name] for name in _LAST_SOURCES),
    *(measurement.c[name] for name in ROLLUP_METRICS),
).where(is_counted())
_STEP_COLUMNS = ("side", "operation", "generator_limited", "clients", *ROLLUP_COUNTS, "latency")
_SELECT_OPERATIONS = sa.select(
    measurement.c.day,
    measurement.c.subject_id,
    outcome_column().label("outcome"),
    *(operation.c[name] for name in _STEP_COLUMNS),
).select_from(operation.join(measurement))


def rebuild_rollups(connection: Connection, owners: Iterable[Owner] | None = None) -> None:
    """Rebuild rows from the measurements and their operations, inside the write transaction.

    Args:
        connection: connection of the write transaction.
        owners: days and subject numbers to rebuild; all if None.
    """
    if owners is None:
        for table in (rollup_day, rollup_operation):
            connection.execute(sa.delete(table))
        days = connection.scalars(sa.select(measurement.c.day).distinct()).all()
        chunks: Iterable[_SelectRows] = (partial(_is_of_day, day) for day in days)
    else:
        chunks = _group_subjects(owners)
    for is_selected in chunks:
        for table in (rollup_day, rollup_operation):
            connection.execute(sa.delete(table).where(is_selected(table)))
        insert_values(connection, rollup_day, _sum_measurements(connection, is_selected))
        insert_values(connection, rollup_operation, _sum_operations(connection, is_selected))


def _group_subjects(owners: Iterable[Owner]) -> Iterator[_SelectRows]:
    """Group owners by day, for one query each."""
    subjects: defaultdict[int, set[int]] = defaultdict(set)
    for day, subject_id in owners:
        subjects[day].add(subject_id)
    for day, ids in sorted(subjects.items()):
        ordered = sorted(ids)
        for start in range(0, len(ordered), _MAX_SUBJECTS):
            yield partial(_is_of_day, day, subjects=ordered[start : start + _MAX_SUBJECTS])


def _is_of_day(
    day: int, table: sa.Table, subjects: Sequence[int] | None = None
) -> sa.ColumnElement[bool]:
    """Return the condition that a row is of a day, and of some subjects."""
    if subjects is None:
        return table.c.day == day
    return sa.and_(table.c.day == day, table.c.subject_id.in_(subjects))


def find_superseded_owners(connection: Connection, later_ids: Collection[str]) -> set[Owner]:
    """Find days and subjects of the failures that measurements of later attempts supersede."""
    query = (
        sa.select(measurement.c.day, measurement.c.subject_id)
        .select_from(measurement.join(LATER, is_repeated_later()))
        .where(is_bad())
        .distinct()
    )
    return {*map(tuple, load_by_ids(connection, query, LATER.c.measurement_id, later_ids))}


class _MeasurementSums:
    """Sums over the measurements of one row, and the last one if they are good."""

    def __init__(self) -> None:
        self._measurements = 0
        self._sums: dict[str, list[float]] = {name: [0, 0.0, 0.0] for name in ROLLUP_METRICS}
        self._reads = [0] * LATENCY_BINS
        self._last: tuple[int, ...] = ()

    def add(self, outcome: str, last: Iterable[int], values: Iterable[Any], bins: str) -> None:
        """Add a measurement; databases cannot add the bins of histograms."""
        self._measurements += 1
        for sums, value in zip(self._sums.values(), values, strict=True):
            if value is not None and -MAX_CREDIBLE <= value <= MAX_CREDIBLE:
                real = float(value)
                sums[0] += 1
                sums[1] += real
                sums[2] += real * real
        for place, reads in parse_bins(bins) if bins else ():
            self._reads[place] += reads
        if outcome == Outcome.GOOD:
            self._last = max(self._last, tuple(last))

    def as_row(self, key: Sequence[Any]) -> dict[str, Any]:
        """Return the row; the histogram ends with its last filled bin."""
        filled = max((place for place, reads in enumerate(self._reads) if reads), default=-1)
        row: dict[str, Any] = dict(zip(_KEY_NAMES, key, strict=True))
        row |= {"measurements": self._measurements, HISTOGRAM_COLUMN: self._reads[: filled + 1]}
        row |= dict(zip(LAST_COLUMNS, self._last or [None] * len(LAST_COLUMNS), strict=True))
        for name, sums in self._sums.items():
            row |= dict(zip(rollup_column_names(name), sums, strict=True))
        return row


def _sum_measurements(connection: Connection, is_selected: _SelectRows) -> Iterator[dict[str, Any]]:
    """Sum the measurements of some days and subjects to rows."""
    query = _SELECT_MEASUREMENTS.where(is_selected(measurement))
    sums: defaultdict[tuple[Any, ...], _MeasurementSums] = defaultdict(_MeasurementSums)
    with connection.execute(query.execution_options(yield_per=_FETCH_ROWS)) as rows:
        for day, subject_id, kind, outcome, bins, *values in rows:
            last, metrics = values[: len(LAST_COLUMNS)], values[len(LAST_COLUMNS) :]
            sums[day, subject_id, kind, outcome].add(outcome, last, metrics, bins)
    return (row_sums.as_row(key) for key, row_sums in sums.items())


class _OperationSums:
    """Sums over the steps of one row."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(("steps", "limited_steps", *ROLLUP_COUNTS), 0)
        self._latency = LatencyHistogram()

    def add(self, step: Mapping[Any, Any]) -> None:
        """Add a step; databases cannot add histograms."""
        is_step = step["clients"] > 0 or step["side"] != CLIENT  # and no time of late answers
        if step["generator_limited"]:
            self._counts["limited_steps"] += is_step
            return
        self._counts["steps"] += is_step
        for name in ROLLUP_COUNTS:
            # Larger sums are not credible, and no database could store them.
            self._counts[name] = min(self._counts[name] + step[name], INT64_LIMIT - 1)
        if step["latency"]:
            self._latency.add(decode_latency(step["latency"]))

    def as_row(self, key: Sequence[Any]) -> dict[str, Any]:
        """Return the row."""
        latency = self._latency.encode() if self._latency.count else None
        return {
            **dict(zip(_OPERATION_KEY_NAMES, key, strict=True)),
            **self._counts,
            "latency": latency,
        }


def _sum_operations(connection: Connection, is_selected: _SelectRows) -> Iterator[dict[str, Any]]:
    """Sum the operations of the measurements of some days and subjects to rows."""
    query = _SELECT_OPERATIONS.where(is_selected(measurement))
    sums: defaultdict[tuple[Any, ...], _OperationSums] = defaultdict(_OperationSums)
    with connection.execute(query.execution_options(yield_per=_FETCH_ROWS)) as rows:
        for step in rows.mappings():
            sums[tuple(step[name] for name in _OPERATION_KEY_NAMES)].add(step)
    return (row_sums.as_row(key) for key, row_sums in sums.items())
