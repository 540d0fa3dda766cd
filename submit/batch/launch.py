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

from treehammer.collectors.files import write_atomically
from treehammer.errors import BatchError
from treehammer.submit.batch import processes
from treehammer.submit.batch.spool import JobFolder
from treehammer.submit.batch.staging import cause, copy_input, is_no_room

#: Tells the worker its slot.
SLOT = "TREEHAMMER_BATCH_SLOT"
#: In a description's arguments: the number of the attempt.
ATTEMPT = "$(ATTEMPT)"


class NoRoom(Exception):
    """The attempt could not be prepared because the disk is full; later it may be."""


@dataclass(frozen=True)
class Task:
    """What a description asks for: the command, its whole environment, seconds of wall time.

    :data:`ATTEMPT` among the arguments stands for the attempt's number; no limit is infinity.
    """

    executable: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    wall_s: float

    @classmethod
    def read(cls, path: Path) -> Task:
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
class Prepared:
    """An attempt for which everything is there but the process.

    The lock is held already: the worker inherits it and holds it as long as it lives.
    """

    job: JobFolder
    number: int
    task: Task
    lock: IO[str]
    out: IO[bytes]
    err: IO[bytes]

    def launch(self, slot: int) -> subprocess.Popen[bytes]:
        """Start the worker in a session of its own.

        Raises:
            OSError, ValueError, subprocess.SubprocessError: it cannot be started.
        """
        environment = dict(self.task.environment)
        environment |= {**processes.mark_of(self.job.path), SLOT: f"slot{slot}"}
        arguments = (text.replace(ATTEMPT, str(self.number)) for text in self.task.arguments)
        pid_file = self.job.pid_file(self.number)

        def leave_pid() -> None:
            # In the child, so that no moment exists in which it runs and nobody could end it.
            # Where there is no room for it, a cancellation kills without asking first.
            pid = os.getpid()
            with suppress(OSError):
                write_atomically(pid_file, f"{pid} {processes.start_time(pid)}")

        return subprocess.Popen(
            [self.task.executable, *arguments],
            cwd=self.job.sandbox(self.number),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.out,
            stderr=self.err,
            pass_fds=(self.lock.fileno(),),
            start_new_session=True,
            preexec_fn=leave_pid,  # noqa: PLW1509 - the runner has one thread
        )


@contextmanager
def prepared(job: JobFolder, number: int) -> Iterator[Prepared]:
    """Read the description and fill the sandbox of a new attempt.

    Raises:
        BatchError: the attempt can never start.
        NoRoom: the disk is full.
    """
    task = Task.read(job.description)
    sandbox = job.sandbox(number)
    with ExitStack() as files:
        try:
            if sandbox.exists():  # half copied by a killed runner, or for want of room
                shutil.rmtree(sandbox)
            copy_input(job.inputs, sandbox)
            lock = files.enter_context(job.lock_file(number).open("w"))
            out = files.enter_context((sandbox / "worker.out").open("wb"))
            err = files.enter_context((sandbox / "worker.err").open("wb"))
        except OSError as error:
            if is_no_room(error):
                shutil.rmtree(sandbox, ignore_errors=True)
                raise NoRoom(cause(error)) from error
            raise BatchError(f"cannot start: {cause(error)}") from error
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Prepared(job, number, task, lock, out, err)
