"""Checks of a campaign against the ceilings of its sites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from treehammer.errors import ConfigError
from treehammer.submit.planning.cost_estimate import SiteCost
from treehammer.submit.planning.job_clusters import plan_clusters
from treehammer.submit.planning.plan import Plan
from treehammer.text_formatting import pluralize

SECONDS_PER_DAY = 86_400


def list_ceiling_violations(plan: Plan, costs: Sequence[SiteCost]) -> list[str]:
    """Describe each ceiling that the plan exceeds, with a remedy.

    Args:
        plan: the plan to be submitted.
        costs: costs of that plan, from
            :func:`treehammer.submit.planning.cost_estimate.estimate_site_costs`.
    """
    slots = _slots_by_site(plan)
    return [
        line for cost in costs for line in _site_violations(plan, cost, slots.get(cost.site, 1))
    ]


def list_concurrency_bounds(plan: Plan) -> list[str]:
    """Describe each site that allows fewer concurrent jobs than requested."""
    requested: Counter[str] = Counter()
    for cluster in plan_clusters(plan):
        requested[cluster.site.name] += len(cluster.doors) * plan.options.pace.in_flight
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
    running = max(((cost.wall_s or 0.0) / slots.get(cost.site, 1) for cost in costs), default=0.0)
    return max(running, float(plan.options.pace.spread_s))


def _slots_by_site(plan: Plan) -> Counter[str]:
    """Count the concurrent jobs of each site with HTCondor."""
    slots: Counter[str] = Counter()
    for cluster in plan_clusters(plan):
        slots[cluster.site.name] += min(cluster.in_flight, cluster.jobs)
    return slots


def _site_violations(plan: Plan, cost: SiteCost, slots: int) -> Iterator[str]:
    ceilings = plan.site(cost.site).ceilings
    if ceilings.jobs and cost.jobs > ceilings.jobs:
        yield (
            f"Site {cost.site} allows at most {ceilings.jobs:,} jobs in one campaign "
            f"(ceilings.jobs); {cost.jobs:,} are planned."
        )
    days = max(plan.options.pace.spread_s / SECONDS_PER_DAY, 1.0)
    if ceilings.bytes_per_day and cost.read_bytes / days > ceilings.bytes_per_day:
        hours = -(-cost.read_bytes * 24 // ceilings.bytes_per_day)
        yield (
            f"Site {cost.site} allows at most {ceilings.bytes_per_day / 1e9:,.6g} GB a day "
            f"(ceilings.bytes_per_day); {cost.read_bytes / days / 1e9:,.6g} GB are planned: spread "
            f"them, --spread {hours}h."
        )
    rate = slots * cost.read_bytes / cost.wall_s / 1e6 if cost.wall_s else 0.0
    if ceilings.mb_per_s and rate > ceilings.mb_per_s:
        allowed = int(slots * ceilings.mb_per_s / rate)
        remedy = (
            f"run fewer at a time, --in-flight {allowed}" if allowed else "read less of each file"
        )
        yield (
            f"Site {cost.site} allows at most {ceilings.mb_per_s:,.4g} MB/s (ceilings.mb_per_s); "
            f"{pluralize(slots, 'concurrent job')} would read about {rate:,.4g} MB/s: {remedy}."
        )
