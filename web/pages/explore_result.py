"""Result of Explore and study S0: parameters, points, figure, table and description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

from pydantic import Field

from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.errors import ConfigError
from treehammer.sql.core.measurement_sql import HISTOGRAM_COLUMN
from treehammer.sql.read.query_model import TIME_UNITS
from treehammer.tables import DataTable
from treehammer.web.addresses import link_to, wants_html
from treehammer.web.figures import figure_captions
from treehammer.web.figures.explore_figure import lay_out_figure
from treehammer.web.figures.explore_query import ColumnOrBlank, ExploreQuery, View
from treehammer.web.figures.figure_layout import FigureLayout
from treehammer.web.figures.figure_points import FigurePoints, load_points
from treehammer.web.labels import VARIANT_COLUMN
from treehammer.web.page import PageRequest
from treehammer.web.page_service import error_sentence
from treehammer.web.pages.explore_tables import RowLinks, latency_table, spread_table

S0_TITLE = "CPU efficiency by site (study S0)"
#: Sites and series up to which S0's figure shows points by default.
MAX_POINT_SITES, MAX_POINT_SERIES = 12, 6
#: Columns that split the groups of S0's figure if several of their values are selected.
_S0_SEPARATED = ("test_name", "dataset")


class S0Query(ExploreQuery):
    """Parameters of the figure of study S0: CPU efficiency by site, with the RMS of repeated executions."""

    opening_view = View.MEANS

    color: ColumnOrBlank = Field(
        VARIANT_COLUMN, description="Second grouping column; empty for none."
    )


def _title_figure(query: ExploreQuery) -> str:
    """Return the title of a figure; S0's own one needs its default columns."""
    fields, names = S0Query.model_fields, ("metric", "by", "color", "panels")
    if isinstance(query, S0Query) and all(getattr(query, n) == fields[n].default for n in names):
        return S0_TITLE
    return figure_captions.figure_heading(query)


@dataclass(frozen=True)
class ExploreResult:
    """Parameters of a figure and its points, or the reason why there are none.

    Attributes:
        error: why the parameters were refused, '' otherwise.
    """

    query: ExploreQuery
    points: FigurePoints
    error: str = ""

    @property
    def title(self) -> str:
        """Title of the figure."""
        return _title_figure(self.query)

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
        if figure_captions.explain_scattered(self.query, self.points.points):
            return None
        return lay_out_figure(self.query, self.points, self.title)

    def explain_empty(self) -> str:
        """Explain why there is nothing to draw."""
        return figure_captions.explain_empty_figure(self.query, self.points.points)

    def build_table(self, links: RowLinks) -> DataTable:
        """Build the table of the figure's groups."""
        table = latency_table if self.query.view == View.LATENCY else spread_table
        return table(self.query, self.points, links)

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
        is_latency = query.view == View.LATENCY
        return {
            "metric": HISTOGRAM_COLUMN if is_latency else query.metric,
            "unit": "reads" if is_latency else unit,
            "meaning": figure_captions.describe_metric(query),
            "bars": figure_captions.describe_bars(query),
            "caption": figure_captions.describe_groups(query),
            "selection": figure_captions.describe_selection(query, self.points.points),
            "from": query.first.isoformat() if query.first else None,
            "to": query.last.isoformat() if query.last else None,
            "kind": query.kind or None,
            "groups": list(query.group_columns),
            "aggregated": self.points.aggregation.describe_figure(query.group_columns),
            "aggregated_max": self.points.aggregation.largest_counts,
            "source": self.points.source,
        }


def run_query(request: PageRequest[Any], *, is_drawn: bool) -> ExploreResult:
    """Parse the address and load the points; for browsers the result may have an error."""
    store, model = request.store, request.model
    try:
        query = model.parse(request.raw).resolve(store)
        if is_drawn:
            query.require_sense()
        points = load_points(store, query)
        if separated := _list_separable(query, points):
            query = query.model_copy(update={"separated_columns": separated})
            points = load_points(store, query)
    except ConfigError as error:
        if not wants_html(request.raw):
            raise
        query = model.parse_valid(request.raw).resolve_valid(store)
        return ExploreResult(query, FigurePoints((), ""), error_sentence(error))
    is_default = isinstance(query, S0Query) and "view" not in query.model_fields_set
    if is_default and _is_crowded(query, points):
        query = query.model_copy(update={"view": View.HEATMAP})
    return ExploreResult(query, points)


def _list_separable(query: ExploreQuery, points: FigurePoints) -> tuple[str, ...]:
    """List the columns that split the groups of these points."""
    counts = points.aggregation.counts_in_figure
    return tuple(
        name
        for name in (_S0_SEPARATED if isinstance(query, S0Query) else ())
        if counts.get(name, 0) > 1 and name not in query.group_columns
    )


def _is_crowded(query: ExploreQuery, points: FigurePoints) -> bool:
    """Return whether single points would be hard to distinguish."""
    if len({point.key[query.by] for point in points.points}) > MAX_POINT_SITES:
        return True
    columns = (*query.separated_columns, query.color)
    series = {tuple(map(point.key.get, columns)) for point in points.points}
    return len(series) > MAX_POINT_SERIES
