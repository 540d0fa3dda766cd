"""Reasons that rule out a verdict on a series, with their remedies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from treehammer.analysis.comparison.comparability import DataComparison
from treehammer.analysis.comparison.series_effects import SeriesEffect
from treehammer.analysis.statistics.verdict import (
    MIN_HOSTS,
    MIN_JOBS,
    Verdict,
)
from treehammer.collectors.job_spec import MIN_CPU_S, MIN_LAUNCH_CPU_S
from treehammer.hctests.matrix.headline import DEFAULT_HEADLINE
from treehammer.text_formatting import pluralize


class RefusalReason(NamedTuple):
    """Reason for giving no statistical verdict, with the remedy."""

    verdict: Verdict
    why: str
    remedy: str


def find_refusal_reasons(one: SeriesEffect) -> Iterator[RefusalReason]:
    """Find everything that forbids a verdict; the first reason names the refusal."""
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
    if one.data_comparison is DataComparison.OTHER_CONTENT:
        yield RefusalReason(
            Verdict.OTHER_CONTENT,
            "the value checksums of the datasets differ",
            "compare datasets of one content, as `treehammer datasets make` rewrites them",
        )
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
    """Find reasons in the amount: too little reading, too few jobs or no spread."""
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
    """Find too little reading for times per event, in a launch or else in a job."""
    unit, needed_s = ("launch", MIN_LAUNCH_CPU_S) if one.launches else ("job", MIN_CPU_S)
    cpu_s = one.launch_cpu_s if one.launches else one.cpu_s
    if cpu_s is None:
        remedy = "time the loop with the kit, or report loop_cpu_s"
        yield RefusalReason(Verdict.TOO_LITTLE, "the loop's CPU time was not measured", remedy)
    elif cpu_s < needed_s:
        # Never rounded up to what is needed.
        seconds = min(cpu_s, needed_s - 0.01)
        why = f"{seconds:.3g} s of CPU per side in a {unit}, at least {needed_s:g} s needed"
        yield RefusalReason(Verdict.TOO_LITTLE, why, _choose_reading_remedy(one))


def _choose_reading_remedy(one: SeriesEffect) -> str:
    """Choose what makes a job read more: launches read on by themselves until the wall limit."""
    if one.launches:
        return "raise wall_limit_s, which ended the launches early"
    return "read more passes, rounds or events per job"


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
