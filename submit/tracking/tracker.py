"""Tracking: what batch systems know of a campaign, brought into the store.

Nothing here depends on who submitted or how often it is called: states are copied, records are
added once by their identity, and what cannot be added stays on disk.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from treehammer.collectors.job_state import JobState
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.record.outcome import OUTCOME_COLUMNS
from treehammer.errors import BatchError
from treehammer.sql.core.rows import AttemptRow, CampaignRow, JobRow
from treehammer.sql.write.store import Store
from treehammer.submit.batch.interface import BatchSystem, UnknownBatchSystemError
from treehammer.submit.tracking.attempt_rows import (
    INVALID_RECORD,
    RecordedCounts,
    build_attempt_rows,
    clear_recovered_failures,
    last_attempt_of,
    mark_job_gone,
)
from treehammer.submit.tracking.failure_summary import (
    is_from_last_attempt,
    load_last_attempts,
    name_failure,
    select_failed_measurements,
)
from treehammer.submit.tracking.record_files import (
    CollectResult,
    RejectedFile,
    list_record_files,
    read_record,
)
from treehammer.submit.tracking.submission_locks import SUBMITTER_GRACE_S


@dataclass(frozen=True)
class TrackingProgress:
    """How far a campaign is.

    Attributes:
        states: site -> state -> jobs.
        done: planned measurements that are on record, or will never come.
        planned: measurements that were planned.
        failures: site -> class -> failed measurements, and jobs whose last attempt left too few;
            what came back whole but cannot be true counts as ``implausible``.  Attempts that were
            followed by another count for nothing.
        remaining_s: expected seconds to the end at the pace so far, None while that is unknown.
    """

    states: Mapping[str, Mapping[str, int]]
    finished_measurements: int
    planned_measurements: int
    failures: Mapping[str, Mapping[str, int]]
    remaining_s: float | None

    @property
    def is_finished(self) -> bool:
        """Whether every job is final."""
        return all(JobState(state).is_final for site in self.states.values() for state in site)

    def describe_jobs(self) -> str:
        """One line for a progress bar."""
        jobs: Counter[str] = Counter()
        for states in self.states.values():
            jobs.update(states)
        failed = sum(sum(classes.values()) for classes in self.failures.values())
        parts = [f"{jobs[s.value]} {s.value}" for s in JobState if jobs[s.value]]
        return ", ".join([*parts, f"{failed} failed"] if failed else parts)


class CampaignTracker:
    """Keeps the store's picture of campaigns up to date.

    Args:
        store: where campaigns, jobs and measurements are kept.
        batch_system: name -> batch system.
        now_us: microseconds since 1970 UTC.
        under_way: whether the campaign of that identity is being submitted just now; None where
            that cannot be told, which its age then decides.
        tell: hands what is known of a campaign in to a results service; see
            :meth:`.handing_in.HandingIn.tell`.
    """

    def __init__(
        self,
        store: Store,
        batch_system: Callable[[str], BatchSystem],
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        under_way: Callable[[str], bool | None] = lambda _: None,
        tell: Callable[[Store, CampaignRow, bool], str] = lambda *_: "",
    ) -> None:
        self.store = store
        self.batch_system = batch_system
        self.now_us = now_us
        self.under_way = under_way
        self._tell = tell
        self._added: set[Path] = set()
        self._told: list[str] = []
        self._counted: dict[str, int] = {}
        self._unanswered: dict[str, BatchError] = {}
        self._elsewhere: dict[str, str] = {}

    def refresh_jobs(self, campaign: CampaignRow) -> list[JobRow]:
        """Bring job states and attempts up to date and return the jobs.

        Jobs that the store knows to be over are not asked for again.  Those of a batch system that
        does not answer stay as they are, which :meth:`notes` tells.

        Raises:
            BatchError: no batch system that has anything to tell answers.
        """
        # Asked first: what a submission that ended meanwhile has queued is found below.
        being_submitted = self._is_being_submitted(campaign)
        before = self.store.jobs(campaign.id)
        open_jobs = [job for job in before if _may_change(job)]
        stored = {(a.job_id, a.number): a for a in self.store.attempts(j.id for j in open_jobs)}
        jobs = {job.id: job for job in before}
        attempts: list[AttemptRow] = []
        recorded = self.store.count_by_attempt(campaign.id) if open_jobs else {}
        for name, group in _group_by_batch_system(open_jobs):
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
            for job in queued:
                status = statuses.get(job.batch_id)
                now, rows = job, []
                if status is not None:
                    now = _with_state(job, status.state.value)
                    rows = build_attempt_rows(job, status, batch, stored)
                elif not JobState(job.state).is_final and (job.batch_id or not being_submitted):
                    now, row = mark_job_gone(job, last_attempt_of(stored, job.id))
                    rows = [row]
                jobs[job.id], rows = clear_recovered_failures(now, rows, recorded)
                attempts += rows
        # Attempts first: a job that is stored as final is not looked at again.
        self.store.set_attempts(set(attempts) - set(stored.values()))
        self.store.set_jobs(set(jobs.values()) - set(before))
        if open_jobs and self._unanswered.keys() >= {job.batch_system for job in open_jobs}:
            raise next(iter(self._unanswered.values()))
        return list(jobs.values())

    def _is_being_submitted(self, campaign: CampaignRow) -> bool:
        """Whether jobs that no batch system knows may still be on their way."""
        known = self.under_way(campaign.id)
        if known is not None:
            return known
        return (self.now_us() - campaign.created_us) / 1e6 < SUBMITTER_GRACE_S

    def update(self, campaign: CampaignRow) -> TrackingProgress:
        """Bring everything up to date, measurements included, and say how far the campaign is.

        Raises:
            StoreError: the store refuses; every record is still on disk.
        """
        self.refresh_jobs(campaign)
        collected = self.collect_records(campaign, thorough=False)
        self._told += collected.describe_rejections()
        return self.compute_progress(campaign)

    def describe_obstacles(self, campaign: CampaignRow) -> list[str]:
        """What a user should know: files that are no records, and why no job starts."""
        open_jobs = [job for job in self.store.jobs(campaign.id) if _may_change(job)]
        told = list(self._told)
        for name, group in _group_by_batch_system(open_jobs):
            if name in self._unanswered:
                told.append(str(self._unanswered[name]))
                continue
            try:
                if batch := self.find_batch_system(name, group):
                    told += batch.explain_waiting(job.batch_id for job in group if job.batch_id)
            except BatchError as error:
                told.append(str(error))
        return list(dict.fromkeys((*told, *self.describe_unknown_batch_systems())))

    def collect_records(self, campaign: CampaignRow, *, thorough: bool = True) -> CollectResult:
        """Add the records of all jobs, running ones included, to the store.

        Args:
            campaign: whose.
            thorough: read also the records of jobs that are over and of which the store has all.

        Raises:
            StoreError: the store refuses; every record is still on disk.
        """
        set_aside: list[RejectedFile] = []
        paths: list[Path] = []

        def valid() -> Iterator[Measurement]:
            for job in self._select_jobs_to_read(campaign, thorough):
                for attempt, path in self._list_new_records(job):
                    measurement = read_record(path, job, attempt, set_aside)
                    if measurement is not None:
                        paths.append(path)
                        yield measurement

        try:
            added = self.store.add(valid())
        finally:
            # They are out of the way already: nobody will find them again.
            self._fail_rejected_attempts(set_aside)
        self._added.update(paths)
        self._clear_recovered_failures(campaign)
        return CollectResult(added.new, added.known, tuple(added.conflicting), tuple(set_aside))

    def _select_jobs_to_read(self, campaign: CampaignRow, thorough: bool) -> list[JobRow]:
        jobs = self.store.jobs(campaign.id)
        starts = Counter(attempt.job_id for attempt in self.store.attempts(j.id for j in jobs))
        started = [job for job in jobs if starts[job.id]]
        if thorough:
            return started
        recorded = _count_by_job(self.store.count_by_attempt(campaign.id))

        def is_whole(job: JobRow) -> bool:
            # Of several attempts not only the last brings records.
            alone = starts[job.id] == 1 and JobState(job.state).is_final
            return alone and recorded[job.id] >= job.planned_measurements

        return [job for job in started if not is_whole(job)]

    def _clear_recovered_failures(self, campaign: CampaignRow) -> None:
        """Do what new measurements call for, whether they came with the jobs or by the service."""
        recorded = self.store.count_by_attempt(campaign.id)
        count = sum(recorded.values())
        if count == self._counted.get(campaign.id, 0):
            return
        self._counted[campaign.id] = count
        self.store.mark_bad_replicas()  # one that they read may have been found bad meanwhile
        jobs = {job.id: job for job in self.store.jobs(campaign.id)}
        attempts: dict[str, list[AttemptRow]] = defaultdict(list)
        for attempt in self.store.attempts(jobs):
            attempts[attempt.job_id].append(attempt)
        mended: list[AttemptRow] = []
        done: list[JobRow] = []
        for job_id, before in attempts.items():
            if JobState(jobs[job_id].state).is_final:
                job, after = clear_recovered_failures(jobs[job_id], before, recorded)
                mended += [row for row in after if row not in before]
                done += [job] if job != jobs[job_id] else []
        if mended or done:
            self.store.set_attempts(mended)
            self.store.set_jobs(done)

    def _fail_rejected_attempts(self, set_aside: Sequence[RejectedFile]) -> None:
        """Make attempts fail whose records did not come back whole."""
        for item in set_aside:
            for attempt in self.store.attempts([item.job_id]):
                if attempt.number == item.attempt and not attempt.failure_class:
                    message = f"{INVALID_RECORD} ({item.reason}): {item.path}"
                    failed = replace(attempt, failure_class="upload", message=message)
                    self.store.set_attempts([failed])

    def cancel(self, campaign: CampaignRow) -> int:
        """Cancel the campaign's jobs that are not final and return how many were."""
        count = 0
        for name, group in _group_by_batch_system(self.refresh_jobs(campaign)):
            # What is over may have been purged since.
            open_ids = [j.batch_id for j in group if j.batch_id and not JobState(j.state).is_final]
            count += self.batch_system(name).cancel(open_ids) if open_ids else 0
        self.refresh_jobs(campaign)
        return count

    def upload_campaign(self, campaign: CampaignRow, *, everything: bool = False) -> list[str]:
        """Tell the results service, where one is set up, what is new of a campaign, or all again.

        Returns:
            lines for the user: where it could not be told.
        """
        line = self._tell(self.store, campaign, everything)
        return [line] if line else []

    def _list_new_records(self, job: JobRow) -> list[tuple[int, Path]]:
        """Attempt and file of each record that this tracker has not added yet."""
        if not job.batch_id:
            return []
        sandboxes = self.sandboxes(job)
        files = (
            (n, path) for n, sandbox in sandboxes.items() for path in list_record_files(sandbox)
        )
        return [(number, path) for number, path in files if path not in self._added]

    def find_batch_system(self, name: str, jobs: Iterable[JobRow]) -> BatchSystem | None:
        """The batch system of jobs; None where they are over and nothing here tells what it is.

        Then they came from another installation, and left nothing here.
        """
        try:
            return self.batch_system(name)
        except UnknownBatchSystemError as error:
            if not all(JobState(job.state).is_final for job in jobs):
                raise
            self._elsewhere[name] = f"{error.message}: what its jobs left is not looked for"
            return None

    def sandboxes(self, job: JobRow) -> Mapping[int, Path]:
        """Attempt -> folder with its output, as far as it came and is here."""
        batch = self.find_batch_system(job.batch_system, [job])
        return batch.sandboxes(job.batch_id) if batch else {}

    def describe_unknown_batch_systems(self) -> list[str]:
        """A line for each batch system of jobs that are over of which nothing here tells."""
        return list(self._elsewhere.values())

    def compute_progress(self, campaign: CampaignRow) -> TrackingProgress:
        """How far the campaign is, from the store and the sandboxes of running jobs."""
        states: dict[str, Counter[str]] = defaultdict(Counter)
        failures: dict[str, Counter[str]] = defaultdict(Counter)
        jobs = {job.id: job for job in self.store.jobs(campaign.id)}
        last = load_last_attempts(self.store, jobs.values())
        recorded = self.store.count_by_attempt(campaign.id)
        done = 0
        for job in jobs.values():
            states[job.site][job.state] += 1
            attempt = last.get(job.id)
            done += self._count_finished(
                job, recorded.get((job.id, attempt.number), 0) if attempt else 0
            )
        for attempt in last.values():
            if attempt.failure_class:
                failures[jobs[attempt.job_id].site][attempt.failure_class] += 1
        columns = ("site", "job_id", "attempt", *OUTCOME_COLUMNS)
        for row in select_failed_measurements(self.store, campaign, columns):
            if is_from_last_attempt(row, last):
                failures[str(row["site"])][name_failure(row)] += 1
        planned = sum(job.planned_measurements for job in jobs.values())
        started = min((a.started_us for a in last.values() if a.started_us), default=0)
        remaining = None
        if started and 0 < done < planned:
            remaining = (self.now_us() - started) / 1e6 / done * (planned - done)
        return TrackingProgress(states, done, planned, failures, remaining)

    def _count_finished(self, job: JobRow, recorded: int) -> int:
        """Of how many measurements no more is expected; ``recorded`` are those of its last attempt."""
        if JobState(job.state).is_final:
            return job.planned_measurements
        if job.state != JobState.RUNNING.value:
            return 0
        sandboxes = self.batch_system(job.batch_system).sandboxes(job.batch_id)
        # What runs elsewhere has no sandbox here yet, but may have reported.
        return max(recorded, len(list_record_files(sandboxes[max(sandboxes)])) if sandboxes else 0)


def _may_change(job: JobRow) -> bool:
    """Whether its batch system may have news of a job."""
    return not (job.is_external or (job.batch_id and JobState(job.state).is_final))


def _group_by_batch_system(jobs: Sequence[JobRow]) -> Iterator[tuple[str, list[JobRow]]]:
    for name in sorted({job.batch_system for job in jobs}):
        yield name, [job for job in jobs if job.batch_system == name]


def _fill_batch_ids(jobs: Sequence[JobRow], batch: BatchSystem) -> list[JobRow]:
    """Fill in the batch ids that a killed submitter could not store."""
    missing = [job.id for job in jobs if not job.batch_id]
    found = batch.find(missing) if missing else {}
    return [replace(job, batch_id=found[job.id]) if job.id in found else job for job in jobs]


def _count_by_job(recorded: RecordedCounts) -> Counter[str]:
    """Job id -> how many of its measurements the store has, of all attempts."""
    found: Counter[str] = Counter()
    for (job_id, _), count in recorded.items():
        found[job_id] += count
    return found


def _with_state(job: JobRow, state: str) -> JobRow:
    """The job; the same one where nothing has changed, as in most of ten thousand."""
    return job if job.state == state else replace(job, state=state)
