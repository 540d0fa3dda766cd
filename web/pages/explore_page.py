"""Explore: any metric by any dimension, as figure, tables and files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import urlencode

import anyio
from pydantic import Field
from starlette.responses import Response

from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.collectors.job_spec import EXECUTION_KINDS
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.errors import ConfigError
from treehammer.sql.core.measurement_sql import HISTOGRAM_COLUMN
from treehammer.sql.core.schema import ROLLUP_METRICS
from treehammer.sql.read import campaign_queries, overview_queries
from treehammer.sql.read.query_model import ROLLUP_GROUPINGS, TIME_UNITS, is_variant_axis
from treehammer.sql.write.store import Store
from treehammer.tables import MAX_SHOWN_ROWS, DataTable
from treehammer.web.addresses import link_to, link_to_same_page, wants_html
from treehammer.web.core.responses import RequestRefusedError
from treehammer.web.figures.drawing import FIGURE_FORMATS
from treehammer.web.figures.explore_query import (
    BARS,
    DIMENSIONS,
    DISTRIBUTION,
    FILTERS,
    HEATMAP,
    LATENCY,
    MEAN_VIEWS,
    MEANS,
    METRICS,
    RELATIVE,
    SCALES,
    SORTED,
    VIEWS,
    ExploreQuery,
)
from treehammer.web.figures.figure_captions import (
    describe_bars,
    describe_groups,
    describe_metric,
    describe_selection,
    explain_empty_figure,
    figure_heading,
)
from treehammer.web.figures.figure_chart import FigureChart, chart_figure
from treehammer.web.figures.figure_layout import FigureLayout
from treehammer.web.figures.figure_points import FigurePoints, load_points
from treehammer.web.labels import VARIANT_COLUMN, label_variants
from treehammer.web.page import (
    PageContent,
    PageOperation,
    PageRequest,
    PageResources,
    QueryPool,
    page,
)
from treehammer.web.page_query import TextOrBlank
from treehammer.web.page_service import (
    MAX_DRAWING_PROCESSES,
    FigureFiles,
    error_sentence,
    make_figure_response,
)
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

Item = TypeVar("Item")

#: Values listed in a filter; others can be typed.
MAX_FILTER_CHOICES = 300
#: Newest campaigns listed in the form.
MAX_CAMPAIGN_CHOICES = 100

S0_TITLE = "CPU efficiency by site (study S0)"
#: Sites and series up to which S0's figure shows points by default.
MAX_POINT_SITES, MAX_POINT_SERIES = 12, 6

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

    color: TextOrBlank = Field(
        VARIANT_COLUMN, description="Second grouping column; empty for none."
    )


#: Columns that split the groups of S0's figure if several of their values are selected.
_S0_SEPARATED = ("test_name", "dataset")


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
        title: title of the figure.
        error: why the parameters were refused, '' otherwise.
    """

    query: ExploreQuery
    points: FigurePoints
    title: str
    error: str = ""

    def lay_out(self) -> FigureLayout | None:
        """Lay out the figure; None if there is nothing to draw."""
        lay_out = lay_out_latencies if self.query.view == LATENCY else lay_out_spreads
        return lay_out(self.query, self.points, self.title)

    def explain_empty(self) -> str:
        """Explain why there is nothing to draw."""
        return explain_empty_figure(self.query, self.points.points)

    def build_table(self, links: RowLinks) -> DataTable:
        """Build the table of the figure's groups."""
        table = latency_table if self.query.view == LATENCY else spread_table
        return table(self.query, self.points, links)

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


def _make_files(_: PageResources) -> FigureFiles:
    return FigureFiles()


def _make_pool(_: PageResources) -> QueryPool:
    # Drawing takes seconds; waiting requests must not block other pages.
    return QueryPool(anyio.CapacityLimiter(MAX_DRAWING_PROCESSES))


def _share_pool(resources: PageResources) -> QueryPool:
    """Return the pool of both figures' files."""
    return resources.share(_make_pool)


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
    return _show_figure("explore", request)


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
    return _show_figure("s0", request)


