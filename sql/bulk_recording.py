"""Many measurements at once, column by column, by the same rules as one by one.

Those that are sound and new for certain are written here.  All others, which are few, go the way of
:mod:`treehammer.sql.recording`, row by row: that alone says what is wrong with a measurement, and
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

from treehammer.collectors.failures import CLASSES
from treehammer.collectors.job import KINDS
from treehammer.collectors.metrics import BY_NAME, CATALOGUE
from treehammer.collectors.record import (
    IDENTITIES,
    RECORD_VERSION,
    Measurement,
    RecordError,
    max_length,
    measurement_id,
)
from treehammer.sql import days, packing, rollups
from treehammer.sql.columns import Flags, Problems, mask
from treehammer.sql.contradictions import (
    COUNTED,
    COUNTS,
    IDENTIFYING,
    is_variant,
    require_possible,
)
from treehammer.sql.dimensions import DIMENSIONS, SUBJECT, Dimension
from treehammer.sql.packing import PACKED
from treehammer.sql.recording import BATCH, OWN, Added, add_batch, insert_dimension, total
from treehammer.sql.schema import ROLLED, extra, measurement
from treehammer.sql.wide import EXTRA_PREFIX, PASSES

#: What roll-ups take of a measurement.
_ROLLED = ("day", "kind", "failure_class", "failure_kind", "plausible", rollups.HISTOGRAM, *ROLLED)
_ID = "measurement_id"
# Text that a record must have may be '', which the database and so every file keeps as null.
_EMPTY = [m.name for m in CATALOGUE if m.required and m.type == "text" and m.name not in IDENTITIES]
_NEVER_NULL = [m.name for m in CATALOGUE if m.required and m.name not in _EMPTY]


def add_table(connection: Connection, batch: pa.RecordBatch, problems: Problems) -> Added:
    """Write measurements inside the transaction of ``connection``, which alone may write.

    Args:
        connection: of the writer.
        batch: every catalogue column, and ``extra_NAME`` of metrics that tests define, in the types
            of :mod:`treehammer.sql.arrow`.
        problems: rows that are not valid, and why; receives those that are found.
    """
    batch = _without_empty_text(batch)
    sure = _sound(batch)
    sure[list(problems)] = False
    sure &= _new(connection, batch.column(_ID), sure)
    others = [int(row) for row in np.flatnonzero(~sure) if row not in problems]
    _insert(connection, batch.filter(pa.array(sure)))
    measurements = measurements_of(batch, others, problems)
    rest = (measurements[n : n + BATCH] for n in range(0, len(measurements), BATCH))
    return total([Added(int(sure.sum()), 0), *(add_batch(connection, some) for some in rest)])


def measurements_of(
    batch: pa.RecordBatch, rows: Sequence[int], problems: Problems
) -> list[Measurement]:
    """The valid ones among these rows; why the others are not goes to ``problems``."""
    found = []
    for row, values in zip(rows, batch.take(pa.array(rows, pa.int64())).to_pylist(), strict=True):
        known = {**dict.fromkeys(_EMPTY, ""), **_known(values)}
        extras = {n.removeprefix(EXTRA_PREFIX): known.pop(n) for n in [*known] if n not in BY_NAME}
        try:
            measurement = Measurement(known, extras)
            require_possible(measurement, marked=True)
            found.append(measurement)
        except RecordError as error:
            problems[row].append(str(error))
    return found


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


# What is sound, and new


def _without_empty_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        text = pa.types.is_string(column.type) and name not in IDENTITIES
        empty = text and pc.any(pc.equal(column, "")).as_py()
        null = pa.scalar(None, column.type)
        columns.append(pc.if_else(pc.equal(column, ""), null, column) if empty else column)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _sound(batch: pa.RecordBatch) -> Flags:
    """The rows that are certainly valid, given the types of their columns."""
    sound = np.ones(batch.num_rows, bool)
    for name in _NEVER_NULL:
        sound &= mask(pc.is_valid(batch.column(name)))
    for name in IDENTITIES:
        sound &= mask(pc.not_equal(batch.column(name), ""))
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_string(field.type):
            sound &= _storable(column, max_length(BY_NAME[field.name]))
    return sound & _possible(batch)


def _storable(column: pa.StringArray, limit: int) -> Flags:
    fits = np.ones(len(column), bool)
    # Bytes are at least as many as characters.
    if (pc.max(pc.binary_length(column)).as_py() or 0) > limit:
        fits &= mask(pc.less_equal(pc.utf8_length(column), limit), unknown=True)
    return fits & ~mask(pc.match_substring(column, "\0"))


def _possible(batch: pa.RecordBatch) -> Flags:
    """The rows without what :mod:`treehammer.sql.contradictions` names."""
    columns = [batch.column(name).to_pylist() for name in IDENTIFYING]
    named = map(measurement_id, *columns)
    possible = mask(pc.equal(batch.column(_ID), pa.array(named, pa.string())))
    for name in COUNTS:
        possible &= mask(pc.greater_equal(batch.column(name), 1))
    possible &= mask(pc.equal(batch.column("record_version"), RECORD_VERSION))
    possible &= mask(pc.is_in(batch.column("kind"), pa.array(KINDS)))
    failure = batch.column("failure_class")
    possible &= mask(pc.or_(pc.is_null(failure), pc.is_in(failure, pa.array(CLASSES))))
    variants = batch.column("variant").dictionary_encode()
    known = [text is not None and is_variant(text) for text in variants.dictionary.to_pylist()]
    possible &= mask(pa.array(known, pa.bool_()).take(variants.indices))
    doubted = pc.is_valid(batch.column("implausible_why"))
    possible &= ~mask(pc.and_kleene(batch.column("plausible"), doubted))
    for name in COUNTED:
        counts = batch.column(name)
        below = np.flatnonzero(pc.less(counts.flatten(), 0))
        possible[pc.list_parent_indices(counts).to_numpy()[below]] = False
    return possible & mask(pc.equal(batch.column("day"), _days(batch.column("started_us"))))


def _days(started_us: pa.Int64Array) -> pa.Array:
    """The days on which something began, as the database counts them; null outside of the calendar."""
    since_1970 = pc.fill_null(started_us, -1).to_numpy() // days.DAY_US
    found, places = np.unique(since_1970, return_inverse=True)
    return pa.array(map(days.since_1970, found.tolist()), pa.int64()).take(pa.array(places))


def _new(connection: Connection, ids: pa.StringArray, wanted: Flags) -> Flags:
    """The rows whose identity is neither there nor in an earlier row."""
    column = measurement.c[_ID]
    texts = ids.to_pylist()
    seen: set[str] = set()
    candidates = [texts[row] for row in np.flatnonzero(wanted)]
    for start in range(0, len(candidates), BATCH):
        query = sa.select(column).where(column.in_(set(candidates[start : start + BATCH])))
        seen.update(connection.scalars(query))
    new = np.zeros(len(ids), bool)
    for row in np.flatnonzero(wanted):
        if texts[row] not in seen:
            seen.add(texts[row])
            new[row] = True
    return new


# Writing


def _insert(connection: Connection, batch: pa.RecordBatch) -> None:
    if not batch.num_rows:
        return
    columns: dict[str, pa.Array] = {name: batch.column(name) for name in OWN}
    columns[PASSES] = _packed(batch)
    for dimension in DIMENSIONS:
        columns[dimension.key] = _numbers(connection, dimension, batch)
    _write(connection, measurement, columns)
    rolled = [batch.column(name).to_pylist() for name in _ROLLED]
    rows = (dict(zip(_ROLLED, values, strict=True)) for values in zip(*rolled, strict=True))
    rollups.add(connection, zip(columns[SUBJECT.key].to_pylist(), rows, strict=True))
    extras = _extras(batch)
    if len(extras["value"]):
        _write(connection, extra, extras)


def _packed(batch: pa.RecordBatch) -> pa.BinaryArray:
    lists = [batch.column(name) for name in PACKED]
    lengths = np.stack([_lengths(column) for column in lists], axis=1)
    numbers = [column.flatten().to_numpy(zero_copy_only=False) for column in lists]
    return pa.array(packing.pack_columns(lengths, numbers), pa.binary())


def _lengths(lists: pa.ListArray) -> NDArray[np.int32]:
    return np.asarray(pc.list_value_length(lists).fill_null(-1).to_numpy(zero_copy_only=False))


def _numbers(connection: Connection, dimension: Dimension, batch: pa.RecordBatch) -> pa.Array:
    """The number of each row's row in a dimension, which is written where it is not there yet."""
    groups = reduce(_finer, map(batch.column, dimension.columns), np.zeros(len(batch), np.int64))
    _, examples, places = np.unique(groups, return_index=True, return_inverse=True)
    of_it = batch.select(list(dimension.columns)).take(pa.array(examples)).to_pylist()
    rows = [dimension.of(values) for values in of_it]
    for start in range(0, len(rows), BATCH):
        insert_dimension(connection, dimension, rows[start : start + BATCH])
    return pa.array(np.array([row["id"] for row in rows])[places])


