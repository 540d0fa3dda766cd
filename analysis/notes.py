"""What has to be said beside a table of verdicts: what was left out, what it means, what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from treehammer.analysis import power
from treehammer.analysis.evidence import SameData
from treehammer.analysis.samples import HEADLINE_METRICS
from treehammer.analysis.series import MIN_HOSTS, MIN_JOBS, MIN_LOOP_S, Effect
from treehammer.analysis.verdict import Verdict
from treehammer.analysis.wording import METRIC_TITLES

#: What to do about a verdict of the statistical rule; refused series bring a remedy of their own.
REMEDIES: Mapping[Verdict, str] = {
    Verdict.UNDECIDED: "submit the jobs named as needed (-S repeats=N); "
    "jobs of several campaigns count together",
}
#: Verdicts that more jobs can change.
MORE_JOBS = (Verdict.UNDECIDED, Verdict.NOT_ENOUGH)
#: Verdicts that have a sentence of their own.
_EXPLAINED = (Verdict.BUILD_DIFFERS, Verdict.TOO_SHORT)


def quoted(verdict: Verdict, metric: str, delta: float) -> str:
    """What recorded A/A jobs say of the number of jobs, where more of them could decide."""
    return power.sentence(metric, delta) if verdict in MORE_JOBS else ""


def told(effects: Sequence[Effect], verdicts: Sequence[Verdict], delta: float) -> Iterator[str]:
    """The sentences that stand below a comparison; ``verdicts`` are those of the effects."""
    compared = [one for one in effects if one.jobs]
    if on_one_host(effects):
        yield (
            "One host: these passes are an illustration, not a verdict. "
            f"A verdict needs at least {MIN_JOBS} jobs on {MIN_HOSTS} hosts of a site."
        )
    refused = {one.refused for one in effects}
    if Verdict.BUILD_DIFFERS in refused:
        differences = dict.fromkeys(reason for one in effects for reason in one.build.reasons)
        yield (
            f"Build differs ({'; '.join(differences)}): by more than version and commit, "
            "so nothing is credited to the compared value."
        )
    if bundled := dict.fromkeys(text for one in effects for text in one.build.bundled):
        yield f"Part of the release, since ROOT brings it along: {'; '.join(bundled)}."
    if repackaged := dict.fromkeys(text for one in effects for text in one.build.repackaged):
        yield (
            "Counted as the same compiler, from another package of the distributor: "
            f"{'; '.join(repackaged)}."
        )
    if unknown := dict.fromkeys(text for one in effects for text in one.build.unknown):
        yield f"Recorded for one build only, so not compared: {', '.join(unknown)}."
    if Verdict.TOO_SHORT in refused:
        yield (
            f"Loop too short: loops under {MIN_LOOP_S:g} s are start-up and clock noise "
            "and enter no verdict; read more events."
        )
    if any(one.unpaired for one in effects):
        yield (
            "Unpaired: no job holds both sides, so separate jobs are compared (Welch's t on ln of "
            "the jobs' values). Other nodes and other times are part of such an effect."
        )
    yield from _remedies(effects, verdicts)
    said = (
        (one.metric, quoted(verdict, one.metric, delta))
        for one, verdict in zip(effects, verdicts, strict=True)
    )
    for metric, sentence in dict.fromkeys(said):
        if sentence:
            yield f"{METRIC_TITLES[metric]}, by recorded A/A jobs: {sentence}."
    yield _data_note({one.series.key: one.data for one in effects})
    if left_out := _left_out(effects):
        yield f"Left out of the comparison: {left_out}."
    if compared:
        yield (
            f"Effects are means of ln(B/A), shown in per cent; within ±{100 * delta:g} % they "
            "count as none. Intervals of verdicts have 95 % coverage within their family of tests, "
            "others stand alone."
        )


def _remedies(effects: Sequence[Effect], verdicts: Sequence[Verdict]) -> Iterator[str]:
    found = dict.fromkeys(
        (verdict, one.remedy or REMEDIES.get(verdict, ""))
        for one, verdict in zip(effects, verdicts, strict=True)
        if verdict not in _EXPLAINED
    )
    for verdict, remedy in found:
        if remedy:
            yield f"{verdict.value.capitalize()}: {remedy}."


def on_one_host(effects: Sequence[Effect]) -> bool:
    """Whether everything that was compared ran on one host."""
    return len({(one.series.site, host) for one in effects for host in one.host_names}) == 1


def _data_note(found: Mapping[str, SameData]) -> str:
    counts = Counter(data.value for data in found.values())
    said = ", ".join(f"{text} for {counts[text]}" for text in sorted(counts))
    return f"Value checksums, of {len(found)} series: {said}."


def _left_out(effects: Sequence[Effect]) -> str:
    counts: Counter[str] = Counter()
    for one in effects:
        if one.metric == HEADLINE_METRICS[0]:
            counts.update(one.left_out)
    return ", ".join(f"{count} × {reason}" for reason, count in sorted(counts.items()))
