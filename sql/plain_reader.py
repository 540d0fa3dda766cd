"""Measurements in bulk by the store's own questions, for databases without a driver for Arrow.

A row costs several times what it costs in :mod:`treehammer.sql.bulk_reader`; but what is read is what
every other part of Treehammer reads, by the same statements and types.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pyarrow as pa
from sqlalchemy.engine import URL, Connection

from treehammer.sql import arrow, wide
from treehammer.sql.bulk_reader import Extras
from treehammer.sql.database import make_engine, reading
from treehammer.sql.queries import Questions, Snapshot
from treehammer.sql.selection import Selection


@contextmanager
def read(
    url: URL,
    selection: Selection,
    about: Mapping[str, str],
    columns: Sequence[str] | None,
    fetched: Sequence[str],
    *,
    lists_as_text: bool,
) -> Iterator[tuple[int, pa.Schema, Iterator[pa.RecordBatch]]]:
    """Read one state of the database; see :func:`treehammer.sql.bulk.read`.

    Args:
        url: of the database.
        selection: which measurements.
        about: what goes into the schema's metadata.
        columns: of the answer; all when None.
        fetched: the catalogue columns that these need.
        lists_as_text: leave lists as JSON.

    Yields:
        how many measurements there are, their columns, and the stream of their batches.
    """
    engine = make_engine(url)
    try:
        with reading(engine) as connection:
            snapshot = Snapshot(connection)
            names = columns or arrow.every_column(snapshot.extra_names(selection))
            schema = arrow.describe(names, about, lists_as_text=lists_as_text)
            count = connection.scalar(Questions(selection, engine.dialect.name).count()) or 0
            yield count, schema, _batches(connection, selection, schema, fetched)
    finally:
        engine.dispose()


def _batches(
    connection: Connection, selection: Selection, schema: pa.Schema, fetched: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    snapshot = Snapshot(connection)
    names = [name for name in schema.names if name.startswith(wide.EXTRA_PREFIX)]
    extras = Extras(snapshot.extras(selection)) if names else None
    rows = snapshot.measurements(selection, fetched)
    while some := list(islice(rows, arrow.ROWS)):
        found: dict[str, Sequence[Any]] = {name: [row[name] for row in some] for name in fetched}
        if extras:
            found |= extras.columns([str(row[arrow.ID]) for row in some], names)
        yield pa.record_batch([_array(found[f.name], f.type) for f in schema], schema=schema)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        values = [_text(value) if isinstance(value, list) else value for value in values]
    return pa.array(values, kind)


def _text(numbers: list[Any]) -> str:
    return json.dumps(numbers, separators=(",", ":"), allow_nan=False)
