"""Measurements and the tables beside them as Arrow record batches, and ``treehammer.results``.

All batches of a stream come from one state of the database. Companion tables are campaigns, jobs,
attempts, findings of replicas, and instructions. Without them another installation could show the
measurements, but no campaign. Pairs and verdicts stay behind: a comparison makes them anew.
Operations of load tests are a nested column of their measurement, or a flat table with one row per
step and quantiles of its latencies in seconds.

Python programs call :func:`results` and :func:`result_batches`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields
from itertools import chain, islice
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa

from treehammer import config
from treehammer.collectors.record.latency_histograms import QUANTILES
from treehammer.collectors.record.metric_catalogue import CATALOGUE, METRICS_BY_NAME
from treehammer.collectors.record.operation_steps import OPERATION_METRICS
from treehammer.errors import ConfigError, suggest_word
from treehammer.sql.core.campaign_plan import CampaignPlan
from treehammer.sql.core.measurement_columns import (
    EXTRA_PREFIX,
    PACKED_COLUMNS,
    PASSES_COLUMN,
    decode_latency,
    encode_numbers,
    stored_columns,
    unpack_lists,
)
from treehammer.sql.core.rows import (
    AttemptRow,
    CampaignRow,
    InstructionRow,
    JobRow,
    ReplicaRow,
)
from treehammer.sql.read.measurement_queries import DatabaseSnapshot, load_extras_of
from treehammer.sql.read.query_model import Selection
from treehammer.sql.read.reader import ResultsReader

#: Measurements of one record batch: some MB of memory.
BATCH_ROWS = 2_000
#: Measurements of one record batch with operations, each of which may have thousands.
NESTED_ROWS = 100
#: The column by which extras and operations are joined.
ID_COLUMN = "measurement_id"
#: The nested column of operations, and the name of the flat table.
OPERATIONS_COLUMN, OPERATION_TABLE = "operations", "op"
#: Type of the catalogue -> type of its columns.
ARROW_TYPES: dict[str, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "bool": pa.bool_(),
    "ints": pa.list_(pa.int64()),
    "floats": pa.list_(pa.float64()),
}
CompanionRow = CampaignRow | JobRow | AttemptRow | ReplicaRow | InstructionRow
#: Name of the table -> its rows, in the order in which they can be written.
COMPANION_KINDS: dict[str, type[CompanionRow]] = {
    "campaign": CampaignRow,
    "job": JobRow,
    "attempt": AttemptRow,
    "replica": ReplicaRow,
    "instruction_count": InstructionRow,
}
#: Type of a field in a row -> type of the catalogue.
FIELD_TYPES = {int: "int", str: "text", bool: "bool", int | None: "int", CampaignPlan: "text"}
NESTED_FIELD = pa.field(
    OPERATIONS_COLUMN,
    pa.list_(pa.struct([(metric.name, ARROW_TYPES[metric.type]) for metric in OPERATION_METRICS])),
    metadata={"kind": OPERATIONS_COLUMN, "title": "Operations of a load test by time step."},
)
OneOrMore = str | Iterable[str]


@dataclass(frozen=True)
class RowStream:
    """Rows of a table: its name, its columns, and their batches. Unknown text of companions is ''."""

    name: str
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


# Columns


def build_schema(
    columns: Sequence[str], about: Mapping[str, str], *, lists_as_text: bool
) -> pa.Schema:
    """Build the columns of measurements; metadata state kind and meaning.

    Args:
        columns: names of the catalogue, and :data:`EXTRA_PREFIX` with names of metrics that tests
            defined.
        about: metadata of the export.
        lists_as_text: write lists as JSON, for formats without lists.
    """
    schema_fields = []
    for name in columns:
        title = f"Metric {name.removeprefix(EXTRA_PREFIX)} that the test defines."
        field = _build_field(name, "float", title)
        if metric := METRICS_BY_NAME.get(name):
            field = _build_field(name, metric.type, _describe(metric.meaning, metric.unit))
        if lists_as_text and pa.types.is_list(field.type):
            field = field.with_type(pa.string())
        schema_fields.append(field)
    return pa.schema(schema_fields, metadata=dict(about))


def _build_field(name: str, kind: str, title: str) -> pa.Field:
    return pa.field(name, ARROW_TYPES[kind], metadata={"kind": kind, "title": title})


def _describe(meaning: str, unit: str) -> str:
    return f"{meaning} [{unit}]" if unit else meaning


def companion_schema(name: str) -> pa.Schema:
    """Build the schema of one of :data:`COMPANION_KINDS`."""
    hints = get_type_hints(COMPANION_KINDS[name])
    return pa.schema(
        _build_field(field.name, FIELD_TYPES[hints[field.name]], f"{field.name} of the {name}")
        for field in fields(COMPANION_KINDS[name])
    )


# Streams


def stream_measurements(
    reader: ResultsReader,
    selection: Selection,
    about: Mapping[str, str],
    *,
    columns: Sequence[str] | None = None,
    lists_as_text: bool = False,
    nest_operations: bool = False,
) -> RowStream:
    """Stream the selected measurements.

    Args:
        reader: of one state of the database; see :meth:`.ResultsReader.frozen`.
        selection: the measurements.
        about: metadata of the schema.
        columns: nothing else is read: names of the catalogue and ``extra_NAME``, in this order; by
            default the catalogue, and all metrics of tests that the measurements have.
        lists_as_text: see :func:`build_schema`.
        nest_operations: append the nested column of operations.
    """
    if columns is None:
        with reader.snapshot() as snapshot:
            extras = [EXTRA_PREFIX + name for name in snapshot.extra_names(selection)]
        columns = [*(metric.name for metric in CATALOGUE), *extras]
    schema = build_schema(columns, about, lists_as_text=lists_as_text)
    if nest_operations:
        schema = schema.append(NESTED_FIELD)
    return RowStream("results", schema, _iter_batches(reader, selection, schema))


def _iter_batches(
    reader: ResultsReader, selection: Selection, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    names = dict.fromkeys(filter(METRICS_BY_NAME.__contains__, schema.names))
    extra_names = [name for name in schema.names if name.startswith(EXTRA_PREFIX)]
    if extra_names:
        names[ID_COLUMN] = None
    has_operations = OPERATIONS_COLUMN in schema.names
    with (
        reader.snapshot() as snapshot,
        # Closed before its connection, also if a batch cannot be read.
        closing(snapshot.measurement_rows(selection, [*names])) as rows,
    ):
        while chunk := list(islice(rows, NESTED_ROWS if has_operations else BATCH_ROWS)):
            values = _transpose_rows(chunk, [*names])
            ids = values.get(ID_COLUMN, ())
            if extra_names:
                values |= _load_extra_columns(snapshot, ids, extra_names)
            if has_operations:
                operations = snapshot.operations_of(ids)
                values[OPERATIONS_COLUMN] = [operations.get(id_) for id_ in ids]
            arrays = [_build_array(values[field.name], field) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _transpose_rows(
    rows: Sequence[Sequence[Any]], names: Sequence[str]
) -> dict[str, Sequence[Any]]:
    """Return the columns of stored rows; lists of passes are stored in one."""
    columns = zip(*rows, strict=True)
    values: dict[str, Sequence[Any]] = dict(zip(stored_columns(names), columns, strict=True))
    if packed := values.pop(PASSES_COLUMN, None):
        unpacked = [unpack_lists(value) for value in packed]
        values |= {name: [lists[name] for lists in unpacked] for name in PACKED_COLUMNS}
    return values


def _load_extra_columns(
    snapshot: DatabaseSnapshot, ids: Sequence[str], names: Iterable[str]
) -> dict[str, list[float | None]]:
    """Load columns of metrics that tests define, by their names with the prefix."""
    with snapshot.connection() as connection:
        extras = load_extras_of(connection, ids)
    return {
        name: [extras.get(id_, {}).get(name.removeprefix(EXTRA_PREFIX)) for id_ in ids]
        for name in names
    }


def _build_array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    if pa.types.is_string(field.type) and field.metadata[b"kind"] != b"text":
        values = [encode_numbers(numbers) for numbers in values]
    return pa.array(values, field.type)


def stream_operations(reader: ResultsReader, selection: Selection) -> RowStream:
    """Stream the flat table of the selected measurements' operations."""
    schema = pa.schema(
        [
            _build_field(ID_COLUMN, "text", "Identity of the measurement."),
            _build_field("line", "int", "Order of the row in its measurement, from 0."),
            *(
                _build_field(m.name, m.type, _describe(m.meaning, m.unit))
                for m in OPERATION_METRICS
            ),
            *(
                _build_field(
                    name, "float", f"{name.removesuffix('_s')} of the latencies, within 1 % [s]"
                )
                for name in QUANTILES
            ),
        ]
    )

    def iter_rows() -> Iterator[dict[str, Any]]:
        with reader.snapshot() as snapshot:
            for row in snapshot.operations(selection):
                yield {**row, **decode_latency(str(row["latency"] or "")).list_quantiles()}

    return _stream_rows(OPERATION_TABLE, schema, iter_rows())


