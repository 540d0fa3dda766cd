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
from datetime import UTC, datetime
from pathlib import Path

from pyarrow import compute as pc

from treehammer.errors import ConfigError, NothingToDoError
from treehammer.program_output import replace_file
from treehammer.sql.read.query_model import Selection
from treehammer.sql.transfer.arrow_stream import (
    iter_companion_tables,
    stream_measurements,
    stream_operations,
)
from treehammer.sql.transfer.file_writers import (
    FORMATS,
    ExportFormat,
    find_format,
    operations_file,
    shorten_cells,
)
from treehammer.sql.write.store import Store
from treehammer.text_formatting import ProgressFactory, no_progress
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
    form = _check_target(target)
    with store.frozen() as reader:
        rows = reader.count_selected(selection)
        if not rows:
            raise NothingToDoError("no measurement is selected", where=str(selection))
        has_operations = reader.has_operations(selection)
        stream = stream_measurements(
            reader,
            selection,
            {
                "treehammer_version": __version__,
                "selection": str(selection),
                "exported_utc": datetime.now(UTC).isoformat(timespec="seconds"),
            },
            lists_as_text=form.lists_as_text,
            nest_operations=has_operations and form.nests_operations,
        )
        with (
            _replace_files(target) as file,
            bars("Exporting", rows) as step,
            form.writer(software_dir, patience_s, bars) as begin,
            begin(file, stream.schema) as sink,
        ):
            campaigns, datasets = {*selection.campaigns}, set[str]()
            written = 0
            for batch in stream.batches:
                sink.write(shorten_cells(batch, cell_limit))
                datasets.update(pc.unique(batch.column("dataset_hash")).to_pylist())
                campaigns.update(pc.unique(batch.column("campaign_id")).to_pylist())
                written += batch.num_rows
                step(written)
            if has_operations and not form.nests_operations:
                sink.attach(stream_operations(reader, selection))
            # What no measurement names belongs to an export of everything.
            is_whole = not (selection.campaigns or selection.conditions)
            companions = iter_companion_tables(
                reader, None if is_whole else campaigns, None if is_whole else datasets
            )
            for companion in companions:
                sink.attach(companion)
    return written


def _check_target(target: Path) -> ExportFormat:
    """Check the name of a file to write; return the format of its suffix."""
    form = find_format(target.suffix)
    if form is None:
        raise ConfigError(
            f"unknown format {target.suffix!r}" if target.suffix else "the name has no suffix",
            where=str(target),
            hint=f"Give a name that ends in {', '.join(FORMATS)}.",
        )
    if target.is_dir() or not target.absolute().parent.is_dir():
        problem = "is a folder" if target.is_dir() else "its folder does not exist"
        raise ConfigError(problem, where=str(target), hint="Give the name of a file to write.")
    return form


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
