"""Daily operations of load tests by storage site, from roll-ups."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from treehammer.collectors.record.latency_histogram import LatencyHistogram
from treehammer.collectors.record.operation_steps import CLIENT
from treehammer.collectors.record.outcome import Outcome
from treehammer.sql.core.packing import decode_latency
from treehammer.sql.core.schema import (
    dimension_tables,
    rollup_column_names,
    rollup_day,
    rollup_operation,
)
from treehammer.sql.read.reader import ResultsReader

_COUNTS = ("limited_steps", "done", "failed", "latency")


@dataclass(frozen=True)
class OperationDay:
    """One operation of one subject on one day (UTC, YYYYMMDD), as its clients saw it.

    Attributes:
        site: site of the storage.
        day: the day.
        operation: its name.
        limited_steps: time steps left out because the load generator was the limit.
        done: operations that succeeded.
        failed: operations that failed.
        latency: latencies of successful operations.
        round_trip_s: mean round trip to the door; None if unknown.
    """

    site: str
    day: int
    operation: str
    limited_steps: int
    done: int
    failed: int
    latency: LatencyHistogram
    round_trip_s: float | None


def list_operation_days(store: ResultsReader, first: int, last: int) -> list[OperationDay]:
    """List the operations of good measurements from ``first`` to ``last`` (YYYYMMDD)."""
    subject, table = dimension_tables["subject"], rollup_operation.c
    # Measurements from before the storage site was recorded read their own.
    site = sa.func.coalesce(subject.c.storage_site, subject.c.site)
    chosen = sa.and_(
        table.day.between(first, last), table.side == CLIENT, table.outcome == Outcome.GOOD.value
    )
    columns = (table.subject_id, table.day, site, table.operation, *(table[c] for c in _COUNTS))
    query = (
        sa.select(*columns)
        .select_from(rollup_operation.join(subject))
        .where(chosen)
        .order_by(site, table.day, table.operation, table.subject_id)
    )
    count, total, _ = rollup_column_names("door_rtt_s")
    by = (rollup_day.c.subject_id, rollup_day.c.day)
    sums = sa.func.sum(rollup_day.c[total]), sa.func.sum(rollup_day.c[count])
    trips = (
        sa.select(*by, *sums)
        .where(
            rollup_day.c.day.between(first, last),
            rollup_day.c.subject_id.in_(sa.select(table.subject_id).where(chosen)),
            rollup_day.c[count] > 0,
        )
        .group_by(*by)
    )
    with store.connection() as connection:
        rows = connection.execute(query).all()
        round_trips = {
            (subject_id, day): float(seconds) / int(number)
            for subject_id, day, seconds, number in (connection.execute(trips) if rows else ())
        }
    return [
        OperationDay(
            site=storage or "",
            day=int(day),
            operation=operation,
            limited_steps=int(limited),
            done=int(done),
            failed=int(failed),
            latency=decode_latency(latency),
            round_trip_s=round_trips.get((subject_id, day)),
        )
        for subject_id, day, storage, operation, limited, done, failed, latency in rows
    ]
