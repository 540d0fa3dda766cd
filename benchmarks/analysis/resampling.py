"""Campaigns resampled from recorded A/A jobs; sites and hosts are only names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from benchmarks.analysis.aa_jobs import TWIN_COMPARISON, TwinJob
from benchmarks.harness.simulated_samples import make_sample
from treehammer.analysis.comparison.comparison import Comparison, compare_samples
from treehammer.analysis.samples.sample import HEADLINE_METRICS, Sample
from treehammer.analysis.statistics.verdict import MIN_HOSTS

#: Consecutive jobs from which a series is drawn.
NEIGHBOR_WINDOW = 24


class SamplingScheme(Enum):
    """Ways of drawing a series' jobs from the recorded ones.

    A series holds no job twice; several series may share a job.
    """

    SCATTERED = "scattered"
    """Random: drifts are spread over all series."""
    NEIGHBORS = "neighbours"
    """Random among :data:`NEIGHBOR_WINDOW` consecutive jobs: a drift stays within a series.

    (Fixed blocks would give at most 200 series, and an unlucky block would be in every sixth
    campaign.)
    """


@dataclass(frozen=True)
class CampaignShape:
    """Size of a campaign: ``jobs`` for each of ``variants`` at each of ``sites``."""

    sites: int
    variants: int
    jobs: int


def resample_campaign(
    recorded: Sequence[TwinJob],
    shape: CampaignShape,
    dealing: SamplingScheme,
    seed: Sequence[int],
) -> Comparison:
    """Draw a campaign and compare."""
    dice = np.random.default_rng(list(seed))
    samples: list[Sample] = []
    for site in range(shape.sites):
        for variant in range(shape.variants):
            jobs = _draw_jobs(recorded, shape.jobs, dealing, dice)
            samples += _build_executions(jobs, site, variant)
    return compare_samples(samples, TWIN_COMPARISON, now_us=0)


def _draw_jobs(
    recorded: Sequence[TwinJob], count: int, dealing: SamplingScheme, dice: np.random.Generator
) -> list[TwinJob]:
    if dealing is SamplingScheme.SCATTERED:
        places = dice.choice(len(recorded), count, replace=False)
    else:
        # A ring, so that every job is drawn equally often.
        start = dice.integers(len(recorded))
        places = (start + dice.choice(max(NEIGHBOR_WINDOW, count), count, replace=False)) % len(
            recorded
        )
    return [recorded[place] for place in places]


def _build_executions(jobs: Sequence[TwinJob], site: int, variant: int) -> Iterator[Sample]:
    for number, job in enumerate(jobs):
        both = [job.twin_values(metric) for metric in HEADLINE_METRICS]
        for side, twin in enumerate("ab"):
            yield make_sample(
                f"{site}-{variant}-{number}",
                twin,
                {TWIN_COMPARISON.axis: twin, "variant": variant},
                dataset=job.setup_name,
                site=f"site{site}",
                # Hosts in turn, as a batch system would spread jobs; the real node was always the same.
                host=f"site{site}-host{number % MIN_HOSTS}",
                loop_cpu_s=job.loop_s,
                metrics={
                    metric: values[side]
                    for metric, values in zip(HEADLINE_METRICS, both, strict=True)
                },
            )
