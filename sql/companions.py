"""What travels with exported measurements: their campaigns, jobs and attempts, findings of replicas.

Without them another installation could show the measurements, but no campaign.  Pairs and verdicts
stay behind: a comparison makes them anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_type_hints

import pyarrow as pa

from treehammer.collectors.record import MAX_LONG_TEXT
from treehammer.errors import FileError
from treehammer.sql.arrow import field_of
from treehammer.sql.columns import Problems, WrongType, fit
from treehammer.sql.rows import AttemptRow, CampaignRow, JobRow, ReplicaRow
from treehammer.sql.schema import metadata
from treehammer.sql.store import Store

Travelling = CampaignRow | JobRow | AttemptRow | ReplicaRow
Kind = TypeVar("Kind", CampaignRow, JobRow, AttemptRow, ReplicaRow)
#: Name of the table -> its rows, in the order in which they can be written.
KINDS: dict[str, type[Travelling]] = {
    "campaign": CampaignRow,
    "job": JobRow,
    "attempt": AttemptRow,
    "replica": ReplicaRow,
}
#: Jobs whose attempts are read at once.
CHUNK = 2000
_KINDS = {int: "int", str: "text", bool: "bool", int | None: "int"}


@dataclass(frozen=True)
class Companion:
    """One table that travels along; text that is not known is '' in it."""

    name: str
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


class Sink(Protocol):
    """What a file is written through."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add measurements."""

    def attach(self, companion: Companion) -> None:
        """Add a table that travels along; after the last measurement."""


#: Begins a file with these columns; it is written in the block, and complete at its end.
Begin = Callable[[Path, pa.Schema], AbstractContextManager[Sink]]


def schema_of(name: str) -> pa.Schema:
    """The columns of one of :data:`KINDS`."""
    hints = get_type_hints(KINDS[name])
    return pa.schema(
        field_of(field.name, _KINDS[hints[field.name]], f"{field.name} of the {name}")
        for field in fields(KINDS[name])
    )


def companions(
    store: Store, campaigns: Collection[str] | None, datasets: Collection[str] | None
) -> Iterator[Companion]:
    """Everything that travels along; each is to be read before the next.

    Args:
        store: where it is.
        campaigns: identities; None for all.
        datasets: hashes of those whose replicas are meant; None for all.
    """
    chosen = [row for row in store.campaigns() if campaigns is None or row.id in campaigns]
    chosen.sort(key=lambda row: row.id)
    found = store.replicas()
    findings = [row for row in found if datasets is None or row.dataset_hash in datasets]
    yield _companion("campaign", [chosen])
    yield _companion("job", (store.jobs(row.id) for row in chosen))
    yield _companion("attempt", _attempts(store, chosen))
    yield _companion("replica", [findings])


def rows_of(kind: type[Kind], batch: pa.RecordBatch) -> list[Kind]:
    """The rows of a batch as their dataclass.

    Raises:
        FileError: one of them is none.
    """
    table = next(name for name, known in KINDS.items() if known is kind)
    problems: Problems = defaultdict(list)
    columns: list[list[Any]] = []
    for name, hint in get_type_hints(kind).items():
        try:
            fitted = fit(batch.column(name), name, _KINDS[hint], problems)
        except (KeyError, WrongType) as error:
            raise FileError(f"{name} of table {table} is not what is expected ({error})") from error
        values = fitted.to_pylist()
        if hint is str:
            values = ["" if value is None else value for value in values]
            length = getattr(metadata.tables[table].c[name].type, "length", None) or MAX_LONG_TEXT
            wrong = [row for row, text in enumerate(values) if len(text) > length or "\0" in text]
        else:
            wrong = [
                row for row, value in enumerate(values) if value is None and hint in (int, bool)
            ]
        for row in wrong:
            problems[row].append(f"{name} cannot be kept")
        columns.append(values)
    if problems:
        row, reasons = min(problems.items())
        raise FileError(f"row {row + 1} of table {table}: {'; '.join(reasons)}")
    return [kind(*values) for values in zip(*columns, strict=True)]


def _attempts(store: Store, campaigns: Iterable[CampaignRow]) -> Iterator[list[AttemptRow]]:
    for campaign in campaigns:
        ids = [job.id for job in store.jobs(campaign.id)]
        for start in range(0, len(ids), CHUNK):
            yield store.attempts(ids[start : start + CHUNK])


def _companion(name: str, chunks: Iterable[Sequence[Travelling]]) -> Companion:
    schema = schema_of(name)
    batches = (_batch(schema, chunk) for chunk in chunks if chunk)
    return Companion(name, schema, batches)


def _batch(schema: pa.Schema, rows: Sequence[Travelling]) -> pa.RecordBatch:
    values: list[dict[str, Any]] = [asdict(row) for row in rows]
    return pa.RecordBatch.from_pylist(values, schema=schema)
