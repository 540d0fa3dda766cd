"""Cost estimates of plans, and checks against the ceilings of sites.

The estimate covers bytes to read, wall and CPU time.  Times come from earlier measurements of the
same series, if any.  Otherwise they are assumed from the amount of data, or are the limits that a
load test states, and the plan is marked accordingly.
"""

from __future__ import annotations

import math
import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Any

from treehammer.collectors.job_spec import CHECKSUM, MIN_LAUNCH_CPU_S, PAIRED, ExecutionSpec
from treehammer.collectors.record.outcome import OUTCOME_COLUMNS, Outcome, classify_outcome
from treehammer.config import Settings
from treehammer.datasets.manifest import RECORDING, Manifest
from treehammer.errors import NothingToDoError
from treehammer.hctests.definition.model import Scalar, Variant
from treehammer.hctests.definition.toml_models import LoadTable, TestDefinition
from treehammer.sql.read.query_model import Condition, Selection
from treehammer.sql.write.store import Store
from treehammer.submit.planning import permission_checks
from treehammer.submit.planning.job_planner import find_payload_memory_mb
from treehammer.submit.planning.plan import BrokenRule, Plan, PlanReview, SiteCost
from treehammer.submit.sites.site_model import Site
from treehammer.text_formatting import pluralize

#: Seconds from the start of a payload to its first read, for loading ROOT and compiling the loop.
ROOT_STARTUP_S = 3.0
#: Uncompressed bytes that one core (2020 or later) reads and unzips per second.
UNZIP_BYTES_PER_S = 100e6
#: Seconds that the worker adds to an execution for calibration, sampling and the record.
WORKER_STARTUP_S = 0.5
#: CPU seconds of a launch that are not counted; the worker's turn_conductor has them in nanoseconds.
CALIBRATION_CPU_S = 0.1

#: Columns from which the bytes that an execution read from the storage are computed.
READ_COLUMNS = ("stagein_bytes", "bytes_read", "bytes_read_extra", "passes_done")

MEASURED_BASIS, ASSUMED_BASIS, UNKNOWN_BASIS = "measured before", "assumed", "unknown"
LOAD_BASIS = "limits of the load"
#: Axis with the speed of a replay.
FACTOR_AXIS = "factor"
SECONDS_PER_DAY = 86_400
#: The most local jobs that start together: each is a worker and its payload.
MAX_LOCAL_TOGETHER = 64


_TIME_COLUMNS = ("payload_wall_s", "payload_user_s", "payload_sys_s")


@dataclass(frozen=True)
class ExecutionCost:
    """Wall and CPU seconds of executions, with the basis of the figures.

    ``read_bytes`` are those that they took from the storage; None if they were not measured.
    """

    wall_s: float
    cpu_s: float
    basis: str
    read_bytes: int | None = None


def measured_read_bytes(row: Mapping[str, object]) -> int | None:
    """Return the bytes that an execution took from the storage; None if they were not measured.

    Args:
        row: with the columns of :data:`READ_COLUMNS`.
    """
    staged, once, passes = row["stagein_bytes"], row["bytes_read"], row["passes_done"]
    if isinstance(staged, int) and staged:
        return staged
    if isinstance(once, int) and isinstance(passes, int):
        extra = row["bytes_read_extra"]
        return passes * (once + (extra if isinstance(extra, int) else 0))
    return None


def estimate_read_bytes(manifest: Manifest, execution: ExecutionSpec) -> int:
    """Estimate the bytes that an execution reads through its door.

    A fraction of branches counts as the same fraction of bytes, since the selection ignores sizes; a
    list or pattern counts as all branches.  Clusters without a selected event are not read.
    """
    if execution.kind == CHECKSUM or execution.variant["access"] == "staged":
        return manifest.size
    passes = _expect_passes(manifest, execution)
    return round(passes * _read_fraction(manifest, execution.variant) * manifest.size)


def _expect_passes(manifest: Manifest, execution: ExecutionSpec) -> float:
    """Expect the passes of an execution; those of a launch repeat until each side has enough CPU."""
    if execution.mode != PAIRED:
        return execution.passes
    unzipped = sum(file.layout.unzipped_bytes for file in manifest.files)
    pass_s = max(1e-3, unzipped * _read_fraction(manifest, execution.variant) / UNZIP_BYTES_PER_S)
    counted_passes = math.ceil(MIN_LAUNCH_CPU_S / pass_s)
    return counted_passes + min(1.0, CALIBRATION_CPU_S / pass_s)


