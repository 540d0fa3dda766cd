"""Jobs, attempts and comparisons beside :mod:`benchmarks.harness.synthetic_measurements`.

Large databases are filled with measurements only; pages show these as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from random import Random
from typing import Any

from benchmarks.harness import synthetic_measurements
from benchmarks.harness.figures import SEED
from treehammer.analysis.comparison.comparison import Comparison, ComparisonQuery, compare_samples
from treehammer.analysis.statistics.sample import HEADLINE_METRICS, Sample, parse_variant
from treehammer.collectors.job_spec import TIMED, JobState
from treehammer.collectors.record.day_numbers import DAY_US
from treehammer.collectors.record.metric_catalogue import INSTRUMENT_VERSION
from treehammer.hctests.definition.model import Scalar, Variant
from treehammer.sql.core.rows import AttemptRow, JobRow
from treehammer.sql.write.store import Store

#: Newest campaigns with jobs, and running jobs of the newest one.
CAMPAIGN_COUNT, RUNNING_JOBS = 30, 40
#: Stored comparisons of two releases, and jobs per series in them.
COMPARISON_COUNT, JOBS_PER_COMPARISON = 60, 6
#: One in so many jobs has a held first attempt and a second one.
HELD_JOB_PERIOD = 50
RELEASES = synthetic_measurements.RELEASES[-2:]

_FIRST_US = round(
    datetime.combine(synthetic_measurements.FIRST_DAY, datetime.min.time(), UTC).timestamp() * 1e6
)
_US_PER_S = 1_000_000


def add_missing_records(store: Store, seed: synthetic_measurements.SyntheticCampaigns) -> None:
    """Add missing jobs, attempts and comparisons.

    Args:
        store: a filled database.
        seed: the campaigns that it was filled with.
    """
    if store.jobs(synthetic_measurements.campaign_id(synthetic_measurements.DAYS - 1)):
        return
    add_jobs(store, seed)
    for number, comparison in enumerate(_build_comparisons()):
        pairs = comparison.pairs if number == 0 else ()  # no page lists those of older ones
        store.replace_comparison(comparison_id(number), pairs, comparison.verdicts)


def add_jobs(store: Store, seed: synthetic_measurements.SyntheticCampaigns) -> None:
    """Add jobs and attempts of the newest campaigns."""
    for day in range(synthetic_measurements.DAYS - CAMPAIGN_COUNT, synthetic_measurements.DAYS):
        jobs = [
            *_job_rows(
                seed.jobs_on_day(day % seed.days),
                day,
                newest=day == synthetic_measurements.DAYS - 1,
            )
        ]
        store.set_jobs(jobs)
        store.set_attempts(attempt for job in jobs for attempt in _attempt_rows(job, day))


def comparison_id(comparison: int) -> str:
    """Return the identity of a comparison, counted from the newest."""
    return f"comparison-{comparison:02}"


def _job_rows(count: int, day: int, *, newest: bool) -> Iterator[JobRow]:
    for number in range(count):
        site = number % len(synthetic_measurements.SITE_NAMES)
        variant = synthetic_measurements.variant_of_job(day, number)
        running = newest and number >= count - RUNNING_JOBS
        yield JobRow(
            id=synthetic_measurements.job_id(day, number),
            campaign_id=synthetic_measurements.campaign_id(day),
            site=synthetic_measurements.SITE_NAMES[site],
            door=synthetic_measurements.subject_columns(site, variant, 0)["door"],
            kind=TIMED,
            repeat=synthetic_measurements.repeat_of_job(number),
            label=synthetic_measurements.variant_label(variant),
            batch_system="htcondor",
            batch_id=f"{1000 + day}.{number}",
            planned_measurements=synthetic_measurements.MEASUREMENTS_PER_JOB,
            state=(JobState.RUNNING if running else JobState.DONE).value,
        )


def _attempt_rows(job: JobRow, day: int) -> Iterator[AttemptRow]:
    values = Random(f"{SEED} attempts {job.id}")
    start = _FIRST_US + day * DAY_US + values.randrange(DAY_US // 2)
    number = 1
    if values.randrange(HELD_JOB_PERIOD) == 0:
        yield AttemptRow(
            job.id,
            number,
            JobState.HELD.value,
            start,
            start + 600 * _US_PER_S,
            None,
            "held",
            "the job was held: disk usage is above the request",
        )
        start, number = start + 900 * _US_PER_S, 2
    if job.state == JobState.RUNNING.value:
        yield AttemptRow(job.id, number, job.state, start, 0, None, "", "")
    else:
        yield AttemptRow(job.id, number, job.state, start, start + 240 * _US_PER_S, 0, "", "")


def _build_comparisons() -> Iterator[Comparison]:
    """Yield one comparison of all variants at all sites under many identities, a day apart."""
    last = _FIRST_US + synthetic_measurements.DAYS * DAY_US
    query = ComparisonQuery("root", *RELEASES)
    comparison = compare_samples(_build_samples(), query, now_us=0)
    for number in range(COMPARISON_COUNT):
        name = comparison_id(number)
        judged_us = last - number * DAY_US
        yield replace(
            comparison,
            pairs=tuple(replace(row, comparison_id=name) for row in comparison.pairs),
            verdicts=tuple(
                replace(
                    row,
                    comparison_id=name,
                    created_us=judged_us,
                    evidence=replace(row.evidence, cpu_s=60.0 + number),
                )
                for row in comparison.verdicts
            ),
        )


def _build_samples() -> Iterator[Sample]:
    values = Random(f"{SEED} samples")
    for site, variant, job, (place, release) in product(
        range(len(synthetic_measurements.SITE_NAMES)),
        range(synthetic_measurements.VARIANT_COUNT),
        range(JOBS_PER_COMPARISON),
        enumerate(RELEASES),
    ):
        factor = 1.05 if place and variant % 7 == 0 else 1.0
        subject = synthetic_measurements.subject_columns(
            site, variant, synthetic_measurements.RELEASES.index(release)
        )
        same_names = ("test_name", "dataset", "dataset_hash", "content_hash", "site", "door")
        yield make_sample(
            f"{site}-{variant}-{job}",
            str(place),
            dict(parse_variant(subject["variant"]).values),
            **{name: subject[name] for name in (*same_names, "door_protocol")},
            campaign_id=synthetic_measurements.campaign_id(0),
            test_hash="a" * 64,
            host=f"node{job:03}.{subject['site']}",
            loop_cpu_s=60.0,
            metrics={
                metric: 0.01 * factor * values.lognormvariate(0, 0.01)
                for metric in HEADLINE_METRICS
            },
        )


def make_sample(job: str, execution: str, axes: Mapping[str, Scalar], **values: Any) -> Sample:
    """Make an execution of a simulated test that reads through a local door.

    Args:
        job: identity of its job.
        execution: identifies it within the job.
        axes: values of the variant.
        values: site, host, CPU of the loop, metrics, and fields in place of the ones here.
    """
    defaults: dict[str, Any] = {
        "campaign_id": "simulated",
        "test_name": "simulated",
        "test_hash": "simulated",
        "door": "file",
        "door_protocol": "file",
        "instrument_version": INSTRUMENT_VERSION,
    }
    return Sample(
        measurement_id=f"{job}-{execution}",
        kind=TIMED,
        job_id=job,
        variant=Variant(tuple(axes.items())),
        **{**defaults, **values},
    )
