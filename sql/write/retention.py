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
from treehammer.sql.core.schema import measurement

#: Prunable category -> column that holds it.
PRUNABLE: Mapping[str, sa.Column[Any]] = {
    "passes": measurement.c.passes,
    "logs": measurement.c.log_excerpt,
}
#: Catalogue columns that may be missing although they were recorded.
PRUNED_COLUMNS = (*PACKED_COLUMNS, measurement.c.log_excerpt.name)


@dataclass(frozen=True)
class PruneResult:
    """Effect of pruning, actual or predicted.

    Attributes:
        category: a key of :data:`PRUNABLE`.
        before_day: first day (UTC) that keeps everything.
        measurements: number of affected measurements.
        bytes: pruned size as stored (for texts: characters).
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


def measure_prunable(connection: Connection, what: str, before: date) -> PruneResult:
    """Measure the effect of :func:`prune_day` on all days before ``before``."""
    column = PRUNABLE[what]
    count, size = connection.execute(
        sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(_StoredSize(column)), 0)).where(
            measurement.c.day < day_to_number(before), column.is_not(None)
        )
    ).one()
    return PruneResult(what, before, int(count), int(size))


def list_prunable_days(connection: Connection, what: str, before: date) -> list[int]:
    """List the days (YYYYMMDD) with prunable data."""
    day = measurement.c.day
    query = sa.select(day).where(day < day_to_number(before), PRUNABLE[what].is_not(None))
    return list(connection.scalars(query.distinct().order_by(day)))


def prune_day(connection: Connection, what: str, day: int) -> None:
    """Prune the measurements of a day inside the write transaction."""
    column = PRUNABLE[what]
    connection.execute(
        sa.update(measurement)
        .where(measurement.c.day == day, column.is_not(None))
        .values({column.name: None})
    )
