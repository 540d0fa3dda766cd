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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from pyarrow import csv, parquet

from treehammer.errors import ConfigError, NothingToDo, StoreError
from treehammer.sql import bulk
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
    form = _format(target)
    about = _about(selection)
    with bulk.read(store.url, selection, about, lists_as_text=form.lists_as_text) as source:
        if not source.rows:
            raise NothingToDo("no measurement is selected", where=str(selection))
        with (
            _aside(target) as file,
            progress(source.rows) as step,
            form.writer(file, source.schema, software_dir) as write,
        ):
            done = 0
            for batch in source.batches:
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
    with csv.CSVWriter(str(file), schema) as writer:
        yield writer.write_batch


@contextmanager
def _parquet_writer(file: Path, schema: pa.Schema, _software: Path) -> Iterator[Write]:
    with parquet.ParquetWriter(str(file), schema, compression="zstd") as writer:
        yield writer.write_batch


@dataclass(frozen=True)
class _Format:
    writer: Writer
    lists_as_text: bool = False


_FORMATS = {
    ".root": _Format(tree_writer),
    ".csv": _Format(_csv_writer, lists_as_text=True),
    ".parquet": _Format(_parquet_writer),
}


def _format(target: Path) -> _Format:
    form = _FORMATS.get(target.suffix.lower())
    if form is None:
        raise ConfigError(
            f"cannot tell a format from {target.suffix or 'a name without a suffix'!r}",
            where=str(target),
            hint=f"Give a name that ends in {', '.join(_FORMATS)}.",
        )
    if target.is_dir() or not target.absolute().parent.is_dir():
        what = "is a folder" if target.is_dir() else "its folder does not exist"
        raise ConfigError(what, where=str(target), hint="Give the name of a file to write.")
    return form


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
