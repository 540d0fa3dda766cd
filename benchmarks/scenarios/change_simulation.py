"""Ninety simulated days with a planted step, searched for changes: found, missed, false, attribution.

Each trial simulates jobs of a pinned control and three releases at ten sites, of which two read the
storage of another one, and plants one step.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from benchmarks.harness.figures import SEED, RatioFigure, print_table, write_results
from treehammer.collectors.record.day_numbers import day_to_number
from treehammer.sql.core.watch_rows import WatchedSeriesRow
from treehammer.watch.changes.change_search import find_changes
from treehammer.watch.changes.daily_series import Attribution, ChangeState, SeriesKind, SeriesPlace
from treehammer.watch.changes.job_points import (
    MACHINE,
    JobPoint,
    average_points,
    build_families,
)

DAYS, FIRST_DAY = 90, date(2026, 3, 1)
SITES = tuple(f"SITE_{number:02}" for number in range(1, 11))
#: Sites without a storage of their own -> the one that they read.
REMOTE = {"SITE_09": "SITE_01", "SITE_10": "SITE_01"}
CONTROL, RELEASES = "6.36.00", ("6.38.00", "6.40.00", "master")
VARIANTS = ("branches=100%", "branches=2%")
HOSTS_PER_SITE, JOBS_PER_DAY = 6, 2
#: Standard deviations in ln: of a job's ratio, of a job's time on its host, of a host, and of the
#: days of a site and of all sites, which neighboring days share to 30 %.
PAIR_SPREAD, JOB_SPREAD, HOST_SPREAD = 0.007, 0.02, 0.10
SITE_DAY_SPREAD, COMMON_DAY_SPREAD, DAY_CORRELATION = 0.015, 0.004, 0.3
#: Share of days on which a site runs nothing.
MISSING_SHARE = 0.1
SIZES = (0.02, 0.05, 0.10)
#: Sizes of drifts over all days, and trials without any change that are searched for drifts.
DRIFT_SIZES, QUIET_TRIALS = (0.03, 0.06), 500
#: Days at either end without a planted step, and days by which a finding may miss it.
MARGIN_DAYS, DAY_TOLERANCE = 15, 5
TRIALS = 10
#: Mozilla's detector: share of alert groups that are false, and of regressions that it misses.
MOZILLA_FALSE, MOZILLA_MISSED = 0.125, 0.068
METRIC, TEST = "wall_per_event_s", "ttree-read"


@dataclass(frozen=True)
class PlantedStep:
    """A true change: kind and name of its origin, size in ln (0 for none) and day number.

    A drift grows to its size from the first to the last day.
    """

    attribution: Attribution
    subject: str
    size: float
    day: int
    only_releases: bool = False
    is_drift: bool = False

    def slows(self, place: SeriesPlace) -> bool:
        """Return whether the times of a place and release change."""
        if self.only_releases and place.release == CONTROL:
            return False
        return {
            Attribution.SITE: place.site == self.subject,
            Attribution.STORAGE: place.storage_site == self.subject,
            Attribution.RELEASE: place.release == self.subject,
            Attribution.CENTRAL: True,
        }[self.attribution]


#: Name -> planted change.
KINDS: Mapping[str, tuple[Attribution, str, bool]] = {
    "at one site": (Attribution.SITE, "SITE_03", False),
    "at one site, releases only": (Attribution.SITE, "SITE_03", True),
    "in one release": (Attribution.RELEASE, "master", False),
    "at one storage": (Attribution.STORAGE, "SITE_01", False),
    "centrally": (Attribution.CENTRAL, "", False),
}


@dataclass
class SearchTally:
    """Counts over trials; ``groups`` are alert groups, ``false`` those that match no planted step."""

    kind: str
    size: float
    trials: int = 0
    right: int = 0
    wrong: int = 0
    missed: int = 0
    false: int = 0
    groups: int = 0

    def add(self, other: SearchTally) -> None:
        """Add the counts of another tally."""
        for name in ("trials", "right", "wrong", "missed", "false", "groups"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


#: Plan of a trial: kind and size (0 for none) of its step, and its number.
PlantedTrial = tuple[str, float, int]


def measure(_: argparse.Namespace) -> list[RatioFigure]:
    """Simulate, search and count."""
    return [*measure_trials(simulate_jobs, "changes"), *measure_drifts(), *measure_changing_hosts()]


def measure_drifts() -> list[RatioFigure]:
    """Search slow drifts, and count drifts that are none: in quiet trials and beside steps."""
    planted = [
        *product(KINDS, DRIFT_SIZES, range(TRIALS)),
        *(("nothing", 0.0, trial) for trial in range(QUIET_TRIALS)),
    ]
    rows: dict[tuple[str, float], SearchTally] = {}
    with ProcessPoolExecutor(2) as pool:
        for tally in pool.map(_run_drift_trial, planted, chunksize=4):
            key = tally.kind, tally.size
            rows.setdefault(key, SearchTally(*key)).add(tally)
    write_results("drifts", [asdict(tally) for tally in rows.values()])
    print_table([asdict(tally) for tally in rows.values()])
    quiet = rows["nothing", 0.0]
    missed = sum(tally.missed for tally in rows.values())
    trials = sum(tally.trials for tally in rows.values() if tally.size)
    return [
        RatioFigure("trials with a false drift", quiet.false / quiet.trials, pairs=quiet.trials),
        RatioFigure("missed drifts", missed / trials, pairs=trials),
    ]


def _run_drift_trial(planted: PlantedTrial) -> SearchTally:
    """Search the jobs of a trial with a drift; only drifts count as false in one without any."""
    rng, step = draw_step(planted)
    alerts = search_changes(list(simulate_jobs(rng, replace(step, is_drift=True))))
    drifts = [alert for alert in alerts if alert.is_drift]
    name, size, _ = planted
    right = any(is_right(alert, step) for alert in drifts)
    return SearchTally(
        name,
        size,
        trials=1,
        right=int(bool(size) and right),
        wrong=int(bool(size and drifts) and not right),
        missed=int(bool(size) and not drifts),
        false=len(alerts) - len(drifts) if size else len(drifts),
        groups=len(alerts),
    )


#: Names of hosts -> name and context of a job, from its number and its true host.
HOST_NAMES: Mapping[str, Callable[[int, str], tuple[str, Mapping[str, str]]]] = {
    "fixed": lambda _, host: (host, {}),
    "changing": lambda number, _: (f"pod-{number}", {}),
    "changing, machine known": lambda number, host: (f"pod-{number}", {MACHINE: host}),
}


def measure_changing_hosts() -> list[RatioFigure]:
    """Search a step of 10 % at one site whose jobs have fixed host names, or each a new one."""
    rows: list[dict[str, Any]] = []
    for jobs, lost_share, names in product((JOBS_PER_DAY, 1), (0.0, 0.2), HOST_NAMES):
        sizes = [
            size
            for trial in range(TRIALS)
            for size in _read_step_sizes(trial, names, jobs, lost_share)
        ]
        rows.append(
            {
                "host names": names,
                "jobs a day": jobs,
                "lost": lost_share,
                "trials": TRIALS,
                "right": len(sizes),
                "smallest %": min(sizes, default=math.nan),
                "largest %": max(sizes, default=math.nan),
            }
        )
    write_results("changing-hosts", rows)
    print_table(rows)
    missed = TRIALS * len(rows) - sum(row["right"] for row in rows)
    return [RatioFigure("changing hosts: missed steps", missed / (TRIALS * len(rows)))]


def _read_step_sizes(trial: int, names: str, jobs_a_day: int, lost_share: float) -> list[float]:
    """Return the size in per cent of the step of one trial as it is read; nothing if it is missed."""
    rng, step = draw_step(("at one site", 0.10, trial))
    jobs = list(simulate_jobs(rng, step))
    lost = np.random.default_rng([SEED, trial]).random(len(jobs)) < lost_share
    selection = []
    for number, job in enumerate(jobs):
        # The jobs of a site and day come one after the other, variant by variant.
        if not lost[number] and number // len(VARIANTS) % JOBS_PER_DAY < jobs_a_day:
            host, context = HOST_NAMES[names](number, job.host)
            selection.append(replace(job, host=host, context=context))
    alerts = (
        alert
        for alert in search_changes(selection)
        if is_near(alert, step) and is_right(alert, step)
    )
    return [100 * math.expm1(alert.size) for alert in alerts][:1]


def measure_trials(make_jobs: MakeJobs, table: str) -> list[RatioFigure]:
    """Search the jobs of all trials, print the counts and write ``results/TABLE.csv``.

    Args:
        make_jobs: makes the jobs of a trial, given random numbers and the step.
        table: name of the table.
    """
    planted = [
        *product(KINDS, SIZES, range(TRIALS)),
        *(("nothing", 0.0, trial) for trial in range(TRIALS * 2)),
    ]
    tallies: dict[tuple[str, float], SearchTally] = {}
    with ProcessPoolExecutor(2) as pool:
        for tally in pool.map(partial(_run_trial, make_jobs), planted, chunksize=4):
            key = tally.kind, tally.size
            tallies.setdefault(key, SearchTally(*key)).add(tally)
    rows = [asdict(tally) for tally in tallies.values()]
    write_results(table, rows)
    print_table(rows)
    return summarize_tallies(list(tallies.values()))


def summarize_tallies(tallies: Sequence[SearchTally], title: str = "") -> list[RatioFigure]:
    """Return the shares over all trials, with the limits of Mozilla's detector."""
    total = SearchTally("", 0.0)
    for tally in tallies:
        total.add(tally)
    steps = sum(tally.trials for tally in tallies if tally.size)
    return [
        RatioFigure(
            f"{title}false alert groups",
            total.false / max(total.groups, 1),
            pairs=total.groups,
            upper_bound=MOZILLA_FALSE,
        ),
        RatioFigure(
            f"{title}missed steps", total.missed / steps, pairs=steps, upper_bound=MOZILLA_MISSED
        ),
        RatioFigure(f"{title}attributed wrongly", total.wrong / steps, pairs=steps),
    ]