@page("/explore/figure.{form}", "explore-file", ExploreQuery, position=22, make_pool=_share_pool)
def explore_file(request: PageRequest[ExploreQuery]) -> Response:
    """Draw a figure of Explore, or write its table, as a file."""
    return _send_file("explore", request)


@page("/figures/s0/figure.{form}", "s0-file", S0Query, position=22, make_pool=_share_pool)
def s0_file(request: PageRequest[S0Query]) -> Response:
    """Draw the figure of study S0, or write its table, as a file."""
    return _send_file("s0", request)


def _run_query(request: PageRequest[Any]) -> _ExploreResult:
    """Parse the URL and load the points.

    Raises:
        ConfigError: a program sent invalid parameters; for browsers the result has an error.
    """
    store, model = request.store, request.model
    query: ExploreQuery | None = None
    try:
        query = request.query.resolve(store)
        points = load_points(store, query)
        if separated := _list_separable(query, points):
            query = query.model_copy(update={"separated_columns": separated})
            points = load_points(store, query)
    except ConfigError as error:
        if not wants_html(request.raw):
            raise
        query = query or model.parse_valid(request.raw).resolve_valid(store)
        none = FigurePoints((), "")
        return _ExploreResult(query, none, _title_figure(query), error_sentence(error))
    is_default = model is S0Query and "view" not in query.model_fields_set
    if is_default and _is_crowded(query, points):
        query = query.model_copy(update={"view": HEATMAP})
    return _ExploreResult(query, points, _title_figure(query))


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


def _show_figure(name: str, request: PageRequest[Any]) -> PageContent:
    """Build the page of a figure."""
    result = _run_query(request)
    query, data = result.query, result.points
    links = RowLinks(query)
    whole = result.build_table(links)
    quantiles = quantile_table(query, data, links)
    if not request.is_html:
        return PageContent(result.title, (), (whole, quantiles), result.about)
    figure = result.lay_out()
    is_newest_shown = query.group_columns[0] in TIME_UNITS
    tables = [
        replace(table, max_rows=MAX_SHOWN_ROWS, newest=is_newest_shown)
        for table in (quantiles, whole)
        if table.rows
    ]
    empty_text = result.explain_empty() if data.points and not figure else ""
    form = _form_values(request.store, query)
    sections = (
        _introduce(result, form["campaigns"]),
        Links(list(_preset_links(query, name)), "Figures"),
        Special("explore_form.html.j2", query=query, **form),
        _warn_of_mix(result),
        quiet(data.variants.note),
        *(_draw_figure(result, figure, links, name) if figure else ()),
        headline(empty_text),
        *(
            (*_offer_files(result, name, has_figure=figure is not None), *tables)
            if tables
            else _explain_nothing(result, empty_text)
        ),
    )
    return PageContent(result.title, sections, (), status=400 if result.error else 200)


def _introduce(result: _ExploreResult, campaigns: Iterable[tuple[str, str]]) -> Paragraph:
    """Say what the metric means, and which campaigns are selected."""
    about = result.about
    named = [
        Link(name, link_to("campaign", campaign_id=id_))
        for id_, name in campaigns
        if id_ in result.query.campaigns
    ]
    parts: list[Inline] = [Styled(about["meaning"], tooltip=about["metric"])]
    for place, link in enumerate(named):
        parts += [" Campaign " if place == 0 else " and " if link is named[-1] else ", ", link]
    return Paragraph(*parts, *(["."] if named else []), look="quiet under")


def _warn_of_mix(result: _ExploreResult) -> Paragraph | None:
    """Warn of means over different work."""
    aggregated = result.about["aggregated"]
    if not aggregated:
        return None
    relative = _link_to_relative(result.query)
    alternative = (", or ", Link("compare with the same work", relative)) if relative else ()
    return Paragraph(
        Strong(aggregated),
        " Differences may come from the mix: filter for one value, or separate them by color or panels",
        *alternative,
        ".",
        look="aggregated",
    )


