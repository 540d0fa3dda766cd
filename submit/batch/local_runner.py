"""Runner of the local batch system: one detached process per spool that runs the queued jobs.

``python -m treehammer.submit.batch.local_runner SPOOL`` returns at once and leaves the runner in its
own session, unless one is alive.  It starts jobs in the order of submission, ``slots`` at once, ends
cancelled jobs and jobs over their wall limit, and leaves when no job is left.

If the runner is killed, its workers continue.  The next runner recognizes them by the lock that
each holds, adopts them, and restarts, as a new attempt, only those that ended unobserved.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from treehammer.collectors.job_spec import RETRY_EXIT_CODE, JobState
from treehammer.collectors.shared_files import is_locked, read_regular_file
from treehammer.collectors.worker.run.payload_process import become_subreaper
from treehammer.errors import BatchError
from treehammer.submit.batch.interface import AttemptStatus, JobStatus, describe_os_error
from treehammer.submit.batch.local_jobs import (
    NoDiskSpaceError,
    Spool,
    SpooledJob,
    WorkerCommand,
    kill_job_processes,
    kill_orphans,
    prepare_attempt,
    send_signal,
    start_time,
)

#: Attempts of a queued job that was lost or requested a retry.
MAX_LOCAL_ATTEMPTS = 2
#: Seconds between SIGTERM, which lets the worker write its records, and SIGKILL.
TERMINATE_GRACE_S = 10.0
#: Seconds between two polls: short compared to a job, and no load on its measurements.
TICK_INTERVAL_S = 0.2
#: Seconds before a failed disk operation is retried.
STALLED_S = 2.0
#: Free bytes that a job needs to start; its records need room.
MIN_FREE_BYTES = 16_000_000
#: Size limit of a worker's account of its attempt.
_MAX_ACCOUNT_BYTES = 16_000_000


@dataclass
class RunningAttempt:
    """One attempt in progress; ``process`` is None if adopted from a killed runner.

    ``cpus`` is the number of slots that it takes.  ``reason`` explains why it is being ended, or could not be started.
    """

    job: SpooledJob
    slot: int
    deadline: float
    cpus: int = 1
    process: subprocess.Popen[bytes] | None = None
    reason: str = ""
    kill_at: float = 0.0

    def pid(self, attempt: int) -> int:
        """Return the worker's pid; 0 if it has ended or is not known yet."""
        try:
            pid, started = map(int, self.job.pid_file(attempt).read_text("ascii").split())
        except (FileNotFoundError, ValueError):
            return 0
        return pid if start_time(pid) == started else 0


