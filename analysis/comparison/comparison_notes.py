"""Notes below a table of verdicts: exclusions, meaning and suggested actions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.comparison.series_effects import (
    MIN_HOSTS,
    MIN_JOBS,
    MIN_LOOP_S,
    SeriesEffect,
)
from treehammer.analysis.comparison.verdict_text import METRIC_TITLES
from treehammer.analysis.samples.control_check import ControlCheck
from treehammer.analysis.samples.sample import HEADLINE_METRICS
from treehammer.analysis.statistics import power_table
from treehammer.analysis.statistics.verdict import (
    ONE_SIDED_VERDICTS,
    SERIES_SCOPE,
    Verdict,
    VerdictEvidence,
)
from treehammer.sql.core.rows import VerdictRow

#: Suggested action for each statistical verdict; refused series have their own remedy.
REMEDIES: Mapping[Verdict, str] = {
    Verdict.UNDECIDED: "submit the jobs named as needed (-S repeats=N); "
    "jobs of several campaigns count together",
}
#: Verdicts that more jobs can change.
HELPED_BY_MORE_JOBS = (Verdict.UNDECIDED, Verdict.NOT_ENOUGH)
#: Verdicts that have a sentence of their own.
_EXPLAINED = (Verdict.BUILD_DIFFERS, Verdict.TOO_SHORT)


def power_sentence(verdict: Verdict, metric: str, delta: float) -> str:
    """Describe the power of recorded A/A jobs, where more jobs could decide."""
    return power_table.describe_power(metric, delta) if verdict in HELPED_BY_MORE_JOBS else ""


def comparison_notes(rows: Sequence[VerdictRow], *, one_host: bool) -> Iterator[str]:
    """The sentences that stand below a comparison.

    Args:
        rows: its verdicts; those of series are spoken of.
        one_host: whether everything that was compared ran on one.
    """
    series = [
        (row, VerdictEvidence.from_json(row.evidence)) for row in rows if row.scope == SERIES_SCOPE
    ]
    compared = [row for row, _ in series if row.jobs]
    if one_host:
        yield (
            "One host: these passes are an illustration, not a verdict. "
            f"A verdict needs at least {MIN_JOBS} jobs on {MIN_HOSTS} hosts of a site."
        )
    found = {row.verdict for row, _ in series}
    both = [one for row, one in series if row.verdict not in ONE_SIDED_VERDICTS]
    yield from _build_notes(both, differ=Verdict.BUILD_DIFFERS in found)
    if Verdict.TOO_SHORT in found:
        yield (
            f"Loop too short: loops under {MIN_LOOP_S:g} s are start-up and clock noise "
            "and enter no verdict; read more events."
        )
    if any(one.unpaired for _, one in series):
        yield (
            "Unpaired: no job holds both sides, so separate jobs are compared (Welch's t on ln of "
            "the jobs' values). Other nodes and other times are part of such an effect."
        )
    for verdict, remedy in dict.fromkeys((Verdict(row.verdict), one.remedy) for row, one in series):
        if remedy and verdict not in _EXPLAINED:
            yield f"{verdict.value[0].upper()}{verdict.value[1:]}: {remedy}."
    for metric, sentence in dict.fromkeys((row.metric, one.power) for row, one in series):
        if sentence:
            yield f"{METRIC_TITLES[metric]}, by recorded A/A jobs: {sentence}."
    yield _data_note({row.comparison_key: one.same_data for row, one in series})
    if left_out := _count_left_out(
        [one for row, one in series if row.metric == HEADLINE_METRICS[0]]
    ):
        yield f"Left out of the comparison: {left_out}."
    if compared:
        first = series[0][1]
        yield (
            f"Effects are means of ln(B/A), shown in per cent; within {verdict_text.format_delta(first.delta)} they "
            "count as none. Intervals of verdicts have 95 % coverage within their family of tests, "
            "others stand alone."
        )
        yield _describe_times(first)


def control_notes(controls: Iterable[ControlCheck]) -> Iterator[str]:
    """Describe the A/A launches of the compared jobs, in which nothing differs."""
    for check in controls:
        launches = f"{check.launches} A/A launches" if check.launches > 1 else "1 A/A launch"
        found = f"{METRIC_TITLES[check.metric]} {_format_ratio(check.mean)}"
        if check.sd is not None:
            found += f" (standard deviation {100 * check.sd:.1f} %)"
        if check.is_off:
            yield (
                f"Controls are off: {launches} of these jobs, in which nothing differs, show {found}. "
                "Do not trust effects of this size; repeat the campaign on quieter nodes."
            )
        else:
            yield f"Controls: {launches} of these jobs show {found}."


def _format_ratio(log_ratio: float) -> str:
    return f"{100 * math.expm1(log_ratio):+.1f} %".replace("-", "−")


def _build_notes(series: Sequence[VerdictEvidence], *, differ: bool) -> Iterator[str]:
    if differ:
        differences = dict.fromkeys(reason for one in series for reason in one.build)
        yield (
            f"Build differs ({'; '.join(differences)}): by more than version and commit, "
            "so nothing is credited to the compared value."
        )
    if bundled := dict.fromkeys(text for one in series for text in one.bundled):
        yield f"Part of the release, since ROOT brings it along: {'; '.join(bundled)}."
    if repackaged := dict.fromkeys(text for one in series for text in one.repackaged):
        yield (
            "Counted as the same compiler, from another package of the distributor: "
            f"{'; '.join(repackaged)}."
        )
    if unknown := dict.fromkeys(text for one in series for text in one.unknown):
        yield f"Recorded for one build only, so not compared: {', '.join(unknown)}."


def _describe_times(one: VerdictEvidence) -> str:
    """Describe the times of both sides."""
    if one.campaigns is None:
        return (
            "Times of either side are medians over its jobs, as was recorded then: their ratio need "
            "not be the effect, which is a mean of ratios within jobs."
        )
    return "Times of either side are geometric means over jobs; their ratio is the effect."


def is_single_host(effects: Sequence[SeriesEffect]) -> bool:
    """Whether everything that was compared ran on one host."""
    return len({(one.series.site, host) for one in effects for host in one.host_names}) == 1


def _data_note(found: Mapping[str, str]) -> str:
    counts = Counter(found.values())
    said = ", ".join(f"{text} for {counts[text]}" for text in sorted(counts))
    return f"Value checksums, of {len(found)} series: {said}."


def _count_left_out(series: Iterable[VerdictEvidence]) -> str:
    counts: Counter[str] = Counter()
    for one in series:
        counts.update(one.left_out)
    return ", ".join(f"{count} × {reason}" for reason, count in sorted(counts.items()))