def _read_fraction(manifest: Manifest, variant: Mapping[str, Scalar]) -> float:
    if manifest.is_raw:
        return 1.0
    branches, events = variant["branches"], float(variant["events"])
    layout = manifest.files[0].layout
    cluster_entries = layout.entries / max(1, layout.clusters)
    clusters_read = float(1 - (1 - events) ** cluster_entries)
    return clusters_read * (1.0 if isinstance(branches, str) else float(branches))


def estimate_execution(
    execution: ExecutionSpec,
    manifest: Manifest | None,
    history: Mapping[str, ExecutionCost],
    load: LoadTable | None = None,
) -> ExecutionCost | None:
    """Estimate the time of an execution; None if there is no basis for an estimate.

    Args:
        execution: the planned execution.
        manifest: manifest of its dataset, if it has one.
        history: costs from :func:`load_measured_costs`.
        load: of a load test, whose generator uses one core at most.
    """
    measured = history.get(_history_key(execution.kind, execution.identity["series"]))
    if measured:
        return replace(measured, wall_s=measured.wall_s + WORKER_STARTUP_S)
    if load:
        duration_s = _expect_duration(execution, manifest, load)
        return ExecutionCost(load.lead_s + duration_s + WORKER_STARTUP_S, duration_s, LOAD_BASIS)
    if manifest is None:
        return None
    unzipped = sum(file.layout.unzipped_bytes for file in manifest.files)
    if execution.kind != CHECKSUM:
        passes = _expect_passes(manifest, execution)
        unzipped = round(unzipped * passes * _read_fraction(manifest, execution.variant))
    reading = unzipped / UNZIP_BYTES_PER_S
    wall_s = ROOT_STARTUP_S + reading / execution.threads + WORKER_STARTUP_S
    return ExecutionCost(wall_s, ROOT_STARTUP_S + reading, ASSUMED_BASIS)


def _expect_duration(execution: ExecutionSpec, manifest: Manifest | None, load: LoadTable) -> float:
    """Expect the seconds of a load, which ends with the recording that it replays."""
    recorded_s = manifest.origin.get("duration_s") if manifest else None
    if manifest is None or manifest.origin.get("kind") != RECORDING or recorded_s is None:
        return load.duration_s
    factor = float(execution.variant.get(FACTOR_AXIS, 1.0)) or 1.0
    return min(load.duration_s, float(recorded_s) / factor)


def _history_key(kind: str, series: object) -> str:
    return f"{kind}/{series}"


def estimate_site_costs(plan: Plan, history: Mapping[str, ExecutionCost]) -> list[SiteCost]:
    """Estimate the cost of a plan for each site and storage site.

    All jobs of one kind of a load test together read as much as its ceiling allows, or as much as
    clients do that read a block each period.
    """
    definition = plan.pinned_test.definition
    jobs: Counter[tuple[str, str]] = Counter()
    # Number of executions, CPUs, cost and bytes read by all of them.
    parts: dict[tuple[str, str], list[tuple[int, int, ExecutionCost | None, int | None]]]
    parts = {(site.name, storage.name): [] for site, storage in plan.site_pairs}
    for job, count in plan.job_kinds:
        pair = job.access.site.name, job.access.storage.name
        jobs[pair] += count
        for execution in job.spec.executions:
            manifest = None
            if not job.is_watch:
                manifest = plan.jobs.planner.manifest_for(Variant(tuple(execution.variant.items())))
            cost = estimate_execution(execution, manifest, history, definition.load)
            read_bytes: int | None = 0
            if not job.is_watch:
                read_bytes = _estimate_bytes_of_jobs(count, execution, manifest, cost, definition)
            parts[pair].append((count, job.cpus, cost, read_bytes))
    return [_total_site_cost(*pair, jobs[pair], costs) for pair, costs in parts.items()]


