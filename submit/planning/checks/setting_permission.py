"""Checks of tests that change settings of servers against the doors that permit it."""

from __future__ import annotations

from collections.abc import Iterator

from treehammer.collectors.batch_names import LOCAL_BATCH
from treehammer.errors import ConfigError
from treehammer.submit.planning.plan import Plan


def list_setting_violations(plan: Plan, local_slots: int) -> list[str]:
    """Describe everything that forbids a test to change settings of servers, with a remedy.

    Args:
        plan: the plan to be submitted.
        local_slots: jobs that run on this machine at once.
    """
    before = plan.pinned_test.definition.before
    if before is None:
        return []
    return [
        *_list_missing_permissions(plan, list(before.settings)),
        *_list_overlaps(plan, local_slots),
    ]


def check_setting_permission(plan: Plan, local_slots: int) -> None:
    """Refuse a test that changes settings without permission, or of a server that other jobs use.

    Raises:
        ConfigError: it does.
    """
    if lines := list_setting_violations(plan, local_slots):
        raise ConfigError(
            "server settings cannot be changed", where=plan.campaign_name, hint=" ".join(lines)
        )


def _list_missing_permissions(plan: Plan, settings: list[str]) -> Iterator[str]:
    doors = {(access.storage.name, access.door.name): access.door for access in plan.jobs.accesses}
    for (site, name), door in doors.items():
        missing = [setting for setting in settings if setting not in door.settings]
        if site != LOCAL_BATCH and missing:
            permitted = ", ".join(
                f'"{setting}"' for setting in dict.fromkeys((*door.settings, *missing))
            )
            yield (
                f"Door {name} of site {site} does not permit changing {', '.join(missing)}. With the "
                f"site's consent add settings = [{permitted}] to this door in the sites file."
            )


def _list_overlaps(plan: Plan, local_slots: int) -> Iterator[str]:
    """Describe why jobs could change a server while another one measures it."""
    load = plan.pinned_test.definition.load
    if load is not None and load.together:
        return  # all apply the same values at the same time
    reason = "one job would change the server while another measures it"
    if any(site.is_local for site in plan.sites) and local_slots > 1:
        yield f"{local_slots} local jobs run at once, and {reason}: --local-slots 1."
    if any(not site.is_local for site in plan.sites) and plan.options.pace.in_flight > 1:
        yield f"{plan.options.pace.in_flight} jobs of a door run at once, and {reason}: --in-flight 1."
    for site, ways in _group_ways_of_access(plan).items():
        if len(ways) > 1:
            yield (
                f"Jobs use site {site} in {len(ways)} ways at once ({', '.join(sorted(ways))}), and "
                f"{reason}: choose one door (-P door=NAME) and one site of jobs."
            )


def _group_ways_of_access(plan: Plan) -> dict[str, set[str]]:
    """Group sites of jobs and doors by the site whose storage they use."""
    ways: dict[str, set[str]] = {}
    for access in plan.jobs.accesses:
        ways.setdefault(access.storage.name, set()).add(f"{access.site.name}/{access.door.name}")
    return ways
