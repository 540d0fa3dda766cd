"""Starting one attempt of a job: what its description asks for, its sandbox, its worker."""

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

#: Tells the worker its slot.
SLOT_VARIABLE = "TREEHAMMER_BATCH_SLOT"
#: In a description's arguments: the number of the attempt.
ATTEMPT_PLACEHOLDER = "$(ATTEMPT)"


class NoDiskSpaceError(Exception):
    """The attempt could not be prepared because the disk is full; later it may be."""


@dataclass(frozen=True)
class WorkerCommand:
    """What a description asks for: the command, its whole environment, seconds of wall time.

    :data:`ATTEMPT` among the arguments stands for the attempt's number; no limit is infinity.
    """

    executable: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    wall_s: float

    @classmethod
    def read(cls, path: Path) -> WorkerCommand:
        """Read a rendered description.

        Raises:
            BatchError: it is no valid description.
        """
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
            return cls(
                executable=str(document["job"]["executable"]),
                arguments=tuple(str(item) for item in document["job"]["arguments"]),
                environment={str(k): str(v) for k, v in document["environment"].items()},
                wall_s=float(document["limits"]["wall_s"]) or math.inf,
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BatchError(f"not a job description ({error!r})", where=str(path)) from error


@dataclass(frozen=True)
class PreparedAttempt:
    """An attempt for which everything is there but the process.

    The lock is held already: the worker inherits it and holds it as long as it lives.
    """

    job: SpooledJob
    number: int
    task: WorkerCommand
    lock: IO[str]
    out: IO[bytes]
    err: IO[bytes]

    def launch(self, slot: int) -> subprocess.Popen[bytes]:
        """Start the worker in a session of its own.

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
            # In the child, so that no moment exists in which it runs and nobody could end it.
            # Where there is no room for it, a cancellation kills without asking first.
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
        NoRoom: the disk is full.
    """
    task = WorkerCommand.read(job.description_file)
    sandbox = job.sandbox_folder(number)
    with ExitStack() as files:
        try:
            if sandbox.exists():  # half copied by a killed runner, or for want of room
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
