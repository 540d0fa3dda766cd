"""Command ``treehammer count``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import click

from treehammer.analysis.cli.instruction_columns import DIFFERENCE_COLUMN, change_columns
from treehammer.analysis.comparison import instruction_changes
from treehammer.analysis.comparison.instruction_changes import CountPair, InstructionChange
from treehammer.config import Settings
from treehammer.errors import ConfigError, ExitCode
from treehammer.hctests.cli.definition_options import definition_options
from treehammer.hctests.cli.shipped_test_names import complete_tests
from treehammer.sql.core.rows import InstructionRow
from treehammer.sql.write.store import Store
from treehammer.submit.counting import count_runner
from treehammer.submit.counting.callgrind_run import find_valgrind
from treehammer.submit.counting.count_runner import CountResult
from treehammer.submit.lifecycle.campaign_request import CampaignRequest, plan_request
from treehammer.tables import TableColumn
from treehammer.terminal import (
    TABLE,
    on_interrupt,
    output_options,
    print_hint,
    print_rows,
    progress_bar,
)

#: Events of each file that are counted by default.
DEFAULT_EVENTS = 1000


@click.command("count")
@click.argument("a")
@click.argument("b")
@click.argument("spec", metavar="TEST", shell_complete=complete_tests)
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
@click.option("--no-store", is_flag=True, help="Do not write the counts to the database.")
@output_options
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
    no_store: bool,
    form: str,
) -> ExitCode:
    """Count the instructions per event of a test's read with two ROOT releases.

    Runs each variant of TEST on this machine under callgrind, which is some hundred times slower
    than the read itself. Counts are repeatable to 10⁻⁵, but they are not time.

    \b
    Example: treehammer count 6.38.00 6.40.00 ttree-read -P branches=1 -P cache_mb=30
    """
    if a == b:
        raise ConfigError(f"both sides are {a}", where="count")
    if "root" in axes:
        raise ConfigError("the releases are given as A and B", where="-P root")
    valgrind = find_valgrind()
    with on_interrupt("nothing was stored"):
        request = CampaignRequest(spec, {**axes, "root": (a, b)}, overrides)
        plan = plan_request(request, settings, fetch=True, bars=progress_bar)
        result = count_runner.count_plan(
            plan, valgrind, settings, progress_bar, events=events, repeats=repeats
        )
        counts = [
            count_runner.build_rows(repeated.reads[0], valgrind) for repeated in result.counts
        ]
        if counts and not no_store:
            _store_counts(settings, counts)
    for problem in result.problems:
        print_hint(problem, err=True)
    _print_counts(list(chain.from_iterable(counts)), result, a, b, form)
    return ExitCode.INFRASTRUCTURE if result.problems else ExitCode.DONE


def _store_counts(settings: Settings, counts: Iterable[Sequence[InstructionRow]]) -> None:
    with Store.open(settings.database) as store:
        for rows in counts:
            store.replace_instruction_count(rows)


def _print_counts(
    rows: Sequence[InstructionRow], result: CountResult, a: str, b: str, form: str
) -> None:
    pairs = instruction_changes.pair_counts(rows, "root", a, b)
    if form != TABLE:
        changes = [change for pair in pairs for change in _list_changes(pair)]
        print_rows(
            [
                instruction_changes.flatten_change(instruction_change)
                for instruction_change in changes
            ],
            (),
            form=form,
        )
    for pair in pairs if form == TABLE else ():
        print_count_pair(pair, a, b)
    click.echo(_describe_repeats(result), err=form != TABLE)


def print_count_pair(pair: CountPair, a: str, b: str) -> None:
    """Print the changes of one variant by library, and of its functions; A and B name the sides."""
    facts = pair.a.facts
    click.echo(f"{facts.test_name} {pair.label}, {facts.events:,} events of {facts.dataset}")
    click.echo("Instructions/event by library")
    print_rows(
        [_flatten(change) for change in (*pair.libraries(), pair.total)],
        (TableColumn("library", "library"), *change_columns(a, b)),
    )
    click.echo("\nFunctions with the largest changes")
    print_rows(
        [_flatten(change) for change in pair.functions()],
        (
            DIFFERENCE_COLUMN,
            TableColumn("library", "library"),
            TableColumn("function", "function", _shorten),
        ),
    )
    click.echo()


def _list_changes(pair: CountPair) -> list[InstructionChange]:
    return [pair.total, *pair.libraries(), *pair.functions()]


def _flatten(change: InstructionChange) -> dict[str, Any]:
    return {
        **instruction_changes.flatten_change(change),
        "library": change.library or "all",
    }


def _shorten(function: str) -> str:
    return function if len(function) <= 90 else f"{function[:89]}…"


def _describe_repeats(result: CountResult) -> str:
    spreads = [repeated.spread for repeated in result.counts if repeated.spread is not None]
    if not spreads:
        return instruction_changes.NOT_TIME
    runs = len(result.counts[0].reads)
    return f"{instruction_changes.NOT_TIME} {runs} runs of a variant differ by at most {max(spreads):.0e}."
