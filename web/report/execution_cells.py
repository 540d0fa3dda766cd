"""Executions aggregated by place, variant and release for a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from treehammer.analysis.descriptive.group_summary import (
    ExecutionGroup,
    Key,
    MeanAndRms,
    Row,
    find_distinguishing_names,
    group_executions,
    is_usable,
    lookup_value,
)
from treehammer.analysis.samples.sample import parse_variant


@dataclass(frozen=True)
class MeanColumn:
    """A metric whose mean is shown.

    Attributes:
        metric: name in the catalogue.
        title: heading with the unit.
        scale: factor from the metric's unit to that of the heading.
    """

    metric: str
    title: str
    scale: float = 1.0


#: Averaged metrics, over usable timed executions only.
MEAN_COLUMNS = (
    MeanColumn("cpu_per_event_s", "CPU, ms/event", 1e3),
    MeanColumn("wall_per_event_s", "wall, ms/event", 1e3),
    MeanColumn("loop_wall_s", "loop, s"),
    MeanColumn("eff_job", "eff_job"),
    MeanColumn("eff_payload", "eff_payload"),
    MeanColumn("eff_loop", "eff_loop"),
    MeanColumn("bytes_read", "read, MB", 1e-6),
    MeanColumn("read_calls", "read calls"),
    MeanColumn("max_rss_bytes", "memory, MB", 1e-6),
)


@dataclass(frozen=True)
class ExecutionCell:
    """Usable executions of one variant with one release at one place.

    Attributes:
        place: site, with that of the storage if it is another, and the door if there are several.
        variant: label of the varying axes without ``root``.
        release: ROOT release.
        executions: number of executions.
        jobs: number of jobs.
        hosts: number of hosts.
        spreads: metric -> mean and RMS.
    """

    place: str
    variant: str
    release: str
    executions: int
    jobs: int
    hosts: int
    spreads: Mapping[str, MeanAndRms]


def summarize_executions(rows: Iterable[Row]) -> list[ExecutionCell]:
    """Aggregate usable rows, in natural order of place, variant and release."""
    rows = [row for row in rows if is_usable(row)]
    axes = tuple(axis for axis in find_distinguishing_names(rows, ()) if axis != "root")
    doors = defaultdict(set)
    for row in rows:
        doors[_name_sites(row)].add(row["door"])

    def key(row: Row) -> Key:
        sites = _name_sites(row)
        place = f"{sites} · {row['door']}" if len(doors[sites]) > 1 else sites
        return place, *(lookup_value(row, axis) for axis in axes), _find_release(row)

    return [_build_cell(group, axes) for group in group_executions(rows, key)]


def _find_release(row: Row) -> str:
    """Find the release of an execution: that of its variant, or else the reported one."""
    release = dict(parse_variant(row["variant"]).values).get("root")
    return str(release or row["root_version"] or "")


def _name_sites(row: Row) -> str:
    """Name the site of an execution, and the site that it read if that is another."""
    site, storage = str(row["site"]), row.get("storage_site")
    return site if storage in (None, site) else f"{storage} from {site}"


def _build_cell(group: ExecutionGroup, axes: tuple[str, ...]) -> ExecutionCell:
    variant = parse_variant(group.rows[0]["variant"])
    named = tuple(axis for axis in axes if axis in dict(variant.values))
    spreads = {column.metric: group.mean_and_rms(column.metric) for column in MEAN_COLUMNS}
    return ExecutionCell(
        place=str(group.key[0]),
        variant=variant.label(named) if named else group.rows[0]["test_name"],
        release=str(group.key[-1]),
        executions=len(group.rows),
        jobs=group.jobs,
        hosts=group.hosts,
        spreads={name: spread for name, spread in spreads.items() if spread},
    )
