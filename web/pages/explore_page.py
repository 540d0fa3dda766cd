"""Explore: any metric by any dimension, and study S0's figure: as chart, tables and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlencode

import anyio
from pydantic import Field
from starlette.responses import Response

from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.errors import ConfigError
from treehammer.sql.core.measurement_sql import HISTOGRAM_COLUMN
from treehammer.sql.read.query_model import TIME_UNITS
from treehammer.tables import MAX_SHOWN_ROWS, DataTable
from treehammer.version import __version__
from treehammer.web.addresses import link_to, link_to_same_page, wants_html
from treehammer.web.core.responses import RequestRefusedError
from treehammer.web.figures.drawing import FIGURE_FORMATS, PAPER_WIDTHS_MM, PIXELS_PER_MM
from treehammer.web.figures.explore_query import (
    DISTRIBUTION,
    HEATMAP,
    LATENCY,
    MEAN_VIEWS,
    MEANS,
    RELATIVE,
    SIZE,
    SORTED,
    ColumnOrBlank,
    ExploreQuery,
)
from treehammer.web.figures.figure_captions import (
    describe_bars,
    describe_groups,
    describe_metric,
    describe_selection,
    explain_empty_figure,
    explain_scattered,
    figure_heading,
)
from treehammer.web.figures.figure_chart import FigureChart, chart_figure
from treehammer.web.figures.figure_layout import FigureLayout
from treehammer.web.figures.figure_points import FigurePoints, load_points
from treehammer.web.labels import VARIANT_COLUMN
from treehammer.web.page import (
    PageContent,
    PageOperation,
    PageRequest,
    PageResources,
    QueryPool,
    page,
)
from treehammer.web.page_service import (
    MAX_DRAWING_PROCESSES,
    FigureFiles,
    error_sentence,
    make_figure_response,
)
from treehammer.web.pages.explore_form import list_form_values
from treehammer.web.pages.latency_figure import latency_table, lay_out_latencies, quantile_table
from treehammer.web.pages.spread_figure import RowLinks, lay_out_spreads, spread_table
from treehammer.web.sections import (
    Command,
    Figure,
    Folded,
    Inline,
    Link,
    Links,
    Paragraph,
    Section,
    Special,
    Strong,
    Styled,
    end_sentence,
    headline,
    quiet,
)

S0_TITLE = "CPU efficiency by site (study S0)"
#: Sites and series up to which S0's figure shows points by default.
MAX_POINT_SITES, MAX_POINT_SERIES = 12, 6
#: Columns that split the groups of S0's figure if several of their values are selected.
_S0_SEPARATED = ("test_name", "dataset")

_EXPLORE_TABLES = {
    "figure": "groups of measurements with their statistics, or the bins of read latencies",
    "quantiles": "quantiles of the read latency; empty in other views",
}
_EXPLORE_ABOUT = (
    "metric",
    "unit",
    "meaning",
    "bars",
    "caption",
    "selection",
    "from",
    "to",
    "kind",
    "groups",
    "aggregated",
    "aggregated_max",
    "source",
)


class S0Query(ExploreQuery):
    """Parameters of the figure of study S0: CPU efficiency by site, with the RMS of repeated executions."""

    opening_view = MEANS

    color: ColumnOrBlank = Field(
        VARIANT_COLUMN, description="Second grouping column; empty for none."
    )


def _title_figure(query: ExploreQuery) -> str:
    """Return the title of a figure; S0's own one needs its default columns."""
    fields, names = S0Query.model_fields, ("metric", "by", "color", "panels")
    if isinstance(query, S0Query) and all(getattr(query, n) == fields[n].default for n in names):
        return S0_TITLE
    return figure_heading(query)


