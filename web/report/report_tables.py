"""Tables of a campaign report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from treehammer.analysis.comparison.comparison import Comparison
from treehammer.analysis.comparison.wording import verdict_text
from treehammer.analysis.descriptive.group_summary import MeanAndRms, Row
from treehammer.sql.core.rows import VerdictRow
from treehammer.tables import DataTable, TableColumn
from treehammer.web.display.display_units import format_mean_and_rms
from treehammer.web.report.execution_cells import MEAN_COLUMNS, ExecutionCell

_EXECUTIONS = TableColumn("executions", "executions", is_number=True)


def make_means_table(cells: Iterable[ExecutionCell]) -> DataTable:
    """Make the table of means and RMS by place, variant and release."""
    columns = (
        TableColumn("place", "site"),
        TableColumn("variant", "variant"),
        TableColumn("release", "root"),
        _EXECUTIONS,
        TableColumn("jobs", "jobs", is_number=True),
        TableColumn("hosts", "hosts", is_number=True),
        *(
            TableColumn(
                column.metric, column.title, partial(_format_spread, column.scale), is_number=True
            )
            for column in MEAN_COLUMNS
        ),
    )
    metrics = [column.metric for column in MEAN_COLUMNS]
    rows = [
        {
            "place": cell.place,
            "variant": cell.variant,
            "release": cell.release,
            "executions": cell.executions,
            "jobs": cell.jobs,
            "hosts": cell.hosts,
            **{metric: cell.spreads.get(metric) for metric in metrics},
        }
        for cell in cells
    ]
    return DataTable("means", "Means ± RMS over usable executions", columns, rows)


def _format_spread(scale: float, spread: MeanAndRms) -> str:
    return format_mean_and_rms(scale * spread.mean, scale * spread.rms)


def make_effect_tables(comparison: Comparison) -> list[DataTable]:
    """Make the tables of a comparison: over all sites if there are effects, and by site."""
    query = comparison.query
    title = f"{query.axis} {query.b} against {query.a}"
    over_sites = comparison.over_sites
    name = f"{query.axis}={query.b}"
    by_site = _make_effect_table(
        f"by_site {name}", f"{title}, by site", comparison.of_series, by_site=True
    )
    if all(row.effect is None for row in over_sites):
        return [by_site]
    pooled = _make_effect_table(f"pooled {name}", f"{title}, over all sites", over_sites)
    return [pooled, by_site]


def _make_effect_table(
    name: str, caption: str, rows: Sequence[VerdictRow], *, by_site: bool = False
) -> DataTable:
    columns = (
        TableColumn("label", "variant"),
        *([TableColumn("site", "site")] if by_site else []),
        TableColumn("metric", verdict_text.title_metrics(rows), verdict_text.title_metric),
        TableColumn("holds_for", "holds"),
        *(_make_side_columns(rows) if by_site else []),
        TableColumn("effect", "change", verdict_text.format_effect, is_number=True),
        TableColumn("interval", "interval", is_number=True),
        TableColumn("shown_verdict", "verdict", css_class=_verdict_class),
        TableColumn("why", "why", is_long=True),
    )
    flat_rows = [
        {
            **verdict_text.flatten_verdict(row),
            "holds_for": verdict_text.describe_scope(row),
            "interval": verdict_text.format_interval(row),
            "shown_verdict": verdict_text.format_verdict(row),
        }
        for row in rows
    ]
    return DataTable(name, caption, columns, flat_rows)


def _make_side_columns(rows: Sequence[VerdictRow]) -> list[TableColumn]:
    def format_side(key: str) -> Callable[[Row], str]:
        return lambda row: (
            "–"
            if row[key] is None
            else verdict_text.format_metric_value(row["metric"], row[key], row["unit"])
        )

    return [
        TableColumn(
            f"{side}_value",
            verdict_text.title_side(rows, getattr(rows[0], side), ", "),
            format_row=format_side(f"{side}_value"),
            is_number=True,
        )
        for side in "ab"
        if rows
    ]


def _verdict_class(row: Row) -> str:
    is_certain = row["verdict"] in ("faster", "slower")
    return f"verdict {row['verdict']}" if is_certain else "verdict"


def make_counted_table(
    name: str, caption: str, rows: Sequence[Row], titles: Sequence[tuple[str, str]]
) -> DataTable:
    """Make a table of distinct rows with the number of their executions.

    Args:
        name: of the table.
        caption: of the table.
        rows: with the named values and ``executions``.
        titles: key and heading of each column.
    """
    columns = [
        TableColumn(key, title, is_long=any(_is_long(row[key]) for row in rows))
        for key, title in titles
    ]
    return DataTable(name, caption, (*columns, _EXECUTIONS), rows)


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and len(value) > 40


def make_measurement_table(rows: Sequence[Row], names: Sequence[str]) -> DataTable:
    """Make the table of single measurements."""
    columns = [
        TableColumn(
            name,
            title_column(name),
            is_number=any(isinstance(row[name], int | float) for row in rows),
        )
        for name in names
    ]
    return DataTable("measurements", "Single measurements", tuple(columns), rows)


def title_column(name: str) -> str:
    """Return the heading of a column of the catalogue."""
    return name.removeprefix("root_").replace("_", " ")
