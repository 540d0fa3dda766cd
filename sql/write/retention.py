"""Retention: pruning of bulky columns and of operations by age.

The time steps of a measurement's operations are merged. Metrics, totals and roll-ups stay.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.ext.compiler import compiles

from treehammer.collectors.record.day_numbers import day_to_number
from treehammer.collectors.record.latency_histogram import LatencyHistogram
from treehammer.collectors.record.metric_catalogue import INT64_LIMIT
from treehammer.sql.core.packing import PACKED_COLUMNS, decode_latency
from treehammer.sql.core.schema import ROLLUP_COUNTS, measurement, operation
from treehammer.sql.read.operation_queries import OperationRow, fetch_operations_of
from treehammer.sql.write import rollups
from treehammer.sql.write.operation_recording import insert_operations

#: Prunable category -> column that holds it.
PRUNABLE: Mapping[str, sa.Column[Any]] = {
    "passes": measurement.c.passes,
    "logs": measurement.c.log_excerpt,
}
#: Prunable category of the time steps of operations, which are merged.
OPERATIONS = "operations"
#: Catalogue columns that may be missing although they were recorded.
PRUNED_COLUMNS = (*PACKED_COLUMNS, measurement.c.log_excerpt.name)
#: Columns in which merged rows agree.
_KEY_COLUMNS = ("side", "operation", "server", "generator_limited")
#: Measurements that are merged at once.
_CHUNK = 100


@dataclass(frozen=True)
class PruneResult:
    """Effect of pruning, actual or predicted.

    Attributes:
        category: a key of :data:`PRUNABLE`, or :data:`OPERATIONS`.
        before_day: first day (UTC) that keeps everything.
        measurements: number of affected measurements.
        bytes: pruned size as stored (for texts: characters; for operations: of their histograms
            before they are merged).
    """

    category: str
    before_day: date
    measurements: int
    bytes: int


class _StoredSize(sa.sql.functions.GenericFunction[int]):
    """SQL function: bytes of a packed column, characters of a text."""

    inherit_cache = True
    type = sa.BigInteger()
    name = "length"


@compiles(_StoredSize, "oracle")
def _oracle_size(element: _StoredSize, compiler: Any, **kwargs: Any) -> str:
    # LENGTH does not accept BLOB.
    return f"DBMS_LOB.GETLENGTH({compiler.process(element.clauses, **kwargs)})"


def first_kept_day(days: int, today: date | None = None) -> date:
    """Compute the first day (UTC) of the last ``days``, including today."""
    return (today or datetime.now(UTC).date()) - timedelta(days=days - 1)


def measure_prunable(connection: Connection, category: str, before: date) -> PruneResult:
    """Measure the effect of :func:`prune_day` on all days before ``before``."""
    if category == OPERATIONS:
        return _measure_operations(connection, before)
    column = PRUNABLE[category]
    count, size = connection.execute(
        sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(_StoredSize(column)), 0)).where(
            measurement.c.day < day_to_number(before), column.is_not(None)
        )
    ).one()
    return PruneResult(category, before, int(count), int(size))


def _measure_operations(connection: Connection, before: date) -> PruneResult:
    old = measurement.c.day < day_to_number(before)
    ids = _select_mergeable(old).subquery()
    count = connection.scalar(sa.select(sa.func.count()).select_from(ids)) or 0
    size = connection.scalar(
        sa.select(sa.func.coalesce(sa.func.sum(_StoredSize(operation.c.latency)), 0)).where(
            operation.c.measurement_id.in_(sa.select(ids.c.measurement_id))
        )
    )
    return PruneResult(OPERATIONS, before, count, int(size or 0))


def list_prunable_days(connection: Connection, category: str, before: date) -> list[int]:
    """List the days (YYYYMMDD) with prunable data."""
    day = measurement.c.day
    query = sa.select(day).where(day < day_to_number(before))
    if category == OPERATIONS:
        ids = _select_mergeable(day < day_to_number(before))
        query = query.where(measurement.c.measurement_id.in_(ids))
    else:
        query = query.where(PRUNABLE[category].is_not(None))
    return list(connection.scalars(query.distinct().order_by(day)))


def prune_day(connection: Connection, category: str, day: int) -> None:
    """Prune the measurements of a day inside the write transaction."""
    if category == OPERATIONS:
        _prune_operations(connection, day)
        return
    column = PRUNABLE[category]
    connection.execute(
        sa.update(measurement)
        .where(measurement.c.day == day, column.is_not(None))
        .values({column.name: None})
    )


def merge_steps(rows: Sequence[OperationRow]) -> list[OperationRow]:
    """Merge rows that differ in their time step alone; rows without another stay as they are."""
    groups: dict[tuple[Any, ...], list[OperationRow]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in _KEY_COLUMNS), []).append(row)
    return [steps[0] if len(steps) == 1 else _merge_rows(steps) for steps in groups.values()]


def _merge_rows(rows: Sequence[Mapping[str, Any]]) -> OperationRow:
    seconds = sum(row["step_s"] for row in rows)
    latency = LatencyHistogram.sum(decode_latency(row["latency"]) for row in rows)
    return {
        **rows[0],
        "step": min(row["step"] for row in rows),
        "step_start_us": min(row["step_start_us"] for row in rows),
        "step_s": seconds,
        "clients": max(row["clients"] for row in rows),
        **_sum_counts(rows),
        "lateness_max_s": max(row["lateness_max_s"] for row in rows),
        "generator_cpu": sum(row["generator_cpu"] * row["step_s"] for row in rows) / seconds,
        "failures": _merge_failures(rows),
        "latency": latency.encode() if latency.count else None,
    }


def _sum_counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Sum the counts, limited to the largest integer of a database."""
    return {name: min(sum(row[name] for row in rows), INT64_LIMIT - 1) for name in ROLLUP_COUNTS}


