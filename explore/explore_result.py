"""Result of Explore and study S0: parameters, points, figure, and its tables with their links."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from pydantic import Field

from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.explore.explore_figure import (
    describe_bars,
    describe_groups,
    describe_metric,
    describe_selection,
    figure_heading,
    figure_unit,
    group_value_writers,
    lay_out_figure,
)
from treehammer.explore.explore_query import DIMENSIONS, ExploreQuery, View
from treehammer.explore.figure_points import FigurePoint, FigurePoints, load_points
from treehammer.explore.work_mix import Aggregation
from treehammer.sql.read import query_model
from treehammer.sql.read.query_model import TIME_UNITS
from treehammer.tables import DataTable, LazyRows, Row, TableColumn
from treehammer.web.addresses import link_to
from treehammer.web.arranged_table import encode_condition
from treehammer.web.columns import outcome_columns
from treehammer.web.display_formats import aligned_format, day_from_number, day_number
from treehammer.web.figures.figure_layout import FigureLayout, GroupKeys
from treehammer.web.labels import VARIANT_COLUMN, title_column
from treehammer.web.page import PageRequest
from treehammer.web.page_query import TextOrBlank

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
    numbers = _name_statistics(query, data)
    rows = LazyRows(data.points, partial(_point_row, aggregation=data.aggregation))
    unit = figure_unit(query)
    number = aligned_format(
        (
            getattr(point, "mean" if name == "difference" else name)
            for point in data.points
            for name in numbers
        ),
        unit,
    )
    in_heading = f", {unit.name}" if query.view == View.RELATIVE else ""
    is_trend = {*query.group_columns} & {*TIME_UNITS}
    aggregates = TableColumn("aggregates", "aggregates", hidden=not data.aggregation.largest_counts)
    columns = (
        *(
            TableColumn(
                name,
                title_column(name),
                group_value_writers(data, name),
                is_long=name == VARIANT_COLUMN,
                link=links.value_link(name),
            )
            for name in query.group_columns
        ),
        *outcome_columns(),
        TableColumn("number", "n", is_number=True, link=links.jobs_link),
        *(
            TableColumn(name, f"{title_column(name)}{in_heading}", number, is_number=True)
            for name in numbers
        ),
        *([] if is_trend else [aggregates]),
    )
    unit_text = f", in {unit.name}" if unit.name else ""
    note = _describe_exported_unit(query, unit.name)
    return DataTable("figure", f"{figure_heading(query)}{unit_text}", columns, rows, note=note)


def _name_statistics(query: ExploreQuery, data: FigurePoints) -> tuple[str, ...]:
    """Name the statistics in the table, which depend on view and source."""
    if query.view == View.RELATIVE:
        return ("difference", "rms")
    return ("mean", "rms") if data.source == "roll-ups" else ("mean", "rms", "smallest", "largest")


def _describe_exported_unit(query: ExploreQuery, unit: str) -> str:
    """Name the metric's own unit, if the table is shown in another one."""
    metric = METRICS_BY_NAME.get(query.metric)
    own_unit = metric.unit if metric else ""
    own_unit = "shares: 0.05 is 5 %" if query.view == View.RELATIVE else own_unit
    return f"CSV and JSON use {own_unit}." if unit and unit != own_unit else ""