def _estimate_bytes_of_jobs(
    count: int,
    execution: ExecutionSpec,
    manifest: Manifest | None,
    cost: ExecutionCost | None,
    definition: TestDefinition,
) -> int | None:
    """Estimate the bytes that jobs read in one of their executions; None if nothing bounds them."""
    if definition.load:
        values = {**definition.settings, **execution.variant}
        return _estimate_loaded_bytes(definition.load, count, values)
    if cost and cost.read_bytes is not None:
        return count * cost.read_bytes
    return count * estimate_read_bytes(manifest, execution) if manifest else 0


def _estimate_loaded_bytes(load: LoadTable, jobs: int, values: Mapping[str, Any]) -> int | None:
    """Estimate the bytes that jobs of a load test read together; None if nothing bounds them."""
    rate = load.ceiling.mb_per_s * 1e6 or math.inf
    if {"clients", "block_kb", "period_s"} <= values.keys():
        block_rate = float(values["clients"]) * float(values["block_kb"]) * 1e3
        rate = min(rate, jobs * block_rate / float(values["period_s"]))
    return round(rate * load.duration_s) if math.isfinite(rate) else None


def _total_site_cost(
    site: str,
    storage_site: str,
    jobs: int,
    parts: Sequence[tuple[int, int, ExecutionCost | None, int | None]],
) -> SiteCost:
    times = [
        (count * cost.wall_s, count * cost.cpu_s, count * cpus * cost.wall_s)
        for count, cpus, cost, _ in parts
        if cost
    ]
    wall_s, cpu_s, reserved_s = map(sum, zip((0.0, 0.0, 0.0), *times, strict=True))
    sizes = [size for *_, size in parts]
    bases = {cost.basis if cost else UNKNOWN_BASIS for _, _, cost, _ in parts}
    total = SiteCost(
        site=site,
        storage_site=storage_site,
        jobs=jobs,
        measurements=sum(count for count, *_ in parts),
        read_bytes=None if None in sizes else sum(filter(None, sizes)),
        wall_s=wall_s,
        cpu_s=cpu_s,
        reserved_s=reserved_s,
        basis=", some ".join(sorted(bases, reverse=True)),
    )
    if UNKNOWN_BASIS in bases:
        return replace(total, wall_s=None, cpu_s=None, reserved_s=None, basis=UNKNOWN_BASIS)
    return total


def load_measured_costs(store: Store, plan: Plan) -> Mapping[str, ExecutionCost]:
    """Load the median cost of each series of a plan, without failed and implausible rows."""
    identities = [e.identity for job, _ in plan.job_kinds for e in job.spec.executions]
    test_hash = str(identities[0]["test_hash"])
    # Not all that the test ever measured: a patrol plans for one site of many.
    series = tuple(dict.fromkeys(str(identity["series"]) for identity in identities))
    conditions = (Condition("test_hash", "=", test_hash), Condition("series", "=", series))
    selection = Selection(conditions=conditions)
    columns = ("series", "kind", "run_mode", *_TIME_COLUMNS, *READ_COLUMNS, *OUTCOME_COLUMNS)
    costs: dict[str, list[ExecutionCost]] = defaultdict(list)
    for row in store.measurements(selection, columns):
        if cost := _read_cost(row):
            costs[_history_key(str(row["kind"]), row["series"])].append(cost)
    return {key: _median_cost(executions) for key, executions in costs.items()}


def _read_cost(row: Mapping[str, object]) -> ExecutionCost | None:
    """Read the cost of an execution; None for a failed or implausible one."""
    wall, user, system = (row[name] for name in _TIME_COLUMNS)
    is_good = classify_outcome(row) is Outcome.GOOD
    if not (is_good and isinstance(wall, float) and isinstance(user, float)):
        return None
    cpu_s = user + (system if isinstance(system, float) else 0.0)
    # The wall time of one that took turns is that of both.
    wall_s = wall / 2 if row["run_mode"] == PAIRED else wall
    return ExecutionCost(wall_s, cpu_s, MEASURED_BASIS, measured_read_bytes(row))


def _median_cost(costs: Sequence[ExecutionCost]) -> ExecutionCost:
    sizes = [cost.read_bytes for cost in costs if cost.read_bytes is not None]
    return ExecutionCost(
        statistics.median(cost.wall_s for cost in costs),
        statistics.median(cost.cpu_s for cost in costs),
        MEASURED_BASIS,
        round(statistics.median(sizes)) if sizes else None,
    )