def _run_trial(make_jobs: MakeJobs, planted: PlantedTrial) -> SearchTally:
    """Make the jobs of one trial and count the changes found."""
    rng, step = draw_step(planted)
    return count_alerts(planted, step, search_changes(list(make_jobs(rng, step))))


def draw_step(planted: PlantedTrial) -> tuple[np.random.Generator, PlantedStep]:
    """Draw the day of a trial's step; return it with the random numbers of its jobs."""
    name, size, trial = planted
    rng = np.random.default_rng([SEED, *name.encode(), round(1000 * size), trial])
    attribution, subject, only = KINDS.get(name, (Attribution.CENTRAL, "", False))
    day = int(rng.integers(MARGIN_DAYS, DAYS - MARGIN_DAYS))
    return rng, PlantedStep(attribution, subject, math.log1p(size), day, only)


def count_alerts(planted: PlantedTrial, step: PlantedStep, alerts: Sequence[Alert]) -> SearchTally:
    """Count the alerts of one trial."""
    name, size, _ = planted
    near = [alert for alert in alerts if is_near(alert, step)]
    right = [alert for alert in near if is_right(alert, step)]
    return SearchTally(
        name,
        size,
        trials=1,
        right=int(bool(right)),
        wrong=int(bool(near) and not right),
        missed=int(bool(size) and not near),
        false=len(alerts) - len(near),
        groups=len(alerts),
    )


