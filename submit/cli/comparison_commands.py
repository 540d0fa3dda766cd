"""Comparisons on this machine: ``treehammer try | count``, and verdicts of local campaigns.

``try`` compares the working tree of a test with a commit, ``count`` the instructions of two releases.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from treehammer.analysis.cli.result_commands import delta_option, verbose_option
from treehammer.analysis.comparison import instruction_changes
from treehammer.analysis.comparison.instruction_changes import CountPair, InstructionChange
from treehammer.analysis.statistics.verdict import DEFAULT_DELTA, DEFAULT_MAX_LAUNCHES, LOOKS
from treehammer.collectors.job_spec import PAIRED
from treehammer.config import Settings
from treehammer.errors import ConfigError, ExitCode, NothingToDoError
from treehammer.hctests.cli import definition_options
from treehammer.hctests.definition.model import COMMIT_AXIS, format_commit
from treehammer.sql.cli import open_store
from treehammer.tables import TableColumn, hidden_columns
from treehammer.terminal import (
    TABLE,
    TEST,
    Block,
    CommandOutput,
    PathType,
    TextTable,
    add_options,
    on_interrupt,
    output_form,
    print_early,
    print_notes,
    print_output,
    print_remarks,
    prints_rows,
    progress_bar,
)

if TYPE_CHECKING:
    from treehammer.analysis.comparison.comparison import ComparisonQuery
    from treehammer.analysis.comparison.comparison_result import ComparisonResult
    from treehammer.sql.core.campaign_plan import SequentialPlan
    from treehammer.sql.core.rows import CampaignRow, InstructionRow
    from treehammer.sql.write.store import Store
    from treehammer.submit.planning.plan import Plan
    from treehammer.submit.tools.instruction_counts import CountResult, Valgrind
    from treehammer.submit.tools.local_comparison import LocalVerdict
    from treehammer.submit.tools.tree_comparison import TreeComparison

_CHANGE_KEYS = (*(field.name for field in fields(InstructionChange)), "difference")
#: Events of each file that are counted by default.
DEFAULT_EVENTS = 1000


def sequential_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of :func:`.parse_sequential_plan` to a command."""
    return add_options(
        command,
        click.option(
            "--max-launches",
            type=int,
            default=DEFAULT_MAX_LAUNCHES,
            show_default=True,
            help="Launches of each variant after which an undecided comparison ends, "
            f"{LOOKS[0]} to {LOOKS[-1]}.",
        ),
        delta_option,
    )


@click.command("try")
@click.argument("path", default=".", type=PathType(exists=True))
@click.option(
    "--against",
    default="HEAD",
    show_default=True,
    metavar="REF",
    help="Commit, branch or tag to compare the working tree with.",
)
@definition_options
@sequential_options
@verbose_option
@click.option(
    "--count", "counts", is_flag=True, help="Also list the functions whose instructions changed."
)
@prints_rows(keys="those of 'treehammer compare'")
@click.pass_obj
def try_command(
    settings: Settings,
    path: Path,
    against: str,
    axes: Mapping[str, tuple[str, ...]],
    overrides: Mapping[str, str],
    max_launches: int,
    delta: float,
    verbose: bool,
    counts: bool,
) -> int:
    """Compare the working tree of a test with its last commit, in turns on this machine.

    Compiles both sides first. Ends at once if one does not compile, or if both are the same
    machine code, and else as soon as it is decided whether the working tree is faster, slower or
    the same. PATH is the folder of a test, or one that contains a single changed test. Reads with
    the last ROOT release of the test unless -P root= names others. Exits with 1 when the working
    tree is slower by more than --delta, does not compile or fails, with 3 when nothing changed.
    Its jobs end with it.

    \b
    Example: treehammer try
             treehammer try tests/muons -P branches=0.02 --count
             treehammer try tests/muons --against main
    """
    from treehammer.submit.tools import local_comparison, tree_comparison
    from treehammer.submit.tools.instruction_counts import find_valgrind

    if counts and output_form() != TABLE:
        raise ConfigError("counts are printed as a table only", where="--count")
    sequential = local_comparison.parse_sequential_plan(max_launches, delta)
    valgrind = find_valgrind() if counts else None
    with on_interrupt("nothing was submitted"):
        folder = tree_comparison.find_changed_test(path, against, settings)
        compared = tree_comparison.plan_tree_comparison(
            folder, against, axes, overrides, settings, progress_bar
        )
        if not _try_sides(compared):
            return ExitCode.REGRESSION
    code = measure_until_decided(
        compared.plan, sequential, settings, compared.names, verbose=verbose
    )
    if valgrind is not None:
        with on_interrupt("the verdict is stored"):
            _count_instructions(compared, valgrind, settings)
    return code


