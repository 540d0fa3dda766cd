"""Local batch system: jobs of this machine's user, run by a detached runner process."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from treehammer.collectors.job_spec import LOCAL_BATCH
from treehammer.errors import BatchError
from treehammer.submit.batch import local_runner
from treehammer.submit.batch.interface import (
    BatchDeclaration,
    BatchSystem,
    InputReplacement,
    JobDescription,
    JobStatus,
    describe_os_error,
)
from treehammer.submit.batch.local_jobs import Spool

#: Seconds between two looks at the states of jobs, which open no file.
_CHANGE_INTERVAL_S = 0.05
#: Longest time in seconds that a cancel waits for its jobs to end.
_CANCEL_WAIT_S = local_runner.TERMINATE_GRACE_S + 5.0


class LocalBatch(BatchSystem):
    """Queue in a spool directory (see :mod:`treehammer.submit.batch.local_jobs`); it holds no jobs.

    Every call that finds unfinished jobs starts a runner unless one is alive.

    Args:
        spool_dir: the spool; created if missing.
        slots: number of concurrent jobs; 1 avoids disturbing measurements.
    """

    name = LOCAL_BATCH

    def __init__(self, spool_dir: Path, slots: int = 1) -> None:
        self.spool = Spool(spool_dir)
        self.slots = slots

    def submit(self, campaign_id: str, jobs: Sequence[JobDescription]) -> Mapping[str, str]:
        """Queue the jobs in this order; jobs already queued keep their batch id.

        Raises:
            BatchError: nothing was queued.
        """
        unique = {job.job_id: job for job in jobs}
        with self.spool.locked():
            queued = self.spool.find(unique)
            new = [job for job_id, job in unique.items() if job_id not in queued]
            added = self.spool.add(campaign_id, new, self.slots) if new else {}
            self._ensure_runner()
        return {**queued, **added}

    def find(self, job_ids: Iterable[str]) -> Mapping[str, str]:
        """Return job id -> batch id of queued jobs."""
        return self.spool.find(job_ids)

    def query(self, batch_ids: Iterable[str]) -> Mapping[str, JobStatus]:
        """Return the status of each known job."""
        statuses = self._read_statuses(batch_ids)
        if any(not status.state.is_final for status in statuses.values()):
            with self.spool.locked():
                self._ensure_runner()
        return statuses

    def state_times(self, batch_ids: Iterable[str]) -> list[int]:
        """List when the state of each known job last changed, in nanoseconds; 0 before its start."""
        jobs = (self.spool.job(batch_id) for batch_id in batch_ids)
        return [job.state_time_ns() for job in jobs if job]

    def wait_for_change(
        self, batch_ids: Sequence[str], before: Sequence[int], timeout_s: float
    ) -> None:
        """Wait until the :meth:`state_times` of jobs are not ``before``, at most ``timeout_s`` seconds."""
        deadline = time.monotonic() + timeout_s
        while self.state_times(batch_ids) == before and time.monotonic() < deadline:
            time.sleep(_CHANGE_INTERVAL_S)

    def sandboxes(self, batch_id: str) -> Mapping[int, Path]:
        """Return attempt -> output folder."""
        job = self.spool.job(batch_id)
        if job is None:
            return {}
        folders = {a.number: job.sandbox_folder(a.number) for a in job.read_status().attempts}
        return {number: folder for number, folder in folders.items() if folder.is_dir()}

    def cancel(self, batch_ids: Iterable[str]) -> int:
        """Cancel jobs that are not final and return their number.

        Waits until they have ended, up to some seconds.
        """
        statuses = self._read_statuses(batch_ids)
        open_ids = [batch_id for batch_id, status in statuses.items() if not status.state.is_final]
        if not open_ids:
            return 0
        with self.spool.locked():
            try:
                for batch_id in open_ids:
                    (self.spool.cancels / batch_id).touch()
            except OSError as error:
                raise BatchError(
                    f"cannot request the cancellation of jobs ({describe_os_error(error)})",
                    where=str(self.spool.cancels),
                    hint="Free some disk space and cancel again.",
                ) from error
            self._ensure_runner()
        deadline = time.monotonic() + _CANCEL_WAIT_S
        while time.monotonic() < deadline:
            if all(status.state.is_final for status in self._read_statuses(open_ids).values()):
                break
            time.sleep(local_runner.TICK_INTERVAL_S)
        return len(open_ids)

    def requeue(self, earlier: Mapping[str, int], inputs: InputReplacement) -> Mapping[str, str]:
        """Queue final jobs again; jobs that were queued again before keep their batch id.

        Raises:
            BatchError: nothing was queued.
        """
        requeued: dict[str, str] = {}
        with self.spool.locked():
            for campaign_id, jobs in self._group_by_campaign(earlier).items():
                newest = self.spool.find(jobs)
                requeued_before = {
                    jobs[job_id]: new for job_id, new in newest.items() if new != jobs[job_id]
                }
                unqueued = {
                    job_id: old for job_id, old in jobs.items() if old not in requeued_before
                }
                attempts = {job_id: earlier[old] for job_id, old in unqueued.items()}
                requeued |= requeued_before | self._queue_again(
                    campaign_id, unqueued, attempts, inputs
                )
            if requeued:
                self._ensure_runner()
        return requeued

    def _queue_again(
        self,
        campaign_id: str,
        jobs: Mapping[str, str],
        attempts: Mapping[str, int],
        inputs: InputReplacement,
    ) -> dict[str, str]:
        """Add jobs to the spool once more; return their earlier batch id -> their new one."""
        if not jobs:
            return {}
        rebuilt = [_rebuild_description(self.spool, *item, inputs) for item in jobs.items()]
        added = self.spool.add(campaign_id, rebuilt, self.spool.slots, attempts)
        return {jobs[job_id]: new for job_id, new in added.items()}

    def _group_by_campaign(self, batch_ids: Iterable[str]) -> dict[str, dict[str, str]]:
        """Group final jobs: campaign -> job id -> batch id."""
        groups: dict[str, dict[str, str]] = defaultdict(dict)
        for batch_id, status in self._read_statuses(batch_ids).items():
            if status.state.is_final:
                name, _, number = batch_id.rpartition(".")
                job_id = self.spool.read_cluster(name).job_ids[int(number) - 1]
                groups[_campaign_of(name)][job_id] = batch_id
        return groups

    def explain_waiting(self, batch_ids: Iterable[str]) -> list[str]:
        """Explain why no queued job starts."""
        if local_runner.has_disk_space(self.spool):
            return []
        least = local_runner.MIN_FREE_BYTES // 1_000_000
        return [
            f"No job starts: less than {least} MB are free in {self.spool.root}. Free disk space there."
        ]

    def purge(self, batch_ids: Iterable[str]) -> int:
        """Remove clusters whose jobs are all listed and final; return the freed bytes.

        A requeued job is listed by its last batch id.

        Raises:
            BatchError: a folder cannot be removed.
        """
        freed = 0
        with self.spool.locked():
            listed = set(batch_ids)
            campaigns = {_campaign_of(batch_id) for batch_id in listed}
            names = [name for name in self.spool.cluster_names() if _campaign_of(name) in campaigns]
            clusters = [self.spool.read_cluster(name) for name in names]
            ended = {
                job_id
                for cluster in clusters
                for job_id, job in zip(cluster.job_ids, cluster.jobs, strict=True)
                if job.batch_id in listed and job.read_status().state.is_final
            }
            for cluster in clusters:
                if ended.issuperset(cluster.job_ids):
                    freed += self.spool.remove(cluster.path.name)
        return freed

    def _read_statuses(self, batch_ids: Iterable[str]) -> dict[str, JobStatus]:
        jobs = (self.spool.job(batch_id) for batch_id in batch_ids)
        return {job.batch_id: job.read_status() for job in jobs if job is not None}

    def _ensure_runner(self) -> None:
        """Start a runner unless one is alive. The caller holds the queue, so no runner can leave now."""
        with self.spool.runner_lock.open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
        command = [sys.executable, "-P", "-m", local_runner.__name__, str(self.spool.root)]
        try:
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                timeout=60,
                check=True,
                cwd=self.spool.root,
                # Ctrl-C must not reach the runner.
                start_new_session=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            output = getattr(error, "stderr", None) or b""
            raise BatchError(
                f"the local runner does not start ({error}) {output.decode(errors='replace')}".rstrip(),
                where=str(self.spool.root),
                hint="Queued jobs stay queued; `treehammer status` tries again.",
            ) from error


def _campaign_of(name: str) -> str:
    """Return the campaign in the name of a cluster, or in the batch id of a job."""
    return name.partition("-")[2].partition(".")[0]


def _rebuild_description(
    spool: Spool, job_id: str, batch_id: str, inputs: InputReplacement
) -> JobDescription:
    """Rebuild the description of a job from the spool, with its new inputs.

    Raises:
        BatchError: its files cannot be read.
    """
    job = spool.job(batch_id)
    assert job is not None  # its status was read
    try:
        text = job.description_file.read_text(encoding="utf-8")
        return JobDescription(job_id, text, inputs(job_id, job.read_inputs()))
    except OSError as error:
        raise BatchError(
            f"cannot queue a job again ({describe_os_error(error)})", where=str(job.path)
        ) from error


BATCH = BatchDeclaration(
    lambda _argument, settings: LocalBatch(settings.spool_dir, settings.local_slots),
    Path(__file__).with_name("local.job.j2"),
)
