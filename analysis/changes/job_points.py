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
    for one in executions:
        tests[one.sample.test_name].append(one)
    points = []
    for test, own in tests.items():
        control = controls.get(test) or _choose_control(own, default_control)
        if control:
            points += list(_collect_of_test(own, control))
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


def _choose_control(executions: Sequence[_Execution], wanted: str) -> str:
    """Choose the release that shares most jobs with another one; of equals the oldest."""
    jobs: dict[str, set[str]] = defaultdict(set)
    for one in executions:
        if one.release:
            jobs[one.sample.job_id].add(one.release)
    shared = Counter(
        release for releases in jobs.values() if len(releases) > 1 for release in releases
    )
    if wanted in shared:
        return wanted
    by_age = sorted(shared, key=natural_sort_key)
    return max(by_age, key=shared.__getitem__, default="")


def _collect_of_test(executions: Sequence[_Execution], control: str) -> Iterator[JobPoint]:
    works: dict[str, dict[str, list[_Execution]]] = defaultdict(lambda: defaultdict(list))
    for one in executions:
        works[comparison_key(one.sample, RELEASE_AXIS)][one.release].append(one)
    for work, releases in works.items():
        if control not in releases:
            continue
        for metric in HEADLINE_METRICS:
            yield from _collect_levels(work, metric, control, releases[control])
            for release, others in releases.items():
                if release != control:
                    yield from _collect_ratios(work, metric, control, releases[control], others)


def _collect_levels(
    work: str, metric: str, control: str, executions: Sequence[_Execution]
) -> Iterator[JobPoint]:
    jobs = _first_of_jobs(executions)
    values, _ = collect_job_values((one.sample for one in executions), metric)
    for found in values:
        one = jobs[found.job_id]
        series = make_series(
            SeriesKind.LEVEL,
            metric,
            one.sample.test_name,
            control,
            _find_place(one),
            work=work,
            host=found.host,
        )
        yield JobPoint(series, one.day, math.log(found.value), one.context)


def _collect_ratios(
    work: str,
    metric: str,
    control: str,
    controls: Sequence[_Execution],
    executions: Sequence[_Execution],
) -> Iterator[JobPoint]:
    jobs = _first_of_jobs(executions)
    pairs, _ = pair_jobs(
        (one.sample for one in controls), (one.sample for one in executions), metric
    )
    for found in pairs:
        one = jobs[found.job_id]
        series = make_series(
            SeriesKind.RATIO,
            metric,
            one.sample.test_name,
            control,
            _find_place(one, one.release),
            work=work,
        )
        yield JobPoint(series, one.day, found.d, one.context)


def _first_of_jobs(executions: Iterable[_Execution]) -> dict[str, _Execution]:
    """Map each job to its first execution: a job that crosses midnight belongs to one day."""
    found: dict[str, _Execution] = {}
    for one in executions:
        known = found.get(one.sample.job_id)
        if known is None or one.day < known.day:
            found[one.sample.job_id] = one
    return found


def _find_place(one: _Execution, release: str = "") -> SeriesPlace:
    sample = one.sample
    return SeriesPlace(sample.site, sample.storage_site, sample.door, release, one.label)


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
        values = np.array([one.value for one in jobs])
        mean = float(values.mean())
        squares = float(((values - mean) ** 2).sum())
        context = json.dumps(_usual_context(jobs), sort_keys=True)
        days.append(WatchedDayRow(identity, day, mean, squares, len(jobs), context))
    return list(series.values()), days


def _usual_context(jobs: Sequence[JobPoint]) -> Context:
    values: dict[str, Counter[str]] = defaultdict(Counter)
    for one in jobs:
        for aspect, value in one.context.items():
            values[aspect][value] += 1
    return {aspect: min(found, key=lambda v: (-found[v], v)) for aspect, found in values.items()}


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
    for one in series:
        if one.id not in by_id or one.kind not in tuple(SeriesKind):
            continue
        family = SeriesFamily(SeriesKind(one.kind), one.metric, one.test_name, one.control)
        place = SeriesPlace(one.site, one.storage_site, one.door, one.release, one.variant_label)
        own = by_id[one.id]
        contexts = {day: _parse_context(row) for day, row in own.items()}
        if family.kind is SeriesKind.RATIO:
            values = {day: row.value for day, row in own.items()}
            families[family].append(DailySeries.from_days(one.id, place, values, contexts))
        else:
            door = SeriesPlace(one.site, one.storage_site, one.door)
            levels[family, door] += [
                LevelDay(one.work, one.host, day, row.value, contexts[day])
                for day, row in own.items()
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