def _stream_rows(name: str, schema: pa.Schema, rows: Iterator[Mapping[str, Any]]) -> RowStream:
    chunks = iter(lambda: [*islice(rows, BATCH_ROWS)], [])
    batches = (pa.RecordBatch.from_pylist(chunk, schema=schema) for chunk in chunks)
    return RowStream(name, schema, batches)


def iter_companion_tables(
    reader: ResultsReader, campaigns: Collection[str] | None, datasets: Collection[str] | None
) -> Iterator[RowStream]:
    """Yield the companion tables; each must be read before the next.

    Args:
        reader: of the database.
        campaigns: identities; None for all.
        datasets: hashes of those whose replicas and instruction counts are meant; None for all.
    """
    every = {row.id: row for row in reader.campaigns()}
    ids = sorted(every if campaigns is None else every.keys() & {*campaigns})

    def select(rows: Iterable[ReplicaRow | InstructionRow]) -> Iterator[CompanionRow]:
        return (row for row in rows if datasets is None or row.dataset_hash in datasets)

    attempts = (reader.attempts(job.id for job in reader.jobs(id_)) for id_ in ids)
    rows: dict[str, Iterable[CompanionRow]] = {
        "campaign": map(every.__getitem__, ids),
        "job": chain.from_iterable(map(reader.jobs, ids)),
        "attempt": chain.from_iterable(attempts),
        "replica": select(reader.replicas()),
        "instruction_count": select(reader.instruction_counts()),
    }
    for name in COMPANION_KINDS:
        yield _stream_rows(name, companion_schema(name), map(_convert_row, rows[name]))


