"""Operations of load tests: their rows beside the measurements, and their roll-ups.

Roll-ups by day, subject and outcome are updated with every measurement. The owner of a roll-up row, a
day and subject, is the unit of a lookup and a rebuild.

Steps in which the load generator was the limit are counted, but enter no figure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.metric_catalogue import INT64_LIMIT, Value
from treehammer.collectors.record.operation_steps import OPERATION_METRICS, LatencyHistogram
from treehammer.collectors.record.outcome import label_outcome
from treehammer.sql.core.measurement_columns import DamagedValueError, decode_latency
from treehammer.sql.core.measurement_sql import outcome_column
from treehammer.sql.core.schema import ROLLUP_COUNTS, measurement, operation, rollup_operation
from treehammer.sql.engine.database_engine import CHUNK_ROWS
from treehammer.sql.read.measurement_queries import OperationRow

#: Keys per lookup and rows per write; an IN list may hold 1000 on Oracle.
CHUNK = 500
#: Day and subject number.
Owner = tuple[int, int]
#: Type of a column -> conversion to the value that a database returns.
_CONVERTERS: Mapping[str, Callable[[Any], Value]] = {
    "text": lambda text: text or None,
    "float": float,
    "int": int,
    "bool": bool,
}
_STEP_COLUMNS = ("side", "operation", "generator_limited", *ROLLUP_COUNTS, "latency")


def describe_key(key: NamedTuple) -> str:
    """Describe the key of a roll-up row: ``day 20260203, subject_id 7, kind timed``."""
    return ", ".join(f"{name} {value}" for name, value in key._asdict().items())


def belongs_to(owner: Owner | None, table: sa.Table) -> sa.ColumnElement[bool]:
    """Select the rows of an owner; all if None."""
    if owner is None:
        return sa.true()
    day, subject_id = owner
    return sa.and_(table.c.day == day, table.c.subject_id == subject_id)


def group_subjects(owners: Iterable[Owner]) -> Iterator[tuple[int, list[int]]]:
    """Group subjects by day, in lists for one query each."""
    subjects: defaultdict[int, set[int]] = defaultdict(set)
    for day, subject_id in owners:
        subjects[day].add(subject_id)
    for day, ids in subjects.items():
        remaining = iter(ids)
        while chunk := list(islice(remaining, CHUNK)):
            yield day, chunk


def select_of_day(table: sa.Table, *columns: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Select rows by the parameters ``day`` and ``subjects``, see :func:`group_subjects`."""
    subject_ids: sa.BindParameter[int] = sa.bindparam("subjects", expanding=True)
    return sa.select(*columns).where(
        table.c.day == sa.bindparam("day"), table.c.subject_id.in_(subject_ids)
    )


def has_key(columns: Iterable[sa.Column[Any]]) -> Iterator[sa.ColumnElement[bool]]:
    """Select the row with the key that :func:`key_parameters` passes."""
    # SET uses the columns' own names for its parameters.
    return (column == sa.bindparam(f"key_{column.name}") for column in columns)


