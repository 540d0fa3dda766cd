"""The verb ``compare``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from treehammer.analysis.comparison import (
    comparison_result,
    instruction_changes,
    series_changes,
    verdict_text,
)
from treehammer.analysis.comparison.comparison_notes import attribute_rows
from treehammer.analysis.comparison.comparison_result import (
    ComparisonResult,
    compare_named,
    rate_results,
)
from treehammer.analysis.comparison.conclusion import describe_conclusion
from treehammer.analysis.comparison.instruction_changes import change_columns
from treehammer.analysis.statistics.verdict import (
    CERTAIN_VERDICTS,
    DEFAULT_DELTA,
)
from treehammer.config import Settings
from treehammer.hctests.definition.model import COMMIT_AXIS
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.tables import TableColumn
from treehammer.terminal import (
    CAMPAIGN,
    JSON,
    TABLE,
    Block,
    CommandOutput,
    Note,
    TextTable,
    on_interrupt,
    print_early,
    prints_rows,
)

if TYPE_CHECKING:
    from treehammer.analysis.comparison.comparison import Comparison
    from treehammer.analysis.comparison.limit_outcomes import LimitReport


#: Form of limits in a pull request, besides those of the terminal.
MARKDOWN = "markdown"
#: Verdicts that are also said in a sentence, at most.
MAX_SENTENCES = 6


delta_option = click.option(
    "--delta",
    type=float,
    default=DEFAULT_DELTA,
    show_default=True,
    help="Effects within this count as none; in ln, so 0.02 is about 2 %.",
)


@click.command("compare")
@click.argument("a")
@click.argument("b", nargs=-1, required=True)
@click.option("--axis", default="root", show_default=True, help="Axis of the values A and B.")
@click.option(
    "--campaign",
    metavar="ID|last",
    help="Only this campaign [default: all].",
    type=CAMPAIGN,
)
@click.option(
    "--where", "wheres", multiple=True, metavar="COLUMN=VALUE", help="Only these measurements."
)
@delta_option
@prints_rows(keys="those of verdicts, exact counters and phases, which scope tells apart")
@click.pass_obj
@on_interrupt("nothing half-made was stored")
def compare_command(
    settings: Settings,
    a: str,
    b: tuple[str, ...],
    axis: str,
    campaign: str | None,
    wheres: tuple[str, ...],
    delta: float,
) -> CommandOutput:
    """Say whether B is faster or slower than A, where, and how certain that is.

    A and B are ROOT releases, or values of another axis of the test; site, door, campaign (by name,
    too) and commit (hash, branch or tag of the test's repository) can be compared as well.  Several
    B are each compared with A and share one correction for the number of tests.  Leaves with 1 when
    something is slower by more than --delta, with 3 when nothing can be compared.

    \b
    Example: treehammer compare 6.38.00 6.40.00
             treehammer compare 6.36.00 6.38.00 6.40.00
             treehammer compare 0 30 --axis cache_mb --campaign last
             treehammer compare main my-branch --axis commit
    """
    with Store.open(settings.database, create=False) as store:
        selection = Selection.parse([store.campaign(campaign).id] if campaign else [], wheres)
        results, names = compare_named(store, selection, axis, [a, *b], delta, settings)
        remarks = []
        if axis == COMMIT_AXIS and not any(result.is_comparable for result in results):
            reason = comparison_result.explain_incomparable(store, selection, names)
            remarks = [f"The commits were measured in different ways: {reason}."] * bool(reason)
    instructions = [table for result in results for table in _list_instructions(result, names)]
    comparisons = [result.comparison for result in results]
    return CommandOutput(
        flatten_results(results),
        (),
        above=[*describe_comparisons(results, names), *instructions],
        notes=describe_conclusions(comparisons, names),
        remarks=remarks,
        exit_code=rate_results(results, delta),
    )


def describe_comparisons(
    results: Sequence[ComparisonResult], names: Mapping[str, str]
) -> list[Block]:
    """Describe comparisons by tables and notes; notes that they share stand once, at the end.

    Args:
        results: the comparisons.
        names: of the campaigns or commits that are compared, by identity.
    """
    notes, common = _separate_common([_list_notes(result, names) for result in results])
    blocks: list[Block] = []
    for result, result_notes in zip(results, notes, strict=True):
        blocks += [*([""] if blocks else []), *_list_tables(result, names)]
        blocks += map(Note, result_notes)
    return [*blocks, *map(Note, ["\nAll comparisons:", *common] if common else [])]


def describe_verdicts(
    results: Sequence[ComparisonResult], names: Mapping[str, str] = MappingProxyType({})
) -> list[Block]:
    """Describe comparisons by their tables, without notes."""
    return [block for result in results for block in ("", *_list_tables(result, names))]


def _separate_common(notes: Sequence[list[str]]) -> tuple[list[list[str]], list[str]]:
    """Return the notes without those that several comparisons share, and the shared ones."""
    first, *following = notes
    common = (
        [line for line in first if all(line in other for other in following)] if following else []
    )
    return [[line for line in lines if line not in common] for lines in notes], common


def _list_notes(result: ComparisonResult, names: Mapping[str, str]) -> list[str]:
    """List the sentences below the tables of a comparison."""
    notes = [*attribute_rows(result.comparison.verdicts, names), *result.comparison.notes]
    if result.counters:
        notes.append(series_changes.summarize_counters(result.counters))
    return notes + series_changes.describe_phases(result.phases)


def flatten_results(results: Sequence[ComparisonResult]) -> list[dict[str, Any]]:
    """Return verdicts, then changes of counters and of phases as flat rows."""
    verdicts = [row for result in results for row in result.comparison.verdicts]
    counters = [change for result in results for change in result.counters]
    phases = [change for result in results for change in result.phases]
    return [
        *map(verdict_text.flatten_verdict, verdicts),
        *map(asdict, counters),
        *map(asdict, phases),
    ]


def describe_conclusions(comparisons: Sequence[Comparison], names: Mapping[str, str]) -> list[str]:
    """Describe the conclusion of each comparison."""
    texts = (describe_conclusion(comparison.verdicts, names) for comparison in comparisons)
    return [click.style(f"\n{text}", bold=True) for text in texts]


def _list_tables(result: ComparisonResult, names: Mapping[str, str]) -> list[Block]:
    """List the tables of verdicts by site and over sites, sentences on them, and changed counters."""
    comparison = result.comparison
    first = comparison.verdicts[0]
    title = verdict_text.comparison_title(first, names)
    columns = _verdict_columns(comparison.verdicts, names)
    blocks: list[Block] = [_make_table(comparison.of_series, columns, f"{title}, by site"), ""]
    if pooled := [row for row in comparison.over_sites if row.effect is not None]:
        pooled_columns = [c for c in columns if c.key not in ("site", "shown_a", "shown_b")]
        blocks += [_make_table(pooled, pooled_columns, f"{title}, all sites"), ""]
    blocks += verdict_text.explain_not_pooled(comparison.over_sites)
    certain = [row for row in comparison.verdicts if row.verdict in CERTAIN_VERDICTS]
    for row in certain[:MAX_SENTENCES]:
        # The sentence names other metrics than times.
        clock = verdict_text.METRIC_TITLES.get(row.metric)
        subject = f"{row.label}, {clock}" if clock else row.label
        blocks.append(f"{subject}: {verdict_text.describe_verdict(row, names)}.")
    return blocks + _list_changed_counters(result, names)


def _list_changed_counters(result: ComparisonResult, names: Mapping[str, str]) -> list[Block]:
    rows = [
        {**asdict(change), "shown_verdict": series_changes.format_counter_verdict(change)}
        for change in result.counters
        if change.verdict != series_changes.SAME
    ]
    a, b = verdict_text.side_names(result.comparison.verdicts[0], names)
    columns = (
        TableColumn("label", "variant"),
        TableColumn("site", "site"),
        TableColumn("a_value", a, "{:,.0f}".format, is_number=True),
        TableColumn("b_value", b, "{:,.0f}".format, is_number=True),
        TableColumn("shown_verdict", "verdict"),
    )
    return [TextTable(rows, columns, "Exact counters that changed")] if rows else []


def _list_instructions(result: ComparisonResult, names: Mapping[str, str]) -> list[Block]:
    if not result.instructions:
        return []
    sides = verdict_text.side_names(result.comparison.verdicts[0], names)
    rows = [instruction_changes.flatten_change(pair.total) for pair in result.instructions]
    columns = (TableColumn("label", "variant"), *change_columns(*sides))
    return ["", TextTable(rows, columns, f"Instructions/event. {instruction_changes.NOT_TIME}")]


def _verdict_columns(rows: Sequence[VerdictRow], names: Mapping[str, str]) -> list[TableColumn]:
    sides = verdict_text.side_names(rows[0], names)
    a, b = (verdict_text.title_side(rows, side, "\n") for side in sides)
    return [
        TableColumn("label", "variant"),
        TableColumn("site", "site"),
        TableColumn("metric", verdict_text.title_metrics(rows), verdict_text.title_metric),
        TableColumn("holds_for", "holds for", lambda text: text.removeprefix("on ")),
        TableColumn("shown_a", a, is_number=True),
        TableColumn("shown_b", b, is_number=True),
        TableColumn("effect", "change", verdict_text.format_effect, is_number=True),
        TableColumn("interval", "interval", is_number=True),
        TableColumn("shown_verdict", "verdict"),
    ]


def _make_table(
    verdicts: Sequence[VerdictRow], columns: Sequence[TableColumn], title: str
) -> TextTable:
    def build_row(verdict: VerdictRow) -> dict[str, Any]:
        cells = {
            "interval": verdict_text.format_interval(verdict) or None,
            "shown_verdict": verdict_text.format_verdict(verdict),
            "holds_for": verdict_text.describe_scope(verdict),
        }
        flat = verdict_text.flatten_verdict(verdict)
        for side in "ab":
            value = flat[f"{side}_value"]
            cells[f"shown_{side}"] = (
                None
                if value is None
                else verdict_text.format_metric_value(verdict.metric, value, flat["unit"])
            )
        return {**flat, **cells}

    return TextTable([build_row(verdict) for verdict in verdicts], columns, title)


def print_limits(report: LimitReport, form: str = TABLE) -> None:
    """Print the outcomes as a table with notes, as Markdown or as JSON."""
    # scipy takes a third of a second to load, which commands without limits should not pay for.
    from treehammer.analysis.comparison import limit_text

    if form == MARKDOWN:
        click.echo(limit_text.format_markdown(report))
        return
    if form == JSON:
        click.echo(json.dumps(limit_text.build_document(report), indent=1))
        return
    table = TextTable(limit_text.flatten_outcomes(report), limit_text.limit_columns(report))
    title = f"Limits: {limit_text.describe_limits(report)}"
    print_early(title, table, *limit_text.list_limit_notes(report))
