"""Insertion of measurements, each exactly once regardless of repeated uploads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.record.metric_catalogue import CATALOGUE, Value
from treehammer.sql.core import measurement_view
from treehammer.sql.core.backends import backend_of
from treehammer.sql.core.column_names import ALL_COLUMNS, PASSES_COLUMN
from treehammer.sql.core.dimensions import SUBJECT
from treehammer.sql.core.packing import pack_lists, unpack_lists
from treehammer.sql.core.schema import extra, measurement
from treehammer.sql.read.operation_queries import OperationRow, fetch_operations_of
from treehammer.sql.write import (
    operation_recording,
    operation_rollups,
    quality_flags,
    retention,
    rollups,
)
from treehammer.sql.write.dimension_rows import DimensionWriter

#: Measurements per transaction; an IN list may hold 1000 on Oracle.
BATCH_MEASUREMENTS = 500

_UNKNOWN_VALUES: dict[str, Value] = dict.fromkeys((metric.name for metric in CATALOGUE), None)
_FLOAT_COLUMNS = frozenset(metric.name for metric in CATALOGUE if metric.type == "float")
_FLOAT_LIST_COLUMNS = frozenset(metric.name for metric in CATALOGUE if metric.type == "floats")

_SELECT_IDS = sa.select(measurement.c.measurement_id).where(
    measurement.c.measurement_id.in_(sa.bindparam("ids", expanding=True))
)

#: Bytes per hash in a fingerprint, and the placeholder of a missing column.
_HASH_BYTES = 8
_PRUNED_HASH = bytes(_HASH_BYTES)


@dataclass(frozen=True)
class AddResult:
    """Counts of new, known and conflicting measurements after an insertion.

    ``known`` were already stored with the same content, except for columns removed by retention.
    ``conflicting`` were already stored with different content; the first recorded content stays.
    ``known_ids`` lists known identities, one entry per occurrence.
    """

    new: int
    known: int
    conflicting: tuple[str, ...] = ()
    known_ids: tuple[str, ...] = field(default=(), compare=False, repr=False)


def sum_results(parts: Iterable[AddResult]) -> AddResult:
    """Sum the results of several batches."""
    new = 0
    known: list[str] = []
    conflicting: list[str] = []
    for part in parts:
        new += part.new
        known += part.known_ids
        conflicting += part.conflicting
    return AddResult(new, len(known), tuple(conflicting), tuple(known))


@dataclass(frozen=True)
class _MeasurementContent:
    """Measurement in the database's representation, for comparing two of one identity."""

    values: Mapping[str, Value]
    extras: Mapping[str, float]
    operations: Sequence[OperationRow] = ()


def add_batch(
    connection: Connection, batch: Sequence[Measurement], dimensions: DimensionWriter | None
) -> AddResult:
    """Write one batch of measurements inside the transaction of ``connection``.

    Without ``dimensions`` the result is only predicted.
    """
    seen = _fetch_recorded(connection, [item.id for item in batch])
    new: dict[str, _MeasurementContent] = {}
    known: list[str] = []
    conflicting: list[str] = []
    marked: dict[str, str] = {}
    for item in batch:
        content = _normalize_content(item)
        handed_in = _without_later_flags(content)
        before = seen.setdefault(item.id, handed_in)
        if before is handed_in:
            new[item.id] = content
        elif _is_same_content(before, handed_in):
            known.append(item.id)
            if handed_in is not content:  # copied from another store, with a later flag
                marked[item.id] = str(content.values["implausible_reasons"])
        else:
            conflicting.append(item.id)
    if dimensions is not None:
        _insert_measurements(connection, new, dimensions)
        quality_flags.copy_flags(connection, marked)
    return AddResult(len(new), len(known), tuple(conflicting), tuple(known))


def _is_same_content(one: _MeasurementContent, other: _MeasurementContent) -> bool:
    """Compare two contents, ignoring columns that retention removed from either of them."""
    if one == other:
        return True
    if retention.is_merge_of(one.operations, other.operations):
        other = replace(other, operations=one.operations)
    elif retention.is_merge_of(other.operations, one.operations):
        one = replace(one, operations=other.operations)
    gone = [n for n in retention.PRUNED_COLUMNS if None in (one.values[n], other.values[n])]
    return _drop_values(one, gone) == _drop_values(other, gone)


def _drop_values(content: _MeasurementContent, names: Iterable[str]) -> _MeasurementContent:
    return replace(content, values={**content.values, **dict.fromkeys(names)})


def fingerprint_content(item: Measurement) -> bytes:
    """Hash the comparable content of a measurement; see :func:`fingerprints_match`.

    One hash covers all permanent columns; each prunable column has its own.
    """
    content = _without_later_flags(_normalize_content(item))
    stays = _drop_values(content, retention.PRUNED_COLUMNS)
    merged = retention.merge_steps(content.operations)
    steps = content.operations if len(merged) < len(content.operations) else None
    goes = (*(content.values[name] for name in retention.PRUNED_COLUMNS), steps)
    whole = [stays.values, stays.extras, merged]
    return _hash_content(whole) + b"".join(map(_hash_content, goes))


