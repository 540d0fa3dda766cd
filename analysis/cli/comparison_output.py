"""Comparisons on the terminal: tables of verdicts, counters and instructions, and sentences."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from treehammer.analysis.comparison import instruction_changes, series_changes, verdict_text
from treehammer.analysis.comparison.change_summary import SUMMARY_COLUMNS, summarize_changes
from treehammer.analysis.comparison.comparison_notes import attribute_rows, describe_environment
from treehammer.analysis.comparison.comparison_result import ComparisonResult
from treehammer.analysis.comparison.conclusion import WALL, describe_conclusion, describe_part
from treehammer.analysis.comparison.series_changes import describe_phases
from treehammer.analysis.statistics.verdict import CERTAIN_VERDICTS
from treehammer.sql.core.rows import VerdictRow
from treehammer.tables import TableColumn
from treehammer.terminal import JSON, TABLE, Block, Note, TextTable, print_early
from treehammer.text_formatting import join_names

if TYPE_CHECKING:
    from treehammer.analysis.comparison.limit_outcomes import LimitReport

#: Format of a comment in a code review.
MARKDOWN = "markdown"

#: Verdicts that are also said in a sentence, at most.
MAX_SENTENCES = 6


def describe_comparisons(
    results: Sequence[ComparisonResult],
    names: Mapping[str, str] = MappingProxyType({}),
    *,
    verbose: bool = False,
) -> list[Block]:
    """Describe comparisons: the conclusion of each, their tables, and notes, shared ones once.

    Args:
        results: the comparisons.
        names: of the campaigns or commits that are compared, by identity.
        verbose: whether to say how the verdicts were reached as well.
    """
    notes, common = _separate_common([_list_notes(result, names, verbose) for result in results])
    blocks: list[Block] = []
    for result in results:
        text = describe_conclusion(result.comparison.verdicts, names, good_controls=verbose)
        blocks.append(Note(click.style(text, bold=True)))
    for result, result_notes in zip(results, notes, strict=True):
        blocks += ["", *_list_tables(result, names, verbose)]
        blocks += map(Note, result_notes)
    blocks += map(Note, ["\nAll comparisons:", *common] if common else [])
    return [*blocks, *(block for result in results for block in _list_instructions(result, names))]


def _list_notes(result: ComparisonResult, names: Mapping[str, str], verbose: bool) -> list[str]:
    """List the notes of a comparison: where its changes point, reasons for no verdict, phases."""
    comparison = result.comparison
    attributed = attribute_rows(comparison.verdicts, names)
    if verbose:
        environment = describe_environment(comparison.verdicts)
        return [*attributed, *(note for note in result.notes if note not in environment)]
    return [
        *(attributed if len({row.site for row in comparison.of_series}) > 1 else ()),
        *list_reasons(comparison.of_series),
        *describe_phases(result.phases),
    ]


def list_reasons(series: Sequence[VerdictRow]) -> Iterator[str]:
    """List the reasons for no verdict, each once with its variants and sites."""
    parts: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for row in series:
        if row.evidence.why:
            key = row.verdict, f"{row.evidence.why}; {row.evidence.remedy}."
            parts[key][describe_part(row, series)] = None
    for (verdict, reason), names in parts.items():
        claim = f"{verdict} {join_names([*names])}".strip()
        yield f"{claim[0].upper()}{claim[1:]}: {reason}"


def _separate_common(notes: Sequence[list[str]]) -> tuple[list[list[str]], list[str]]:
    """Return the notes without those that several comparisons share, and the shared ones."""
    shared = len(notes) > 1
    common = [line for line in notes[0] if all(line in other for other in notes)] if shared else []
    return [[line for line in lines if line not in common] for lines in notes], common


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


def _list_tables(result: ComparisonResult, names: Mapping[str, str], verbose: bool) -> list[Block]:
    """List the tables of verdicts by site and over sites, sentences on them, and changed counters."""
    comparison = result.comparison
    first = comparison.verdicts[0]
    title = verdict_text.comparison_title(first, names)
    columns = make_verdict_columns(comparison.verdicts, names)
    blocks: list[Block] = []
    if summaries := summarize_changes(comparison.verdicts):
        summary_rows = [summary.to_row() for summary in summaries]
        blocks += [TextTable(summary_rows, SUMMARY_COLUMNS, f"{title}, summary"), ""]
    for note in describe_environment(comparison.verdicts, harmless=verbose):
        blocks += [note, ""]
    blocks += [make_verdict_table(comparison.of_series, columns, f"{title}, by site", verbose), ""]
    if pooled := [row for row in comparison.over_sites if row.effect is not None]:
        pooled_columns = [c for c in columns if c.key not in ("site", "shown_a", "shown_b")]
        blocks += [make_verdict_table(pooled, pooled_columns, f"{title}, all sites", verbose), ""]
    if verbose:
        blocks += verdict_text.explain_not_pooled(comparison.over_sites)
        blocks += _describe_certain(comparison.verdicts, names)
    return blocks + _list_changed_counters(result, names)


def _describe_certain(verdicts: Iterable[VerdictRow], names: Mapping[str, str]) -> Iterator[str]:
    """Describe the first certain verdicts in a sentence each."""
    certain = [row for row in verdicts if row.verdict in CERTAIN_VERDICTS]
    for row in certain[:MAX_SENTENCES]:
        # The sentence names other metrics than times.
        clock = verdict_text.METRIC_TITLES.get(row.metric)
        subject = f"{row.label}, {clock}" if clock else row.label
        yield f"{subject}: {verdict_text.describe_verdict(row, names)}."


def _list_changed_counters(result: ComparisonResult, names: Mapping[str, str]) -> list[Block]:
    rows = [
        {**asdict(change), "shown_verdict": series_changes.format_counter_verdict(change)}
        for change in result.counters
        if change.has_changed
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
    columns = (TableColumn("label", "variant"), *instruction_changes.change_columns(*sides))
    return ["", TextTable(rows, columns, f"Instructions/event. {instruction_changes.NOT_TIME}")]


def make_verdict_columns(rows: Sequence[VerdictRow], names: Mapping[str, str]) -> list[TableColumn]:
    """Make the columns of a table of verdicts."""
    sides = verdict_text.side_names(rows[0], names)
    a, b = (verdict_text.title_side(rows, side) for side in sides)
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


def make_verdict_table(
    verdicts: Sequence[VerdictRow], columns: Sequence[TableColumn], title: str, verbose: bool
) -> TextTable:
    """Make a table of verdicts, with what an undecided one needs."""

    def build_row(verdict: VerdictRow) -> dict[str, Any]:
        cells = {
            "interval": verdict_text.format_interval(verdict) or None,
            # CPU time decides, so the jobs that wall time lacks are no news.
            "shown_verdict": verdict_text.format_verdict(
                verdict, with_plan=verbose or verdict.metric != WALL
            ),
            "holds_for": verdict_text.describe_scope(verdict),
        }
        flat = verdict_text.flatten_verdict(verdict)
        for side in "ab":
            value = flat[f"{side}_value"]
            formatted = verdict_text.format_metric_value(verdict.metric, value or 0.0, flat["unit"])
            cells[f"shown_{side}"] = None if value is None else formatted
        return {**flat, **cells}

    return TextTable([build_row(verdict) for verdict in verdicts], columns, title)


def print_limits(report: LimitReport, form: str = TABLE) -> None:
    """Print the outcomes as a table with notes, as Markdown or as JSON."""
    from treehammer.analysis.comparison import limit_text

    if form == MARKDOWN:
        click.echo(limit_text.format_markdown(report))
    elif form == JSON:
        click.echo(json.dumps(limit_text.build_document(report), indent=1))
    else:
        table = TextTable(limit_text.flatten_outcomes(report), limit_text.limit_columns(report))
        title = f"Limits: {limit_text.describe_limits(report)}"
        print_early(title, table, *limit_text.list_limit_notes(report))
