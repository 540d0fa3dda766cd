"""Checks of load tests, changed server settings and distances against what doors permit.

Each job of a load test gets its share of the permitted load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from treehammer.collectors.job_spec import BANDWIDTH_AXIS, LATENCY_AXIS, LOCAL_BATCH, LoadSpec
from treehammer.collectors.storage_access import FILE_CLIENT, PELICAN_CLIENT, SCHEMES, find_scheme
from treehammer.errors import ConfigError
from treehammer.hctests.definition.model import Variant
from treehammer.hctests.definition.toml_models import LoadTable, TestDefinition
from treehammer.submit.planning.job_planner import PlannedJob
from treehammer.submit.planning.job_sequence import DoorKey
from treehammer.submit.planning.plan import Plan
from treehammer.submit.planning.submission_options import Pace
from treehammer.submit.sites.site_model import Door, DoorAccess, LoadPermission
from treehammer.text_formatting import pluralize

#: Keys of a ceiling, with their units.
_LOAD_UNITS = {"opens_per_s": "opens/s", "clients": "clients", "mb_per_s": "MB/s"}


def list_load_violations(plan: Plan, concurrent: Mapping[DoorKey, int]) -> list[str]:
    """Describe each load of a test that its doors do not permit, with a remedy.

    Several sites that read one door load it together, so each door is checked once.  This machine's
    own disk permits any load.  The load requested by axes and settings counts, regardless of
    the test's ceiling.

    Args:
        plan: the plan.
        concurrent: from :func:`count_loading_jobs`.
    """
    load = plan.pinned_test.definition.load
    doors = _list_site_doors(plan)
    if load is None or not doors:
        return []
    if not any(getattr(load.ceiling, key) for key in _LOAD_UNITS):
        return [
            "The test states no bound of its load: add to test.toml, table [load], "
            "ceiling = {opens_per_s = N, clients = N, mb_per_s = N} with those that apply."
        ]
    return [
        line
        for key, access in doors.items()
        for line in _door_violations(plan, access, load, concurrent[key])
    ]


def _list_site_doors(plan: Plan) -> dict[DoorKey, DoorAccess]:
    """Return the doors of sites: this machine's own disk permits anything."""
    return {key: door for key, door in plan.jobs.doors.items() if key[0] != LOCAL_BATCH}


def count_loading_jobs(plan: Plan, slots: int) -> Mapping[DoorKey, int]:
    """Count the jobs of a campaign that load each door at the same time, at most.

    These are the jobs that start together, otherwise those that run at once.

    Args:
        plan: of a load test.
        slots: jobs that run on this machine at once.
    """
    definition = plan.pinned_test.definition
    load = definition.load
    if load is None:
        return {}
    most: Counter[DoorKey] = Counter()
    jobs: Counter[tuple[DoorKey, str, str]] = Counter()
    for members in plan.jobs.load_groups.values():
        group: Counter[DoorKey] = Counter()
        for first, _ in members:
            for access in plan.jobs.doors_beside(first):
                key, repeats = (access.storage.name, access.door.name), definition.test.repeats
                group[key] += repeats
                jobs[key, first.site.name, first.door_label] += repeats
        most |= group
    if load.together:
        return most
    in_flight: Counter[tuple[str, str]] = Counter()
    for cluster in plan.clusters:
        for door in cluster.doors:
            in_flight[cluster.site.name, door] += cluster.in_flight
    running: Counter[DoorKey] = Counter()
    for (key, site, label), count in jobs.items():
        at_once = slots if plan.site(site).is_local else in_flight.get((site, label), count)
        running[key] += min(count, max(at_once, 1))
    return running


def limit_load(job: PlannedJob, concurrent: Mapping[DoorKey, int]) -> PlannedJob:
    """Give a job of a load test its share of the load that its door permits.

    Args:
        job: planned job of any test.
        concurrent: from :func:`count_loading_jobs`.
    """
    load, storage = job.spec.load, job.access.storage
    if load is None or storage.name == LOCAL_BATCH or load.is_watch:
        return job
    names = {job.spec.door_of(execution) for execution in job.spec.executions}
    doors = [door for door in storage.doors if door.name in names and door.load is not None]
    for door in doors:
        assert door.load is not None
        jobs = max(concurrent[storage.name, door.name], 1)
        load = _share_permission(load, door.load, jobs)
    return replace(job, spec=replace(job.spec, load=load))


