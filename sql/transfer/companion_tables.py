"""Tables beside the measurements of an export: companions, and operations of load tests.

Companions are campaigns, jobs, attempts, findings of replicas, and instructions.  Without them another
installation could show the measurements, but no campaign.  Pairs and verdicts stay behind: a comparison
makes them anew.

A TTree file holds operations as the tree ``op``, and CSV as a second file; both are flat tables with
one row per step and quantiles of its latencies in seconds. In Parquet they are a nested column of their
measurement, so that one file holds everything and partitions stay as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from itertools import compress, count, islice
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_type_hints

import pyarrow as pa
import sqlalchemy as sa

from treehammer.collectors.record.metric_catalogue import MAX_LONG_TEXT
from treehammer.collectors.record.operation_steps import OPERATION_METRICS, QUANTILES
from treehammer.errors import MeasurementFileError
from treehammer.sql.core.measurement_columns import decode_latency
from treehammer.sql.core.rows import AttemptRow, CampaignRow, InstructionRow, JobRow, ReplicaRow
from treehammer.sql.core.schema import metadata
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer.arrow_columns import (
    ARROW_TYPES,
    ID_COLUMN,
    OPERATIONS_COLUMN,
    ColumnTypeError,
    Problems,
    build_field,
    convert_column,
    list_values,
)
from treehammer.sql.write.store import Store

CompanionRow = CampaignRow | JobRow | AttemptRow | ReplicaRow | InstructionRow
CompanionKind = TypeVar(
    "CompanionKind", CampaignRow, JobRow, AttemptRow, ReplicaRow, InstructionRow
)
#: Name of the table -> its rows, in the order in which they can be written.
COMPANION_KINDS: dict[str, type[CompanionRow]] = {
    "campaign": CampaignRow,
    "job": JobRow,
    "attempt": AttemptRow,
    "replica": ReplicaRow,
    "instruction_count": InstructionRow,
}
#: Jobs whose attempts are read at once.
CHUNK = 2000
_TYPE_NAMES = {int: "int", str: "text", bool: "bool", int | None: "int"}
#: Name of the flat table.
OPERATION_TABLE = "op"
#: Measurements whose operations are in memory at once.
NESTED_ROWS = 100
_BATCH_ROWS = 2000
NESTED_FIELD = pa.field(
    OPERATIONS_COLUMN,
    pa.list_(pa.struct([(metric.name, ARROW_TYPES[metric.type]) for metric in OPERATION_METRICS])),
    metadata={"kind": OPERATIONS_COLUMN, "title": "Operations of a load test by time step."},
)
#: Columns of the flat table that are not part of the record.
UNSTORED_COLUMNS = (ID_COLUMN, "line", *QUANTILES)
_TYPES = {metric.name: metric.type for metric in OPERATION_METRICS}


@dataclass(frozen=True)
class CompanionTable:
    """One table that travels along; text that is not known is '' in it."""

    name: str
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


class ExportSink(Protocol):
    """Destination of exported rows and companion tables."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add measurements."""

    def attach(self, companion: CompanionTable) -> None:
        """Add a table that travels along; after the last measurement."""


#: Begins a file with these columns; it is written in the block, and complete at its end.
OpenSink = Callable[[Path, pa.Schema], AbstractContextManager[ExportSink]]


def companion_schema(name: str) -> pa.Schema:
    """Build the schema of one of :data:`COMPANION_KINDS`."""
    hints = get_type_hints(COMPANION_KINDS[name])
    return pa.schema(
        build_field(field.name, _TYPE_NAMES[hints[field.name]], f"{field.name} of the {name}")
        for field in fields(COMPANION_KINDS[name])
    )


def iter_companion_tables(
    store: Store, campaigns: Collection[str] | None, datasets: Collection[str] | None
) -> Iterator[CompanionTable]:
    """Yield the companion tables; each must be read before the next.

    Args:
        store: its database.
        campaigns: identities; None for all.
        datasets: hashes of those whose replicas and instruction counts are meant; None for all.
    """
    chosen = [row for row in store.campaigns() if campaigns is None or row.id in campaigns]
    chosen.sort(key=lambda row: row.id)
    yield _build_table("campaign", [chosen])
    yield _build_table("job", (store.jobs(row.id) for row in chosen))
    yield _build_table("attempt", _iter_attempts(store, chosen))
    # Tables with a row for each dataset.
    by_dataset: tuple[tuple[str, Sequence[Any]], ...] = (
        ("replica", store.replicas()),
        ("instruction_count", store.instruction_counts()),
    )
    for name, rows in by_dataset:
        selected = [row for row in rows if datasets is None or row.dataset_hash in datasets]
        yield _build_table(name, [selected])


def parse_rows(kind: type[CompanionKind], batch: pa.RecordBatch) -> list[CompanionKind]:
    """Parse the rows of a batch to their dataclass.

    Raises:
        MeasurementFileError: a row has values that do not fit its columns.
    """
    table = next(name for name, table_kind in COMPANION_KINDS.items() if table_kind is kind)
    problems: Problems = defaultdict(list)
    columns = [
        _parse_column(metadata.tables[table].c[name], hint, batch, problems)
        for name, hint in get_type_hints(kind).items()
    ]
    if problems:
        row, reasons = min(problems.items())
        raise MeasurementFileError(f"row {row + 1} of table {table}: {'; '.join(reasons)}")
    return [kind(*values) for values in zip(*columns, strict=True)]


