"""Export of selected measurements as a TTree, CSV or Parquet.

All formats have one column per catalogue entry and ``extra_NAME`` for each metric that a test defines,
and the same order of rows. Parquet keeps nulls. In CSV an unknown value is an empty field and lists are
JSON; CSV has no metadata (selection, version, time) and no companion tables. Operations of load tests
are a tree, a nested column or a second CSV file. :mod:`treehammer.sql.transfer.file_writers` defines
the conventions of the TTree.

A partitioned export is a folder with one file per campaign, as DuckDB, Arrow and Spark read them. The
manifest, a list of all files with their numbers of rows, is written last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
from pyarrow import compute as pc

from treehammer.errors import ConfigError, NothingToDoError
from treehammer.program_output import replace_file, replace_folder
from treehammer.sql.read.query_model import Selection
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.transfer.arrow_stream import (
    RowStream,
    iter_companion_tables,
    stream_measurements,
    stream_operations,
)
from treehammer.sql.transfer.file_writers import (
    FORMATS,
    ExportFormat,
    ExportSink,
    find_format,
    operations_file,
    shorten_cells,
)
from treehammer.sql.write.store import Store
from treehammer.text_formatting import ProgressCallback, ProgressFactory, no_progress
from treehammer.version import __version__

#: The partitioning column, with which the names of the folders begin.
CAMPAIGN_COLUMN = "campaign_id"
#: Readers of partitioned folders skip names that begin with '_'.
MANIFEST_NAME = "_manifest.json"


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
    form = _require_format(target, target.suffix)
    if target.is_dir() or not target.absolute().parent.is_dir():
        problem = "is a folder" if target.is_dir() else "its folder does not exist"
        raise ConfigError(problem, where=str(target), hint="Give the name of a file to write.")
    with (
        _open_source(store, selection, form, cell_limit) as source,
        _replace_files(target) as file,
        bars("Exporting", source.rows) as step,
        form.writer(software_dir, patience_s, bars) as begin,
    ):
        is_whole = not (selection.campaigns or selection.conditions)
        campaigns = None if is_whole else {*selection.campaigns}
        with begin(file, source.stream.schema) as sink:
            return source.write(sink, source.stream, campaigns, step)


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
    _require_replaceable(folder)
    rows_by_campaign: dict[str, int] = {}
    with (
        _open_source(store, selection, form, cell_limit) as source,
        replace_folder(folder) as staged,
        bars("Exporting", source.rows) as step,
        form.writer(software_dir, None, bars) as begin,
    ):
        columns = [
            field
            for field in source.stream.schema
            if suffix != ".parquet" or field.name != CAMPAIGN_COLUMN
        ]
        about = source.stream.schema.metadata
        for campaign, batches in source.split_by_campaign(rows_by_campaign):
            schema = pa.schema(columns, {**about, CAMPAIGN_COLUMN: campaign})
            part = replace(source, selection=replace(selection, campaigns=(campaign,)))
            file = staged / _part_path(campaign, suffix)
            file.parent.mkdir()
            before = sum(rows_by_campaign.values())
            with begin(file, schema) as sink:
                rows = part.write(
                    sink, RowStream(campaign, schema, batches), {campaign}, step, before
                )
            rows_by_campaign[campaign] = rows
        document = {
            **_export_metadata(selection),
            "partition": CAMPAIGN_COLUMN,
            "parts": [
                {"path": _part_path(campaign, suffix), "rows": rows}
                for campaign, rows in rows_by_campaign.items()
            ],
        }
        (staged / MANIFEST_NAME).write_text(json.dumps(document, indent=1), encoding="utf-8")
    return sum(rows_by_campaign.values()), len(rows_by_campaign)


@dataclass(frozen=True)
class _ExportSource:
    """One state of the database, and the stream of its selected measurements.

    Attributes:
        reader: of this state.
        selection: the selected measurements.
        rows: their number.
        stream: their columns and batches.
        has_operation_table: whether operations are a table of their own.
        cell_limit: longest text of a cell; None for no limit.
    """

    reader: ResultsReader
    selection: Selection
    rows: int
    stream: RowStream
    has_operation_table: bool
    cell_limit: int | None

    def write(
        self,
        sink: ExportSink,
        stream: RowStream,
        campaigns: set[str] | None,
        step: ProgressCallback,
        before: int = 0,
    ) -> int:
        """Write measurements and their companion tables; return the number of measurements.

        Args:
            sink: receives them.
            stream: the selected measurements, perhaps with more columns than its schema.
            campaigns: travel along beside those of the measurements; None for all.
            step: receives the number of measurements after each batch.
            before: measurements of earlier files.
        """
        rows, datasets = 0, set[str]()
        for batch in stream.batches:
            sink.write(shorten_cells(batch.select(stream.schema.names), self.cell_limit))
            datasets.update(pc.unique(batch.column("dataset_hash")).to_pylist())
            if campaigns is not None:
                campaigns.update(pc.unique(batch.column(CAMPAIGN_COLUMN)).to_pylist())
            rows += batch.num_rows
            step(before + rows)
        if self.has_operation_table:
            sink.attach(stream_operations(self.reader, self.selection))
        of_datasets = None if campaigns is None else datasets
        for companion in iter_companion_tables(self.reader, campaigns, of_datasets):
            sink.attach(companion)
        return rows

    def split_by_campaign(
        self, measured: Iterable[str]
    ) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
        """Split the stream, which is sorted by campaign; consume each campaign before the next.

        Selected campaigns without measurements follow.

        Args:
            measured: campaigns that the caller has consumed.
        """
        for campaign, runs in groupby(_split_runs(self.stream.batches), key=lambda run: run[0]):
            yield campaign, (batch for _, batch in runs)
        if not self.selection.conditions:
            campaigns = self.selection.campaigns or [row.id for row in self.reader.campaigns()]
            for campaign in sorted({*campaigns} - {*measured}):
                yield campaign, iter(())


def _split_runs(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, pa.RecordBatch]]:
    for batch in batches:
        start = 0
        for run in pc.value_counts(batch.column(CAMPAIGN_COLUMN)).to_pylist():
            yield run["values"], batch.slice(start, run["counts"])
            start += run["counts"]


@contextmanager
def _open_source(
    store: Store, selection: Selection, form: ExportFormat, cell_limit: int | None
) -> Iterator[_ExportSource]:
    with store.frozen() as reader:
        with reader.snapshot() as snapshot:
            rows = snapshot.count_selected(selection)
            has_operations = snapshot.has_operations(selection)
        if not rows:
            raise NothingToDoError("no measurement is selected", where=str(selection))
        stream = stream_measurements(
            reader,
            selection,
            _export_metadata(selection),
            lists_as_text=form.lists_as_text,
            nest_operations=has_operations and form.nests_operations,
        )
        has_table = has_operations and not form.nests_operations
        yield _ExportSource(reader, selection, rows, stream, has_table, cell_limit)


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


def _part_path(campaign: str, suffix: str) -> str:
    return f"{CAMPAIGN_COLUMN}={quote(campaign, safe='')}/part{suffix}"


def _export_metadata(selection: Selection) -> dict[str, str]:
    return {
        "treehammer_version": __version__,
        "selection": str(selection),
        "exported_utc": datetime.now(UTC).isoformat(timespec="seconds"),
    }


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


def _require_replaceable(folder: Path) -> None:
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
