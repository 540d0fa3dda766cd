"""Tables of Explore: groups with their statistics, bins and quantiles of latencies; links of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, timedelta
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.sql.read import query_model
from treehammer.tables import DataTable, LazyRows, Row, TableColumn
from treehammer.text_formatting import format_share
from treehammer.web.addresses import link_to
from treehammer.web.arranged_table import encode_condition
from treehammer.web.columns import outcome_columns
from treehammer.web.display_formats import (
    aligned_format,
    day_from_number,
    day_number,
    format_seconds,
)
from treehammer.web.figures.explore_figure import READ_QUANTILES, figure_unit, group_value_writers
from treehammer.web.figures.explore_query import DIMENSIONS, Bars, ExploreQuery, View
from treehammer.web.figures.figure_captions import figure_heading
from treehammer.web.figures.figure_layout import GroupKeys
from treehammer.web.figures.figure_points import QUANTILE_SHARES, FigurePoint, FigurePoints
from treehammer.web.figures.work_mix import Aggregation
from treehammer.web.labels import VARIANT_COLUMN, title_column
from treehammer.web.pages.latency_figure import BIN_COLUMNS, list_filled_bins

_QUANTILE_KEYS = tuple(f"p{100 * share:g}" for share in QUANTILE_SHARES)

#: Column -> URL of the page of its value ``-``.
_PAGE_LINKS: Mapping[str, Callable[[], str]] = {
    "site": lambda: link_to("site", site="-"),
    "job_id": lambda: link_to("job", job_id="-"),
    "campaign_id": lambda: link_to("campaign", campaign_id="-"),
}
_JOB = "job_id"
_WEEK_LENGTH = timedelta(days=6)
_LAST_MONDAY = date.max - _WEEK_LENGTH


def spread_table(query: ExploreQuery, data: FigurePoints, links: RowLinks) -> DataTable:
    """Build the table of all groups, exported in the metric's unit, shown in a readable one."""
    numbers = _statistic_names(query, data)
    rows = LazyRows(data.points, partial(_point_row, aggregation=data.aggregation))
    unit = figure_unit(query, data.points)
    measured = [name for name in numbers if name != "jobs"]
    number = aligned_format(
        (_find_statistic(point, name) for point in data.points for name in measured), unit
    )
    in_heading = f", {unit.name}" if query.view == View.RELATIVE else ""
    columns = (
        *group_columns(query, data, links),
        *outcome_columns(),
        TableColumn("number", "n", is_number=True, link=links.jobs_link),
        *(
            TableColumn(name, name, is_number=True)
            if name == "jobs"
            else TableColumn(name, f"{title_column(name)}{in_heading}", number, is_number=True)
            for name in numbers
        ),
        *aggregation_column(query, data),
    )
    metric = METRICS_BY_NAME.get(query.metric)
    own_unit = metric.unit if metric else ""
    own_unit = "shares: 0.05 is 5 %" if query.view == View.RELATIVE else own_unit
    unit_text = f", in {unit.name}" if unit.name else ""
    note = f"CSV, JSON and TTree use {own_unit}." if unit.name and unit.name != own_unit else ""
    return DataTable("figure", f"{figure_heading(query)}{unit_text}", columns, rows, note=note)


def _find_statistic(point: FigurePoint, name: str) -> float | None:
    if name in _QUANTILE_KEYS:
        return point.quantiles[_QUANTILE_KEYS.index(name)] if point.quantiles else None
    value: float | None = getattr(point, "mean" if name == "difference" else name)
    return value


def _statistic_names(query: ExploreQuery, data: FigurePoints) -> tuple[str, ...]:
    """Name the statistics in the table, which depend on view, bars and source."""
    if query.view == View.DISTRIBUTION:
        return ("smallest", *_QUANTILE_KEYS, "largest", "mean")
    if query.view == View.RELATIVE:
        return ("difference", "rms")
    if query.bars == Bars.INTERVAL:
        return ("jobs", "mean", "low", "high")
    return ("mean", "rms") if data.source == "roll-ups" else ("mean", "rms", "smallest", "largest")


def group_columns(query: ExploreQuery, data: FigurePoints, links: RowLinks) -> list[TableColumn]:
    """Build the columns whose values define a group."""
    return [
        TableColumn(
            name,
            title_column(name),
            group_value_writers(data, name),
            is_long=name == VARIANT_COLUMN,
            link=links.value_link(name),
        )
        for name in query.group_columns
    ]


def aggregation_column(query: ExploreQuery, data: FigurePoints) -> list[TableColumn]:
    """Build the column of the values in each group; none along a time axis."""
    if set(query.group_columns) & set(query_model.TIME_UNITS):
        return []
    return [TableColumn("aggregates", "aggregates", hidden=not data.aggregation.largest_counts)]


def latency_table(query: ExploreQuery, data: FigurePoints, links: RowLinks) -> DataTable:
    """Build the table of reads of every group by bin."""
    columns = (
        *group_columns(query, data, links),
        *BIN_COLUMNS,
        TableColumn("share", "share", lambda share: f"{100 * share:.2f} %", is_number=True),
    )
    rows = [
        {**point.key, **bin_, "share": bin_["reads"] / sum(point.reads)}
        for point in data.points
        for bin_ in list_filled_bins(point.reads)
    ]
    return DataTable("figure", f"{figure_heading(query)}, bin by bin", columns, rows)


