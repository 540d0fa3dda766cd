"""Writers of the export formats: CSV, Parquet, and a TTree through a ROOT in Treehammer's cache.

Unknown values in a TTree, as its user info also states: empty for text and lists, NaN for floats, -2^63
for integers, 255 for booleans (UChar_t: 0 or 1). The branch ``looks_unknown`` names columns of a row
whose known value looks like one of these. Companion tables are trees of the same file.

TTree::Draw, RDataFrame and uproot read every value correctly. JSROOT 7.11 turns each byte of a text
into a character, and shows integers far below zero, such as an unknown one, up to 2^32 too high.
"""

from __future__ import annotations

import base64
import functools
import os
import subprocess
import sys
import sysconfig
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet

from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.root_releases import prepare_root
from treehammer.collectors.software import providers
from treehammer.errors import SoftwareError
from treehammer.extensions import ExtensionGroup, load_extension
from treehammer.sql.transfer.arrow_stream import OPERATION_TABLE, RowStream
from treehammer.text_formatting import ProgressFactory, no_progress

TREE_NAME = "results"
TREE_TITLE = (
    "Treehammer measurements; unknown: text and lists empty, float NaN, int -2^63, bool 255"
)
#: Run by its path, so that no other Treehammer on Python's path takes its place.
WRITER_SCRIPT = Path(__file__).with_name("root_writer.py")
#: The branch that names columns whose value is known although it looks unknown.
AMBIGUOUS_ROWS_KEY = "looks_unknown"
NULL_CONVENTIONS: Mapping[str, str] = {
    "unknown_text": "empty",
    "unknown_list": "empty",
    "unknown_float": "NaN",
    "unknown_int": str(-(2**63)),
    "unknown_bool": "255",
}
#: Prefix of companion tables in a Parquet file's metadata, and suffix of their checksums beside them.
COMPANION_PREFIX, CHECKSUM_SUFFIX = "treehammer.", ".crc32"
#: Bytes in memory that make one row group: small ones make a large footer and slow queries.
ROW_GROUP_BYTES = 64 * 2**20


class ExportSink(Protocol):
    """Destination of exported rows and companion tables."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Add measurements."""

    def attach(self, companion: RowStream) -> None:
        """Add a table that travels along; after the last measurement."""


#: Begins a file with these columns; it is written in the block, and complete at its end.
OpenSink = Callable[[Path, pa.Schema], AbstractContextManager[ExportSink]]


