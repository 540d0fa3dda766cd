"""``treehammer reproduce``: published results beside what is measured here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from treehammer.config import Settings
from treehammer.errors import ConfigError, ExitCode, NothingToDoError
from treehammer.reproduce.output import COLUMNS
from treehammer.sql.cli import open_store
from treehammer.tables import TableColumn, hidden_columns
from treehammer.terminal import (
    SITE,
    CommandOutput,
    on_interrupt,
    print_early,
    prints_rows,
    progress_bar,
)
from treehammer.text_formatting import split_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from treehammer.reproduce.agreement import Reproduction
    from treehammer.reproduce.published_result import PublishedResult


@click.command("reproduce")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--quick", is_flag=True, help="Only results that take less than two minutes.")
@click.option(
    "--stored", is_flag=True, help="Measure nothing; judge by the newest campaigns in the database."
)
@click.option(
    "--sites",
    type=SITE,
    default="local",
    show_default=True,
    help="Sites to measure at, comma separated; results over distance need a door of a server.",
)
@click.option("--list", "only_list", is_flag=True, help="List the results with their sources.")
@prints_rows(*COLUMNS)
@click.pass_obj
def reproduce(
    settings: Settings,
    names: tuple[str, ...],
    quick: bool,
    stored: bool,
    sites: str,
    only_list: bool,
) -> CommandOutput:
    """Measure published results again, and print them beside those in print.

    NAME is a shipped result, or a folder with a result.toml. A result agrees if the whole interval
    of the ratio that is measured here lies within the published range and its tolerance. The exit
    code is 1 if one differs, and 3 if none can be judged.

    \b
    Example: treehammer reproduce --list
             treehammer reproduce --quick
             treehammer reproduce zlib-over-lz4
    """
    from treehammer.reproduce.agreement import load_latest
    from treehammer.reproduce.published_result import find_results

    results = find_results(names)
    if quick:
        results = [result for result in results if result.campaign.is_quick]
        if not results:
            raise NothingToDoError("none of these results is quick", where="--quick")
    if only_list:
        return _list_results(results)
    if stored:
        with open_store(settings) as store:
            return describe_reproductions([*load_latest(store, results)])
    return describe_reproductions(_measure(results, sites, settings))


def _measure(
    results: Sequence[PublishedResult], sites: str, settings: Settings
) -> list[Reproduction]:
    from treehammer.reproduce.reproduction import reproduce_results
    from treehammer.submit.cli.campaign_output import make_display
    from treehammer.submit.sites.site_registry import select_sites

    names = split_list(sites)
    if not names:
        raise ConfigError("no site given", where="--sites", hint="Try --sites local.")
    # A wrong name ends the command before it makes data, which takes minutes.
    select_sites(names, settings)

    def announce(result: PublishedResult) -> None:
        print_early(f"{result.name}: {result.published.title}")

    with on_interrupt("the campaign was cancelled; results before it are stored"):
        return [
            *reproduce_results(
                results, names, settings, progress_bar, make_display(to_stderr=True), announce
            )
        ]


def describe_reproductions(reproductions: Sequence[Reproduction]) -> CommandOutput:
    """Make the output: the table, a sentence for each that does not agree, and the exit code."""
    from treehammer.reproduce.agreement import Agreement

    below = []
    for reproduction in reproductions:
        published = reproduction.result.published
        if reproduction.agreement is not Agreement.AGREES:
            note = f" {published.note}" if published.note else ""
            below.append(f"{reproduction.result.name}: {reproduction.reason}.{note}")
    agreements = {reproduction.agreement for reproduction in reproductions}
    code = ExitCode.DONE
    if Agreement.DIFFERS in agreements:
        code = ExitCode.REGRESSION
    elif Agreement.AGREES not in agreements:
        code = ExitCode.NOTHING
    rows = [reproduction.to_row() for reproduction in reproductions]
    return CommandOutput(rows, below=below, exit_code=code)


def _list_results(results: Sequence[PublishedResult]) -> CommandOutput:
    rows = [
        {
            "name": result.name,
            "title": result.published.title,
            "source": result.published.source,
            "quick": result.campaign.is_quick,
        }
        for result in results
    ]
    columns = (
        TableColumn("name", "name"),
        TableColumn("title", "published result", is_long=True),
        TableColumn("source", "source", is_long=True),
        *hidden_columns("quick"),
    )
    return CommandOutput(rows, columns)
