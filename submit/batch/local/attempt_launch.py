"""Start of one attempt of a job: its description, its sandbox, its worker."""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from treehammer.collectors.shared_files import write_atomically
from treehammer.errors import BatchError
from treehammer.submit.batch.local import job_processes
from treehammer.submit.batch.local.spool import SpooledJob
from treehammer.submit.batch.staging import copy_input, describe_os_error, is_disk_full

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
        environment |= {**job_processes.job_marker(self.job.path), SLOT_VARIABLE: f"slot{slot}"}
        arguments = (
            text.replace(ATTEMPT_PLACEHOLDER, str(self.number)) for text in self.task.arguments
        )
        pid_file = self.job.pid_file(self.number)

        def leave_pid() -> None:
            # Written in the child, so that a running worker can always be ended.
            # Without the file, e.g. on a full disk, a cancellation sends SIGKILL at once.
            pid = os.getpid()
            with suppress(OSError):
                write_atomically(pid_file, f"{pid} {job_processes.start_time(pid)}")

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
