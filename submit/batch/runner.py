"""The local batch system's runner: one detached process per spool that runs the queued jobs.

``python -m treehammer.submit.batch.runner SPOOL`` returns at once and leaves the runner behind in
a session of its own, unless one is already there.  It starts jobs in the order of submission,
``slots`` at once, ends what is cancelled or over its wall limit, and leaves when nothing is left.

Whenever the runner itself is killed, its workers go on.  The next runner recognises them by the
lock each holds, adopts them, and starts again (as a new attempt) only those that ended unseen.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from treehammer.collectors.files import write_atomically
from treehammer.errors import BatchError
from treehammer.submit.batch import processes
from treehammer.submit.batch.base import AttemptStatus, JobState, JobStatus
from treehammer.submit.batch.spool import JobFolder, Spool, copy_input

#: A job whose attempt was lost is started again until it had so many.
MAX_ATTEMPTS = 2
#: Seconds between SIGTERM, on which the worker still writes its records, and SIGKILL.
GRACE_S = 10.0
#: Seconds between two looks at the queue: small beside a job, and no load while it measures.
TICK_S = 0.2

#: Tells the worker its slot.
SLOT = "TREEHAMMER_BATCH_SLOT"
#: In a description's arguments: the number of the attempt.
ATTEMPT = "$(ATTEMPT)"


@dataclass(frozen=True)
class Task:
    """What a description asks for: the command, its whole environment, seconds of wall time.

    :data:`ATTEMPT` among the arguments stands for the attempt's number.
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
                wall_s=float(document["limits"]["wall_s"]),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BatchError(f"not a job description ({error!r})", where=str(path)) from error


@dataclass
class Running:
    """One attempt under way; ``process`` is None for one adopted from a killed runner."""

    job: JobFolder
    slot: int
    deadline: float
    process: subprocess.Popen[bytes] | None
    reason: str = ""
    kill_at: float = 0.0

    def pid(self, attempt: int) -> int:
        """The worker's pid, 0 when it is gone or not yet known."""
        try:
            pid, started = map(int, self.job.pid_file(attempt).read_text("ascii").split())
        except (FileNotFoundError, ValueError):
            return 0
        return pid if processes.start_time(pid) == started else 0


