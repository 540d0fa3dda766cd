"""Import of measurements and companion tables from other installations.

A measurement is added once, however often and from however many files it arrives; see
:class:`treehammer.sql.write.store.Store`. Invalid rows are reported by file, row and column and do
not stop the import.

Only finished jobs are merged: the installation that submitted a job follows it, and its batch system
cannot be queried here.  Unfinished jobs that are followed here stay unchanged.  Of a job that finished
on both sides, the later attempt wins.  A job that was uploaded while it ran has ended as the file
says, unless it was queued anew since.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

from treehammer.collectors.job_spec import FINAL_JOB_STATES
from treehammer.collectors.record.measurement_record import EXTRA_NAME, Measurement, RecordError
from treehammer.collectors.record.metric_catalogue import CATALOGUE, METRICS_BY_NAME
from treehammer.errors import ForeignCampaignError, MeasurementFileError
from treehammer.sql.core.measurement_columns import EXTRA_PREFIX
from treehammer.sql.core.rows import (
    LOCAL_OWNER,
    AttemptRow,
    CampaignRow,
    InstructionRow,
    JobRow,
    ReplicaRow,
)
from treehammer.sql.transfer.arrow_stream import OPERATIONS_COLUMN
from treehammer.sql.transfer.measurement_files import (
    READABLE_SUFFIX,
    MeasurementFile,
    list_documents,
    open_measurement_file,
    parse_rows,
)
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import Store
from treehammer.text_formatting import ProgressCallback, ProgressFactory, join_names
from treehammer.version import __version__

AddMeasurements = Callable[[Sequence[Measurement]], AddResult]
_EXTRA_COLUMN = re.compile(re.escape(EXTRA_PREFIX) + EXTRA_NAME.lstrip("^"))
#: Maximum numbers of problems and identities listed for one file.
MAX_LISTED = 20


@dataclass
class ImportResult:
    """Outcome of importing one file.

    Attributes:
        file: its path.
        new: number of measurements added.
        duplicates: number of measurements that existed with the same content.
        conflicts: number of measurements that existed with other content, which is kept.
        invalid: number of measurements that are not valid.
        campaigns: number of campaigns added.
        conflicting_ids: identities of the first conflicts.
        problems: messages on the first invalid measurements or on the whole file.
        missing_columns: catalogue columns that the file lacks; their values are unknown.
        ignored_columns: columns of the file that this version does not know.
        remarks: of the reader of another program's file.
    """

    file: Path
    new: int = 0
    duplicates: int = 0
    conflicts: int = 0
    invalid: int = 0
    campaigns: int = 0
    conflicting_ids: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    missing_columns: tuple[str, ...] = ()
    ignored_columns: tuple[str, ...] = ()
    remarks: list[str] = field(default_factory=list)

    def count(self, part: AddResult) -> None:
        """Count measurements that were added or compared."""
        self.new += part.new
        self.duplicates += part.duplicates
        self.conflicts += len(part.conflicting)
        self.conflicting_ids += part.conflicting[: MAX_LISTED - len(self.conflicting_ids)]

    def describe_remarks(self) -> list[str]:
        """Describe conflicts and columns for the user."""
        remarks = [*self.remarks]
        remarks += [
            f"{id_} arrived with other content; the existing one is kept"
            for id_ in self.conflicting_ids
        ]
        if self.conflicts > len(remarks):
            remarks.append(f"and {self.conflicts - len(remarks)} more")
        if self.missing_columns:
            remarks.append(
                f"missing columns, unknown in all rows: {join_names(self.missing_columns, MAX_LISTED)}"
            )
        if self.ignored_columns:
            remarks.append(f"ignored columns: {join_names(self.ignored_columns, MAX_LISTED)}")
        if self.invalid > len(self.problems):
            remarks.append(f"more invalid rows: {self.invalid - len(self.problems)}")
        return [f"{self.file}: {line}" for line in remarks]


@dataclass(frozen=True)
class ImportedRows:
    """Rows that a vertical read from a file of another program."""

    campaign: CampaignRow
    jobs: Sequence[JobRow]
    measurements: Sequence[Measurement]
    remarks: Sequence[str] = ()


#: Reads files of other programs; returns None for a file of another kind.
RowReader = Callable[[Path], ImportedRows | None]


def list_files(paths: Iterable[Path]) -> list[Path]:
    """Collect files and the files of folders.

    Raises:
        MeasurementFileError: a folder contains none.
    """
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        parts = [
            part
            for part in sorted(path.rglob("*"))
            if part.suffix.lower() == READABLE_SUFFIX
            and not any(name.startswith((".", "_")) for name in part.relative_to(path).parts)
        ]
        if not parts:
            raise MeasurementFileError(
                "no file in this folder can be imported",
                where=str(path),
                hint=f"Folders are searched for {READABLE_SUFFIX}; name .json and .darshan themselves.",
            )
        files += parts
    return files


def import_files(
    store: Store,
    files: Sequence[Path],
    *,
    ignore_unknown: bool,
    dry_run: bool,
    bars: ProgressFactory,
    group: str = LOCAL_OWNER,
    readers: Sequence[RowReader] = (),
) -> list[ImportResult]:
    """Import files one after the other; an unreadable file does not stop the others.

    Args:
        store: the store to fill.
        files: see :func:`list_files`.
        ignore_unknown: skip columns that this version does not know instead of the file.
        dry_run: only count; write nothing.
        bars: opens the progress bar.
        group: gets the campaigns that have no owner here.
        readers: read the files of other programs.

    Raises:
        StoreError: the database cannot be written; importing again adds the rest.
    """
    results: list[ImportResult] = []
    campaigns: set[str] | None = set() if dry_run else None
    with (
        _count_only(store) if dry_run else nullcontext(partial(store.add, group=group)) as add,
        bars("Importing", sum(filter(None, map(_count_rows, files)))) as step,
    ):
        before = 0
        for file in files:
            result = ImportResult(file)
            results.append(result)
            try:
                if rows := _read_rows(file, readers):
                    _merge_rows(store, add, rows, result, campaigns, group=group)
                    continue
                with open_measurement_file(file) as incoming:
                    columns = _select_columns(file, incoming.columns, result, ignore_unknown)
                    _add_batches(add, incoming, columns, result, step, before)
                    before += incoming.rows
                    result.campaigns = merge_companions(store, incoming, campaigns, group=group)
            except MeasurementFileError as error:
                result.problems.append(str(error) if error.where else f"{file}: {error}")
            except ForeignCampaignError as error:
                result.problems.append(f"{file}: {error}; the rest of the file was not imported")
    if not dry_run:
        # Even without new measurements: an imported finding may concern measurements from long ago.
        store.mark_bad_replicas()
    return results


def is_readable(file: Path, readers: Sequence[RowReader] = ()) -> bool:
    """Return whether a file can be opened."""
    with suppress(MeasurementFileError):
        if _read_rows(file, readers):
            return True
    return _count_rows(file) is not None


def _read_rows(path: Path, readers: Sequence[RowReader]) -> ImportedRows | None:
    return next((rows for reader in readers if (rows := reader(path))), None)


def _merge_rows(
    store: Store,
    add: AddMeasurements,
    rows: ImportedRows,
    result: ImportResult,
    counted_ids: set[str] | None,
    *,
    group: str,
) -> None:
    """Import the rows of another program's file, as :func:`merge_companions` does."""
    existing_ids = {campaign.id for campaign in store.campaigns()} | (counted_ids or set())
    result.campaigns = int(rows.campaign.id not in existing_ids)
    result.remarks += rows.remarks
    if counted_ids is None:
        store.add_campaign(rows.campaign, rows.jobs, group=group)
    else:
        counted_ids.add(rows.campaign.id)
    result.count(add(rows.measurements))


