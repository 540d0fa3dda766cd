"""The local batch system: jobs of this machine's user, run by a detached runner process."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from treehammer.collectors.batch_names import LOCAL_BATCH
from treehammer.errors import BatchError
from treehammer.submit.batch.interface import InputReplacement, JobDescription, JobStatus
from treehammer.submit.batch.local import queue_runner
from treehammer.submit.batch.local.spool import Spool
from treehammer.submit.batch.staging import describe_os_error

#: Seconds that a cancel waits for its jobs to end before it returns all the same.
_CANCEL_WAIT_S = queue_runner.TERMINATE_GRACE_S + 5.0


class LocalBatch:
    """A queue in a spool directory (see :mod:`treehammer.submit.batch.local.spool`).

    Every call that finds unfinished work makes sure that a runner is there.

    Args:
        spool_dir: the spool; made when it does not exist.
        slots: how many jobs may run at once; 1 measures undisturbed.
    """

    name = LOCAL_BATCH

    def __init__(self, spool_dir: Path, slots: int = 1) -> None:
        self.spool = Spool(spool_dir)
        self.slots = slots

    def submit(self, campaign_id: str, jobs: Sequence[JobDescription]) -> Mapping[str, str]:
        """Queue the jobs in this order; those already queued keep their batch id.

        Raises:
            BatchError: nothing was queued.
        """
        unique = {job.job_id: job for job in jobs}
        with self.spool.locked():
            known = self.spool.find(unique)
            new = [job for job_id, job in unique.items() if job_id not in known]
            added = self.spool.add(campaign_id, new, self.slots) if new else {}
            self._ensure_runner()
        return {**known, **added}

    def find(self, job_ids: Iterable[str]) -> Mapping[str, str]:
        """Job id -> batch id of the jobs that are in the queue."""
        return self.spool.find(job_ids)

    def query(self, batch_ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """State of each known job; unknown ids are absent."""
        statuses = self._read_statuses(batch_ids)
        if any(not status.state.is_final for status in statuses.values()):
            with self.spool.locked():
                self._ensure_runner()
        return statuses

    def sandboxes(self, batch_id: str) -> Mapping[int, Path]:
        """Attempt -> folder with its output."""
        job = self.spool.job(batch_id)
        if job is None:
            return {}
        folders = {a.number: job.sandbox_folder(a.number) for a in job.read_status().attempts}
        return {number: folder for number, folder in folders.items() if folder.is_dir()}

    def cancel(self, batch_ids: Iterable[str]) -> int:
        """Cancel what is not final and return how many were.

        Waits until they are, which takes some seconds where a worker is slow to end.
        """
        statuses = self._read_statuses(batch_ids)
        asked = [batch_id for batch_id, status in statuses.items() if not status.state.is_final]
        if not asked:
            return 0
        with self.spool.locked():
            try:
                for batch_id in asked:
                    (self.spool.cancels / batch_id).touch()
            except OSError as error:
                raise BatchError(
                    f"cannot ask for the end of the jobs ({describe_os_error(error)})",
                    where=str(self.spool.cancels),
                    hint="Make room there and cancel again; those asked for so far end.",
                ) from error
            self._ensure_runner()
        deadline = time.monotonic() + _CANCEL_WAIT_S
        while time.monotonic() < deadline:
            if all(status.state.is_final for status in self._read_statuses(asked).values()):
                break
            time.sleep(queue_runner.TICK_INTERVAL_S)
        return len(asked)

    def release(self, batch_ids: Iterable[str]) -> int:
        """Nothing is ever held here."""
        return 0

    def requeue(self, earlier: Mapping[str, int], inputs: InputReplacement) -> Mapping[str, str]:
        """None: a lost job has been tried once more already."""
        return {}

    def explain_waiting(self, batch_ids: Iterable[str]) -> list[str]:
        """Why no queued job starts."""
        if queue_runner.has_disk_space(self.spool):
            return []
        least = queue_runner.MIN_FREE_BYTES // 1_000_000
        return [
            f"No job starts: less than {least} MB are free in {self.spool.root}. Make room there."
        ]

    def purge(self, batch_ids: Iterable[str]) -> int:
        """Remove the clusters all of whose jobs are named and final; how many bytes that freed.

        Raises:
            BatchError: one cannot be removed.
        """
        asked, freed = set(batch_ids), 0
        with self.spool.locked():
            for name in sorted({batch_id.rpartition(".")[0] for batch_id in asked}):
                if not (self.spool.jobs / name).is_dir():
                    continue
                jobs = self.spool.read_cluster(name).jobs
                if all(job.batch_id in asked and job.read_status().state.is_final for job in jobs):
                    freed += self.spool.remove(name)
        return freed

    def _read_statuses(self, batch_ids: Iterable[str]) -> dict[str, JobStatus]:
        jobs = (self.spool.job(batch_id) for batch_id in batch_ids)
        return {job.batch_id: job.read_status() for job in jobs if job is not None}

    def _ensure_runner(self) -> None:
        """Start a runner unless one is alive; the caller holds the queue, so none can just leave."""
        with self.spool.runner_lock.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
        command = [sys.executable, "-P", "-m", queue_runner.__name__, str(self.spool.root)]
        try:
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=60,
                check=True,
                cwd=self.spool.root,
                # Ctrl-C is meant for us, not for the runner.
                start_new_session=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or b""
            raise BatchError(
                f"the local runner does not start ({error}) {said.decode(errors='replace')}".rstrip(),
                where=str(self.spool.root),
                hint="What is queued stays queued; `treehammer status` tries again.",
            ) from error