def _draw_figure(
    result: _ExploreResult, figure: FigureLayout, links: RowLinks, name: str
) -> Iterator[Section]:
    caption = f"{figure.caption} Source: {result.about['source']}."
    chart = FigureChart(figure, links.mark_links(figure.keys))
    file = _link_to_figure(f"{name}-file", result.query, form="svg")
    yield Figure("figure", chart, caption, title=figure.title, remark=figure.left_out, file=file)


def _offer_files(result: _ExploreResult, name: str, *, has_figure: bool) -> Iterator[Section]:
    """Offer figure and tables as files, the permanent link, and the command that exports the rows."""
    query = result.query

    def file(form: str) -> str:
        return _link_to_figure(f"{name}-file", query, form=form)

    pictures = [
        part
        for form in FIGURE_FORMATS
        if form != "root" and has_figure
        for part in (Link(form.upper(), file(form), is_file=True), ", ")
    ]
    yield quiet(f"Selection: {result.about['selection']}")
    yield Paragraph(
        "Download: ",
        *pictures,
        Link("TTree", file("root"), is_file=True),
        ", ",
        Link("CSV", link_to_same_page(format="csv")),
        " or ",
        Link("JSON", link_to_same_page(format="json")),
        " · ",
        Link("Permanent link", _link_to_figure(name, query)),
        " ",
        Styled("(includes all parameters and days)", "quiet"),
        look="files",
    )
    if query.export_command:
        yield Folded("Export these measurements", Command(query.export_command))


def _explain_nothing(result: _ExploreResult, empty_text: str) -> Iterator[Section]:
    """Explain why there are no measurements."""
    query = result.query
    if result.error:
        yield Paragraph(end_sentence(result.error), look="headline", role="alert")
    elif empty_text:
        yield quiet(f"Selection: {result.about['selection']}")
    elif query.conditions or query.campaigns or query.first or query.last:
        first = f" from {query.first}" if query.first else ""
        last = f" to {query.last}" if query.last else ""
        days = f",{first}{last}" if first or last else ""
        address = f"{link_to('explore')}?from=&to="
        link = Link("Show all days without filters", address)
        yield Paragraph(f"No measurements match the selection{days}. ", link, ".")
    else:
        yield Paragraph(
            "No measurements yet. The demo runs a campaign on this machine with its own database and "
            "prints the command that opens it:"
        )
        yield Command("treehammer demo")


def _link_to_relative(query: ExploreQuery) -> str:
    """Link to the comparison with the same work; '' unless the figure shows means over time."""
    if query.view not in MEAN_VIEWS or query.by not in TIME_UNITS:
        return ""
    return link_to_same_page(view=RELATIVE)


def _send_file(name: str, request: PageRequest[Any]) -> Response:
    """Draw a figure, or write its table, as a file."""
    form = request.raw.path_params["form"]
    if form not in FIGURE_FORMATS:
        raise RequestRefusedError(
            404, f"unknown format {form[:20]!r}; expected one of {', '.join(FIGURE_FORMATS)}"
        )
    result = _run_query(request)
    if result.error:
        raise RequestRefusedError(400, result.error)
    drawing: dict[str, Any]
    if form == "root":
        whole = result.build_table(RowLinks(result.query))
        drawing = {
            "columns": _column_types(result.query, whole),
            "rows": whole.plain_rows(),
            "title": _tree_title(result),
        }
    else:
        figure = result.lay_out()
        if figure is None:
            raise RequestRefusedError(404, result.explain_empty())
        drawing = {"chart": chart_figure(figure)}
    content = request.resources.share(_make_files).draw_file(form, drawing)
    return make_figure_response(name, form, content)


def _tree_title(result: _ExploreResult) -> str:
    """Return the title of a TTree with the figure's description."""
    about = result.about
    parts = (result.title, about["bars"], about["selection"], about["aggregated"])
    return ". ".join(text.rstrip(".") for text in parts if text)


