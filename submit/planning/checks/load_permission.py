"""Checks of load tests against the load that doors permit."""

from __future__ import annotations

from collections.abc import Iterator

from treehammer.collectors.batch_names import LOCAL_BATCH
from treehammer.errors import ConfigError
from treehammer.hctests.matrix.load_settings import LoadSettings
from treehammer.submit.planning.plan import Plan
from treehammer.submit.sites.site_model import DoorAccess, LoadPermission

#: Keys of a ceiling, with their units.
_UNITS = {"opens_per_s": "opens/s", "clients": "clients", "mb_per_s": "MB/s"}


def list_load_violations(plan: Plan) -> list[str]:
    """Describe each load of a test that its doors do not permit, with a remedy.

    Several sites that read one door load it together, so each door is checked once.  This machine's
    own disk permits any load.
    """
    load = plan.pinned_test.definition.load
    accesses = [a for a in plan.jobs.accesses if a.storage.name != LOCAL_BATCH]
    if load is None or not accesses:
        return []
    if not any(getattr(load.ceiling, key) for key in _UNITS):
        return [
            "The test states no bound of its load: add to test.toml, table [load], "
            "ceiling = {opens_per_s = N, clients = N, mb_per_s = N} with those that apply."
        ]
    doors = {(access.storage.name, access.door.name): access for access in accesses}
    return [line for access in doors.values() for line in _door_violations(access, load)]


def check_load_permission(plan: Plan) -> None:
    """Refuse a load test that exceeds the permission of a door.

    Raises:
        ConfigError: it does.
    """
    if lines := list_load_violations(plan):
        raise ConfigError(
            "load that is not permitted", where=plan.campaign_name, hint=" ".join(lines)
        )


def _door_violations(access: DoorAccess, load: LoadSettings) -> Iterator[str]:
    door = f"Door {access.door.name} of site {access.storage.name}"
    permitted = access.door.load
    if permitted is None:
        requested = ", ".join(
            f"{key} = {getattr(load.ceiling, key):g}"
            for key in _UNITS
            if getattr(load.ceiling, key)
        )
        yield (
            f"{door} permits no load tests: it has no key load. With the site's consent add "
            f"load = {{{requested}}} to this door in the sites file."
        )
        return
    yield from (f"{door} {text}" for text in _excesses(load, permitted))


def _excesses(load: LoadSettings, permitted: LoadPermission) -> Iterator[str]:
    for key, unit in _UNITS.items():
        requested, most = getattr(load.ceiling, key), getattr(permitted, key)
        if requested > most:
            yield (
                f"permits at most {most:g} {unit} (load.{key}); the test asks for {requested:g} "
                f"(ceiling.{key} of [load]): lower its load and -S load.ceiling.{key}=N, or have "
                "the site raise its limit in the sites file."
            )
    if load.writes and not permitted.writable:
        yield (
            "permits no writing (load.writable): name an area for files of load tests in the sites "
            'file, e.g. writable = "/scratch/treehammer".'
        )