class QueueRunner:
    """Runs the jobs of one spool until all have ended."""

    def __init__(self, spool: Spool, log: IO[str]) -> None:
        self.spool = spool
        self.log = log
        self.loaded_clusters: set[str] = set()
        self.active: dict[str, JobStatus] = {}
        self.folders: dict[str, SpooledJob] = {}
        self.running: dict[str, RunningAttempt] = {}
        self.together: dict[str, int] = {}

    def run(self, lock: IO[str]) -> None:
        """Run until the queue is empty; ``lock`` is the runner's lock, already held."""
        self.log_line(f"runner {os.getpid()} starts")
        # A removed spool never has jobs again.
        while self.spool.jobs.is_dir():
            if self.run_once() and not self.active and self.release_if_idle(lock):
                return
            self.wait_for_worker()

    def wait_for_worker(self) -> None:
        """Wait until a worker ends, at most :data:`TICK_INTERVAL_S`."""
        pids = [running.process.pid for running in self.running.values() if running.process]
        descriptors: list[int] = []
        # Linux before 5.3 has no such descriptors.
        with ExitStack() as files, suppress(OSError):
            for pid in pids:
                descriptors.append(os.pidfd_open(pid))
                files.callback(os.close, descriptors[-1])
            select.select(descriptors, [], [], TICK_INTERVAL_S)
            return
        time.sleep(TICK_INTERVAL_S)

    def run_once(self) -> bool:
        """Run every step once; returns whether all succeeded.

        A step that fails on a disk error is retried later and does not stop the others.
        """
        succeeded = True
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
                succeeded = False
                self.log_line(f"stalled: {describe_os_error(error)}")
        if not succeeded:
            time.sleep(STALLED_S)
        return succeeded

    def release_if_idle(self, lock: IO[str]) -> bool:
        """Release the runner's lock unless there are new jobs."""
        with self.spool.locked():
            self.load_new_clusters()
            if self.active:
                return False
            self.log_line(f"runner {os.getpid()} leaves: no jobs left")
            lock.close()
            return True

    def log_line(self, text: str) -> None:
        """Write one line to the runner's log if the disk has room."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with suppress(OSError):
            print(f"{stamp} {text}", file=self.log, flush=True)

    def load_new_clusters(self) -> None:
        """Load submissions that are new to this runner."""
        for name in self.spool.cluster_names():
            if name in self.loaded_clusters:
                continue
            self.loaded_clusters.add(name)
            try:
                cluster = self.spool.read_cluster(name)
                if cluster.is_finished:
                    continue
                statuses = {job.batch_id: job.read_status() for job in cluster.jobs}
            except BatchError as error:
                self.log_line(f"skipped: {error}")
                continue
            for job in cluster.jobs:
                status = statuses[job.batch_id]
                if not status.state.is_final:
                    self.folders[job.batch_id] = job
                    self.together[job.batch_id] = cluster.together
                    self.active[job.batch_id] = status
                    if status.state is JobState.RUNNING:
                        self.adopt_attempt(job, status)

    def adopt_attempt(self, job: SpooledJob, status: JobStatus) -> None:
        """Watch an attempt that a killed runner left; the next step finds out whether it is alive."""
        attempt = status.attempts[-1]
        self.log_line(f"{job.batch_id}: attempt {attempt.number} adopted")
        try:
            task = WorkerCommand.read(job.description_file)
            wall_s, cpus = task.wall_s, task.cpus
        except BatchError:  # damaged after the start
            wall_s, cpus = math.inf, 1
        elapsed_s = (_now_us() - attempt.started_us) / 1e6
        deadline = time.monotonic() + wall_s - elapsed_s
        self.running[job.batch_id] = RunningAttempt(job, self.free_slot(), deadline, cpus)

    def free_slot(self) -> int:
        """Return the lowest slot number without a running attempt."""
        taken = {running.slot for running in self.running.values()}
        return next(n for n in range(1, len(taken) + 2) if n not in taken)

    def start_queued(self) -> None:
        """Start jobs in the order of submission while slots and disk space are free.

        A job takes a slot for each of its CPUs; one with more CPUs than slots runs alone.  Jobs that start together have as many slots as they are.  Beside them no others run: every
        running job accepts only as many at once as there are slots for it.
        """
        slots = self.spool.slots
        for batch_id, status in list(self.active.items()):
            if status.state is not JobState.QUEUED:
                continue
            bound = min(
                max(slots, self.together[started_id]) for started_id in (*self.running, batch_id)
            )
            taken = sum(running.cpus for running in self.running.values())
            needed = count_cpus(self.folders[batch_id]) if taken < bound else 1
            if (taken and taken + needed > bound) or not has_disk_space(self.spool):
                return
            self.start_attempt(self.folders[batch_id], status)

    def start_attempt(self, job: SpooledJob, status: JobStatus) -> None:
        """Start the next attempt of a job."""
        number = job.previous_attempts + len(status.attempts) + 1
        attempt = AttemptStatus(number, JobState.RUNNING, _now_us(), 0, None, "")
        try:
            with prepare_attempt(job, number) as ready:
                # Recorded before the start: if this runner is killed in between, the successor finds a
                # free lock and tries again; the reverse order could run a job twice.
                self.record_status(
                    JobStatus(job.batch_id, JobState.RUNNING, (*status.attempts, attempt))
                )
                running = RunningAttempt(
                    job, self.free_slot(), time.monotonic() + ready.task.wall_s, ready.task.cpus
                )
                self.running[job.batch_id] = running
                try:
                    running.process = ready.launch(running.slot)
                except (OSError, ValueError, subprocess.SubprocessError) as error:
                    running.reason = f"cannot start: {error}"
        except NoDiskSpaceError as error:
            self.log_line(f"{job.batch_id}: waits for disk space ({error})")
        except BatchError as error:
            lost = replace(attempt, state=JobState.LOST, ended_us=_now_us(), reason=str(error))
            self.record_status(JobStatus(job.batch_id, JobState.LOST, (*status.attempts, lost)))

    def record_status(self, status: JobStatus) -> None:
        """Write a job's new status; a final job leaves the runner."""
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
            with suppress(OSError):  # only saves the next runner some work
                self.spool.mark_finished(cluster)

    def record_finished(self) -> None:
        """Record the attempts that ended since the last poll."""
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
            leftover = kill_job_processes(running.job.path) + kill_orphans(
                {r.process.pid for r in self.running.values() if r.process and r is not running}
            )
            if leftover:
                self.log_line(f"{batch_id}: killed {leftover} processes that outlived the worker")
            self.record_status(self.status_after_attempt(status, running, code))
            del self.running[batch_id]

    def status_after_attempt(
        self, status: JobStatus, running: RunningAttempt, code: int | None
    ) -> JobStatus:
        """Return a job's status after its attempt ended with ``code`` (None: no runner saw it)."""
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
            is_repeated = len(status.attempts) < MAX_LOCAL_ATTEMPTS
            state = JobState.QUEUED if is_repeated else JobState.LOST
        return JobStatus(status.batch_id, state, (*status.attempts[:-1], attempt))

    def apply_cancel_requests(self) -> None:
        """Cancel the requested jobs; requests for final jobs are dropped."""
        for batch_id in self.spool.cancel_requests():
            status = self.active.get(batch_id)
            if status is None:
                (self.spool.cancels / batch_id).unlink(missing_ok=True)
            elif batch_id in self.running:
                self.terminate_attempt(batch_id, "cancelled")
            else:
                self.record_status(JobStatus(batch_id, JobState.CANCELLED, status.attempts))

    def enforce_limits(self) -> None:
        """End attempts over their wall limit, and kill those that ignore SIGTERM."""
        now = time.monotonic()
        for batch_id, running in self.running.items():
            if now > running.deadline:
                self.terminate_attempt(batch_id, "over the wall limit of the job")
            if running.kill_at and now > running.kill_at:
                kill_job_processes(running.job.path)

    def terminate_attempt(self, batch_id: str, reason: str) -> None:
        """Send SIGTERM to a worker; :meth:`enforce_limits` kills it if it does not end."""
        running = self.running[batch_id]
        if running.reason:
            return
        number = self.active[batch_id].attempts[-1].number
        pid = running.pid(number)
        running.reason = reason
        running.kill_at = time.monotonic() + (TERMINATE_GRACE_S if pid else 0.0)
        if pid:
            send_signal(pid, signal.SIGTERM)


