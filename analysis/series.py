"""One comparison key: what both sides hold, their effect, and what forbids a verdict."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from treehammer.analysis.evidence import (
    BuildDifference,
    Checksums,
    SameData,
    build_difference,
    same_data,
)
from treehammer.analysis.pairs import JobPair, JobValue, job_values, pair_jobs, without_dirty
from treehammer.analysis.samples import (
    Sample,
    comparison_key,
    natural_order,
    release_key,
    varying_axes,
)
from treehammer.analysis.statistics import Estimate, one_sample, welch
from treehammer.analysis.verdict import Verdict
from treehammer.collectors.job import TIMED
from treehammer.hctests.definition import Scalar

#: A series needs this many jobs on this many hosts, on each side where they are unpaired.
MIN_JOBS = 6
MIN_HOSTS = 3
#: Loops shorter than this are start-up and clock noise (seconds of wall time).
MIN_LOOP_S = 2.0


@dataclass(frozen=True)
class Series:
    """Both sides of one comparison key; ``site`` names both sites when sites are compared."""

    key: str
    release: str
    label: str
    site: str
    a: tuple[Sample, ...]
    b: tuple[Sample, ...]


def split(samples: Iterable[Sample], axis: str, a: Scalar, b: Scalar) -> list[Series]:
    """Group timed executions that have value ``a`` or ``b`` on ``axis`` by comparison key."""
    sides: dict[str, tuple[list[Sample], list[Sample]]] = defaultdict(lambda: ([], []))
    for sample in samples:
        value = sample.axis_value(axis)
        if sample.kind == TIMED and value in (a, b):
            sides[comparison_key(sample, axis)][0 if value == a else 1].append(sample)
    label = _labels([s for pair in sides.values() for side in pair for s in side], axis)
    found = []
    for key, (left, right) in sides.items():
        one = (left or right)[0]
        found.append(
            Series(
                key=key,
                release=release_key(one, axis),
                label=label[release_key(one, axis)],
                site=f"{a} → {b}" if axis == "site" else one.site,
                a=tuple(left),
                b=tuple(right),
            )
        )
    return sorted(
        found, key=lambda series: (natural_order(series.label), natural_order(series.site))
    )


def _labels(samples: Sequence[Sample], axis: str) -> Mapping[str, str]:
    """Release key -> shortest name that tells it from the others of this comparison."""
    varying = tuple(name for name in varying_axes(s.variant for s in samples) if name != axis)
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


@dataclass(frozen=True)
class Effect:
    """What one series says of one metric, before any multiplicity.

    ``pairs`` is empty where no job holds both sides; then ``a`` and ``b`` are compared unpaired.
    ``refused`` is the verdict that stands instead of a statistical one, with ``why``; None where
    the statistical rule applies.
    """

    series: Series
    metric: str
    pairs: tuple[JobPair, ...]
    a: tuple[JobValue, ...]
    b: tuple[JobValue, ...]
    left_out: Mapping[str, int]
    build: BuildDifference
    data: SameData
    estimate: Estimate | None
    refused: Verdict | None
    why: str

    @property
    def jobs(self) -> int:
        """Jobs on the weaker side."""
        return len(self.pairs) or min(len(self.a), len(self.b))

    @property
    def hosts(self) -> int:
        """Hosts on the weaker side."""
        if self.pairs:
            return len(_hosts(self.pairs))
        return min(len(_hosts(self.a)), len(_hosts(self.b)))

    @property
    def host_names(self) -> set[str]:
        """Hosts of either side."""
        return _hosts((*self.pairs, *self.a, *self.b))

    @property
    def unpaired(self) -> bool:
        """Whether separate jobs are compared, for want of jobs that hold both sides."""
        return bool(self.a and self.b)

    @property
    def test(self) -> str:
        """The statistical test, for people."""
        return "paired t" if self.pairs else "Welch t on unpaired jobs (weaker)"

    @property
    def values(self) -> tuple[float | None, float | None]:
        """Medians over jobs of both sides, in the metric's unit."""
        if self.pairs:
            return median(p.a for p in self.pairs), median(p.b for p in self.pairs)
        sides = [[job.value for job in side] for side in (self.a, self.b)]
        a, b = (median(side) if side else None for side in sides)
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