def _share_permission(load: LoadSpec, permitted: LoadPermission, jobs: int) -> LoadSpec:
    """Limit a load by the share of one door, beside those of other doors of the same job."""

    def lower(limit: float, share: float) -> float:
        return min(limit, share) if limit and share else limit or share

    clients = max(permitted.clients // jobs, 1) if permitted.clients else 0
    return replace(
        load,
        max_opens_per_s=lower(load.max_opens_per_s, permitted.opens_per_s / jobs),
        max_clients=int(lower(load.max_clients, clients)),
        max_mb_per_s=lower(load.max_mb_per_s, permitted.mb_per_s / jobs),
    )


def _door_violations(plan: Plan, access: DoorAccess, load: LoadTable, jobs: int) -> Iterator[str]:
    door = f"Door {access.door.name} of site {access.storage.name}"
    permitted = access.door.load
    if permitted is None:
        requested = ", ".join(
            f"{key} = {getattr(load.ceiling, key):g}"
            for key in _LOAD_UNITS
            if getattr(load.ceiling, key)
        )
        yield (
            f"{door} permits no load tests: it has no key load. With the site's consent add "
            f"load = {{{requested}}} to this door in the sites file."
        )
        return
    definition = plan.pinned_test.definition
    # A test does not write where it only reads the files of a dataset.
    writes = load.writes and not all(
        dict(variant.values).get("direction") == "read" and definition.dataset_for(variant)
        for variant in plan.jobs.variants_at(access)
    )
    excesses = dict(_list_excesses(load.replace(writes=writes), permitted))
    yield from (f"{door} {text}" for text in excesses.values())
    for key, text in _computed_excesses(plan, access, permitted, jobs).items():
        if key not in excesses:
            yield f"{door} {text}"


def _list_excesses(load: LoadTable, permitted: LoadPermission) -> Iterator[tuple[str, str]]:
    """Yield each kind of load of which the test's ceiling states more than a door permits."""
    for key, unit in _LOAD_UNITS.items():
        requested, most = getattr(load.ceiling, key), getattr(permitted, key)
        if requested > most:
            yield (
                key,
                f"permits at most {most:g} {unit} (load.{key}); the test asks for {requested:g} "
                f"(ceiling.{key} of [load]): lower its load and -S load.ceiling.{key}=N, or have "
                "the site raise its limit in the sites file.",
            )
    if load.writes and not permitted.writable:
        yield (
            "writable",
            "permits no writing (load.writable): name an area for files of load tests in the sites "
            'file, e.g. writable = "/scratch/treehammer", or only read: -P direction=read -S dataset=NAME '
            "for tests with this axis.",
        )


@dataclass(frozen=True)
class LoadDemand:
    """Load of one kind that one job asks for; ``is_assumed`` if its test does not name it."""

    amount: float
    formula: str
    is_assumed: bool = False


def _computed_excesses(
    plan: Plan, access: DoorAccess, permitted: LoadPermission, jobs: int
) -> dict[str, str]:
    """Describe each kind of load of which the axes and settings ask for more than a door permits."""
    definition = plan.pinned_test.definition
    highest: dict[str, LoadDemand] = {}
    for variant in plan.jobs.variants_at(access):
        for key, demand in compute_demand(definition, variant).items():
            if key not in highest or demand.amount > highest[key].amount:
                highest[key] = demand
    texts: dict[str, str] = {}
    for key, demand in highest.items():
        most, total = getattr(permitted, key), demand.amount * jobs
        if total > most * (1 + 1e-9) and (most or not demand.is_assumed):
            texts[key] = (
                f"permits at most {most:g} {_LOAD_UNITS[key]} (load.{key}); {pluralize(jobs, 'job')} at a "
                f"time with {demand.formula} would ask for {total:,.10g}: choose lower values, or "
                "fewer jobs at a time."
            )
    return texts


def compute_demand(definition: TestDefinition, variant: Variant) -> dict[str, LoadDemand]:
    """Compute the load that one job with a variant asks for, by kind.

    Args:
        definition: test, whose ``[settings]`` stand for axes that it lacks.
        variant: values of the axes.
    """
    values = {**definition.settings, **dict(variant.values)}

    def read(name: str) -> float:
        value = values.get(name, 0)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return float(value) if is_number else 0.0

    names = ("clients", "rate_hz", "period_s", "block_kb")
    clients, rate, period, block = map(read, names)
    count = max(clients, 1.0)
    title = f"clients = {count:g}"
    demand = {"clients": LoadDemand(count, title, is_assumed=not clients)}
    if rate:
        # A rate of deletions counts only for doors that limit opens, which need not permit any.
        writes = definition.load is not None and definition.load.writes
        demand["opens_per_s"] = LoadDemand(count * rate, f"{title}, rate_hz = {rate:g}", writes)
    if period and block:
        formula = f"{title}, block_kb = {block:g}, period_s = {period:g}"
        demand["mb_per_s"] = LoadDemand(count * block / 1000 / period, formula)
    return demand


def list_setting_violations(plan: Plan, local_slots: int) -> list[str]:
    """Describe everything that forbids a test to change settings of servers, with a remedy.

    Args:
        plan: the plan to be submitted.
        local_slots: jobs that run on this machine at once.
    """
    before, load = plan.pinned_test.definition.before, plan.pinned_test.definition.load
    if before is None:
        return []
    violations = []
    for (site, name), access in _list_site_doors(plan).items():
        permitted = access.door.settings
        if missing := [setting for setting in before.settings if setting not in permitted]:
            settings = ", ".join(f'"{name}"' for name in dict.fromkeys((*permitted, *missing)))
            violations.append(
                f"Door {name} of site {site} does not permit changing {', '.join(missing)}. With the "
                f"site's consent add settings = [{settings}] to this door in the sites file."
            )
    if load is None or not load.together:  # those apply the same values at the same time
        violations += _list_overlaps(plan, local_slots)
    return violations


def _list_overlaps(plan: Plan, local_slots: int) -> Iterator[str]:
    """Describe why jobs could change a server while another one measures it."""
    reason = "one job would change the server while another measures it"
    if any(site.is_local for site in plan.sites) and local_slots > 1:
        yield f"{local_slots} local jobs run at once, and {reason}: --local-slots 1."
    if any(not site.is_local for site in plan.sites) and plan.options.pace.in_flight > 1:
        yield f"{plan.options.pace.in_flight} jobs of a door run at once, and {reason}: --in-flight 1."
    ways_by_storage: dict[str, set[str]] = {}
    for access in plan.jobs.accesses:
        ways = ways_by_storage.setdefault(access.storage.name, set())
        ways.add(f"{access.site.name}/{access.door.name}")
    for site, ways in ways_by_storage.items():
        if len(ways) > 1:
            yield (
                f"Jobs use site {site} in {len(ways)} ways at once ({', '.join(sorted(ways))}), and "
                f"{reason}: choose one door (-P door=NAME) and one site of jobs."
            )


def list_distance_violations(plan: Plan, local_slots: int) -> list[str]:
    """Describe why the distance to the data cannot be set or made, with a remedy.

    Args:
        plan: the plan to be submitted.
        local_slots: jobs that run on this machine at once.
    """
    axes = plan.pinned_test.definition.axes
    names = [name for name in (LATENCY_AXIS, BANDWIDTH_AXIS) if name in axes]
    if not names:
        return []
    violations = [*_list_doors_without_distance(plan, names), *_list_shared_links(plan)]
    # A link, or the queues of this machine, would change for all local jobs.
    changed = [access for access in plan.jobs.accesses if access.door.link or access.door.netem]
    if local_slots > 1 and any(access.site.is_local for access in changed):
        violations.append(
            f"{local_slots} local jobs run at once, and {_CONFLICT}: --local-slots 1."
        )
    return violations


def _list_doors_without_distance(plan: Plan, axes: Sequence[str]) -> Iterator[str]:
    """Describe each door that jobs cannot put at the distance that a value of the axes asks for."""
    values = plan.pinned_test.definition.axes
    if not any(value for axis in axes for value in values[axis]):
        return
    for (site, name), access in plan.jobs.doors.items():
        reason = "" if access.door.link else _explain_no_distance(access.door)
        if reason:
            yield (
                f"Door {name} of site {site} cannot be put at a distance on the node, because "
                f"{reason}: choose a root or http door (-P door=NAME), "
                f"or leave out {' and '.join(axes)}."
            )


def _explain_no_distance(door: Door) -> str:
    """Explain why jobs cannot put a door at a distance on their node; '' if they can."""
    scheme = find_scheme(door.prefix) if door.prefix else SCHEMES.get(door.protocol)
    is_proxied = scheme is not None and scheme.client not in (FILE_CLIENT, PELICAN_CLIENT)
    if is_proxied and (door.netem or (scheme and not scheme.tls)):
        return ""
    if door.is_path:
        return "jobs read it as a file"
    if door.protocol == "pelican":
        return "a director names the cache"
    return "its certificate names the host, not a proxy, and the door does not permit netem"


_CONFLICT = "one job would change the distance while another measures it"


def _list_shared_links(plan: Plan) -> Iterator[str]:
    """Describe why jobs could change a link while another one measures over it."""
    ways: dict[str, set[str]] = {}
    for accesses in plan.jobs.shared_accesses:
        label = "+".join(access.door.name for access in accesses)
        for control in {access.door.link for access in accesses} - {""}:
            ways.setdefault(control, set()).add(f"{accesses[0].site.name}/{label}")
    for names in ways.values():
        if len(names) > 1:
            yield (
                f"One link leads to the data of {', '.join(sorted(names))}, and {_CONFLICT}: compare the "
                "doors in one job (-P bundle=door), and choose one site of jobs."
            )
    if ways and plan.options.pace.in_flight > 1:
        yield (
            f"{plan.options.pace.in_flight} jobs of a door run at once, and {_CONFLICT}: --in-flight 1."
        )


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
    where = f"{definition.test.name}: [load]"
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
    most = max(len(members) for members in plan.jobs.load_groups.values()) * definition.test.repeats
    last_s = load.level_start_s(most - 1)
    if last_s >= load.duration_s:
        raise ConfigError(
            f"the last of {most} jobs would begin after {last_s} s, when the load of "
            f"{load.duration_s:g} s is over",
            where=f"{where} ramp",
            hint="Lengthen the load (-S load.duration_s=SECONDS) or plan fewer jobs (-S repeats=N).",
        )