def list_ceiling_violations(plan: Plan, costs: Sequence[SiteCost]) -> list[str]:
    """Describe each ceiling that the plan exceeds, with a remedy.

    Jobs count at the site that runs them, traffic at the site whose storage they read.

    Args:
        plan: the plan to be submitted.
        costs: costs of that plan, from :func:`estimate_site_costs`.
    """
    jobs_by_site: Counter[str] = Counter()
    lines = [line for site in plan.sites for line in _list_start_violations(plan, site)]
    needed = max((job.cpus for job, _ in plan.job_kinds if job.site.is_local), default=1)
    if (usable := len(os.sched_getaffinity(0))) < needed:
        lines.append(
            f"This machine has {pluralize(usable, 'CPU')} for local jobs; threads = {needed} needs "
            f"{needed}: -P threads={usable}."
        )
    for cost in costs:
        jobs_by_site[cost.site] += cost.jobs
    lines += (
        f"Site {site.name} allows at most {site.ceilings.jobs:,} jobs in one campaign "
        f"(ceilings.jobs); {jobs:,} are planned."
        for site in plan.sites
        if 0 < site.ceilings.jobs < (jobs := jobs_by_site[site.name])
    )
    return [*lines, *_traffic_violations(plan, costs)]


def list_concurrency_bounds(plan: Plan) -> list[str]:
    """Describe each site that allows fewer concurrent jobs than requested."""
    load = plan.pinned_test.definition.load
    if load is not None and load.together:
        return []  # fewer would never start: see list_ceiling_violations
    requested: Counter[str] = Counter()
    for cluster in plan.clusters:
        requested[cluster.site.name] += len(cluster.lanes) * plan.options.pace.in_flight
    return [
        f"Site {name} allows at most {ceiling} concurrent jobs (ceilings.in_flight); no more are "
        "submitted at a time."
        for name, count in requested.items()
        if 0 < (ceiling := plan.site(name).ceilings.in_flight) < count
    ]


def list_memory_bounds(plan: Plan) -> list[str]:
    """Describe each site that gives jobs less memory than the test allows."""
    definition = plan.pinned_test.definition
    bounds = {
        site.name: (site.ceilings.memory_mb, find_payload_memory_mb(definition, site))
        for site in plan.sites
    }
    return [
        f"Site {name} gives a job at most {ceiling:,} MB (ceilings.memory_mb): payloads are ended at "
        f"{limit_mb:,} instead of {definition.test.memory_limit_mb:,} MB."
        for name, (ceiling, limit_mb) in bounds.items()
        if limit_mb < definition.test.memory_limit_mb
    ]


def add_review(plan: Plan, settings: Settings, store: Store | None) -> Plan:
    """Add the review of a plan and its notes.

    Raises:
        ConfigError: jobs that start together could never do so.
    """
    has_service = bool(settings.service_url) and plan.options.use_service
    permission_checks.check_common_start(plan, has_service=has_service)
    review = find_review(plan, settings, store)
    return replace(plan, notes=(*plan.notes, *review.notes), review=review)


def find_review(plan: Plan, settings: Settings, store: Store | None = None) -> PlanReview:
    """Return the review of a plan; its costs come from earlier measurements if there are any."""
    if plan.review:
        return plan.review
    history: Mapping[str, ExecutionCost] = {}
    with suppress(NothingToDoError), ExitStack() as opened:
        store = store or opened.enter_context(Store.open(settings.database, create=False))
        history = load_measured_costs(store, plan)
    return review_plan(plan, history, settings.local_slots)


