"""Measurements in bulk: Arrow record batches, read by a child process.

Converting a million measurements to Python objects costs seven times as much as reading them.  The
child has a driver that fills Arrow's columns in C; why it is a child stands in
:mod:`treehammer.sql.arrow.stream_process`.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import IO, Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import URL

from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.errors import StoreError
from treehammer.sql.arrow import arrow_schema, row_stream
from treehammer.sql.arrow.adbc_drivers import BACKENDS, SqlStatement
from treehammer.sql.arrow.stream_process import COUNT_KEY, READER_GONE, StreamRequest
from treehammer.sql.core.column_names import ALL_COLUMNS, EXTRA_PREFIX, stored_columns
from treehammer.sql.engine.backends.postgresql import libpq_connection_string
from treehammer.sql.engine.database_errors import build_store_error, display_url, sqlite_path
from treehammer.sql.read.measurement_queries import MeasurementQueries
from treehammer.sql.read.measurement_selection import Selection

# An example row, because SQLite's driver takes the type of each column from the first rows, which
# may all be NULL.
_EXAMPLE_LITERALS = {"int": "0", "float": "0.5", "text": "'text'", "bool": "0", "ints": "'[]'"}
_PACKED_EXAMPLE = "x'00'"
SelectQuery = sa.Select[Any] | sa.CompoundSelect[Any]


@dataclass(frozen=True)
class MeasurementStream:
    """The selected measurements: how many, their columns, and the stream of their batches."""

    rows: int
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


@contextmanager
def open_stream(
    url: URL,
    selection: Selection,
    about: Mapping[str, str],
    *,
    columns: Sequence[str] | None = None,
    lists_as_text: bool = False,
) -> Iterator[MeasurementStream]:
    """Read one state of the database.

    Args:
        url: of the database.
        selection: the measurements.
        about: metadata of the schema.
        columns: nothing else is read: names of the catalogue and ``extra_NAME``, in this order; by
            default the catalogue, and all metrics of tests that the measurements have.
        lists_as_text: see :func:`treehammer.sql.arrow.arrow_schema.build_schema`.

    Raises:
        StoreError: the database refuses.
    """
    if url.get_backend_name() not in BACKENDS:
        fetched, _ = _split_columns(columns)
        row_stream_parts = row_stream.open_row_stream(
            url, selection, about, columns, fetched, lists_as_text=lists_as_text
        )
        with row_stream_parts as parts:
            yield MeasurementStream(*parts)
        return
    request = _build_request(url, selection, about, columns, lists_as_text)
    with tempfile.TemporaryFile() as stderr:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "treehammer.sql.arrow.stream_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            with child.stdin, child.stdout:
                _send_request(child.stdin, request)
                try:
                    stream = pa.ipc.open_stream(child.stdout)
                except pa.ArrowInvalid as error:
                    raise _child_error(url, child, stderr, error) from error
                schema = stream.schema
                metadata = dict(schema.metadata)
                rows = int(metadata.pop(COUNT_KEY))
                yield MeasurementStream(
                    rows, schema.with_metadata(metadata), _read_batches(url, child, stream, stderr)
                )
        finally:
            child.kill()
            child.wait()


def _send_request(stdin: IO[bytes], order: StreamRequest) -> None:
    try:
        stdin.write(json.dumps(asdict(order)).encode())
        stdin.close()
    except BrokenPipeError:
        pass  # the child has ended and reported the reason


def _read_batches(
    url: URL, child: subprocess.Popen[bytes], stream: pa.RecordBatchReader, stderr: IO[bytes]
) -> Iterator[pa.RecordBatch]:
    try:
        yield from stream
    except (pa.ArrowInvalid, OSError) as error:
        raise _child_error(url, child, stderr, error) from error
    if code := child.wait():
        raise _child_error(url, child, stderr, f"exit code {code}")


def _child_error(
    url: URL, child: subprocess.Popen[bytes], stderr: IO[bytes], fallback: object
) -> StoreError:
    """Return the child's error message, or else the reason why reading failed."""
    assert child.stdout is not None
    child.stdout.close()  # otherwise each process would wait for the other
    child.wait()
    stderr.seek(0)
    lines = stderr.read().decode(errors="replace").splitlines()
    reason = next((line.strip() for line in reversed(lines) if line.strip()), READER_GONE)
    return build_store_error(url, str(fallback) if reason == READER_GONE else reason)