def _count_rows(file: Path) -> int | None:
    """Count the rows of a file; None if it is unreadable, which the import reports."""
    try:
        with open_measurement_file(file) as incoming:
            return incoming.rows
    except MeasurementFileError:
        return None


def _select_columns(
    path: Path, names: Sequence[str], result: ImportResult, ignore_unknown: bool
) -> dict[str, str]:
    """Choose the columns to read; return name -> type."""
    kinds = _list_column_types(names)
    result.ignored_columns = tuple(name for name in names if name not in kinds)
    result.missing_columns = tuple(
        metric.name
        for metric in CATALOGUE
        if metric.name not in {*kinds, "storage_site"}  # by default the site itself
    )
    if required := [name for name in result.missing_columns if METRICS_BY_NAME[name].required]:
        raise MeasurementFileError(
            f"required columns are missing: {join_names(required, MAX_LISTED)}",
            where=str(path),
            hint="It is not an export of Treehammer, or columns were removed.",
        )
    if result.ignored_columns and not ignore_unknown:
        raise MeasurementFileError(
            f"columns unknown to this version ({__version__}): {join_names(result.ignored_columns, MAX_LISTED)}",
            where=str(path),
            hint="Import it with the version that wrote it or a newer one, or skip these columns: "
            "--ignore-unknown.",
        )
    return kinds


def _list_column_types(names: Sequence[str]) -> dict[str, str]:
    """List the types of known columns, of the catalogue and of metrics that tests define."""
    types = {name: metric.type for name in names if (metric := METRICS_BY_NAME.get(name))}
    types |= {name: "float" for name in names if _EXTRA_COLUMN.fullmatch(name)}
    return types | {name: OPERATIONS_COLUMN for name in names if name == OPERATIONS_COLUMN}


def _add_batches(
    add: AddMeasurements,
    incoming: MeasurementFile,
    kinds: Mapping[str, str],
    result: ImportResult,
    step: ProgressCallback,
    before: int,
) -> None:
    """Add valid rows and record problems of the others; ``before`` rows are of earlier files."""
    rows = 0
    for batch in incoming.batches([*kinds]):
        measurements = []
        for document in list_documents(batch, kinds):
            rows += 1
            try:
                measurements.append(Measurement.from_document(document))
            except RecordError as error:
                result.invalid += 1
                if len(result.problems) < MAX_LISTED:
                    result.problems.append(f"{result.file}: row {rows}: {error}")
        result.count(add(measurements))
        step(before + rows)


