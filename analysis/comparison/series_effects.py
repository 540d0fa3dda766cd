"""Effect of one series on one metric, and its estimate over jobs and hosts."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, median
from typing import TypeVar

from treehammer.analysis.comparison.comparability import (
    BuildDifference,
    DataComparison,
)
from treehammer.analysis.comparison.series_sides import SeriesSides
from treehammer.analysis.samples.job_pairs import (
    JobPair,
    JobValue,
)
from treehammer.analysis.samples.sample import select_known_hosts
from treehammer.analysis.statistics.estimates import (
    Estimate,
    combine_estimates,
    estimate_over_hosts,
    has_enough_jobs,
)
from treehammer.analysis.statistics.verdict import (
    HOST_SCOPE,
    MIN_HOSTS,
    MIN_JOBS,
    SITE_SCOPE,
    THROUGH_BASE,
    Verdict,
)
from treehammer.hctests.matrix.headline import HeadlineMetric

Job = TypeVar("Job", JobPair, JobValue)

#: Reasons for excluding a job, in addition to those of :mod:`job_pairs`.
UNKNOWN_HOST, ONLY_JOB_OF_HOST = "host unknown", "only job of its host"


@dataclass(frozen=True)
class SeriesEffect:
    """Effect of one series on one metric, before adjustment for multiplicity.

    ``pairs`` is empty if no job holds both sides; then ``a`` and ``b`` are compared unpaired.
    ``refused`` is the verdict if the statistical rule does not apply, else None; ``why`` names the
    reason and ``remedy`` a way out.
    """

    series: SeriesSides
    headline: HeadlineMetric
    pairs: tuple[JobPair, ...]
    a: tuple[JobValue, ...]
    b: tuple[JobValue, ...]
    left_out: Mapping[str, int]
    build: BuildDifference
    data_comparison: DataComparison
    estimate: Estimate | None
    refused: Verdict | None = None
    why: str = ""
    remedy: str = ""

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return self.headline.name

    @property
    def jobs(self) -> int:
        """Jobs on the weaker side."""
        return len(self.pairs) or min(len(self.a), len(self.b))

    @property
    def hosts(self) -> int:
        """Known hosts on the weaker side."""
        if self.pairs:
            return len(_collect_hosts(self.pairs))
        return min(len(_collect_hosts(self.a)), len(_collect_hosts(self.b)))

    @property
    def host_names(self) -> set[str]:
        """Hosts of either side."""
        return _collect_hosts((*self.pairs, *self.a, *self.b))

    @property
    def scope(self) -> str:
        """Scope of the verdict: the hosts that took part, or the site."""
        return SITE_SCOPE if self.hosts >= MIN_HOSTS else HOST_SCOPE

    @property
    def launches(self) -> int:
        """Launches that are the units of a host's verdict; 0 where jobs are."""
        return sum(len(pair.launches) for pair in self.pairs)

    @property
    def missing_jobs(self) -> int:
        """Jobs that a verdict still lacks, at least; 0 where it has enough."""
        sides = [self.pairs] if self.pairs else [self.a, self.b]
        counts = [_count_per_host(side) for side in sides]
        if all(has_enough_jobs(count.values()) for count in counts):
            return 0
        return max(MIN_JOBS - self.jobs, 1)

    @property
    def unpaired(self) -> bool:
        """Whether separate jobs are compared, for want of jobs that hold both sides."""
        return bool(self.a and self.b)

    @property
    def through_base(self) -> bool:
        """Whether both sides were launched with a third value rather than with each other."""
        return any(pair.through_base for pair in self.pairs)

    @property
    def test_name(self) -> str:
        """The statistical test, for people."""
        unit = "host means" if self.scope == SITE_SCOPE else "launches" if self.launches else "jobs"
        if self.through_base:
            return f"t over {unit}, {THROUGH_BASE}"
        return f"t over {unit}" if self.pairs else f"Welch t over {unit}, unpaired (weaker)"

    @property
    def side_means(self) -> tuple[float | None, float | None]:
        """Means over jobs of both sides as measured, in the metric's unit; None without jobs.

        Each job counts with the mean of its executions.  Their ratio need not be the effect.
        """
        if self.pairs:
            return fmean(job.a for job in self.pairs), fmean(job.b for job in self.pairs)
        a, b = (fmean(job.mean for job in side) if side else None for side in (self.a, self.b))
        return a, b

    @property
    def mean(self) -> float | None:
        """Mean effect in ln, also of a single job or without any spread; None without jobs.

        It is the mean over hosts, of which each counts once.
        """
        if self.estimate:
            return self.estimate.mean
        if self.pairs:
            return _mean_over_hosts(self.pairs, lambda pair: pair.d)
        if not self.a or not self.b:
            return None
        a, b = (
            _mean_over_hosts(side, lambda job: math.log(job.value)) for side in (self.a, self.b)
        )
        return b - a

    @property
    def cpu_s(self) -> float | None:
        """Median over jobs of the CPU on the side with less; None where it was not measured."""
        if self.pairs:
            measured = [pair.cpu_s for pair in self.pairs if pair.cpu_s is not None]
            return median(measured) if measured else None
        sides = [[job.cpu_s for job in side if job.cpu_s is not None] for side in (self.a, self.b)]
        return min(median(side) for side in sides) if all(sides) else None

    @property
    def launch_cpu_s(self) -> float | None:
        """Median over jobs of the CPU of a launch on the side with less; None where not measured."""
        measured = [
            pair.cpu_s / len(pair.launches)
            for pair in self.pairs
            if pair.cpu_s is not None and pair.launches
        ]
        return median(measured) if measured else None


