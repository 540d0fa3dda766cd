"""A synthetic world with known answers: 40 sites, 24 variants, 4 releases, 48 days.

ROOT 6.40.00 needs 5 % more time in four variants, everywhere, since a known day. One site has a
host with low CPU efficiency, and reads of another fail. Sparse reads through https are slower than
through root. The newest campaign has planned and used costs, and jobs that run. The change over time
is written as planted: the accuracy of its search is the subject of ``python -m benchmarks changes``.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date, timedelta
from random import Random
from typing import Any, ClassVar

from benchmarks.harness import filled_databases, synthetic_jobs, synthetic_measurements
from benchmarks.harness.figures import SEED
from benchmarks.harness.program_runs import TREEHAMMER
from benchmarks.harness.synthetic_measurements import RELEASES, SITE_NAMES, SyntheticCampaigns
from treehammer.collectors.record.day_numbers import day_to_number
from treehammer.collectors.record.measurement_record import Measurement, make_measurement_id
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.sql.core.campaign_plan import CampaignPlan, PlannedCost
from treehammer.sql.core.evidence import ChangedSeries, ChangeEvidence
from treehammer.sql.core.measurement_columns import PACKED_COLUMNS
from treehammer.sql.core.schema import ROLLUP_METRICS
from treehammer.sql.core.watch_rows import ChangePointRow
from treehammer.sql.write.store import Store
from treehammer.watch.states.site_status import update_states
from treehammer.watch.states.status_rules import load_shipped_rules
from treehammer.watch.store import alarms

#: Days with measurements, up to yesterday, and those with the regression.
PLANTED_DAYS, SLOW_DAYS = 48, 24
#: Sites × variants of a day × executions.
MEASUREMENTS_PER_DAY = 480
#: Measurements that the running jobs of the newest campaign have not returned yet.
OUTSTANDING = 4 * synthetic_jobs.RUNNING_JOBS
#: Each job runs all releases.
JOBS_PER_DAY = MEASUREMENTS_PER_DAY // len(RELEASES)
#: Compared releases; the second one is slower in some variants.
BASE, SLOWER = RELEASES[-2:]
#: Compared pairs, the most telling one last, so that it is the newest.
COMPARED = (
    (RELEASES[0], SLOWER),
    (RELEASES[1], SLOWER),
    (RELEASES[0], RELEASES[1]),
    (RELEASES[0], BASE),
    (RELEASES[1], BASE),
    (BASE, SLOWER),
)
SLOWER_VARIANTS = (0, 7, 14, 21)
EFFECT = 0.05
#: Enough for a verdict.
LOOP_CPU_S = 36.0
#: Site with a bad host, that host, and its relative CPU efficiency.
INEFFICIENT_SITE, BAD_HOST, BAD_HOST_EFFICIENCY = SITE_NAMES[-1], 3, 0.8
FAILING_SITE, FAILING_DAYS = SITE_NAMES[6], 3
#: CPU seconds of an execution's payload, and the bytes of one of its passes.
PAYLOAD_CPU_S, PASS_BYTES = 50.0, 40_000_000
#: Estimate of the newest campaign's plan.
ESTIMATE = {"wall_s": 7.0 * 3600, "cpu_s": 6.1 * 3600, "read_bytes": 55_000_000_000}
#: Sparse reads of the newest days went through both doors, of which the second is slower.
DOOR_DAYS, DOORS, DOOR_EFFECT = 24, ("root", "https"), 0.1
DOOR_CAMPAIGN, DOOR_RELEASE = "doors", RELEASES[0]
#: Variants that read at most a quarter of the branches.
SPARSE_VARIANTS = range(6)
#: Metrics that depend on the door -> power of the relative time.
_DOOR_TIMES = {"wall_per_event_s": 1, "cpu_per_event_s": 1, "event_rate_hz": -1}


class PlantedCampaigns(SyntheticCampaigns):
    """Campaigns whose jobs run all releases, with planted effects."""

    hosts_per_site: ClassVar[int] = 4
    spread: ClassVar[float] = 0.005

    @property
    def _measured_metrics(self) -> Sequence[tuple[str, str, float]]:
        return [(name, METRICS_BY_NAME[name].type, 1.0) for name in ROLLUP_METRICS]

    def _number_values(self, values: Random, scale: float) -> dict[str, Any]:
        row = super()._number_values(values, scale)
        # Phases of all passes use less CPU than the payload.
        row |= {name: [number / 4 for number in row[name]] for name in PACKED_COLUMNS}
        walls = [LOOP_CPU_S] * len(row["pass_loop_wall_s"])
        times = {"loop_cpu_s": LOOP_CPU_S, "loop_wall_s": LOOP_CPU_S, "pass_loop_wall_s": walls}
        cost = {"payload_user_s": PAYLOAD_CPU_S, "bytes_read": PASS_BYTES, "bytes_read_extra": 0}
        return {**row, **times, **cost, "payload_sys_s": 0.0, "payload_wall_s": 10 * LOOP_CPU_S}

    def __iter__(self) -> Iterator[Measurement]:
        """Yield the measurements of the last days."""
        for day in range(self.days - PLANTED_DAYS, self.days):
            yield from self.iterate_day(day)

    def repeat_through_other_door(self, day: int) -> Iterator[Measurement]:
        """Yield the sparse reads of a day with one release, as if read through the other door."""
        for measurement in self._iterate_sparse_reads(day):
            values = measurement.values
            door = DOORS[1 - DOORS.index(str(values["door"]))]
            noise = Random(f"{SEED} {values['job_id']}").gauss(0, 0.01)
            sign = 1 if door == DOORS[1] else -1
            factor = math.exp(sign * (math.log1p(DOOR_EFFECT) + noise))
            times = {
                name: float(number) * factor**power
                for name, power in _DOOR_TIMES.items()
                if isinstance(number := values.get(name), float)
            }
            job = f"{values['job_id']}-{door}"
            round_, position = (int(str(values[name])) for name in ("round", "position"))
            identity = make_measurement_id(job, 1, round_, position)
            series = f"{str(values['series'])[:-1]}d"
            names = {"door": door, "door_protocol": door, "series": series, "job_id": job}
            names |= {"campaign_id": DOOR_CAMPAIGN, "campaign_name": DOOR_CAMPAIGN}
            yield Measurement({**values, **times, **names, "measurement_id": identity})

    def _iterate_sparse_reads(self, day: int) -> Iterator[Measurement]:
        for job in range(self.jobs_on_day(day)):
            if synthetic_measurements.variant_of_job(day, job) in SPARSE_VARIANTS:
                for measurement in self._job_measurements(day, job):
                    if measurement.values["root_version"] == DOOR_RELEASE:
                        yield measurement

    def releases_of_job(self, variant: int) -> Sequence[int]:
        """Return all releases."""
        return range(len(RELEASES))

    def find_failure(self, day: int, site: int) -> str:
        """Return the failure of the failing site on the last days."""
        fails = SITE_NAMES[site] == FAILING_SITE and day >= self.days - FAILING_DAYS
        return "open" if fails else ""

    def scale_times(self, day: int, site: int, variant: int, release: int) -> float:
        """Return the planted size of numbers."""
        slow = RELEASES[release] == SLOWER and variant in SLOWER_VARIANTS
        planted = slow and day >= self.days - SLOW_DAYS
        return (1.0 + 0.05 * variant) * (1.0 + EFFECT * planted)

    def scale_efficiency(self, site: int, host: int) -> float:
        """Return the planted efficiency of a host."""
        is_bad = SITE_NAMES[site] == INEFFICIENT_SITE and host == BAD_HOST
        return BAD_HOST_EFFICIENCY if is_bad else 1.0


def find_slow_day() -> date:
    """Return the first day of the regression."""
    return _find_day(SLOW_DAYS)


def find_failing_day() -> date:
    """Return the first day of the failures."""
    return _find_day(FAILING_DAYS)


def find_last_day() -> date:
    """Return the last day with measurements."""
    return _find_day(1)


def find_last_campaign() -> str:
    """Return the name of the last day's campaign."""
    return filled_databases.make_campaign_row(synthetic_measurements.DAYS - 1).name


