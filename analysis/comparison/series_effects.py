"""Effect of one series on one metric: measurement, reasons to refuse a verdict, and estimate over jobs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean, median
from typing import NamedTuple, TypeVar

from treehammer.analysis.comparison.series_sides import (
    BuildDifference,
    ChecksumsBySlot,
    DataComparison,
    SeriesSides,
    compare_builds,
    compare_data,
)
from treehammer.analysis.statistics.estimates import (
    Estimate,
    combine_estimates,
    estimate_over_hosts,
    find_scatter,
    has_enough_jobs,
)
from treehammer.analysis.statistics.job_pairs import (
    JobPair,
    JobValue,
    collect_job_values,
    drop_dirty,
    pair_jobs,
)
from treehammer.analysis.statistics.sample import (
    SELECTION_AXIS,
    Sample,
    select_known_hosts,
)
from treehammer.analysis.statistics.verdict import (
    HOST_SCOPE,
    MIN_HOSTS,
    MIN_JOBS,
    SITE_SCOPE,
    THROUGH_BASE,
    Verdict,
)
from treehammer.collectors.job_spec import MIN_CPU_S, MIN_LAUNCH_CPU_S
from treehammer.hctests.definition.judged_metrics import DEFAULT_HEADLINE, HeadlineMetric
from treehammer.hctests.definition.model import COMMIT_AXIS
from treehammer.sql.core.evidence import ControlCheck
from treehammer.sql.core.rows import PairRow
from treehammer.text_formatting import pluralize

Job = TypeVar("Job", JobPair, JobValue)
AnyJob = TypeVar("AnyJob", JobPair, JobValue, PairRow)

#: Reasons for excluding a job, in addition to those of :mod:`job_pairs`.
UNKNOWN_HOST, ONLY_JOB_OF_HOST = "host unknown", "only job of its host"
OTHER_HOST = "host without the other side"
#: Axes whose values run on other hosts by themselves.
_HOST_AXES = ("site", "architecture", SELECTION_AXIS)


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
        sides = [self.pairs] if self.pairs else [self.a, self.b]
        return min(len(_collect_hosts(side)) for side in sides)

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

    def find_scatter(self, controls: Iterable[ControlCheck]) -> tuple[float, ...]:
        """Find out whether CPU time scatters more than that of equal launches, see :func:`.find_scatter`."""
        if self.headline != DEFAULT_HEADLINE[0] or self.hosts > 1 or self.through_base:
            return ()
        ratios = [*chain.from_iterable(pair.launches for pair in self.pairs)]
        of_metric = [check for check in controls if check.metric == self.metric]
        count = sum(check.launches for check in of_metric)
        squares = sum(check.sum_of_squares for check in of_metric)
        return find_scatter(ratios, count, squares / count if count else 0.0)

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
        unit = "launches" if self.launches else f"{self.series.unit}s"
        unit = "host means" if self.scope == SITE_SCOPE else unit
        if self.through_base:
            return f"t over {unit}, {THROUGH_BASE}"
        return f"t over {unit}" if self.pairs else f"Welch t over {unit}, unpaired (weaker)"

    @property
    def side_values(self) -> tuple[list[float], list[float]]:
        """Means of the executions of each job on both sides as measured, in the metric's unit."""
        if self.pairs:
            return [job.a for job in self.pairs], [job.b for job in self.pairs]
        return [job.mean for job in self.a], [job.mean for job in self.b]

    @property
    def side_means(self) -> tuple[float | None, float | None]:
        """Means over jobs of :attr:`side_values`; None without jobs.  Their ratio need not be the effect."""
        a, b = (fmean(values) if values else None for values in self.side_values)
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
        sides = [self.pairs] if self.pairs else [self.a, self.b]
        measured = [[job.cpu_s for job in side if job.cpu_s is not None] for side in sides]
        return min(map(median, measured)) if all(measured) else None

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
    jobs: Iterable[AnyJob], effects: Callable[[AnyJob], Iterable[float]]
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
        return estimate_over_hosts(
            group_by_host(pairs, lambda pair: pair.launches or [pair.d]),
            _count_hours(pairs, effects[0].headline),
        )
    a = _estimate_side(chain.from_iterable(effect.a for effect in effects), effects[0].headline)
    b = _estimate_side(chain.from_iterable(effect.b for effect in effects), effects[0].headline)
    return combine_estimates((a, b), (-1.0, 1.0)) if a and b else None


def _estimate_side(jobs: Iterable[JobValue], headline: HeadlineMetric) -> Estimate | None:
    """Estimate the mean ln(value) of one side's jobs."""
    values = list(jobs)
    return estimate_over_hosts(
        group_by_host(values, lambda job: [math.log(job.value)]), _count_hours(values, headline)
    )


