"""Checks of a campaign against the ceilings of its sites."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from treehammer.errors import ConfigError
from treehammer.submit.planning.cost_estimate import SiteCost
from treehammer.submit.planning.job_clusters import plan_clusters
from treehammer.submit.planning.plan import Plan
from treehammer.submit.sites.site_model import Site
from treehammer.text_formatting import pluralize

SECONDS_PER_DAY = 86_400
#: The most local jobs that start together: each is a worker and its payload.
MAX_LOCAL_TOGETHER = 64


def list_ceiling_violations(plan: Plan, costs: Sequence[SiteCost]) -> list[str]:
    """Describe each ceiling that the plan exceeds, with a remedy.

    Jobs count at the site that runs them, traffic at the site whose storage they read.

    Args:
        plan: the plan to be submitted.
        costs: costs of that plan, from
            :func:`treehammer.submit.planning.cost_estimate.estimate_site_costs`.
    """
    return [
        *(line for site in plan.sites for line in _start_violations(plan, site)),
        *_local_cpu_violations(plan),
        *(line for site in plan.sites for line in _job_violations(site, costs)),
        *(
            line
            for traffic in _measure_traffic(plan, costs)
            for line in _traffic_violations(plan, traffic)
        ),
    ]


def list_concurrency_bounds(plan: Plan) -> list[str]:
    """Describe each site that allows fewer concurrent jobs than requested."""
    load = plan.pinned_test.definition.load
    if load is not None and load.together:
        return []  # fewer would never start: see list_ceiling_violations
    requested: Counter[str] = Counter()
    for cluster in plan_clusters(plan):
        requested[cluster.site.name] += len(cluster.lanes) * plan.options.pace.in_flight
    return [
        f"Site {name} allows at most {ceiling} concurrent jobs (ceilings.in_flight); no more are "
        "submitted at a time."
        for name, count in requested.items()
        if 0 < (ceiling := plan.site(name).ceilings.in_flight) < count
    ]


def check_ceilings(plan: Plan, costs: Sequence[SiteCost]) -> None:
    """Refuse a plan that exceeds a site's ceiling.

    Raises:
        ConfigError: it does.
    """
    lines = list_ceiling_violations(plan, costs)
    if lines:
        raise ConfigError(
            "above the ceiling of a site",
            where=plan.campaign_name,
            hint=f"{' '.join(lines)} Or reduce the campaign: -S repeats=N, -P axis=values.",
        )


def estimate_campaign_seconds(plan: Plan, costs: Sequence[SiteCost]) -> float | None:
    """Estimate the seconds until the last job ends, not counting waits for slots.

    Returns None if the cost of a site's jobs is unknown.
    """
    slots = _slots_by_site(plan)
    if any(cost.wall_s is None for cost in costs):
        return None
    walls = _sum_wall_times(costs)
    running = max((wall_s / slots.get(site, 1) for site, wall_s in walls.items()), default=0.0)
    return max(running, float(plan.options.pace.spread_s))


def _slots_by_site(plan: Plan) -> Counter[str]:
    """Count the concurrent jobs of each site with HTCondor."""
    slots: Counter[str] = Counter()
    for cluster in plan_clusters(plan):
        slots[cluster.site.name] += min(cluster.in_flight, cluster.jobs)
    return slots


def _start_violations(plan: Plan, site: Site) -> Iterator[str]:
    """Describe why the jobs that start together cannot all run at once."""
    doors = [access.door_label for access in plan.jobs.accesses if access.site.name == site.name]
    jobs = plan.jobs.count_together(site, doors)
    ceiling, name = site.ceilings.in_flight, "ceilings.in_flight"
    if site.is_local and not 0 < ceiling < MAX_LOCAL_TOGETHER:
        ceiling, name = MAX_LOCAL_TOGETHER, "the limit of the local batch system"
    if 0 < ceiling < jobs:
        yield (
            f"Site {site.name} allows at most {ceiling:,} concurrent jobs ({name}); {jobs:,} are to "
            "start together and would wait for each other: plan fewer, -S repeats=N."
        )


def _local_cpu_violations(plan: Plan) -> Iterator[str]:
    """Describe jobs that need more CPUs than this machine lets them use."""
    needed = max((job.cpus for job, _ in plan.jobs.iterate_kinds() if job.site.is_local), default=1)
    usable = len(os.sched_getaffinity(0))
    if usable < needed:
        yield (
            f"This machine has {pluralize(usable, 'CPU')} for local jobs; threads = {needed} needs "
            f"{needed}: -P threads={usable}."
        )


def _sum_wall_times(costs: Iterable[SiteCost]) -> dict[str, float]:
    """Sum the wall times of each site that runs jobs; unknown ones are 0."""
    walls: dict[str, float] = defaultdict(float)
    for cost in costs:
        walls[cost.site] += cost.wall_s or 0.0
    return walls


@dataclass
class _StorageTraffic:
    """Traffic that a plan causes at the storage of a site.

    ``rate`` is in bytes per second, ``slots`` counts the jobs that read at a time.
    """

    site: Site
    read_bytes: int = 0
    rate: float = 0.0
    slots: int = 0


def _measure_traffic(plan: Plan, costs: Iterable[SiteCost]) -> list[_StorageTraffic]:
    slots, walls = _slots_by_site(plan), _sum_wall_times(costs)
    traffic = {site.name: _StorageTraffic(site) for site in plan.storage_sites}
    for cost in costs:
        storage, readers = traffic[cost.storage_site], slots.get(cost.site, 1)
        read_bytes = cost.read_bytes or 0
        storage.read_bytes += read_bytes
        storage.slots += readers
        if walls[cost.site]:
            storage.rate += readers * read_bytes / walls[cost.site]
    return [*traffic.values()]


def _job_violations(site: Site, costs: Iterable[SiteCost]) -> Iterator[str]:
    jobs = sum(cost.jobs for cost in costs if cost.site == site.name)
    if 0 < site.ceilings.jobs < jobs:
        yield (
            f"Site {site.name} allows at most {site.ceilings.jobs:,} jobs in one campaign "
            f"(ceilings.jobs); {jobs:,} are planned."
        )


def _traffic_violations(plan: Plan, traffic: _StorageTraffic) -> Iterator[str]:
    site, ceilings = traffic.site, traffic.site.ceilings
    days = max(plan.options.pace.spread_s / SECONDS_PER_DAY, 1.0)
    if ceilings.bytes_per_day and traffic.read_bytes / days > ceilings.bytes_per_day:
        hours = -(-traffic.read_bytes * 24 // ceilings.bytes_per_day)
        yield (
            f"Site {site.name} allows at most {ceilings.bytes_per_day / 1e9:,.6g} GB a day "
            f"(ceilings.bytes_per_day); {traffic.read_bytes / days / 1e9:,.6g} GB are planned: "
            f"spread them, --spread {hours}h."
        )
    rate = traffic.rate / 1e6
    if ceilings.mb_per_s and rate > ceilings.mb_per_s:
        allowed = int(min(plan.options.pace.in_flight, traffic.slots) * ceilings.mb_per_s / rate)
        remedy = (
            f"run fewer at a time, --in-flight {allowed}" if allowed else "read less of each file"
        )
        yield (
            f"Site {site.name} allows at most {ceilings.mb_per_s:,.4g} MB/s (ceilings.mb_per_s); "
            f"{pluralize(traffic.slots, 'concurrent job')} would read about {rate:,.4g} MB/s: "
            f"{remedy}."
        )