def _find_day(days: int) -> date:
    """Return the first of the last days with measurements."""
    first = synthetic_measurements.FIRST_DAY
    return first + timedelta(days=synthetic_measurements.DAYS - days)


def list_last_days(count: int) -> Iterator[Measurement]:
    """List the measurements of the last days."""
    days = synthetic_measurements.DAYS
    seed = PlantedCampaigns(days, days * MEASUREMENTS_PER_DAY)
    for day in range(days - count, days):
        yield from seed.iterate_day(day)
        yield from seed.repeat_through_other_door(day)


def fill_database(url: str) -> None:
    """Fill a new database, compare the releases and evaluate the states of sites."""
    days = synthetic_measurements.DAYS
    seed = PlantedCampaigns(days, days * MEASUREMENTS_PER_DAY)
    with Store.open(url) as store:
        store.add(seed)
        for day in range(days - DOOR_DAYS, days):
            store.add(seed.repeat_through_other_door(day))
        doors = replace(
            filled_databases.make_campaign_row(days - DOOR_DAYS),
            id=DOOR_CAMPAIGN,
            name=DOOR_CAMPAIGN,
        )
        store.add_campaign(doors, [])
        for day in range(days - PLANTED_DAYS, days):
            campaign = replace(
                filled_databases.make_campaign_row(day),
                planned_jobs=JOBS_PER_DAY,
                planned_measurements=MEASUREMENTS_PER_DAY + OUTSTANDING * (day == days - 1),
                plan=CampaignPlan(estimate=PlannedCost(**ESTIMATE)),
            )
            store.add_campaign(campaign, [])
        synthetic_jobs.add_jobs(store, seed)
        end = synthetic_measurements.FIRST_DAY + timedelta(days=days)
        end_us = (end - date(1970, 1, 1)).days * 86_400_000_000
        update_states(store, end_us, load_shipped_rules())
    # Daily ratios of all releases; the planted change replaces the changes found in them.
    _run(url, "changes", "--update")
    with Store.open(url) as store:
        alarms.replace_change_points(store, [build_change(end_us)], 0)
    for pair in COMPARED:
        _run(url, "compare", *pair, "--where", f"day>={find_slow_day():%Y%m%d}")


