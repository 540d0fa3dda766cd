"""Tables of a comparison: effects with intervals as bars, over all sites and by site, one-sided series."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.comparison.change_summary import SUMMARY_COLUMNS, summarize_changes
from treehammer.analysis.comparison.instruction_changes import (
    CountPair,
    format_change,
    format_count,
)
from treehammer.analysis.comparison.series_changes import CounterChange, format_counter_verdict
from treehammer.analysis.statistics.sample import SELECTION_AXIS
from treehammer.analysis.statistics.verdict import DEFAULT_DELTA
from treehammer.collectors.job_spec import TIMED
from treehammer.errors import ConfigError
from treehammer.sql.core.rows import PairRow, VerdictRow
from treehammer.sql.read.query_model import Condition, intersect_conditions, parse_alternatives
from treehammer.tables import MAX_SHOWN_ROWS, DataTable, LazyRows, Row, TableColumn, hidden_columns
from treehammer.web.addresses import link_to
from treehammer.web.arranged_table import encode_condition
from treehammer.web.columns import IntervalCell
from treehammer.web.figure_links import make_figure_linker

#: Maximum reach of the drawn axis to either side, in ln.
_MAX_AXIS_REACH = 2.5
_VARIANT = TableColumn("label", "variant", verdict_text.describe_variant, is_long=True)


def summary_table(rows: Sequence[VerdictRow]) -> DataTable:
    """Build the table of regressions and improvements; without rows if none is certain."""
    summaries = [summary.to_row() for summary in summarize_changes(rows)]
    columns = {column.key: column for column in SUMMARY_COLUMNS}
    columns["largest"] = replace(
        columns["largest"], detail=lambda row: f"largest in {row['largest_in']}"
    )
    columns["largest_in"] = replace(columns["largest_in"], hidden=True)
    return DataTable("summary", "Certain changes", (*columns.values(),), summaries)


def side_conditions(row: Row, side: str) -> tuple[Condition, ...]:
    """Build the conditions on the measurements of a flattened verdict's side, in any campaign.

    Empty if the side has no measurements, or if they were not recorded or use columns unknown to
    this version.
    """
    values: Mapping[str, Any] = row[f"of_{side}"]
    if not values:
        return ()
    try:
        conditions = (*parse_alternatives(row["where"]), *parse_alternatives(row[f"where_{side}"]))
    except ConfigError:
        return ()
    return intersect_conditions(
        (*conditions, *(Condition(name, "=", value) for name, value in values.items()))
    )


def find_axis_reach(rows: Sequence[VerdictRow]) -> float:
    """Find the reach of the drawn axis to either side, in ln."""
    ends = sorted(
        max(abs(row.low), abs(row.high))
        for row in rows
        if row.low is not None and row.high is not None
    )
    effects = sorted(abs(row.effect) for row in rows if row.effect is not None)
    # Intervals of few jobs are wide: they may exceed the axis, so that effects stay distinguishable.
    typical = max(_find_quantile(ends, 0.25), 1.5 * _find_quantile(effects, 0.9))
    return min(max(1.2 * typical, 2 * DEFAULT_DELTA), _MAX_AXIS_REACH)


def _find_quantile(numbers: Sequence[float], share: float) -> float:
    return numbers[int(share * (len(numbers) - 1))] if numbers else 0.0


def make_bar_column(rows: Sequence[VerdictRow], delta: float) -> TableColumn:
    """Make the column that draws effects on a common axis, whose ends are its heading."""
    reach = find_axis_reach(rows)
    ends = " … ".join(verdict_text.format_effect(end) for end in (-reach, reach))
    return TableColumn(
        "bar",
        f"{verdict_text.name_directions(rows)}\n{ends}",
        tooltip="change and interval",
        draw=lambda row: IntervalCell(row["low"], row["high"], row["effect"], reach, delta),
    )


def _metric_column(rows: Sequence[VerdictRow]) -> TableColumn:
    return TableColumn("metric", verdict_text.title_metrics(rows), verdict_text.title_metric)


def pooled_table(rows: Sequence[VerdictRow], first: VerdictRow, bars: TableColumn) -> DataTable:
    """Build the table over all sites: one row per variant and metric, effects also as bars."""
    columns = (
        _VARIANT,
        _metric_column(rows),
        *_effect_columns(bars),
        TableColumn("sites", "sites", lambda sites: str(len(sites)), is_number=True),
        *(_side_column(first, side, "by site", "by site") for side in "ab"),
    )
    return _effect_table("pooled", "Over all sites", columns, rows, "No effect over several sites.")


def site_table(rows: Sequence[VerdictRow], first: VerdictRow, bars: TableColumn) -> DataTable:
    """Build the table by site: one row per variant, site and metric, effects also as bars."""
    columns = (
        _VARIANT,
        _site_column(),
        _metric_column(rows),
        *_effect_columns(bars),
        *(_side_column(first, side, verdict_text.find_common_unit(rows)) for side in "ab"),
    )
    empty = "No series was measured on both sides."
    return _effect_table("by_site", "By site", columns, rows, empty)


def missing_table(rows: Sequence[VerdictRow], first: VerdictRow) -> DataTable:
    """Build the table of series measured on one side only, with reason and remedy."""
    columns = (
        _VARIANT,
        _site_column(),
        TableColumn("verdict", "verdict"),
        _metric_column(rows),
        TableColumn("why", "reason", is_long=True),
        TableColumn("remedy", "remedy", is_long=True),
        *(_side_column(first, side, verdict_text.find_common_unit(rows)) for side in "ab"),
    )
    caption = f"On one side only (A: {first.a}, B: {first.b})"
    return _effect_table("missing", caption, columns, rows, "No series on one side only.")


def instruction_table(pairs: Sequence[CountPair], first: VerdictRow) -> DataTable:
    """Build the table of instructions per event, with the library whose count changed most."""
    columns = (
        _VARIANT,
        TableColumn("a_per_event", first.a, format_count, is_number=True),
        TableColumn("b_per_event", first.b, format_count, is_number=True),
        TableColumn("relative", "change", format_change, is_number=True),
        TableColumn("most_changed", "most changed library", is_long=True),
    )
    rows = []
    for pair in pairs:
        largest = max(pair.libraries(), key=lambda change: abs(change.difference))
        text = f"{largest.library} {format_count(largest.difference, signed=True)}"
        rows.append({**asdict(pair.total), "most_changed": text})
    return DataTable("instructions", "Instructions per event", columns, rows)


def counter_table(changes: Sequence[CounterChange], first: VerdictRow) -> DataTable:
    """Build the table of exact counters of each variant and site, with the change of each."""
    columns = (
        _VARIANT,
        _site_column(),
        TableColumn("metric", "counter", lambda name: name.replace("_", " ")),
        TableColumn("a_value", first.a, format_count, is_number=True),
        TableColumn("b_value", first.b, format_count, is_number=True),
        TableColumn("change", "verdict"),
        *hidden_columns("verdict", "effect", "jobs", "axis"),
    )
    rows = [
        {**asdict(change), "change": format_counter_verdict(change), "axis": first.axis}
        for change in changes
    ]
    caption = "Exact counters that changed"
    return DataTable("counters", caption, columns, rows, max_rows=MAX_SHOWN_ROWS)


def pair_table(pairs: Sequence[PairRow]) -> DataTable:
    """Build the table of pairs of jobs behind the verdicts, for export."""
    rows = [asdict(row) for row in pairs]
    columns = tuple(TableColumn(key, key) for key in (rows[0] if rows else {}))
    return DataTable("pairs", "Pairs of jobs", columns, rows)


def _effect_table(
    name: str, caption: str, columns: Sequence[TableColumn], rows: Sequence[VerdictRow], empty: str
) -> DataTable:
    """Build a table with the given columns; further evidence is exported only."""
    keys = [column.key for column in columns]
    further = [key for key in (_flatten(rows[0]) if rows else {}) if key not in keys]
    return DataTable(
        name,
        caption,
        (*columns, *hidden_columns(*further)),
        LazyRows(rows, _flatten),
        empty_text=empty,
        max_rows=MAX_SHOWN_ROWS,
    )


def _flatten(row: VerdictRow) -> dict[str, Any]:
    return {
        **verdict_text.flatten_verdict(row),
        "change": verdict_text.format_effect(row.effect) if row.effect is not None else "",
        "interval": verdict_text.format_interval(row),
        "shown_verdict": verdict_text.format_verdict(row),
        "holds_for": verdict_text.describe_scope(row),
    }


def _effect_columns(bars: TableColumn) -> tuple[TableColumn, ...]:
    return (
        TableColumn("change", "change", is_number=True, sort_key="effect"),
        TableColumn("interval", "interval", is_number=True, sort_key="low"),
        bars,
        TableColumn(
            "shown_verdict",
            "verdict",
            css_class=lambda row: f"{str(row['verdict']).replace(' ', '-')} folded",
            detail=lambda row: row["why"] or "",
        ),
        TableColumn("holds_for", "holds"),
    )


def _site_column() -> TableColumn:
    def link(row: Row) -> str:
        return link_to("site", site=row["site"]) if row["site"] and row["axis"] != "site" else ""

    return TableColumn("site", "site", link=link)


def _side_column(
    first: VerdictRow, side: str, unit: str, missing_text: str = "none usable"
) -> TableColumn:
    """Build the column of a side's time, linked to its measurements.

    The unit in the heading is '' if rows have units of their own; the missing text is shown if the side
    has measurements, but no time.
    """
    value = side.upper() if first.axis == SELECTION_AXIS else getattr(first, side)

    def write(row: Row) -> str:
        if row[f"{side}_value"] is not None:
            return verdict_text.format_metric_value(
                row["metric"], row[f"{side}_value"], row["unit"]
            )
        return missing_text if row[f"of_{side}"] else "–"

    return TableColumn(
        f"{side}_value",
        f"{value}, {unit}" if unit else str(value),
        format_row=write,
        is_number=True,
        link=_link_to_measurements(side),
    )


def _link_to_measurements(side: str) -> Callable[[Row], str]:
    """Build a function that links a row to the measurements of one side, by job or by site; '' for none."""
    link_figure = make_figure_linker()

    @cache
    def start(metric: str, by_job: bool, campaigns: Sequence[str]) -> str:
        # All days: measurements of a series may be older than the default window.
        parameters = {"metric": metric, "kind": TIMED, "from": "", "to": "", "campaign": campaigns}
        return link_figure(("job_id", "host") if by_job else ("site",), parameters)

    def link(row: Row) -> str:
        conditions = side_conditions(row, side)
        if not conditions:
            return ""
        is_compared = row["axis"] == "campaign"
        campaigns = (row[side],) if is_compared else tuple(row["campaigns"])
        address = start(row["metric"], bool(row["site"]), campaigns)
        return "&".join([address, *map(encode_condition, conditions)]) if address else ""

    return link
