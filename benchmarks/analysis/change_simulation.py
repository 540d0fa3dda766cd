"""Ninety simulated days with a planted step, searched for changes: found, missed, false, attribution.

Each trial simulates jobs of a pinned control and three releases at ten sites, of which two read the
storage of another one, and plants one step. Beside our search runs Apache Otava in its plain use:
the daily means of raw times, one series for each site, variant and release.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import cache, partial
from importlib import import_module
from itertools import chain
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.harness.ratio_figures import SEED, RatioFigure, write_rows
from treehammer import config
from treehammer.analysis.changes.change_search import Change, find_changes
from treehammer.analysis.changes.change_terms import Attribution, ChangeState, SeriesKind
from treehammer.analysis.changes.daily_series import SeriesPlace
from treehammer.analysis.changes.job_points import (
    JobPoint,
    average_points,
    build_families,
    make_series,
)
from treehammer.analysis.changes.level_fit import MACHINE
from treehammer.collectors.record.day_numbers import day_to_number

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
#: Days at either end without a planted step, and days by which a finding may miss it.
MARGIN_DAYS, DAY_TOLERANCE = 15, 5
TRIALS = 10
#: Mozilla's detector: share of alert groups that are false, and of regressions that it misses.
MOZILLA_FALSE, MOZILLA_MISSED = 0.125, 0.068
OTAVA_PACKAGE = "apache-otava==0.8.0"
METRIC, TEST = "wall_per_event_s", "ttree-read"


@dataclass(frozen=True)
class PlantedStep:
    """A true change: kind and name of its origin, size in ln (0 for none) and day number."""

    attribution: Attribution
    subject: str
    size: float
    day: int
    only_releases: bool = False

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
    method: str
    trials: int = 0
    found: int = 0
    wrong: int = 0
    missed: int = 0
    false: int = 0
    groups: int = 0

    def add(self, other: SearchTally) -> None:
        """Add the counts of another tally."""
        for name in ("trials", "found", "wrong", "missed", "false", "groups"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


#: Plan of a trial: kind and size (0 for none) of its step, and its number.
PlantedTrial = tuple[str, float, int]


def measure() -> list[RatioFigure]:
    """Simulate, search and count."""
    return [*measure_trials(simulate_jobs, "changes"), *measure_changing_hosts()]


@dataclass
class HostNameTally:
    """Trials of a 10 % step at one site with these names of hosts, and the sizes read, in per cent."""

    names: str
    jobs: int
    missing: float
    trials: int = 0
    found: int = 0
    smallest: float = math.nan
    largest: float = math.nan


#: Names of hosts -> name and context of a job, from its number and its true host.
HOST_NAMES: Mapping[str, Callable[[int, str], tuple[str, Mapping[str, str]]]] = {
    "fixed": lambda _, host: (host, {}),
    "changing": lambda number, _: (f"pod-{number}", {}),
    "changing, machine known": lambda number, host: (f"pod-{number}", {MACHINE: host}),
}


def measure_changing_hosts() -> list[RatioFigure]:
    """Search a step of 10 % at one site whose jobs have fixed host names, or each a new one."""
    rows = [
        _search_named_hosts(HostNameTally(names, jobs, missing))
        for jobs in (JOBS_PER_DAY, 1)
        for missing in (0.0, 0.2)
        for names in HOST_NAMES
    ]
    write_rows("changing-hosts", [asdict(row) for row in rows])
    print(f"{'host names':24} {'jobs':>4} {'missing':>7} {'found':>6}  step of 10 % read as")
    for row in rows:
        print(
            f"{row.names:24} {row.jobs:4} {row.missing:7.0%} {row.found:3} of {row.trials:2} "
            f"{row.smallest:6.1f} to {row.largest:.1f} %"
        )
    missed = sum(row.trials - row.found for row in rows)
    return [RatioFigure("changing hosts: missed steps", missed / sum(row.trials for row in rows))]


def _search_named_hosts(tally: HostNameTally) -> HostNameTally:
    name = HOST_NAMES[tally.names]
    sizes = []
    for trial in range(TRIALS):
        rng, step = draw_step(("at one site", 0.10, trial))
        jobs = list(simulate_jobs(rng, step))
        lost = np.random.default_rng([SEED, trial]).random(len(jobs)) < tally.missing
        chosen = []
        for number, job in enumerate(jobs):
            # The jobs of a site and day come one after the other, variant by variant.
            if not lost[number] and number // len(VARIANTS) % JOBS_PER_DAY < tally.jobs:
                host, context = name(number, job.host)
                chosen.append(replace(job, host=host, context=context))
        found = [
            one for one in search_changes(chosen) if is_near(one, step) and is_right(one, step)
        ]
        sizes += [100 * math.expm1(one.size) for one in found[:1]]
    tally.trials, tally.found = TRIALS, len(sizes)
    tally.smallest, tally.largest = (min(sizes), max(sizes)) if sizes else (math.nan, math.nan)
    return tally


def measure_trials(make_jobs: MakeJobs, table: str) -> list[RatioFigure]:
    """Search the jobs of all trials, print the counts and write ``results/TABLE.csv``.

    Args:
        make_jobs: makes the jobs of a trial, given random numbers and the step.
        table: name of the table.
    """
    _install_otava()
    planted = [
        (name, size, trial) for name in KINDS for size in SIZES for trial in range(TRIALS)
    ] + [("nothing", 0.0, trial) for trial in range(TRIALS * 2)]
    tallies: dict[tuple[str, float, str], SearchTally] = {}
    with ProcessPoolExecutor(2) as pool:
        run = partial(_run_trial, make_jobs)
        for one in chain.from_iterable(pool.map(run, planted, chunksize=4)):
            key = one.kind, one.size, one.method
            tallies.setdefault(key, SearchTally(*key)).add(one)
    rows = list(tallies.values())
    write_rows(table, [asdict(one) for one in rows])
    print_table(rows)
    return list(_summarize(rows))


def print_table(rows: Sequence[SearchTally]) -> None:
    """Print the counts."""
    print(f"{'planted':28} {'size':>5} {'method':18} {'trials':>6} {'found':>6} {'wrong':>6} "
          f"{'missed':>6} {'false':>6} {'groups':>6}")  # fmt: skip
    for one in rows:
        print(
            f"{one.kind:28} {one.size:5.0%} {one.method:18} {one.trials:6} {one.found:6} "
            f"{one.wrong:6} {one.missed:6} {one.false:6} {one.groups:6}"
        )


def _summarize(rows: Sequence[SearchTally]) -> Iterator[RatioFigure]:
    for method in dict.fromkeys(one.method for one in rows):
        total, planted = SearchTally("", 0.0, method), SearchTally("", 0.0, method)
        for one in rows:
            if one.method == method:
                total.add(one)
                if one.size:
                    planted.add(one)
        is_ours = method == next(iter(METHODS))
        yield RatioFigure(
            f"{method}: false alert groups",
            total.false / max(total.groups, 1),
            upper_bound=MOZILLA_FALSE if is_ours else None,
        )
        yield RatioFigure(
            f"{method}: missed steps",
            total.missed / planted.trials,
            upper_bound=MOZILLA_MISSED if is_ours else None,
        )
        yield RatioFigure(f"{method}: attributed wrongly", total.wrong / planted.trials)


def _run_trial(make_jobs: MakeJobs, planted: PlantedTrial) -> list[SearchTally]:
    """Make the jobs of one trial and count the findings of each method."""
    rng, step = draw_step(planted)
    jobs = list(make_jobs(rng, step))
    return [count_alerts(planted, method, step, search(jobs)) for method, search in METHODS.items()]


def draw_step(planted: PlantedTrial) -> tuple[np.random.Generator, PlantedStep]:
    """Draw the day of a trial's step; return it with the random numbers of its jobs."""
    name, size, trial = planted
    rng = np.random.default_rng([SEED, *name.encode(), round(1000 * size), trial])
    attribution, subject, only = KINDS.get(name, (Attribution.CENTRAL, "", False))
    day = int(rng.integers(MARGIN_DAYS, DAYS - MARGIN_DAYS))
    return rng, PlantedStep(attribution, subject, math.log1p(size), day, only)


