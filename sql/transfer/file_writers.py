"""Writers of the export formats."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from treehammer.progress import ProgressFactory
from treehammer.sql.transfer.companion_tables import CompanionTable, ExportSink, OpenSink
from treehammer.sql.transfer.operation_table import OPERATION_TABLE, operations_file
from treehammer.sql.transfer.root_export import open_root_writer

#: Prefix of companion tables in a Parquet file's metadata.
COMPANION_PREFIX = "treehammer."
#: Bytes in memory that make one row group: small ones make a large footer and slow queries.
ROW_GROUP_BYTES = 64 * 2**20


@dataclass(frozen=True)
class ExportFormat:
    """How a file is written.

    Attributes:
        writer: takes the cached ROOT environments, the seconds that ROOT may take or None, and the
            factory of progress bars; its files are complete when its block ends.
        lists_as_text: whether it has no lists.
        nests_operations: whether operations are a column of the measurements.
    """

    writer: Callable[[Path, float | None, ProgressFactory], AbstractContextManager[OpenSink]]
    lists_as_text: bool = False
    nests_operations: bool = False


class _CsvWriter:
    """Writes operations to a second file and drops other companion tables."""

    def __init__(self, writer: csv.CSVWriter, file: Path) -> None:
        self._writer = writer
        self._file = file

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def attach(self, companion: CompanionTable) -> None:
        if companion.name == OPERATION_TABLE:
            with csv.CSVWriter(str(operations_file(self._file)), companion.schema) as writer:
                for batch in companion.batches:
                    writer.write_batch(batch)


def shorten_cells(batch: pa.RecordBatch, limit: int | None) -> pa.RecordBatch:
    """Shorten texts beyond ``limit`` characters, of which the last becomes an ellipsis."""
    if limit is None:
        return batch
    columns = [
        _shorten_texts(column, limit) if pa.types.is_string(column.type) else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _shorten_texts(texts: pa.Array, limit: int) -> pa.Array:
    short = pc.binary_join_element_wise(pc.utf8_slice_codeunits(texts, 0, limit - 1), "…", "")
    return pc.if_else(pc.greater(pc.utf8_length(texts), limit), short, texts)


@contextmanager
def _open_csv(file: Path, schema: pa.Schema) -> Iterator[ExportSink]:
    with csv.CSVWriter(str(file), schema) as writer:
        yield _CsvWriter(writer, file)


class _ParquetWriter:
    """Gathers batches to row groups, in which each text is held once."""

    def __init__(self, writer: parquet.ParquetWriter) -> None:
        self._writer = writer
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        short = pa.RecordBatch.from_arrays(
            [_dictionary_encode(column) for column in batch.columns], schema=self._writer.schema
        )
        self._waiting.append(short)
        self._bytes += short.nbytes
        if self._bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            # The writer keeps a dictionary as it is only while it stays the same.
            table = pa.Table.from_batches(self._waiting).unify_dictionaries().combine_chunks()
            self._waiting, self._bytes = [], 0
            self._writer.write_table(table, row_group_size=table.num_rows)

    def attach(self, companion: CompanionTable) -> None:
        packed = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(packed, companion.schema, options=options) as stream:
            for batch in companion.batches:
                stream.write_batch(batch)
        text = base64.b64encode(packed.getvalue())  # readers expect text in metadata
        self._writer.add_key_value_metadata({COMPANION_PREFIX + companion.name: text.decode()})


def _dictionary_encode(column: pa.Array) -> pa.Array:
    return column.dictionary_encode() if pa.types.is_string(column.type) else column


@contextmanager
def _open_parquet(file: Path, schema: pa.Schema) -> Iterator[ExportSink]:
    encoded = pa.dictionary(pa.int32(), pa.string())
    short = [f.with_type(encoded) if pa.types.is_string(f.type) else f for f in schema]
    with parquet.ParquetWriter(
        str(file), pa.schema(short, schema.metadata), compression="zstd", store_schema=False
    ) as writer:
        # Without pyarrow's own schema: readers see plain Parquet types.
        as_read = base64.b64encode(schema.serialize())
        writer.add_key_value_metadata({**schema.metadata, b"ARROW:schema": as_read})
        sink = _ParquetWriter(writer)
        yield sink
        sink.flush()


FORMATS = {
    ".root": ExportFormat(open_root_writer),
    ".csv": ExportFormat(lambda *_: nullcontext(_open_csv), lists_as_text=True),
    ".parquet": ExportFormat(lambda *_: nullcontext(_open_parquet), nests_operations=True),
}