def _run(url: str, *words: str) -> None:
    command = [str(TREEHAMMER), "--database", url, *words]
    # Comparisons leave with 1: something is slower.
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def build_change(found_us: int) -> ChangePointRow:
    """Build the planted change of the slower release."""
    effect = math.log1p(EFFECT)
    places = [
        ChangedSeries(
            site=site,
            storage_site=site,
            door=synthetic_measurements.subject_columns(0, variant, 0)["door"],
            release=SLOWER,
            variant=synthetic_measurements.variant_label(variant),
            effect=effect,
            error=0.002,
        )
        for site in SITE_NAMES
        for variant in SLOWER_VARIANTS
    ]
    return ChangePointRow(
        id="planted",
        found_us=found_us,
        updated_us=found_us,
        day=day_to_number(find_slow_day()),
        state="confirmed",
        kind="ratio",
        metric="cpu_per_event_s",
        test_name="ttree-read",
        control=BASE,
        attribution="release",
        subject=SLOWER,
        effect=effect,
        low=effect - 0.002,
        high=effect + 0.002,
        p_value=1e-9,
        days_before=PLANTED_DAYS - SLOW_DAYS,
        days_after=SLOW_DAYS,
        seconded=True,
        cause="",
        evidence=ChangeEvidence(tuple(places)),
    )
