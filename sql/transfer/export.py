"""Exports: the selected measurements as a TTree, as CSV, or as Parquet.

All three have one column per catalogue entry and ``extra_NAME`` for each metric that a test
defined, in the same order of rows.  Parquet keeps nulls.  In CSV what is not known is an empty
field and lists are JSON; it has no place for what the others say of themselves (selection,
version, time) and for what travels along (:mod:`treehammer.sql.transfer.companion_tables`).  The conventions of
the TTree stand in :mod:`treehammer.sql.transfer.root_export`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from pyarrow import compute as pc

from treehammer.errors import ConfigError, NothingToDoError
from treehammer.progress import ProgressFactory, no_progress
from treehammer.sql.arrow import arrow_stream
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.transfer import partitions
from treehammer.sql.transfer.companion_tables import ExportSink, iter_companion_tables
from treehammer.sql.transfer.file_writers import FORMATS, ExportFormat
from treehammer.sql.transfer.partitions import CAMPAIGN_COLUMN
from treehammer.sql.write.store import Store
from treehammer.version import __version__


def export_file(
    store: Store,
    selection: Selection,
    target: Path,
    *,
    software_dir: Path,
    bars: ProgressFactory = no_progress,
    patience_s: float | None = None,
) -> int:
    """Write the selected measurements to ``target``; its suffix decides the format.

    The file appears when it is complete; before, one of that name stays as it is.

    Args:
        store: where the measurements are.
        selection: which.
        target: a name that ends in ``.root``, ``.csv`` or ``.parquet``.
        software_dir: the cached ROOT environments (for ``.root``).
        bars: opens progress bars.
        patience_s: seconds that ROOT may take; None for no limit.

    Returns:
        the number of rows.

    Raises:
        ConfigError: another suffix, or no such folder.
        NothingToDo: nothing is selected.
        SoftwareError: there is no ROOT for ``.root``.
        StoreError: the database cannot be read, or the file cannot be written.
    """
    form = _find_format(target)
    with (
        _open_selection(store, selection, form) as source,
        _replace_file(target) as file,
        bars("Exporting", source.rows) as step,
        form.writer(software_dir, patience_s, bars) as begin,
        begin(file, source.schema) as sink,
    ):
        seen = _track_subjects(selection)
        done = 0
        for batch in source.batches:
            sink.write(batch)
            seen.add(batch)
            done += batch.num_rows
            step(done)
        seen.attach_companions(store, sink)
    return done


def export_partitions(
    store: Store,
    selection: Selection,
    folder: Path,
    suffix: str,
    *,
    software_dir: Path,
    bars: ProgressFactory = no_progress,
) -> tuple[int, int]:
    """Write the selected measurements to a folder with one part for each campaign.

    The parts are ``campaign_id=ID/part.SUFFIX``, all with the same columns; those of Parquet leave
    ``campaign_id`` to the name of their folder, as its readers expect.  A campaign of which nothing
    was measured has a part without rows, when there are no conditions.  The folder appears when it
    is complete, in place of an earlier export of that name, which stays as it is until then.

    Args:
        store: where the measurements are.
        selection: which.
        folder: to write.
        suffix: ``.root``, ``.csv`` or ``.parquet``.
        software_dir: the cached ROOT environments (for ``.root``).
        bars: opens progress bars.

    Returns:
        the number of rows, and of campaigns.

    Raises:
        ConfigError: there is something else of that name.
        NothingToDo: nothing is selected.
        SoftwareError: there is no ROOT for ``.root``.
        StoreError: the database cannot be read, or a file cannot be written.
    """
    form = FORMATS[suffix]
    with (
        _open_selection(store, selection, form) as source,
        partitions.replace_folder(folder) as staged,
        bars("Exporting", source.rows) as step,
        form.writer(software_dir, None, bars) as begin,
    ):
        parts = partitions.PartitionWriter(staged, suffix, source.schema)

        @contextmanager
        def part(campaign: str) -> Iterator[tuple[ExportSink, _ExportedSubjects]]:
            file, schema = parts.begin_part(campaign)
            seen = _ExportedSubjects([campaign])
            with begin(file, schema) as sink:
                yield sink, seen
                seen.attach_companions(store, sink)

        for campaign, batches in partitions.split_by_campaign(source.batches):
            with part(campaign) as (sink, seen):
                for batch in batches:
                    seen.add(batch)
                    sink.write(parts.select_part_columns(batch))
                    step(parts.rows)
        for campaign in _find_unmeasured(store, selection, parts.campaigns):
            with part(campaign):
                pass
        parts.write_manifest(_export_metadata(selection))
    return parts.rows, len(parts.campaigns)


@contextmanager
def _open_selection(
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
    """The campaigns and datasets of the measurements that were written."""

    def __init__(self, campaigns: Iterable[str] | None = ()) -> None:
        self._campaigns = None if campaigns is None else set(campaigns)
        self._datasets: set[str] = set()

    def add(self, batch: pa.RecordBatch) -> None:
        self._datasets.update(pc.unique(batch.column("dataset_hash")).to_pylist())
        if self._campaigns is not None:
            self._campaigns.update(pc.unique(batch.column(CAMPAIGN_COLUMN)).to_pylist())

    def attach_companions(self, store: Store, sink: ExportSink) -> None:
        """Let everything that is known of them travel along; of all when nothing was selected."""
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
    """The campaigns that belong to the selection and have no measurement."""
    if selection.conditions:
        return []
    wanted = selection.campaigns or [campaign.id for campaign in store.campaigns()]
    return sorted(set(wanted) - set(measured))


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
            f"cannot tell a format from {target.suffix or 'a name without a suffix'!r}",
            where=str(target),
            hint=f"Give a name that ends in {', '.join(FORMATS)}; for a folder with one file for "
            "each campaign add --partition campaign.",
        )
    if target.is_dir() or not target.absolute().parent.is_dir():
        what = "is a folder" if target.is_dir() else "its folder does not exist"
        raise ConfigError(what, where=str(target), hint="Give the name of a file to write.")
    return form


@contextmanager
def _replace_file(target: Path) -> Iterator[Path]:
    """A file beside ``target`` that takes its place when all went well, and goes away else."""
    file = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with partitions.translate_write_errors(target):
            yield file
            file.replace(target)
    finally:
        file.unlink(missing_ok=True)
