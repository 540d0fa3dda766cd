"""Pruning of operations by age: the time steps of a measurement are merged, and totals stay."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.latency_histogram import LatencyHistogram
from treehammer.collectors.record.metric_catalogue import INT64_LIMIT
from treehammer.sql.core.packing import decode_latency
from treehammer.sql.core.schema import ROLLUP_COUNTS, measurement, operation
from treehammer.sql.read.operation_queries import OperationRow, fetch_operations_of
from treehammer.sql.write import rollups
from treehammer.sql.write.operation_recording import insert_operations

#: Columns in which merged rows agree.
KEY_COLUMNS = ("side", "operation", "server", "generator_limited")
#: Measurements that are merged at once.
CHUNK = 100


def merge_steps(rows: Sequence[OperationRow]) -> list[OperationRow]:
    """Merge rows that differ in their time step alone; rows without another stay as they are."""
    groups: dict[tuple[Any, ...], list[OperationRow]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in KEY_COLUMNS), []).append(row)
    return [some[0] if len(some) == 1 else _merge_rows(some) for some in groups.values()]


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
    """Sum the counts; larger sums than a database holds are invented."""
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


def select_prunable(condition: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Select the identities of measurements with several steps to merge."""
    keys = (operation.c[name] for name in KEY_COLUMNS)
    several = (
        sa.select(operation.c.measurement_id)
        .join(measurement)
        .where(condition)
        .group_by(operation.c.measurement_id, *keys)
        .having(sa.func.count() > 1)
    )
    return sa.select(several.subquery().c.measurement_id).distinct()


def prune_operations(connection: Connection, day: int) -> None:
    """Merge the steps of a day's measurements inside the write transaction."""
    ids = list(connection.scalars(select_prunable(measurement.c.day == day)))
    for start in range(0, len(ids), CHUNK):
        some = ids[start : start + CHUNK]
        merged = {
            id_: merge_steps(rows) for id_, rows in fetch_operations_of(connection, some).items()
        }
        connection.execute(sa.delete(operation).where(operation.c.measurement_id.in_(some)))
        insert_operations(connection, merged)
    subjects = sa.select(measurement.c.subject_id).where(measurement.c.day == day).distinct()
    rollups.rebuild_rollups(connection, [(day, id_) for id_ in connection.scalars(subjects)])
