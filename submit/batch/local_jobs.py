"""Jobs of the local batch system: the spool directory as their queue, and their processes (Linux).

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
process, never sees partial content.  A job's folder also identifies its processes.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO

import psutil

from treehammer.collectors.job_spec import JOB_MARK_VARIABLE, JobState
from treehammer.collectors.json_documents import format_json, parse_document
from treehammer.collectors.shared_files import hold_lock, write_atomically
from treehammer.errors import BatchError
from treehammer.submit.batch.interface import (
    JobDescription,
    JobStatus,
    copy_input,
    create_folder_atomically,
    describe_os_error,
    is_disk_full,
    remove_folder_atomically,
    require_folder_name,
)

DESCRIPTION_NAME = "description.toml"
INPUTS_NAME = "inputs"
PREVIOUS_ATTEMPTS_NAME = "previous_attempts"
FINISHED_NAME = "finished"
#: Rounds of killing: processes may fork while the others are being killed.
MAX_KILL_ROUNDS = 20
#: Environment variable with the worker's slot.
SLOT_VARIABLE = "TREEHAMMER_BATCH_SLOT"
#: Placeholder in a description's arguments for the number of the attempt.
ATTEMPT_PLACEHOLDER = "$(ATTEMPT)"


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
            return parse_document(JobStatus, document | {"batch_id": self.batch_id})
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
        document = {"state": status.state, "attempts": status.attempts}
        write_atomically(self.path / "state.json", format_json(document, indent=1))


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


def start_time(pid: int) -> int:
    """Return the process's start in clock ticks since boot; 0 for a zombie or no process.

    Pid and start time identify a process; a pid alone is reused.  ``psutil``'s creation time depends
    on the wall clock, which may be set.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    # The command name is in parentheses and may contain anything, even ") R 1".
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in ("Z", "X") else int(fields[19])


def job_marker(job: Path) -> dict[str, str]:
    """Return the environment variable that marks all processes of a job.

    Its value is the job's folder rather than the batch id: another queue may use the same ids.
    """
    return {JOB_MARK_VARIABLE: str(job.absolute())}


def find_marked_processes(job: Path) -> Iterator[int]:
    """Yield the pids of a job's live processes, in any session or process group."""
    ((name, value),) = job_marker(job).items()
    for process in psutil.process_iter(["environ"]):
        environment = process.info["environ"] or {}
        if environment.get(name) == value and process.pid != os.getpid():
            yield process.pid


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may just have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_job_processes(job: Path) -> int:
    """Kill every process of a job and return their number."""
    killed: set[int] = set()
    for _ in range(MAX_KILL_ROUNDS):
        pids = set(find_marked_processes(job))
        if not pids:
            break
        for pid in pids:
            send_signal(pid, signal.SIGKILL)
        killed |= pids
    return len(killed)


def kill_orphans(workers: Collection[int]) -> int:
    """Kill every child of this process except ``workers``, with its descendants.

    For the runner, a child sub-reaper: processes that outlive a worker become its children.

    Returns:
        Number of killed processes.
    """
    killed: set[int] = set()
    for _ in range(MAX_KILL_ROUNDS):
        orphans = [child for child in psutil.Process().children() if child.pid not in workers]
        if not orphans:
            break
        pids = {orphan.pid for orphan in orphans}
        for orphan in orphans:
            with suppress(psutil.NoSuchProcess):
                pids |= {process.pid for process in orphan.children(recursive=True)}
        for pid in pids:
            send_signal(pid, signal.SIGKILL)
        killed |= pids
        for orphan in orphans:
            with suppress(ChildProcessError):
                os.waitpid(orphan.pid, 0)
    return len(killed)


class NoDiskSpaceError(Exception):
    """The attempt could not be prepared because the disk is full; it can be retried."""


@dataclass(frozen=True)
class WorkerCommand:
    """Command of a job description with its whole environment, its wall limit in seconds and its CPUs.

    :data:`ATTEMPT_PLACEHOLDER` in the arguments stands for the attempt's number; no limit is infinity.
    """

    executable: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    wall_s: float
    cpus: int = 1

    @classmethod
    def read(cls, path: Path) -> WorkerCommand:
        """Read a rendered description.

        Raises:
            BatchError: the description is invalid.
        """
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
            return cls(
                executable=str(document["job"]["executable"]),
                arguments=tuple(str(item) for item in document["job"]["arguments"]),
                environment={str(k): str(v) for k, v in document["environment"].items()},
                wall_s=float(document["limits"]["wall_s"]) or math.inf,
                cpus=int(document["limits"].get("cpus", 1)),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BatchError(f"not a job description ({error!r})", where=str(path)) from error


@dataclass(frozen=True)
class PreparedAttempt:
    """An attempt that is ready to be started.

    The lock is already held; the worker inherits it and holds it for its lifetime.
    """

    job: SpooledJob
    number: int
    task: WorkerCommand
    lock: IO[str]
    out: IO[bytes]
    err: IO[bytes]

    def launch(self, slot: int) -> subprocess.Popen[bytes]:
        """Start the worker in its own session.

        Raises:
            OSError, ValueError, subprocess.SubprocessError: it cannot be started.
        """
        environment = dict(self.task.environment)
        environment |= {**job_marker(self.job.path), SLOT_VARIABLE: f"slot{slot}"}
        arguments = (
            text.replace(ATTEMPT_PLACEHOLDER, str(self.number)) for text in self.task.arguments
        )
        pid_file = self.job.pid_file(self.number)

        def leave_pid() -> None:
            # Written in the child, so that a running worker can always be ended.
            # Without the file, e.g. on a full disk, a cancellation sends SIGKILL at once.
            pid = os.getpid()
            with suppress(OSError):
                write_atomically(pid_file, f"{pid} {start_time(pid)}")

        return subprocess.Popen(
            [self.task.executable, *arguments],
            cwd=self.job.sandbox_folder(self.number),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.out,
            stderr=self.err,
            pass_fds=(self.lock.fileno(),),
            start_new_session=True,
            preexec_fn=leave_pid,  # noqa: PLW1509 - the runner has one thread
        )


@contextmanager
def prepare_attempt(job: SpooledJob, number: int) -> Iterator[PreparedAttempt]:
    """Read the description and fill the sandbox of a new attempt.

    Raises:
        BatchError: the attempt can never start.
        NoDiskSpaceError: the disk is full.
    """
    task = WorkerCommand.read(job.description_file)
    sandbox = job.sandbox_folder(number)
    with ExitStack() as files:
        try:
            if sandbox.exists():  # a partial copy of a killed runner, or from a full disk
                shutil.rmtree(sandbox)
            copy_input(job.inputs_folder, sandbox)
            lock = files.enter_context(job.lock_file(number).open("w"))
            out = files.enter_context((sandbox / "worker.out").open("wb"))
            err = files.enter_context((sandbox / "worker.err").open("wb"))
        except OSError as error:
            if is_disk_full(error):
                shutil.rmtree(sandbox, ignore_errors=True)
                raise NoDiskSpaceError(describe_os_error(error)) from error
            raise BatchError(f"cannot start: {describe_os_error(error)}") from error
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield PreparedAttempt(job, number, task, lock, out, err)
