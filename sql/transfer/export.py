"""Export of selected measurements as a TTree, CSV or Parquet.

All formats have one column per catalogue entry and ``extra_NAME`` for each metric that a test defines,
and the same order of rows. Parquet keeps nulls. In CSV an unknown value is an empty field and lists are
JSON; CSV has no metadata (selection, version, time) and no companion tables
(:mod:`treehammer.sql.transfer.companion_tables`). Operations of load tests are a tree, a nested column
or a second CSV file. :mod:`treehammer.sql.transfer.file_writers` defines the conventions of the TTree.

A partitioned export is a folder with one file per campaign, as DuckDB, Arrow and Spark read them. The
manifest, a list of all files with their numbers of rows, is written last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa
from pyarrow import compute as pc

from treehammer.errors import ConfigError, MeasurementFileError, NothingToDoError
from treehammer.program_output import replace_file, replace_folder
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer import arrow_stream
from treehammer.sql.transfer.companion_tables import (
    NESTED_FIELD,
    ExportSink,
    append_operations,
    build_operation_table,
    iter_companion_tables,
    operations_file,
)
from treehammer.sql.transfer.file_writers import FORMATS, ExportFormat, find_format, shorten_cells
from treehammer.sql.write.store import Store
from treehammer.text_formatting import ProgressFactory, no_progress
from treehammer.version import __version__

#: The partitioning column, with which the names of the folders begin.
CAMPAIGN_COLUMN = "campaign_id"
#: Readers of partitioned folders skip names that begin with '_'.
MANIFEST_NAME = "_manifest.json"
#: Suffixes of files that can be imported.
READABLE_SUFFIXES = (".root", ".parquet")
_AttachOperations = Callable[[ExportSink, Selection], None]


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


def export_file(
    store: Store,
    selection: Selection,
    target: Path,
    *,
    software_dir: Path,
    bars: ProgressFactory = no_progress,
    patience_s: float | None = None,
    cell_limit: int | None = None,
) -> int:
    """Write the selected measurements to ``target``, in the format of its suffix.

    An existing file is replaced when the new one is complete.

    Args:
        store: the store to read.
        selection: the measurements to export.
        target: a name that ends in ``.root``, ``.csv`` or ``.parquet``.
        software_dir: folder of cached ROOT environments (for ``.root``).
        bars: opens progress bars.
        patience_s: time limit of ROOT in seconds; None for no limit.
        cell_limit: longest text of a cell; None for no limit.

    Returns:
        the number of rows.

    Raises:
        ConfigError: the suffix is unknown, or the folder does not exist.
        NothingToDoError: nothing is selected.
        SoftwareError: ROOT is not available for ``.root``.
        StoreError: the database cannot be read, or the file cannot be written.
    """
    form = _find_format(target)
    with (
        _open_selection(store, selection, form) as (source, attach_operations),
        _replace_files(target) as file,
        bars("Exporting", source.rows) as step,
        form.writer(software_dir, patience_s, bars) as begin,
        begin(file, source.schema) as sink,
    ):
        subjects = _track_subjects(selection)
        done = 0
        for batch in source.batches:
            sink.write(shorten_cells(batch, cell_limit))
            subjects.add(batch)
            done += batch.num_rows
            step(done)
        attach_operations(sink, selection)
        subjects.attach_companions(store, sink)
    return done


def export_partitions(
    store: Store,
    selection: Selection,
    folder: Path,
    suffix: str,
    *,
    software_dir: Path,
    bars: ProgressFactory = no_progress,
    cell_limit: int | None = None,
) -> tuple[int, int]:
    """Write the selected measurements to a folder with one file per campaign.

    The files are ``campaign_id=ID/part.SUFFIX``, all with the same columns. Parquet files omit
    ``campaign_id``, which the name of their folder gives, as its readers expect. A campaign without
    measurements has a file without rows, unless the selection has conditions. An earlier export of
    that name is replaced when the new one is complete.

    Args:
        store: the store to read.
        selection: the measurements to export.
        folder: the folder to create.
        suffix: ``.root``, ``.csv``, ``.parquet`` or that of another package's format.
        software_dir: folder of cached ROOT environments (for ``.root``).
        bars: opens progress bars.
        cell_limit: longest text of a cell; None for no limit.

    Returns:
        the numbers of rows and of campaigns.

    Raises:
        ConfigError: something other than an export has this name.
        NothingToDoError: nothing is selected.
        SoftwareError: ROOT is not available for ``.root``.
        StoreError: the database cannot be read, or a file cannot be written.
    """
    form = _require_format(folder, suffix)
    require_replaceable(folder)
    with (
        _open_selection(store, selection, form) as (source, attach_operations),
        replace_folder(folder) as staged,
        bars("Exporting", source.rows) as step,
        form.writer(software_dir, None, bars) as begin,
    ):
        parts = PartitionWriter(staged, suffix, source.schema)

        @contextmanager
        def part(campaign: str) -> Iterator[tuple[ExportSink, _ExportedSubjects]]:
            file, schema = parts.begin_part(campaign)
            subjects = _ExportedSubjects([campaign])
            with begin(file, schema) as sink:
                yield sink, subjects
                attach_operations(sink, replace(selection, campaigns=(campaign,)))
                subjects.attach_companions(store, sink)

        for campaign, batches in split_by_campaign(source.batches):
            with part(campaign) as (sink, subjects):
                for batch in batches:
                    subjects.add(batch)
                    sink.write(shorten_cells(parts.select_part_columns(batch), cell_limit))
                    step(parts.rows)
        for campaign in _find_unmeasured(store, selection, parts.campaigns):
            with part(campaign):
                pass
        parts.write_manifest(_export_metadata(selection))
    return parts.rows, len(parts.campaigns)


@contextmanager
def _open_selection(
    store: Store, selection: Selection, form: ExportFormat
) -> Iterator[tuple[arrow_stream.MeasurementStream, _AttachOperations]]:
    """Open the stream of measurements; also yield the function that attaches their operations."""

    def attach(sink: ExportSink, part_selection: Selection) -> None:
        sink.attach(build_operation_table(store, part_selection))

    with store.snapshot() as snapshot:
        has_operations = snapshot.has_operations(selection)
    with _open_measurements(store, selection, form) as source:
        if has_operations and not form.nests_operations:
            yield source, attach
            return
        if has_operations:
            parts = (part for batch in source.batches for part in append_operations(store, batch))
            nested = replace(source, schema=source.schema.append(NESTED_FIELD), batches=parts)
        yield nested if has_operations else source, lambda _sink, _selection: None


@contextmanager
def _replace_files(target: Path) -> Iterator[Path]:
    """Replace a file, and for CSV the operations beside it."""
    with replace_file(target) as file:
        operations_path = operations_file(file)
        try:
            yield file
            if operations_path.exists():
                operations_path.replace(operations_file(target))
            elif target.suffix.lower() == ".csv":
                operations_file(target).unlink(missing_ok=True)
        finally:
            operations_path.unlink(missing_ok=True)


@contextmanager
def _open_measurements(
    store: Store, selection: Selection, form: ExportFormat
) -> Iterator[arrow_stream.MeasurementStream]:
    about = _export_metadata(selection)
    with arrow_stream.open_stream(
        store.url, selection, about, lists_as_text=form.lists_as_text
    ) as source:
        if not source.rows:
            raise NothingToDoError("no measurement is selected", where=str(selection))
        yield source


class _ExportedSubjects:
    """Campaigns and datasets of the written measurements; all campaigns if created with None."""

    def __init__(self, campaigns: Iterable[str] | None = ()) -> None:
        self._campaigns = None if campaigns is None else set(campaigns)
        self._datasets: set[str] = set()

    def add(self, batch: pa.RecordBatch) -> None:
        self._datasets.update(pc.unique(batch.column("dataset_hash")).to_pylist())
        if self._campaigns is not None:
            self._campaigns.update(pc.unique(batch.column(CAMPAIGN_COLUMN)).to_pylist())

    def attach_companions(self, store: Store, sink: ExportSink) -> None:
        """Attach the rows of companion tables that belong to them."""
        whole = self._campaigns is None
        for companion in iter_companion_tables(
            store, self._campaigns, None if whole else self._datasets
        ):
            sink.attach(companion)


def _track_subjects(selection: Selection) -> _ExportedSubjects:
    return _ExportedSubjects(
        selection.campaigns if selection.campaigns or selection.conditions else None
    )


def _find_unmeasured(store: Store, selection: Selection, measured: Sequence[str]) -> list[str]:
    """List selected campaigns without measurements."""
    if selection.conditions:
        return []
    campaign_ids = selection.campaigns or [campaign.id for campaign in store.campaigns()]
    return sorted(set(campaign_ids) - set(measured))


def _export_metadata(selection: Selection) -> dict[str, str]:
    return {
        "treehammer_version": __version__,
        "selection": str(selection),
        "exported_utc": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _find_format(target: Path) -> ExportFormat:
    form = _require_format(target, target.suffix)
    if target.is_dir() or not target.absolute().parent.is_dir():
        problem = "is a folder" if target.is_dir() else "its folder does not exist"
        raise ConfigError(problem, where=str(target), hint="Give the name of a file to write.")
    return form


def _require_format(target: Path, suffix: str) -> ExportFormat:
    form = find_format(suffix)
    if form is None:
        raise ConfigError(
            f"unknown format {suffix!r}" if suffix else "the name has no suffix",
            where=str(target),
            hint=f"Give a name that ends in {', '.join(FORMATS)}; for a folder with one file per "
            "campaign add --partition campaign.",
        )
    return form
