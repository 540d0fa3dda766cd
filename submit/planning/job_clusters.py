"""Clusters: jobs of a site that HTCondor receives together, with one submit description.

Each door of a site has its own cluster, so that concurrency can be limited by door.  If a site allows
fewer concurrent jobs than it has doors, its doors share a cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

from treehammer.submit.planning.job_planner import PlannedJob
from treehammer.submit.planning.plan import Plan
from treehammer.submit.sites.site_model import Site

#: Bytes of a job's sandbox without staged files: worker, payload, logs and records.
SANDBOX_OVERHEAD_BYTES = 250_000_000


@dataclass(frozen=True)
class JobCluster:
    """Jobs of a site that share a submit description.

    Attributes:
        site: site of the jobs.
        doors: labels of the doors that they read through.
        jobs: number of jobs.
        wall_s: wall limit of each job in seconds.
        disk_bytes: disk space that each job needs on its node.
        in_flight: number of jobs queued or running at a time.
    """

    site: Site
    doors: tuple[str, ...]
    jobs: int
    wall_s: float
    disk_bytes: int
    in_flight: int


def plan_clusters(plan: Plan) -> list[JobCluster]:
    """Group a plan's jobs at sites with HTCondor into clusters."""
    jobs_by_door: dict[str, dict[str, list[tuple[PlannedJob, int]]]] = {}
    for job, count in plan.jobs.iterate_kinds():
        if not job.site.is_local:
            site_jobs = jobs_by_door.setdefault(job.site.name, {})
            site_jobs.setdefault(job.access.door_label, []).append((job, count))
    return [
        _plan_cluster(plan, group, [item for door in group for item in site_jobs[door]])
        for site, site_jobs in jobs_by_door.items()
        for group in _group_doors(tuple(site_jobs), plan.site(site).ceilings.in_flight)
    ]


def _group_doors(doors: tuple[str, ...], ceiling: int) -> list[tuple[str, ...]]:
    return [doors] if 0 < ceiling < len(doors) else [(door,) for door in doors]


def _plan_cluster(
    plan: Plan, doors: tuple[str, ...], jobs: list[tuple[PlannedJob, int]]
) -> JobCluster:
    site = jobs[0][0].site
    is_staged = any(
        execution.variant.get("access") == "staged"
        for job, _ in jobs
        for execution in job.spec.executions
    )
    staged_bytes = plan.manifest.size if is_staged and plan.manifest else 0
    return JobCluster(
        site=site,
        doors=doors,
        jobs=sum(count for _, count in jobs),
        wall_s=max(job.wall_limit_s for job, _ in jobs),
        disk_bytes=SANDBOX_OVERHEAD_BYTES + staged_bytes,
        in_flight=plan.jobs.count_together(site, doors)
        or _concurrency_limit(plan, site, len(doors)),
    )


def _concurrency_limit(plan: Plan, site: Site, doors: int) -> int:
    """Return how many jobs of a cluster with so many doors may be in the queue at a time."""
    requested, ceiling = plan.options.pace.in_flight, site.ceilings.in_flight
    if not ceiling:
        return requested
    doors_of_site = sum(access.site.name == site.name for access in plan.jobs.accesses)
    return min(requested, max(1, ceiling * doors // doors_of_site))