def _hosts(jobs: Iterable[JobPair | JobValue]) -> set[str]:
    return {job.host for job in jobs}


def effect(series: Series, metric: str, axis: str, known: Checksums) -> Effect:
    """Measure one series: pairs where jobs hold both sides, else unpaired jobs."""
    a, b, dirty = without_dirty(series.a, series.b)
    pairs, left_out = pair_jobs(a, b, metric)
    values_a: list[JobValue] = []
    values_b: list[JobValue] = []
    if not pairs:
        values_a, left_a = job_values(a, metric)
        values_b, left_b = job_values(b, metric)
        left_out = left_a + left_b
    bare = Effect(
        series=series,
        metric=metric,
        pairs=tuple(pairs),
        a=tuple(values_a),
        b=tuple(values_b),
        left_out=dict(sorted((left_out + dirty).items())),
        build=build_difference(a, b, axis),
        data=same_data(a, b, known),
        estimate=None,
        refused=None,
        why="",
    )
    return _judged(bare)


def estimate_of(effects: Sequence[Effect]) -> Estimate | None:
    """One estimate of the jobs of several series taken together (the doors of one site)."""
    pairs = [pair.d for one in effects for pair in one.pairs]
    if pairs:
        return one_sample(pairs)
    return welch(
        [job.value for one in effects for job in one.a],
        [job.value for one in effects for job in one.b],
    )


def _judged(bare: Effect) -> Effect:
    estimate = None if bare.data is SameData.DIFFERS else estimate_of([bare])
    refused, why = _refusal(bare, estimate)
    judged = replace(bare, estimate=estimate, refused=refused, why=why)
    # Different values are never compared: nothing of them reaches the pair table either.
    return replace(judged, pairs=(), a=(), b=()) if refused is Verdict.VALUES_DIFFER else judged


def _refusal(one: Effect, estimate: Estimate | None) -> tuple[Verdict | None, str]:
    if not one.pairs and not (one.a and one.b):
        return _one_sided(one)
    if one.data is SameData.DIFFERS:
        return Verdict.VALUES_DIFFER, "the value checksums of both sides differ: not compared"
    reasons = list(_reasons(one, estimate))
    return (reasons[0][0], "; ".join(why for _, why in reasons)) if reasons else (None, "")


def _reasons(one: Effect, estimate: Estimate | None) -> Iterator[tuple[Verdict, str]]:
    """Everything that forbids a verdict; the first names the refusal."""
    if one.build.differing:
        yield Verdict.BUILD_DIFFERS, f"other {', '.join(one.build.differing)}"
    if one.loop_s is None:
        yield Verdict.TOO_SHORT, "the loop was not timed"
    elif one.loop_s < MIN_LOOP_S:
        yield Verdict.TOO_SHORT, f"loop of {one.loop_s:.2g} s, at least {MIN_LOOP_S:g} s needed"
    if one.jobs < MIN_JOBS or one.hosts < MIN_HOSTS:
        hosts = "one host" if one.hosts == 1 else f"{one.hosts} hosts"
        jobs = "1 job" if one.jobs == 1 else f"{one.jobs} jobs"
        yield Verdict.NOT_ENOUGH, f"{jobs} on {hosts}, {MIN_JOBS} on {MIN_HOSTS} needed"
    elif estimate is None:
        yield Verdict.NOT_ENOUGH, "zero variance: all jobs gave the same ratio, which no clock does"


def _one_sided(one: Effect) -> tuple[Verdict, str]:
    if not one.series.b:
        return Verdict.LOST, "nothing was run on side B"
    if not one.series.a:
        return Verdict.NEW, "nothing was run on side A"
    empty = "both sides" if not one.a and not one.b else f"side {'A' if not one.a else 'B'}"
    reasons = ", ".join(f"{reason} {count}" for reason, count in one.left_out.items())
    return Verdict.FAILED, f"no usable execution on {empty} ({reasons})"
