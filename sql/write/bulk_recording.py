"""Many measurements at once, column by column, by the same rules as one by one.

Those that are sound and new for certain are written here.  All others, which are few, go the way of
:mod:`treehammer.sql.write.recording`, row by row: that alone says what is wrong with a measurement, and
whether it is the one that is there already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import sqlalchemy as sa
from numpy.typing import NDArray
from pyarrow import compute as pc
from pyarrow import csv
from sqlalchemy.engine import Connection

from treehammer.collectors.job_spec import EXECUTION_KINDS
from treehammer.collectors.record.failures import FAILURE_CLASSES
from treehammer.collectors.record.measurement_record import (
    IDENTITY_METRICS,
    RECORD_VERSION,
    Measurement,
    RecordError,
    make_measurement_id,
    max_length,
)
from treehammer.collectors.record.metric_catalogue import CATALOGUE, METRICS_BY_NAME
from treehammer.sql.arrow.column_conversion import BoolArray, Problems, to_mask
from treehammer.sql.core import day_numbers, packing
from treehammer.sql.core.dimensions import DIMENSIONS, SUBJECT, Dimension
from treehammer.sql.core.measurement_view import EXTRA_PREFIX, PASSES_COLUMN
from treehammer.sql.core.metric_sums import HISTOGRAM_COLUMN
from treehammer.sql.core.packing import PACKED_COLUMNS
from treehammer.sql.core.schema import ROLLUP_METRICS, extra, measurement
from treehammer.sql.write import rollups
from treehammer.sql.write.record_consistency import (
    IDENTITY_COLUMNS,
    NON_NEGATIVE_COLUMNS,
    POSITIVE_COLUMNS,
    is_variant,
    require_consistent,
)
from treehammer.sql.write.recording import (
    BATCH_MEASUREMENTS,
    OWN_COLUMNS,
    AddResult,
    add_batch,
    insert_dimension_rows,
    sum_results,
)

#: What roll-ups take of a measurement.
_ROLLUP_COLUMNS = (
    "day",
    "kind",
    "failure_class",
    "failure_kind",
    "plausible",
    HISTOGRAM_COLUMN,
    *ROLLUP_METRICS,
)
_ID_COLUMN = "measurement_id"
# Text that a record must have may be '', which the database and so every file keeps as null.
_REQUIRED_TEXT = [
    m.name for m in CATALOGUE if m.required and m.type == "text" and m.name not in IDENTITY_METRICS
]
_NEVER_NULL = [m.name for m in CATALOGUE if m.required and m.name not in _REQUIRED_TEXT]


def add_table(connection: Connection, batch: pa.RecordBatch, problems: Problems) -> AddResult:
    """Write measurements inside the transaction of ``connection``, which alone may write.

    Args:
        connection: of the writer.
        batch: every catalogue column, and ``extra_NAME`` of metrics that tests define, in the types
            of :mod:`treehammer.sql.arrow.arrow_schema`.
        problems: rows that are not valid, and why; receives those that are found.
    """
    batch = _nullify_empty_text(batch)
    sure = _find_valid_rows(batch)
    sure[list(problems)] = False
    sure &= _find_new_rows(connection, batch.column(_ID_COLUMN), sure)
    others = [int(row) for row in np.flatnonzero(~sure) if row not in problems]
    _insert_measurements(connection, batch.filter(pa.array(sure)))
    measurements = parse_measurements(batch, others, problems)
    rest = (
        measurements[n : n + BATCH_MEASUREMENTS]
        for n in range(0, len(measurements), BATCH_MEASUREMENTS)
    )
    return sum_results(
        [AddResult(int(sure.sum()), 0), *(add_batch(connection, some) for some in rest)]
    )


def parse_measurements(
    batch: pa.RecordBatch, rows: Sequence[int], problems: Problems
) -> list[Measurement]:
    """The valid ones among these rows; why the others are not goes to ``problems``."""
    found = []
    for row, values in zip(rows, batch.take(pa.array(rows, pa.int64())).to_pylist(), strict=True):
        known = {**dict.fromkeys(_REQUIRED_TEXT, ""), **_drop_unknown(values)}
        extras = {
            n.removeprefix(EXTRA_PREFIX): known.pop(n) for n in [*known] if n not in METRICS_BY_NAME
        }
        try:
            measurement = Measurement(known, extras)
            require_consistent(measurement, marked=True)
            found.append(measurement)
        except RecordError as error:
            problems[row].append(str(error))
    return found


def _drop_unknown(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


# What is sound, and new


def _nullify_empty_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        text = pa.types.is_string(column.type) and name not in IDENTITY_METRICS
        empty = text and pc.any(pc.equal(column, "")).as_py()
        null = pa.scalar(None, column.type)
        columns.append(pc.if_else(pc.equal(column, ""), null, column) if empty else column)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _find_valid_rows(batch: pa.RecordBatch) -> BoolArray:
    """The rows that are certainly valid, given the types of their columns."""
    sound = np.ones(batch.num_rows, bool)
    for name in _NEVER_NULL:
        sound &= to_mask(pc.is_valid(batch.column(name)))
    for name in IDENTITY_METRICS:
        sound &= to_mask(pc.not_equal(batch.column(name), ""))
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_string(field.type):
            sound &= _find_storable(column, max_length(METRICS_BY_NAME[field.name]))
    return sound & _find_consistent_rows(batch)


def _find_storable(column: pa.StringArray, limit: int) -> BoolArray:
    fits = np.ones(len(column), bool)
    # Bytes are at least as many as characters.
    if (pc.max(pc.binary_length(column)).as_py() or 0) > limit:
        fits &= to_mask(pc.less_equal(pc.utf8_length(column), limit), unknown=True)
    return fits & ~to_mask(pc.match_substring(column, "\0"))


def _find_consistent_rows(batch: pa.RecordBatch) -> BoolArray:
    """The rows without what :mod:`treehammer.sql.write.record_consistency` names."""
    columns = [batch.column(name).to_pylist() for name in IDENTITY_COLUMNS]
    named = map(make_measurement_id, *columns)
    possible = to_mask(pc.equal(batch.column(_ID_COLUMN), pa.array(named, pa.string())))
    for name in POSITIVE_COLUMNS:
        possible &= to_mask(pc.greater_equal(batch.column(name), 1))
    possible &= to_mask(pc.equal(batch.column("record_version"), RECORD_VERSION))
    possible &= to_mask(pc.is_in(batch.column("kind"), pa.array(EXECUTION_KINDS)))
    failure = batch.column("failure_class")
    possible &= to_mask(pc.or_(pc.is_null(failure), pc.is_in(failure, pa.array(FAILURE_CLASSES))))
    variants = batch.column("variant").dictionary_encode()
    known = [text is not None and is_variant(text) for text in variants.dictionary.to_pylist()]
    possible &= to_mask(pa.array(known, pa.bool_()).take(variants.indices))
    doubted = pc.is_valid(batch.column("implausible_reasons"))
    possible &= ~to_mask(pc.and_kleene(batch.column("plausible"), doubted))
    for name in NON_NEGATIVE_COLUMNS:
        counts = batch.column(name)
        below = np.flatnonzero(pc.less(counts.flatten(), 0))
        possible[pc.list_parent_indices(counts).to_numpy()[below]] = False
    return possible & to_mask(
        pc.equal(batch.column("day"), _day_numbers(batch.column("started_us")))
    )


def _day_numbers(started_us: pa.Int64Array) -> pa.Array:
    """The days on which something began, as the database counts them; null outside of the calendar."""
    since_1970 = pc.fill_null(started_us, -1).to_numpy() // day_numbers.DAY_US
    found, places = np.unique(since_1970, return_inverse=True)
    return pa.array(map(day_numbers.epoch_day_to_number, found.tolist()), pa.int64()).take(
        pa.array(places)
    )


def _find_new_rows(connection: Connection, ids: pa.StringArray, wanted: BoolArray) -> BoolArray:
    """The rows whose identity is neither there nor in an earlier row."""
    column = measurement.c[_ID_COLUMN]
    texts = ids.to_pylist()
    seen: set[str] = set()
    candidates = [texts[row] for row in np.flatnonzero(wanted)]
    for start in range(0, len(candidates), BATCH_MEASUREMENTS):
        query = sa.select(column).where(
            column.in_(set(candidates[start : start + BATCH_MEASUREMENTS]))
        )
        seen.update(connection.scalars(query))
    new = np.zeros(len(ids), bool)
    for row in np.flatnonzero(wanted):
        if texts[row] not in seen:
            seen.add(texts[row])
            new[row] = True
    return new


# Writing


def _insert_measurements(connection: Connection, batch: pa.RecordBatch) -> None:
    if not batch.num_rows:
        return
    columns: dict[str, pa.Array] = {name: batch.column(name) for name in OWN_COLUMNS}
    columns[PASSES_COLUMN] = _pack_passes(batch)
    for dimension in DIMENSIONS:
        columns[dimension.key] = _resolve_dimension_ids(connection, dimension, batch)
    _write_columns(connection, measurement, columns)
    rolled = [batch.column(name).to_pylist() for name in _ROLLUP_COLUMNS]
    rows = (dict(zip(_ROLLUP_COLUMNS, values, strict=True)) for values in zip(*rolled, strict=True))
    rollups.add_to_rollups(connection, zip(columns[SUBJECT.key].to_pylist(), rows, strict=True))
    extras = _collect_extras(batch)
    if len(extras["value"]):
        _write_columns(connection, extra, extras)


def _pack_passes(batch: pa.RecordBatch) -> pa.BinaryArray:
    lists = [batch.column(name) for name in PACKED_COLUMNS]
    lengths = np.stack([_list_lengths(column) for column in lists], axis=1)
    numbers = [column.flatten().to_numpy(zero_copy_only=False) for column in lists]
    return pa.array(packing.pack_columns(lengths, numbers), pa.binary())


def _list_lengths(lists: pa.ListArray) -> NDArray[np.int32]:
    return np.asarray(pc.list_value_length(lists).fill_null(-1).to_numpy(zero_copy_only=False))


def _resolve_dimension_ids(
    connection: Connection, dimension: Dimension, batch: pa.RecordBatch
) -> pa.Array:
    """The number of each row's row in a dimension, which is written where it is not there yet."""
    groups = reduce(
        _refine_groups, map(batch.column, dimension.columns), np.zeros(len(batch), np.int64)
    )
    _, examples, places = np.unique(groups, return_index=True, return_inverse=True)
    of_it = batch.select(list(dimension.columns)).take(pa.array(examples)).to_pylist()
    rows = [dimension.extract_row(values) for values in of_it]
    for start in range(0, len(rows), BATCH_MEASUREMENTS):
        insert_dimension_rows(connection, dimension, rows[start : start + BATCH_MEASUREMENTS])
    return pa.array(np.array([row["id"] for row in rows])[places])