def _now_us() -> int:
    return time.time_ns() // 1000


def count_cpus(job: SpooledJob) -> int:
    """Count the CPUs that a job needs; 1 if its description is damaged."""
    try:
        return WorkerCommand.read(job.description_file).cpus
    except BatchError:
        return 1


def has_disk_space(spool: Spool) -> bool:
    """Return whether at least :data:`MIN_FREE_BYTES` bytes are free, so that jobs may start."""
    return shutil.disk_usage(spool.root).free >= MIN_FREE_BYTES


def _describe_exit_code(code: int | None) -> str:
    """Describe the end of a worker that has to be restarted; ``code`` as in :mod:`subprocess`."""
    if code is None:
        return "ended while no runner was alive"
    if code >= 0:
        return "could not store its records and requests another attempt"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _is_attempt_complete(sandbox: Path) -> bool:
    """Return whether the worker completed its attempt.json, which it creates at its start."""
    try:
        account = json.loads(read_regular_file(sandbox / "attempt.json", _MAX_ACCOUNT_BYTES))
        return account["ended_us"] is not None
    except (OSError, ValueError, KeyError, TypeError):
        return False


def main(root: str) -> None:
    """Start a runner in the background unless one is alive; returns once it runs."""
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
    with Path(os.devnull).open("rb") as devnull:
        os.dup2(devnull.fileno(), 0)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    # Orphans of killed workers become children of this process, in every environment.
    become_subreaper()
    QueueRunner(spool, log).run(lock)


if __name__ == "__main__":
    main(sys.argv[1])
