"""Export of selected measurements as a TTree, CSV or Parquet.

All formats have one column per catalogue entry and ``extra_NAME`` for each metric that a test defines,
and the same order of rows. Parquet keeps nulls. In CSV an unknown value is an empty field and lists are
JSON; CSV has no metadata (selection, version, time) and no companion tables. Operations of load tests
are a tree, a nested column or a second CSV file. :mod:`treehammer.sql.transfer.file_writers` defines
the conventions of the TTree.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pyarrow import compute as pc

from treehammer.errors import ConfigError, NothingToDoError
from treehammer.program_output import replace_file
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
    form = _require_format(target)
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
            return source.write(sink, campaigns, step)


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
        campaigns: set[str] | None,
        step: ProgressCallback,
    ) -> int:
        """Write measurements and their companion tables; return the number of measurements.

        Args:
            sink: receives them.
            campaigns: travel along beside those of the measurements; None for all.
            step: receives the number of measurements after each batch.
        """
        rows, datasets = 0, set[str]()
        for batch in self.stream.batches:
            sink.write(shorten_cells(batch, self.cell_limit))
            datasets.update(pc.unique(batch.column("dataset_hash")).to_pylist())
            if campaigns is not None:
                campaigns.update(pc.unique(batch.column("campaign_id")).to_pylist())
            rows += batch.num_rows
            step(rows)
        if self.has_operation_table:
            sink.attach(stream_operations(self.reader, self.selection))
        of_datasets = None if campaigns is None else datasets
        for companion in iter_companion_tables(self.reader, campaigns, of_datasets):
            sink.attach(companion)
        return rows


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


def _export_metadata(selection: Selection) -> dict[str, str]:
    return {
        "treehammer_version": __version__,
        "selection": str(selection),
        "exported_utc": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _require_format(target: Path) -> ExportFormat:
    suffix = target.suffix
    form = find_format(suffix)
    if form is None:
        raise ConfigError(
            f"unknown format {suffix!r}" if suffix else "the name has no suffix",
            where=str(target),
            hint=f"Give a name that ends in {', '.join(FORMATS)}.",
        )
    return form