def _refine_groups(groups: NDArray[np.int64], column: pa.Array) -> NDArray[np.int64]:
    """Groups of rows that also have the same value in a column."""
    encoded = column.dictionary_encode(null_encoding="encode")
    different = len(encoded.dictionary)
    if different < 2:
        return groups
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    # Numbered anew, so that they stay small.
    return np.unique(groups * different + codes, return_inverse=True)[1]


def _collect_extras(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    parts: dict[str, list[pa.Array]] = {"measurement_id": [], "name": [], "value": []}
    for field in batch.schema:
        if field.name in METRICS_BY_NAME:
            continue
        column = batch.column(field.name)
        known = column.is_valid()
        parts["value"].append(column.filter(known))
        parts["measurement_id"].append(batch.column(_ID_COLUMN).filter(known))
        name = field.name.removeprefix(EXTRA_PREFIX)
        parts["name"].append(pa.repeat(name, len(parts["value"][-1])))
    empty = {"measurement_id": pa.string(), "name": pa.string(), "value": pa.float64()}
    return {n: pa.concat_arrays([pa.array([], empty[n]), *found]) for n, found in parts.items()}


def _write_columns(
    connection: Connection, table: sa.Table, columns: Mapping[str, pa.Array]
) -> None:
    _WRITERS.get(connection.dialect.name, _insert_generic)(connection, table, columns)


def _insert_generic(
    connection: Connection, table: sa.Table, columns: Mapping[str, pa.Array]
) -> None:
    rows = zip(*(column.to_pylist() for column in columns.values()), strict=True)
    named = [dict(zip(columns, row, strict=True)) for row in rows]
    for start in range(0, len(named), BATCH_MEASUREMENTS):
        connection.execute(sa.insert(table), named[start : start + BATCH_MEASUREMENTS])


def _insert_with_driver(
    connection: Connection, table: sa.Table, columns: Mapping[str, pa.Array]
) -> None:
    """By the driver's own loop over rows."""
    statement = sa.insert(table).compile(dialect=connection.dialect, column_keys=[*columns])
    order = statement.positiontup or ()
    rows = list(zip(*(_python_values(columns[name]) for name in order), strict=True))
    connection.exec_driver_sql(str(statement), rows)


def _python_values(column: pa.Array) -> list[Any]:
    """Values as SQLite's driver takes them."""
    found: list[Any] = column.to_pylist()
    if pa.types.is_list(column.type):
        return [packing.encode_numbers(value) for value in found]
    return found


def _insert_with_copy(
    connection: Connection, table: sa.Table, columns: Mapping[str, pa.Array]
) -> None:
    """By COPY, of text that Arrow writes: nobody else can, so none of the rows is there."""
    from psycopg import sql

    texts = pa.table({name: _copy_text(column) for name, column in columns.items()})
    written = pa.BufferOutputStream()
    csv.write_csv(texts, written, csv.WriteOptions(include_header=False))
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
        sql.Identifier(table.name), sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(statement) as stream:
        stream.write(memoryview(written.getvalue()))


def _copy_text(column: pa.Array) -> pa.Array:
    if pa.types.is_list(column.type):
        return pa.array(map(packing.encode_numbers, column.to_pylist()), pa.string())
    if pa.types.is_binary(column.type):
        hexed = (None if v is None else f"\\x{v.hex()}" for v in column.to_pylist())
        return pa.array(hexed, pa.string())
    return column


_WRITERS = {"postgresql": _insert_with_copy, "sqlite": _insert_with_driver}