@contextmanager
def _count_only(store: Store) -> Iterator[AddMeasurements]:
    """Count the effects of adding measurements without adding them.

    Those that were counted are added to a temporary database: there may be millions.
    """
    with (
        TemporaryDirectory() as folder,
        Store.open(f"sqlite:///{folder}/counted.db") as scratch,
    ):

        def add(measurements: Sequence[Measurement]) -> AddResult:
            repeated = scratch.add(measurements)
            repetitions = Counter((*repeated.duplicate_ids, *repeated.conflicting))
            first = []
            for measurement in reversed(measurements):
                if repetitions[measurement.id]:
                    repetitions[measurement.id] -= 1
                else:
                    first.append(measurement)
            preview = store.preview_add(reversed(first))
            conflicting = (*preview.conflicting, *repeated.conflicting)
            return AddResult(preview.new, preview.duplicates + repeated.duplicates, conflicting)

        yield add


def merge_companions(
    store: Store, incoming: MeasurementFile, counted_ids: set[str] | None, *, group: str
) -> int:
    """Import companion tables of a file; existing rows are kept.

    Args:
        store: to fill.
        incoming: a file.
        counted_ids: campaigns of files before, to which its own are added: only count, write nothing.
        group: gets the campaigns that have no owner here.

    Returns:
        how many campaigns were not there.
    """
    existing_ids = {campaign.id for campaign in store.campaigns()} | (counted_ids or set())
    batches = [parse_rows(CampaignRow, batch) for batch in incoming.companion("campaign")]
    new = {row.id: row for row in chain.from_iterable(batches) if row.id not in existing_ids}
    if counted_ids is not None:
        counted_ids.update(new)
        return len(new)
    for campaign in new.values():
        store.add_campaign(campaign, [], group=group)
    _merge_jobs(store, incoming)
    for batch in incoming.companion("replica"):
        store.add_replicas(parse_rows(ReplicaRow, batch))
    _merge_instruction_counts(store, incoming)
    return len(new)


def _merge_instruction_counts(store: Store, incoming: MeasurementFile) -> None:
    # Rows of two counts never mix: a stored one is kept unchanged.
    stored_ids = {row.count_id for row in store.instruction_counts()}
    for batch in incoming.companion("instruction_count"):
        rows = parse_rows(InstructionRow, batch)
        store.add_instruction_counts(row for row in rows if row.count_id not in stored_ids)


def _merge_jobs(store: Store, incoming: MeasurementFile) -> None:
    """Merge finished jobs, then their attempts."""
    campaigns = {campaign.id: campaign for campaign in store.campaigns()}
    merged: dict[str, JobRow] = {}
    for batch in incoming.companion("job"):
        by_campaign: defaultdict[str, list[JobRow]] = defaultdict(list)
        for job in parse_rows(JobRow, batch):
            if job.state in FINAL_JOB_STATES:
                by_campaign[job.campaign_id].append(job)
        for campaign_id in sorted(by_campaign.keys() & campaigns.keys()):
            merged |= _merge_jobs_of(store, campaigns[campaign_id], by_campaign[campaign_id])
    for batch in incoming.companion("attempt"):
        attempts = [row for row in parse_rows(AttemptRow, batch) if row.job_id in merged]
        store.set_jobs(merged[id_] for id_ in _merge_attempts(store, attempts))


def _merge_attempts(store: Store, attempts: Sequence[AttemptRow]) -> set[str]:
    """Merge attempts; return the jobs that have a later one than before."""
    existing: defaultdict[str, dict[int, AttemptRow]] = defaultdict(dict)
    for attempt in store.attempts(attempt.job_id for attempt in attempts):
        existing[attempt.job_id][attempt.number] = attempt
    # More complete than the stored ones: missing, or ended since.
    news = [
        attempt
        for attempt in attempts
        if not (before := existing[attempt.job_id].get(attempt.number))
        or (before.state not in FINAL_JOB_STATES and attempt.state in FINAL_JOB_STATES)
    ]
    store.set_attempts(news)
    return {a.job_id for a in news if a.number > max(existing[a.job_id], default=0)}


def _merge_jobs_of(
    store: Store, campaign: CampaignRow, jobs: Sequence[JobRow]
) -> dict[str, JobRow]:
    """Add missing jobs, and end reported ones; return all that the file may change."""
    existing = {job.id: job for job in store.jobs(campaign.id)}
    store.add_campaign(campaign, [job for job in jobs if job.id not in existing])
    merged: dict[str, JobRow] = {}
    for job in jobs:
        before = existing.get(job.id, job)
        if before.state in FINAL_JOB_STATES:
            merged[job.id] = job.as_external() if before.is_external else job
        elif before.is_external:
            merged[job.id] = job.as_external()
            if before.batch_id in ("", job.batch_id):  # not queued again since
                store.set_jobs([merged[job.id]])
    return merged
