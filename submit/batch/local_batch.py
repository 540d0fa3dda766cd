"""Local batch system: jobs of this machine's user in one SQLite file, run by one detached process.

::

    SPOOL/
      queue.db         a row for each job; only the runner changes states and attempts
      queue.lock       held while jobs are added or removed, and while the runner decides to leave
      runner.lock      held by the runner for its lifetime
      runner.log       log of the runners, which grows with every change of a job's state
      owners/CAMPAIGN  held by a process without which the campaign is of no use to anybody
      jobs/
        000012-CAMPAIGN/          one cluster: the jobs of one submission
          starts/                 where jobs that start together meet, written by the workers
          3/                      batch id 000012-CAMPAIGN.3
            description.toml
            inputs/               copied into each attempt's sandbox; equal files of jobs are links
            attempt-1/            sandbox of the first attempt
            attempt-1.lock        held by the worker for its lifetime

A cluster's folder is complete before its rows are inserted in one transaction.  No process id is
stored: the kernel releases the lock of a process that has ended, also by a reboot, and the path of a
job's folder marks its processes.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from glob import glob
from pathlib import Path
from typing import NamedTuple

from treehammer.collectors.job_spec import LOCAL_BATCH, JobState
from treehammer.collectors.json_documents import parse_json
from treehammer.collectors.record.operation_steps import LOAD_PROGRESS_NAME, LoadProgress
from treehammer.collectors.shared_files import hold_lock, is_locked
from treehammer.errors import BatchError
from treehammer.submit.batch.interface import (
    AttemptStatus,
    BatchDeclaration,
    BatchSystem,
    InputReplacement,
    JobDescription,
    JobStatus,
)
from treehammer.submit.batch.job_folders import (
    copy_input,
    create_folder_atomically,
    describe_os_error,
    link_input,
    remove_folder_atomically,
    require_folder_name,
)
from treehammer.text_formatting import pluralize

#: Attempts of a queued job that was lost or requested a retry.
MAX_LOCAL_ATTEMPTS = 2
#: Seconds between SIGTERM, which lets the worker write its records, and SIGKILL.
TERMINATE_GRACE_S = 10.0
#: Free bytes that a job needs to start; its records need room.
MIN_FREE_BYTES = 16_000_000
#: Names in a job's folder.
DESCRIPTION_NAME, INPUTS_NAME = "description.toml", "inputs"
#: Condition for jobs that have not ended.
OPEN = "state IN ('queued', 'running')"
_LISTED = "batch_id IN (SELECT value FROM json_each(?))"
#: Seconds between two looks at the length of the runner's log.
_CHANGE_INTERVAL_S = 0.02
#: Longest time in seconds that a cancel waits for jobs to end, and its interval between looks.
_END_WAIT_S, _CANCEL_INTERVAL_S = TERMINATE_GRACE_S + 5.0, 0.2
#: Longest time in seconds that a transaction waits for others.
_LOCK_WAIT_S = 60.0

_SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS job (
    number INTEGER PRIMARY KEY,
    batch_id TEXT NOT NULL UNIQUE,
    job_id TEXT NOT NULL UNIQUE,
    wall_s REAL NOT NULL,
    cpus INTEGER NOT NULL,
    slots INTEGER NOT NULL,
    together INTEGER NOT NULL,
    previous_attempts INTEGER NOT NULL DEFAULT 0,
    is_cancelled INTEGER NOT NULL DEFAULT FALSE,
    state TEXT NOT NULL DEFAULT 'queued',
    attempts TEXT NOT NULL DEFAULT '[]'
);
CREATE INDEX IF NOT EXISTS job_state ON job (state, number);
CREATE INDEX IF NOT EXISTS cancelled_job ON job (state) WHERE is_cancelled;
"""