def count_alerts(
    planted: PlantedTrial, method: str, step: PlantedStep, alerts: Sequence[Alert]
) -> SearchTally:
    """Count the alerts of one trial: a method without attribution is right about any changed series."""
    name, size, _ = planted
    tally = SearchTally(name, size, method, trials=1, groups=len(alerts))
    near = [one for one in alerts if is_near(one, step)]
    right = [one for one in near if is_right(one, step)]
    tally.false = len(alerts) - len(near)
    tally.found = int(bool(right))
    tally.wrong = int(bool(near) and not right)
    tally.missed = int(bool(size) and not near)
    return tally


def is_near(alert: Alert, step: PlantedStep) -> bool:
    """Return whether an alert is at the time of the step."""
    return bool(step.size) and abs(alert.day - step.day) <= DAY_TOLERANCE


def is_right(alert: Alert, step: PlantedStep) -> bool:
    """Return whether an alert points at the change, or at any changed series without a cause."""
    if alert.attribution:
        return (alert.attribution, alert.subject) == (step.attribution.value, step.subject)
    return any(step.slows(place) for place in alert.places)


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
    return step.size if day >= step.day and step.slows(of_release) else 0.0


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
    """A group of alerts: day, origin ('' if none is named), series, and size in ln where known."""

    day: int
    attribution: str = ""
    subject: str = ""
    places: frozenset[SeriesPlace] = frozenset()
    size: float = 0.0


