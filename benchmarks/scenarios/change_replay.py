"""Ninety days replayed from recorded jobs with a planted step: noise as it was measured.

Each simulated day of a site takes consecutive recordings: eight sites those of quiet launches in
paired mode, two those of A/A jobs on a busy machine. Only the step, and which site and day a
recording stands for, are made up. The final search runs on many trials; one trial of each kind also
goes through a database day by day with a search every evening, as patrol does it.
"""

from __future__ import annotations

import argparse
import csv
import math
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness.figures import DATA_FOLDER, RatioFigure, print_table, write_results
from benchmarks.scenarios import change_simulation as simulation
from benchmarks.scenarios.change_simulation import (
    Alert,
    PlantedStep,
    PlantedTrial,
    SearchTally,
    SimulatedJob,
)
from treehammer.collectors.job_spec import TIMED
from treehammer.collectors.record.day_numbers import day_to_number, number_to_day
from treehammer.collectors.record.measurement_record import Measurement, make_measurement_id
from treehammer.collectors.record.metric_catalogue import CATALOGUE
from treehammer.sql.core.watch_rows import ChangePointRow
from treehammer.sql.write.store import Store
from treehammer.watch.changes.change_points import update_changes
from treehammer.watch.changes.daily_series import DAY_TOLERANCE, ChangeState, SeriesPlace
from treehammer.watch.store.alarms import load_change_points

#: Recordings of sites; all others have those of ''.
RECORDED_FILES: Mapping[str, Path] = {
    "": DATA_FOLDER / "paired-launches.csv",
    "SITE_05": DATA_FOLDER / "aa-jobs.csv",
    "SITE_08": DATA_FOLDER / "aa-jobs.csv",
}
#: Launches recorded from this day on are for choosing constants of the search, not for its figures.
REPORTED_BEFORE = "2026-11-26"
#: Days before the first search of a replay.
FIRST_SEARCH = 10
_PLACEHOLDERS: Mapping[str, Any] = {"int": 1, "float": 1.0, "text": "x", "bool": True}


@dataclass(frozen=True)
class RecordedPair:
    """One recorded job or launch of equal sides, on a node of its own per recorded campaign.

    ``level`` is ln of seconds per event; ``noise`` is ln(B/A), less a slowdown that was planted.
    """

    node: str
    level: float
    noise: float


@cache
def load_recorded_pairs(path: Path) -> Sequence[RecordedPair]:
    """Load pairs in the order in which they were recorded, without launches of a busy machine."""
    with path.open(newline="", encoding="utf-8") as stream:
        return [
            RecordedPair(
                row.get("campaign", row["host"]),
                math.log(float(row["wall_a"])),
                float(row["wall_d"]) - float(row.get("planted", 0)) * (row.get("kind") == TIMED),
            )
            for row in csv.DictReader(stream)
            if row.get("label") != "busy" and row["started"] < REPORTED_BEFORE
        ]


def replay_jobs(rng: np.random.Generator, step: PlantedStep) -> Iterator[SimulatedJob]:
    """Replay recorded jobs as those of all days and sites, with a step."""
    for site in simulation.SITES:
        recordings = load_recorded_pairs(RECORDED_FILES.get(site, RECORDED_FILES[""]))
        for day in range(simulation.DAYS):
            first = int(rng.integers(len(recordings)))
            if rng.random() < simulation.MISSING_SHARE:
                continue
            for number, variant in enumerate(simulation.VARIANTS * simulation.JOBS_PER_DAY):
                place = SeriesPlace(site, simulation.REMOTE.get(site, site), "near", "", variant)
                # A release takes the noise of the recording after that of the one before.
                start = first + number * len(simulation.RELEASES)
                base, *_ = pairs = [
                    recordings[(start + turn) % len(recordings)]
                    for turn in range(len(simulation.RELEASES))
                ]
                slower = {
                    release: simulation.slowdown(step, place, release, day)
                    for release in (simulation.CONTROL, *simulation.RELEASES)
                }
                ratios = {
                    release: slower[release] - slower[simulation.CONTROL] + pair.noise
                    for release, pair in zip(simulation.RELEASES, pairs, strict=True)
                }
                control = (
                    base.level + number % len(simulation.VARIANTS) + slower[simulation.CONTROL]
                )
                times = {simulation.CONTROL: control} | {r: control + d for r, d in ratios.items()}
                yield SimulatedJob(place, f"{site}-{base.node}", day, times, ratios)