def _column_types(query: ExploreQuery, whole: DataTable) -> list[dict[str, str]]:
    """Return the columns with their types in a TTree."""
    counts = (
        "good",
        "failed",
        "implausible",
        "not_supported",
        "number",
        "jobs",
        "reads",
        *TIME_UNITS,
    )
    types = []
    for column in whole.columns:
        kind = "int" if column.key in counts else "text" if column.key == "aggregates" else "float"
        if column.key in query.group_columns and column.key in METRICS_BY_NAME:
            kind = METRICS_BY_NAME[column.key].type
        types.append({"name": column.key, "type": kind})
    return types


def _link_to_figure(name: str, query: ExploreQuery, **parts: Any) -> str:
    return f"{link_to(name, **parts)}?{urlencode(query.list_parameters())}"


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


def _preset_links(query: ExploreQuery, current_route: str) -> Iterator[Link]:
    """Yield links to other figures of the same selection."""
    values = query.list_parameters()
    selecting = [(name, value) for name, value in values if name in _SELECTING]

    def preset(title: str, route: str, parameters: Mapping[str, str]) -> Link:
        encoded = urlencode([*parameters.items(), *selecting])
        return Link(title, f"{link_to(route)}?{encoded}")

    for title, parameters in (_S0_LOOKS if current_route == "s0" else {S0_TITLE: {}}).items():
        yield preset(title, "s0", parameters)
    for title, parameters in _PRESETS.items():
        yield preset(title, "explore", {"metric": query.metric, **parameters})


def _form_values(store: Store, query: ExploreQuery) -> Mapping[str, Any]:
    """Return the choices offered by the form."""
    rollup_metrics, other_metrics = _partition(METRICS, lambda m: m.name in ROLLUP_METRICS)
    rollup_columns, other_columns = _partition(DIMENSIONS, lambda name: name in ROLLUP_GROUPINGS)
    listed = {metric.name for metric in METRICS}
    axes = [name for name in query.group_columns if is_variant_axis(name)]
    stored = overview_queries.list_values_by_column(store, FILTERS, MAX_FILTER_CHOICES + 1)
    return {
        "metrics": (("aggregated by day", rollup_metrics), ("read individually", other_metrics)),
        "own_metric": query.metric if query.metric not in listed else "",
        "dimensions": (
            ("aggregated by day", [*rollup_columns, *axes]),
            ("read individually", other_columns),
        ),
        "window": query.list_inputs(first=None, last=None),
        "looks": query.list_inputs(
            view=VIEWS,
            bars=BARS,
            scale=SCALES,
            kind={"": "all kinds", **{kind: kind for kind in EXECUTION_KINDS}},
        ),
        "filters": [(name, *_filter_choices(query, name, stored[name])) for name in FILTERS],
        "campaigns": campaign_queries.list_campaign_choices(
            store, MAX_CAMPAIGN_CHOICES, query.campaigns
        ),
        "filtered": bool(query.conditions or query.unreadable_conditions or query.campaigns),
    }


def _partition(
    items: Iterable[Item], matches: Callable[[Item], bool]
) -> tuple[list[Item], list[Item]]:
    """Split items into those that match and all others."""
    groups: dict[bool, list[Item]] = {True: [], False: []}
    for item in items:
        groups[matches(item)].append(item)
    return groups[True], groups[False]


def _filter_choices(
    query: ExploreQuery, name: str, stored: Sequence[str]
) -> tuple[list[tuple[str, str, bool]], int]:
    """List values of a column with label and whether chosen, and the limit if the list is truncated."""
    chosen = query.chosen_values(name)
    values = {*stored[:MAX_FILTER_CHOICES], *chosen} - {""}
    limit = MAX_FILTER_CHOICES if len(stored) > MAX_FILTER_CHOICES else 0
    if name == VARIANT_COLUMN:
        names = label_variants(values).names
        return [(value, label, value in chosen) for value, label in names.items()], limit
    ordered = sorted(values, key=natural_sort_key)
    return [(value, value, value in chosen) for value in ordered], limit
