"""Site classes: the jobs of a site that HTCondor is given as one cluster, with one description.

A class is a door of a site, so that the number of its jobs at a time can be bounded by door; where
a site takes fewer jobs at a time than it has doors, its doors share a class.
"""

from __future__ import annotations

from dataclasses import dataclass

from treehammer.collectors.batch_names import LOCAL_BATCH
from treehammer.submit.planning.job_planner import PlannedJob
from treehammer.submit.planning.plan import Plan
from treehammer.submit.sites.site_model import Site

#: Bytes of a job's sandbox beside what is staged: the worker, the payload, logs and records.
SANDBOX_OVERHEAD_BYTES = 250_000_000


@dataclass(frozen=True)
class JobCluster:
    """Jobs of a site that share a submit description.

    Attributes:
        site: where they run.
        doors: what they read through.
        jobs: how many there are.
        wall_s: seconds after which the batch system ends each.
        disk_bytes: room that each needs on its node.
        in_flight: how many are in the queue or running at a time.
    """

    site: Site
    doors: tuple[str, ...]
    jobs: int
    wall_s: float
    disk_bytes: int
    in_flight: int


def plan_clusters(plan: Plan) -> list[JobCluster]:
    """The classes of a plan's jobs at sites with HTCondor."""
    doors: dict[str, dict[str, list[tuple[PlannedJob, int]]]] = {}
    for job, times in plan.jobs.iterate_kinds():
        if job.site.batch != LOCAL_BATCH:
            doors.setdefault(job.site.name, {}).setdefault(job.spec.door, []).append((job, times))
    return [
        _plan_cluster(plan, group, [item for door in group for item in found[door]])
        for name, found in doors.items()
        for group in _group_doors(tuple(found), plan.site(name).ceilings.in_flight)
    ]


def _group_doors(doors: tuple[str, ...], ceiling: int) -> list[tuple[str, ...]]:
    return [doors] if 0 < ceiling < len(doors) else [(door,) for door in doors]


def _plan_cluster(
    plan: Plan, doors: tuple[str, ...], jobs: list[tuple[PlannedJob, int]]
) -> JobCluster:
    site = jobs[0][0].site
    staged = plan.manifest is not None and any(
        execution.variant.get("access") == "staged"
        for job, _ in jobs
        for execution in job.spec.executions
    )
    return JobCluster(
        site=site,
        doors=doors,
        jobs=sum(times for _, times in jobs),
        wall_s=max(job.wall_limit_s for job, _ in jobs),
        disk_bytes=SANDBOX_OVERHEAD_BYTES + (plan.manifest.size if staged and plan.manifest else 0),
        in_flight=_concurrency_limit(plan, site, len(doors)),
    )


def _concurrency_limit(plan: Plan, site: Site, doors: int) -> int:
    """How many jobs of a class may be in the queue at a time."""
    asked, ceiling = plan.options.pace.in_flight, site.ceilings.in_flight
    if not ceiling:
        return asked
    of_site = sum(at.name == site.name for at, _ in plan.jobs.door_pairs)
    return min(asked, max(1, ceiling * doors // of_site))
