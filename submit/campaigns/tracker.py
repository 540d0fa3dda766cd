"""Campaign tracker: copies the state of jobs from batch systems into the store.

The result does not depend on the caller or on how often it is called: states are copied, records
are added once by their identity, and rejected files stay on disk.

Submissions that are in progress on this machine, or were interrupted, are staged::

    FOLDER/
      CAMPAIGN/        one submission; removed when all its jobs are queued
        lock           held by the submitter as long as it lives
        rendered-*/    inputs of its jobs, until the batch systems have copied them
        jobs.json      descriptions of all its jobs; exists before the campaign is stored

With ``jobs.json`` any later process can queue the jobs that a killed submitter left.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from treehammer.collectors.job_spec import JobState
from treehammer.collectors.json_documents import format_json, parse_json
from treehammer.collectors.record.day_numbers import DAY_US, current_us
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.record.operation_steps import LoadProgress
from treehammer.collectors.record.outcome import INTERRUPTED_CLASSES
from treehammer.collectors.shared_files import hold_lock, is_locked, write_atomically
from treehammer.errors import BatchError, TreehammerError
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow
from treehammer.sql.read.campaign_counts import CampaignCount, count_campaign
from treehammer.sql.write.store import Store
from treehammer.submit.batch.interface import (
    BatchSystem,
    ExternalBatch,
    JobDescription,
    JobStatus,
    UnknownBatchSystemError,
)
from treehammer.submit.batch.job_folders import describe_os_error, is_disk_full
from treehammer.submit.campaigns.attempt_rows import (
    INVALID_RECORD,
    CollectResult,
    RejectedFile,
    build_attempt_rows,
    clear_recovered_failures,
    describe_holds,
    list_record_files,
    read_record,
    update_unknown_job,
)

#: Seconds for which the folder of a submission that cannot be resumed is kept.
SUBMITTER_GRACE_S = 120.0
#: Seconds for which the jobs of an interrupted submission can be queued.
RESUMABLE_S = 30 * DAY_US / 1e6
_UNCANCELLED_ENDS = (JobState.DONE.value, JobState.LOST.value)
_SUBMITTED_ELSEWHERE = (
    "jobs submitted from another data folder, submit_dir or machine are shown as at the last status "
    "there; if it is gone, they count as lost 30 days after their submission"
)
_DESCRIPTIONS = "jobs.json"
_RENDERED_PREFIX = "rendered-"


class CampaignTracker:
    """Keeps campaigns in the store up to date.

    Args:
        store: database of campaigns, jobs and measurements.
        batch_system: opens a batch system by name.
        now_us: clock, microseconds since 1970 UTC.
        under_way: whether a campaign, by its id, is being submitted; None if by another installation,
            then its age decides.
        upload: sends a campaign to the results service, see :meth:`.CampaignUploader.upload`.
        guard: acts on jobs at excluded sites, see :meth:`.ExclusionGuard.apply`.
    """

    def __init__(
        self,
        store: Store,
        batch_system: Callable[[str], BatchSystem],
        now_us: Callable[[], int] = current_us,
        under_way: Callable[[str], bool | None] = lambda _: None,
        upload: Callable[[Store, CampaignRow, bool], str] = lambda *_: "",
        guard: Callable[[CampaignTracker, CampaignRow], list[str]] = lambda *_: [],
    ) -> None:
        self.store = store
        self.batch_system = batch_system
        self.now_us = now_us
        self.under_way = under_way
        self._upload = upload
        self._guard = guard
        self.foreign_s = RESUMABLE_S  # for so long, others end the jobs that they submitted
        self._added: set[Path] = set()
        self._rejections: list[str] = []
        self._counted: dict[str, int] = {}
        self._unanswered: dict[str, BatchError] = {}
        self._unread_jobs: dict[str, str] = {}

    def refresh_jobs(self, campaign: CampaignRow) -> list[JobRow]:
        """Bring job states and attempts up to date and return all jobs.

        Jobs that are final in the store are not queried.  Jobs of a batch system that does not
        answer keep their state; :meth:`describe_obstacles` names it.

        Raises:
            BatchError: none of the batch systems with open jobs answers.
        """
        jobs = self._refresh_attempts(campaign)
        self._store_states(campaign, jobs)
        return [*jobs.values()]

    def _refresh_attempts(self, campaign: CampaignRow) -> dict[JobRow, JobRow]:
        """Bring attempts up to date; return each job as stored -> as it is now."""
        # Checked before the query: a submission that ends in between has queued its jobs by then.
        may_be_queued = self.under_way(campaign.id)
        if may_be_queued is None:
            may_be_queued = (self.now_us() - campaign.created_us) / 1e6 < self.foreign_s
        jobs = {job: job for job in self.store.jobs(campaign.id)}
        open_jobs = {job.id: job for job in filter(may_change, jobs)}
        if not open_jobs:
            return jobs
        stored_attempts = {(a.job_id, a.number): a for a in self.store.attempts(open_jobs)}
        attempts: list[AttemptRow] = []
        recorded = self.store.count_by_attempt(campaign.id)
        for job, status, batch in self._query_jobs(campaign, open_jobs.values()):
            if status is not None:
                state = status.state.value
                # The same object if unchanged, as most of ten thousand are.
                now = job if job.state == state else replace(job, state=state)
                rows = build_attempt_rows(job, status, batch, stored_attempts)
            else:
                now, rows = update_unknown_job(job, stored_attempts, may_be_queued=may_be_queued)
            jobs[open_jobs[job.id]], rows = clear_recovered_failures(now, rows, recorded)
            attempts += rows
        self.store.set_attempts(set(attempts) - set(stored_attempts.values()))
        if self._unanswered.keys() >= {job.batch_system for job in open_jobs.values()}:
            raise next(iter(self._unanswered.values()))
        return jobs

    def _store_states(self, campaign: CampaignRow, jobs: Mapping[JobRow, JobRow]) -> None:
        """Store the states of jobs, except those that another process changed, as a resumption does.

        After their attempts and records: a final job is not queried again, and for readers it misses
        the measurements that are not there.
        """
        stored_jobs = set(self.store.jobs(campaign.id))
        self.store.set_jobs(now for job, now in jobs.items() if now != job and job in stored_jobs)

    def _query_jobs(
        self, campaign: CampaignRow, jobs: Collection[JobRow]
    ) -> Iterator[tuple[JobRow, JobStatus | None, BatchSystem]]:
        """Yield the jobs of every batch system that answers, with their status, None if unknown."""
        for name, group in group_by_batch_system(jobs):
            try:
                batch = self.find_batch_system(name, group)
                if batch is None:
                    continue
                queued = _fill_batch_ids(group, batch)
                statuses = batch.query(job.batch_id for job in queued if job.batch_id)
            except BatchError as error:
                self._unanswered[name] = error
                continue
            self._unanswered.pop(name, None)
            open_ids = {b for b, status in statuses.items() if not status.state.is_final}
            ended = {job for job in queued if job.batch_id and job.batch_id not in open_ids}
            if ended and self.is_foreign(campaign, [name]):
                self._unread_jobs[name] = f"{name}: {_SUBMITTED_ELSEWHERE}"
                queued = [job for job in queued if job not in ended]
            yield from ((job, statuses.get(job.batch_id), batch) for job in queued)

    def is_foreign(self, campaign: CampaignRow, names: Collection[str]) -> bool:
        """Return whether another installation follows a campaign, without files in batch systems here."""
        is_here = any(campaign.id in self.batch_system(name).list_campaigns() for name in names)
        return not is_here and (self.now_us() - campaign.created_us) / 1e6 < self.foreign_s

    def update(self, campaign: CampaignRow) -> CampaignCount:
        """Bring jobs, attempts and measurements up to date and return the progress.

        Raises:
            StoreError: the store rejects the records; all are still on disk.
        """
        collected = self.collect_records(campaign, thorough=False)
        self._rejections += collected.describe_rejections()
        return self.compute_progress(campaign)

    def describe_obstacles(self, campaign: CampaignRow) -> list[str]:
        """List problems for the user: rejected files, silent batch systems, reasons for waiting."""
        open_jobs = [job for job in self.store.jobs(campaign.id) if may_change(job)]
        unqueued = describe_unqueued_jobs(campaign, open_jobs)
        lines = [*self._rejections, *filter(None, [unqueued])]
        for name, group in group_by_batch_system(open_jobs):
            if name in self._unanswered:
                lines.append(str(self._unanswered[name]))
                continue
            try:
                if batch := self.find_batch_system(name, group):
                    batch_ids = [job.batch_id for job in group if job.batch_id]
                    lines += batch.explain_waiting(batch_ids)
                    lines += describe_holds(batch.query(batch_ids).values())
            except BatchError as error:
                lines.append(str(error))
        return list(dict.fromkeys((*lines, *self.describe_unread_jobs())))

    def read_load_steps(self, campaign: CampaignRow) -> list[LoadProgress]:
        """Return the last time step of each load that runs, as :meth:`refresh_jobs` saw the jobs."""
        steps: list[LoadProgress] = []
        running = [
            job
            for job in self.store.jobs(campaign.id)
            if may_change(job) and job.state == JobState.RUNNING.value
        ]
        for name, group in group_by_batch_system(running):
            with suppress(BatchError):  # others may answer
                if batch := self.find_batch_system(name, group):
                    steps += batch.read_load_steps(job.batch_id for job in group)
        return steps

    def collect_records(self, campaign: CampaignRow, *, thorough: bool = True) -> CollectResult:
        """Bring jobs and attempts up to date, and add the records of all, including running ones.

        Args:
            campaign: the campaign.
            thorough: also read records of ended jobs that the store has completely.

        Raises:
            BatchError: none of the batch systems with open jobs answers.
            StoreError: the store rejects the records; all are still on disk.
        """
        jobs = self._refresh_attempts(campaign)
        states = {(a.job_id, a.number): a.state for a in self.store.attempts(j.id for j in jobs)}
        starts = Counter(job_id for job_id, _ in states)
        readable = self._select_jobs_to_read(campaign, jobs.values(), starts, thorough)
        rejected: list[RejectedFile] = []
        paths: list[Path] = []
        try:
            result = self.store.add(self._read_records(readable, states, paths, rejected))
        finally:
            # Their files have been moved, so that no later call would find them.
            self._fail_rejected_attempts(rejected)
        self._added.update(paths)
        self._store_states(campaign, jobs)
        self._clear_recovered_failures(campaign)
        return CollectResult(result.new, result.duplicates, result.conflicting, tuple(rejected))

    def _read_records(
        self,
        jobs: Iterable[JobRow],
        states: Mapping[tuple[str, int], str],
        paths: list[Path],
        rejected: list[RejectedFile],
    ) -> Iterator[Measurement]:
        """Yield the new records of jobs; note their paths, and the files that are rejected."""
        for job in jobs:
            for attempt, sandbox in self.sandboxes(job).items():
                # Executions that a cancellation may have interrupted count against no site.
                is_over = states.get((job.id, attempt)) in _UNCANCELLED_ENDS
                for path in list_record_files(sandbox):
                    if path in self._added:
                        continue
                    measurement = read_record(path, job, attempt, rejected)
                    if measurement is None:
                        continue
                    failure = measurement.values.get("failure_class")
                    if is_over or failure not in INTERRUPTED_CLASSES:
                        paths.append(path)
                        yield measurement

    def _select_jobs_to_read(
        self, campaign: CampaignRow, jobs: Collection[JobRow], starts: Counter[str], thorough: bool
    ) -> list[JobRow]:
        counts = {} if thorough else self.store.count_by_attempt(campaign.id)
        recorded = {job_id: count for (job_id, _), count in counts.items()}

        def may_have_more(job: JobRow) -> bool:
            # Earlier attempts may have records too.
            is_alone = starts[job.id] == 1 and JobState(job.state).is_final
            return not is_alone or recorded.get(job.id, 0) < job.planned_measurements

        return [job for job in jobs if job.batch_id and starts[job.id] and may_have_more(job)]

    def _clear_recovered_failures(self, campaign: CampaignRow) -> None:
        """Update attempts and replicas after new measurements arrived by either way."""
        recorded = self.store.count_by_attempt(campaign.id)
        count = sum(recorded.values())
        if count == self._counted.get(campaign.id, 0):
            return
        self._counted[campaign.id] = count
        self.store.mark_bad_replicas()  # a replica may have been found bad after it was read
        jobs = {job.id: job for job in self.store.jobs(campaign.id) if JobState(job.state).is_final}
        changed_attempts: set[AttemptRow] = set()
        changed_jobs: set[JobRow] = set()
        for job_id, attempts in groupby(self.store.attempts(jobs), lambda row: row.job_id):
            before = [*attempts]
            job, after = clear_recovered_failures(jobs[job_id], before, recorded)
            changed_attempts |= set(after) - set(before)
            changed_jobs |= {job} - {jobs[job_id]}
        self.store.set_attempts(changed_attempts)
        self.store.set_jobs(changed_jobs)

    def _fail_rejected_attempts(self, rejected: Sequence[RejectedFile]) -> None:
        """Mark attempts with rejected records as failed."""
        for item in rejected:
            for attempt in self.store.attempts([item.job_id]):
                if attempt.number == item.attempt and not attempt.failure_class:
                    path = str(item.path).encode(errors="replace").decode()
                    message = f"{INVALID_RECORD} ({item.reason}): {path}"
                    failed = replace(attempt, failure_class="upload", message=message)
                    self.store.set_attempts([failed])

    def cancel(self, campaign: CampaignRow) -> int:
        """Cancel the campaign's jobs that are not final and return their number."""
        count = 0
        for name, group in group_by_batch_system(self._refresh_attempts(campaign).values()):
            # Ended jobs may have been purged.
            open_ids = [j.batch_id for j in group if j.batch_id and not JobState(j.state).is_final]
            if open_ids:
                is_foreign = self.is_foreign(campaign, [name])
                batch = ExternalBatch(name) if is_foreign else self.batch_system(name)
                count += batch.cancel(open_ids)
        return count

    def act_on_excluded_sites(self, campaign: CampaignRow) -> list[str]:
        """Remove or hold queued jobs at excluded sites; return a line for each site.

        Raises:
            BatchError: a batch system does not answer.
        """
        return self._guard(self, campaign)

    def upload_campaign(self, campaign: CampaignRow, *, everything: bool = False) -> list[str]:
        """Send changes of a campaign, or all of it, to the results service if one is configured.

        Returns:
            A line for the user if the service could not be reached, else nothing.
        """
        line = self._upload(self.store, campaign, everything)
        return [line] if line else []

    def find_batch_system(self, name: str, jobs: Iterable[JobRow]) -> BatchSystem | None:
        """Open the batch system of some jobs; None if it is unknown and all of them have ended.

        Such jobs were submitted by another installation and left nothing on this one.
        """
        try:
            return self.batch_system(name)
        except UnknownBatchSystemError as error:
            if not all(JobState(job.state).is_final for job in jobs):
                raise
            self._unread_jobs[name] = f"{error.message}: the output of its jobs is not read"
            return None

    def sandboxes(self, job: JobRow) -> Mapping[int, Path]:
        """Return attempt -> output folder of a job, as far as the output has arrived."""
        batch = self.find_batch_system(job.batch_system, [job])
        return batch.sandboxes(job.batch_id) if batch else {}

    def describe_unread_jobs(self) -> list[str]:
        """List the batch systems of jobs whose files are not read here, a line each."""
        return list(self._unread_jobs.values())

    def compute_progress(self, campaign: CampaignRow) -> CampaignCount:
        """Count the campaign's jobs and measurements in the store."""
        return count_campaign(self.store, campaign.id, self.now_us())


