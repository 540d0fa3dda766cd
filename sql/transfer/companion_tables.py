"""Companion tables of an export: campaigns, jobs, attempts, findings of replicas, instructions.

Without them another installation could show the measurements, but no campaign.  Pairs and verdicts
stay behind: a comparison makes them anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from itertools import compress, count
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_type_hints

import pyarrow as pa
import sqlalchemy as sa

from treehammer.collectors.record.metric_catalogue import MAX_LONG_TEXT
from treehammer.errors import MeasurementFileError
from treehammer.sql.arrow.arrow_schema import build_field
from treehammer.sql.arrow.column_conversion import ColumnTypeError, Problems, convert_column
from treehammer.sql.arrow.measurement_parsing import list_values
from treehammer.sql.core.rows import AttemptRow, CampaignRow, InstructionRow, JobRow, ReplicaRow
from treehammer.sql.core.schema import metadata
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
