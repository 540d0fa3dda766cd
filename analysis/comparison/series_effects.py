"""Effects of single series, and the reasons that rule out a verdict."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean, median
from typing import NamedTuple, TypeVar

from treehammer.analysis.comparison.comparability import (
    BuildDifference,
    ChecksumsBySlot,
    DataComparison,
    compare_builds,
    compare_data,
)
from treehammer.analysis.samples.job_pairs import (
    JobPair,
    JobValue,
    collect_job_values,
    drop_dirty,
    pair_jobs,
)
from treehammer.analysis.samples.sample import (
    Sample,
    comparison_key,
    find_varying_axes,
    natural_sort_key,
    release_key,
    select_known_hosts,
)
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
    Verdict,
)
from treehammer.collectors.job_spec import TIMED
from treehammer.hctests.matrix.definition import Scalar
from treehammer.hctests.matrix.headline import DEFAULT_HEADLINE, HeadlineMetric
from treehammer.text_formatting import pluralize

Job = TypeVar("Job", JobPair, JobValue)

#: CPU seconds that a job must collect on each side, over all rounds and passes.  Below, the steps
#: of the clocks and the start of each loop weigh too much; the spread of A/A jobs with 1 s of CPU on
#: a side is 1.7 % and falls to 0.6 % at 4 s.
MIN_CPU_S = 2.0
#: Reasons for excluding a job, in addition to those of :mod:`job_pairs`.
UNKNOWN_HOST, ONLY_JOB_OF_HOST = "host unknown", "only job of its host"


@dataclass(frozen=True)
class SeriesSides:
    """Both sides of one comparison key; ``site`` names both sites when sites are compared."""

    key: str
    release: str
    label: str
    site: str
    a: tuple[Sample, ...]
    b: tuple[Sample, ...]


def split_sides(samples: Iterable[Sample], axis: str, a: Scalar, b: Scalar) -> list[SeriesSides]:
    """Group timed executions that have value ``a`` or ``b`` on ``axis`` by comparison key."""
    sides: dict[str, tuple[list[Sample], list[Sample]]] = defaultdict(lambda: ([], []))
    for sample in samples:
        value = sample.axis_value(axis)
        if sample.kind == TIMED and value in (a, b):
            sides[comparison_key(sample, axis)][0 if value == a else 1].append(sample)
    label = _label_series([s for pair in sides.values() for side in pair for s in side], axis)
    found = []
    for key, (left, right) in sides.items():
        one = (left or right)[0]
        found.append(
            SeriesSides(
                key=key,
                release=release_key(one, axis),
                label=label[release_key(one, axis)],
                site=f"{a} → {b}" if axis == "site" else one.site,
                a=tuple(left),
                b=tuple(right),
            )
        )
    return sorted(
        found, key=lambda series: (natural_sort_key(series.label), natural_sort_key(series.site))
    )


def _label_series(samples: Sequence[Sample], axis: str) -> Mapping[str, str]:
    """Map release keys to their shortest distinguishing names in this comparison."""
    varying = tuple(name for name in find_varying_axes(s.variant for s in samples) if name != axis)
    one_test = len({sample.test_name for sample in samples}) == 1
    by_release = {release_key(sample, axis): sample for sample in samples}
    with_storage = axis != "storage_site"
    labels = {
        key: _label_sample(one, varying, one_test=one_test, with_storage=with_storage)
        for key, one in by_release.items()
    }
    doubled = Counter(labels.values())
    return {
        key: f"{text} ({_identify_test(by_release[key])})" if doubled[text] > 1 else text
        for key, text in labels.items()
    }


def _label_sample(
    sample: Sample, axes: Sequence[str], *, one_test: bool, with_storage: bool
) -> str:
    """Name a sample by its values of ``axes``, by its test if there are several, and its storage."""
    present = dict(sample.variant.values)
    named = tuple(name for name in axes if name in present)
    text = sample.variant.label(named) if named else ""
    words = [text] if one_test and text else [sample.test_name, text]
    words += [f"storage={sample.storage_site}"] if with_storage and sample.is_remote else []
    return " ".join(word for word in words if word)


def _identify_test(sample: Sample) -> str:
    return f"{sample.test_hash[:8]} {sample.door_protocol}"


#: Columns that together single out the executions of one side of a series.
_IDENTIFYING_COLUMNS = (
    "test_name",
    "test_hash",
    "dataset",
    "dataset_hash",
    "content_hash",
    "site",
    "storage_site",
    "door",
    "door_protocol",
    "instrument_version",
)


def common_values(side: Iterable[Sample]) -> dict[str, str | int]:
    """Columns in which all these executions agree, with the value to select them by."""
    found: dict[str, set[str | int]] = defaultdict(set)
    for sample in side:
        found["variant"].add(sample.variant.canonical_json)
        for name in _IDENTIFYING_COLUMNS:
            found[name].add(getattr(sample, name))
    common = {
        name: value
        for name, values in found.items()
        if len(values) == 1
        for value in values
        if value
    }
    if common.get("storage_site") == common.get("site"):
        common.pop("storage_site", None)
    return common


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
    def test_name(self) -> str:
        """The statistical test, for people."""
        unit = "host means" if self.scope == SITE_SCOPE else "launches" if self.launches else "jobs"
        return f"t over {unit}" if self.pairs else f"Welch t over {unit}, unpaired (weaker)"

    @property
    def geometric_means(self) -> tuple[float | None, float | None]:
        """Geometric means over jobs of both sides, in the metric's unit; B ÷ A is the effect.

        Each host counts once. For pairs, the means lie half an effect below and above the mean of
        both sides' logarithms, since a ratio of medians is not the median of ratios over rounds.
        """
        if self.pairs:
            common = {job: (math.log(job.a) + math.log(job.b)) / 2 for job in self.pairs}
            middle = _mean_over_hosts(self.pairs, common.__getitem__)
            half = _mean_over_hosts(self.pairs, lambda pair: pair.d) / 2
            return math.exp(middle - half), math.exp(middle + half)
        a, b = (
            math.exp(_mean_over_hosts(side, lambda job: math.log(job.value))) if side else None
            for side in (self.a, self.b)
        )
        return a, b

    @property
    def mean(self) -> float | None:
        """Mean effect in ln, also of a single job or without any spread; None without jobs.

        A judged effect is the mean over hosts, of which each counts once.
        """
        if self.estimate:
            return self.estimate.mean
        a, b = self.geometric_means
        return math.log(b) - math.log(a) if a and b else None

    @property
    def cpu_s(self) -> float | None:
        """Median over jobs of the CPU on the side with less; None where it was not measured."""
        if self.pairs:
            found = [pair.cpu_s for pair in self.pairs if pair.cpu_s is not None]
            return median(found) if found else None
        sides = [[job.cpu_s for job in side if job.cpu_s is not None] for side in (self.a, self.b)]
        return min(median(side) for side in sides) if all(sides) else None


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
    """Independent units of each known host: its launches or jobs."""
    counts: Counter[str] = Counter()
    for job in jobs:
        counts[job.host] += max(len(job.launches), 1) if isinstance(job, JobPair) else 1
    del counts[""]
    return counts


def _mean_over_hosts(jobs: Iterable[Job], effect: Callable[[Job], float]) -> float:
    return fmean(fmean(values) for values in group_by_host(jobs, lambda j: [effect(j)]).values())


def select_jobs(jobs: Sequence[Job]) -> tuple[list[Job], Counter[str]]:
    """Select the jobs whose hosts are known, and of two hosts those with two jobs at least.

    Returns:
        the jobs that count, and how many were left out for which reason.  All count where no host
        is known, or where nothing could be judged.
    """
    counts = _count_per_host(jobs)
    known = [job for job in jobs if job.host] if counts else list(jobs)
    left_out = Counter({UNKNOWN_HOST: len(jobs) - len(known)})
    if len(counts) == 2 and min(counts.values()) == 1 and max(counts.values()) >= MIN_JOBS:
        several = [job for job in known if counts[job.host] > 1]
        left_out[ONLY_JOB_OF_HOST] = len(known) - len(several)
        known = several
    return known, +left_out


def measure_effect(
    series: SeriesSides, headline: HeadlineMetric, axis: str, known: ChecksumsBySlot
) -> SeriesEffect:
    """Measure one series: pairs where jobs hold both sides, else unpaired jobs."""
    metric = headline.name
    a, b, dirty = drop_dirty(series.a, series.b)
    pairs, left_out = pair_jobs(a, b, metric)
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
    bare = SeriesEffect(
        series=series,
        headline=headline,
        pairs=tuple(pairs),
        a=tuple(values_a),
        b=tuple(values_b),
        left_out=dict(sorted((left_out + dirty).items())),
        build=compare_builds(
            _select_valid_samples(a, metric), _select_valid_samples(b, metric), axis
        ),
        data_comparison=compare_data(a, b, known),
        estimate=None,
    )
    return _apply_refusals(bare)


def _select_valid_samples(side: Sequence[Sample], metric: str) -> Sequence[Sample]:
    """The executions that count, so that no failed one speaks for the build; all where none does."""
    return [sample for sample in side if not sample.reason_unusable(metric)] or side


def estimate_effect(effects: Sequence[SeriesEffect]) -> Estimate | None:
    """Estimate one effect from the jobs of several series together (the doors of one site).

    Unpaired sides are estimated apart, and subtracted by Welch's method.
    """
    pairs = list(chain.from_iterable(one.pairs for one in effects))
    if pairs:
        return estimate_over_hosts(group_by_host(pairs, lambda pair: pair.launches or [pair.d]))
    a = _estimate_side(chain.from_iterable(one.a for one in effects))
    b = _estimate_side(chain.from_iterable(one.b for one in effects))
    return combine_estimates((a, b), (-1.0, 1.0)) if a and b else None


def _estimate_side(jobs: Iterable[JobValue]) -> Estimate | None:
    """Estimate the mean ln(value) of one side's jobs."""
    return estimate_over_hosts(group_by_host(list(jobs), lambda job: [math.log(job.value)]))