def review_plan(plan: Plan, history: Mapping[str, ExecutionCost], slots: int) -> PlanReview:
    """Estimate the costs of a plan, and find the rules of sites and doors that it breaks.

    Args:
        plan: the plan to be submitted.
        history: costs from :func:`load_measured_costs`.
        slots: jobs that run on this machine at once.
    """
    costs = tuple(estimate_site_costs(plan, history))
    concurrent = permission_checks.count_loading_jobs(plan, slots)
    load_lines = permission_checks.list_load_violations(plan, concurrent)
    setting_lines = permission_checks.list_setting_violations(plan, slots)
    distance_lines = permission_checks.list_distance_violations(plan, slots)
    rules = (
        BrokenRule("load that is not permitted", tuple(load_lines)),
        BrokenRule("server settings cannot be changed", tuple(setting_lines)),
        BrokenRule("the distance cannot be set", tuple(distance_lines)),
        BrokenRule(
            "above the ceiling of a site",
            tuple(list_ceiling_violations(plan, costs)),
            " Or reduce the campaign: -S repeats=N, -P axis=values.",
        ),
    )
    notes = (*list_concurrency_bounds(plan), *list_memory_bounds(plan))
    return PlanReview(costs, rules, notes)


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
    """Count the concurrent jobs of each site whose batch system takes clusters."""
    slots: Counter[str] = Counter()
    for cluster in plan.clusters:
        slots[cluster.site.name] += min(cluster.in_flight, cluster.jobs)
    return slots


def _list_start_violations(plan: Plan, site: Site) -> Iterator[str]:
    """Describe why the jobs that start together at a site cannot all run at once."""
    doors = [door.door_label for door in plan.jobs.accesses if door.site.name == site.name]
    jobs = plan.jobs.count_together(site, doors)
    ceiling, name = site.ceilings.in_flight, "ceilings.in_flight"
    if site.is_local and not 0 < ceiling < MAX_LOCAL_TOGETHER:
        ceiling, name = MAX_LOCAL_TOGETHER, "the limit of the local batch system"
    if 0 < ceiling < jobs:
        yield (
            f"Site {site.name} allows at most {ceiling:,} concurrent jobs ({name}); {jobs:,} are to "
            "start together and would wait for each other: plan fewer, -S repeats=N."
        )


def _sum_wall_times(costs: Iterable[SiteCost]) -> dict[str, float]:
    """Sum the wall times of each site that runs jobs; unknown ones are 0."""
    walls: dict[str, float] = defaultdict(float)
    for cost in costs:
        walls[cost.site] += cost.wall_s or 0.0
    return walls


def _estimate_concurrent_reads(
    costs: Collection[SiteCost], slots: Mapping[str, int], walls: Mapping[str, float]
) -> tuple[int, float]:
    """Estimate the jobs that read from one storage at once, and their MB per second."""
    readers = sum(slots.get(cost.site, 1) for cost in costs)
    rate = sum(
        slots.get(cost.site, 1) * (cost.read_bytes or 0) / walls[cost.site]
        for cost in costs
        if walls[cost.site]
    )
    return readers, rate / 1e6


def _traffic_violations(plan: Plan, costs: Sequence[SiteCost]) -> Iterator[str]:
    """Describe each storage that more is read from than its site allows."""
    slots, walls = _slots_by_site(plan), _sum_wall_times(costs)
    costs_by_storage: dict[str, list[SiteCost]] = defaultdict(list)
    for cost in costs:
        costs_by_storage[cost.storage_site].append(cost)
    pace = plan.options.pace
    days = max(pace.spread_s / SECONDS_PER_DAY, 1.0)
    for site in {storage.name: storage for _, storage in plan.site_pairs}.values():
        ceilings, readings = site.ceilings, costs_by_storage[site.name]
        read_bytes = sum(cost.read_bytes or 0 for cost in readings)
        if ceilings.bytes_per_day and read_bytes / days > ceilings.bytes_per_day:
            hours = -(-read_bytes * 24 // ceilings.bytes_per_day)
            yield (
                f"Site {site.name} allows at most {ceilings.bytes_per_day / 1e9:,.6g} GB a day "
                f"(ceilings.bytes_per_day); {read_bytes / days / 1e9:,.6g} GB are planned: "
                f"spread them, --spread {hours}h."
            )
        readers, rate = _estimate_concurrent_reads(readings, slots, walls)
        if ceilings.mb_per_s and rate > ceilings.mb_per_s:
            allowed = int(min(pace.in_flight, readers) * ceilings.mb_per_s / rate)
            remedy = f"run fewer at a time, --in-flight {allowed}"
            yield (
                f"Site {site.name} allows at most {ceilings.mb_per_s:,.4g} MB/s (ceilings.mb_per_s); "
                f"{pluralize(readers, 'concurrent job')} would read about {rate:,.4g} MB/s: "
                f"{remedy if allowed else 'read less of each file'}."
            )
