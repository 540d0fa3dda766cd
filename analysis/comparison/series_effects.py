"""Effects of single series, and the reasons that rule out a verdict."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import NamedTuple

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
from treehammer.analysis.statistics.estimates import Estimate, estimate_paired, estimate_unpaired
from treehammer.analysis.statistics.verdict import Verdict
from treehammer.collectors.job_spec import TIMED
from treehammer.hctests.matrix.definition import Scalar
from treehammer.text_formatting import pluralize

#: A series needs this many jobs on this many hosts, on each side where they are unpaired.
MIN_JOBS = 6
MIN_HOSTS = 3
#: Loops shorter than this are start-up and clock noise (seconds of wall time).
MIN_LOOP_S = 2.0


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
    labels: dict[str, str] = {}
    hashes: dict[str, str] = {}
    for sample in samples:
        present = dict(sample.variant.values)
        named = tuple(name for name in varying if name in present)
        text = sample.variant.label(named) if named else ""
        words = [text] if one_test and text else [sample.test_name, text]
        key = release_key(sample, axis)
        labels[key] = " ".join(word for word in words if word)
        hashes[key] = f"{sample.test_hash[:8]} {sample.door_protocol}"
    doubled = Counter(labels.values())
    return {
        key: f"{text} ({hashes[key]})" if doubled[text] > 1 else text
        for key, text in labels.items()
    }


#: Columns that together single out the executions of one side of a series.
_IDENTIFYING_COLUMNS = (
    "test_name",
    "test_hash",
    "dataset",
    "dataset_hash",
    "content_hash",
    "site",
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
    return {
        name: value
        for name, values in found.items()
        if len(values) == 1
        for value in values
        if value
    }


@dataclass(frozen=True)
class SeriesEffect:
    """Effect of one series on one metric, before adjustment for multiplicity.

    ``pairs`` is empty where no job holds both sides; then ``a`` and ``b`` are compared unpaired.
    ``refused`` is the verdict that stands instead of a statistical one, with ``why`` and what to do
    about it, ``remedy``; None where the statistical rule applies.
    """

    series: SeriesSides
    metric: str
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
    def unpaired(self) -> bool:
        """Whether separate jobs are compared, for want of jobs that hold both sides."""
        return bool(self.a and self.b)

    @property
    def test_name(self) -> str:
        """The statistical test, for people."""
        return "paired t" if self.pairs else "Welch t on unpaired jobs (weaker)"

    @property
    def geometric_means(self) -> tuple[float | None, float | None]:
        """Geometric means over jobs of both sides, in the metric's unit; B ÷ A is the effect.

        Of pairs, what both sides have in common is the mean of their logarithms, and the effect
        lies half on either side of it: over rounds a ratio of medians is not the median of ratios.
        """
        if self.pairs:
            middle = fmean((math.log(pair.a) + math.log(pair.b)) / 2 for pair in self.pairs)
            half = fmean(pair.d for pair in self.pairs) / 2
            return math.exp(middle - half), math.exp(middle + half)
        sides = [[math.log(job.value) for job in side] for side in (self.a, self.b)]
        a, b = (math.exp(fmean(side)) if side else None for side in sides)
        return a, b

    @property
    def mean(self) -> float | None:
        """Mean effect in ln, also of a single job or without any spread; None without jobs."""
        if self.pairs:
            return fmean(pair.d for pair in self.pairs)
        if not (self.a and self.b):
            return None
        logs = [fmean(math.log(job.value) for job in side) for side in (self.a, self.b)]
        return logs[1] - logs[0]

    @property
    def loop_s(self) -> float | None:
        """Median over jobs of the shorter side's loop, in seconds; None where it was not timed."""
        if self.pairs:
            loops = [p.loop_s for p in self.pairs if p.loop_s is not None]
            return median(loops) if loops else None
        sides = [
            [job.loop_s for job in side if job.loop_s is not None] for side in (self.a, self.b)
        ]
        return min(median(side) for side in sides) if all(sides) else None


def _collect_hosts(jobs: Iterable[JobPair | JobValue]) -> set[str]:
    return select_known_hosts(job.host for job in jobs)


def measure_effect(
    series: SeriesSides, metric: str, axis: str, known: ChecksumsBySlot
) -> SeriesEffect:
    """Measure one series: pairs where jobs hold both sides, else unpaired jobs."""
    a, b, dirty = drop_dirty(series.a, series.b)
    pairs, left_out = pair_jobs(a, b, metric)
    values_a: list[JobValue] = []
    values_b: list[JobValue] = []
    if not pairs:
        values_a, left_a = collect_job_values(a, metric)
        values_b, left_b = collect_job_values(b, metric)
        left_out = left_a + left_b
    bare = SeriesEffect(
        series=series,
        metric=metric,
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
    """One estimate of the jobs of several series taken together (the doors of one site)."""
    pairs = [pair.d for one in effects for pair in one.pairs]
    if pairs:
        return estimate_paired(pairs)
    return estimate_unpaired(
        [job.value for one in effects for job in one.a],
        [job.value for one in effects for job in one.b],
    )


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
    if one.loop_s is None:
        remedy = "time the loop with the kit, or report loop_wall_s"
        yield RefusalReason(Verdict.TOO_SHORT, "the loop was not timed", remedy)
    elif one.loop_s < MIN_LOOP_S:
        why = f"loop of {one.loop_s:.2g} s, at least {MIN_LOOP_S:g} s needed"
        yield RefusalReason(Verdict.TOO_SHORT, why, "read more events")
    if one.jobs < MIN_JOBS or one.hosts < MIN_HOSTS:
        yield RefusalReason(
            Verdict.NOT_ENOUGH,
            f"{pluralize(one.jobs, 'job')} on {_pluralize_hosts(one.hosts)}, "
            f"{MIN_JOBS} on {MIN_HOSTS} needed",
            f"submit more repeats (-S repeats={MIN_JOBS}) where at least {MIN_HOSTS} hosts take them; "
            "jobs of several campaigns count together",
        )
    elif one.estimate is None:
        yield RefusalReason(
            Verdict.NOT_ENOUGH,
            "zero variance: all jobs gave the same ratio, which no clock does",
            "look for copied measurements or a coarse clock (`treehammer export`), read more events",
        )


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
        remedy = f"have the payload report {one.metric}; the kit does after the first of at least 2 passes"
        return RefusalReason(Verdict.NOT_ENOUGH, why, remedy)
    remedy = "see what went wrong with `treehammer status CAMPAIGN`, mend it and run the test again"
    return RefusalReason(Verdict.FAILED, why, remedy)