class Runner:
    """Runs the jobs of one spool until none is left."""

    def __init__(self, spool: Spool, log: IO[str]) -> None:
        self.spool = spool
        self.log = log
        self.seen: set[str] = set()
        self.active: dict[str, JobStatus] = {}
        self.folders: dict[str, JobFolder] = {}
        self.running: dict[str, Running] = {}

    def run(self, lock: IO[str]) -> None:
        """Work until the queue is empty; ``lock`` is the held runner's lock."""
        self.say(f"runner {os.getpid()} starts")
        while True:
            self.look()
            self.end_finished()
            self.obey_cancels()
            self.enforce_limits()
            self.start_queued()
            if not self.active:
                with self.spool.locked():
                    self.look()
                    if not self.active:
                        self.say(f"runner {os.getpid()} leaves: nothing is left")
                        lock.close()
                        return
            time.sleep(TICK_S)

    def say(self, text: str) -> None:
        """Write one line to the runner's log."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        print(f"{stamp} {text}", file=self.log, flush=True)

    def look(self) -> None:
        """Take in submissions that are new to this runner."""
        for name in self.spool.clusters():
            if name in self.seen:
                continue
            self.seen.add(name)
            try:
                cluster = self.spool.cluster(name)
                if cluster.finished:
                    continue
                statuses = {job.batch_id: job.status() for job in cluster.jobs}
            except BatchError as error:
                self.say(f"left alone: {error}")
                continue
            for job in cluster.jobs:
                status = statuses[job.batch_id]
                if not status.state.final:
                    self.folders[job.batch_id] = job
                    self.active[job.batch_id] = status
                    if status.state is JobState.RUNNING:
                        self.adopt(job, status)

    def adopt(self, job: JobFolder, status: JobStatus) -> None:
        """Watch an attempt that a killed runner left behind; whether it lives shows later."""
        attempt = status.attempts[-1]
        self.say(f"{job.batch_id}: attempt {attempt.number} adopted")
        try:
            wall_s = Task.read(job.description).wall_s
        except BatchError:
            wall_s = math.inf
        elapsed_s = (_now_us() - attempt.started_us) / 1e6
        deadline = time.monotonic() + wall_s - elapsed_s
        self.running[job.batch_id] = Running(job, self.free_slot(), deadline, process=None)

    def free_slot(self) -> int:
        """The lowest slot number that no running attempt has."""
        taken = {running.slot for running in self.running.values()}
        return next(n for n in range(1, len(taken) + 2) if n not in taken)

    def start_queued(self) -> None:
        """Start jobs in the order of submission while a slot is free."""
        slots = self.spool.slots
        for batch_id, status in list(self.active.items()):
            if len(self.running) >= slots:
                return
            if status.state is JobState.QUEUED:
                self.start(self.folders[batch_id], status)

    def start(self, job: JobFolder, status: JobStatus) -> None:
        """Begin the next attempt of a job."""
        number = len(status.attempts) + 1
        attempt = AttemptStatus(number, JobState.RUNNING, _now_us(), 0, None, "")
        try:
            task = Task.read(job.description)
            sandbox = _fresh_sandbox(job, number)
            slot = self.free_slot()
            # Recorded before the start: should we be killed in between, the successor finds a
            # lock that nobody holds and tries again; the other order could run a job twice.
            self.record(JobStatus(job.batch_id, JobState.RUNNING, (*status.attempts, attempt)))
            process = _launch(job, number, sandbox, task, slot)
        except (OSError, BatchError, subprocess.SubprocessError, ValueError) as error:
            lost = replace(
                attempt, state=JobState.LOST, ended_us=_now_us(), reason=f"cannot start: {error}"
            )
            self.record(JobStatus(job.batch_id, JobState.LOST, (*status.attempts, lost)))
            return
        deadline = time.monotonic() + task.wall_s
        self.running[job.batch_id] = Running(job, slot, deadline, process)

    def record(self, status: JobStatus) -> None:
        """Write a job's new state, and forget the job when that is final."""
        job = self.folders[status.batch_id]
        job.write(status)
        number = f" (attempt {status.attempts[-1].number})" if status.attempts else ""
        self.say(f"{status.batch_id}: {status.state.value}{number}")
        self.active[status.batch_id] = status
        if not status.state.final:
            return
        del self.active[status.batch_id], self.folders[status.batch_id]
        (self.spool.cancels / status.batch_id).unlink(missing_ok=True)
        cluster = status.batch_id.rpartition(".")[0]
        if not any(other.rpartition(".")[0] == cluster for other in self.active):
            self.spool.finish(cluster)

    def end_finished(self) -> None:
        """Record the attempts that ended since the last look."""
        for batch_id, running in list(self.running.items()):
            status = self.active[batch_id]
            number = status.attempts[-1].number
            if running.process is not None:
                code = running.process.poll()
                if code is None:
                    continue
            elif _lock_is_held(running.job.lock_file(number)):
                continue
            else:
                code = None
            leftover = processes.end_all(running.job.path)
            if leftover:
                self.say(f"{batch_id}: {leftover} processes that outlived the worker were ended")
            del self.running[batch_id]
            self.record(self.ended(status, running, code))

    def ended(self, status: JobStatus, running: Running, code: int | None) -> JobStatus:
        """The state of a job whose attempt has just ended with ``code`` (None: nobody saw it)."""
        attempt = replace(status.attempts[-1], ended_us=_now_us(), exit_code=code)
        if running.reason:
            state = JobState.CANCELLED if running.reason == "cancelled" else JobState.LOST
            attempt = replace(attempt, state=state, reason=running.reason)
        elif (code is not None and code >= 0) or _came_to_an_end(
            running.job.sandbox(attempt.number)
        ):
            state = JobState.DONE
            attempt = replace(attempt, state=state)
        else:
            how = "ended while no runner watched it" if code is None else _signal_name(-code)
            attempt = replace(attempt, state=JobState.LOST, reason=f"the worker {how}")
            state = JobState.QUEUED if attempt.number < MAX_ATTEMPTS else JobState.LOST
        return JobStatus(status.batch_id, state, (*status.attempts[:-1], attempt))

    def obey_cancels(self) -> None:
        """Cancel what was asked for; requests for jobs that are final already are dropped."""
        for batch_id in self.spool.cancel_requests():
            status = self.active.get(batch_id)
            if status is None:
                (self.spool.cancels / batch_id).unlink(missing_ok=True)
            elif batch_id in self.running:
                self.terminate(batch_id, "cancelled")
            else:
                self.record(JobStatus(batch_id, JobState.CANCELLED, status.attempts))

    def enforce_limits(self) -> None:
        """End what is over its wall limit, and kill what did not end when asked to."""
        now = time.monotonic()
        for batch_id, running in self.running.items():
            if now > running.deadline:
                self.terminate(batch_id, "over the wall limit of the job")
            if running.kill_at and now > running.kill_at:
                processes.end_all(running.job.path)

    def terminate(self, batch_id: str, reason: str) -> None:
        """Ask a worker to end; :meth:`enforce_limits` kills it when it does not."""
        running = self.running[batch_id]
        if running.reason:
            return
        number = self.active[batch_id].attempts[-1].number
        pid = running.pid(number)
        running.reason = reason
        running.kill_at = time.monotonic() + (GRACE_S if pid else 0.0)
        if pid:
            processes.send(pid, signal.SIGTERM)