def _apply_refusals(bare: SeriesEffect) -> SeriesEffect:
    estimate = None if bare.data_comparison.forbids_comparison else estimate_effect([bare])
    judged = replace(bare, estimate=estimate)
    reasons = list(_find_refusal_reasons(judged))
    if not reasons:
        return judged
    first = reasons[0]
    judged = replace(
        judged,
        refused=first.verdict,
        why="; ".join(reason.why for reason in reasons),
        remedy=first.remedy,
    )
    # Different values are never compared: nothing of them reaches the pair table either.
    nothing = first.verdict is Verdict.VALUES_DIFFER
    return replace(judged, pairs=(), a=(), b=()) if nothing else judged


class RefusalReason(NamedTuple):
    """Reason for giving no statistical verdict, with the remedy."""

    verdict: Verdict
    why: str
    remedy: str


def _find_refusal_reasons(one: SeriesEffect) -> Iterator[RefusalReason]:
    """Everything that forbids a verdict; the first names the refusal."""
    yield from _find_zeros(one)
    if not one.pairs and not (one.a and one.b):
        yield _explain_one_sided(one)
        return
    if one.data_comparison is DataComparison.ALTERED:
        yield RefusalReason(
            Verdict.VALUES_DIFFER,
            "a checksum execution met another content than the dataset's: not compared",
            "place the dataset again and measure anew, or leave that out with --where",
        )
        return
    if one.data_comparison is DataComparison.DIFFERS:
        yield RefusalReason(
            Verdict.VALUES_DIFFER,
            "the value checksums of both sides differ: not compared",
            "find out why the sides read other values; `treehammer export` shows value_checksum",
        )
        return
    if one.build.differing:
        yield RefusalReason(
            Verdict.BUILD_DIFFERS,
            f"other {', '.join(one.build.differing)}",
            "compare builds made alike, or select one with --where",
        )
    yield from _find_amount_reasons(one)