def _count_hours(
    jobs: Iterable[JobPair | JobValue], headline: HeadlineMetric
) -> dict[str, int] | None:
    """Count the hours of each host in which its jobs measured times; None for other metrics."""
    if headline not in DEFAULT_HEADLINE:
        return None
    hours: dict[str, set[int]] = defaultdict(set)
    for job in jobs:
        hours[job.host].add(job.hour)
    return {host: len(of_host) for host, of_host in hours.items()}


class RefusalReason(NamedTuple):
    """Reason for giving no statistical verdict, with the remedy."""

    verdict: Verdict
    why: str
    remedy: str


def find_refusal_reasons(effect: SeriesEffect) -> Iterator[RefusalReason]:
    """Find all reasons against a verdict; the first names the refusal."""
    if zeros := effect.left_out.get(f"{effect.metric} is not above 0"):
        # It has no ratio, and leaving it out would hide it.
        yield RefusalReason(
            Verdict.NOT_ENOUGH,
            f"{effect.metric} is not above 0 in {pluralize(zeros, 'execution')}, which has no ratio",
            "state a headline metric that is above 0, such as success_fraction for failures",
        )
    if not effect.pairs and not (effect.a and effect.b):
        yield _explain_one_sided(effect)
        return
    if effect.data_comparison is DataComparison.ALTERED:
        yield RefusalReason(
            Verdict.VALUES_DIFFER,
            "a checksum execution met another content than the dataset's: not compared",
            "place the dataset again and measure anew, or leave that out with --where",
        )
        return
    if effect.data_comparison is DataComparison.DIFFERS:
        yield RefusalReason(
            Verdict.VALUES_DIFFER,
            "the value checksums of both sides differ, or their numbers of events: not compared",
            "find out why; `treehammer export` shows value_checksum and events_read",
        )
        return
    if effect.data_comparison is DataComparison.OTHER_CONTENT:
        yield RefusalReason(
            Verdict.OTHER_CONTENT,
            "the value checksums of the datasets differ",
            "compare datasets of one content, as `treehammer datasets make` rewrites them",
        )
    if effect.build.differing:
        yield RefusalReason(
            Verdict.BUILD_DIFFERS,
            f"other {', '.join(effect.build.differing)}",
            "compare builds made alike, or select one with --where",
        )
    yield from _find_amount_reasons(effect)


def _find_amount_reasons(effect: SeriesEffect) -> Iterator[RefusalReason]:
    """Find reasons in the amount: too little reading, too few jobs or no spread."""
    if effect.headline in DEFAULT_HEADLINE:
        yield from _find_reading_reasons(effect)
    if effect.missing_jobs:
        hosts = {0: "no known host", 1: "one host"}.get(effect.hosts) or f"{effect.hosts:,} hosts"
        unit = "launch" if effect.launches else effect.series.unit
        place = f" on {hosts}" if unit != "start" else ""
        yield explain_few_units(effect.launches or effect.jobs, unit, place)
    elif effect.estimate is None:
        yield RefusalReason(
            Verdict.NOT_ENOUGH,
            "zero variance: all jobs gave the same ratio, which no clock does",
            "look for copied measurements or a coarse clock (`treehammer export`), read more events",
        )


def explain_few_units(count: int, unit: str, place: str = "") -> RefusalReason:
    """Explain that so few jobs, starts or launches have no interval."""
    plural = "launches" if unit == "launch" else ""
    option = "repeats" if unit == "job" else "rounds"
    hosts = f" on one host, 2 on each of two, or {MIN_HOSTS} hosts" if unit != "start" else ""
    return RefusalReason(
        Verdict.NOT_ENOUGH,
        f"{pluralize(count, unit, plural)}{place}; needed are {MIN_JOBS}{hosts}",
        f"submit more {option} (-S {option}={2 * MIN_JOBS})",
    )


def _find_reading_reasons(effect: SeriesEffect) -> Iterator[RefusalReason]:
    """Find too little reading for times per event, in a launch or else in a job."""
    unit, needed_s = ("launch", MIN_LAUNCH_CPU_S) if effect.launches else ("job", MIN_CPU_S)
    cpu_s = effect.launch_cpu_s if effect.launches else effect.cpu_s
    if cpu_s is None:
        remedy = "time the loop with the kit, or report loop_cpu_s"
        yield RefusalReason(Verdict.TOO_LITTLE, "the loop's CPU time was not measured", remedy)
    elif cpu_s < needed_s:
        # Do not round up to the required time.
        seconds = min(cpu_s, needed_s - 0.01)
        why = f"{seconds:.3g} s of CPU per side in a {unit}, at least {needed_s:g} s needed"
        remedy = "read more passes, rounds or events per job"
        if effect.launches:  # which read until the wall limit by themselves
            remedy = "raise wall_limit_s, which ended the launches early"
        yield RefusalReason(Verdict.TOO_LITTLE, why, remedy)


