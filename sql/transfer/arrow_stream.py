"""Measurements in bulk: Arrow record batches, read by a child process, and ``treehammer.results``.

Converting a million measurements to Python objects costs seven times as much as reading them.  The
child has a driver that fills Arrow's columns in C; :mod:`treehammer.sql.transfer.stream_process` says
why it is a child.  Databases without an Arrow driver are read by the store's own queries, where a row
costs several times as much.

Python programs call :func:`results` and :func:`result_batches`.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection

from treehammer import config
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.errors import ConfigError, StoreError, suggest_word
from treehammer.sql.core.measurement_columns import ALL_COLUMNS, EXTRA_PREFIX, stored_columns
from treehammer.sql.engine.backend import build_store_error, display_url, sqlite_path
from treehammer.sql.engine.database_engine import make_engine, read_transaction
from treehammer.sql.engine.postgresql_backend import libpq_connection_string
from treehammer.sql.read.measurement_queries import DatabaseSnapshot, MeasurementQueries
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer import arrow_columns
from treehammer.sql.transfer.stream_process import (
    BACKENDS,
    COUNT_KEY,
    READER_GONE,
    ExtraColumns,
    SqlStatement,
    StreamRequest,
)
from treehammer.sql.write.store import Store

# An example row, because SQLite's driver takes the type of each column from the first rows, which
# may all be NULL.
_EXAMPLE_LITERALS = {"int": "0", "float": "0.5", "text": "'text'", "bool": "0", "ints": "'[]'"}
_PACKED_EXAMPLE = "x'00'"
SelectQuery = sa.Select[Any] | sa.CompoundSelect[Any]
OneOrMore = str | Iterable[str]


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
        lists_as_text: see :func:`treehammer.sql.transfer.arrow_columns.build_schema`.

    Raises:
        StoreError: the database refuses.
    """
    if url.get_backend_name() not in BACKENDS:
        fetched, _ = _split_columns(columns)
        row_stream_parts = open_row_stream(
            url, selection, about, columns, fetched, lists_as_text=lists_as_text
        )
        with row_stream_parts as parts:
            yield MeasurementStream(*parts)
        return
    request = _build_request(url, selection, about, columns, lists_as_text)
    with tempfile.TemporaryFile() as stderr:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "treehammer.sql.transfer.stream_process"],
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
        batch_rows=arrow_columns.BATCH_ROWS,
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
    if extras and arrow_columns.ID_COLUMN not in fetched:
        fetched.append(arrow_columns.ID_COLUMN)  # extras are joined by it
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
    """Read one state of the database; see :func:`treehammer.sql.transfer.arrow_stream.open_stream`.

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
            names = columns or arrow_columns.list_all_columns(snapshot.extra_names(selection))
            schema = arrow_columns.build_schema(names, about, lists_as_text=lists_as_text)
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
    while chunk := list(islice(rows, arrow_columns.BATCH_ROWS)):
        columns: dict[str, Sequence[Any]] = {name: [row[name] for row in chunk] for name in fetched}
        if extras:
            columns |= extras.next_columns(
                [str(row[arrow_columns.ID_COLUMN]) for row in chunk], names
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


def results(
    campaign: OneOrMore | None = None,
    where: OneOrMore | None = None,
    columns: OneOrMore | None = None,
    *,
    database: str | None = None,
    data_dir: str | Path | None = None,
) -> pa.Table:
    """Load the selected measurements as one Arrow table, one row each.

    Unknown values are null.  Units and meanings are in the reference, and in the metadata of
    the schema's fields.  Rows come by campaign, job, attempt, round and position.  A
    selection that nothing meets gives a table without rows.

    Args:
        campaign: one or several: their identities, names, a prefix of either, or ``"last"``; of
            all campaigns by default.
        where: one or several conditions such as ``"kind=timed"``, as ``export --where`` takes them;
            all must hold.
        columns: nothing else is read from the database: names of the catalogue, and ``extra_NAME``
            for metrics that tests define; every column by default.
        database: SQLAlchemy URL; by default the setting that ``treehammer config show`` prints.
        data_dir: where ``results.db`` is looked for when no setting names a database.

    Raises:
        ConfigError: a campaign, condition, column or setting is wrong.
        NothingToDoError: there is no database, or no campaign to choose from.
        StoreError: the database refuses.
    """
    reader = result_batches(campaign, where, columns, database=database, data_dir=data_dir)
    with reader as batches:
        return batches.read_all()


def result_batches(
    campaign: OneOrMore | None = None,
    where: OneOrMore | None = None,
    columns: OneOrMore | None = None,
    *,
    database: str | None = None,
    data_dir: str | Path | None = None,
) -> pa.RecordBatchReader:
    """Yield the table of :func:`results` in batches, for more rows than memory holds.

    All come from one state of the database, unaffected by concurrent writes.  Use the reader as a
    context manager, or close it: it holds a connection until then, or until its last batch.
    """
    flags = {"database": database, "data_dir": data_dir}
    settings = config.load_settings(flags)
    with Store.open(settings.database, create=False) as store:
        chosen = [store.campaign(reference).id for reference in _split_names("campaign", campaign)]
        if campaign is not None and not chosen:
            raise ConfigError(
                "no campaign was given", where="campaign", hint="Name one, or give none for all."
            )
        selection = Selection.parse(chosen, _split_names("where", where))
        requested_columns = (
            None
            if columns is None
            else _require_known_columns(store, _split_names("columns", columns))
        )
        with ExitStack() as stack:
            source = stack.enter_context(
                open_stream(store.url, selection, {}, columns=requested_columns)
            )
            open_stack = stack.pop_all()
    return pa.RecordBatchReader.from_batches(
        source.schema, _iter_until_closed(source.batches, open_stack)
    )


def _split_names(name: str, words: OneOrMore | None) -> list[str]:
    """Return the values of an argument without duplicates."""
    if words is None:
        return []
    if not isinstance(words, Iterable):
        raise ConfigError(f"a text is expected, or several, not {words!r}", where=name)
    texts = [words] if isinstance(words, str) else list(words)
    for word in texts:
        if not isinstance(word, str):
            raise ConfigError(f"a text is expected, not {word!r}", where=name)
    return list(dict.fromkeys(texts))


def _iter_until_closed(
    batches: Iterator[pa.RecordBatch], held: ExitStack
) -> Iterator[pa.RecordBatch]:
    with held:
        yield from batches


def _require_known_columns(store: Store, columns: list[str]) -> list[str]:
    if not columns:
        raise ConfigError("no column was given", where="columns", hint="Name one, or give none.")
    with store.snapshot() as snapshot:
        for name in columns:
            extra = name.removeprefix(EXTRA_PREFIX)
            is_known = name in METRICS_BY_NAME or (extra != name and snapshot.has_extra(extra))
            if not is_known:
                extras = (EXTRA_PREFIX + extra for extra in snapshot.extra_names(Selection()))
                raise ConfigError(
                    f"unknown column {name!r}",
                    where="columns",
                    hint=f"{suggest_word(name, [*METRICS_BY_NAME, *extras])}The reference lists every "
                    f"column; metrics that tests define are called {EXTRA_PREFIX}NAME.",
                )
    return columns
