"""Lifetimes of job tokens, and their renewal when jobs are requeued."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from treehammer.collectors.batch_names import LOCAL_BATCH
from treehammer.collectors.service_spec import CA_FILE, SERVICE_FILE, TOKEN_FILE
from treehammer.submit.batch.htcondor.job_policy import (
    IDLE_LIMIT_S,
    MAX_GRID_ATTEMPTS,
    RETRY_PAUSE_S,
)
from treehammer.submit.batch.local.queue_runner import MAX_LOCAL_ATTEMPTS, TERMINATE_GRACE_S
from treehammer.submit.planning.job_clusters import plan_clusters
from treehammer.submit.planning.job_planner import PlannedJob
from treehammer.submit.planning.pacing import Pace
from treehammer.submit.planning.plan import Plan
from treehammer.submit.reporting.job_reporting import JobReporting

#: Seconds that a token stays valid after the last moment at which the batch system runs its job.
#: Covers a queue full of other work, a machine that was off, and jobs held by a person.
TOKEN_GRACE_S = 7 * 86400.0
_SERVICE_FILES = (SERVICE_FILE, CA_FILE, TOKEN_FILE)


class TokenDeadlines:
    """Latest end of each job of a plan, assuming that every start fails as late as possible.

    Request the jobs in the order of the plan.

    Args:
        plan: the plan.
        slots: number of jobs with one CPU that this machine runs at once.
    """

    def __init__(self, plan: Plan, slots: int) -> None:
        self._pace = plan.options.pace
        # A job takes as many slots as CPUs, and runs alone if there are fewer.
        most_cpus = max((job.cpus for job, _ in plan.jobs.iterate_kinds()), default=1)
        self._local_jobs = max(1, slots // most_cpus)
        self._clusters = {
            (cluster.site.name, lane): cluster
            for cluster in plan_clusters(plan)
            for lane in cluster.lanes
        }
        self._job_counts: Counter[tuple[object, ...]] = Counter()

    def next_deadline_s(self, job: PlannedJob) -> float:
        """Return the seconds from submission to the expiry of the next job's token."""
        cluster = self._clusters.get((job.site.name, job.lane))
        queue = (cluster.site.name, *cluster.lanes) if cluster else (LOCAL_BATCH,)
        jobs_before = self._job_counts[queue]
        self._job_counts[queue] += 1
        if cluster is None:
            longest_s = MAX_LOCAL_ATTEMPTS * (job.wall_limit_s + TERMINATE_GRACE_S)
            return (jobs_before // self._local_jobs + 1) * longest_s + TOKEN_GRACE_S
        return grid_deadline_s(jobs_before, cluster.in_flight, cluster.wall_s, self._pace)


def grid_deadline_s(jobs_before: int, in_flight: int, wall_s: float, pace: Pace) -> float:
    """Return the seconds from submission to the expiry of the token of a job in an HTCondor pool.

    Args:
        jobs_before: number of preceding jobs in its cluster.
        in_flight: number of jobs in the queue at a time.
        wall_s: wall limit of each job.
        pace: of job starts.
    """
    attempt_s = IDLE_LIMIT_S + wall_s + RETRY_PAUSE_S
    return (
        pace.last_delay_s(in_flight)
        + (jobs_before // in_flight + 1) * MAX_GRID_ATTEMPTS * attempt_s
        + TOKEN_GRACE_S
    )


class TokenRenewal:
    """Replaces the service files and tokens of jobs that are requeued.

    Args:
        reporting: the results service; None for none.
        folder: an empty folder for the files.
        campaign_id: campaign of the jobs.
        walls_s: job id -> wall limit in seconds, for all jobs that may be requeued.
    """

    def __init__(
        self,
        reporting: JobReporting | None,
        folder: Path,
        campaign_id: str,
        walls_s: Mapping[str, float],
    ) -> None:
        self._reporting = reporting
        self._folder = folder
        self._campaign_id = campaign_id
        self._walls_s = walls_s
        self._positions = {job_id: position for position, job_id in enumerate(walls_s)}
        self._shared = reporting.write_shared_files(folder) if reporting else {}

    def __call__(self, job_id: str, inputs: Mapping[str, Path]) -> dict[str, Path]:
        """Return the inputs of a requeued job, given its previous ones."""
        unchanged = {name: path for name, path in inputs.items() if name not in _SERVICE_FILES}
        if self._reporting is None or TOKEN_FILE not in inputs:
            return unchanged
        # Jobs run one after the other in the worst case.
        life_s = grid_deadline_s(self._positions[job_id], 1, self._walls_s[job_id], Pace())
        expires_us = time.time_ns() // 1000 + round(life_s * 1e6)
        token = self._reporting.write_token(self._folder, self._campaign_id, job_id, expires_us)
        return {**unchanged, **self._shared, TOKEN_FILE: token}