@dataclass(frozen=True)
class _ExploreResult:
    """Parameters of a figure and its points, or the reason why there are none.

    Attributes:
        query: parameters of the figure.
        points: groups of the figure.
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
    def newest_first(self) -> _ExploreResult:
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
        if explain_scattered(self.query, self.points.points):
            return None
        lay_out = lay_out_latencies if self.query.view == LATENCY else lay_out_spreads
        return lay_out(self.query, self.points, self.title)

    def explain_empty(self) -> str:
        """Explain why there is nothing to draw."""
        return explain_empty_figure(self.query, self.points.points)

    def build_table(self, links: RowLinks) -> DataTable:
        """Build the table of the figure's groups."""
        table = latency_table if self.query.view == LATENCY else spread_table
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
        unit = "1" if query.view == RELATIVE else metric.unit if metric else ""
        is_latency = query.view == LATENCY
        return {
            "metric": HISTOGRAM_COLUMN if is_latency else query.metric,
            "unit": "reads" if is_latency else unit,
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


def _run_query(request: PageRequest[Any], *, is_drawn: bool) -> _ExploreResult:
    """Parse the address and load the points, for a figure or for tables alone.

    Raises:
        ConfigError: a program sent invalid parameters; for browsers the result has an error.
    """
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
        return _ExploreResult(query, FigurePoints((), ""), error_sentence(error))
    is_default = isinstance(query, S0Query) and "view" not in query.model_fields_set
    if is_default and _is_crowded(query, points):
        query = query.model_copy(update={"view": HEATMAP})
    return _ExploreResult(query, points)


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


def _show_figure(request: PageRequest[Any]) -> PageContent:
    """Build the page of a figure."""
    result = _run_query(request, is_drawn=request.is_html)
    links = RowLinks(result.query)
    tables = (
        result.build_table(links),
        quantile_table(result.query, result.points, links),
    )
    if not request.is_html:
        return PageContent(result.title, tables=tables, about=result.about)
    form = list_form_values(request.store, result.query, result.points, link_to(result.route))
    shown = (
        result.newest_first.build_table(links),
        quantile_table(result.query, result.newest_first.points, links),
    )
    sections = [
        _describe_subject(result, form["campaigns"]),
        Links(list(_link_presets(result)), "Figures"),
        Special("explore_form.html.j2", **form),
        *_show_result(result, links, shown),
    ]
    status = 400 if result.error else 200
    return PageContent(result.title, sections, (), status=status)


@page(
    "/explore",
    "explore",
    ExploreQuery,
    menu="Explore",
    position=20,
    api=PageOperation(
        "exploreMeasurements", "A metric grouped by columns", _EXPLORE_TABLES, _EXPLORE_ABOUT
    ),
)
def explore_page(request: PageRequest[ExploreQuery]) -> PageContent:
    """Show any metric by any dimension."""
    return _show_figure(request)


@page(
    "/figures/s0",
    "s0",
    S0Query,
    position=21,
    api=PageOperation(
        "getFigureS0",
        "CPU efficiency by site and variant, as in study S0",
        _EXPLORE_TABLES,
        _EXPLORE_ABOUT,
    ),
)
def s0_page(request: PageRequest[S0Query]) -> PageContent:
    """Show CPU efficiency by site, as in study S0."""
    return _show_figure(request)


def _describe_subject(result: _ExploreResult, campaigns: Sequence[tuple[str, str]]) -> Section:
    """Describe the metric and link the selected campaigns."""
    if result.error:
        return quiet("")
    selected = [
        Link(name, link_to("campaign", campaign_id=id_))
        for id_, name in campaigns
        if id_ in result.query.campaigns
    ]
    parts: list[Inline] = [Styled(describe_metric(result.query), tooltip=result.about["metric"])]
    for number, link in enumerate(selected):
        last = number == len(selected) - 1
        parts += [" Campaign " if not number else " and " if last else ", ", link]
    return Paragraph(*parts, "." if selected else "", look="quiet under")


def _show_result(
    result: _ExploreResult, links: RowLinks, tables: Sequence[DataTable]
) -> Iterator[Section]:
    """Show the figure and its tables, or explain why there are none."""
    figure = None if result.error else result.lay_out()
    if result.points.points:
        yield _note_aggregation(result)
        yield quiet(result.points.variants.note)
    if figure:
        yield headline(figure.outliers)
        source = f"{figure.caption} Source: {result.about['source']}."
        chart = FigureChart(figure, links.mark_links(figure.keys))
        yield Figure(
            "figure",
            chart,
            source,
            title=figure.title,
            remark=figure.left_out,
            file=result.link_file("svg"),
        )
    elif result.points.points:
        yield headline(result.explain_empty())
    shown = [table for table in reversed(tables) if table.rows]
    if shown:
        yield from _offer_files(result, has_figure=figure is not None)
        for table in shown:
            yield replace(table, max_rows=MAX_SHOWN_ROWS)
    elif result.error:
        yield Paragraph(end_sentence(result.error), look="headline", role="alert")
    elif result.points.points:
        yield quiet(f"Selection: {result.about['selection']}")
    else:
        yield from _explain_no_points(result)


def _note_aggregation(result: _ExploreResult) -> Paragraph:
    """Warn of means over a mix of work."""
    query, note = result.query, result.about["aggregated"]
    if not note:
        return Paragraph("")
    advice: list[Inline] = [
        " Differences may come from the mix: filter for one value, or separate them by color or panels"
    ]
    if query.view in MEAN_VIEWS and query.by in TIME_UNITS:
        advice += [", or ", Link("compare with the same work", link_to_same_page(view=RELATIVE))]
    return Paragraph(Strong(note), *advice, ".", look="aggregated")


def _offer_files(result: _ExploreResult, *, has_figure: bool) -> Iterator[Section]:
    """Link the figure's files, the permanent address and the command that exports the measurements."""
    drawn = [form for form in FIGURE_FORMATS if form != "root"] if has_figure else []
    names = {**{form: form.upper() for form in drawn}, "root": "TTree"}
    files = [Link(name, result.link_file(form), is_file=True) for form, name in names.items()]
    of_paper = [
        Link(
            f"{size} column",
            f"{result.link_file('pdf')}&{SIZE}={size}",
            label=f"PDF as wide as a {size} column of a paper ({width_mm:g} mm)",
            is_file=True,
        )
        for size, width_mm in PAPER_WIDTHS_MM.items()
        if has_figure
    ]
    tables = [Link(form.upper(), link_to_same_page(format=form)) for form in ("csv", "json")]
    separated = [part for link in (*files, *tables) for part in (", ", link)][1:]
    separated[-2] = " or "
    yield quiet(f"Selection: {result.about['selection']}")
    yield Paragraph(
        "Download: ",
        *separated,
        " · ",
        Link("Permanent link", result.link_permanently()),
        " ",
        Styled("(includes all parameters and days)", "quiet"),
        look="files",
    )
    if of_paper:
        parts = [part for link in of_paper for part in (" or ", link)][1:]
        formats = f"; PNG and SVG with {SIZE}={' or '.join(PAPER_WIDTHS_MM)}."
        yield quiet("PDF for a paper: ", *parts, formats)
    if command := result.query.export_command:
        yield Folded("Export these measurements", Command(command))


def _explain_no_points(result: _ExploreResult) -> Iterator[Section]:
    """Explain that no measurements match, or that the database is empty."""
    query = result.query
    if not (query.conditions or query.campaigns or query.first or query.last):
        yield Paragraph(
            "No measurements yet. The demo runs a campaign on this machine with its own database and "
            "prints the command that opens it:"
        )
        yield Command("treehammer demo")
        return
    days = [f"from {query.first}"] if query.first else []
    days += [f"to {query.last}"] if query.last else []
    yield Paragraph(
        f"No measurements match the selection{', ' if days else ''}{' '.join(days)}. ",
        Link("Show all days without filters", f"{link_to(result.route)}?from=&to="),
        ".",
    )


#: Looks of S0's figure, by their titles.
_S0_LOOKS: Mapping[str, Mapping[str, str]] = {
    "Heat map": {"view": HEATMAP},
    "Sorted dots": {"view": SORTED},
    "Panel per variant": {"view": MEANS, "panels": VARIANT_COLUMN, "color": "axis_root"},
    "Points with bars": {"view": MEANS},
}
#: Other figures of a metric; each distinguishes variants: a mean over several would depend on their mix.
_PRESETS: Mapping[str, Mapping[str, str]] = {
    "Trend by day": {"by": "day", "color": "site", "view": RELATIVE},
    "Distribution by site": {
        "by": "site",
        "color": "axis_root",
        "panels": VARIANT_COLUMN,
        "view": DISTRIBUTION,
    },
    "Read latency by variant": {"by": VARIANT_COLUMN, "color": "axis_root", "view": LATENCY},
    "Small multiples by site": {"by": VARIANT_COLUMN, "color": "axis_root", "panels": "site"},
    "Trend by day, a panel per site": {
        "by": "day",
        "color": VARIANT_COLUMN,
        "panels": "site",
        "view": RELATIVE,
    },
}
#: Parameters that select executions, which links to other figures keep.
_SELECTING = ("from", "to", "campaign", "where", "kind")


def _link_presets(result: _ExploreResult) -> Iterator[Link]:
    """Yield links to other figures of the same selection."""
    values = result.query.list_parameters()
    selecting = [(name, value) for name, value in values if name in _SELECTING]

    def preset(title: str, route: str, parameters: Mapping[str, str]) -> Link:
        encoded = urlencode([*parameters.items(), *selecting])
        return Link(title, f"{link_to(route)}?{encoded}")

    for title, parameters in (_S0_LOOKS if result.route == "s0" else {S0_TITLE: {}}).items():
        yield preset(title, "s0", parameters)
    for title, parameters in _PRESETS.items():
        yield preset(title, "explore", {"metric": result.query.metric, **parameters})


def _share_files(_resources: PageResources) -> FigureFiles:
    return FigureFiles()


def _share_drawing_pool(_resources: PageResources) -> QueryPool:
    # Drawing takes seconds; waiting requests must not block other pages.
    return QueryPool(anyio.CapacityLimiter(MAX_DRAWING_PROCESSES))


def _send_file(request: PageRequest[Any]) -> Response:
    """Draw a figure, or write its table, as a file."""
    form = request.raw.path_params["form"]
    if form not in FIGURE_FORMATS:
        raise RequestRefusedError(
            404, f"unknown format {form[:20]!r}; expected one of {', '.join(FIGURE_FORMATS)}"
        )
    result = _run_query(request, is_drawn=form != "root")
    if result.error:
        raise RequestRefusedError(400, result.error)
    drawing: dict[str, Any]
    if form == "root":
        whole = result.build_table(RowLinks(result.query))
        drawing = {
            "columns": _list_column_types(result.query, whole),
            "rows": whole.plain_rows(),
            "title": _title_tree(result),
        }
    else:
        figure = result.lay_out()
        if figure is None:
            raise RequestRefusedError(404, result.explain_empty())
        size = request.raw.query_params.get(SIZE, "")
        if size and size not in PAPER_WIDTHS_MM:
            raise RequestRefusedError(
                400, f"{SIZE} must be one of {', '.join(PAPER_WIDTHS_MM)}, not {size[:20]!r}"
            )
        width_mm = PAPER_WIDTHS_MM.get(size, 0.0)
        drawing = {
            "chart": chart_figure(figure, paper_width=width_mm * PIXELS_PER_MM),
            "width_mm": width_mm,
            "metadata": {
                "Title": result.title,
                "Subject": result.link_permanently(),
                "Creator": f"Treehammer {__version__}",
            },
        }
    files = request.resources.share(_share_files)
    return make_figure_response(result.route, form, files.draw_file(form, drawing))


def _share_pool(resources: PageResources) -> QueryPool:
    return resources.share(_share_drawing_pool)


@page("/explore/figure.{form}", "explore-file", ExploreQuery, position=22, make_pool=_share_pool)
def explore_file(request: PageRequest[ExploreQuery]) -> Response:
    """Draw a figure of Explore, or write its table, as a file."""
    return _send_file(request)


@page("/figures/s0/figure.{form}", "s0-file", S0Query, position=22, make_pool=_share_pool)
def s0_file(request: PageRequest[S0Query]) -> Response:
    """Draw the figure of study S0, or write its table, as a file."""
    return _send_file(request)


def _title_tree(result: _ExploreResult) -> str:
    """Return the title of a TTree with the figure's description."""
    about = result.about
    parts = (result.title, about["bars"], about["selection"], about["aggregated"])
    return ". ".join(text.rstrip(".") for text in parts if text)


#: Columns of whole numbers.
_COUNTS = (
    "good",
    "failed",
    "implausible",
    "not_supported",
    "number",
    "jobs",
    "reads",
    *TIME_UNITS,
)


def _list_column_types(query: ExploreQuery, whole: DataTable) -> list[dict[str, str]]:
    """Return the columns with their types in a TTree."""
    types = []
    for column in whole.columns:
        kind = "int" if column.key in _COUNTS else "text" if column.key == "aggregates" else "float"
        if column.key in query.group_columns and column.key in METRICS_BY_NAME:
            kind = METRICS_BY_NAME[column.key].type
        types.append({"name": column.key, "type": kind})
    return types
