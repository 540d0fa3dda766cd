"""What stands beside the measurements of :mod:`benchmarks.world`: jobs, attempts and comparisons.

Large databases are filled with measurements alone; pages also show what this adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

from benchmarks import world
from benchmarks.report import SEED
from treehammer.analysis.compare import Comparison, Question, compare
from treehammer.analysis.samples import BUILD_FACTS, HEADLINE_METRICS, Sample, read_variant
from treehammer.collectors.job import TIMED
from treehammer.sql.days import DAY_US
from treehammer.sql.rows import AttemptRow, JobRow
from treehammer.sql.store import Store
from treehammer.submit.batch.base import JobState

#: The newest campaigns that get jobs, and how many jobs of the newest one still run.
CAMPAIGNS, RUNNING = 30, 40
#: Stored comparisons of two releases, and jobs of each series in them.
COMPARISONS, JOBS = 60, 6
#: A job of which the first attempt is held, so that it has another: one in so many.
HELD_EACH = 50
RELEASES = world.RELEASES[-2:]

_FIRST_US = round(datetime.combine(world.FIRST_DAY, datetime.min.time(), UTC).timestamp() * 1e6)
_S = 1_000_000


def complete(store: Store, seed: world.World) -> None:
    """Add what is missing.

    Args:
        store: a database that was filled.
        seed: whose measurements it was filled with.
    """
    if store.jobs(world.campaign_id(world.DAYS - 1)):
        return
    for day in range(world.DAYS - CAMPAIGNS, world.DAYS):
        jobs = [*_jobs(seed.jobs(day % seed.days), day, newest=day == world.DAYS - 1)]
        store.set_jobs(jobs)
        store.set_attempts(attempt for job in jobs for attempt in _attempts(job, day))
    for number, found in enumerate(_comparisons()):
        pairs = found.pairs if number == 0 else ()  # no page lists them
        store.replace_comparison(identity(number), pairs, found.verdicts)


def identity(comparison: int) -> str:
    """Of a comparison, from the newest on."""
    return f"comparison-{comparison:02}"


def _jobs(count: int, day: int, *, newest: bool) -> Iterator[JobRow]:
    for number in range(count):
        site = number % len(world.SITES)
        variant = world.variant_of(day, number)
        running = newest and number >= count - RUNNING
        yield JobRow(
            id=world.job_id(day, number),
            campaign_id=world.campaign_id(day),
            site=world.SITES[site],
            door=world.subject(site, variant, 0)["door"],
            kind=TIMED,
            repeat=world.repeat_of(number),
            label=world.variant_label(variant),
            batch_system="htcondor",
            batch_id=f"{1000 + day}.{number}",
            planned_measurements=world.PER_JOB,
            state=(JobState.RUNNING if running else JobState.DONE).value,
        )


def _attempts(job: JobRow, day: int) -> Iterator[AttemptRow]:
    values = Random(f"{SEED} attempts {job.id}")
    start = _FIRST_US + day * DAY_US + values.randrange(DAY_US // 2)
    number = 1
    if values.randrange(HELD_EACH) == 0:
        yield AttemptRow(
            job.id,
            number,
            JobState.HELD.value,
            start,
            start + 600 * _S,
            None,
            "held",
            "the job was held: disk usage is above what was asked for",
        )
        start, number = start + 900 * _S, 2
    if job.state == JobState.RUNNING.value:
        yield AttemptRow(job.id, number, job.state, start, 0, None, "", "")
    else:
        yield AttemptRow(job.id, number, job.state, start, start + 240 * _S, 0, "", "")


def _comparisons() -> Iterator[Comparison]:
    """All variants at all sites, compared once and kept under many identities, a day apart."""
    last = _FIRST_US + world.DAYS * DAY_US
    one = compare(_samples(), Question("root", *RELEASES), now_us=0)
    for number in range(COMPARISONS):
        name = identity(number)
        judged_us = last - round(timedelta(days=number).total_seconds()) * _S
        yield replace(
            one,
            pairs=tuple(replace(row, comparison_id=name) for row in one.pairs),
            verdicts=tuple(
                replace(row, comparison_id=name, created_us=judged_us) for row in one.verdicts
            ),
        )


def _samples() -> Iterator[Sample]:
    values = Random(f"{SEED} samples")
    for site in range(len(world.SITES)):
        for variant in range(world.VARIANTS):
            slower = 0.05 if variant % 7 == 0 else 0.0
            for job in range(JOBS):
                for place, release in enumerate(RELEASES):
                    yield _sample(site, variant, job, place, release, values, 1 + place * slower)


def _sample(
    site: int,
    variant: int,
    job: int,
    place: int,
    release: str,
    values: Random,
    factor: float,
) -> Sample:
    asked = world.subject(site, variant, world.RELEASES.index(release))
    return Sample(
        measurement_id=f"{site}-{variant}-{job}-{place}",
        kind=TIMED,
        job_id=f"{site}-{variant}-{job}",
        campaign_id=world.campaign_id(0),
        test_name=asked["test_name"],
        test_hash="a" * 64,
        dataset=asked["dataset"],
        dataset_hash=asked["dataset_hash"],
        site=asked["site"],
        door=asked["door"],
        door_protocol=asked["door_protocol"],
        host=f"node{job:03}",
        failure_class="",
        implausible_why="",
        value_checksum="",
        checksum_uncovered="",
        variant=read_variant(asked["variant"]),
        attempt=1,
        round=1,
        instrument_version=1,
        dirty=False,
        plausible=True,
        loop_wall_s=60.0,
        metrics={
            metric: 0.01 * factor * values.lognormvariate(0, 0.01) for metric in HEADLINE_METRICS
        },
        build=dict.fromkeys(("root_version", "root_commit", *BUILD_FACTS), ""),
        content_hash=asked["content_hash"],
    )
