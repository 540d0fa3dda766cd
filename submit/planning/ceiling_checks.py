"""Ceilings of sites: what a campaign asks of each, against the most that it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from treehammer.errors import ConfigError
from treehammer.submit.planning.cost_estimate import SiteCost
from treehammer.submit.planning.job_clusters import plan_clusters
from treehammer.submit.planning.plan import Plan
from treehammer.text_formatting import pluralize

SECONDS_PER_DAY = 86_400


def list_ceiling_violations(plan: Plan, costs: Sequence[SiteCost]) -> list[str]:
    """A line for each ceiling that the plan is above, with what can be done.

    Args:
        plan: what is to be submitted.
        costs: of that plan, from :func:`treehammer.submit.planning.cost_estimate.estimate_site_costs`.
    """
    slots = _slots_by_site(plan)
    return [
        line for cost in costs for line in _site_violations(plan, cost, slots.get(cost.site, 1))
    ]


def list_concurrency_bounds(plan: Plan) -> list[str]:
    """A line for each site that takes fewer jobs at a time than were asked for."""
    asked: dict[str, int] = {}
    for made in plan_clusters(plan):
        here = asked.get(made.site.name, 0) + len(made.doors) * plan.options.pace.in_flight
        asked[made.site.name] = here
    return [
        f"Site {name} takes at most {ceiling} jobs at a time (ceilings.in_flight): no more are sent."
        for name, count in asked.items()
        if 0 < (ceiling := plan.site(name).ceilings.in_flight) < count
    ]


def check_ceilings(plan: Plan, costs: Sequence[SiteCost]) -> None:
    """Refuse what is above a site's ceiling.

    Raises:
        ConfigError: it is.
    """
    lines = list_ceiling_violations(plan, costs)
    if lines:
        raise ConfigError(
            "above the ceiling of a site",
            where=plan.campaign_name,
            hint=f"{' '.join(lines)} Or ask for less: -S repeats=N, -P axis=values.",
        )


def estimate_campaign_seconds(plan: Plan, costs: Sequence[SiteCost]) -> float | None:
    """Expected seconds until the last job of the plan ends, waiting for slots apart.

    None when nothing is known of a site's jobs.
    """
    slots = _slots_by_site(plan)
    if any(cost.wall_s is None for cost in costs):
        return None
    running = max(((cost.wall_s or 0.0) / slots.get(cost.site, 1) for cost in costs), default=0.0)
    return max(running, float(plan.options.pace.over_s))


def _slots_by_site(plan: Plan) -> dict[str, int]:
    """How many jobs of each site with HTCondor may run at a time."""
    slots: dict[str, int] = {}
    for made in plan_clusters(plan):
        slots[made.site.name] = slots.get(made.site.name, 0) + min(made.in_flight, made.jobs)
    return slots


def _site_violations(plan: Plan, cost: SiteCost, slots: int) -> Iterator[str]:
    ceilings = plan.site(cost.site).ceilings
    if ceilings.jobs and cost.jobs > ceilings.jobs:
        yield (
            f"Site {cost.site} takes at most {ceilings.jobs:,} jobs in one campaign (ceilings.jobs); "
            f"{cost.jobs:,} are planned."
        )
    days = max(plan.options.pace.over_s / SECONDS_PER_DAY, 1.0)
    if ceilings.bytes_per_day and cost.read_bytes / days > ceilings.bytes_per_day:
        needed = -(-cost.read_bytes * 24 // ceilings.bytes_per_day)
        yield (
            f"Site {cost.site} takes at most {ceilings.bytes_per_day / 1e9:,.6g} GB a day "
            f"(ceilings.bytes_per_day); {cost.read_bytes / days / 1e9:,.6g} GB are planned: spread "
            f"them, --over {needed}h."
        )
    rate = slots * cost.read_bytes / cost.wall_s / 1e6 if cost.wall_s else 0.0
    if ceilings.mb_per_s and rate > ceilings.mb_per_s:
        fits = int(slots * ceilings.mb_per_s / rate)
        remedy = f"fewer at a time, --in-flight {fits}" if fits else "read less of each file"
        yield (
            f"Site {cost.site} takes at most {ceilings.mb_per_s:,.4g} MB/s (ceilings.mb_per_s); "
            f"{pluralize(slots, 'job')} at a time would read some {rate:,.4g} MB/s: {remedy}."
        )
