"""Reduction of jobs to points of daily series: ratios to the pinned control, and levels of a site's door.

A ratio is taken inside each job. Levels are fitted to the control's times on different nodes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from treehammer.analysis.statistics.job_pairs import collect_job_values, pair_jobs
from treehammer.analysis.statistics.sample import (
    HEADLINE_METRICS,
    SAMPLE_COLUMNS,
    Sample,
    comparison_key,
    natural_sort_key,
)
from treehammer.collectors.record.day_numbers import number_to_day
from treehammer.hctests.definition.model import RELEASE_AXIS
from treehammer.sql.core.watch_rows import WatchedDayRow, WatchedSeriesRow
from treehammer.watch.changes.daily_series import (
    MAD,
    Context,
    DailySeries,
    NodeIdentity,
    Numbers,
    SeriesKind,
    SeriesPlace,
    Values,
    find_breaks,
)

#: Aspects of the context that identify a node.
NODE_TYPE, MACHINE = "node type", "machine"
#: Days on either side whose median is the level that a job is compared with.
LEVEL_DAYS = 21
#: Penalty, in variances of a day, of a step that this median does not look across.
LEVEL_PENALTY = 30.0
#: Standard deviations from the level up to which a job counts: a neighbor on the node may slow it
#: by a third, and nothing speeds it up as much.
CLIP = 2.5
#: Jobs of a day, and more than half of them, that deviate together from the level and are not wild.
COMMON_JOBS = 3
#: Rounds of the fit; later ones change nothing that matters.
ROUNDS = 8


class LevelDay(NamedTuple):
    """Mean of the control's jobs of a day for one work on one host, in ln."""

    work: str
    host: str
    day: int
    value: float
    context: Context


def identify_nodes(items: Sequence[LevelDay]) -> list[tuple[NodeIdentity, str]]:
    """Identify the node of each value by its first property that was seen on another day, too.

    Names of pods, pilots and containers are new for each job, as are those of a farm that is larger
    than its tests are frequent. Such a name does not identify a node on another day. On the first
    day nothing is known of it.
    """
    days: dict[tuple[NodeIdentity, str], set[int]] = defaultdict(set)
    properties = [tuple(_list_properties(item)) for item in items]
    for item, candidates in zip(items, properties, strict=True):
        for candidate in candidates:
            days[candidate].add(item.day)
    site = (NodeIdentity.SITE, "")
    least = min(2, len({item.day for item in items}))
    return [
        next((candidate for candidate in candidates if len(days[candidate]) >= least), site)
        for candidates in properties
    ]


def _list_properties(item: LevelDay) -> Iterator[tuple[NodeIdentity, str]]:
    model = item.context.get(NODE_TYPE, "")
    if item.host:
        yield NodeIdentity.HOST, item.host
    if machine := item.context.get(MACHINE):
        # Machines made from one image may share an identity, but hardly their CPU model as well.
        yield NodeIdentity.MACHINE, f"{machine} {model}"
    if model:
        yield NodeIdentity.CPU_MODEL, model


def fit_levels(items: Sequence[LevelDay]) -> tuple[Mapping[int, float], NodeIdentity]:
    """Fit value = work + node + level of the day.

    A node is compared with the median of all jobs within :data:`LEVEL_DAYS`. Least squares over
    nodes and days would leave open which of both was slow where the jobs of a day share a node, or a
    node has the jobs of one day only, and lose a part of each step. A node's effect is shrunk as far
    as nodes differ no more than the jobs of one.

    Returns:
        the levels by day ordinal, and the property that identified most nodes.
    """
    identities = identify_nodes(items)
    levels = _fit(
        _number(identities),
        _number([item.work for item in items]),
        np.array([item.day for item in items]),
        np.array([item.value for item in items]),
    )
    ((usual, _),) = Counter(identity for identity, _ in identities).most_common(1)
    return levels, usual


def _number(keys: Sequence[Hashable]) -> Numbers:
    """Number equal keys equally, from 0."""
    numbers: dict[Hashable, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys])


