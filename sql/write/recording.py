"""Insertion of measurements, each exactly once regardless of repeated uploads.

Missing rows of dimensions are inserted first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.record.metric_catalogue import CATALOGUE, Value
from treehammer.collectors.record.operation_steps import OPERATION_METRICS
from treehammer.sql.core import measurement_sql
from treehammer.sql.core.measurement_columns import (
    ALL_COLUMNS,
    DIMENSIONS,
    PASSES_COLUMN,
    SUBJECT,
    Dimension,
    normalize_values,
    pack_lists,
    unpack_lists,
)
from treehammer.sql.core.rows import FlagRow
from treehammer.sql.core.schema import dimension_tables, extra, measurement, quality_flag
from treehammer.sql.engine.database_engine import insert_missing_rows, insert_values
from treehammer.sql.read.measurement_queries import (
    OperationRow,
    load_extras_of,
    load_operations_of,
)
from treehammer.sql.write import maintenance, outliers, quality_flags, rollups

#: Measurements that are looked up and inserted together; an IN list may hold 1000 on Oracle.
BATCH_MEASUREMENTS = 500
#: Measurements per transaction. The more share one, the fewer times a row of the roll-ups changes.
TRANSACTION_MEASUREMENTS = 4 * BATCH_MEASUREMENTS


@dataclass(frozen=True)
class AddResult:
    """Counts of new, repeated and conflicting measurements after an insertion.

    ``duplicates`` were already stored with the same content, except for columns removed by retention.
    ``conflicting`` were already stored with different content; the first recorded content stays.
    ``duplicate_ids`` lists their identities, one entry per occurrence.
    """

    new: int
    duplicates: int
    conflicting: tuple[str, ...] = ()
    duplicate_ids: tuple[str, ...] = field(default=(), compare=False, repr=False)


def sum_results(parts: Sequence[AddResult]) -> AddResult:
    """Sum the results of several batches."""
    conflicting = tuple(name for part in parts for name in part.conflicting)
    duplicates = tuple(name for part in parts for name in part.duplicate_ids)
    return AddResult(sum(part.new for part in parts), len(duplicates), conflicting, duplicates)


@dataclass(frozen=True)
class _MeasurementContent:
    """Measurement in the database's representation, for comparing two of one identity.

    ``flags`` are those that came with it. The values leave out the later ones.
    """

    values: dict[str, Any]
    extras: Mapping[str, float]
    operations: Sequence[OperationRow] = ()
    flags: Sequence[FlagRow] = field(default=(), compare=False)


def add_measurements(
    connection: Connection, measurements: Iterable[Measurement], *, dry_run: bool = False
) -> AddResult:
    """Write measurements inside the transaction of ``connection``, or only predict the result."""
    results: list[AddResult] = []
    owners: set[rollups.Owner] = set()
    later_ids: list[str] = []
    copied_flags: dict[str, list[FlagRow]] = {}
    for batch in split_batches(measurements, BATCH_MEASUREMENTS):
        result, new, flags = _compare_with_stored(connection, batch)
        results.append(result)
        copied_flags |= flags
        if new and not dry_run:
            _insert_measurements(connection, new)
            values = [content.values for content in new.values()]
            owners.update((v["day"], v[SUBJECT.key]) for v in values)
            later_ids += [v["measurement_id"] for v in values if v["attempt"] > 1]
    if not dry_run:
        superseded = rollups.find_superseded_owners(connection, later_ids)
        rollups.rebuild_rollups(connection, owners | superseded)
        quality_flags.copy_flags(connection, copied_flags)
        outliers.flag_outliers(connection, owners)
    return sum_results(results)


def split_batches(measurements: Iterable[Measurement], size: int) -> Iterator[list[Measurement]]:
    """Split measurements into lists of at most ``size``."""
    remaining = iter(measurements)
    while batch := list(islice(remaining, size)):
        yield batch


def _compare_with_stored(
    connection: Connection, batch: Sequence[Measurement]
) -> tuple[AddResult, dict[str, _MeasurementContent], dict[str, list[FlagRow]]]:
    """Select the new measurements, and the later flags of known ones that another store set."""
    existing = _load_recorded(connection, [item.id for item in batch])
    new: dict[str, _MeasurementContent] = {}
    copied_flags: dict[str, list[FlagRow]] = {}
    duplicate_ids: list[str] = []
    conflicting: list[str] = []
    for item in batch:
        content = _normalize_content(item)
        before = existing.setdefault(item.id, content)
        if before is content:
            new[item.id] = content
        elif _is_same_content(before, content):
            duplicate_ids.append(item.id)
            if later := [flag for flag in content.flags if flag.is_later]:
                copied_flags[item.id] = later
        else:
            conflicting.append(item.id)
    result = AddResult(len(new), len(duplicate_ids), tuple(conflicting), tuple(duplicate_ids))
    return result, new, copied_flags


def _is_same_content(first: _MeasurementContent, second: _MeasurementContent) -> bool:
    """Compare two contents, ignoring columns that retention removed from either of them."""
    if first == second:
        return True
    if maintenance.is_merge_of(first.operations, second.operations):
        second = replace(second, operations=first.operations)
    elif maintenance.is_merge_of(second.operations, first.operations):
        first = replace(first, operations=second.operations)
    pruned = [n for n in maintenance.PRUNED_COLUMNS if None in (first.values[n], second.values[n])]
    left_out: dict[str, Any] = dict.fromkeys(pruned)
    first, second = (replace(side, values=side.values | left_out) for side in (first, second))
    return first == second


def _normalize_content(item: Measurement) -> _MeasurementContent:
    """Convert a measurement to rows.

    A record without a storage site read that of its own site.
    """
    values = normalize_values(item.values, CATALOGUE)
    flags = quality_flags.make_flags(values)
    values["storage_site"] = values["storage_site"] or values["site"]
    extras = {name: float(value) for name, value in item.extras.items()}
    operations = [normalize_values(row, OPERATION_METRICS) for row in item.operations]
    return _MeasurementContent(values, extras, operations, flags)


def _load_recorded(connection: Connection, ids: Iterable[str]) -> dict[str, _MeasurementContent]:
    id_ = measurement.c.measurement_id
    # Most identities are new: ask the primary key's index first.
    existing_ids = connection.scalars(sa.select(id_).where(id_.in_(list(set(ids))))).all()
    if not existing_ids:
        return {}
    extras = load_extras_of(connection, existing_ids)
    operations = load_operations_of(connection, existing_ids)
    flags = quality_flags.load_flags(connection, existing_ids)
    rows = connection.execute(
        measurement_sql.select_columns(ALL_COLUMNS).where(id_.in_(existing_ids))
    ).mappings()
    return {
        row["measurement_id"]: _MeasurementContent(
            _unpack_row(row, flags.get(row["measurement_id"], ())),
            extras.get(row["measurement_id"], {}),
            operations[row["measurement_id"]],
        )
        for row in rows
    }


def _unpack_row(row: RowMapping, flags: Sequence[FlagRow]) -> dict[str, Value]:
    values = {**row, **unpack_lists(row[PASSES_COLUMN])}
    del values[PASSES_COLUMN]
    values.update(quality_flags.summarize_flags(flag for flag in flags if not flag.is_later))
    # It may have been judged by fewer rules, or other ones.
    quality_flags.make_flags(values)
    return values


def _insert_measurements(connection: Connection, new: Mapping[str, _MeasurementContent]) -> None:
    rows = [content.values for content in new.values()]
    for content in new.values():
        content.values.update(quality_flags.summarize_flags(content.flags))
        content.values[PASSES_COLUMN] = pack_lists(content.values)
    for dimension in DIMENSIONS:
        _insert_dimension(connection, dimension, rows)
    insert_values(connection, measurement, rows)
    extras = (
        {"measurement_id": id_, "name": name, "value": value}
        for id_, content in new.items()
        for name, value in content.extras.items()
    )
    insert_values(connection, extra, extras)
    flags = [flag for content in new.values() for flag in content.flags]
    insert_missing_rows(connection, quality_flag, flags)
    operations = {id_: content.operations for id_, content in new.items() if content.operations}
    maintenance.insert_operations(connection, operations)


def _insert_dimension(
    connection: Connection, dimension: Dimension, rows: Sequence[dict[str, Any]]
) -> None:
    """Insert missing rows of a dimension, and set their ids in the measurements' rows."""
    table = dimension_tables[dimension.name]
    needed: dict[int, dict[str, Any]] = {}
    for row in rows:
        described = dimension.extract_row(row)
        row[dimension.key] = described["id"]
        needed[described["id"]] = described
    ids = connection.scalars(sa.select(table.c.id).where(table.c.id.in_(list(needed))))
    for id_ in ids.all():
        del needed[id_]
    insert_values(connection, table, needed.values())
