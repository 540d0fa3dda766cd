"""Local queue under random failures: two campaigns at once, killed processes, a full disk.

The runner is real; the worker is the spool harness's stand-in, which notes each start and end, and
whether it meets another one.
"""

from __future__ import annotations

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from polling import wait_until
from spool_harness import SpoolHarness
from storage_alone import SmallDisk, mounted_small_disk

from treehammer.collectors.job_spec import JobState
from treehammer.errors import BatchError
from treehammer.submit.batch.interface import JobStatus
from treehammer.submit.batch.local_batch import MAX_LOCAL_ATTEMPTS

#: Jobs of each of the two campaigns.
JOBS = 4
#: Failures in a round.
FAILURES = 6
#: Size of the disk in MB, and the bytes that are left on it when it is full.
DISK_MB, LEFT_BYTES = 32, 2_000
#: Seconds after which a round counts as hanging.
TIMEOUT_S = 120.0


class QueueChaos:
    """One queue with one seed."""

    def __init__(self, folder: Path, seed: int, disk: SmallDisk | None) -> None:
        self.random = random.Random(seed)
        self.disk = disk
        self.bench = SpoolHarness(folder / "bench", disk.folder / "spool" if disk else None)

    def run(self) -> None:
        """Submit two campaigns at once, let things fail, and check the outcome."""
        with ThreadPoolExecutor(2) as threads:
            submissions = [threads.submit(self._submit, f"c{number}") for number in (1, 2)]
            for _ in range(FAILURES):
                time.sleep(self.random.uniform(0.0, 0.5))
                self.random.choice(
                    [self._kill_runner, self._kill_worker, self._reboot, self._start_runners]
                    + [self._fill_disk] * (2 if self.disk else 0)
                )()
                self._query()
            for submission in submissions:
                submission.result()
        wait_until(self._has_ended, "jobs hang", TIMEOUT_S)
        self._check(self._query())

    def _submit(self, campaign: str) -> None:
        """Submit a campaign, again if its queue is out of order."""
        seconds = random.Random(campaign)
        jobs = [
            self.bench.describe_job(f"{campaign}-{number}", seconds.uniform(0.1, 0.5), "alone")
            for number in range(JOBS)
        ]
        while True:
            with suppress(BatchError):
                self.bench.make_batch().submit(campaign, jobs)
                return
            time.sleep(0.1)

    def _query(self) -> dict[str, JobStatus]:
        """Return the status of every job, as a user's command would, which starts a runner."""
        with suppress(BatchError):
            batch = self.bench.make_batch()
            jobs = [f"c{campaign}-{number}" for campaign in (1, 2) for number in range(JOBS)]
            return dict(batch.query(batch.find(jobs).values()))
        return {}

    def _has_ended(self) -> bool:
        statuses = self._query().values()
        return len(statuses) == 2 * JOBS and all(status.state.is_final for status in statuses)

    def _kill_runner(self) -> None:
        for pid in self.bench.runner_pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _kill_worker(self) -> None:
        for pid in self.bench.worker_pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _reboot(self) -> None:
        """Kill everything at once."""
        self._kill_runner()
        self.bench.end_processes()

    def _start_runners(self) -> None:
        """Ask for a runner twice at once."""
        with ThreadPoolExecutor(2) as threads:
            list(threads.map(lambda _: self._query(), range(2)))
        wait_until(lambda: len(self.bench.runner_pids()) <= 1, "two runners stay")

    def _fill_disk(self) -> None:
        """Fill the disk for some time."""
        assert self.disk is not None
        self.disk.fill_disk(leave=LEFT_BYTES)
        time.sleep(self.random.uniform(0.2, 1.5))
        self.disk.free_space()

    def _check(self, statuses: dict[str, JobStatus]) -> None:
        """Check that each job ran to its end once, or was lost as often as it may be."""
        assert len(statuses) == 2 * JOBS, statuses
        for batch_id, status in statuses.items():
            events = [(event, attempt) for event, attempt, _ in self.bench.job_times(batch_id)]
            assert "met" not in dict(events), (batch_id, events)
            starts = [attempt for event, attempt in events if event == "start"]
            assert len(set(starts)) == len(starts) <= MAX_LOCAL_ATTEMPTS, (batch_id, events)
            ends = [position for position, (event, _) in enumerate(events) if event == "end"]
            assert ends in ([], [len(events) - 1]), (batch_id, events)
            numbers = [attempt.number for attempt in status.attempts]
            assert numbers == list(range(1, len(numbers) + 1)), status
            assert set(starts) <= set(numbers), (events, status)
            if status.state is JobState.DONE:
                assert starts, status
            else:
                assert status.state is JobState.LOST, status
                assert len(numbers) == MAX_LOCAL_ATTEMPTS, status
                assert not ends, (batch_id, events)
            assert not self.bench.job_pids(batch_id)

    def end_processes(self) -> None:
        """End what the round left."""
        self.bench.kill_runner()
        self.bench.end_processes()


@pytest.mark.parametrize(
    ("failure", "seed"), [("kill", 2), ("kill", 10), ("kill", 11), ("disk", 2), ("disk", 3)]
)
def test_every_job_is_accounted_for(tmp_path: Path, failure: str, seed: int) -> None:
    with ExitStack() as stack:
        disk = None
        if failure == "disk":
            disk = stack.enter_context(mounted_small_disk(tmp_path / "disk", DISK_MB))
        chaos = QueueChaos(tmp_path, seed, disk)
        stack.callback(chaos.end_processes)
        chaos.run()
