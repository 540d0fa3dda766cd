"""``treehammer bisect``: find the build that changed a metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from treehammer.analysis.statistics.verdict import DEFAULT_CERTAINTY
from treehammer.config import Settings
from treehammer.errors import ConfigError, ExitCode
from treehammer.hctests.cli import definition_options
from treehammer.submit.cli.command_options import submission_click_options
from treehammer.submit.tools import FOLDER_PLACEHOLDER
from treehammer.tables import hidden_columns
from treehammer.terminal import (
    SITE,
    TEST,
    CommandOutput,
    NumberRange,
    on_interrupt,
    print_notes,
    prints_rows,
    progress_bar,
)

if TYPE_CHECKING:
    from treehammer.submit.planning.submission_options import SubmissionOptions
    from treehammer.watch.bisection.bisection_state import BisectionQuestion, CommitSource


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
    default=f"build:{FOLDER_PLACEHOLDER}",
    show_default=True,
    help="Value of the axis root for a built commit; e.g. path:{build}/install for ROOT itself.",
)
@click.option(
    "--metric",
    default="cpu_per_event_s",
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
    type=NumberRange(0.5, 0.999),
    default=DEFAULT_CERTAINTY,
    show_default=True,
    help="Probability at which the search ends.",
)
@click.option(
    "--jobs",
    "job_limit",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    help="End undecided after so many jobs.",
)
@click.option(
    "--site", default="local", show_default=True, type=SITE, help="Site whose storage is read."
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
    settings: Settings, /, resume: str | None, options: SubmissionOptions, **question: Any
) -> CommandOutput:
    """Find the build between GOOD and BAD that changed a metric of TEST.

    Each job measures one build beside GOOD. The next build is the most informative one; the search
    ends at the requested certainty. The exit code is 0 if the build was found, 3 if nothing changed
    or no answer is certain.

    \b
    Example: treehammer bisect 6.38.00 6.40.00 ttree-read -P cache_mb=30 \\
               --over 6.38.00,6.39.01,6.40.00
             treehammer bisect v1.0 main mylib/ --repository ../mylib --build make
             treehammer bisect 5.1.2 5.3.0 uproot-read -P format=ttree --over pypi:uproot
    """
    from treehammer.watch.bisection import bisection_report, bisection_state
    from treehammer.watch.bisection.bisection_run import BisectionRun
    from treehammer.watch.bisection.bisection_search import SearchOutcome

    if resume:
        state = bisection_state.load_state(settings, resume)
    else:
        state = bisection_state.BisectionState.start(_make_question(settings, **question))
    print_notes(bisection_report.describe_start(state))
    run = BisectionRun(
        state,
        settings,
        lambda now, conclusion: print_notes(bisection_report.describe_probe(now, conclusion)),
        options,
        progress_bar,
    )
    with on_interrupt(f"continue with: treehammer bisect --resume {state.id}"):
        conclusion = run.run()
    document = bisection_report.make_document(run.state, conclusion)
    is_answered = conclusion.outcome in (SearchOutcome.STEP, SearchOutcome.SEVERAL_STEPS)
    return CommandOutput(
        document["probes"],
        (),
        above=["\n" + bisection_report.describe_conclusion(run.state)],
        document=document,
        exit_code=ExitCode.DONE if is_answered else ExitCode.NOTHING,
    )


def _make_question(
    settings: Settings,
    *,
    good: str,
    bad: str,
    spec: str,
    exact: bool | None,
    site: str,
    from_site: str,
    metric: str,
    over: str,
    repository: str,
    command: str,
    software: str,
    **fields: Any,
) -> BisectionQuestion:
    """Make the question; ``fields`` have the same names in it."""
    from treehammer.hctests.pinned_tests import load_pinned_test
    from treehammer.watch.bisection import bisection_state
    from treehammer.watch.bisection.bisection_run import is_exact_counter

    if not (good and bad and spec):
        raise click.UsageError("GOOD, BAD and TEST are required, or --resume.")
    if "root" in fields["axes"]:
        raise ConfigError("the builds are the values of this axis", where="-P root")
    if source := _parse_source(over, repository, command, software):
        builds = bisection_state.list_commits(good, bad, source, settings)
    else:
        builds = bisection_state.list_builds(good, bad, over)
        bisection_state.check_builds(builds, settings.software_dir)
    if exact is None:
        exact = is_exact_counter(metric, load_pinned_test(spec, {}, {}, settings).definition)
    return bisection_state.BisectionQuestion(
        builds=tuple(builds),
        source=source,
        test_spec=spec,
        sites=(site,),
        from_sites=(from_site,) if from_site else (),
        metric=metric,
        is_exact=exact,
        **fields,
    )


def _parse_source(over: str, repository: str, command: str, software: str) -> CommitSource | None:
    from treehammer.watch.bisection.bisection_state import CommitSource

    if bool(over) == bool(repository):
        raise click.UsageError("Name the builds: either --over or --repository.")
    if not repository:
        return None
    if not command:
        raise click.UsageError("--repository needs --build COMMAND ('true' if nothing is built).")
    if FOLDER_PLACEHOLDER not in software:
        raise click.UsageError(f"--software must contain {FOLDER_PLACEHOLDER}.")
    return CommitSource(repository, command, software)
