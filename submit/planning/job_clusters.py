"""Clusters: jobs of a site that HTCondor receives together, with one submit description.

Each door of a site has its own cluster, so that concurrency can be limited by door, and so has each
number of CPUs.  If a site allows fewer concurrent jobs than it would have clusters, all jobs share one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treehammer.submit.planning.job_planner import Lane, PlannedJob
from treehammer.submit.planning.plan import Plan
from treehammer.submit.sites.site_model import Site

#: Bytes of a job's sandbox without staged files: worker, payload, logs and records.
SANDBOX_OVERHEAD_BYTES = 250_000_000


@dataclass(frozen=True)
class JobCluster:
    """Jobs of a site that share a submit description.

    Attributes:
        site: site of the jobs.
        lanes: doors that they read through, and the CPUs that they need.
        jobs: number of jobs.
        wall_s: wall limit of each job in seconds.
        disk_bytes: disk space that each job needs on its node.
        in_flight: number of jobs queued or running at a time.
    """

    site: Site
    lanes: tuple[Lane, ...]
    jobs: int
    wall_s: float
    disk_bytes: int
    in_flight: int

    @property
    def doors(self) -> tuple[str, ...]:
        """Labels of the doors."""
        return tuple(dict.fromkeys(door for door, _ in self.lanes))

    @property
    def cpus(self) -> int:
        """CPUs that each job requests."""
        return max(cpus for _, cpus in self.lanes)


def plan_clusters(plan: Plan) -> list[JobCluster]:
    """Group a plan's jobs at sites with HTCondor into clusters."""
    jobs_by_lane: dict[str, dict[Lane, list[tuple[PlannedJob, int]]]] = {}
    for job, count in plan.jobs.iterate_kinds():
        if not job.site.is_local:
            site_jobs = jobs_by_lane.setdefault(job.site.name, {})
            site_jobs.setdefault(job.lane, []).append((job, count))
    return [
        _plan_cluster(plan, group, site_jobs)
        for site, site_jobs in jobs_by_lane.items()
        for group in _group_lanes(tuple(site_jobs), plan.site(site).ceilings.in_flight)
    ]


def _group_lanes(lanes: tuple[Lane, ...], ceiling: int) -> list[tuple[Lane, ...]]:
    return [lanes] if 0 < ceiling < len(lanes) else [(lane,) for lane in lanes]


def _plan_cluster(
    plan: Plan,
    lanes: tuple[Lane, ...],
    site_jobs: Mapping[Lane, Sequence[tuple[PlannedJob, int]]],
) -> JobCluster:
    jobs = [item for lane in lanes for item in site_jobs[lane]]
    site, doors = jobs[0][0].site, {door for door, _ in lanes}
    staged_bytes = [
        sum(file.size for file in execution.files)
        for job, _ in jobs
        for execution in job.spec.executions
        if execution.variant.get("access") == "staged"
    ]
    return JobCluster(
        site=site,
        lanes=lanes,
        jobs=sum(count for _, count in jobs),
        wall_s=max(job.wall_limit_s for job, _ in jobs),
        disk_bytes=SANDBOX_OVERHEAD_BYTES + max(staged_bytes, default=0),
        in_flight=plan.jobs.count_together(site, doors)
        or _concurrency_limit(plan, site, len(lanes) / len(site_jobs)),
    )


def _concurrency_limit(plan: Plan, site: Site, share: float) -> int:
    """Return how many jobs of a cluster may be in the queue at a time.

    Args:
        plan: the plan.
        site: site of the cluster.
        share: of the site's lanes that are the cluster's.
    """
    requested, ceiling = plan.options.pace.in_flight, site.ceilings.in_flight
    return min(requested, max(1, int(ceiling * share))) if ceiling else requested
