"""Sends selected measurements as an Arrow stream to standard output: ``python -m …``.

A process of its own, because the ADBC driver that fills Arrow's columns brings an SQLite library with
it: two of them in one process would release each other's locks on the file.  There is one driver for
each kind of database; all rows that it returns come from one state of the database.  Standard input
has the :class:`StreamRequest`, written by :mod:`treehammer.sql.transfer.arrow_stream`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import starmap
from typing import Any, Protocol

import adbc_driver_manager
import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.program_output import open_binary_stdout
from treehammer.sql.core import measurement_columns
from treehammer.sql.core.measurement_columns import EXTRA_PREFIX, PASSES_COLUMN
from treehammer.sql.core.rows import ExtraRow
from treehammer.sql.engine.error_hints import BUSY_SECONDS
from treehammer.sql.transfer.arrow_columns import ID_COLUMN, build_schema, list_all_columns

DriverRow = tuple[Any, ...]


@dataclass(frozen=True)
class SqlStatement:
    """One SELECT and its parameters."""

    sql: str
    parameters: tuple[Any, ...] = ()


class AdbcDriver(Protocol):
    """A connection, inside a transaction that sees one state of the database."""

    def fetch_rows(self, statement: SqlStatement) -> Iterator[DriverRow]:
        """Fetch a few rows."""

    def fetch_concurrently(self, statement: SqlStatement) -> Iterator[DriverRow]:
        """Fetch a stream of rows that may be read while batches are."""

    def fetch_batches(self, statement: SqlStatement, rows: int) -> Iterator[pa.RecordBatch]:
        """Stream batches of limited size in the types of the driver."""


@contextmanager
def _open_sqlite(address: str) -> Iterator[AdbcDriver]:
    from adbc_driver_sqlite import dbapi

    # The connection is one transaction.
    with dbapi.connect(address) as connection:
        with connection.cursor() as cursor:
            cursor.execute(f"PRAGMA busy_timeout={BUSY_SECONDS * 1000:.0f}")
        yield _SqliteDriver(connection)


class _SqliteDriver:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def fetch_rows(self, statement: SqlStatement) -> Iterator[DriverRow]:
        return _stream_rows(self._connection, statement)

    fetch_concurrently = fetch_rows

    def fetch_batches(self, statement: SqlStatement, rows: int) -> Iterator[pa.RecordBatch]:
        """Skip the first row, which only sets the types that the driver guesses from values."""
        from adbc_driver_sqlite import StatementOptions

        with self._connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{StatementOptions.BATCH_ROWS.value: str(rows)})
            cursor.execute(statement.sql, statement.parameters)
            for number, batch in enumerate(cursor.fetch_record_batch()):
                whole = batch if number else batch.slice(1)
                if whole.num_rows:
                    yield whole


@contextmanager
def _open_postgresql(address: str) -> Iterator[AdbcDriver]:
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(address) as connection, dbapi.connect(address) as second:
        for each in (connection, second):
            _execute(each, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        ((state,),) = _stream_rows(connection, SqlStatement("SELECT pg_export_snapshot()"))
        _execute(second, f"SET TRANSACTION SNAPSHOT '{state}'")
        yield _PostgresqlDriver(connection, second)


class _PostgresqlDriver:
    """The driver streams by COPY, of which a connection does one at a time."""

    def __init__(self, connection: Any, second: Any) -> None:
        self._connection = connection
        self._second = second

    def fetch_rows(self, statement: SqlStatement) -> Iterator[DriverRow]:
        return iter([*_stream_rows(self._connection, statement)])

    def fetch_concurrently(self, statement: SqlStatement) -> Iterator[DriverRow]:
        return _stream_rows(self._second, statement)

    def fetch_batches(self, statement: SqlStatement, rows: int) -> Iterator[pa.RecordBatch]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement.sql)
            for batch in cursor.fetch_record_batch():
                for start in range(0, batch.num_rows, rows):
                    yield batch.slice(start, rows)


def _stream_rows(connection: Any, statement: SqlStatement) -> Iterator[DriverRow]:
    with connection.cursor() as cursor:
        # With parameters, even with none of them, PostgreSQL's driver holds the whole answer.
        cursor.execute(statement.sql, statement.parameters or None)
        while row := cursor.fetchone():
            yield row


def _execute(connection: Any, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


_DRIVERS = {"sqlite": _open_sqlite, "postgresql": _open_postgresql}
#: Names of the databases that can be read in bulk, as SQLAlchemy calls them.
BACKENDS = tuple(_DRIVERS)


def open_driver(backend: str, address: str) -> AbstractContextManager[AdbcDriver]:
    """Open a database.

    Args:
        backend: one of :data:`BACKENDS`.
        address: the file of SQLite, the connection string of PostgreSQL.
    """
    return _DRIVERS[backend](address)


#: In the schema's metadata: how many rows will follow.
COUNT_KEY = b"rows"
#: The message if the reader closed the stream.
READER_GONE = "the reader closed the stream"
_NUMBER_LIST_PATTERN = r"^\[[^\[\]\"{}]*\]$"
_QUERY_PATTERN = re.compile(r"\nquery:|query was:", re.IGNORECASE)


@dataclass(frozen=True)
class StreamRequest:
    """A request for a stream of measurements.

    Attributes:
        backend: the kind of database, as SQLAlchemy calls it.
        address: its address; see :func:`treehammer.sql.transfer.stream_process.open_driver`.
        batch_rows: the most rows of one record batch.
        columns: of the stream; None for every column.
        fetched: columns that ``measurements`` gives, as :func:`treehammer.sql.core.measurement_columns.stored_columns` says; the
            identity among them when there are extras.
        lists_as_text: see :func:`treehammer.sql.transfer.arrow_columns.build_schema`.
        metadata: metadata of the export.
        count: one number, how many measurements are selected.
        names: of metrics that tests defined and these measurements have.
        extras: measurement, name and value of these, in the order of the measurements.
        measurements: the fetched columns of measurements.
    """

    backend: str
    address: str
    batch_rows: int
    columns: list[str] | None
    fetched: list[str]
    lists_as_text: bool
    metadata: dict[str, str]
    count: SqlStatement
    names: SqlStatement
    extras: SqlStatement
    measurements: SqlStatement

    @classmethod
    def from_json(cls, text: str) -> StreamRequest:
        """Parse the JSON written by :mod:`treehammer.sql.transfer.arrow_stream`."""
        document = json.loads(text)
        for name in ("count", "names", "extras", "measurements"):
            document[name] = SqlStatement(**document[name])
        return cls(**document)


def main() -> None:
    """Answer the order; leave with a message when the database refuses."""
    order = StreamRequest.from_json(sys.stdin.read())
    try:
        with open_driver(order.backend, order.address) as driver:
            _send_stream(driver, order)
    except BrokenPipeError:
        sys.exit(READER_GONE)
    except (
        adbc_driver_manager.Error,
        pa.ArrowException,
        measurement_columns.DamagedValueError,
        OSError,
    ) as error:
        # The drivers repeat the whole statement.
        sys.exit(" ".join(_QUERY_PATTERN.split(str(error), maxsplit=1)[0].split()))


def _send_stream(driver: AdbcDriver, request: StreamRequest) -> None:
    ((count,),) = driver.fetch_rows(request.count)
    columns = request.columns
    if columns is None:
        columns = _list_columns(driver, request, count)
    names = [name for name in columns if name not in METRICS_BY_NAME]
    schema = build_schema(columns, request.metadata, lists_as_text=request.lists_as_text)
    schema = schema.with_metadata({**schema.metadata, COUNT_KEY: str(count)})
    with open_binary_stdout() as out, pa.ipc.new_stream(out, schema) as stream:
        if not count:
            return
        extra_rows = driver.fetch_concurrently(request.extras) if names else ()
        extras = ExtraColumns(starmap(ExtraRow, extra_rows))
        for batch in driver.fetch_batches(request.measurements, request.batch_rows):
            arrays_by_name: dict[str, Any] = dict(zip(request.fetched, batch.columns, strict=True))
            if PASSES_COLUMN in arrays_by_name:
                arrays_by_name |= _unpack_passes(
                    arrays_by_name[PASSES_COLUMN], as_text=request.lists_as_text
                )
            if names:
                arrays_by_name |= extras.next_columns(arrays_by_name[ID_COLUMN].to_pylist(), names)
            arrays = [_convert_column(arrays_by_name[field.name], field.type) for field in schema]
            stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _list_columns(driver: AdbcDriver, order: StreamRequest, count: int) -> list[str]:
    """List every column, with metrics of tests if measurements are selected."""
    extra_names = driver.fetch_rows(order.names) if count else ()
    return list_all_columns([name for (name,) in extra_names])


def _convert_column(column: Any, target_type: pa.DataType) -> pa.Array:
    """Convert a column of the database, of packed lists or of extras to the type of the export."""
    if not isinstance(column, pa.Array):
        return pa.array(column, target_type)
    if pa.types.is_list(target_type) and not pa.types.is_list(column.type):
        return _parse_lists(column, target_type)
    return column.cast(target_type)


def _unpack_passes(packed: pa.BinaryArray, *, as_text: bool) -> dict[str, pa.Array]:
    """Unpack the lists that share one column of the database."""
    lengths, numbers = measurement_columns.unpack_columns(packed.to_pylist())
    known_lengths = np.maximum(lengths, 0)
    # Numbers come row by row, and in each row list by list.
    owner = np.repeat(
        np.tile(np.arange(len(measurement_columns.PACKED_COLUMNS)), len(lengths)),
        known_lengths.ravel(),
    )
    columns: dict[str, pa.Array] = {}
    for place, name in enumerate(measurement_columns.PACKED_COLUMNS):
        lists = _build_list_array(
            known_lengths[:, place],
            pa.array(numbers[owner == place]),
            unknown=pa.array(lengths[:, place] < 0),
        )
        texts = map(measurement_columns.encode_numbers, lists.to_pylist()) if as_text else None
        columns[name] = lists if texts is None else pa.array(texts, pa.string())
    return columns


def _parse_lists(texts: pa.StringArray, target_type: pa.ListType) -> pa.ListArray:
    """Parse lists of numbers from JSON in the form of :class:`.schema.NumberList`."""
    if pc.any(pc.invert(pc.match_substring_regex(texts, _NUMBER_LIST_PATTERN))).as_py():
        raise measurement_columns.DamagedValueError("no list of numbers")
    parts = pc.split_pattern(pc.utf8_slice_codeunits(texts, 1, -1), ",")
    numbers = parts.flatten()
    # An empty list has one part, which is empty.
    lengths = pc.if_else(pc.equal(texts, "[]"), 0, pc.list_value_length(parts))
    return _build_list_array(
        pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False),
        numbers.filter(pc.not_equal(numbers, "")).cast(target_type.value_type),
        unknown=texts.is_null(),
    )


def _build_list_array(
    lengths: np.ndarray, numbers: pa.Array, *, unknown: pa.BooleanArray
) -> pa.ListArray:
    """Build lists of these lengths from consecutive numbers; null where unknown.

    Arrow up to 25 takes no mask beside offsets that have a validity bitmap, and arrays
    that it computes have one; NumPy's have none.
    """
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype("i4")
    return pa.ListArray.from_arrays(pa.array(ends), numbers, mask=unknown)


class ExtraColumns:
    """Joins the stream of extras to batches of measurements, which come in the same order."""

    def __init__(self, rows: Iterator[ExtraRow]) -> None:
        self._extras = rows
        self._next = next(self._extras, None)

    def next_columns(
        self, ids: Sequence[str], names: Sequence[str]
    ) -> Mapping[str, list[float | None]]:
        """Return the column of each name (with its prefix) for the next measurements."""
        places = {id_: place for place, id_ in enumerate(ids)}
        columns: dict[str, list[float | None]] = {name: [None] * len(ids) for name in names}
        while self._next is not None and self._next.measurement_id in places:
            # A reader may bring more of them than requested.
            if column := columns.get(EXTRA_PREFIX + self._next.name):
                column[places[self._next.measurement_id]] = self._next.value
            self._next = next(self._extras, None)
        return columns


if __name__ == "__main__":
    main()