def describe_unqueued_jobs(campaign: CampaignRow, jobs: Iterable[JobRow]) -> str:
    """Describe jobs that an interrupted submission left, with the remedy; '' if there are none."""
    lost = JobState.LOST.value
    count = sum(job.state == lost and not job.batch_id and not job.is_external for job in jobs)
    if not count:
        return ""
    were = "job was" if count == 1 else "jobs were"
    return f"{count} {were} never queued; to queue them: treehammer resume {campaign.id}"


def may_change(job: JobRow) -> bool:
    """Return whether the batch system may know a newer state of a job than the store."""
    return not (job.is_external or (job.batch_id and JobState(job.state).is_final))


def group_by_batch_system(jobs: Collection[JobRow]) -> Iterator[tuple[str, list[JobRow]]]:
    """Yield the jobs of each batch system by its name."""
    for name in sorted({job.batch_system for job in jobs}):
        yield name, [job for job in jobs if job.batch_system == name]


def _fill_batch_ids(jobs: Sequence[JobRow], batch: BatchSystem) -> list[JobRow]:
    """Fill in batch ids that a killed submitter could not store."""
    batch_ids = batch.find([job.id for job in jobs if not job.batch_id])
    return [replace(job, batch_id=batch_ids.get(job.id, job.batch_id)) for job in jobs]