def _collect_hosts(jobs: Iterable[JobPair | JobValue]) -> set[str]:
    return select_known_hosts(job.host for job in jobs)


def group_by_host(
    jobs: Iterable[Job], effects: Callable[[Job], Iterable[float]]
) -> dict[str, list[float]]:
    """Group the effects of jobs by their host."""
    groups: dict[str, list[float]] = defaultdict(list)
    for job in jobs:
        groups[job.host].extend(effects(job))
    return groups


def _count_per_host(jobs: Iterable[JobPair | JobValue]) -> Counter[str]:
    """Return the independent units of each known host: its launches or jobs."""
    counts: Counter[str] = Counter()
    for job in jobs:
        counts[job.host] += max(len(job.launches), 1) if isinstance(job, JobPair) else 1
    del counts[""]
    return counts


def _mean_over_hosts(jobs: Iterable[Job], effect: Callable[[Job], float]) -> float:
    return fmean(fmean(values) for values in group_by_host(jobs, lambda j: [effect(j)]).values())


def select_jobs(jobs: Sequence[Job]) -> tuple[list[Job], Counter[str]]:
    """Select the jobs with known hosts; of two hosts, only those with at least two jobs.

    Returns:
        the selected jobs, and the number of excluded ones by reason.  All jobs are selected if no
        host is known, or if the rest would be too few to judge.
    """
    counts = _count_per_host(jobs)
    selected = [job for job in jobs if job.host] if counts else list(jobs)
    left_out = Counter({UNKNOWN_HOST: len(jobs) - len(selected)})
    if len(counts) == 2 and min(counts.values()) == 1 and max(counts.values()) >= MIN_JOBS:
        repeated = [job for job in selected if counts[job.host] > 1]
        left_out[ONLY_JOB_OF_HOST] = len(selected) - len(repeated)
        selected = repeated
    return selected, +left_out


def estimate_effect(effects: Sequence[SeriesEffect]) -> Estimate | None:
    """Estimate one effect from the jobs of several series together (the doors of one site).

    Unpaired sides are estimated apart, and subtracted by Welch's method.
    """
    pairs = list(chain.from_iterable(effect.pairs for effect in effects))
    if pairs:
        return estimate_over_hosts(group_by_host(pairs, lambda pair: pair.launches or [pair.d]))
    a = _estimate_side(chain.from_iterable(effect.a for effect in effects))
    b = _estimate_side(chain.from_iterable(effect.b for effect in effects))
    return combine_estimates((a, b), (-1.0, 1.0)) if a and b else None


def _estimate_side(jobs: Iterable[JobValue]) -> Estimate | None:
    """Estimate the mean ln(value) of one side's jobs."""
    return estimate_over_hosts(group_by_host(list(jobs), lambda job: [math.log(job.value)]))