def fingerprints_match(one: bytes, other: bytes) -> bool:
    """Compare two fingerprints by the rule of :func:`_is_same_content`."""
    places = range(0, len(one), _HASH_BYTES)
    pairs = ((one[at : at + _HASH_BYTES], other[at : at + _HASH_BYTES]) for at in places)
    return all(a == b or _PRUNED_HASH in (a, b) for a, b in pairs)


def _hash_content(content: Any) -> bytes:
    if content is None:
        return _PRUNED_HASH
    document = json.dumps(content, sort_keys=True)
    return hashlib.sha256(document.encode()).digest()[:_HASH_BYTES]


def _normalize_content(item: Measurement) -> _MeasurementContent:
    """Normalize values as a database does: '' to None, whole numbers to float in float columns.

    Records from before the storage site was recorded read that of their own site.
    """
    kept: dict[str, Any] = {**_UNKNOWN_VALUES, **item.values}
    for name, value in item.values.items():
        kind = type(value)
        if kind is float:
            continue  # as most values
        if kind is str:
            if not value:
                kept[name] = None
        elif kind is int:
            if name in _FLOAT_COLUMNS:
                kept[name] = float(kept[name])
        elif kind is list and name in _FLOAT_LIST_COLUMNS:
            kept[name] = list(map(float, kept[name]))
    kept["storage_site"] = kept["storage_site"] or kept["site"]
    extras = {name: float(value) for name, value in item.extras.items()}
    operations = [operation_recording.normalize_operation(row) for row in item.operations]
    return _MeasurementContent(kept, extras, operations)


def _fetch_recorded(connection: Connection, ids: Iterable[str]) -> dict[str, _MeasurementContent]:
    id_ = measurement.c.measurement_id
    # Most are new, which the key's index alone shows.
    found = backend_of(connection.engine).fetch_rows(
        connection, _SELECT_IDS, {"ids": list(set(ids))}
    )
    known = [row[0] for row in found]
    if not known:
        return {}
    extras: dict[str, dict[str, float]] = {}
    for owner, name, value in connection.execute(
        sa.select(extra.c.measurement_id, extra.c.name, extra.c.value).where(
            extra.c.measurement_id.in_(known)
        )
    ):
        extras.setdefault(owner, {})[name] = value
    operations = fetch_operations_of(connection, known)
    rows = connection.execute(
        measurement_view.select_columns(ALL_COLUMNS).where(id_.in_(known))
    ).mappings()
    return {
        row["measurement_id"]: _without_later_flags(
            _MeasurementContent(
                _unpack_row(row),
                extras.get(row["measurement_id"], {}),
                operations[row["measurement_id"]],
            )
        )
        for row in rows
    }


def _unpack_row(row: RowMapping) -> dict[str, Value]:
    values = {**row, **unpack_lists(row[PASSES_COLUMN])}
    del values[PASSES_COLUMN]
    return values


def _without_later_flags(content: _MeasurementContent) -> _MeasurementContent:
    """Return the content without flags added after recording."""
    values = content.values
    said = values["implausible_reasons"]
    why = quality_flags.strip_flags(None if said is None else str(said))
    if why == said:
        return content
    unmarked = {**values, "implausible_reasons": why, "plausible": why is None}
    return replace(content, values=unmarked)


def _insert_measurements(
    connection: Connection, new: Mapping[str, _MeasurementContent], dimensions: DimensionWriter
) -> None:
    if not new:
        return
    contents = [content.values for content in new.values()]
    rows: list[dict[str, Any]] = [{**one, PASSES_COLUMN: pack_lists(one)} for one in contents]
    dimensions.set_keys(connection, rows, contents)
    backend_of(connection.engine).insert_rows(connection, measurement, rows)
    rollups.add_to_rollups(connection, rows)
    _insert_extras(connection, new)
    operations = {id_: content.operations for id_, content in new.items() if content.operations}
    if operations:
        operation_recording.insert_operations(connection, operations)
        subjects = (row[SUBJECT.key] for row in rows)
        owners = zip(subjects, new.values(), strict=True)
        operation_rollups.add_to_rollups(
            connection,
            ((subject, one.values, one.operations) for subject, one in owners if one.operations),
        )


def _insert_extras(connection: Connection, new: Mapping[str, _MeasurementContent]) -> None:
    extras = [
        {"measurement_id": id_, "name": name, "value": value}
        for id_, content in new.items()
        for name, value in content.extras.items()
    ]
    if extras:
        backend_of(connection.engine).insert_rows(connection, extra, extras)