def make_points(jobs: Sequence[SimulatedJob]) -> Iterator[JobPoint]:
    """Make the points of jobs as from the database."""
    for job in jobs:
        day = day_to_number(date.fromordinal(FIRST_DAY.toordinal() + job.day))
        work = f"{job.place.site}{job.place.variant}"
        level = make_series(
            SeriesKind.LEVEL, METRIC, TEST, CONTROL, job.place, work=work, host=job.host
        )
        yield JobPoint(level, day, job.times[CONTROL], job.context)
        for release, ratio in job.ratios.items():
            place = replace(job.place, release=release)
            series = make_series(SeriesKind.RATIO, METRIC, TEST, CONTROL, place, work=work)
            yield JobPoint(series, day, ratio, {})


def search_changes(jobs: Sequence[SimulatedJob]) -> list[Alert]:
    """Search with our method; only confirmed changes count."""
    families = build_families(*average_points(make_points(jobs)))
    found: list[Change] = []
    for family, series in families.items():
        found += find_changes(series, family.kind)
    return [
        Alert(
            one.day - FIRST_DAY.toordinal(),
            one.group.attribution.value,
            one.group.subject,
            size=one.size,
        )
        for one in found
        if one.state is ChangeState.CONFIRMED
    ]


def search_raw_times(jobs: Sequence[SimulatedJob]) -> list[Alert]:
    """Search the daily means of raw times with Otava's defaults, and group alerts by day."""
    series: dict[SeriesPlace, dict[int, list[float]]] = {}
    for job in jobs:
        for release, value in job.times.items():
            place = replace(job.place, release=release)
            series.setdefault(place, {}).setdefault(job.day, []).append(math.exp(value))
    return _group_alerts(series)


def _group_alerts(series: Mapping[SeriesPlace, Mapping[int, Sequence[float]]]) -> list[Alert]:
    """Run Otava on each series; alerts within three days of the previous one form a group."""
    compute = _load_otava()
    alerts = []
    for place, by_day in series.items():
        days = sorted(by_day)
        means = [fmean(by_day[day]) for day in days]
        alerts += [(days[one.index], place) for one in compute(means)[0]]
    groups: list[list[tuple[int, SeriesPlace]]] = []
    for day, place in sorted(alerts):
        if groups and day - groups[-1][-1][0] <= 3:
            groups[-1].append((day, place))
        else:
            groups.append([(day, place)])
    return [
        Alert(
            Counter(day for day, _ in group).most_common(1)[0][0],
            places=frozenset(place for _, place in group),
        )
        for group in groups
    ]


@cache
def _load_otava() -> Callable[[list[float]], Any]:
    sys.path.append(str(_otava_folder()))
    compute: Callable[[list[float]], Any] = import_module("otava.analysis").compute_change_points
    return compute


def _otava_folder() -> Any:
    return config.load_settings().data_dir / "benchmarks" / "otava"


def _install_otava() -> None:
    """Install Otava beside us: its distribution pins an older numpy, its detector does not need it."""
    folder = _otava_folder()
    if not (folder / "otava").is_dir():
        pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder))
        subprocess.run((*pip, OTAVA_PACKAGE), check=True)


#: Name -> search of a trial's jobs; the first one is ours.
METHODS: Mapping[str, Callable[[Sequence[SimulatedJob]], list[Alert]]] = {
    "treehammer": search_changes,
    "Otava, raw times": search_raw_times,
}