def _try_sides(compared: TreeComparison) -> bool:
    """Compile both sides; print the failures and return whether there are none.

    Raises:
        NothingToDoError: both are the same machine code.
    """
    from treehammer.submit.cli.campaign_output import print_phase
    from treehammer.submit.tools.tree_comparison import try_sides

    print_phase("compiling both sides")
    trials = try_sides(compared.plan)
    for commit, text in trials.failures.items():
        print_notes(f"Nothing was measured, because {compared.names[commit]} fails: {text}")
    if trials.same_work:
        base, tree = compared.names.values()
        raise NothingToDoError(
            f"{tree} compiles to the same machine code as {base}, and nothing else of it differs",
            where=compared.plan.pinned_test.definition.test.name,
            hint="Only comments, names or layout changed, so there is nothing to measure.",
        )
    return not trials.failures


def measure_until_decided(
    plan: Plan,
    sequential: SequentialPlan,
    settings: Settings,
    names: Mapping[str, str],
    *,
    verbose: bool,
) -> ExitCode:
    """Run launches until a comparison is decided, print the verdicts and return the exit code."""
    from treehammer.analysis.cli.comparison_output import flatten_results
    from treehammer.analysis.comparison.comparison_result import rate_results
    from treehammer.submit.batch.local_batch import LocalBatch
    from treehammer.submit.cli import campaign_output
    from treehammer.submit.tools.local_comparison import run_until_decided

    owner = LocalBatch(settings.spool_dir).owned(plan.campaign_id)
    with on_interrupt(f"campaign {plan.campaign_id} is cancelled"), owner:
        display = campaign_output.make_display(to_stderr=True)
        verdict = run_until_decided(plan, sequential, settings, display)
    if output_form() != TABLE:
        print_output(CommandOutput(flatten_results(verdict.results), ()))
    print_local_verdict(verdict, sequential, settings, names, verbose=verbose)
    failed = campaign_output.rate_progress(verdict.progress)
    return failed or rate_results(verdict.results, sequential.delta)


def _count_instructions(compared: TreeComparison, valgrind: Valgrind, settings: Settings) -> None:
    """Count instructions of both sides, and print those of functions that changed."""
    from treehammer.hctests.definition.test_identity import compute_test_hash
    from treehammer.submit.tools.instruction_counts import build_rows, count_plan

    plan = compared.plan
    result = count_plan(plan, valgrind, settings, progress_bar, events=DEFAULT_EVENTS, repeats=1)
    rows = chain.from_iterable(
        build_rows(repeated.reads[0], valgrind) for repeated in result.counts
    )
    hashes = map(compute_test_hash, plan.pinned_test.commits.values())
    for pair in instruction_changes.pair_counts(rows, COMMIT_AXIS, *hashes):
        print_early("", *_describe_count_pair(pair, *compared.names.values()))
    print_remarks(result.problems)
    print_notes(instruction_changes.NOT_TIME)


@click.command("count")
@click.argument("a")
@click.argument("b")
@click.argument("spec", metavar="TEST", type=TEST)
@definition_options
@click.option(
    "--events",
    type=click.IntRange(min=0),
    default=DEFAULT_EVENTS,
    show_default=True,
    help="Count this many events of each file; 0 for all.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Count each variant so often, and print the largest difference.",
)
@prints_rows(*hidden_columns(*_CHANGE_KEYS))
@click.pass_obj
def count(
    settings: Settings,
    a: str,
    b: str,
    spec: str,
    axes: Mapping[str, tuple[str, ...]],
    overrides: Mapping[str, str],
    events: int,
    repeats: int,
) -> CommandOutput:
    """Count the instructions per event of a test's read with two ROOT releases.

    Runs each variant of TEST on this machine under callgrind, which is some hundred times slower
    than the read itself. Counts are repeatable to 10⁻⁵, but they are not time.

    \b
    Example: treehammer count 6.38.00 6.40.00 ttree-read -P branches=1 -P cache_mb=30
    """
    from treehammer.submit.campaigns.campaign_request import plan_request
    from treehammer.submit.planning.submission_options import CampaignRequest
    from treehammer.submit.tools.instruction_counts import build_rows, count_plan, find_valgrind

    if a == b:
        raise ConfigError(f"both sides are {a}", where="count")
    if "root" in axes:
        raise ConfigError("the releases are given as A and B", where="-P root")
    valgrind = find_valgrind()
    with on_interrupt("nothing was stored"):
        request = CampaignRequest(spec, {**axes, "root": (a, b)}, overrides)
        plan = plan_request(request, settings, bars=progress_bar)
        result = count_plan(plan, valgrind, settings, progress_bar, events=events, repeats=repeats)
        counts = [build_rows(repeated.reads[0], valgrind) for repeated in result.counts]
        if counts:
            with open_store(settings, create=True) as store:
                for rows in counts:
                    store.replace_instruction_count(rows)
    return _describe_counts(result, chain.from_iterable(counts), a, b)