class QueuedJob(NamedTuple):
    """A row of the queue.

    Attributes:
        number: its place in the queue.
        wall_s: its wall limit; 0 for none.
        cpus: number of slots that it takes.
        slots: number of jobs that run at once since its submission, until the next one.
        together: number of jobs, with this one, that start together; 0 for none.
        previous_attempts: number of its last attempt before it was requeued.
        is_cancelled: whether a cancellation was requested.
        attempts: JSON of its attempts.
    """

    number: int
    batch_id: str
    job_id: str
    wall_s: float
    cpus: int
    slots: int
    together: int
    previous_attempts: int
    is_cancelled: int
    state: str
    attempts: str

    @property
    def cluster(self) -> str:
        """Name of its cluster."""
        return self.batch_id.rpartition(".")[0]

    @property
    def status(self) -> JobStatus:
        """Its status for batch systems."""
        attempts = parse_json(tuple[AttemptStatus, ...], self.attempts)
        return JobStatus(self.batch_id, JobState(self.state), attempts)


def stage_job(
    job: JobDescription,
    folder: Path,
    staged: dict[Path, Path] | None = None,
    script_name: str = DESCRIPTION_NAME,
) -> None:
    """Write a job's description and copies of its inputs into a new folder.

    Args:
        job: the job.
        folder: its folder.
        staged: inputs of earlier jobs -> their copies, which are linked; completed here.
        script_name: file name of the description.
    """
    staged = {} if staged is None else staged
    (folder / INPUTS_NAME).mkdir(parents=True)
    for name, source in job.inputs.items():
        target = folder / INPUTS_NAME / name
        if source in staged:
            link_input(staged[source], target)
        else:
            copy_input(source, target)
            staged[source] = target
    (folder / script_name).write_text(job.text, encoding="utf-8")