def _now_us() -> int:
    return time.time_ns() // 1000


def _signal_name(number: int) -> str:
    try:
        return f"was ended by {signal.Signals(number).name}"
    except ValueError:
        return f"was ended by signal {number}"


def _came_to_an_end(sandbox: Path) -> bool:
    """Whether the worker closed its account of the attempt, which it opens at its start."""
    try:
        account = json.loads((sandbox / "attempt.json").read_text(encoding="utf-8"))
        return account["ended_us"] is not None
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _fresh_sandbox(job: JobFolder, attempt: int) -> Path:
    sandbox = job.sandbox(attempt)
    if sandbox.exists():  # half copied by a killed runner
        shutil.rmtree(sandbox)
    copy_input(job.inputs, sandbox)
    return sandbox


def _launch(
    job: JobFolder, attempt: int, sandbox: Path, task: Task, slot: int
) -> subprocess.Popen[bytes]:
    """Start the worker in a session of its own, holding the lock of its attempt."""
    environment = dict(task.environment)
    environment |= {**processes.mark_of(job.path), SLOT: f"slot{slot}"}
    pid_file = job.pid_file(attempt)

    def leave_pid() -> None:
        # In the child, so that no moment exists in which it runs and nobody could end it.
        pid = os.getpid()
        write_atomically(pid_file, f"{pid} {processes.start_time(pid)}")

    with (
        job.lock_file(attempt).open("w") as lock,
        (sandbox / "worker.out").open("wb") as out,
        (sandbox / "worker.err").open("wb") as err,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        return subprocess.Popen(
            [task.executable, *(a.replace(ATTEMPT, str(attempt)) for a in task.arguments)],
            cwd=sandbox,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            pass_fds=(lock.fileno(),),
            start_new_session=True,
            preexec_fn=leave_pid,  # noqa: PLW1509 - the runner has one thread
        )


def _lock_is_held(path: Path) -> bool:
    try:
        with path.open("r") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def main(root: str) -> None:
    """Leave a runner for the spool behind, unless one is there; returns when it is at work."""
    spool = Spool(Path(root))
    lock = spool.runner_lock.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir(spool.root)
    log = spool.runner_log.open("a", encoding="utf-8")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    Runner(spool, log).run(lock)


if __name__ == "__main__":
    main(sys.argv[1])
