"""Operations of load tests in exports.

A TTree file holds them as the tree ``op``, and CSV as a second file; both are flat tables with one
row per step and quantiles of its latencies in seconds. In Parquet they are a nested column of their
measurement, so that one file holds everything and partitions stay as they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa

from treehammer.collectors.record.latency_histogram import QUANTILES
from treehammer.collectors.record.operation_steps import OPERATION_METRICS
from treehammer.sql.arrow.arrow_schema import ARROW_TYPES, ID_COLUMN, build_field
from treehammer.sql.arrow.column_conversion import Problems, convert_column
from treehammer.sql.arrow.measurement_parsing import OPERATIONS_COLUMN
from treehammer.sql.core.packing import decode_latency
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.transfer.companion_tables import CompanionTable
from treehammer.sql.write.store import Store

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


# Import

#: Columns of the flat table that are not part of the record.
UNSTORED_COLUMNS = (ID_COLUMN, "line", *QUANTILES)
_TYPES = {metric.name: metric.type for metric in OPERATION_METRICS}


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
