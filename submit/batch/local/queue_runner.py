"""The local batch system's runner: one detached process per spool that runs the queued jobs.

``python -m treehammer.submit.batch.local.queue_runner SPOOL`` returns at once and leaves the runner behind in
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
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from treehammer.collectors.job_spec import RETRY_EXIT_CODE
from treehammer.collectors.job_state import JobState
from treehammer.collectors.shared_files import is_locked
from treehammer.collectors.worker.run.payload_process import become_subreaper
from treehammer.errors import BatchError
from treehammer.submit.batch.interface import AttemptStatus, JobStatus
from treehammer.submit.batch.local import job_processes
from treehammer.submit.batch.local.attempt_launch import (
    NoDiskSpaceError,
    WorkerCommand,
    prepare_attempt,
)
from treehammer.submit.batch.local.spool import Spool, SpooledJob
from treehammer.submit.batch.staging import describe_os_error

#: A job whose attempt was lost, or asked for it, is started again until it had so many.
MAX_LOCAL_ATTEMPTS = 2
#: Seconds between SIGTERM, on which the worker still writes its records, and SIGKILL.
TERMINATE_GRACE_S = 10.0
#: Seconds between two looks at the queue: small beside a job, and no load while it measures.
TICK_INTERVAL_S = 0.2
#: Seconds until what failed for want of room, or for another fault of the disk, is tried again.
STALLED_S = 2.0
#: Bytes that must be free for a job to start: what it measures would find no place otherwise.
MIN_FREE_BYTES = 16_000_000


@dataclass
class RunningAttempt:
    """One attempt under way; ``process`` is None for one adopted from a killed runner.

    ``reason`` says why it is being ended, or why it could not be started.
    """

    job: SpooledJob
    slot: int
    deadline: float
    process: subprocess.Popen[bytes] | None = None
    reason: str = ""
    kill_at: float = 0.0

    def pid(self, attempt: int) -> int:
        """The worker's pid, 0 when it is gone or not yet known."""
        try:
            pid, started = map(int, self.job.pid_file(attempt).read_text("ascii").split())
        except (FileNotFoundError, ValueError):
            return 0
        return pid if job_processes.start_time(pid) == started else 0