def is_near(alert: Alert, step: PlantedStep) -> bool:
    """Return whether an alert is at the time of the step."""
    return bool(step.size) and abs(alert.day - step.day) <= DAY_TOLERANCE


def is_right(alert: Alert, step: PlantedStep) -> bool:
    """Return whether an alert names the origin of the step."""
    return (alert.attribution, alert.subject) == (step.attribution.value, step.subject)


@dataclass(frozen=True)
class SimulatedJob:
    """Times of the control and all releases in one job, in ln, and their ratios as a job pairs them."""

    place: SeriesPlace
    host: str
    day: int
    times: Mapping[str, float]
    ratios: Mapping[str, float]
    context: Mapping[str, str] = field(default_factory=dict)


def simulate_jobs(rng: np.random.Generator, step: PlantedStep) -> Iterator[SimulatedJob]:
    """Simulate the jobs of all days."""
    common = _simulate_days(rng, COMMON_DAY_SPREAD)
    for site in SITES:
        storage = REMOTE.get(site, site)
        hosts = rng.normal(0, HOST_SPREAD, HOSTS_PER_SITE)
        site_days = common + _simulate_days(rng, SITE_DAY_SPREAD)
        missing = rng.random(DAYS) < MISSING_SHARE
        for day in range(DAYS):
            for number, variant in enumerate(VARIANTS * JOBS_PER_DAY):
                if missing[day]:
                    continue
                place = SeriesPlace(site, storage, "near", "", variant)
                host = int(rng.integers(HOSTS_PER_SITE))
                base = -3 + number % len(VARIANTS) + hosts[host] + site_days[day]
                base += rng.normal(0, JOB_SPREAD)
                times = {
                    release: base + slowdown(step, place, release, day)
                    for release in (CONTROL, *RELEASES)
                }
                ratios = {
                    release: times[release] - times[CONTROL] + rng.normal(0, PAIR_SPREAD)
                    for release in RELEASES
                }
                raw = {CONTROL: times[CONTROL]} | {r: times[CONTROL] + d for r, d in ratios.items()}
                yield SimulatedJob(place, f"{site}-{host}", day, raw, ratios)


