"""Export of selected measurements as a TTree, CSV or Parquet.

All formats have one column per catalogue entry and ``extra_NAME`` for each metric that a test defines,
and the same order of rows. Parquet keeps nulls. In CSV an unknown value is an empty field and lists are
JSON; CSV has no metadata (selection, version, time) and no companion tables
(:mod:`treehammer.sql.transfer.companion_tables`). Operations of load tests are a tree, a nested column
or a second CSV file (:mod:`treehammer.sql.transfer.operation_table`). :mod:`treehammer.sql.transfer.root_export` defines
the conventions of the TTree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from pyarrow import compute as pc

from treehammer.errors import ConfigError, NothingToDoError
from treehammer.progress import ProgressFactory, no_progress
from treehammer.sql.arrow import arrow_stream
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.transfer import partitions
from treehammer.sql.transfer.atomic_output import replace_file, replace_folder
from treehammer.sql.transfer.companion_tables import ExportSink, iter_companion_tables
from treehammer.sql.transfer.file_writers import FORMATS, ExportFormat, shorten_cells
from treehammer.sql.transfer.operation_table import (
    NESTED_FIELD,
    append_operations,
    build_operation_table,
    operations_file,
)
from treehammer.sql.transfer.partitions import CAMPAIGN_COLUMN
from treehammer.sql.write.store import Store
from treehammer.version import __version__

_AttachOperations = Callable[[ExportSink, Selection], None]


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
        suffix: ``.root``, ``.csv`` or ``.parquet``.
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
    form = FORMATS[suffix]
    partitions.require_replaceable(folder)
    with (
        _open_selection(store, selection, form) as (source, attach_operations),
        replace_folder(folder) as staged,
        bars("Exporting", source.rows) as step,
        form.writer(software_dir, None, bars) as begin,
    ):
        parts = partitions.PartitionWriter(staged, suffix, source.schema)

        @contextmanager
        def part(campaign: str) -> Iterator[tuple[ExportSink, _ExportedSubjects]]:
            file, schema = parts.begin_part(campaign)
            subjects = _ExportedSubjects([campaign])
            with begin(file, schema) as sink:
                yield sink, subjects
                attach_operations(sink, replace(selection, campaigns=(campaign,)))
                subjects.attach_companions(store, sink)

        for campaign, batches in partitions.split_by_campaign(source.batches):
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
    form = FORMATS.get(target.suffix.lower())
    if form is None:
        raise ConfigError(
            f"unknown format {target.suffix!r}" if target.suffix else "the name has no suffix",
            where=str(target),
            hint=f"Give a name that ends in {', '.join(FORMATS)}; for a folder with one file per "
            "campaign add --partition campaign.",
        )
    if target.is_dir() or not target.absolute().parent.is_dir():
        problem = "is a folder" if target.is_dir() else "its folder does not exist"
        raise ConfigError(problem, where=str(target), hint="Give the name of a file to write.")
    return form
