"""Checks of a load test whose jobs start together."""

from __future__ import annotations

from treehammer.errors import ConfigError
from treehammer.submit.planning.pacing import Pace
from treehammer.submit.planning.plan import Plan


def check_common_start(plan: Plan, *, has_service: bool) -> None:
    """Refuse a plan whose jobs could never start together.

    Args:
        plan: the plan.
        has_service: whether jobs report to a results service, where they can meet.

    Raises:
        ConfigError: the jobs cannot meet, the submission delays some, or a ramp is too long.
    """
    definition = plan.pinned_test.definition
    load = definition.load
    if load is None or not load.together:
        return
    where = f"{definition.name}: [load]"
    if not has_service and not all(site.is_local for site in plan.sites):
        raise ConfigError(
            "jobs at these sites agree on a common start at the results service, and there is none",
            where=where,
            hint="Name one (service_url) and submit without --no-service, or let the jobs start by "
            "themselves: -S load.together=false -S load.ramp=",
        )
    if plan.options.pace != Pace():
        raise ConfigError(
            "jobs that start together cannot be delayed or limited in number",
            where="--in-flight, --spread, --ramp",
            hint="Use the ramp of the test instead: -S load.ramp=10/5m",
        )
    most = max(len(members) for members in plan.jobs.load_groups.values()) * definition.repeats
    last_s = load.level_start_s(most - 1)
    if last_s >= load.duration_s:
        raise ConfigError(
            f"the last of {most} jobs would begin after {last_s} s, when the load of "
            f"{load.duration_s:g} s is over",
            where=f"{where} ramp",
            hint="Lengthen the load (-S load.duration_s=SECONDS) or plan fewer jobs (-S repeats=N).",
        )