def quantile_table(query: ExploreQuery, data: FigurePoints, links: RowLinks) -> DataTable:
    """Build the table of quantiles of the read latency of every group."""
    columns: tuple[TableColumn, ...] = (
        *group_columns(query, data, links),
        TableColumn("good", "executions", is_number=True, link=links.jobs_link),
        TableColumn("reads", "reads", is_number=True),
        *(
            TableColumn(key, f"{format_share(share)} below", format_seconds, is_number=True)
            for key, share in READ_QUANTILES.items()
        ),
    )
    rows = [
        {
            **point.key,
            "good": point.good,
            "reads": sum(point.reads),
            **dict(
                zip(READ_QUANTILES, point.latency_quantiles_s(READ_QUANTILES.values()), strict=True)
            ),
            "aggregates": data.aggregation.describe_point(point.key),
        }
        for point in data.points
        if sum(point.reads)
    ]
    columns += tuple(aggregation_column(query, data))
    note = (
        "Quantiles are accurate to a factor of two: reads are assumed to be evenly distributed "
        "within a bin."
    )
    return DataTable("quantiles", figure_heading(query), columns, rows, note=note)


def _point_row(point: FigurePoint, aggregation: Aggregation) -> dict[str, Any]:
    values = point._asdict()
    quantiles = point.quantiles or (None,) * len(QUANTILE_SHARES)
    return {
        **point.key,
        **{name: values[name] for name in values if name not in ("key", "quantiles", "reads")},
        **dict(zip(_QUANTILE_KEYS, quantiles, strict=True)),
        "difference": point.mean,
        "aggregates": aggregation.describe_point(point.key),
    }


class RowLinks:
    """Links of the rows of one figure's table."""

    def __init__(self, query: ExploreQuery) -> None:
        self._groups = query.group_columns
        self._explore = link_to("explore")
        # Resolved once, as there may be many rows.
        self._bases = {
            name: page().removesuffix("-")
            for name, page in _PAGE_LINKS.items()
            if name in query.group_columns
        }
        jobs = {
            "by": _JOB,
            "color": VARIANT_COLUMN,
            "panels": "",
            "view": View.MEANS,
            "bars": Bars.RMS,
        }
        removed = ("where", *(("kind",) if "kind" in query.group_columns else ()))
        parameters = [
            (name, jobs.get(name, value))
            for name, value in query.list_parameters()
            if name not in removed
        ]
        self._shared_parameters = urlencode(parameters)
        self._query_conditions = query.conditions
        self._links_to_jobs = _JOB not in query.group_columns and {*query.group_columns} <= {
            *DIMENSIONS
        }

    def value_link(self, name: str) -> Callable[[Row], str]:
        """Build a function that links to the page of a row's value; '' if it has none."""
        base = self._bases.get(name)
        if base is None:
            return lambda _: ""
        return lambda row: base + quote(str(row[name]), safe="") if row[name] else ""

    def jobs_link(self, row: Row) -> str:
        """Link to the figure of a row's jobs; '' if rows are jobs, or no condition can select them."""
        if not self._links_to_jobs:
            return ""
        conditions = query_model.intersect_conditions(
            (*self._query_conditions, *self._conditions(row))
        )
        return f"{self._explore}?{self._shared_parameters}&{_encode_conditions(conditions)}"

    def mark_links(self, keys: GroupKeys) -> Mapping[str, Any] | None:
        """Start of the links of marks, and the part that each panel, place and series adds; may be None."""
        if not self._links_to_jobs:
            return None
        conditions = [
            condition
            for condition in self._query_conditions
            if condition.operator != "=" or condition.column not in self._groups
        ]
        parts = [
            [_encode_conditions(self._conditions(values)) for values in axis_keys]
            for axis_keys in keys
        ]
        encoded = _encode_conditions(conditions)
        base = f"{self._explore}?{self._shared_parameters}" + (f"&{encoded}" if encoded else "")
        return {"base": base, **dict(zip(("panels", "places", "series"), parts, strict=True))}

    def _conditions(self, row: Mapping[str, Any]) -> Iterator[query_model.Condition]:
        for name in self._groups:
            if name not in row:
                continue
            value = row[name]
            if name in (query_model.WEEK, query_model.MONTH):
                first, last = _period_bounds(name, value)
                yield query_model.Condition(query_model.DAY, ">=", first)
                yield query_model.Condition(query_model.DAY, "<=", last)
            else:
                yield query_model.Condition(name, "=", value)


def _encode_conditions(conditions: Iterable[query_model.Condition]) -> str:
    return "&".join(map(encode_condition, conditions))


def _period_bounds(name: str, value: query_model.Scalar) -> tuple[int, int]:
    """Return the first and last database day number of a week or month."""
    number = value if isinstance(value, int) else 0
    if name == query_model.MONTH:
        return 100 * number, 100 * number + 99
    monday = day_from_number(number)
    # The last days of the calendar have no complete week.
    return number, number if monday > _LAST_MONDAY else day_number(monday + _WEEK_LENGTH)
