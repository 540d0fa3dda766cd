"""Exports: the selected measurements as a TTree, as CSV, or as Parquet.

All three have one column per catalogue entry and ``extra_NAME`` for each metric that a test
defined, in the same order of rows.  Parquet keeps nulls.  In CSV what is not known is an empty
field and lists are JSON; it has no place for what the others say of themselves (selection,
version, time).  The conventions of the TTree stand in :mod:`treehammer.sql.root_export`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, parquet

from treehammer.errors import ConfigError, NothingToDo, StoreError
from treehammer.sql.arrow import describe, lists_as_text, without_lists
from treehammer.sql.root_export import tree_writer
from treehammer.sql.selection import Selection
from treehammer.sql.store import Store
from treehammer.terminal import Step
from treehammer.version import __version__

Write = Callable[[pa.RecordBatch], None]
Writer = Callable[[Path, pa.Schema, Path], AbstractContextManager[Write]]


def export(
    store: Store,
    selection: Selection,
    target: Path,
    *,
    software_dir: Path,
    progress: Callable[[int], AbstractContextManager[Step]],
) -> int:
    """Write the selected measurements to ``target``; its suffix decides the format.

    The file appears when it is complete; before, one of that name stays as it is.

    Args:
        store: where the measurements are.
        selection: which.
        target: a name that ends in ``.root``, ``.csv`` or ``.parquet``.
        software_dir: the cached ROOT environments (for ``.root``).
        progress: takes the number of rows and gives a bar that moves with them.

    Returns:
        the number of rows.

    Raises:
        ConfigError: another suffix, or no such folder.
        NothingToDo: nothing is selected.
        SoftwareError: there is no ROOT for ``.root``.
        StoreError: the database cannot be read, or the file cannot be written.
    """
    writer = _writer(target)
    with store.snapshot() as snapshot:
        total = snapshot.count(selection)
        if not total:
            raise NothingToDo("no measurement is selected", where=str(selection))
        table = describe(snapshot.extra_names(selection), _about(selection))
        with (
            _aside(target) as file,
            progress(total) as step,
            writer(file, table.schema, software_dir) as write,
        ):
            done = 0
            for batch in table.batches(snapshot, selection):
                write(batch)
                done += batch.num_rows
                step(done)
    return done


def _about(selection: Selection) -> dict[str, str]:
    return {
        "treehammer_version": __version__,
        "selection": str(selection),
        "exported_utc": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@contextmanager
def _csv_writer(file: Path, schema: pa.Schema, _software: Path) -> Iterator[Write]:
    flat = without_lists(schema)
    with csv.CSVWriter(str(file), flat) as writer:
        yield lambda batch: writer.write_batch(lists_as_text(batch, flat))


@contextmanager
def _parquet_writer(file: Path, schema: pa.Schema, _software: Path) -> Iterator[Write]:
    with parquet.ParquetWriter(str(file), schema, compression="zstd") as writer:
        yield writer.write_batch


_WRITERS: dict[str, Writer] = {
    ".root": tree_writer,
    ".csv": _csv_writer,
    ".parquet": _parquet_writer,
}


def _writer(target: Path) -> Writer:
    writer = _WRITERS.get(target.suffix.lower())
    if writer is None:
        raise ConfigError(
            f"cannot tell a format from {target.suffix or 'a name without a suffix'!r}",
            where=str(target),
            hint=f"Give a name that ends in {', '.join(_WRITERS)}.",
        )
    if target.is_dir() or not target.absolute().parent.is_dir():
        what = "is a folder" if target.is_dir() else "its folder does not exist"
        raise ConfigError(what, where=str(target), hint="Give the name of a file to write.")
    return writer


@contextmanager
def _aside(target: Path) -> Iterator[Path]:
    """A file beside ``target`` that takes its place when all went well, and goes away else."""
    file = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield file
        file.replace(target)
    except OSError as error:
        raise StoreError(
            f"cannot be written ({error.strerror or error})",
            where=str(target),
            hint="Check permissions and free space; the measurements are safe in the database.",
        ) from error
    finally:
        file.unlink(missing_ok=True)
