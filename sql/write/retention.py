"""Retention: pruning of bulky columns by age. Metrics and roll-ups stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.ext.compiler import compiles

from treehammer.collectors.record.day_numbers import day_to_number
from treehammer.sql.core.packing import PACKED_COLUMNS
from treehammer.sql.core.schema import measurement, operation
from treehammer.sql.write import operation_pruning

#: Prunable category -> column that holds it.
PRUNABLE: Mapping[str, sa.Column[Any]] = {
    "passes": measurement.c.passes,
    "logs": measurement.c.log_excerpt,
}
#: Prunable category of the time steps of operations, which are merged.
OPERATIONS = "operations"
#: Catalogue columns that may be missing although they were recorded.
PRUNED_COLUMNS = (*PACKED_COLUMNS, measurement.c.log_excerpt.name)


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
    ids = operation_pruning.select_prunable(old).subquery()
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
        ids = operation_pruning.select_prunable(day < day_to_number(before))
        query = query.where(measurement.c.measurement_id.in_(ids))
    else:
        query = query.where(PRUNABLE[category].is_not(None))
    return list(connection.scalars(query.distinct().order_by(day)))


def prune_day(connection: Connection, category: str, day: int) -> None:
    """Prune the measurements of a day inside the write transaction."""
    if category == OPERATIONS:
        operation_pruning.prune_operations(connection, day)
        return
    column = PRUNABLE[category]
    connection.execute(
        sa.update(measurement)
        .where(measurement.c.day == day, column.is_not(None))
        .values({column.name: None})
    )