def _build_request(
    url: URL,
    selection: Selection,
    about: Mapping[str, str],
    columns: Sequence[str] | None,
    lists_as_text: bool,
) -> StreamRequest:
    backend = url.get_backend_name()
    file = sqlite_path(url)
    if backend == "sqlite" and file is None:
        raise StoreError(
            "exports cannot read from SQLite in memory", where=display_url(url), hint="Use a file."
        )
    queries = MeasurementQueries(selection, backend)
    compile_for = _compile_for_sqlite if file else _compile_for_postgresql
    compile_statement = functools.partial(compile_for, dialect=url.get_dialect()())
    fetched, extras = _split_columns(columns)
    measurements = _prepend_examples(queries, fetched) if file else queries.measurements(fetched)
    return StreamRequest(
        backend=backend,
        address=str(file.absolute()) if file else libpq_connection_string(url),
        batch_rows=arrow_schema.BATCH_ROWS,
        columns=None if columns is None else [*columns],
        fetched=[*stored_columns(fetched)],
        lists_as_text=lists_as_text,
        metadata=dict(about),
        count=compile_statement(queries.count()),
        names=compile_statement(queries.extra_names()),
        extras=compile_statement(queries.extras(extras)),
        measurements=compile_statement(measurements),
    )


def _split_columns(columns: Sequence[str] | None) -> tuple[list[str], list[str] | None]:
    """Build the queries for measurements and for metrics of tests; None means all."""
    if columns is None:
        return [*ALL_COLUMNS], None
    fetched = [name for name in columns if name in METRICS_BY_NAME]
    extras = [name.removeprefix(EXTRA_PREFIX) for name in columns if name not in METRICS_BY_NAME]
    if extras and arrow_schema.ID_COLUMN not in fetched:
        fetched.append(arrow_schema.ID_COLUMN)  # extras are joined by it
    return fetched, extras


def _prepend_examples(queries: MeasurementQueries, columns: Sequence[str]) -> SelectQuery:
    literals: list[sa.ColumnClause[Any]] = [
        sa.literal_column(
            _EXAMPLE_LITERALS[METRICS_BY_NAME[name].type]
            if name in METRICS_BY_NAME
            else _PACKED_EXAMPLE
        )
        for name in stored_columns(columns)
    ]
    examples: sa.Select[Any] = sa.select(*literals)
    # A limit, so that SQLite cannot leave out the order, which means nothing outside otherwise.
    ordered = queries.measurements(columns).limit(-1).subquery()
    return sa.union_all(examples, sa.select(ordered))


def _compile_for_sqlite(query: SelectQuery, dialect: sa.Dialect) -> SqlStatement:
    compiled = query.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
    names = compiled.positiontup or ()
    values = (compiled.params[name] for name in names)
    # The driver knows no bool.
    return SqlStatement(str(compiled), tuple(int(v) if isinstance(v, bool) else v for v in values))


def _compile_for_postgresql(query: SelectQuery, dialect: sa.Dialect) -> SqlStatement:
    # It takes a sixth of a second to load, which SQLite's users need not pay.
    from psycopg.sql import Literal

    # COPY takes no parameters: psycopg writes them as literals.
    compiled = query.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
    # In brackets, or the sign of the least whole number would not count as part of it.
    values = {name: f"({Literal(v).as_string()})" for name, v in compiled.params.items()}
    return SqlStatement(str(compiled) % values)