@contextmanager
def open_root_writer(
    software_dir: Path, patience_s: float | None = None, bars: ProgressFactory = no_progress
) -> Iterator[OpenSink]:
    """Write ROOT files, one after the other, by one ROOT; they are complete when the block ends.

    Args:
        software_dir: the cached ROOT environments; the newest is used, or made when there is none.
        patience_s: time limit of ROOT in seconds; None for no limit.
        bars: opens the progress bar of a download of ROOT.

    Raises:
        SoftwareError: there is no ROOT that can be used.
        OSError: a file could not be written; the message is ROOT's, or that it took too long.
    """
    with tempfile.TemporaryFile() as stderr:
        child = subprocess.Popen(
            [sys.executable, "-P", str(WRITER_SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=root_environment(software_dir, bars),
        )
        assert child.stdin is not None
        with _kill_after(child, patience_s) as timed_out:
            try:
                # A broken pipe means that the child has ended and reported the reason.
                with suppress(BrokenPipeError), child.stdin:
                    yield functools.partial(_open_root_file, child.stdin)
                code = child.wait()
            except BaseException:
                child.kill()
                child.wait()
                raise
        if code and timed_out.is_set():
            raise TimeoutError(f"ROOT was not done within {patience_s:g} s")
        if code:
            stderr.seek(0)
            lines = stderr.read().decode(errors="replace").split("\n")
            reason = next((line for line in reversed(lines) if line.strip()), f"exit code {code}")
            raise OSError(f"ROOT said: {reason.strip()}")


@contextmanager
def _kill_after(
    child: subprocess.Popen[bytes], patience_s: float | None
) -> Iterator[threading.Event]:
    """Kill a child that takes longer; the event says whether it was killed."""
    timed_out = threading.Event()

    def end() -> None:
        timed_out.set()
        child.kill()

    timer = threading.Timer(threading.TIMEOUT_MAX if patience_s is None else patience_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield timed_out
    finally:
        timer.cancel()


@contextmanager
def _open_root_file(pipe: IO[bytes], file: Path, schema: pa.Schema) -> Iterator[ExportSink]:
    sink = _TreeWriter(pipe, file, schema)
    yield sink
    sink.close()


class _TreeWriter:
    """Sends one Arrow stream after the other; each becomes a tree of the file."""

    def __init__(self, pipe: IO[bytes], file: Path, schema: pa.Schema) -> None:
        self._pipe = pipe
        self._about = {"tree_file": str(file), "looks_unknown": AMBIGUOUS_ROWS_KEY}
        about: dict[Any, Any] = {
            **schema.metadata,
            "tree_name": TREE_NAME,
            "tree_title": TREE_TITLE,
            **NULL_CONVENTIONS,
        }
        self._stream = self._begin_tree(schema, about)

    def write(self, batch: pa.RecordBatch) -> None:
        self._stream.write_batch(batch)

    def attach(self, companion: RowStream) -> None:
        self.close()
        title = f"Rows of table {companion.name}; null markers as in the tree {TREE_NAME}"
        about = {"tree_name": companion.name, "tree_title": title}
        self._stream = self._begin_tree(companion.schema, about)
        for batch in companion.batches:
            self._stream.write_batch(batch)

    def close(self) -> None:
        self._stream.close()

    def _begin_tree(self, schema: pa.Schema, about: Mapping[Any, Any]) -> Any:
        return pa.ipc.new_stream(self._pipe, schema.with_metadata({**about, **self._about}))


def root_environment(software_dir: Path, bars: ProgressFactory = no_progress) -> dict[str, str]:
    """Build the environment in which this interpreter finds the newest ROOT of the cache."""
    try:
        release = next(
            reversed(providers.list_prepared_releases(software_dir)), max(providers.WHEELS)
        )
        prepared = prepare_root(providers.parse_software_request(release), software_dir, bars)
        packages = sysconfig.get_path(
            "platlib", vars={"platbase": prepared.location, "base": prepared.location}
        )
        environment = providers.setup_software(prepared, os.environ, packages).env
    except (ExecutionError, SoftwareError) as fault:
        raise SoftwareError(
            f"a TTree is written by ROOT, which cannot be set up: {fault}",
            hint="CSV and Parquet need no ROOT: export to a name ending in .csv or .parquet.",
        ) from fault
    if not (Path(packages) / "ROOT").is_dir():
        raise SoftwareError(
            "this ROOT was installed for another version of Python",
            where=prepared.location,
            hint="Remove it if no other Python uses it, or give a --cache-dir; .csv needs no ROOT.",
        )
    # Treehammer itself may be installed for this user alone.
    return {name: value for name, value in environment.items() if name != "PYTHONNOUSERSITE"}


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


def operations_file(target: Path) -> Path:
    """Return the path of the operations beside a CSV file."""
    return target.with_name(f"{target.stem}.operations{target.suffix}")


class _CsvWriter:
    """Writes operations to a second file and drops other companion tables."""

    def __init__(self, writer: csv.CSVWriter, file: Path) -> None:
        self._writer = writer
        self._file = file

    def write(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def attach(self, companion: RowStream) -> None:
        if companion.name == OPERATION_TABLE:
            with csv.CSVWriter(str(operations_file(self._file)), companion.schema) as writer:
                for batch in companion.batches:
                    writer.write_batch(batch)


def shorten_cells(batch: pa.RecordBatch, limit: int | None) -> pa.RecordBatch:
    """Shorten texts beyond ``limit`` characters, of which the last becomes an ellipsis."""
    if limit is None:
        return batch
    columns = batch.columns
    for place, texts in enumerate(columns):
        if pa.types.is_string(texts.type):
            start = pc.utf8_slice_codeunits(texts, 0, limit - 1)
            short = pc.binary_join_element_wise(start, "…", "")
            columns[place] = pc.if_else(pc.greater(pc.utf8_length(texts), limit), short, texts)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


@contextmanager
def _open_csv(file: Path, schema: pa.Schema) -> Iterator[ExportSink]:
    with csv.CSVWriter(str(file), schema) as writer:
        yield _CsvWriter(writer, file)


class _ParquetWriter:
    """Gathers batches to row groups, and packs companion tables into the file's metadata."""

    def __init__(self, writer: parquet.ParquetWriter) -> None:
        self._writer = writer
        self._buffered: list[pa.RecordBatch] = []
        self._bytes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._buffered.append(batch)
        self._bytes += batch.nbytes
        if self._bytes >= ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._buffered:
            table = pa.Table.from_batches(self._buffered)
            self._buffered, self._bytes = [], 0
            self._writer.write_table(table, row_group_size=table.num_rows)

    def attach(self, companion: RowStream) -> None:
        packed = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(packed, companion.schema, options=options) as stream:
            for batch in companion.batches:
                stream.write_batch(batch)
        text = base64.b64encode(packed.getvalue())  # readers expect text in metadata
        key, checksum = COMPANION_PREFIX + companion.name, str(zlib.crc32(text))
        self._writer.add_key_value_metadata({key: text.decode(), key + CHECKSUM_SUFFIX: checksum})


@contextmanager
def _open_parquet(file: Path, schema: pa.Schema) -> Iterator[ExportSink]:
    with parquet.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as out:
        sink = _ParquetWriter(out)
        yield sink
        sink.flush()


#: Formats by the suffix of a file's name.
FORMATS = {
    ".root": ExportFormat(open_root_writer),
    ".csv": ExportFormat(lambda *_: nullcontext(_open_csv), lists_as_text=True),
    ".parquet": ExportFormat(lambda *_: nullcontext(_open_parquet), nests_operations=True),
}


def find_format(suffix: str) -> ExportFormat | None:
    """Return the format of files with a suffix, shipped or of another package; None without one."""
    suffix = suffix.lower()
    if form := FORMATS.get(suffix):
        return form
    extension: ExportFormat | None = load_extension(
        ExtensionGroup.EXPORTERS, suffix.removeprefix(".")
    )
    return extension
