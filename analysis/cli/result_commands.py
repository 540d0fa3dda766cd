"""Commands ``compare``, ``summary`` and ``explain``: verdicts, figures of campaigns, and causes of lost time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from treehammer.analysis.descriptive.efficiency_diagnosis import PART_COLUMNS
from treehammer.analysis.statistics.verdict import DEFAULT_DELTA
from treehammer.collectors.record.operation_steps import FIGURE_NAMES
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.hctests.definition.model import ANY_COMMAND, COMMIT_AXIS
from treehammer.sql.cli import open_store, pass_store
from treehammer.tables import DataTable, TableColumn
from treehammer.terminal import (
    CAMPAIGN,
    NAMES,
    SITE,
    CommandOutput,
    NumberRange,
    on_interrupt,
    prints_rows,
)
from treehammer.text_formatting import format_share, split_list
from treehammer.verticals import import_parts

if TYPE_CHECKING:
    from treehammer.analysis.descriptive.group_summary import Summary
    from treehammer.config import Settings
    from treehammer.sql.core.rows import CampaignRow
    from treehammer.sql.read.query_model import Selection
    from treehammer.sql.read.reader import ResultsReader
    from treehammer.sql.write.store import Store

#: Metrics shown by default, and of measurements without rates of events, as those of commands.
DEFAULT_QUANTITIES = "access_rate_hz,eff_access,eff_job"
_TIMES_AND_CPU = ("cpu_per_event_s", "wall_per_event_s", "eff_job")
#: Days of the states of storages, up to today (UTC).
DAYS = 14

_where_option = click.option(
    "--where", "wheres", multiple=True, metavar="COLUMN=VALUE", help="Only these measurements."
)
delta_option = click.option(
    "--delta",
    type=NumberRange(min=0),
    default=DEFAULT_DELTA,
    show_default=True,
    help="Effects within this count as none; in ln, so 0.02 is about 2 %.",
)
#: For commands that print verdicts.
verbose_option = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Also say how the verdicts were reached: controls, checks, builds, counters, plans.",
)


@click.command("compare")
@click.argument("a")
@click.argument("b", nargs=-1, required=True)
@click.option("--axis", default="root", show_default=True, help="Axis of the values A and B.")
@click.option(
    "--campaign", metavar="ID|last", help="Only this campaign [default: all].", type=CAMPAIGN
)
@_where_option
@delta_option
@verbose_option
@prints_rows(keys="those of verdicts, exact counters and phases, which scope tells apart")
@on_interrupt("nothing half-made was stored")
@pass_store
def compare_command(
    settings: Settings,
    store: Store,
    /,
    a: str,
    b: tuple[str, ...],
    axis: str,
    campaign: str | None,
    wheres: tuple[str, ...],
    delta: float,
    verbose: bool,
) -> CommandOutput:
    """Say whether B is faster or slower than A, where, and how certain that is.

    A and B are ROOT releases, or values of another axis of the test; site, door, campaign (by name,
    too) and commit (hash, branch or tag of the test's repository) can be compared as well.  Several
    B are each compared with A and share one correction for the number of tests.  Exits with 1 when
    something is slower by more than --delta, with 3 when nothing can be compared.

    \b
    Example: treehammer compare 6.38.00 6.40.00
             treehammer compare 6.36.00 6.38.00 6.40.00
             treehammer compare 0 30 --axis cache_mb --campaign last
             treehammer compare main my-branch --axis commit
    """
    from treehammer.analysis.cli import comparison_output
    from treehammer.analysis.comparison import comparison_result
    from treehammer.sql.read.campaign_queries import load_plans
    from treehammer.sql.read.query_model import Selection

    selection = Selection.parse([store.campaign(campaign).id] if campaign else [], wheres)
    results, names = comparison_result.compare_named(
        store, selection, axis, [a, *b], delta, settings
    )
    reason = ""
    if axis == COMMIT_AXIS and not any(result.is_comparable for result in results):
        reason = comparison_result.explain_incomparable(store, selection, names)
    remarks = [f"The commits were measured in different ways: {reason}."] if reason else []
    for definition in (plan.definition for plan in load_plans(store, selection.campaigns).values()):
        if definition.payload == ANY_COMMAND:
            remarks.append(f"{definition.description}.")
            for side, variables in definition.settings.get("environments", {}).items():
                remarks.append(f"Environment {side}: {' '.join(map('='.join, variables.items()))}")
    return CommandOutput(
        comparison_output.flatten_results(results),
        (),
        above=comparison_output.describe_comparisons(results, names, verbose=verbose),
        remarks=remarks,
        exit_code=comparison_result.rate_results(results, delta),
    )


@click.command("summary")
@click.option(
    "--campaign",
    type=CAMPAIGN,
    default="last",
    show_default=True,
    metavar="ID|last|all",
    help="Campaign to summarize.",
)
@_where_option
@click.option(
    "--by",
    type=NAMES,
    default="",
    help="Axes or columns to group by [default: all that vary].",
)
@click.option(
    "--metrics",
    type=NAMES,
    help=f"Metrics to show [default: {DEFAULT_QUANTITIES}; of commands "
    f"{','.join(_TIMES_AND_CPU)}; of load tests, their operations].",
)
@click.option(
    "--baseline", metavar="NAME=VALUE", help="Ratio to the group that differs in this alone."
)
@click.option(
    "--letters", is_flag=True, help="Status of each storage and day by its load tests (study S1)."
)
@prints_rows(
    keys="columns of --by, jobs, hosts, counts of measurements by outcome, and of each metric its mean "
    "(NAME, NAME_low, NAME_high) and ratio (NAME_ratio, NAME_ratio_low, NAME_ratio_high); of load "
    f"tests {', '.join(FIGURE_NAMES)}"
)
@click.pass_obj
def summary_command(
    settings: Settings,
    campaign: str,
    wheres: tuple[str, ...],
    by: tuple[str, ...],
    metrics: tuple[str, ...] | None,
    baseline: str | None,
    letters: bool,
) -> CommandOutput:
    """Summarize a campaign: mean values over jobs with 95 % intervals, by group.

    Of a load test the rates, failures and latencies of its operations are shown, in total over jobs
    that ran at the same time.

    NAMES are separated by commas: axes of the test or columns of the catalogue for --by, of load
    tests also step and server; quantities of the catalogue or of the test's own [metrics] for
    --metrics.

    --letters covers the load tests of all campaigns in the last 14 days.

    \b
    Example: treehammer summary --by site,door,access,cache_mb
             treehammer summary --metrics event_rate_hz,eff_job --baseline access=direct
             treehammer summary --campaign open-rate --by rate_hz,step
             treehammer summary --letters
    """
    if letters:
        if any((campaign != "last", wheres, by, metrics, baseline)):
            raise click.UsageError("--letters has no other options than --json and --csv.")
        with open_store(settings) as store:
            return _summarize_letters(store)
    from treehammer.sql.read.query_model import Selection

    names = tuple(dict.fromkeys(by))
    with open_store(settings) as store:
        campaign_row = None if campaign == "all" else store.campaign(campaign)
        selection = Selection.parse((campaign_row.id,) if campaign_row else (), wheres)
        summary: Summary | None = None
        if metrics is None and baseline is None:
            summary = _summarize_operations(store, selection, names)
        if summary is None:
            summary = _summarize_metrics(store, selection, campaign_row, names, metrics, baseline)
    rows = summary.list_rows()
    return CommandOutput(
        rows,
        summary.make_columns(rows),
        title=campaign_row.name if campaign_row else "all campaigns",
        notes=[*summary.describe_notes()],
    )


def _summarize_operations(
    store: ResultsReader, selection: Selection, names: Sequence[str]
) -> Summary | None:
    """Summarize the operations of load tests; None for other tests."""
    for part in import_parts("summary"):
        summary: Summary | None = part.summarize(store, selection, names)
        if summary is not None:
            return summary
    return None


def _summarize_metrics(
    store: ResultsReader,
    selection: Selection,
    campaign: CampaignRow | None,
    names: Sequence[str],
    metrics: tuple[str, ...] | None,
    baseline: str | None,
) -> Summary:
    """Summarize metrics by group, by default those of reads, or of commands that have no rates."""
    from treehammer.analysis.descriptive.group_summary import GroupSummary, load_timed_rows

    quantities = tuple(dict.fromkeys(metrics or split_list(DEFAULT_QUANTITIES)))
    loaded = quantities if metrics else (*quantities, *_TIMES_AND_CPU)
    timed_rows = load_timed_rows(store, selection, loaded, names)
    if not metrics and all(row[quantities[0]] is None for row in timed_rows):
        quantities = _TIMES_AND_CPU
    work = campaign.plan.definition.work if campaign else "event"
    return GroupSummary.from_rows(timed_rows, names, quantities, baseline, work)


def _summarize_letters(store: ResultsReader) -> CommandOutput:
    """List the status of each storage and day with load tests.

    Raises:
        NothingToDoError: there was none.
    """
    from treehammer.collectors.record.day_numbers import day_to_number

    last_day = datetime.now(UTC).date()
    window = day_to_number(last_day - timedelta(days=DAYS - 1)), day_to_number(last_day)
    for part in import_parts("storage_days"):
        table: DataTable = part.tabulate_days(
            store, *window, f"Storages under load, last {DAYS} days"
        )
        if table.rows:
            return CommandOutput(table.rows, table.columns, table.caption, notes=[table.note])
    raise NothingToDoError(
        f"no load test ran in the last {DAYS} days",
        hint="Run one: treehammer submit open-rate --wait",
    )


_PART_COLUMNS = (
    *PART_COLUMNS,
    TableColumn("other_sites_share", "other sites", format_share, is_number=True),
)


@click.command("explain")
@click.argument("job", required=False)
@click.option("--site", type=SITE, help="A site: its measurements of the latest days.")
@click.option(
    "--campaign", metavar="ID|last|all", help="A campaign [default: last].", type=CAMPAIGN
)
@click.option(
    "--days",
    default=7,
    show_default=True,
    type=click.IntRange(1, 36_500),
    help="Days of --site without a campaign.",
)
@prints_rows(*_PART_COLUMNS, keys="; ".join(part.KEYS for part in import_parts("explain_options")))
@click.pass_obj
def explain_command(
    settings: Settings,
    /,
    job: str | None,
    site: str | None,
    campaign: str | None,
    days: int,
    **further_options: Any,
) -> CommandOutput:
    """Explain CPU efficiency: where the wall time went, and the main cause of lost time.

    JOB is the identity of a job or its beginning. Only timed measurements without failure count;
    paired ones are left out, since they wait for each other.

    \b
    Example: treehammer explain --site SITE_A
             treehammer explain --campaign last
    """
    if job and (site or campaign):
        raise ConfigError("JOB excludes --site and --campaign", where="explain")
    from treehammer.analysis.descriptive.efficiency_query import EfficiencyQuery

    query = EfficiencyQuery(job, site, campaign, days)
    for part in import_parts("explain_options"):
        output: CommandOutput | None = part.explain(settings, query, **further_options)
        if output is not None:
            return output
    with open_store(settings) as store:
        explained = query.explain(store)
    headline, efficiency, *evidence = explained.describe()
    return CommandOutput(
        explained.list_parts(),
        _PART_COLUMNS if explained.other_shares else _PART_COLUMNS[:-1],
        above=[click.style(headline, bold=True), efficiency],
        below=evidence,
    )


for part in import_parts("explain_options"):
    explain_command.params.extend(part.OPTIONS)
