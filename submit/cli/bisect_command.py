"""Command ``treehammer bisect``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from treehammer.analysis.bisection import DEFAULT_CERTAINTY, Conclusion, FoundStep, SearchOutcome
from treehammer.analysis.comparison.verdict_text import format_effect
from treehammer.config import Settings
from treehammer.errors import ConfigError, ExitCode
from treehammer.hctests.cli import definition_options
from treehammer.hctests.pinned_tests import load_pinned_test
from treehammer.submit.cli.command_options import submission_click_options
from treehammer.submit.planning.submission_options import SubmissionOptions
from treehammer.submit.tools.bisection_run import BisectionRun, is_exact_counter
from treehammer.submit.tools.bisection_state import (
    DEFAULT_SOFTWARE,
    FOLDER_PLACEHOLDER,
    SKIPPED,
    BisectionQuestion,
    BisectionState,
    CommitSource,
    ProbeRecord,
    check_builds,
    list_builds,
    list_commits,
    load_state,
)
from treehammer.tables import hidden_columns
from treehammer.terminal import (
    SITE,
    TEST,
    CommandOutput,
    on_interrupt,
    print_notes,
    prints_rows,
    progress_bar,
)
from treehammer.text_formatting import format_share, pluralize

DEFAULT_METRIC = "cpu_per_event_s"
DEFAULT_JOB_LIMIT = 60


@click.command("bisect")
@click.argument("good", required=False, default="")
@click.argument("bad", required=False, default="")
@click.argument("spec", metavar="TEST", required=False, default="", type=TEST)
@click.option(
    "--over",
    metavar="BUILDS",
    default="",
    help="The builds from GOOD to BAD, oldest first: values of the axis root, comma separated; a "
    "file with one a line; or 'pypi:PACKAGE' for all its releases.",
)
@click.option(
    "--repository",
    metavar="URL",
    default="",
    help="Search the commits from GOOD to BAD of this repository instead.",
)
@click.option(
    "--build",
    "command",
    metavar="COMMAND",
    default="",
    help="Shell command that builds a commit, in a copy of it.",
)
@click.option(
    "--software",
    metavar="VALUE",
    default=DEFAULT_SOFTWARE,
    show_default=True,
    help="Value of the axis root for a built commit; e.g. path:{build}/install for ROOT itself.",
)
@click.option(
    "--metric",
    default=DEFAULT_METRIC,
    show_default=True,
    help="Metric that changed: of the catalogue, or the test's own.",
)
@click.option(
    "--exact/--noisy",
    default=None,
    help="Whether one job decides about the metric [default: as the catalogue, or [metrics.NAME] of "
    "test.toml, says].",
)
@click.option(
    "--certainty",
    type=click.FloatRange(0.5, 0.999),
    default=DEFAULT_CERTAINTY,
    show_default=True,
    help="Probability at which the search ends.",
)
@click.option(
    "--jobs",
    "job_limit",
    type=click.IntRange(min=1),
    default=DEFAULT_JOB_LIMIT,
    show_default=True,
    help="End undecided after so many jobs.",
)
@click.option(
    "--site",
    default="local",
    show_default=True,
    type=SITE,
    help="Site whose storage is read.",
)
@click.option(
    "--from",
    "from_site",
    metavar="SITE",
    default="",
    type=SITE,
    help="Site that runs the jobs, e.g. 'local' [default: the site of --site].",
)
@click.option(
    "--resume",
    is_flag=False,
    flag_value="last",
    metavar="[ID]",
    help="Continue a search that was interrupted [default: the newest].",
)
@definition_options
@submission_click_options
@prints_rows(*hidden_columns("build", "state", "campaign", "effects", "counter", "reason"))
@click.pass_obj
def bisect(
    settings: Settings,
    /,
    resume: str | None,
    options: SubmissionOptions,
    **question: Any,
) -> CommandOutput:
    """Find the build between GOOD and BAD that changed a metric of TEST.

    Each job measures one build beside GOOD. The next build is the most informative one; the search
    ends at the requested certainty. The exit code is 0 if the build was found, 3 if nothing changed
    or no answer is certain.

    \b
    Example: treehammer bisect 6.38.00 6.40.00 ttree-read -P cache_mb=30 \\
               --over 6.38.00,6.39.01,6.40.00
             treehammer bisect v1.0 main mylib/ --repository ../mylib --build make
             treehammer bisect 5.1.2 5.3.0 uproot-read --over pypi:uproot
    """
    if resume:
        state = load_state(settings, resume)
    else:
        state = BisectionState.start(_make_question(settings, **question))
    print_notes(_describe_start(state))
    run = BisectionRun(
        state,
        settings,
        lambda now, conclusion: print_notes(describe_probe(now, conclusion)),
        options,
        progress_bar,
    )
    with on_interrupt(f"continue with: treehammer bisect --resume {state.id}"):
        conclusion = run.run()
    document = make_document(run.state, conclusion)
    step_outcomes = (SearchOutcome.STEP, SearchOutcome.SEVERAL_STEPS)
    return CommandOutput(
        document["probes"],
        (),
        above=["\n" + describe_conclusion(run.state, conclusion)],
        document=document,
        exit_code=ExitCode.DONE if conclusion.outcome in step_outcomes else ExitCode.NOTHING,
    )


def _make_question(
    settings: Settings,
    *,
    good: str,
    bad: str,
    spec: str,
    over: str,
    repository: str,
    command: str,
    software: str,
    metric: str,
    exact: bool | None,
    certainty: float,
    job_limit: int,
    site: str,
    from_site: str,
    axes: Mapping[str, tuple[str, ...]],
    overrides: Mapping[str, str],
) -> BisectionQuestion:
    if not (good and bad and spec):
        raise click.UsageError("GOOD, BAD and TEST are required, or --resume.")
    if "root" in axes:
        raise ConfigError("the builds are the values of this axis", where="-P root")
    source = _parse_source(over, repository, command, software)
    builds = list_commits(good, bad, source, settings) if source else list_builds(good, bad, over)
    if not source:
        check_builds(builds, settings.software_dir)
    if exact is None:
        definition = load_pinned_test(spec, {}, {}, settings).definition
        exact = is_exact_counter(metric, definition)
    return BisectionQuestion(
        builds=tuple(builds),
        source=source,
        test_spec=spec,
        axes=axes,
        overrides=overrides,
        sites=(site,),
        from_sites=(from_site,) if from_site else (),
        metric=metric,
        is_exact=exact,
        certainty=certainty,
        job_limit=job_limit,
    )


def _parse_source(over: str, repository: str, command: str, software: str) -> CommitSource | None:
    if bool(over) == bool(repository):
        raise click.UsageError("Name the builds: either --over or --repository.")
    if not repository:
        return None
    if not command:
        raise click.UsageError("--repository needs --build COMMAND ('true' if nothing is built).")
    if FOLDER_PLACEHOLDER not in software:
        raise click.UsageError(f"--software must contain {FOLDER_PLACEHOLDER}.")
    return CommitSource(repository, command, software)


def _describe_start(state: BisectionState) -> str:
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
    left = "one build left" if first == last else f"builds {first}–{last} left"
    return (
        f"{len(state.probes):3}  build {probe.build} {title}: {_describe_result(probe)}; {left}, "
        f"best guess {format_share(conclusion.certainty)} certain"
    )


def _describe_result(probe: ProbeRecord) -> str:
    if probe.state == SKIPPED:
        return f"skipped ({probe.reason})"
    if probe.counter is not None:
        return f"{probe.counter[1]:g} (GOOD {probe.counter[0]:g})"
    if not probe.effects:
        return "no results"
    return ", ".join(map(format_effect, probe.effects))


def format_certainty(share: float) -> str:
    """Format a certainty, of which rounding makes no full one."""
    return "> 99.9 %" if 0.999 < share < 1 else format_share(share, 1)


def describe_conclusion(state: BisectionState, conclusion: Conclusion) -> str:
    """Describe the result of a search: builds, sizes, certainty and the campaigns behind it."""
    lines = list(_describe_outcome(state, conclusion))
    if skipped := [p for p in state.probes if p.state == SKIPPED]:
        titles = ", ".join(state.question.builds[p.build].title for p in skipped)
        lines.append(f"Skipped: {titles}")
    campaigns = " ".join(p.campaign for p in state.probes if p.campaign)
    lines += [f"{pluralize(state.jobs, 'job')}; campaigns: {campaigns}"]
    return "\n".join(lines)


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
    return [
        f"Undecided after {pluralize(state.jobs, 'job')}: the best guess is "
        f"{certainty}{_describe_last_level(conclusion)}.",
        f"Left: {builds[first].title} … {builds[last].title}"
        f"{_describe_shares(conclusion)}. Allow more with --jobs, or measure longer jobs.",
    ]


def _describe_last_level(conclusion: Conclusion) -> str:
    if conclusion.last_level is None:
        return ""
    mean, low, high = map(format_effect, conclusion.last_level)
    return f"; BAD is {mean} [{low}, {high}]"


def _describe_shares(conclusion: Conclusion) -> str:
    if conclusion.shares is None:
        return ""
    none, single, more = map(format_share, conclusion.shares)
    return f" (no step {none}, one {single}, more {more})"


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
        "probes": [
            {
                "build": builds[probe.build].name,
                "state": probe.state,
                "campaign": probe.campaign,
                "effects": probe.effects,
                "counter": probe.counter,
                "reason": probe.reason,
            }
            for probe in state.probes
        ],
    }