def _point_row(point: FigurePoint, aggregation: Aggregation) -> dict[str, Any]:
    values = point._asdict()
    return {
        **values.pop("key"),
        **values,
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
        jobs = {"by": _JOB, "color": VARIANT_COLUMN, "panels": "", "view": View.MEANS}
        removed = {"where"} | {"kind"} & {*query.group_columns}
        parameters = [
            (name, jobs.get(name, value))
            for name, value in query.list_parameters()
            if name not in removed
        ]
        self._shared_parameters = urlencode(parameters)
        self._query_conditions = query.conditions
        self._links_to_jobs = {*query.group_columns} <= {*DIMENSIONS} - {_JOB}

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


S0_TITLE = "CPU efficiency by site (study S0)"
#: Sites and series up to which S0's figure shows points by default.
MAX_POINT_SITES, MAX_POINT_SERIES = 12, 6
#: Columns that split the groups of S0's figure if several of their values are selected.
_S0_SEPARATED = ("test_name", "dataset")


class S0Query(ExploreQuery):
    """Parameters of the figure of study S0: CPU efficiency by site, with the RMS of repeated executions."""

    opening_view = View.MEANS

    color: TextOrBlank = Field(
        VARIANT_COLUMN, description="Second grouping column; empty for none."
    )


@dataclass(frozen=True)
class ExploreResult:
    """Parameters of a figure and its points."""

    query: ExploreQuery
    points: FigurePoints

    @property
    def title(self) -> str:
        """Title of the figure; S0's own one needs its default columns."""
        fields, names = S0Query.model_fields, ("metric", "by", "color", "panels")
        is_s0 = all(getattr(self.query, name) == fields[name].default for name in names)
        return S0_TITLE if is_s0 and self.route == "s0" else figure_heading(self.query)

    @property
    def route(self) -> str:
        """Name of the route of the figure's page."""
        return "s0" if isinstance(self.query, S0Query) else "explore"

    @property
    def newest_first(self) -> ExploreResult:
        """The same with the newest groups first, if they are days, weeks or months."""
        times = [name for name in (self.query.by, self.query.panels) if name in TIME_UNITS]
        if not times:
            return self
        points = sorted(
            self.points.points, key=lambda point: point.key[times[0]] or 0, reverse=True
        )
        return replace(self, points=replace(self.points, points=tuple(points)))

    def lay_out(self) -> FigureLayout | None:
        """Lay out the figure; None if there is nothing to draw."""
        return lay_out_figure(self.query, self.points, self.title)

    def link_permanently(self) -> str:
        """Return the address with all parameters."""
        return self._link(self.route)

    def link_file(self, form: str) -> str:
        """Return the address of the figure as a file."""
        return self._link(f"{self.route}-file", form=form)

    def _link(self, route: str, **parts: Any) -> str:
        return f"{link_to(route, **parts)}?{urlencode(self.query.list_parameters())}"

    @property
    def about(self) -> Mapping[str, Any]:
        """Description of the figure, for JSON."""
        query = self.query
        metric = METRICS_BY_NAME.get(query.metric)
        unit = "1" if query.view == View.RELATIVE else metric.unit if metric else ""
        return {
            "metric": query.metric,
            "unit": unit,
            "meaning": describe_metric(query),
            "bars": describe_bars(query),
            "caption": describe_groups(query),
            "selection": describe_selection(query, self.points.points),
            "from": query.first.isoformat() if query.first else None,
            "to": query.last.isoformat() if query.last else None,
            "kind": query.kind or None,
            "groups": list(query.group_columns),
            "aggregated": self.points.aggregation.describe_figure(query.group_columns),
            "aggregated_max": self.points.aggregation.largest_counts,
            "source": self.points.source,
        }


def run_query(request: PageRequest[Any]) -> ExploreResult:
    """Load the points of a page's query."""
    query: ExploreQuery = request.query.resolve(request.store)
    points = load_points(request.store, query)
    if not isinstance(query, S0Query):
        return ExploreResult(query, points)
    counts = points.aggregation.counts_in_figure
    if separated := [
        name
        for name in _S0_SEPARATED
        if counts.get(name, 0) > 1 and name not in query.group_columns
    ]:
        query = query.model_copy(update={"separated_columns": tuple(separated)})
        points = load_points(request.store, query)
    # Too many single points would be hard to distinguish.
    columns = (*query.separated_columns, query.color)
    series = {tuple(map(point.key.get, columns)) for point in points.points}
    is_crowded = len({point.key[query.by] for point in points.points}) > MAX_POINT_SITES
    is_crowded |= len(series) > MAX_POINT_SERIES
    if is_crowded and "view" not in query.model_fields_set:
        query = query.model_copy(update={"view": View.HEATMAP})
    return ExploreResult(query, points)
