"""From jobs to watched days: ratios to the pinned control inside each job, and the control's times."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from treehammer.analysis.changes.change_terms import SeriesKind
from treehammer.analysis.changes.daily_series import (
    Context,
    DailySeries,
    SeriesPlace,
)
from treehammer.analysis.changes.level_fit import MACHINE, NODE_TYPE, LevelDay, fit_levels
from treehammer.analysis.samples.job_pairs import collect_job_values, pair_jobs
from treehammer.analysis.samples.sample import (
    HEADLINE_METRICS,
    SAMPLE_COLUMNS,
    Sample,
    comparison_key,
    natural_sort_key,
)
from treehammer.collectors.record.day_numbers import number_to_day
from treehammer.hctests.matrix.identity import RELEASE_AXIS
from treehammer.sql.core.watch_rows import WatchedDayRow, WatchedSeriesRow

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


def make_series(
    kind: SeriesKind, metric: str, test_name: str, control: str, place: SeriesPlace, **work: str
) -> WatchedSeriesRow:
    """Make the row of a series; its identity is the hash of all its values.

    Args:
        kind: the quantity.
        metric: the metric.
        test_name: name of the test.
        control: the pinned control release.
        place: site, storage, door, release and variant.
        work: ``work`` and, for levels, ``host``.
    """
    values = {
        "kind": kind.value,
        "metric": metric,
        "test_name": test_name,
        "work": work["work"],
        "variant_label": place.variant,
        "site": place.site,
        "storage_site": place.storage_site,
        "door": place.door,
        "release": place.release,
        "control": control,
        "host": work.get("host", ""),
    }
    # The label names the axes that vary in a campaign: the same work may have several.
    identity = {name: value for name, value in values.items() if name != "variant_label"}
    text = json.dumps(identity, sort_keys=True)
    return WatchedSeriesRow(id=hashlib.sha256(text.encode()).hexdigest()[:32], **values)


def collect_points(
    rows: Iterable[Mapping[str, Any]], controls: Mapping[str, str], default_control: str = ""
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
        if control:
            points += list(_collect_of_test(of_test, control))
    return points


def _read_execution(row: Mapping[str, Any]) -> _Execution:
    sample = Sample.from_row(row)
    build = " ".join(
        part for part in (row["root_version"], (row["root_commit"] or "")[:10]) if part
    )
    context = {
        "storage server": row["server_version"],
        "door address": urlsplit(row["file_url"] or "").hostname,
        "address family": row["address_family"],
        "ROOT build": build,
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


def _collect_of_test(executions: Sequence[_Execution], control: str) -> Iterator[JobPoint]:
    works: dict[str, dict[str, list[_Execution]]] = defaultdict(lambda: defaultdict(list))
    for execution in executions:
        works[comparison_key(execution.sample, RELEASE_AXIS)][execution.release].append(execution)
    for work, releases in works.items():
        if control not in releases:
            continue
        for metric in HEADLINE_METRICS:
            yield from _collect_levels(work, metric, control, releases[control])
            for release, of_release in releases.items():
                if release != control:
                    yield from _collect_ratios(work, metric, control, releases[control], of_release)


def _collect_levels(
    work: str, metric: str, control: str, executions: Sequence[_Execution]
) -> Iterator[JobPoint]:
    jobs = _first_of_jobs(executions)
    values, _ = collect_job_values((execution.sample for execution in executions), metric)
    for job_value in values:
        first = jobs[job_value.job_id]
        series = make_series(
            SeriesKind.LEVEL,
            metric,
            first.sample.test_name,
            control,
            _find_place(first),
            work=work,
            host=job_value.host,
        )
        yield JobPoint(series, first.day, math.log(job_value.value), first.context)


def _collect_ratios(
    work: str,
    metric: str,
    control: str,
    controls: Sequence[_Execution],
    executions: Sequence[_Execution],
) -> Iterator[JobPoint]:
    jobs = _first_of_jobs(executions)
    pairs, _ = pair_jobs(
        (execution.sample for execution in controls),
        (execution.sample for execution in executions),
        metric,
    )
    for pair in pairs:
        first = jobs[pair.job_id]
        series = make_series(
            SeriesKind.RATIO,
            metric,
            first.sample.test_name,
            control,
            _find_place(first, first.release),
            work=work,
        )
        yield JobPoint(series, first.day, pair.d, first.context)


def _first_of_jobs(executions: Iterable[_Execution]) -> dict[str, _Execution]:
    """Map each job to its first execution: a job that crosses midnight belongs to one day."""
    firsts: dict[str, _Execution] = {}
    for execution in executions:
        earliest = firsts.get(execution.sample.job_id)
        if earliest is None or execution.day < earliest.day:
            firsts[execution.sample.job_id] = execution
    return firsts


def _find_place(execution: _Execution, release: str = "") -> SeriesPlace:
    sample = execution.sample
    return SeriesPlace(sample.site, sample.storage_site, sample.door, release, execution.label)


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
    by_id: dict[str, dict[int, WatchedDayRow]] = defaultdict(dict)
    for row in days:
        if (day := number_to_day(row.day)) is not None:
            by_id[row.series_id][day.toordinal()] = row
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
        contexts = {day: _parse_context(row) for day, row in rows.items()}
        if family.kind is SeriesKind.RATIO:
            values = {day: row.value for day, row in rows.items()}
            families[family].append(DailySeries.from_days(watched.id, place, values, contexts))
        else:
            door = SeriesPlace(watched.site, watched.storage_site, watched.door)
            levels[family, door] += [
                LevelDay(watched.work, watched.host, day, row.value, contexts[day])
                for day, row in rows.items()
            ]
    for (family, door), items in levels.items():
        families[family].append(_pool_levels(door, items))
    return dict(families)


def _pool_levels(door: SeriesPlace, items: Sequence[LevelDay]) -> DailySeries:
    values, nodes_by = fit_levels(items)
    identity = f"{door.site}\n{door.storage_site}\n{door.door}"
    contexts = {item.day: item.context for item in items}
    return replace(DailySeries.from_days(identity, door, values, contexts), nodes_by=nodes_by)


def _parse_context(row: WatchedDayRow) -> Context:
    context: Context = json.loads(row.context) if row.context else {}
    return context
