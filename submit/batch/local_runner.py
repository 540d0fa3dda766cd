"""Runner of the local queue: one detached process per spool that runs the queued jobs.

``python -m treehammer.submit.batch.local_runner SPOOL LOCK`` is started by
:class:`~treehammer.submit.batch.local_batch.LocalBatch`, which holds the runner's lock for it as the
file descriptor LOCK.  It starts jobs in the order of the queue, ends cancelled jobs and jobs over their
wall limit, and leaves when there has been no job for some seconds.

If the runner is killed, its workers continue.  The next runner waits until each has released its
lock.  A job whose worker did not complete is queued once more.
"""

from __future__ import annotations

import fcntl
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import psutil

from treehammer.collectors.job_spec import JOB_MARK_VARIABLE, RETRY_EXIT_CODE, JobState
from treehammer.collectors.json_documents import format_json
from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.shared_files import is_locked
from treehammer.collectors.worker.child_processes import StopSignals
from treehammer.collectors.worker.run.payload_process import become_subreaper
from treehammer.errors import BatchError
from treehammer.submit.batch.interface import AttemptStatus
from treehammer.submit.batch.job_folders import (
    copy_input,
    describe_os_error,
    is_disk_full,
    link_input,
    read_report,
)
from treehammer.submit.batch.local_batch import (
    DESCRIPTION_NAME,
    INPUTS_NAME,
    MAX_LOCAL_ATTEMPTS,
    OPEN,
    TERMINATE_GRACE_S,
    LocalBatch,
    QueuedJob,
)

#: Longest time in seconds between two polls: short compared to a job, and no load on measurements.
TICK_INTERVAL_S = 0.2
#: Seconds before a failed disk operation is retried.
STALLED_S = 2.0
#: Seconds for which a runner without jobs waits for more, such as those of a comparison's next look.
IDLE_S = 5.0
#: Environment variable with the worker's slot.
SLOT_VARIABLE = "TREEHAMMER_BATCH_SLOT"
#: Placeholder in a description's arguments for the number of the attempt.
ATTEMPT_PLACEHOLDER = "$(ATTEMPT)"
#: Reason of an attempt that the user ended.
CANCELLED = "cancelled"
#: Rounds of killing, as processes may fork while others are being killed.
_KILL_ROUNDS = 20
#: Longest time in seconds that killed processes get to end before another round.
_KILL_WAIT_S = 1.0


@dataclass
class Worker:
    """Worker of the last attempt of a running job.

    Attributes:
        job: the job with its running attempt.
        sandbox: working folder of the attempt.
        slot: number of its slot, from 1.
        start_s: start of the attempt, by the monotonic clock.
        process: None if a killed runner left it, or if it did not start.
        reason: why it is being ended, or did not start.
        kill_at: time of SIGKILL, by the monotonic clock.
    """

    job: QueuedJob
    sandbox: Path
    slot: int
    start_s: float
    process: subprocess.Popen[bytes] | None = None
    reason: str = ""
    kill_at: float = math.inf

    def has_ended(self) -> bool:
        """Return whether the worker has ended."""
        if self.process is not None:
            return self.process.poll() is not None
        return not is_locked(self.sandbox.with_suffix(".lock"))

    def terminate(self, reason: str) -> None:
        """Send SIGTERM; the job's processes are killed if the worker does not end."""
        if self.reason:
            return
        self.reason, self.kill_at = reason, time.monotonic()
        if self.process is not None:
            self.kill_at += TERMINATE_GRACE_S
            self.process.terminate()

    def _find_end(self, code: int | None) -> tuple[JobState, str]:
        """Find the state of the attempt by the worker's exit code, and the reason."""
        if self.reason:
            return JobState.CANCELLED if self.reason == CANCELLED else JobState.LOST, self.reason
        if code == RETRY_EXIT_CODE:  # for the reason in its last line
            return JobState.LOST, ""
        ended_by_itself = code is not None and code >= 0
        if ended_by_itself or read_report(self.sandbox).get("ended_us") is not None:
            return JobState.DONE, ""
        return JobState.LOST, f"the worker {_describe_kill(code)}"

    def describe_end(self) -> tuple[JobState, AttemptStatus]:
        """Return the state of the job and its attempt after the worker ended."""
        code = self.process.returncode if self.process else None
        state, reason = self._find_end(code)
        last = self.job.status.attempts[-1]
        # By the monotonic clock: the system time may be changed meanwhile.
        ended_us = last.started_us + round((time.monotonic() - self.start_s) * 1e6)
        attempt = replace(last, state=state, ended_us=ended_us, exit_code=code, reason=reason)
        is_repeated = attempt.number - self.job.previous_attempts < MAX_LOCAL_ATTEMPTS
        if state is JobState.LOST and not self.reason and is_repeated:
            state = JobState.QUEUED
        return state, attempt


