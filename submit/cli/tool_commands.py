"""Commands that measure with jobs of their own: ``treehammer read | bisect``."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from treehammer.analysis.statistics.verdict import DEFAULT_CERTAINTY
from treehammer.config import Settings
from treehammer.errors import ConfigError, ExitCode
from treehammer.hctests.cli import definition_options
from treehammer.submit.cli.command_options import submission_click_options
from treehammer.submit.tools import FOLDER_PLACEHOLDER
from treehammer.tables import TableColumn, hidden_columns
from treehammer.terminal import (
    NAMES,
    SITE,
    TABLE,
    TEST,
    CommandOutput,
    on_interrupt,
    output_form,
    print_notes,
    prints_rows,
    progress_bar,
)
from treehammer.text_formatting import format_share, format_significant

if TYPE_CHECKING:
    from treehammer.submit.planning.submission_options import SubmissionOptions
    from treehammer.submit.tools.bisection_state import BisectionQuestion, CommitSource

_COLUMNS = (
    TableColumn("root", "ROOT"),
    TableColumn("events_per_s", "events/s", "{:,.0f}".format, is_number=True),
    TableColumn("compressed_mb_per_s", "MB/s compressed", format_significant, is_number=True),
    TableColumn("uncompressed_mb_per_s", "MB/s uncompressed", format_significant, is_number=True),
    TableColumn("cpu_efficiency", "CPU efficiency", format_share, is_number=True),
    TableColumn("wall_s", "s/pass", format_significant, is_number=True),
    TableColumn("cpu_s", "CPU s/pass", format_significant, is_number=True),
    TableColumn("passes", "passes", is_number=True),
)


@click.command("read")
@click.argument("addresses", nargs=-1, required=True, metavar="FILE|URL...")
@click.option("--tree", default="", help="TTree or RNTuple to read [default: the largest].")
@click.option(
    "-b",
    "--branches",
    "patterns",
    multiple=True,
    metavar="PATTERN",
    help="Branches to read, e.g. 'Muon_*,!Muon_eta'; repeatable [default: all].",
)
@click.option(
    "--root",
    "releases",
    type=NAMES,
    default="",
    metavar="A,B",
    help="ROOT releases, as on the axis root; several are compared with the first "
    "[default: the newest cached one].",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Threads; several fill histograms of the columns with RDataFrame.",
)
@click.option(
    "--cache-mb",
    type=click.FloatRange(0, 100_000),
    default=30.0,
    show_default=True,
    help="MB of TTreeCache; 0 for none.",
)
@click.option(
    "--cold", is_flag=True, help="Evict local files from the page cache before each read."
)
@click.option(
    "--keep",
    metavar="NAME",
    default="",
    help="Keep the measurements in the results database, as campaign NAME [default: keep nothing].",
)
@prints_rows(*_COLUMNS)
@click.pass_obj
def read_command(
    settings: Settings,
    addresses: tuple[str, ...],
    tree: str,
    patterns: tuple[str, ...],
    releases: tuple[str, ...],
    threads: int,
    cache_mb: float,
    cold: bool,
    keep: str,
) -> CommandOutput:
    """Measure how fast ROOT reads a file, and what limits it.

    Reads the main TTree or RNTuple of a local file, or of one behind root://, http:// or https://,
    event by event. With several releases, the exit code is 1 if one is slower than the first by more
    than 2 %.

    \b
    Example: treehammer read ntuple.root
             treehammer read root://server//store/ntuple.root --tree Events -b 'Muon_*'
             treehammer read ntuple.root --root 6.38.00,6.40.00
    """
    from treehammer.analysis.cli import comparison_output
    from treehammer.submit.cli.campaign_output import make_display
    from treehammer.submit.tools.file_read import ReadRequest, choose_releases
    from treehammer.submit.tools.read_session import describe_content, measure_files

    roots = choose_releases(releases, addresses, settings.software_dir)
    request = ReadRequest(roots, ",".join(patterns), cache_mb, cold, threads, keep, tree)
    with (
        _stop_on_sigterm(),
        on_interrupt(f"campaign {keep} was cancelled" if keep else "nothing was kept"),
    ):
        result = measure_files(
            addresses, request, settings, progress_bar, make_display(to_stderr=True)
        )
    below = [f"{rates.root}: {rates.describe_bottleneck()}." for rates in result.rates]
    if result.is_not_compared:
        below.append("No verdict: with several threads, releases cannot take turns.")
    document = result.to_document()
    is_kept = keep and output_form() == TABLE
    return CommandOutput(
        document["reads"],
        above=[*describe_content(result)],
        below=[*below, "", *comparison_output.describe_comparisons(result.comparisons)],
        notes=[f"Kept: treehammer summary --campaign {result.campaign.name}"] if is_kept else [],
        document=document,
        exit_code=result.exit_code,
    )


@contextmanager
def _stop_on_sigterm() -> Iterator[None]:
    """Handle SIGTERM as Ctrl-C, so that no job outlives its folder."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
    type=click.FloatRange(0.5, 0.999),
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
             treehammer bisect 5.1.2 5.3.0 uproot-read --over pypi:uproot
    """
    from treehammer.analysis.bisection import SearchOutcome
    from treehammer.submit.tools import bisection_report
    from treehammer.submit.tools.bisection_run import BisectionRun
    from treehammer.submit.tools.bisection_state import BisectionState, load_state

    if resume:
        state = load_state(settings, resume)
    else:
        state = BisectionState.start(_make_question(settings, **question))
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
        above=["\n" + bisection_report.describe_conclusion(run.state, conclusion)],
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
    from treehammer.submit.tools import bisection_state
    from treehammer.submit.tools.bisection_run import is_exact_counter

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
    from treehammer.submit.tools.bisection_state import CommitSource

    if bool(over) == bool(repository):
        raise click.UsageError("Name the builds: either --over or --repository.")
    if not repository:
        return None
    if not command:
        raise click.UsageError("--repository needs --build COMMAND ('true' if nothing is built).")
    if FOLDER_PLACEHOLDER not in software:
        raise click.UsageError(f"--software must contain {FOLDER_PLACEHOLDER}.")
    return CommitSource(repository, command, software)