def _finer(groups: NDArray[np.int64], column: pa.Array) -> NDArray[np.int64]:
    """Groups of rows that also have the same value in a column."""
    encoded = column.dictionary_encode(null_encoding="encode")
    different = len(encoded.dictionary)
    if different < 2:
        return groups
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    # Numbered anew, so that they stay small.
    return np.unique(groups * different + codes, return_inverse=True)[1]


def _extras(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    parts: dict[str, list[pa.Array]] = {"measurement_id": [], "name": [], "value": []}
    for field in batch.schema:
        if field.name in BY_NAME:
            continue
        column = batch.column(field.name)
        known = column.is_valid()
        parts["value"].append(column.filter(known))
        parts["measurement_id"].append(batch.column(_ID).filter(known))
        name = field.name.removeprefix(EXTRA_PREFIX)
        parts["name"].append(pa.repeat(name, len(parts["value"][-1])))
    empty = {"measurement_id": pa.string(), "name": pa.string(), "value": pa.float64()}
    return {n: pa.concat_arrays([pa.array([], empty[n]), *found]) for n, found in parts.items()}


def _write(connection: Connection, table: sa.Table, columns: Mapping[str, pa.Array]) -> None:
    _WRITERS.get(connection.dialect.name, _insert_plainly)(connection, table, columns)


def _insert_plainly(
    connection: Connection, table: sa.Table, columns: Mapping[str, pa.Array]
) -> None:
    rows = zip(*(column.to_pylist() for column in columns.values()), strict=True)
    named = [dict(zip(columns, row, strict=True)) for row in rows]
    for start in range(0, len(named), BATCH):
        connection.execute(sa.insert(table), named[start : start + BATCH])


def _execute(connection: Connection, table: sa.Table, columns: Mapping[str, pa.Array]) -> None:
    """By the driver's own loop over rows."""
    statement = sa.insert(table).compile(dialect=connection.dialect, column_keys=[*columns])
    order = statement.positiontup or ()
    rows = list(zip(*(_plain(columns[name]) for name in order), strict=True))
    connection.exec_driver_sql(str(statement), rows)


def _plain(column: pa.Array) -> list[Any]:
    """Values as SQLite's driver takes them."""
    found: list[Any] = column.to_pylist()
    if pa.types.is_list(column.type):
        return [packing.as_text(value) for value in found]
    return found


def _copy(connection: Connection, table: sa.Table, columns: Mapping[str, pa.Array]) -> None:
    """By COPY, of text that Arrow writes: nobody else can, so none of the rows is there."""
    from psycopg import sql

    texts = pa.table({name: _as_text(column) for name, column in columns.items()})
    written = pa.BufferOutputStream()
    csv.write_csv(texts, written, csv.WriteOptions(include_header=False))
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
        sql.Identifier(table.name), sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(statement) as stream:
        stream.write(memoryview(written.getvalue()))


def _as_text(column: pa.Array) -> pa.Array:
    if pa.types.is_list(column.type):
        return pa.array(map(packing.as_text, column.to_pylist()), pa.string())
    if pa.types.is_binary(column.type):
        hexed = (None if v is None else f"\\x{v.hex()}" for v in column.to_pylist())
        return pa.array(hexed, pa.string())
    return column


_WRITERS = {"postgresql": _copy, "sqlite": _execute}