def _find_zeros(one: SeriesEffect) -> Iterator[RefusalReason]:
    """Refuse a metric that is 0 somewhere: it has no ratio, and leaving it out would hide it."""
    zeros = one.left_out.get(f"{one.metric} is 0")
    if zeros:
        yield RefusalReason(
            Verdict.NOT_ENOUGH,
            f"{one.metric} is 0 in {pluralize(zeros, 'execution')}, which has no ratio",
            "state a headline metric that is above 0, such as success_fraction for failures",
        )


def _find_amount_reasons(one: SeriesEffect) -> Iterator[RefusalReason]:
    """Whether there is too little reading, too few jobs or no spread."""
    if one.headline in DEFAULT_HEADLINE:
        yield from _find_reading_reasons(one)
    if one.missing_jobs:
        yield RefusalReason(
            Verdict.NOT_ENOUGH,
            f"{pluralize(one.jobs, 'job')} on {_pluralize_hosts(one.hosts)}; needed are {MIN_JOBS} "
            f"on one host, 2 on each of two, or {MIN_HOSTS} hosts",
            f"submit more repeats (-S repeats={2 * MIN_JOBS})",
        )
    elif one.estimate is None:
        yield RefusalReason(
            Verdict.NOT_ENOUGH,
            "zero variance: all jobs gave the same ratio, which no clock does",
            "look for copied measurements or a coarse clock (`treehammer export`), read more events",
        )


def _find_reading_reasons(one: SeriesEffect) -> Iterator[RefusalReason]:
    """Whether there is too little reading for times per event."""
    if one.cpu_s is None:
        remedy = "time the loop with the kit, or report loop_cpu_s"
        yield RefusalReason(Verdict.TOO_LITTLE, "the loop's CPU time was not measured", remedy)
    elif one.cpu_s < MIN_CPU_S:
        why = f"{one.cpu_s:.2g} s of CPU per side in a job, at least {MIN_CPU_S:g} s needed"
        yield RefusalReason(Verdict.TOO_LITTLE, why, "read more passes, rounds or events per job")


def _pluralize_hosts(count: int) -> str:
    return {0: "no known host", 1: "one host"}.get(count) or pluralize(count, "host")


def _explain_one_sided(one: SeriesEffect) -> RefusalReason:
    if not one.series.b:
        return RefusalReason(
            Verdict.ONLY_IN_A, "nothing was run on side B", "run the test for B here, too"
        )
    if not one.series.a:
        return RefusalReason(
            Verdict.ONLY_IN_B, "nothing was run on side A", "run the test for A here, too"
        )
    empty = "both sides" if not one.a and not one.b else f"side {'A' if not one.a else 'B'}"
    reasons = ", ".join(f"{reason} {count}" for reason, count in one.left_out.items())
    why = f"no usable execution on {empty} ({reasons})"
    if set(one.left_out) == {f"no {one.metric}"}:
        remedy = f"have the payload report {one.metric}"
        if one.headline in DEFAULT_HEADLINE:
            remedy += "; the kit does after the first of at least 2 passes"
        return RefusalReason(Verdict.NOT_ENOUGH, why, remedy)
    remedy = "see what went wrong with `treehammer status CAMPAIGN`, mend it and run the test again"
    return RefusalReason(Verdict.FAILED, why, remedy)