class QueueRunner:
    """Runs the jobs of one spool until none is left."""

    def __init__(self, spool: Spool, log: IO[str]) -> None:
        self.spool = spool
        self.log = log
        self.seen: set[str] = set()
        self.active: dict[str, JobStatus] = {}
        self.folders: dict[str, SpooledJob] = {}
        self.running: dict[str, RunningAttempt] = {}

    def run(self, lock: IO[str]) -> None:
        """Work until the queue is empty; ``lock`` is the held runner's lock."""
        self.log_line(f"runner {os.getpid()} starts")
        # A spool that was removed has nothing left to run, and never will.
        while self.spool.jobs.is_dir():
            if self.run_once() and not self.active and self.release_if_idle(lock):
                return
            time.sleep(TICK_INTERVAL_S)

    def run_once(self) -> bool:
        """Take one look at everything; whether all could be done.

        What could not be written did not happen: it is tried again as it stands, and holds up
        nothing else.
        """
        good = True
        for step in (
            self.load_new_clusters,
            self.record_finished,
            self.apply_cancel_requests,
            self.enforce_limits,
            self.start_queued,
        ):
            try:
                step()
            except OSError as error:
                good = False
                self.log_line(f"stalled: {describe_os_error(error)}")
        if not good:
            time.sleep(STALLED_S)
        return good

    def release_if_idle(self, lock: IO[str]) -> bool:
        """Let go of the spool unless there is new work after all."""
        with self.spool.locked():
            self.load_new_clusters()
            if self.active:
                return False
            self.log_line(f"runner {os.getpid()} leaves: nothing is left")
            lock.close()
            return True

    def log_line(self, text: str) -> None:
        """Write one line to the runner's log, when there is room for it."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with suppress(OSError):
            print(f"{stamp} {text}", file=self.log, flush=True)

    def load_new_clusters(self) -> None:
        """Take in submissions that are new to this runner."""
        for name in self.spool.cluster_names():
            if name in self.seen:
                continue
            self.seen.add(name)
            try:
                cluster = self.spool.read_cluster(name)
                if cluster.is_finished:
                    continue
                statuses = {job.batch_id: job.read_status() for job in cluster.jobs}
            except BatchError as error:
                self.log_line(f"left alone: {error}")
                continue
            for job in cluster.jobs:
                status = statuses[job.batch_id]
                if not status.state.is_final:
                    self.folders[job.batch_id] = job
                    self.active[job.batch_id] = status
                    if status.state is JobState.RUNNING:
                        self.adopt_attempt(job, status)

    def adopt_attempt(self, job: SpooledJob, status: JobStatus) -> None:
        """Watch an attempt that a killed runner left behind; whether it lives shows later."""
        attempt = status.attempts[-1]
        self.log_line(f"{job.batch_id}: attempt {attempt.number} adopted")
        try:
            wall_s = WorkerCommand.read(job.description_file).wall_s
        except BatchError:  # it ran, so it was readable once
            wall_s = math.inf
        elapsed_s = (_now_us() - attempt.started_us) / 1e6
        deadline = time.monotonic() + wall_s - elapsed_s
        self.running[job.batch_id] = RunningAttempt(job, self.free_slot(), deadline)

    def free_slot(self) -> int:
        """The lowest slot number that no running attempt has."""
        taken = {running.slot for running in self.running.values()}
        return next(n for n in range(1, len(taken) + 2) if n not in taken)

    def start_queued(self) -> None:
        """Start jobs in the order of submission while a slot and some room are free."""
        slots = self.spool.slots
        for batch_id, status in list(self.active.items()):
            if len(self.running) >= slots or not has_disk_space(self.spool):
                return
            if status.state is JobState.QUEUED:
                self.start_attempt(self.folders[batch_id], status)

    def start_attempt(self, job: SpooledJob, status: JobStatus) -> None:
        """Begin the next attempt of a job."""
        number = len(status.attempts) + 1
        attempt = AttemptStatus(number, JobState.RUNNING, _now_us(), 0, None, "")
        try:
            with prepare_attempt(job, number) as ready:
                # Recorded before the start: should we be killed in between, the successor finds a
                # lock that nobody holds and tries again; the other order could run a job twice.
                self.record_status(
                    JobStatus(job.batch_id, JobState.RUNNING, (*status.attempts, attempt))
                )
                running = RunningAttempt(
                    job, self.free_slot(), time.monotonic() + ready.task.wall_s
                )
                self.running[job.batch_id] = running
                try:
                    running.process = ready.launch(running.slot)
                except (OSError, ValueError, subprocess.SubprocessError) as error:
                    running.reason = f"cannot start: {error}"
        except NoDiskSpaceError as error:
            self.log_line(f"{job.batch_id}: waits for room ({error})")
        except BatchError as error:
            lost = replace(attempt, state=JobState.LOST, ended_us=_now_us(), reason=str(error))
            self.record_status(JobStatus(job.batch_id, JobState.LOST, (*status.attempts, lost)))

    def record_status(self, status: JobStatus) -> None:
        """Write a job's new state, and forget the job when that is final."""
        job = self.folders[status.batch_id]
        job.write_status(status)
        number = f" (attempt {status.attempts[-1].number})" if status.attempts else ""
        self.log_line(f"{status.batch_id}: {status.state.value}{number}")
        self.active[status.batch_id] = status
        if not status.state.is_final:
            return
        del self.active[status.batch_id], self.folders[status.batch_id]
        (self.spool.cancels / status.batch_id).unlink(missing_ok=True)
        cluster = status.batch_id.rpartition(".")[0]
        if not any(other.rpartition(".")[0] == cluster for other in self.active):
            with suppress(OSError):  # it saves the next runner a look, no more
                self.spool.mark_finished(cluster)

    def record_finished(self) -> None:
        """Record the attempts that ended since the last look."""
        for batch_id, running in list(self.running.items()):
            status = self.active[batch_id]
            number = status.attempts[-1].number
            if running.process is not None:
                code = running.process.poll()
                if code is None:
                    continue
            elif is_locked(running.job.lock_file(number)):
                continue
            else:
                code = None
            leftover = job_processes.kill_job_processes(
                running.job.path
            ) + job_processes.kill_orphans(
                {r.process.pid for r in self.running.values() if r.process and r is not running}
            )
            if leftover:
                self.log_line(
                    f"{batch_id}: {leftover} processes that outlived the worker were ended"
                )
            self.record_status(self.status_after_attempt(status, running, code))
            del self.running[batch_id]

    def status_after_attempt(
        self, status: JobStatus, running: RunningAttempt, code: int | None
    ) -> JobStatus:
        """The state of a job whose attempt has just ended with ``code`` (None: nobody saw it)."""
        attempt = replace(status.attempts[-1], ended_us=_now_us(), exit_code=code)
        if running.reason:
            state = JobState.CANCELLED if running.reason == "cancelled" else JobState.LOST
            attempt = replace(attempt, state=state, reason=running.reason)
        elif code != RETRY_EXIT_CODE and (
            (code is not None and code >= 0)
            or _is_attempt_complete(running.job.sandbox_folder(attempt.number))
        ):
            state = JobState.DONE
            attempt = replace(attempt, state=state)
        else:
            attempt = replace(
                attempt, state=JobState.LOST, reason=f"the worker {_describe_exit_code(code)}"
            )
            state = JobState.QUEUED if attempt.number < MAX_LOCAL_ATTEMPTS else JobState.LOST
        return JobStatus(status.batch_id, state, (*status.attempts[:-1], attempt))

    def apply_cancel_requests(self) -> None:
        """Cancel what was asked for; requests for jobs that are final already are dropped."""
        for batch_id in self.spool.cancel_requests():
            status = self.active.get(batch_id)
            if status is None:
                (self.spool.cancels / batch_id).unlink(missing_ok=True)
            elif batch_id in self.running:
                self.terminate_attempt(batch_id, "cancelled")
            else:
                self.record_status(JobStatus(batch_id, JobState.CANCELLED, status.attempts))

    def enforce_limits(self) -> None:
        """End what is over its wall limit, and kill what did not end when asked to."""
        now = time.monotonic()
        for batch_id, running in self.running.items():
            if now > running.deadline:
                self.terminate_attempt(batch_id, "over the wall limit of the job")
            if running.kill_at and now > running.kill_at:
                job_processes.kill_job_processes(running.job.path)

    def terminate_attempt(self, batch_id: str, reason: str) -> None:
        """Ask a worker to end; :meth:`enforce_limits` kills it when it does not."""
        running = self.running[batch_id]
        if running.reason:
            return
        number = self.active[batch_id].attempts[-1].number
        pid = running.pid(number)
        running.reason = reason
        running.kill_at = time.monotonic() + (TERMINATE_GRACE_S if pid else 0.0)
        if pid:
            job_processes.send_signal(pid, signal.SIGTERM)


def _now_us() -> int:
    return time.time_ns() // 1000


def has_disk_space(spool: Spool) -> bool:
    """Whether jobs may start: less than :data:`MIN_FREE` bytes free would lose what they measure."""
    return shutil.disk_usage(spool.root).free >= MIN_FREE_BYTES


def _describe_exit_code(code: int | None) -> str:
    """How a worker ended that has to be started again; ``code`` as :mod:`subprocess` tells it."""
    if code is None:
        return "ended while no runner watched it"
    if code >= 0:
        return "could not keep its records and asks for another attempt"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _is_attempt_complete(sandbox: Path) -> bool:
    """Whether the worker closed its account of the attempt, which it opens at its start."""
    try:
        account = json.loads((sandbox / "attempt.json").read_text(encoding="utf-8"))
        return account["ended_us"] is not None
    except (OSError, ValueError, KeyError, TypeError):
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
    # What a killed worker leaves behind becomes ours, whatever it did to its environment.
    become_subreaper()
    QueueRunner(spool, log).run(lock)


if __name__ == "__main__":
    main(sys.argv[1])