def _describe_counts(
    result: CountResult, rows: Iterable[InstructionRow], a: str, b: str
) -> CommandOutput:
    """Describe the changes of instructions between two releases, A and B."""
    pairs = instruction_changes.pair_counts([*rows], "root", a, b)
    changes = [c for pair in pairs for c in (pair.total, *pair.libraries(), *pair.functions())]
    return CommandOutput(
        [instruction_changes.flatten_change(change) for change in changes],
        (),
        above=[block for pair in pairs for block in _describe_count_pair(pair, a, b)],
        notes=[_describe_repeats(result)],
        remarks=result.problems,
        exit_code=ExitCode.INFRASTRUCTURE if result.problems else ExitCode.DONE,
    )


def _describe_count_pair(pair: CountPair, a: str, b: str) -> list[Block]:
    """Describe the changes of one variant by library, and of its functions; A and B name the sides."""
    facts = pair.a.facts
    return [
        f"{facts.test_name} {pair.label}, {facts.events:,} events of {facts.dataset}",
        "Instructions/event by library",
        TextTable(
            [_flatten(change) for change in (*pair.libraries(), pair.total)],
            (TableColumn("library", "library"), *instruction_changes.change_columns(a, b)),
        ),
        "\nFunctions with the largest changes",
        TextTable(
            [_flatten(change) for change in pair.functions()],
            (
                instruction_changes.DIFFERENCE_COLUMN,
                TableColumn("library", "library"),
                TableColumn("function", "function", lambda s: s if len(s) <= 90 else f"{s[:89]}…"),
            ),
        ),
        "",
    ]


def _flatten(change: InstructionChange) -> dict[str, Any]:
    return {**instruction_changes.flatten_change(change), "library": change.library or "all"}


def _describe_repeats(result: CountResult) -> str:
    spreads = [repeated.spread for repeated in result.counts if repeated.spread is not None]
    if not spreads:
        return instruction_changes.NOT_TIME
    runs = len(result.counts[0].reads)
    return f"{instruction_changes.NOT_TIME} {runs} runs of a variant differ by at most {max(spreads):.0e}."


def print_local_verdict(
    verdict: LocalVerdict,
    sequential: SequentialPlan,
    settings: Settings,
    names: Mapping[str, str] = MappingProxyType({}),
    *,
    verbose: bool,
) -> None:
    """Print the verdicts, the failures and the reason for the end; ``names`` are those of commits."""
    from treehammer.submit.campaigns.campaign_polling import make_tracker
    from treehammer.submit.cli import campaign_output
    from treehammer.submit.tools.local_comparison import describe_failed_sides

    sentences: list[str] = []
    failures: list[str] = []
    launches = f"after {verdict.launches} launches of each variant"
    if campaign_output.rate_progress(verdict.progress):
        with open_store(settings, create=True) as store:
            tracker = make_tracker(store, settings)
            failures = [*describe_failed_sides(tracker, verdict.campaign, names)]
        if not any(result.is_comparable for result in verdict.results):
            print_notes(f"Nothing was compared: {failures[0]}", *failures[1:])
            return
    elif not verdict.results:
        sentences = [f"Nothing can be compared {launches}."]
    elif not verdict.decided:
        sentences = [f"Undecided {launches}; --max-launches sets a higher limit."]
    elif verbose:
        sentences = [f"Decided {launches}, of at most {sequential.looks[-1]}."]
    _print_verdict(verdict.results, names, verdict.campaign, *sentences, verbose=verbose)
    print_notes(*failures)


def print_planned_verdict(
    store: Store, campaign: CampaignRow, plan: Plan, delta: float, *, verbose: bool
) -> None:
    """Print the verdict of a campaign that compares in turns, and ran as planned."""
    from treehammer.submit.cli.campaign_output import make_display
    from treehammer.submit.tools.local_comparison import judge_and_store

    definition = plan.pinned_test.definition
    if definition.test.mode == PAIRED and not definition.load:
        results = judge_and_store(store, campaign, make_display().notify, delta)
        _print_verdict(results, {}, campaign, verbose=verbose)


def _print_verdict(
    results: Sequence[ComparisonResult],
    names: Mapping[str, str],
    campaign: CampaignRow,
    *sentences: str,
    verbose: bool,
) -> None:
    from treehammer.analysis.cli import comparison_output

    blocks = comparison_output.describe_comparisons(results, names, verbose=verbose)
    print_early(*blocks)
    print_notes(*sentences, *_describe_details(results, campaign))


def _describe_details(results: Sequence[ComparisonResult], campaign: CampaignRow) -> Iterator[str]:
    """Yield the commands that show the notes, counters and instructions as well, one for each axis."""
    by_axis: dict[str, list[ComparisonQuery]] = {}
    for result in results:
        query = result.comparison.query
        by_axis.setdefault(query.axis, []).append(query)
    for axis, queries in by_axis.items():
        first = queries[0]
        values = [str(value) for value in (first.a, *(query.b for query in queries))]
        if axis == COMMIT_AXIS:  # a campaign has one state of a working tree at most
            values = [*map(format_commit, values)]
        words = ["treehammer", "compare", *values, "--axis", axis, "--campaign", campaign.id]
        if first.delta != DEFAULT_DELTA:
            words += ["--delta", f"{first.delta:g}"]
        yield f"Details: {shlex.join(words)}"