def key_parameters(key: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of :func:`has_key` for a key by column names."""
    return {f"key_{name}": value for name, value in key.items()}


def normalize_operation(row: Mapping[str, Any]) -> OperationRow:
    """Normalize a row as a database does: '' to None, whole numbers to float in float columns."""
    return {metric.name: _CONVERTERS[metric.type](row[metric.name]) for metric in OPERATION_METRICS}


def insert_operations(
    connection: Connection, operations: Mapping[str, Sequence[OperationRow]]
) -> None:
    """Insert the operations of new measurements, by identity."""
    remaining = _number_rows(operations)
    while chunk := list(islice(remaining, CHUNK_ROWS)):
        connection.execute(sa.insert(operation), chunk)


def _number_rows(operations: Mapping[str, Sequence[OperationRow]]) -> Iterator[dict[str, Value]]:
    for id_, rows in operations.items():
        for line, row in enumerate(rows):
            yield {**row, "measurement_id": id_, "line": line}


class OperationRollupKey(NamedTuple):
    """Key of a roll-up row."""

    day: int
    subject_id: int
    outcome: str
    side: str
    operation: str

    @property
    def owner(self) -> Owner:
        """Day and subject."""
        return self.day, self.subject_id


_KEY_COLUMNS = tuple(rollup_operation.c[name] for name in OperationRollupKey._fields)


class _OperationSums:
    """Sums over the steps of one key."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(("steps", "limited_steps", *ROLLUP_COUNTS), 0)
        self.latency = LatencyHistogram()

    @classmethod
    def from_row(cls, row: Mapping[Any, Any]) -> _OperationSums:
        """Read an existing row."""
        sums = cls()
        sums.counts = {name: row[name] for name in sums.counts}
        sums.latency = decode_latency(row["latency"])
        return sums

    def add_step(self, step: Mapping[Any, Any]) -> None:
        if step["generator_limited"]:
            self.counts["limited_steps"] += 1
            return
        self.counts["steps"] += 1
        for name in ROLLUP_COUNTS:
            # Larger sums are not credible, and no database could store them.
            self.counts[name] = min(self.counts[name] + step[name], INT64_LIMIT - 1)
        if step["latency"]:
            self.latency.add(decode_latency(step["latency"]))

    def as_row(self, key: OperationRollupKey) -> dict[str, Any]:
        latency = self.latency.encode() if self.latency.count else None
        return {**key._asdict(), **self.counts, "latency": latency}

    def equals(self, other: _OperationSums) -> bool:
        # Not as text, because releases of zlib compress differently.
        return self.counts == other.counts and [*self.latency.bins()] == [*other.latency.bins()]


_Sums = defaultdict[OperationRollupKey, _OperationSums]

_SELECT_OF_DAY = select_of_day(rollup_operation, *rollup_operation.c)

_DELETE_ROW = sa.delete(rollup_operation).where(*has_key(_KEY_COLUMNS))


def add_to_rollups(
    connection: Connection,
    measured: Iterable[tuple[int, Mapping[str, Any], Sequence[Mapping[str, Any]]]],
) -> None:
    """Add the operations of new measurements inside the write transaction.

    Args:
        connection: connection of the write transaction.
        measured: number of the subject, values and operations of each measurement.
    """
    new: list[tuple[OperationRollupKey, Mapping[str, Any]]] = []
    for subject_id, values, steps in measured:
        outcome = label_outcome(values)
        for step in steps:
            key = (values["day"], subject_id, outcome, step["side"], step["operation"])
            new.append((OperationRollupKey(*key), step))
    stored_sums = _fetch_sums(connection, {key for key, _ in new})
    sums: _Sums = defaultdict(_OperationSums, stored_sums)
    for key, step in new:
        sums[key].add_step(step)
    if stored_sums:
        connection.execute(_DELETE_ROW, [key_parameters(key._asdict()) for key in stored_sums])
    _insert_rows(connection, sums)


def rebuild_rows(connection: Connection, owner: Owner | None) -> None:
    """Rebuild an owner's rows from the operations; all rows if None."""
    connection.execute(sa.delete(rollup_operation).where(belongs_to(owner, rollup_operation)))
    _insert_rows(connection, _sum_operations(connection, belongs_to(owner, measurement)))


def find_difference(connection: Connection) -> str:
    """Describe the first row that differs from the operations; '' if all agree."""
    stored_rows = {}
    with connection.execute(_stream(sa.select(rollup_operation))) as rows:
        for row in rows.mappings():
            stored_rows[_row_key(row)] = row
    for key, sums in _sum_operations(connection, sa.true()).items():
        stored_row = stored_rows.pop(key, None)
        try:
            agrees = stored_row is not None and _OperationSums.from_row(stored_row).equals(sums)
        except DamagedValueError:
            agrees = False
        if not agrees:
            return describe_key(key)
    return describe_key(next(iter(stored_rows))) if stored_rows else ""


def _insert_rows(connection: Connection, sums: _Sums) -> None:
    remaining = iter(sums.items())
    while chunk := [key_sums.as_row(key) for key, key_sums in islice(remaining, CHUNK)]:
        connection.execute(sa.insert(rollup_operation), chunk)


def _fetch_sums(
    connection: Connection, keys: Collection[OperationRollupKey]
) -> dict[OperationRollupKey, _OperationSums]:
    """Fetch the existing rows among these."""
    sums = {}
    for day, subjects in group_subjects(key.owner for key in keys):
        rows = connection.execute(_SELECT_OF_DAY, {"day": day, "subjects": subjects})
        for row in rows.mappings():
            if (key := _row_key(row)) in keys:
                sums[key] = _OperationSums.from_row(row)
    return sums


def _sum_operations(connection: Connection, measured: sa.ColumnElement[bool]) -> _Sums:
    """Sum the operations of these measurements."""
    # Summed here, because databases cannot add histograms.
    columns = [
        measurement.c.day,
        measurement.c.subject_id,
        outcome_column().label("outcome"),
        *(operation.c[name] for name in _STEP_COLUMNS),
    ]
    query = sa.select(*columns).select_from(operation.join(measurement)).where(measured)
    sums: _Sums = defaultdict(_OperationSums)
    with connection.execute(_stream(query)) as rows:
        for row in rows.mappings():
            sums[_row_key(row)].add_step(row)
    return sums


def _stream(query: sa.Select[Any]) -> sa.Select[Any]:
    return query.execution_options(yield_per=CHUNK)


def _row_key(row: Mapping[Any, Any]) -> OperationRollupKey:
    return OperationRollupKey(*(row[name] for name in OperationRollupKey._fields))