def _explain_one_sided(effect: SeriesEffect) -> RefusalReason:
    if not effect.series.b:
        return RefusalReason(
            Verdict.ONLY_IN_A, "nothing was run on side B", "run the test for B here, too"
        )
    if not effect.series.a:
        return RefusalReason(
            Verdict.ONLY_IN_B, "nothing was run on side A", "run the test for A here, too"
        )
    if OTHER_HOST in effect.left_out:
        return RefusalReason(
            Verdict.NOT_ENOUGH,
            f"no host ran both sides, and one of them has fewer than {MIN_HOSTS} hosts",
            "bundle the axis, so that each job holds both sides, or run both on one host",
        )
    empty = (
        "both sides" if not effect.a and not effect.b else f"side {'A' if not effect.a else 'B'}"
    )
    reasons = ", ".join(f"{reason} {count}" for reason, count in effect.left_out.items())
    why = f"no usable execution on {empty} ({reasons})"
    absences = {f"no {effect.metric}", f"impossible {effect.metric}"}
    if set(effect.left_out) - {ONLY_JOB_OF_HOST} <= absences:
        remedy = f"have the payload report {effect.metric}"
        if effect.headline in DEFAULT_HEADLINE:
            remedy += "; the kit does after the first of at least 2 passes"
        return RefusalReason(Verdict.NOT_ENOUGH, why, remedy)
    remedy = "see what went wrong with `treehammer status CAMPAIGN`, mend it and run the test again"
    return RefusalReason(Verdict.FAILED, why, remedy)


def measure_effect(
    series: SeriesSides, headline: HeadlineMetric, axis: str, checksums: ChecksumsBySlot
) -> SeriesEffect:
    """Measure one series: pairs where jobs hold both sides, else unpaired jobs.

    The effect is estimated, or the series refused for the first of its reasons.
    """
    metric = headline.name
    a, b, dirty = (list(series.a), list(series.b), Counter[str]())
    if axis != COMMIT_AXIS:  # a modified working tree is a value of that axis
        a, b, dirty = drop_dirty(series.a, series.b)
    pairs, left_out = pair_jobs(a, b, metric, series.elsewhere)
    values_a: list[JobValue] = []
    values_b: list[JobValue] = []
    if pairs:
        pairs, unused = select_jobs(pairs)
        left_out += unused
    else:
        values_a, left_a = collect_job_values(a, metric)
        values_b, left_b = collect_job_values(b, metric)
        values_a, unused_a = select_jobs(values_a)
        values_b, unused_b = select_jobs(values_b)
        left_out = left_a + left_b + unused_a + unused_b
        if headline in DEFAULT_HEADLINE and axis not in _HOST_AXES:
            count = len(values_a) + len(values_b)
            values_a, values_b = _select_common_hosts(values_a, values_b)
            left_out[OTHER_HOST] = count - len(values_a) - len(values_b)
    measured = SeriesEffect(
        series=series,
        headline=headline,
        pairs=tuple(pairs),
        a=tuple(values_a),
        b=tuple(values_b),
        left_out=dict(sorted((left_out + dirty).items())),
        build=compare_builds(
            _select_valid_samples(a, metric), _select_valid_samples(b, metric), axis
        ),
        data_comparison=compare_data(a, b, checksums, axis),
        estimate=None,
    )
    is_other_data = measured.data_comparison in (DataComparison.DIFFERS, DataComparison.ALTERED)
    judged = replace(measured, estimate=None if is_other_data else estimate_effect([measured]))
    reasons = list(find_refusal_reasons(judged))
    if not reasons:
        return judged
    judged = replace(
        judged,
        refused=reasons[0].verdict,
        why="; ".join(reason.why for reason in reasons),
        remedy=reasons[0].remedy,
    )
    # Different values are never compared: none of them reaches the pair table either.
    is_withheld = judged.refused is Verdict.VALUES_DIFFER
    return replace(judged, pairs=(), a=(), b=()) if is_withheld else judged


def _select_common_hosts(
    a: list[JobValue], b: list[JobValue]
) -> tuple[list[JobValue], list[JobValue]]:
    """Select the jobs on hosts of both sides, which differ in their times, if a side has few hosts."""
    hosts = [_collect_hosts(side) for side in (a, b)]
    if not all(hosts) or min(map(len, hosts)) >= MIN_HOSTS:
        return a, b
    common = set.intersection(*hosts)
    return [job for job in a if job.host in common], [job for job in b if job.host in common]


def _select_valid_samples(side: Sequence[Sample], metric: str) -> Sequence[Sample]:
    """Select the executions that count, so that no failed one speaks for the build; all if none counts."""
    return [sample for sample in side if not sample.reason_unusable(metric)] or side