def measure(_: argparse.Namespace) -> list[RatioFigure]:
    """Search the final state of many trials, and the evenings of one trial of each kind."""
    figures = simulation.measure_trials(replay_jobs, "change-replay")
    trials = [
        (name, size, simulation.TRIALS) for name in simulation.KINDS for size in simulation.SIZES
    ] + [("nothing", 0.0, simulation.TRIALS)]
    with ProcessPoolExecutor(2) as pool:
        evenings = list(pool.map(replay_evenings, trials))
    rows = [{**asdict(evening.tally), "delay": evening.delay} for evening in evenings]
    write_results("change-replay-evenings", rows)
    print("searched every evening, through the database:")
    print_table(rows)
    delays = [evening.delay for evening in evenings if evening.delay is not None]
    tallies = [evening.tally for evening in evenings]
    return [
        *figures,
        *simulation.summarize_tallies(tallies, "every evening: "),
        RatioFigure("every evening: days until confirmed, median", median(delays)),
        RatioFigure("every evening: days until confirmed, at most", max(delays)),
    ]


@dataclass(frozen=True)
class ReplayedEvenings:
    """Result of one trial: counts, and days from the step to its confirmation (None if it was missed).

    Every change that was confirmed on any evening counts as announced, also if it disappeared later.
    """

    tally: SearchTally
    delay: int | None


def replay_evenings(planted: PlantedTrial) -> ReplayedEvenings:
    """Store one trial day by day in a database, and search it every evening."""
    rng, step = simulation.draw_step(planted)
    by_day: dict[int, list[SimulatedJob]] = defaultdict(list)
    for job in replay_jobs(rng, step):
        by_day[job.day].append(job)
    announced = _search_every_evening(by_day)
    alerts = _group_announced(row for _, row in announced.values())
    right = [
        evening
        for evening, row in announced.values()
        if simulation.is_near(alert := _make_alert(row), step) and simulation.is_right(alert, step)
    ]
    tally = simulation.count_alerts(planted, step, alerts)
    return ReplayedEvenings(tally, min(right) - step.day if right else None)


def _search_every_evening(
    by_day: Mapping[int, Sequence[SimulatedJob]],
) -> dict[str, tuple[int, ChangePointRow]]:
    """Return the evening of each change's first announcement, with its last state."""
    announced: dict[str, tuple[int, ChangePointRow]] = {}
    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{folder}/r.db") as store:
        for day in range(simulation.DAYS):
            store.add(_make_measurements(day, by_day[day]))
            if day < FIRST_SEARCH:
                continue
            update_changes(store, datetime.combine(_find_date(day), time(23, 59), UTC))
            for row in load_change_points(store):
                if row.state == ChangeState.CONFIRMED:
                    first, _ = announced.get(row.id, (day, row))
                    announced[row.id] = first, row
    return announced


def _group_announced(rows: Iterable[ChangePointRow]) -> list[Alert]:
    """Join what was announced of one event: CPU and wall time, ratios and levels."""
    groups: list[Alert] = []
    for alert in sorted(map(_make_alert, rows), key=attrgetter("day")):
        is_new = not any(
            (group.attribution, group.subject) == (alert.attribution, alert.subject)
            and alert.day - group.day <= DAY_TOLERANCE
            for group in groups
        )
        if is_new:
            groups.append(alert)
    return groups


def _make_alert(row: ChangePointRow) -> Alert:
    day = number_to_day(row.day) or simulation.FIRST_DAY
    return Alert((day - simulation.FIRST_DAY).days, row.attribution, row.subject)


def _find_date(day: int) -> date:
    return simulation.FIRST_DAY + timedelta(days=day)


def _make_measurements(day: int, jobs: Sequence[SimulatedJob]) -> Iterator[Measurement]:
    """Make the records of the jobs of a day."""
    required = {metric.name: _PLACEHOLDERS[metric.type] for metric in CATALOGUE if metric.required}
    started = int(datetime.combine(_find_date(day), time(12), UTC).timestamp() * 1e6)
    for number, job in enumerate(jobs):
        for position, (release, value) in enumerate(job.times.items(), 1):
            identity = f"{day:02}-{number:03}"
            axes = f'{{"branches":"{job.place.variant}","root":"{release}"}}'
            yield Measurement(
                {
                    **required,
                    "measurement_id": make_measurement_id(identity, 1, 1, position),
                    "campaign_id": f"day {day}",
                    "job_id": identity,
                    "round": 1,
                    "position": position,
                    "dirty": False,
                    "kind": TIMED,
                    "test_name": simulation.TEST,
                    "variant": axes,
                    "variant_label": job.place.variant,
                    "axis_root": release,
                    "site": job.place.site,
                    "storage_site": job.place.storage_site,
                    "door": job.place.door,
                    "host": job.host,
                    "day": day_to_number(_find_date(day)),
                    "started_us": started,
                    "ended_us": started + 60_000_000,
                    "plausible": True,
                    "wall_per_event_s": math.exp(value),
                    "loop_cpu_s": 60.0,
                }
            )
