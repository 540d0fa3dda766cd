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


def find_refusal_reasons(effect: SeriesEffect) -> Iterator[RefusalReason]:
    """Find all reasons against a verdict; the first names the refusal."""
    yield from _find_zeros(effect)
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
            "the value checksums of both sides differ: not compared",
            "find out why the sides read other values; `treehammer export` shows value_checksum",
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


def _find_zeros(effect: SeriesEffect) -> Iterator[RefusalReason]:
    """Refuse a metric that is 0 somewhere: it has no ratio, and leaving it out would hide it."""
    zeros = effect.left_out.get(f"{effect.metric} is 0")
    if zeros:
        yield RefusalReason(
            Verdict.NOT_ENOUGH,
            f"{effect.metric} is 0 in {pluralize(zeros, 'execution')}, which has no ratio",
            "state a headline metric that is above 0, such as success_fraction for failures",
        )


def _find_amount_reasons(effect: SeriesEffect) -> Iterator[RefusalReason]:
    """Find reasons in the amount: too little reading, too few jobs or no spread."""
    if effect.headline in DEFAULT_HEADLINE:
        yield from _find_reading_reasons(effect)
    if effect.missing_jobs:
        yield RefusalReason(
            Verdict.NOT_ENOUGH,
            f"{pluralize(effect.jobs, 'job')} on {_pluralize_hosts(effect.hosts)}; needed are {MIN_JOBS} "
            f"on one host, 2 on each of two, or {MIN_HOSTS} hosts",
            f"submit more repeats (-S repeats={2 * MIN_JOBS})",
        )
    elif effect.estimate is None:
        yield RefusalReason(
            Verdict.NOT_ENOUGH,
            "zero variance: all jobs gave the same ratio, which no clock does",
            "look for copied measurements or a coarse clock (`treehammer export`), read more events",
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
        yield RefusalReason(Verdict.TOO_LITTLE, why, _choose_reading_remedy(effect))


def _choose_reading_remedy(effect: SeriesEffect) -> str:
    """Choose the remedy for too little reading: launches read until the wall limit by themselves."""
    if effect.launches:
        return "raise wall_limit_s, which ended the launches early"
    return "read more passes, rounds or events per job"


def _pluralize_hosts(count: int) -> str:
    return {0: "no known host", 1: "one host"}.get(count) or pluralize(count, "host")


def _explain_one_sided(effect: SeriesEffect) -> RefusalReason:
    if not effect.series.b:
        return RefusalReason(
            Verdict.ONLY_IN_A, "nothing was run on side B", "run the test for B here, too"
        )
    if not effect.series.a:
        return RefusalReason(
            Verdict.ONLY_IN_B, "nothing was run on side A", "run the test for A here, too"
        )
    empty = (
        "both sides" if not effect.a and not effect.b else f"side {'A' if not effect.a else 'B'}"
    )
    reasons = ", ".join(f"{reason} {count}" for reason, count in effect.left_out.items())
    why = f"no usable execution on {empty} ({reasons})"
    if set(effect.left_out) == {f"no {effect.metric}"}:
        remedy = f"have the payload report {effect.metric}"
        if effect.headline in DEFAULT_HEADLINE:
            remedy += "; the kit does after the first of at least 2 passes"
        return RefusalReason(Verdict.NOT_ENOUGH, why, remedy)
    remedy = "see what went wrong with `treehammer status CAMPAIGN`, mend it and run the test again"
    return RefusalReason(Verdict.FAILED, why, remedy)
