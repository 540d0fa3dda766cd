"""Spool directory: the queue of the local batch system as files.

::

    SPOOL/
      queue.lock       held while a cluster is added and while the runner decides to leave
      runner.lock      held by the runner for its lifetime
      runner.log       log of the runners
      slots            number of concurrent jobs, set by the last submission
      incoming/        clusters being copied in or removed; leftovers are ignored
      cancel/          one empty file, named by its batch id, for each job to be cancelled
      jobs/
        000012-CAMPAIGN/          one cluster: the jobs of one submission, queued by one rename
          cluster.json            {"jobs": [job id, …], "together": number of jobs that start
                                  together, 0 for none}; job N of the list is folder N
          starts/                 where they meet, written by the workers
          finished                exists once every job is final
          3/                      batch id 000012-CAMPAIGN.3
            description.toml
            previous_attempts   number of the attempts in earlier clusters; absent = 0
            inputs/               as submitted, copied into each attempt's sandbox
            state.json            written by the runner only; absent = queued
            attempt-1/            sandbox of the first attempt
            attempt-1.lock        held by the worker for its lifetime
            attempt-1.pid         the worker's process id and start time

Every file appears by a rename and has one writer, so that a reader, or the successor of a killed
process, never sees partial content.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from treehammer.collectors.job_spec import JobState
from treehammer.collectors.shared_files import hold_lock, write_atomically
from treehammer.errors import BatchError
from treehammer.submit.batch.interface import AttemptStatus, JobDescription, JobStatus
from treehammer.submit.batch.staging import (
    copy_input,
    create_folder_atomically,
    remove_folder_atomically,
    require_folder_name,
)

DESCRIPTION_NAME = "description.toml"
INPUTS_NAME = "inputs"
PREVIOUS_ATTEMPTS_NAME = "previous_attempts"
FINISHED_NAME = "finished"


@dataclass(frozen=True)
class SpooledJob:
    """One job in the spool."""

    batch_id: str
    path: Path

    @property
    def description_file(self) -> Path:
        """The rendered submit description."""
        return self.path / DESCRIPTION_NAME

    @property
    def inputs_folder(self) -> Path:
        """Files that are copied into each attempt's sandbox."""
        return self.path / INPUTS_NAME

    @property
    def previous_attempts(self) -> int:
        """Number of the job's attempts before it was requeued as this one."""
        try:
            return int((self.path / PREVIOUS_ATTEMPTS_NAME).read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0

    def read_inputs(self) -> dict[str, Path]:
        """Return the job's inputs: name in the sandbox -> file or folder."""
        return {entry.name: entry for entry in sorted(self.inputs_folder.iterdir())}

    def sandbox_folder(self, attempt: int) -> Path:
        """Return the working folder of an attempt."""
        return self.path / f"attempt-{attempt}"

    def lock_file(self, attempt: int) -> Path:
        """Return the file that the attempt's worker locks for its lifetime."""
        return self.path / f"attempt-{attempt}.lock"

    def pid_file(self, attempt: int) -> Path:
        """Return the file with process id and start time of the attempt's worker."""
        return self.path / f"attempt-{attempt}.pid"

    def read_status(self) -> JobStatus:
        """Return the job's status as the runner last wrote it.

        Raises:
            BatchError: the state file is damaged.
        """
        path = self.path / "state.json"
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            attempts = tuple(_parse_attempt(item) for item in document["attempts"])
            return JobStatus(self.batch_id, JobState(document["state"]), attempts)
        except FileNotFoundError:
            return JobStatus(self.batch_id, JobState.QUEUED)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BatchError(
                f"damaged job state ({error})",
                where=str(path),
                hint="Move the job's folder away; its records are in attempt-*/records there.",
            ) from error

    def state_time_ns(self) -> int:
        """Return when the status was last written, in nanoseconds; 0 before."""
        try:
            return (self.path / "state.json").stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def write_status(self, status: JobStatus) -> None:
        """Write the job's status. Only the runner may call this."""
        attempts = [asdict(a) | {"state": a.state.value} for a in status.attempts]
        document = {"state": status.state.value, "attempts": attempts}
        write_atomically(self.path / "state.json", json.dumps(document, indent=1))


def _parse_attempt(document: dict[str, Any]) -> AttemptStatus:
    return AttemptStatus(**document | {"state": JobState(document["state"])})


@dataclass(frozen=True)
class SpooledCluster:
    """The jobs of one submission, in order; ``together`` of them start together, 0 for none."""

    path: Path
    jobs: tuple[SpooledJob, ...]
    job_ids: tuple[str, ...]
    together: int = 0

    @property
    def is_finished(self) -> bool:
        """Whether every job is final."""
        return (self.path / FINISHED_NAME).exists()


@dataclass(frozen=True)
class Spool:
    """Directory of one local queue; created if missing."""

    root: Path
    jobs: Path = field(init=False)
    incoming: Path = field(init=False)
    cancels: Path = field(init=False)

    def __post_init__(self) -> None:
        for name, folder in (("jobs", "jobs"), ("incoming", "incoming"), ("cancels", "cancel")):
            object.__setattr__(self, name, self.root / folder)
        try:
            for path in (self.jobs, self.incoming, self.cancels):
                path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BatchError(
                f"cannot create the local queue ({error.strerror})",
                where=str(self.root),
                hint="Choose another --data-dir, or make this one writable.",
            ) from error

    @property
    def runner_lock(self) -> Path:
        """File that the runner locks for its lifetime."""
        return self.root / "runner.lock"

    @property
    def runner_log(self) -> Path:
        """Log of the runners."""
        return self.root / "runner.log"

    @property
    def slots(self) -> int:
        """Number of concurrent jobs."""
        try:
            return int((self.root / "slots").read_text(encoding="ascii"))
        except FileNotFoundError:
            return 1

    def locked(self) -> AbstractContextManager[object]:
        """Hold the queue: no cluster is added and no runner leaves meanwhile."""
        return hold_lock(self.root / "queue.lock")

    def cluster_names(self) -> list[str]:
        """List the clusters in the order of submission."""
        return sorted(entry.name for entry in self.jobs.iterdir())

    def read_cluster(self, name: str) -> SpooledCluster:
        """Read a cluster by name.

        Raises:
            BatchError: it is missing or damaged.
        """
        path = self.jobs / name
        try:
            document = json.loads((path / "cluster.json").read_text(encoding="utf-8"))
            job_ids = tuple(str(item) for item in document["jobs"])
            together = int(document.get("together", 0))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BatchError(
                f"damaged submission ({error})",
                where=str(path),
                hint="Remove this folder; records of its jobs that were not collected are lost.",
            ) from error
        jobs = tuple(SpooledJob(f"{name}.{n}", path / str(n)) for n in range(1, len(job_ids) + 1))
        return SpooledCluster(path, jobs, job_ids, together)

    def mark_finished(self, cluster: str) -> None:
        """Record that every job of a cluster is final. Only the runner may call this."""
        (self.jobs / cluster / FINISHED_NAME).touch()

    def job(self, batch_id: str) -> SpooledJob | None:
        """Return a job by its batch id, None if there is none."""
        name, _, number = batch_id.rpartition(".")
        path = self.jobs / name / number
        exists = number.isdigit() and "/" not in name and name and path.is_dir()
        return SpooledJob(batch_id, path) if exists else None

    def find(self, job_ids: Iterable[str]) -> dict[str, str]:
        """Return job id -> batch id of the jobs in this spool, of a requeued job the last one."""
        requested_ids = set(job_ids)
        batch_ids: dict[str, str] = {}
        for name in self.cluster_names():
            cluster = self.read_cluster(name)
            for job_id, job in zip(cluster.job_ids, cluster.jobs, strict=True):
                if job_id in requested_ids:
                    batch_ids[job_id] = job.batch_id
        return batch_ids

    def add(
        self,
        campaign_id: str,
        jobs: Sequence[JobDescription],
        slots: int,
        previous_attempts: Mapping[str, int] = MappingProxyType({}),
    ) -> Mapping[str, str]:
        """Queue all jobs as one cluster, or none. The caller holds the queue.

        ``slots`` jobs may run at once from now on. ``previous_attempts`` maps ids of requeued jobs to
        the number of their last attempt.

        Raises:
            BatchError: nothing was queued.
        """
        require_folder_name(campaign_id)
        self._clear_incoming()
        last = max((int(name.partition("-")[0]) for name in self.cluster_names()), default=0)
        name = f"{last + 1:06d}-{campaign_id}"
        hint = "Free disk space or choose another --data-dir."
        with create_folder_atomically(self.jobs / name, self.incoming / name, hint) as staged:
            for number, job in enumerate(jobs, start=1):
                stage_job(job, staged / str(number), previous_attempts.get(job.job_id, 0))
            index = {
                "jobs": [job.job_id for job in jobs],
                "together": max(job.together for job in jobs),
            }
            write_atomically(staged / "cluster.json", json.dumps(index))
            write_atomically(self.root / "slots", str(slots))
        return {job.job_id: f"{name}.{n}" for n, job in enumerate(jobs, start=1)}

    def remove(self, cluster: str) -> int:
        """Remove a finished cluster and return its bytes. The caller holds the queue.

        Raises:
            BatchError: it cannot be removed.
        """
        return remove_folder_atomically(self.jobs / cluster, self.incoming / cluster)

    def _clear_incoming(self) -> None:
        """Remove leftovers of killed processes. The caller must hold the queue's lock."""
        for entry in self.incoming.iterdir():
            shutil.rmtree(entry)

    def cancel_requests(self) -> list[str]:
        """List the batch ids of jobs to be cancelled."""
        return sorted(entry.name for entry in self.cancels.iterdir())


def stage_job(job: JobDescription, folder: Path, previous_attempts: int = 0) -> None:
    """Write a job's description and copies of its inputs into a new folder."""
    inputs = folder / INPUTS_NAME
    inputs.mkdir(parents=True)
    for name, source in job.inputs.items():
        copy_input(source, inputs / name)
    (folder / DESCRIPTION_NAME).write_text(job.text, encoding="utf-8")
    if previous_attempts:
        (folder / PREVIOUS_ATTEMPTS_NAME).write_text(str(previous_attempts), encoding="ascii")
