"""What a plan will cost: bytes to read, wall and CPU time.

Time comes from earlier measurements of the same series where there are some; otherwise it is
assumed from the size of what is read, and the plan says so.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from treehammer.collectors.job_spec import CHECKSUM, TIMED, ExecutionSpec
from treehammer.datasets.model.manifest import Manifest
from treehammer.hctests.matrix.definition import Scalar, Variant
from treehammer.sql.read.measurement_selection import Condition, Selection
from treehammer.sql.write.store import Store
from treehammer.submit.planning.plan import Plan

#: Seconds of wall and CPU time from the start of a payload to its first read: loading ROOT and
#: compiling the loop.
ROOT_STARTUP_S = 3.0
#: Bytes, as they are in memory, that one core of 2020 or later reads and unzips in a second.
UNZIP_BYTES_PER_S = 100e6
#: Seconds that the worker itself adds to an execution: calibration, sampling, the record.
WORKER_STARTUP_S = 0.5

MEASURED_BASIS, ASSUMED_BASIS, UNKNOWN_BASIS = "measured before", "assumed", "unknown"


@dataclass(frozen=True)
class ExecutionCost:
    """Seconds of wall and CPU time of one execution or more, and on what the figures rest."""

    wall_s: float
    cpu_s: float
    basis: str


def estimate_read_bytes(manifest: Manifest, execution: ExecutionSpec) -> int:
    """Expected bytes that an execution reads through its door.

    A fraction of branches is expected to hold that fraction of the bytes, since the choice does
    not look at sizes; a list or pattern counts as all.  Clusters from which no event is chosen
    are not read.
    """
    if execution.kind == CHECKSUM or execution.variant["access"] == "staged":
        return manifest.size
    return round(execution.passes * _read_fraction(manifest, execution.variant) * manifest.size)


def _read_fraction(manifest: Manifest, variant: Mapping[str, Scalar]) -> float:
    branches, events = variant["branches"], float(variant["events"])
    layout = manifest.files[0].layout
    in_cluster = layout.entries / max(1, layout.clusters)
    touched = float(1 - (1 - events) ** in_cluster)
    return touched * (1.0 if isinstance(branches, str) else float(branches))


def estimate_execution(
    execution: ExecutionSpec, manifest: Manifest | None, history: Mapping[str, ExecutionCost]
) -> ExecutionCost | None:
    """Expected time of an execution, None where nothing is known.

    Args:
        execution: what will run.
        manifest: of its dataset, if it has one.
        history: from :func:`measured_costs`.
    """
    known = history.get(_history_key(execution.kind, execution.identity["series"]))
    if known:
        return ExecutionCost(known.wall_s + WORKER_STARTUP_S, known.cpu_s, known.basis)
    if manifest is None:
        return None
    unzipped = sum(file.layout.unzipped_bytes for file in manifest.files)
    if execution.kind == TIMED:
        unzipped = round(unzipped * execution.passes * _read_fraction(manifest, execution.variant))
    seconds = ROOT_STARTUP_S + unzipped / UNZIP_BYTES_PER_S
    return ExecutionCost(seconds + WORKER_STARTUP_S, seconds, ASSUMED_BASIS)


def _history_key(kind: str, series: object) -> str:
    return f"{kind}/{series}"


@dataclass(frozen=True)
class SiteCost:
    """What a plan asks of one site; times are of one slot, None where nothing is known."""

    site: str
    jobs: int
    measurements: int
    read_bytes: int
    wall_s: float | None
    cpu_s: float | None
    basis: str


@dataclass
class _SiteTotals:
    """What adds up at one site while the kinds of jobs go by."""

    jobs: int = 0
    measurements: int = 0
    read_bytes: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    bases: set[str] = field(default_factory=set)


def estimate_site_costs(plan: Plan, history: Mapping[str, ExecutionCost]) -> list[SiteCost]:
    """The cost of a plan, site by site."""
    sums = {site.name: _SiteTotals() for site in plan.sites}
    for job, times in plan.jobs.iterate_kinds():
        here = sums[job.site.name]
        here.jobs += times
        here.measurements += times * len(job.spec.executions)
        for execution in job.spec.executions:
            variant = Variant(tuple(execution.variant.items()))
            manifest = plan.jobs.planner.manifest_for(variant)
            if manifest:
                here.read_bytes += times * estimate_read_bytes(manifest, execution)
            known = estimate_execution(execution, manifest, history)
            here.bases.add(known.basis if known else UNKNOWN_BASIS)
            here.wall_s += times * known.wall_s if known else 0.0
            here.cpu_s += times * known.cpu_s if known else 0.0
    return [_total_site_cost(site, found) for site, found in sums.items()]


def _total_site_cost(site: str, sums: _SiteTotals) -> SiteCost:
    complete = UNKNOWN_BASIS not in sums.bases
    return SiteCost(
        site=site,
        jobs=sums.jobs,
        measurements=sums.measurements,
        read_bytes=sums.read_bytes,
        wall_s=sums.wall_s if complete else None,
        cpu_s=sums.cpu_s if complete else None,
        basis=", some ".join(sorted(sums.bases, reverse=True)) if complete else UNKNOWN_BASIS,
    )


def load_measured_costs(store: Store, test_hash: str) -> Mapping[str, ExecutionCost]:
    """Median cost of each series of a test so far, without failures and implausible rows."""
    selection = Selection(conditions=(Condition("test_hash", "=", test_hash),))
    columns = (
        "series",
        "kind",
        "payload_wall_s",
        "payload_user_s",
        "payload_sys_s",
        "failure_class",
        "plausible",
    )
    walls: dict[str, list[float]] = defaultdict(list)
    cpus: dict[str, list[float]] = defaultdict(list)
    for row in store.measurements(selection, columns):
        wall, user, system = (row[name] for name in columns[2:5])
        usable = row["plausible"] and row["failure_class"] is None
        if usable and isinstance(wall, float) and isinstance(user, float):
            key = _history_key(str(row["kind"]), row["series"])
            walls[key].append(wall)
            cpus[key].append(user + (system if isinstance(system, float) else 0.0))
    return {
        key: ExecutionCost(
            statistics.median(walls[key]), statistics.median(cpus[key]), MEASURED_BASIS
        )
        for key in walls
    }