def _fit(nodes: Numbers, works: Numbers, days: Numbers, values: Values) -> dict[int, float]:
    measured, columns = np.unique(days, return_inverse=True)
    work_effects, node_effects = _find_medians(works, values), np.zeros(int(np.max(nodes)) + 1)
    breaks: Sequence[int] = ()
    for _ in range(ROUNDS):
        residuals = values - work_effects[works] - node_effects[nodes]
        levels = _find_local_medians(measured, columns, residuals, breaks)[columns]
        limit = CLIP * float(np.median(np.abs(residuals - levels))) / MAD
        clipped = np.clip(residuals - levels, -limit, limit)
        means = np.bincount(columns, weights=levels + clipped) / np.bincount(columns)
        node_effects = _shrink_means(nodes, clipped + node_effects[nodes])
        work_effects += _find_medians(
            works, values - work_effects[works] - node_effects[nodes] - levels
        )
        breaks = find_breaks(means, LEVEL_PENALTY)
    # Days on which the level of the days around them holds for few jobs: incidents, or days between two.
    beyond = np.sign(clipped) * (np.abs(clipped) >= limit)
    common = np.maximum(COMMON_JOBS, np.bincount(columns) // 2 + 1)
    is_common = np.abs(np.bincount(columns, weights=beyond)) >= common
    medians = _find_local_medians(measured, columns, residuals, range(1, len(measured)))
    levels_by_day = np.where(is_common, medians, means)
    return dict(zip(map(int, measured), map(float, levels_by_day), strict=True))


def _find_local_medians(
    measured: Numbers, columns: Numbers, values: Values, breaks: Sequence[int]
) -> Values:
    """Return the median of the values near each measured day, up to the next break."""
    edges = np.array([0, *breaks, len(measured)])
    segments = np.searchsorted(edges, np.arange(len(measured)), side="right")
    first = np.maximum(np.searchsorted(measured, measured - LEVEL_DAYS), edges[segments - 1])
    last = np.minimum(
        np.searchsorted(measured, measured + LEVEL_DAYS, side="right"), edges[segments]
    )
    order = np.argsort(columns, kind="stable")
    ordered, starts = values[order], np.searchsorted(columns[order], np.arange(len(measured) + 1))
    return np.array(
        [np.median(ordered[starts[a] : starts[b]]) for a, b in zip(first, last, strict=True)]
    )


def _find_medians(items: Numbers, values: Values) -> Values:
    return np.array([np.median(values[items == item]) for item in range(int(np.max(items)) + 1)])


def _shrink_means(items: Numbers, values: Values) -> Values:
    """Return the means of items as random effects, shrunk towards zero by the method of moments."""
    counts = np.bincount(items)
    means = np.bincount(items, weights=values) / counts
    within = float(((values - means[items]) ** 2).sum()) / max(len(values) - len(counts), 1)
    between = (float((counts * means**2).sum()) - len(counts) * within) / len(values)
    return means * counts / (counts + within / between) if between > 0 else np.zeros(len(counts))


#: Columns of a measurement that points are made of.
POINT_COLUMNS = (
    *SAMPLE_COLUMNS,
    "variant_label",
    "day",
    "axis_root",
    "file_url",
    "address_family",
    "server_version",
    "kernel",
    "os_name",
    "cpu_model",
)


@dataclass(frozen=True)
class JobPoint:
    """Value of one job in a watched series, in ln, with the job's day (YYYYMMDD) and context."""

    series: WatchedSeriesRow
    day: int
    value: float
    context: Context


class SeriesFamily(NamedTuple):
    """Series that are searched for changes together."""

    kind: SeriesKind
    metric: str
    test_name: str
    control: str


@dataclass(frozen=True)
class _Execution:
    """A sample with the other values that a point needs."""

    sample: Sample
    release: str
    label: str
    day: int
    context: Context


def list_points(
    rows: Iterable[Mapping[str, Any]], controls: Mapping[str, str], default_control: str
) -> list[JobPoint]:
    """Collect the points of measurements (rows with :data:`POINT_COLUMNS`).

    Args:
        rows: timed measurements.
        controls: test -> control release that is pinned for it.
        default_control: for other tests, where they measured it; by default the release that
            shares most jobs with another one.
    """
    executions = [_read_execution(row) for row in rows]
    tests: dict[str, list[_Execution]] = defaultdict(list)
    for execution in executions:
        tests[execution.sample.test_name].append(execution)
    points = []
    for test, of_test in tests.items():
        control = controls.get(test) or _choose_control(of_test, default_control)
        # A test without ROOT, of another tool, has levels alone.
        if control or not any(execution.release for execution in of_test):
            points += list(_list_of_test(test, of_test, control))
    return points


def _read_execution(row: Mapping[str, Any]) -> _Execution:
    sample = Sample.from_row(row)
    build = " ".join(filter(None, (row["root_version"], (row["root_commit"] or "")[:10])))
    context = {
        "storage server": row["server_version"],
        "door address": urlsplit(row["file_url"] or "").hostname,
        "address family": row["address_family"],
        "ROOT build": build,
        "loop compiler": sample.build["loop_compiler"],
        "kernel": row["kernel"],
        "operating system": row["os_name"],
        NODE_TYPE: row["cpu_model"],
        MACHINE: sample.machine,
    }
    return _Execution(
        sample,
        str(row["axis_root"] or ""),
        str(row["variant_label"] or ""),
        int(row["day"]),
        {name: value for name, value in context.items() if value},
    )


def _choose_control(executions: Sequence[_Execution], preferred: str) -> str:
    """Choose the release that shares most jobs with another one; of equals the oldest."""
    jobs: dict[str, set[str]] = defaultdict(set)
    for execution in executions:
        if execution.release:
            jobs[execution.sample.job_id].add(execution.release)
    shared = Counter(
        release for releases in jobs.values() if len(releases) > 1 for release in releases
    )
    if preferred in shared:
        return preferred
    by_age = sorted(shared, key=natural_sort_key)
    return max(by_age, key=shared.__getitem__, default="")


def _list_of_test(
    test_name: str, executions: Sequence[_Execution], control: str
) -> Iterator[JobPoint]:
    works: dict[str, dict[str, list[_Execution]]] = defaultdict(lambda: defaultdict(list))
    for execution in executions:
        works[comparison_key(execution.sample, RELEASE_AXIS)][execution.release].append(execution)
    for work, releases in works.items():
        if control not in releases:
            continue
        controls = releases.pop(control)
        for metric in HEADLINE_METRICS:
            levels = SeriesFamily(SeriesKind.LEVEL, metric, test_name, control)
            yield from _list_levels(work, levels, controls)
            ratios = levels._replace(kind=SeriesKind.RATIO)
            for of_release in releases.values():
                yield from _list_ratios(work, ratios, controls, of_release)


def _list_levels(
    work: str, family: SeriesFamily, executions: Sequence[_Execution]
) -> Iterator[JobPoint]:
    jobs = _first_of_jobs(executions)
    values, _ = collect_job_values((execution.sample for execution in executions), family.metric)
    for value in values:
        yield _make_point(jobs[value.job_id], family, work, math.log(value.value), value.host)


def _list_ratios(
    work: str,
    family: SeriesFamily,
    controls: Sequence[_Execution],
    executions: Sequence[_Execution],
) -> Iterator[JobPoint]:
    jobs = _first_of_jobs(executions)
    samples_a, samples_b = (
        [execution.sample for execution in side] for side in (controls, executions)
    )
    pairs, _ = pair_jobs(samples_a, samples_b, family.metric)
    for pair in pairs:
        yield _make_point(jobs[pair.job_id], family, work, pair.d)


def _make_point(
    first: _Execution, family: SeriesFamily, work: str, value: float, host: str = ""
) -> JobPoint:
    """Make the point of a job from its first execution."""
    sample = first.sample
    identity = {
        "kind": family.kind.value,
        "metric": family.metric,
        "test_name": family.test_name,
        "work": work,
        "site": sample.site,
        "storage_site": sample.storage_site,
        "door": sample.door,
        "release": first.release if family.kind is SeriesKind.RATIO else "",
        "control": family.control,
        "host": host,
    }
    text = json.dumps(identity, sort_keys=True)
    id_ = hashlib.sha256(text.encode()).hexdigest()[:32]
    # The label names the axes that vary in a campaign: the same work may have several.
    series = WatchedSeriesRow(id=id_, variant_label=first.label, **identity)
    return JobPoint(series, first.day, value, first.context)


def _first_of_jobs(executions: Iterable[_Execution]) -> dict[str, _Execution]:
    """Map each job to its first execution: a job that crosses midnight belongs to one day."""
    firsts: dict[str, _Execution] = {}
    for execution in sorted(executions, key=lambda execution: execution.day):
        firsts.setdefault(execution.sample.job_id, execution)
    return firsts


def average_points(
    points: Iterable[JobPoint],
) -> tuple[list[WatchedSeriesRow], list[WatchedDayRow]]:
    """Average the jobs of each series and day."""
    series: dict[str, WatchedSeriesRow] = {}
    groups: dict[tuple[str, int], list[JobPoint]] = defaultdict(list)
    for point in points:
        series.setdefault(point.series.id, point.series)
        groups[point.series.id, point.day].append(point)
    days = []
    for (identity, day), jobs in groups.items():
        values = np.array([job.value for job in jobs])
        mean = float(values.mean())
        squares = float(((values - mean) ** 2).sum())
        context = json.dumps(_usual_context(jobs), sort_keys=True)
        days.append(WatchedDayRow(identity, day, mean, squares, len(jobs), context))
    return list(series.values()), days


def _usual_context(jobs: Sequence[JobPoint]) -> Context:
    values: dict[str, Counter[str]] = defaultdict(Counter)
    for point in jobs:
        for aspect, value in point.context.items():
            values[aspect][value] += 1
    return {aspect: min(counts, key=lambda v: (-counts[v], v)) for aspect, counts in values.items()}


def build_families(
    series: Iterable[WatchedSeriesRow], days: Iterable[WatchedDayRow]
) -> dict[SeriesFamily, list[DailySeries]]:
    """Build the daily series that are searched together.

    Ratios stay as they are. The levels of a site's door are pooled over works and nodes.
    """
    by_id = _group_days(days)
    families: dict[SeriesFamily, list[DailySeries]] = defaultdict(list)
    levels: dict[tuple[SeriesFamily, SeriesPlace], list[LevelDay]] = defaultdict(list)
    for watched in series:
        if watched.id not in by_id or watched.kind not in tuple(SeriesKind):
            continue
        family = SeriesFamily(
            SeriesKind(watched.kind), watched.metric, watched.test_name, watched.control
        )
        place = SeriesPlace(
            watched.site, watched.storage_site, watched.door, watched.release, watched.variant_label
        )
        rows = by_id[watched.id]
        contexts: dict[int, Context] = {
            ordinal: json.loads(row.context or "{}") for ordinal, row in rows.items()
        }
        if family.kind is SeriesKind.RATIO:
            values = {ordinal: row.value for ordinal, row in rows.items()}
            families[family].append(DailySeries.from_days(watched.id, place, values, contexts))
        else:
            door = SeriesPlace(watched.site, watched.storage_site, watched.door)
            levels[family, door] += [
                LevelDay(watched.work, watched.host, ordinal, row.value, contexts[ordinal])
                for ordinal, row in rows.items()
            ]
    for (family, door), items in levels.items():
        families[family].append(_pool_levels(door, items))
    return dict(families)


def _group_days(days: Iterable[WatchedDayRow]) -> Mapping[str, Mapping[int, WatchedDayRow]]:
    """Group days by series and day ordinal."""
    by_id: dict[str, dict[int, WatchedDayRow]] = defaultdict(dict)
    for row in days:
        if (day := number_to_day(row.day)) is not None:
            by_id[row.series_id][day.toordinal()] = row
    return by_id


def _pool_levels(door: SeriesPlace, items: Sequence[LevelDay]) -> DailySeries:
    """Pool the levels of a door over works and nodes."""
    values, nodes_by = fit_levels(items)
    identity = f"{door.site}\n{door.storage_site}\n{door.door}"
    contexts = {item.day: item.context for item in items}
    return replace(DailySeries.from_days(identity, door, values, contexts), nodes_by=nodes_by)