class LocalBatch(BatchSystem):
    """The local queue as a batch system; it holds no jobs.

    Every call that finds unfinished jobs starts a runner unless one is alive.

    Args:
        spool_dir: the spool; created if missing.
        slots: number of concurrent jobs; 1 avoids disturbing measurements.
    """

    name = LOCAL_BATCH

    def __init__(self, spool_dir: Path, slots: int = 1) -> None:
        self.root, self.slots = spool_dir.absolute(), slots
        self.jobs, self.owners = self.root / "jobs", self.root / "owners"
        # In a folder of its own: the runner wakes whenever a file beside the lock is touched.
        self.runner_lock, self.runner_log = self.root / "runner/lock", self.root / "runner.log"
        try:
            # Other users are kept from it: its jobs run as its owner.
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.root.stat().st_mode & 0o002:
                self.root.chmod(0o700)
            for folder in (self.jobs, self.owners, self.runner_lock.parent):
                folder.mkdir(exist_ok=True)
            # Two processes must not turn on the write-ahead log at once.
            with hold_lock(self.root / "schema.lock"), self.transaction() as connection:
                connection.executescript(_SCHEMA)
        except OSError as error:
            raise BatchError(
                f"cannot create the local queue ({error.strerror})",
                where=str(self.root),
                hint="Choose another --data-dir, or make this one writable.",
            ) from error

    def list_campaigns(self) -> frozenset[str]:
        """List the campaigns with folders of jobs in the spool."""
        return frozenset(path.name.partition("-")[2] for path in self.jobs.glob("*-*"))

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Read or change rows, all or none.

        Raises:
            BatchError: the file cannot be used, or the disk is full.
        """
        path = self.root / "queue.db"
        try:
            with closing(sqlite3.connect(path, timeout=_LOCK_WAIT_S)) as connection, connection:
                yield connection
        except sqlite3.Error as error:
            raise BatchError(
                f"the local queue cannot be used ({error})",
                where=str(path),
                hint="Free disk space. Move this file away if it is damaged: records that were not "
                "collected are in jobs/*/*/attempt-*/records beside it.",
            ) from error

    def select(
        self, condition: str, ids: Iterable[str] | None = None, limit: int = -1
    ) -> list[QueuedJob]:
        """Select jobs in the order of the queue; ``ids`` is the parameter of the condition, if any."""
        parameters = () if ids is None else (json.dumps([*ids]),)
        query = f"SELECT * FROM job WHERE {condition} ORDER BY number LIMIT {limit}"  # noqa: S608
        with self.transaction() as connection:
            return [QueuedJob(*row) for row in connection.execute(query, parameters)]

    def locked(self) -> AbstractContextManager[object]:
        """Hold the queue: no job is added or removed and no runner leaves meanwhile."""
        return hold_lock(self.root / "queue.lock")

    def locate(self, batch_id: str) -> Path:
        """Return the folder of a job."""
        cluster, _, number = batch_id.rpartition(".")
        return self.jobs / cluster / number

    def has_disk_space(self) -> bool:
        """Return whether at least :data:`MIN_FREE_BYTES` bytes are free, so that jobs may start."""
        return shutil.disk_usage(self.root).free >= MIN_FREE_BYTES

    def prepare(self) -> None:
        """Start a runner ahead of a submission: it takes as long as rendering some jobs."""
        with self.locked():
            self._ensure_runner()

    def _ensure_runner(self) -> None:
        """Wake the runner, or start one; none can leave while the caller holds the queue."""
        if is_locked(self.runner_lock):
            # Not by the rows themselves, which are written before they are committed.
            self.runner_lock.touch()
            return
        module, root = f"{__package__}.local_runner", str(self.root)
        try:
            # A runner of release 0.2 leaves without it, and this one takes its jobs over.
            (self.root / "runner.lock").unlink(missing_ok=True)
            with hold_lock(self.runner_lock) as lock, self.runner_log.open("ab") as log:
                # It inherits the lock, and Ctrl-C does not reach its session.
                subprocess.run(
                    ["setsid", "--fork", sys.executable, "-P", "-m", module, root, str(lock)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    check=True,
                    cwd=root,
                    pass_fds=(lock,),
                )
        except (OSError, subprocess.SubprocessError) as error:
            raise BatchError(
                f"the local runner does not start ({error})",
                where=root,
                hint="Queued jobs stay queued; `treehammer status` tries again.",
            ) from error

    def abandon(self) -> None:
        """Have the runner leave, and wait for it, so that the spool can be removed."""
        with suppress(FileNotFoundError), self.runner_lock.open() as lock:
            self.runner_lock.unlink()
            fcntl.flock(lock, fcntl.LOCK_EX)

    @contextmanager
    def owned(self, campaign_id: str) -> Iterator[None]:
        """Let the runner cancel a campaign's jobs if this process ends within the block, however it does."""
        require_folder_name(campaign_id)
        path = self.owners / campaign_id
        with ExitStack() as lock:
            with self.locked():
                lock.enter_context(hold_lock(path))
            yield
            path.unlink()

    def cancel_orphans(self) -> None:
        """Request the end of jobs whose owner has ended."""
        for path in self.owners.iterdir():
            if is_locked(path):
                continue
            with self.locked():
                if is_locked(path):
                    continue
                with self.transaction() as connection:
                    connection.execute(
                        f"UPDATE job SET is_cancelled = TRUE WHERE batch_id GLOB ? AND {OPEN}",  # noqa: S608
                        (f"*-{path.name}.*",),
                    )
                path.unlink(missing_ok=True)

    def count_changes(self) -> int:
        """Return a number that grows with every change of a job's state."""
        return self.runner_log.stat().st_size if self.runner_log.exists() else 0

    def wait_for_change(self, before: int, timeout_s: float) -> None:
        """Wait until :meth:`count_changes` is not ``before``, at most ``timeout_s`` seconds."""
        deadline = time.monotonic() + timeout_s
        while self.count_changes() == before and time.monotonic() < deadline:
            time.sleep(_CHANGE_INTERVAL_S)

    def submit(self, campaign_id: str, jobs: Sequence[JobDescription]) -> Mapping[str, str]:
        """Queue the jobs in this order; jobs already queued keep their batch id.

        Raises:
            BatchError: nothing was queued.
        """
        require_folder_name(campaign_id)
        unique = {job.job_id: job for job in jobs}
        with self.locked():
            batch_ids = {**self.find(unique)}
            if new := [job for job_id, job in unique.items() if job_id not in batch_ids]:
                batch_ids |= self._add(campaign_id, new)
            self._ensure_runner()
        return batch_ids

    def _add(self, campaign_id: str, jobs: Sequence[JobDescription]) -> dict[str, str]:
        """Queue new jobs as one cluster, or none; return job id -> batch id."""
        numbers = (int(folder.name.partition("-")[0]) for folder in self.jobs.iterdir())
        folder = self.jobs / f"{max(numbers, default=0) + 1:06d}-{campaign_id}"
        hint = "Free disk space or choose another --data-dir."
        with create_folder_atomically(folder, self.root / "incoming", hint) as staged:
            copies: dict[Path, Path] = {}
            for number, job in enumerate(jobs, start=1):
                stage_job(job, staged / str(number), copies)
        together = max(job.together for job in jobs)
        rows = [
            (f"{folder.name}.{number}", job.job_id, job.wall_s, job.cpus, self.slots, together)
            for number, job in enumerate(jobs, start=1)
        ]
        with self.transaction() as connection:
            connection.executemany(
                "INSERT INTO job (batch_id, job_id, wall_s, cpus, slots, together) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                rows,
            )
        return {job_id: batch_id for batch_id, job_id, *_ in rows}

    def find(self, job_ids: Iterable[str]) -> Mapping[str, str]:
        """Return job id -> batch id of queued jobs."""
        jobs = self.select("job_id IN (SELECT value FROM json_each(?))", job_ids)
        return {job.job_id: job.batch_id for job in jobs}

    def query(self, batch_ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """Return the status of each known job."""
        statuses = {job.batch_id: job.status for job in self.select(_LISTED, batch_ids)}
        if any(not status.state.is_final for status in statuses.values()):
            self.prepare()
        return statuses

    def sandboxes(self, batch_id: str) -> Mapping[int, Path]:
        """Return attempt -> output folder."""
        jobs = self.select(_LISTED, [batch_id])
        return self._list_sandboxes(jobs[0]) if jobs else {}

    def _list_sandboxes(self, job: QueuedJob) -> dict[int, Path]:
        folders = {
            attempt.number: self.locate(job.batch_id) / f"attempt-{attempt.number}"
            for attempt in job.status.attempts
        }
        return {number: folder for number, folder in folders.items() if folder.is_dir()}

    def read_load_steps(self, batch_ids: Iterable[str]) -> list[LoadProgress]:
        """Return the last time step of each execution that loads now."""
        return [
            progress
            for job in self.select(f"state = 'running' AND {_LISTED}", batch_ids)
            for folder in self._list_sandboxes(job).values()
            # Path.glob() fails for folders that a job removes meanwhile.
            for name in glob(f"work/*/{LOAD_PROGRESS_NAME}", root_dir=folder)
            if (progress := LoadProgress.read(f"{folder}/{name}"))
        ]

    def cancel(self, batch_ids: Iterable[str]) -> int:
        """Cancel jobs that are not final and return their number.

        Waits until they have ended, up to some seconds.
        """
        condition = f"{_LISTED} AND {OPEN}"
        open_ids = [job.batch_id for job in self.select(condition, batch_ids)]
        if not open_ids:
            return 0
        with self.transaction() as connection:
            connection.execute(
                f"UPDATE job SET is_cancelled = TRUE WHERE {_LISTED}",  # noqa: S608
                (json.dumps(open_ids),),
            )
        self.prepare()
        deadline = time.monotonic() + _END_WAIT_S
        while self.select(condition, open_ids, limit=1) and time.monotonic() < deadline:
            time.sleep(_CANCEL_INTERVAL_S)
        return len(open_ids)

    def requeue(self, earlier: Mapping[str, int], inputs: InputReplacement) -> Mapping[str, str]:
        """Queue final jobs again, at the end; jobs with a later attempt than ``earlier`` have been.

        Raises:
            BatchError: nothing was queued.
        """
        with self.locked():
            jobs = self.select(_LISTED, earlier)
            requeued = [
                job
                for job in jobs
                if job.status.state.is_final
                and all(a.number <= earlier[job.batch_id] for a in job.status.attempts)
            ]
            for job in requeued:
                self._replace_inputs(job, inputs)
            with self.transaction() as connection:
                connection.executemany(
                    "UPDATE job SET state = 'queued', is_cancelled = FALSE, together = 0, "
                    "slots = (SELECT slots FROM job ORDER BY number DESC LIMIT 1), "
                    "number = (SELECT max(number) + 1 FROM job), previous_attempts = ? "
                    "WHERE batch_id = ?",
                    [(earlier[job.batch_id], job.batch_id) for job in requeued],
                )
            self._ensure_runner()
        return {job.batch_id: job.batch_id for job in jobs}

    def _replace_inputs(self, job: QueuedJob, inputs: InputReplacement) -> None:
        folder = self.locate(job.batch_id) / INPUTS_NAME
        try:
            sent_files = {entry.name: entry for entry in folder.iterdir()}
            replaced = inputs(job.job_id, sent_files)
            for name in sent_files.keys() - replaced.keys():
                sent_files[name].unlink()
            for name, source in replaced.items():
                if source != sent_files.get(name):
                    # A copy into the file would change those of other jobs, which are links to it.
                    (folder / name).unlink(missing_ok=True)
                    copy_input(source, folder / name)
        except OSError as error:
            raise BatchError(
                f"cannot queue a job again ({describe_os_error(error)})", where=str(folder)
            ) from error

    def explain_waiting(self, batch_ids: Iterable[str]) -> list[str]:
        """Explain why no queued job starts: no disk space, or other campaigns that have the slots."""
        if not self.has_disk_space():
            least = MIN_FREE_BYTES // 1_000_000
            return [
                f"No job starts: less than {least} MB are free in {self.root}. Free disk space there."
            ]
        cluster_names = {job.cluster.partition("-")[2] for job in self.select(_LISTED, batch_ids)}
        running = Counter(job.cluster.partition("-")[2] for job in self.select("state = 'running'"))
        if cluster_names & running.keys():
            return []
        return [
            f"Waiting: campaign {campaign} has {pluralize(count, 'local slot')} "
            f"(treehammer status {campaign}; treehammer cancel {campaign})"
            for campaign, count in running.items()
        ]

    def purge(self, batch_ids: Iterable[str]) -> int:
        """Remove clusters whose jobs are all listed and final; return the freed bytes.

        Raises:
            BatchError: a folder cannot be removed.
        """
        freed = 0
        with self.locked():
            ended = set(self.select(f"{_LISTED} AND NOT {OPEN}", batch_ids))
            used_clusters = {job.cluster for job in self.select("TRUE") if job not in ended}
            for cluster in sorted({job.cluster for job in ended} - used_clusters):
                if (self.jobs / cluster).exists():  # unless a killed process removed it
                    freed += remove_folder_atomically(self.jobs / cluster, self.root / "removed")
                with self.transaction() as connection:
                    connection.execute("DELETE FROM job WHERE batch_id GLOB ?", (f"{cluster}.*",))
        return freed


BATCH = BatchDeclaration(
    lambda _argument, settings, _pools: LocalBatch(settings.spool_dir, settings.local_slots),
    Path(__file__).with_name("local.job.j2"),
    script_name=DESCRIPTION_NAME,
)
