"""Report on a search for a build: its start, each probe, and the result in words and for programs."""

from __future__ import annotations

from typing import Any

from treehammer.analysis.comparison.verdict_text import format_effect
from treehammer.text_formatting import format_share, pluralize
from treehammer.watch.bisection.bisection_search import Conclusion, FoundStep, SearchOutcome
from treehammer.watch.bisection.bisection_state import SKIPPED, BisectionState, ProbeRecord


def describe_start(state: BisectionState) -> str:
    """Describe a search in one line before its first probe."""
    question = state.question
    first, last = question.builds[0], question.builds[-1]
    how = "exact" if question.is_exact else f"until {format_share(question.certainty)} certain"
    return (
        f"Search {state.id}: {question.metric} ({how}) over {len(question.builds)} builds, "
        f"{first.title} … {last.title}"
    )


def describe_probe(state: BisectionState, conclusion: Conclusion) -> str:
    """Describe the last probe and the builds that are left in one line."""
    probe = state.probes[-1]
    title = state.question.builds[probe.build].title
    first, last = conclusion.candidates
    builds_text = "one build left" if first == last else f"builds {first}–{last} left"
    return (
        f"{len(state.probes):3}  build {probe.build} {title}: {_describe_result(probe)}; {builds_text}, "
        f"best guess {format_share(conclusion.certainty)} certain"
    )


def _describe_result(probe: ProbeRecord) -> str:
    if probe.state == SKIPPED:
        return f"skipped ({probe.reason})"
    if probe.counter is not None:
        return f"{probe.counter[1]:,.15g} (GOOD {probe.counter[0]:,.15g})"
    if not probe.effects:
        return "no results"
    return ", ".join(map(format_effect, probe.effects))


def format_certainty(share: float) -> str:
    """Format a certainty, of which rounding makes no full one."""
    return "> 99.9 %" if 0.999 < share < 1 else format_share(share, 1)


def describe_conclusion(state: BisectionState) -> str:
    """Describe the result of a search: builds, sizes, certainty and the campaigns behind it."""
    conclusion = state.make_search().conclude()
    lines = [state.remark] if state.remark else _describe_outcome(state, conclusion)
    if skipped := [p for p in state.probes if p.state == SKIPPED]:
        titles = ", ".join(state.question.builds[p.build].title for p in skipped)
        lines.append(f"Skipped: {titles}")
    campaigns = " ".join(p.campaign for p in state.probes if p.campaign)
    lines += [f"{pluralize(state.jobs, 'job')}; campaigns: {campaigns}"]
    return "\n".join(lines)


def describe_answer(state: BisectionState) -> str:
    """Describe the present answer of a search in one line."""
    return describe_conclusion(state).partition("\n")[0]


def _describe_outcome(state: BisectionState, conclusion: Conclusion) -> list[str]:
    question, certainty = state.question, format_certainty(conclusion.certainty)
    if conclusion.outcome is SearchOutcome.UNCHANGED:
        return [
            f"{question.metric} did not change between GOOD and BAD (certainty {certainty})"
            f"{_describe_last_level(conclusion)}."
        ]
    steps = [_describe_step(state, step) for step in conclusion.steps]
    if conclusion.outcome is SearchOutcome.STEP:
        return steps
    if conclusion.outcome is SearchOutcome.SEVERAL_STEPS:
        return [f"More than one step (certainty {certainty}):", *steps]
    first, last = conclusion.candidates
    builds = question.builds
    shares = ""
    if conclusion.shares is not None:
        none, single, more = map(format_share, conclusion.shares)
        shares = f" (no step {none}, one {single}, more {more})"
    return [
        f"Undecided after {pluralize(state.jobs, 'job')}: the best guess is "
        f"{certainty}{_describe_last_level(conclusion)}.",
        f"Left: {builds[first].title} … {builds[last].title}"
        f"{shares}. Allow more with --jobs, or measure longer jobs.",
    ]


def _describe_last_level(conclusion: Conclusion) -> str:
    if conclusion.last_level is None:
        return ""
    mean, low, high = map(format_effect, conclusion.last_level)
    return f"; BAD is {mean} [{low}, {high}]"


def _describe_step(state: BisectionState, step: FoundStep) -> str:
    builds, metric = state.question.builds, state.question.metric
    which = builds[step.last].title
    if step.first != step.last:
        which = f"one of {', '.join(b.title for b in builds[step.first : step.last + 1])}"
    size = "from or to 0" if step.effect is None else format_effect(step.effect)
    if step.low is not None and step.high is not None and step.low != step.high:
        size += f" [{format_effect(step.low)}, {format_effect(step.high)}]"
    before = builds[step.first - 1].title
    return (
        f"{which} changed {metric} by {size} (certainty {format_certainty(step.certainty)}); "
        f"the build before is {before}"
    )


def make_document(state: BisectionState, conclusion: Conclusion) -> dict[str, Any]:
    """Build the result for programs; effects are ln(build/GOOD)."""
    builds = state.question.builds

    def describe_step(step: FoundStep) -> dict[str, Any]:
        return {
            "builds": [build.name for build in builds[step.first : step.last + 1]],
            "before": builds[step.first - 1].name,
            "certainty": step.certainty,
            "effect": step.effect,
            "low": step.low,
            "high": step.high,
        }

    return {
        "id": state.id,
        "outcome": conclusion.outcome.value,
        "metric": state.question.metric,
        "certainty": conclusion.certainty,
        "steps": [describe_step(step) for step in conclusion.steps],
        "candidates": [builds[place].name for place in conclusion.candidates],
        "last_level": conclusion.last_level,
        "shares": conclusion.shares,
        "jobs": state.jobs,
        "probes": [{**vars(probe), "build": builds[probe.build].name} for probe in state.probes],
    }
