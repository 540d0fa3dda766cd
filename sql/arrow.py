"""Measurements as Arrow record batches, whose schema comes from the catalogue alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from treehammer.collectors.metrics import CATALOGUE, Value
from treehammer.sql.queries import ALL_COLUMNS, Snapshot
from treehammer.sql.rows import ExtraRow
from treehammer.sql.selection import Selection

#: Rows of one record batch: about 100 MB of memory while it is made; larger ones are no faster.
ROWS = 5_000
#: What comes before the names of metrics that tests defined.
EXTRA_PREFIX = "extra_"

_TYPES: dict[str, pa.DataType] = {
    "int": pa.int64(),
    "float": pa.float64(),
    "text": pa.string(),
    "bool": pa.bool_(),
    "ints": pa.list_(pa.int64()),
    "floats": pa.list_(pa.float64()),
}
_ID_PLACE = ALL_COLUMNS.index("measurement_id")


@dataclass(frozen=True)
class Table:
    """The columns of an export; ``schema`` carries each one's kind and meaning as metadata."""

    schema: pa.Schema
    extra_names: tuple[str, ...]

    def batches(self, snapshot: Snapshot, selection: Selection) -> Iterator[pa.RecordBatch]:
        """The selected measurements, at most :data:`ROWS` at a time."""
        extras = _Extras(snapshot.extras(selection))
        for rows in snapshot.batches(selection, size=ROWS):
            columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
            columns += extras.columns([row[_ID_PLACE] for row in rows], self.extra_names)
            arrays = [
                pa.array(column, field.type)
                for column, field in zip(columns, self.schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def describe(extra_names: Sequence[str], about: dict[str, str]) -> Table:
    """The table with every catalogue column and one for each of ``extra_names``.

    Args:
        extra_names: names of metrics that tests defined.
        about: what the export says of itself.
    """
    fields = [
        _field(m.name, m.type, f"{m.meaning} [{m.unit}]" if m.unit else m.meaning)
        for m in CATALOGUE
    ]
    fields += [
        _field(EXTRA_PREFIX + name, "float", f"Metric {name} that the test defines.")
        for name in extra_names
    ]
    return Table(pa.schema(fields, metadata=about), tuple(extra_names))


def lists_as_text(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with its lists written as JSON, for formats that have none."""
    arrays = [
        pa.array([None if x is None else json.dumps(x) for x in column.to_pylist()], pa.string())
        if pa.types.is_list(column.type)
        else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def without_lists(schema: pa.Schema) -> pa.Schema:
    """The schema that :func:`lists_as_text` needs."""
    return pa.schema(
        [
            field.with_type(pa.string()) if pa.types.is_list(field.type) else field
            for field in schema
        ],
        metadata=schema.metadata,
    )


def _field(name: str, kind: str, title: str) -> pa.Field:
    return pa.field(name, _TYPES[kind], metadata={"kind": kind, "title": title})


class _Extras:
    """Joins the stream of extras to batches of measurements, which come in the same order."""

    def __init__(self, extras: Iterator[ExtraRow]) -> None:
        self._extras = extras
        self._next = next(extras, None)

    def columns(self, ids: Sequence[Value], names: Sequence[str]) -> list[list[float | None]]:
        places = {id_: place for place, id_ in enumerate(ids)}
        columns: dict[str, list[float | None]] = {name: [None] * len(ids) for name in names}
        while self._next is not None and self._next.measurement_id in places:
            columns[self._next.name][places[self._next.measurement_id]] = self._next.value
            self._next = next(self._extras, None)
        return list(columns.values())