def _parse_column(
    target: sa.Column[Any], hint: Any, batch: pa.RecordBatch, problems: Problems
) -> list[Any]:
    """List the values of one column; those that its target cannot hold go to ``problems``."""
    name = target.key
    try:
        fitted = convert_column(batch.column(name), name, _TYPE_NAMES[hint], problems)
    except (KeyError, ColumnTypeError) as error:
        raise MeasurementFileError(
            f"unexpected value of {name} in table {target.table.name} ({error})"
        ) from error
    values = list_values(fitted, "" if hint is str else None)
    if hint is str:
        length = getattr(target.type, "length", None) or MAX_LONG_TEXT
        invalid = [len(text) > length or "\0" in text for text in values]
    else:
        invalid = [value is None and hint in (int, bool) for value in values]
    for row in compress(count(), invalid):
        problems[row].append(f"{name} cannot be kept")
    return values


def _iter_attempts(store: Store, campaigns: Iterable[CampaignRow]) -> Iterator[list[AttemptRow]]:
    for campaign in campaigns:
        ids = [job.id for job in store.jobs(campaign.id)]
        for start in range(0, len(ids), CHUNK):
            yield store.attempts(ids[start : start + CHUNK])


def _build_table(name: str, chunks: Iterable[Sequence[CompanionRow]]) -> CompanionTable:
    schema = companion_schema(name)
    batches = (_build_batch(schema, chunk) for chunk in chunks if chunk)
    return CompanionTable(name, schema, batches)


def _build_batch(schema: pa.Schema, rows: Sequence[CompanionRow]) -> pa.RecordBatch:
    values: list[dict[str, Any]] = [asdict(row) for row in rows]
    return pa.RecordBatch.from_pylist(values, schema=schema)


def operations_file(target: Path) -> Path:
    """Return the path of the operations beside a CSV file."""
    return target.with_name(f"{target.stem}.operations{target.suffix}")


def build_operation_table(store: Store, selection: Selection) -> CompanionTable:
    """Build the flat table of the selected measurements' operations."""
    return CompanionTable(OPERATION_TABLE, _FLAT_SCHEMA, _iter_flat_batches(store, selection))


def append_operations(store: Store, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch of measurements and append the nested column."""
    for start in range(0, batch.num_rows, NESTED_ROWS):
        chunk = batch.slice(start, NESTED_ROWS)
        ids = chunk.column(ID_COLUMN).to_pylist()
        with store.snapshot() as snapshot:
            operations = snapshot.operations_of(ids)
        lists = [operations.get(id_) for id_ in ids]
        yield chunk.append_column(NESTED_FIELD, pa.array(lists, NESTED_FIELD.type))


def _flat_schema() -> pa.Schema:
    fields = [
        build_field(ID_COLUMN, "text", "Identity of the measurement."),
        build_field("line", "int", "Order of the row in its measurement, from 0."),
        *(
            build_field(m.name, m.type, f"{m.meaning} [{m.unit}]" if m.unit else m.meaning)
            for m in OPERATION_METRICS
        ),
    ]
    for name in QUANTILES:
        title = f"{name.removesuffix('_s')} of the latencies, within 1 % [s]"
        fields.append(build_field(name, "float", title))
    return pa.schema(fields)


_FLAT_SCHEMA = _flat_schema()


def _iter_flat_batches(store: Store, selection: Selection) -> Iterator[pa.RecordBatch]:
    with store.snapshot() as snapshot:
        rows = snapshot.operations(selection)
        while chunk := [
            {**row, **decode_latency(str(row["latency"] or "")).list_quantiles()}
            for row in islice(rows, _BATCH_ROWS)
        ]:
            yield pa.RecordBatch.from_pylist(chunk, schema=_FLAT_SCHEMA)


def convert_operations(batch: pa.RecordBatch) -> pa.StructArray:
    """Convert rows of a flat table to items of the nested column; unfit values become null."""
    problems: Problems = defaultdict(list)
    columns = [
        convert_column(column, name, _TYPES[name], problems).cast(ARROW_TYPES[_TYPES[name]])
        if name in _TYPES
        else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.StructArray.from_arrays(columns, names=batch.schema.names)


class OperationTreeIndex:
    """Rows of a flat table by measurement.

    Of a measurement that recurs, as in merged files, the first rows count.
    """

    def __init__(self) -> None:
        self._rows: dict[str, range] = {}
        self._row = 0
        self._line = 0

    def add_rows(self, ids: Sequence[str], lines: Sequence[int]) -> None:
        """Add the next rows: the measurement and the line of each."""
        for id_, line in zip(ids, lines, strict=True):
            known_range = self._rows.get(id_)
            if known_range is None:
                self._rows[id_] = range(self._row, self._row + 1)
            elif known_range.stop == self._row and line > self._line:
                self._rows[id_] = range(known_range.start, self._row + 1)
            self._line = line
            self._row += 1

    def find_span(self, ids: Sequence[str]) -> range:
        """Return the range that holds all rows of these measurements."""
        rows = [self._rows[id_] for id_ in ids if id_ in self._rows]
        if not rows:
            return range(0)
        return range(
            min(row_range.start for row_range in rows), max(row_range.stop for row_range in rows)
        )

    def nest_rows(self, ids: Sequence[str], span: range, rows: pa.StructArray) -> pa.Array:
        """Build the nested column of these measurements from the rows of their span."""
        indices = [[row - span.start for row in self._rows.get(id_, range(0))] for id_ in ids]
        ends = [0]
        for measurement_rows in indices:
            ends.append(ends[-1] + len(measurement_rows))
        order = pa.array(
            [row for measurement_rows in indices for row in measurement_rows], pa.int64()
        )
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), rows.take(order))