class QueueRunner:
    """Runs the jobs of one queue until all have ended."""

    def __init__(self, queue: LocalBatch) -> None:
        self.queue = queue
        self.workers: dict[str, Worker] = {}
        self.idle_since = time.monotonic()

    def run(self, lock: int) -> None:
        """Run until there are no jobs; ``lock`` is the runner's lock, already held."""
        self.log_line(f"runner {os.getpid()} starts")
        for job in self.queue.select("state = 'running'"):
            self.add_worker(job)  # left by a killed runner, perhaps alive
        steps = (
            self.record_ended,
            self.queue.cancel_orphans,
            self.end_workers,
            self.start_queued,
        )
        with StopSignals() as signals, self.queue.transaction() as connection:
            # While a connection is open, its files exist, for which a full disk would have no room.
            connection.execute("SELECT 1 FROM job").fetchone()
            # Not of the folder with the rows: as root, SQLite sets the owner of its log on each use.
            signal.signal(signal.SIGIO, lambda *_: None)
            with suppress(OSError):  # without notices, changes are noticed at the next poll
                descriptor = os.open(self.queue.runner_lock.parent, os.O_RDONLY)
                fcntl.fcntl(descriptor, fcntl.F_NOTIFY, fcntl.DN_ATTRIB | fcntl.DN_MULTISHOT)
            while not signals.stopped_by and self.has_queue(lock):
                succeeded = [self.try_step(step) for step in steps]
                if not all(succeeded):
                    time.sleep(STALLED_S)
                elif self.leave_if_idle(lock):
                    return
                select.select([signals.fd], [], [], TICK_INTERVAL_S)
                signals.drain()

    def has_queue(self, lock: int) -> bool:
        """Return whether the queue is still that of the lock, and was not removed or replaced."""
        try:
            return os.path.samestat(os.fstat(lock), self.queue.runner_lock.stat())
        except FileNotFoundError:
            return False

    def try_step(self, step: Callable[[], object]) -> bool:
        """Take a step; one that fails, as on a full disk, is taken again later."""
        try:
            step()
        except (OSError, BatchError) as error:
            text = describe_os_error(error) if isinstance(error, OSError) else str(error)
            self.log_line(f"stalled: {text}")
            return False
        return True

    def leave_if_idle(self, lock: int) -> bool:
        """Release the runner's lock if there have been no jobs for some seconds."""
        if self.workers or self.queue.select(OPEN, limit=1):
            self.idle_since = time.monotonic()
        if time.monotonic() < self.idle_since + IDLE_S:
            return False
        with self.queue.locked():
            if self.queue.select(OPEN, limit=1):
                return False
            self.log_line(f"runner {os.getpid()} leaves: no jobs left")
            os.close(lock)
            return True

    def log_line(self, text: str) -> None:
        """Write one line to the runner's log if the disk has room."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with suppress(OSError):
            print(f"{stamp} {text}", flush=True)

    def update(
        self, job: QueuedJob, state: JobState, attempts: Sequence[AttemptStatus]
    ) -> QueuedJob:
        """Write the state and the attempts of a job, and return it with them."""
        updated = job._replace(state=state.value, attempts=format_json(attempts))
        with self.queue.transaction() as connection:
            connection.execute(
                "UPDATE job SET state = ?, attempts = ? WHERE batch_id = ?",
                (updated.state, updated.attempts, job.batch_id),
            )
        number = f" (attempt {attempts[-1].number})" if attempts else ""
        self.log_line(f"{job.batch_id}: {state.value}{number}")
        return updated

    def add_worker(self, job: QueuedJob) -> Worker:
        """Give the running attempt of a job the lowest free slot."""
        attempt = job.status.attempts[-1]
        sandbox = self.queue.locate(job.batch_id) / f"attempt-{attempt.number}"
        used_slots = {worker.slot for worker in self.workers.values()}
        slot = next(n for n in range(1, len(used_slots) + 2) if n not in used_slots)
        ran_s = (current_us() - attempt.started_us) / 1e6
        start_s = time.monotonic() - ran_s
        self.workers[job.batch_id] = worker = Worker(job, sandbox, slot, start_s)
        return worker

    def start_queued(self) -> None:
        """Start jobs in the order of the queue while slots and disk space are free.

        A job takes a slot for each of its CPUs; one with more CPUs than slots runs alone.  Jobs that
        start together have as many slots as they are.  Beside them no others run: every running job
        accepts only as many at once as there are slots for it.
        """
        while queued := self.queue.select("state = 'queued'", limit=1):
            (job,) = queued
            (newest,) = self.queue.select("number = (SELECT max(number) FROM job)")
            running = [worker.job for worker in self.workers.values()]
            bound = min(max(newest.slots, other.together) for other in (*running, job))
            used_cpus = sum(other.cpus for other in running)
            if (used_cpus and used_cpus + job.cpus > bound) or not self.queue.has_disk_space():
                return
            self.start_attempt(job)

    def start_attempt(self, job: QueuedJob) -> None:
        """Start the next attempt of a job.

        Raises:
            OSError: the disk is full; the attempt can be started later.
        """
        earlier = job.status.attempts
        number = max((job.previous_attempts, *(attempt.number for attempt in earlier))) + 1
        attempt = AttemptStatus(number, JobState.RUNNING, current_us(), 0, None, "")
        sandbox, reason = self.queue.locate(job.batch_id) / f"attempt-{number}", ""
        with ExitStack() as files:
            try:
                text = sandbox.with_name(DESCRIPTION_NAME).read_text(encoding="utf-8")
                description = tomllib.loads(text)
                command = [description["job"]["executable"], *description["job"]["arguments"]]
                lock, out, err = _fill_sandbox(sandbox, files)
            except OSError as error:
                if is_disk_full(error):
                    raise
                reason = f"cannot start: {describe_os_error(error)}"
            except (ValueError, LookupError) as error:  # written before a power failure
                reason = f"{sandbox.parent / DESCRIPTION_NAME}: not a job description ({error!r})"
            # Recorded before the start: if this runner is killed in between, the successor finds a
            # free lock and tries again; the reverse order could run a job twice.
            worker = self.add_worker(self.update(job, JobState.RUNNING, (*earlier, attempt)))
            worker.reason = reason
            if reason:
                return
            try:
                worker.process = subprocess.Popen(
                    [word.replace(ATTEMPT_PLACEHOLDER, str(number)) for word in command],
                    cwd=sandbox,
                    env={
                        **description["environment"],
                        JOB_MARK_VARIABLE: str(sandbox.parent),
                        SLOT_VARIABLE: f"slot{worker.slot}",
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    pass_fds=(lock.fileno(),),  # the worker holds the lock for its lifetime
                    start_new_session=True,
                )
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                worker.reason = f"cannot start: {error}"

    def record_ended(self) -> None:
        """Record the attempts that ended since the last poll."""
        for batch_id, worker in list(self.workers.items()):
            if worker.has_ended():
                if leftovers := self.kill_processes(worker):
                    self.log_line(
                        f"{batch_id}: killed {leftovers} processes that outlived the worker"
                    )
                state, attempt = worker.describe_end()
                self.update(worker.job, state, (*worker.job.status.attempts[:-1], attempt))
                del self.workers[batch_id]

    def kill_processes(self, worker: Worker) -> int:
        """Kill the processes of a job, and orphans in whatever environment; return their number."""
        workers = {other.process.pid for other in self.workers.values() if other.process}
        killed: set[psutil.Process] = set()
        for _ in range(_KILL_ROUNDS):
            orphans = {child for child in psutil.Process().children() if child.pid not in workers}
            processes = orphans | find_job_processes(worker.sandbox.parent)
            if not processes:
                break
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(processes, _KILL_WAIT_S)
            killed |= processes
        return len(killed)

    def end_workers(self) -> None:
        """Cancel the requested jobs, and end attempts over their wall limit."""
        for job in self.queue.select(f"is_cancelled AND {OPEN}"):
            if worker := self.workers.get(job.batch_id):
                worker.terminate(CANCELLED)
            else:
                self.update(job, JobState.CANCELLED, job.status.attempts)
        for worker in self.workers.values():
            if time.monotonic() > worker.start_s + (worker.job.wall_s or math.inf):
                worker.terminate("over the wall limit of the job")
            if time.monotonic() > worker.kill_at:
                self.kill_processes(worker)


def _fill_sandbox(sandbox: Path, files: ExitStack) -> tuple[IO[str], IO[bytes], IO[bytes]]:
    """Fill the sandbox of an attempt; return its lock, already held, and its output files.

    Raises:
        OSError: the disk failed.
    """
    if sandbox.exists():  # a partial copy of a killed runner, or from a full disk
        shutil.rmtree(sandbox)
    inputs = sandbox.with_name(INPUTS_NAME)
    sandbox.mkdir()
    for path in inputs.iterdir():
        # A payload may write into its own folder, not to the worker.
        (copy_input if path.is_dir() else link_input)(path, sandbox / path.name)
    lock = files.enter_context(sandbox.with_suffix(".lock").open("w"))
    fcntl.flock(lock, fcntl.LOCK_EX)
    out, err = ((sandbox / f"worker.{name}").open("wb") for name in ("out", "err"))
    return lock, files.enter_context(out), files.enter_context(err)


def _describe_kill(code: int | None) -> str:
    """Describe the end of a worker that has to be restarted; ``code`` as in :mod:`subprocess`."""
    if code is None:
        return "ended while no runner was alive"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def find_job_processes(folder: Path) -> set[psutil.Process]:
    """Find the live processes of a job, in any session or process group.

    Their environment names the job's folder rather than its batch id, which other queues may use.
    """
    return {
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get(JOB_MARK_VARIABLE) == str(folder)
    }


def main(root: str, lock: str) -> None:
    """Run the jobs of a spool, with its runner's lock."""
    # Orphans of killed workers become children of this process, in every environment.
    become_subreaper()
    QueueRunner(LocalBatch(Path(root))).run(int(lock))


if __name__ == "__main__":
    main(*sys.argv[1:])