@dataclass(frozen=True)
class StagedSubmission:
    """Rendered jobs of one submission, whose lock is held.

    Attributes:
        path: folder of the submission.
        rendered: an empty folder for the inputs of its jobs.
    """

    path: Path
    rendered: Path

    def write(self, jobs: Iterable[JobDescription]) -> None:
        """Store the descriptions of all jobs in place of earlier ones.

        Raises:
            OSError: the file cannot be written; the earlier ones remain.
        """
        resolved = [
            replace(job, inputs={name: path.absolute() for name, path in job.inputs.items()})
            for job in jobs
        ]
        write_atomically(self.path / _DESCRIPTIONS, format_json(resolved))
        _remove_rendered(self.path, spared=self.rendered)

    def read(self) -> list[JobDescription]:
        """Read the descriptions of all jobs; empty if the submitter stored none.

        Raises:
            BatchError: the file is damaged.
        """
        path = self.path / _DESCRIPTIONS
        try:
            return parse_json(list[JobDescription], path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BatchError(
                f"damaged submission ({error})",
                where=str(path),
                hint="Remove this folder and submit again.",
            ) from error

    def remove(self) -> None:
        """Remove the submission: its jobs are queued, or never will be."""
        # First, so that a process killed here leaves no descriptions without their inputs.
        (self.path / _DESCRIPTIONS).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


class StagedSubmissions:
    """Submissions made from one data folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def hold(self, campaign_id: str) -> Iterator[StagedSubmission]:
        """Hold a submission while the block runs.

        The inputs of jobs whose descriptions were written outlive a block that fails; the block
        removes the submission when all jobs are queued.

        Raises:
            BatchError: the folder cannot be created, or a file in it cannot be written.
        """
        path = self.folder / campaign_id
        try:
            self._remove_stale()
            with hold_lock(path / "lock"):
                rendered = Path(tempfile.mkdtemp(prefix=_RENDERED_PREFIX, dir=path))
                staged = StagedSubmission(path, rendered)
                try:
                    yield staged
                except BaseException:
                    # The lock file stays to show that this submission has ended.
                    with suppress(OSError):
                        rendered.rmdir()
                    if not (path / _DESCRIPTIONS).exists():
                        _remove_rendered(path)
                    raise
        except BatchError:
            raise
        except (OSError, TreehammerError) as error:
            reason = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(reason, OSError) or (
                reason is not error and not is_disk_full(reason)
            ):
                raise
            raise BatchError(
                f"the submission cannot be prepared ({describe_os_error(reason)})",
                where=str(self.folder),
                hint="Nothing was submitted. Free disk space, or choose another --data-dir.",
            ) from error

    def is_under_way(self, campaign_id: str) -> bool | None:
        """Return whether the campaign is being submitted; None if this machine does not know it."""
        path = self.folder / campaign_id
        return is_locked(path / "lock") if path.is_dir() else None

    def is_resumable(self, campaign_id: str) -> bool:
        """Return whether the jobs that a submitter left can be queued from here."""
        return (self.folder / campaign_id / _DESCRIPTIONS).exists()

    def remove(self, campaign_id: str) -> None:
        """Remove the rest of a submission that is not to be resumed."""
        path = self.folder / campaign_id
        if path.is_dir() and not is_locked(path / "lock"):
            StagedSubmission(path, path).remove()

    def _remove_stale(self) -> None:
        """Remove leftovers of killed submitters when they can no longer be resumed."""
        for entry in self.folder.glob("*"):
            limit_s = RESUMABLE_S if self.is_resumable(entry.name) else SUBMITTER_GRACE_S
            with suppress(FileNotFoundError):  # another process removed it
                if time.time() - entry.stat().st_mtime > limit_s:
                    self.remove(entry.name)


def _remove_rendered(folder: Path, spared: Path | None = None) -> None:
    """Remove the inputs of jobs that submitters left, except those of one submitter."""
    for path in folder.glob(f"{_RENDERED_PREFIX}*"):
        if path != spared:
            shutil.rmtree(path, ignore_errors=True)
