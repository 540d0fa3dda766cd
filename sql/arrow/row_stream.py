"""Record batches by the store's own queries, for databases without an Arrow driver.

A row costs several times as much as in :mod:`treehammer.sql.arrow.stream_process`, but statements and
types are those of all other parts of Treehammer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pyarrow as pa
from sqlalchemy.engine import URL, Connection

from treehammer.sql.arrow import arrow_schema
from treehammer.sql.arrow.stream_process import ExtraColumns
from treehammer.sql.core.column_names import EXTRA_PREFIX
from treehammer.sql.engine.database_engine import make_engine, read_transaction
from treehammer.sql.read.measurement_queries import DatabaseSnapshot, MeasurementQueries
from treehammer.sql.read.measurement_selection import Selection


@contextmanager
def open_row_stream(
    url: URL,
    selection: Selection,
    about: Mapping[str, str],
    columns: Sequence[str] | None,
    fetched: Sequence[str],
    *,
    lists_as_text: bool,
) -> Iterator[tuple[int, pa.Schema, Iterator[pa.RecordBatch]]]:
    """Read one state of the database; see :func:`treehammer.sql.arrow.arrow_stream.open_stream`.

    Args:
        url: URL of the database.
        selection: the measurements to read.
        about: metadata of the schema.
        columns: of the answer; all when None.
        fetched: the catalogue columns that these need.
        lists_as_text: leave lists as JSON.

    Yields:
        how many measurements there are, their columns, and the stream of their batches.
    """
    engine = make_engine(url)
    try:
        with read_transaction(engine) as connection:
            snapshot = DatabaseSnapshot(connection)
            names = columns or arrow_schema.list_all_columns(snapshot.extra_names(selection))
            schema = arrow_schema.build_schema(names, about, lists_as_text=lists_as_text)
            count = (
                connection.scalar(MeasurementQueries(selection, engine.dialect.name).count()) or 0
            )
            yield count, schema, _read_row_batches(connection, selection, schema, fetched)
    finally:
        engine.dispose()


def _read_row_batches(
    connection: Connection, selection: Selection, schema: pa.Schema, fetched: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    snapshot = DatabaseSnapshot(connection)
    names = [name for name in schema.names if name.startswith(EXTRA_PREFIX)]
    extras = ExtraColumns(snapshot.extras(selection)) if names else None
    rows = snapshot.measurements(selection, fetched)
    while chunk := list(islice(rows, arrow_schema.BATCH_ROWS)):
        columns: dict[str, Sequence[Any]] = {name: [row[name] for row in chunk] for name in fetched}
        if extras:
            columns |= extras.next_columns(
                [str(row[arrow_schema.ID_COLUMN]) for row in chunk], names
            )
        yield pa.record_batch(
            [_build_array(columns[f.name], f.type) for f in schema], schema=schema
        )


def _build_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        values = [_format_numbers(value) if isinstance(value, list) else value for value in values]
    return pa.array(values, kind)


def _format_numbers(numbers: list[Any]) -> str:
    return json.dumps(numbers, separators=(",", ":"), allow_nan=False)