def _merge_failures(rows: Sequence[Mapping[str, Any]]) -> str:
    failures: Counter[str] = Counter()
    for row in rows:
        failures.update(json.loads(row["failures"]))
    return json.dumps(dict(sorted(failures.items())))


def is_merge_of(merged: Sequence[OperationRow], rows: Sequence[OperationRow]) -> bool:
    """Check whether rows that were pruned can come from others."""
    # Histograms are not compared as text, because releases of zlib compress differently.
    return len(merged) < len(rows) and [*map(_decode, merged)] == [*map(_decode, merge_steps(rows))]


def _decode(row: OperationRow) -> dict[str, Any]:
    latency = row["latency"]
    return {**row, "latency": [*decode_latency(str(latency or "")).bins()]}


def _select_mergeable(condition: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Select the identities of measurements with several steps to merge."""
    keys = (operation.c[name] for name in _KEY_COLUMNS)
    several = (
        sa.select(operation.c.measurement_id)
        .join(measurement)
        .where(condition)
        .group_by(operation.c.measurement_id, *keys)
        .having(sa.func.count() > 1)
    )
    return sa.select(several.subquery().c.measurement_id).distinct()


def _prune_operations(connection: Connection, day: int) -> None:
    """Merge the steps of a day's measurements inside the write transaction."""
    ids = list(connection.scalars(_select_mergeable(measurement.c.day == day)))
    for start in range(0, len(ids), _CHUNK):
        chunk = ids[start : start + _CHUNK]
        merged = {
            id_: merge_steps(rows) for id_, rows in fetch_operations_of(connection, chunk).items()
        }
        connection.execute(sa.delete(operation).where(operation.c.measurement_id.in_(chunk)))
        insert_operations(connection, merged)
    subjects = sa.select(measurement.c.subject_id).where(measurement.c.day == day).distinct()
    rollups.rebuild_rollups(connection, [(day, id_) for id_ in connection.scalars(subjects)])