def slowdown(step: PlantedStep, place: SeriesPlace, release: str, day: int) -> float:
    """Return ln of the factor on the times of a release at a place and day."""
    of_release = SeriesPlace(place.site, place.storage_site, place.door, release)
    share = day / (DAYS - 1) if step.is_drift else float(day >= step.day)
    return step.size * share if step.slows(of_release) else 0.0


def _simulate_days(rng: np.random.Generator, spread: float) -> np.ndarray:
    """Simulate effects of days, of which neighbors are correlated."""
    effects = rng.normal(0, spread, DAYS)
    for day in range(1, DAYS):
        fresh = math.sqrt(1 - DAY_CORRELATION**2) * effects[day]
        effects[day] = DAY_CORRELATION * effects[day - 1] + fresh
    return effects


#: Makes the jobs of a trial.
MakeJobs = Callable[[np.random.Generator, PlantedStep], Iterator[SimulatedJob]]


@dataclass(frozen=True)
class Alert:
    """A confirmed change: day, origin, size in ln, and whether it is a drift."""

    day: int
    attribution: str
    subject: str
    size: float = 0.0
    is_drift: bool = False


def make_points(jobs: Sequence[SimulatedJob]) -> Iterator[JobPoint]:
    """Make the points of jobs as from the database."""
    for job in jobs:
        day = day_to_number(date.fromordinal(FIRST_DAY.toordinal() + job.day))
        level = _make_series(SeriesKind.LEVEL, job.place, host=job.host)
        yield JobPoint(level, day, job.times[CONTROL], job.context)
        for release, ratio in job.ratios.items():
            yield JobPoint(_make_series(SeriesKind.RATIO, job.place, release), day, ratio, {})


def _make_series(
    kind: SeriesKind, place: SeriesPlace, release: str = "", host: str = ""
) -> WatchedSeriesRow:
    return WatchedSeriesRow(
        id=f"{kind.value} {place} {release}{host}",
        kind=kind.value,
        metric=METRIC,
        test_name=TEST,
        work=f"{place.site}{place.variant}",
        variant_label=place.variant,
        site=place.site,
        storage_site=place.storage_site,
        door=place.door,
        release=release,
        control=CONTROL,
        host=host,
    )


def search_changes(jobs: Sequence[SimulatedJob]) -> list[Alert]:
    """Search jobs for changes; only confirmed ones count."""
    families = build_families(*average_points(make_points(jobs)))
    return [
        Alert(
            change.day - FIRST_DAY.toordinal(),
            change.group.attribution.value,
            change.group.subject,
            change.size,
            change.until is not None,
        )
        for family, series in families.items()
        for change in find_changes(series, family.kind)
        if change.state is ChangeState.CONFIRMED
    ]
