"""Folders with one file for each campaign, as DuckDB, Arrow, Spark and RDataFrame read them.

A folder is whole: its list of parts is written last, and the folder appears with it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import compute as pc

from treehammer.errors import ConfigError, MeasurementFileError, StoreError

#: What parts are told apart by: a column, and what the names of their folders begin with.
CAMPAIGN_COLUMN = "campaign_id"
#: The list of parts.  Readers of such folders skip names that begin with '_'.
MANIFEST_NAME = "_treehammer.json"


@dataclass(frozen=True)
class PartitionFile:
    """One file of a folder: its path in it, and how many measurements it has."""

    path: str
    rows: int


class PartitionWriter:
    """The parts of a folder that is being written, one after the other.

    Args:
        folder: to write to.
        suffix: of every file; Parquet's have no column for the campaign.
        schema: of all measurements.
    """

    def __init__(self, folder: Path, suffix: str, schema: pa.Schema) -> None:
        self._folder = folder
        self._suffix = suffix
        self._about = schema.metadata
        self._names = [
            name for name in schema.names if suffix != ".parquet" or name != CAMPAIGN_COLUMN
        ]
        self._schema = pa.schema([schema.field(name) for name in self._names])
        self._rows: dict[str, int] = {}
        self._campaign = ""

    @property
    def rows(self) -> int:
        """Measurements so far."""
        return sum(self._rows.values())

    @property
    def campaigns(self) -> list[str]:
        """Those that have a part."""
        return [*self._rows]

    def begin_part(self, campaign: str) -> tuple[Path, pa.Schema]:
        """The file of the next part, and its columns."""
        self._campaign = campaign
        self._rows[campaign] = 0
        file = self._folder / self._path(campaign)
        file.parent.mkdir()
        return file, self._schema.with_metadata({**self._about, CAMPAIGN_COLUMN: campaign})

    def select_part_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What the part has of measurements, which are counted."""
        self._rows[self._campaign] += batch.num_rows
        return batch.select(self._names)

    def write_manifest(self, about: dict[str, str]) -> None:
        """Write the list of parts."""
        parts = [asdict(PartitionFile(self._path(id_), rows)) for id_, rows in self._rows.items()]
        document = {**about, "partition": CAMPAIGN_COLUMN, "parts": parts}
        (self._folder / MANIFEST_NAME).write_text(json.dumps(document, indent=1), encoding="utf-8")

    def _path(self, campaign: str) -> str:
        return f"{CAMPAIGN_COLUMN}={quote(campaign, safe='')}/part{self._suffix}"


def split_by_campaign(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
    """Measurements that come campaign by campaign, parted; each is to be read before the next."""
    for campaign, runs in groupby(_split_runs(batches), key=lambda run: run[0]):
        yield campaign, (run for _, run in runs)


def _split_runs(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    for batch in batches:
        start = 0
        for run in pc.value_counts(batch.column(CAMPAIGN_COLUMN)).to_pylist():
            yield run["values"], batch.slice(start, run["counts"])
            start += run["counts"]


def campaign_from_path(file: Path) -> str | None:
    """The campaign that the name of a part's folder tells."""
    name, _, value = file.absolute().parent.name.partition("=")
    return unquote(value) if name == CAMPAIGN_COLUMN and value else None


def list_part_files(folder: Path) -> list[tuple[Path, int | None]]:
    """The files of a folder, and how many measurements each must have, where it has a list.

    Raises:
        FileError: the list cannot be read.
    """
    listed = folder / MANIFEST_NAME
    if not listed.exists():
        found = (
            path for path in sorted(folder.rglob("*")) if path.suffix.lower() in READABLE_SUFFIXES
        )
        return [(path, None) for path in found if not _is_hidden(path.relative_to(folder))]
    try:
        document = json.loads(listed.read_text(encoding="utf-8"))
        return [(folder / str(part["path"]), int(part["rows"])) for part in document["parts"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MeasurementFileError(
            f"is no list of parts ({error})",
            where=str(listed),
            hint="Export again, or remove it: every file of the folder is imported then.",
        ) from error


#: Suffixes of files that can be imported.
READABLE_SUFFIXES = (".root", ".parquet")


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """A folder beside ``folder`` that takes its place when all went well, and goes away else.

    Raises:
        ConfigError: there is something of that name that is no export, or no folder for it.
    """
    _require_replaceable(folder)
    staged = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    before = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    try:
        with translate_write_errors(folder):
            staged.mkdir()
            yield staged
            if folder.exists():
                folder.rename(before)
            try:
                staged.rename(folder)
            except OSError:
                if before.exists():
                    before.rename(folder)
                raise
    finally:
        for rest in (staged, before):
            shutil.rmtree(rest, ignore_errors=True)


def _require_replaceable(folder: Path) -> None:
    if not folder.absolute().parent.is_dir():
        raise ConfigError(
            "its folder does not exist", where=str(folder), hint="Make it, or give another."
        )
    ours = folder.is_dir() and ((folder / MANIFEST_NAME).is_file() or not any(folder.iterdir()))
    if folder.is_symlink() or (folder.exists() and not ours):
        raise ConfigError(
            "there is something else of that name, which an export must not replace",
            where=str(folder),
            hint="Give the name of a folder to make; one that an earlier export made is replaced.",
        )


@contextmanager
def translate_write_errors(target: Path) -> Iterator[None]:
    """Tell what keeps an export from being written.

    Raises:
        StoreError: in place of OSError.
    """
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot be written ({error.strerror or error})",
            where=str(target),
            hint="Check permissions and free space; the measurements are safe in the database.",
        ) from error
