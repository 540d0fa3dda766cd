"""Partitioned exports: a folder with one file per campaign, as DuckDB, Arrow and Spark read them.

The manifest, a list of all files with their numbers of rows, is written last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import compute as pc

from treehammer.errors import ConfigError, MeasurementFileError

#: The partitioning column, with which the names of the folders begin.
CAMPAIGN_COLUMN = "campaign_id"
#: Readers of partitioned folders skip names that begin with '_'.
MANIFEST_NAME = "_manifest.json"
#: Suffixes of files that can be imported.
READABLE_SUFFIXES = (".root", ".parquet")


@dataclass(frozen=True)
class PartitionFile:
    """An entry of the manifest: a path relative to the folder and its number of measurements."""

    path: str
    rows: int


class PartitionWriter:
    """Writes the files of a partitioned folder one after the other.

    Args:
        folder: the folder, which exists.
        suffix: suffix of every file. Parquet files have no column for the campaign.
        schema: columns of all measurements.
    """

    def __init__(self, folder: Path, suffix: str, schema: pa.Schema) -> None:
        self._folder = folder
        self._suffix = suffix
        self._metadata = schema.metadata
        self._names = [
            name for name in schema.names if suffix != ".parquet" or name != CAMPAIGN_COLUMN
        ]
        self._schema = pa.schema([schema.field(name) for name in self._names])
        self._rows: dict[str, int] = {}
        self._campaign = ""

    @property
    def rows(self) -> int:
        """Number of measurements so far."""
        return sum(self._rows.values())

    @property
    def campaigns(self) -> list[str]:
        """Campaigns that have a file."""
        return [*self._rows]

    def begin_part(self, campaign: str) -> tuple[Path, pa.Schema]:
        """Start the file of a campaign; return its path and columns."""
        self._campaign = campaign
        self._rows[campaign] = 0
        file = self._folder / self._path(campaign)
        file.parent.mkdir()
        return file, self._schema.with_metadata({**self._metadata, CAMPAIGN_COLUMN: campaign})

    def select_part_columns(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Count the measurements of a batch and select the columns of the file."""
        self._rows[self._campaign] += batch.num_rows
        return batch.select(self._names)

    def write_manifest(self, metadata: dict[str, str]) -> None:
        """Write the manifest."""
        parts = [asdict(PartitionFile(self._path(id_), rows)) for id_, rows in self._rows.items()]
        document = {**metadata, "partition": CAMPAIGN_COLUMN, "parts": parts}
        (self._folder / MANIFEST_NAME).write_text(json.dumps(document, indent=1), encoding="utf-8")

    def _path(self, campaign: str) -> str:
        return f"{CAMPAIGN_COLUMN}={quote(campaign, safe='')}/part{self._suffix}"


def split_by_campaign(
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
    """Split batches sorted by campaign; consume each campaign before the next."""
    for campaign, runs in groupby(_split_runs(batches), key=lambda run: run[0]):
        yield campaign, (run for _, run in runs)


def _split_runs(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    for batch in batches:
        start = 0
        for run in pc.value_counts(batch.column(CAMPAIGN_COLUMN)).to_pylist():
            yield run["values"], batch.slice(start, run["counts"])
            start += run["counts"]


def campaign_from_path(file: Path) -> str | None:
    """Return the campaign that the name of a file's folder gives."""
    name, _, value = file.absolute().parent.name.partition("=")
    return unquote(value) if name == CAMPAIGN_COLUMN and value else None


def list_part_files(folder: Path) -> list[tuple[Path, int | None]]:
    """List the files of a folder with their numbers of measurements, known from the manifest.

    Raises:
        MeasurementFileError: the manifest cannot be read.
    """
    manifest = folder / MANIFEST_NAME
    if not manifest.exists():
        paths = (p for p in sorted(folder.rglob("*")) if p.suffix.lower() in READABLE_SUFFIXES)
        return [(path, None) for path in paths if not _is_hidden(path.relative_to(folder))]
    try:
        document = json.loads(manifest.read_text(encoding="utf-8"))
        return [(folder / str(part["path"]), int(part["rows"])) for part in document["parts"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MeasurementFileError(
            f"invalid manifest ({error})",
            where=str(manifest),
            hint="Export again, or delete it to import every file of the folder.",
        ) from error


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def require_replaceable(folder: Path) -> None:
    """Require that a folder is absent, empty or an earlier export.

    Raises:
        ConfigError: it is something else, or its parent does not exist.
    """
    if not folder.absolute().parent.is_dir():
        raise ConfigError(
            "its folder does not exist", where=str(folder), hint="Create it, or give another."
        )
    is_export = folder.is_dir() and (
        (folder / MANIFEST_NAME).is_file() or not any(folder.iterdir())
    )
    if folder.is_symlink() or (folder.exists() and not is_export):
        raise ConfigError(
            "something other than an export has this name",
            where=str(folder),
            hint="Give the name of a new folder or of an earlier export, which will be replaced.",
        )
