"""The verb ``compare``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from treehammer.analysis.cli.instruction_columns import change_columns
from treehammer.analysis.comparison import counter_changes, instruction_changes, verdict_text
from treehammer.analysis.comparison.attribution import attribute_rows
from treehammer.analysis.comparison.counter_changes import CountedSample, CounterChange
from treehammer.analysis.samples.sample import SAMPLE_COLUMNS, Sample, find_axis_value
from treehammer.analysis.statistics.verdict import DEFAULT_DELTA, RELEASE_SCOPE, SERIES_SCOPE
from treehammer.collectors.record.exact_counters import COUNTER_NAMES
from treehammer.config import Settings
from treehammer.errors import ExitCode, NothingToDoError
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.store import Store
from treehammer.terminal import TABLE, OutputColumn, on_interrupt, output_options, print_rows

if TYPE_CHECKING:
    from treehammer.analysis.comparison.comparison import Comparison, ComparisonQuery
    from treehammer.analysis.comparison.instruction_changes import CountPair


@click.command("compare")
@click.argument("a")
@click.argument("b")
@click.option("--axis", default="root", show_default=True, help="Axis of the values A and B.")
@click.option("--campaign", metavar="ID|last", help="Only this campaign [default: all].")
@click.option(
    "--where", "wheres", multiple=True, metavar="COLUMN=VALUE", help="Only these measurements."
)
@click.option(
    "--delta",
    type=float,
    default=DEFAULT_DELTA,
    show_default=True,
    help="Effects within this count as none; in ln, so 0.02 is about 2 %.",
)
@output_options
@click.pass_obj
@on_interrupt("nothing half-made was stored")
def compare_command(
    settings: Settings,
    a: str,
    b: str,
    axis: str,
    campaign: str | None,
    wheres: tuple[str, ...],
    delta: float,
    form: str,
) -> int:
    """Say whether B is faster or slower than A, where, and how certain that is.

    A and B are ROOT releases, or values of another axis of the test; site, door and campaign (by
    name, too) can be compared as well.  Leaves with 1 when something is slower, with 3 when
    nothing can be compared.

    \b
    Example: treehammer compare 6.38.00 6.40.00
             treehammer compare 0 30 --axis cache_mb --campaign last
    """
    # scipy takes half a second to load, which no other command should pay for.
    from treehammer.analysis.comparison.comparison import ComparisonQuery, compare_samples

    with Store.open(settings.database, create=False) as store:
        selection = Selection.parse([store.campaign(campaign).id] if campaign else [], wheres)
        columns = (*SAMPLE_COLUMNS, *COUNTER_NAMES)
        rows = [(Sample.from_row(row), row) for row in store.measurements(selection, columns)]
        samples = [sample for sample, _ in rows]
        if not samples:
            raise NothingToDoError("no measurement is selected", where=str(selection))
        if axis == "campaign":
            a, b = (campaign_queries.resolve_campaign(store, one) for one in (a, b))
        question = ComparisonQuery(
            axis=axis,
            a=find_axis_value(samples, axis, a),
            b=find_axis_value(samples, axis, b),
            delta=delta,
            selection=selection,
        )
        found = compare_samples(samples, question, now_us=time.time_ns() // 1000)
        counters = counter_changes.compare_counters(
            (CountedSample.from_row(*pair) for pair in rows), axis, question.a, question.b
        )
        store.replace_comparison(question.id, found.pairs, found.verdicts)
        counted = instruction_changes.load_counted_work(store, found.verdicts)
        names = campaign_queries.fetch_distinct_names(store, {a, b}) if axis == "campaign" else {}
    print_comparison(found, names, counters, form=form)
    if counted and form == TABLE:
        _print_counts(counted, found.query)
    worse = any(one.is_regression(delta) for one in counters)
    return ExitCode.REGRESSION if found.regressed or worse else ExitCode.DONE


def print_comparison(
    found: Comparison,
    names: Mapping[str, str] = MappingProxyType({}),
    counters: Sequence[CounterChange] = (),
    *,
    form: str = TABLE,
) -> None:
    """Print the comparison; with JSON and CSV the notes go to standard error.

    Args:
        found: the comparison.
        names: of the campaigns that are compared, by identity.
        counters: changes of the exact counters.
        form: table, JSON or CSV.
    """
    if form == TABLE:
        first = found.verdicts[0]
        title, columns = (
            verdict_text.comparison_title(first, names),
            _verdict_columns(*verdict_text.side_names(first, names)),
        )
        _print_verdicts(found.verdicts_of_scope(SERIES_SCOPE), columns, f"{title}, by site")
        releases = found.verdicts_of_scope(RELEASE_SCOPE)
        click.echo()
        if pooled := [row for row in releases if row.effect is not None]:
            shown = [c for c in columns if c.key not in ("site", "a_value", "b_value")]
            _print_verdicts(pooled, shown, f"{title}, all sites")
            click.echo()
        for line in verdict_text.explain_not_pooled(releases):
            click.echo(line)
        _print_counters(counters, found.query)
    else:
        rows = [verdict_text.flatten_verdict(row) for row in found.verdicts]
        print_rows([*rows, *map(asdict, counters)], (), form=form)
    for line in (*attribute_rows(found.verdicts, names), *found.notes):
        click.echo(line, err=form != TABLE)


def _print_counters(counters: Sequence[CounterChange], query: ComparisonQuery) -> None:
    changed = [one for one in counters if one.verdict != counter_changes.SAME]
    if changed:
        columns = (
            OutputColumn("label", "variant"),
            OutputColumn("site", "site"),
            OutputColumn("a_value", str(query.a), "{:,.6g}".format, True),
            OutputColumn("b_value", str(query.b), "{:,.6g}".format, True),
            OutputColumn("shown_verdict", "verdict"),
        )
        rows = [
            {**asdict(one), "shown_verdict": counter_changes.format_counter_verdict(one)}
            for one in changed
        ]
        print_rows(rows, columns, title="Exact counters that changed")
    if counters:
        click.echo(counter_changes.summarize_counters(counters))


def _print_counts(counted: Sequence[CountPair], query: ComparisonQuery) -> None:
    columns = change_columns(str(query.a), str(query.b))
    rows = [instruction_changes.flatten_change(pair.total) for pair in counted]
    click.echo()
    title = f"Instructions/event. {instruction_changes.NOT_TIME}"
    print_rows(rows, (OutputColumn("label", "variant"), *columns), title=title)


def _verdict_columns(a: str, b: str) -> list[OutputColumn]:
    unit = "ms/event"
    return [
        OutputColumn("label", "variant"),
        OutputColumn("site", "site"),
        OutputColumn("metric", "time", verdict_text.METRIC_TITLES.__getitem__),
        OutputColumn("jobs", "jobs", align_right=True),
        OutputColumn("hosts", "hosts", align_right=True),
        OutputColumn("a_value", f"{a}\n{unit}", verdict_text.format_milliseconds, align_right=True),
        OutputColumn("b_value", f"{b}\n{unit}", verdict_text.format_milliseconds, align_right=True),
        OutputColumn("effect", "change", verdict_text.format_effect, align_right=True),
        OutputColumn("interval", "interval", align_right=True),
        OutputColumn("shown_verdict", "verdict"),
    ]


def _print_verdicts(
    rows: Sequence[VerdictRow], columns: Sequence[OutputColumn], title: str
) -> None:
    def row(one: VerdictRow) -> dict[str, Any]:
        shown = {
            "interval": verdict_text.format_interval(one) or None,
            "shown_verdict": verdict_text.format_verdict(one),
        }
        return {**verdict_text.flatten_verdict(one), **shown}

    print_rows([row(one) for one in rows], columns, title=title)
