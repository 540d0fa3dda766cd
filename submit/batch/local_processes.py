"""Processes of local jobs on Linux: start in a sandbox, identity, and killing.

A job is identified by its folder in the spool.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from treehammer.collectors.job_spec import JOB_MARK_VARIABLE
from treehammer.collectors.shared_files import write_atomically
from treehammer.errors import BatchError
from treehammer.submit.batch.local_spool import SpooledJob
from treehammer.submit.batch.staging import copy_input, describe_os_error, is_disk_full

#: Rounds of killing: processes may fork while the others are being killed.
MAX_KILL_ROUNDS = 20


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


#: Environment variable with the worker's slot.
SLOT_VARIABLE = "TREEHAMMER_BATCH_SLOT"
#: Placeholder in a description's arguments for the number of the attempt.
ATTEMPT_PLACEHOLDER = "$(ATTEMPT)"


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