def _convert_row(row: CompanionRow) -> Mapping[str, Any]:
    """Return the values of a row by column; the plan of a campaign as JSON."""
    values = vars(row)
    return {**values, "plan": values["plan"].to_json()} if isinstance(row, CampaignRow) else values


# Python programs


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
    settings = config.load_settings({"database": database, "data_dir": data_dir})
    with ExitStack() as stack:
        reader = stack.enter_context(ResultsReader.open(settings.database))
        ids = [reader.campaign(reference).id for reference in _split_names("campaign", campaign)]
        if campaign is not None and not ids:
            raise ConfigError(
                "no campaign was given", where="campaign", hint="Name one, or give none for all."
            )
        selection = Selection.parse(ids, _split_names("where", where))
        names = None if columns is None else _split_names("columns", columns)
        if names is not None:
            _require_known_columns(reader, names)
        frozen = stack.enter_context(reader.frozen())
        stream = stream_measurements(frozen, selection, {}, columns=names)
        batches = _iter_until_closed(stream.batches, stack.pop_all())
        next(batches)
    return pa.RecordBatchReader.from_batches(stream.schema, batches)


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


def _iter_until_closed(batches: Iterator[pa.RecordBatch], resources: ExitStack) -> Iterator[Any]:
    """Yield None, then the batches; whoever abandons the iterator afterwards releases the resources."""
    with resources:
        yield None
        yield from batches


def _require_known_columns(reader: ResultsReader, columns: Sequence[str]) -> None:
    if not columns:
        raise ConfigError("no column was given", where="columns", hint="Name one, or give none.")
    with reader.snapshot() as snapshot:
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
