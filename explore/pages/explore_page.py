"""Explore and study S0: any metric by any dimension, as chart, tables and files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from starlette.responses import RedirectResponse, Response

from treehammer.errors import ConfigError
from treehammer.explore.explore_figure import describe_metric, explain_empty_figure, figure_heading
from treehammer.explore.explore_query import FORMER_VIEWS, METRICS, SIZE, VIEWS, ExploreQuery, View
from treehammer.explore.explore_result import (
    S0_TITLE,
    ExploreResult,
    RowLinks,
    S0Query,
    run_query,
    spread_table,
)
from treehammer.sql.core.schema import ROLLUP_METRICS
from treehammer.sql.read.query_model import TIME_UNITS
from treehammer.tables import MAX_SHOWN_ROWS, DataTable
from treehammer.web import sections as ui
from treehammer.web.addresses import has_page, link_to, link_to_same_page, wants_html
from treehammer.web.core.responses import RequestRefusedError
from treehammer.web.figures.drawing import FIGURE_FORMATS, PAPER_WIDTHS_MM, PIXELS_PER_MM
from treehammer.web.figures.figure_chart import FigureChart, chart_figure
from treehammer.web.labels import VARIANT_COLUMN, head_column
from treehammer.web.page import PageContent, PageOperation, PageRequest, page
from treehammer.web.page_query import FormInput
from treehammer.web.page_service import (
    draw_file,
    error_sentence,
    make_drawing_pool,
    make_figure_response,
)

_EXPLORE_TABLES = {"figure": "groups of measurements with their statistics"}
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


def _show_figure(request: PageRequest[Any]) -> PageContent | Response:
    former = FORMER_VIEWS.get(request.raw.query_params.get("view", ""))
    if former and request.is_html:
        return RedirectResponse(link_to_same_page(**former))
    try:
        result = run_query(request)
    except ConfigError as error:
        if not wants_html(request.raw):
            raise
        query = request.query.resolve(request.store)
        message = ui.headline(ui.end_sentence(error_sentence(error)))
        return PageContent(figure_heading(query), [message, _build_form(query)], status=400)
    links = RowLinks(result.query)
    # Files are in the order of time, pages begin with the newest.
    ordered = result.newest_first if request.is_html else result
    table = spread_table(ordered.query, ordered.points, links)
    if not request.is_html:
        return PageContent(result.title, tables=(table,), about=result.about)
    sections = [
        _describe_subject(result),
        ui.Links(list(_link_presets(result)), "Figures"),
        _build_form(result.query),
        *_show_result(result, links, table),
    ]
    return PageContent(result.title, sections)


explore_page = page(
    "/explore",
    "explore",
    ExploreQuery,
    menu="Explore",
    position=20,
    is_crawled=False,
    reads_measurements=False,
    api=PageOperation(
        "exploreMeasurements", "A metric grouped by columns", _EXPLORE_TABLES, _EXPLORE_ABOUT
    ),
)(_show_figure)
s0_page = page(
    "/figures/s0",
    "s0",
    S0Query,
    position=21,
    is_crawled=False,
    reads_measurements=False,
    api=PageOperation(
        "getFigureS0",
        "CPU efficiency by site and variant, as in study S0",
        _EXPLORE_TABLES,
        _EXPLORE_ABOUT,
    ),
)(_show_figure)


def _describe_subject(result: ExploreResult) -> ui.Section:
    """Describe the metric and link the selected campaigns."""
    campaigns = zip(result.query.campaigns, result.query.campaign_names, strict=True)
    selected = [ui.Link(name, link_to("campaign", campaign_id=id_)) for id_, name in campaigns]
    metric = ui.Styled(describe_metric(result.query), tooltip=result.about["metric"])
    names = [" Campaign ", *ui.separate(selected, " and "), "."] if selected else []
    return ui.Paragraph(metric, *names, look="quiet under")


def _show_result(result: ExploreResult, links: RowLinks, table: DataTable) -> Iterator[ui.Section]:
    figure = result.lay_out()
    if result.points.points:
        yield _note_aggregation(result)
        yield ui.quiet(result.points.variants.note)
    if figure:
        yield ui.headline(figure.outliers)
        source = f"{figure.caption} Source: {result.about['source']}."
        chart = FigureChart(figure, links.mark_links(figure.keys))
        yield ui.Figure(
            "figure",
            chart,
            source,
            title=figure.title,
            remark=figure.left_out,
            file=result.link_file("svg"),
        )
    elif result.points.points:
        yield ui.headline(explain_empty_figure(result.query, result.points.points))
    if table.rows:
        yield from _offer_files(result, has_figure=figure is not None)
        yield replace(table, max_rows=MAX_SHOWN_ROWS)
    else:
        yield from _explain_no_points(result)


def _note_aggregation(result: ExploreResult) -> ui.Paragraph:
    """Warn of means over a mix of work."""
    query, note = result.query, result.about["aggregated"]
    if not note:
        return ui.Paragraph("")
    hint = " Differences may come from the mix: filter for a value, or separate by color or panels"
    is_trend = query.view == View.MEANS and query.by in TIME_UNITS
    link = ui.Link("compare with the same work", link_to_same_page(view=View.RELATIVE))
    further = (", or ", link) if is_trend else ()
    return ui.Paragraph(ui.Strong(note), hint, *further, ".", look="aggregated")


def _offer_files(result: ExploreResult, *, has_figure: bool) -> Iterator[ui.Section]:
    forms = FIGURE_FORMATS if has_figure else ()
    files = [ui.Link(form.upper(), result.link_file(form), is_file=True) for form in forms]
    of_paper = [
        ui.Link(
            f"{size} column",
            f"{result.link_file('pdf')}&{SIZE}={size}",
            label=f"PDF as wide as a {size} column of a paper ({width_mm:g} mm)",
            is_file=True,
        )
        for size, width_mm in PAPER_WIDTHS_MM.items()
        if has_figure
    ]
    tables = [ui.Link(form.upper(), link_to_same_page(format=form)) for form in ("csv", "json")]
    separated = ui.separate((*files, *tables), ", ")
    separated[-2] = " or "
    yield ui.quiet(f"Selection: {result.about['selection']}")
    yield ui.Paragraph(
        "Download: ",
        *separated,
        " · ",
        ui.Link("Permanent link", result.link_permanently()),
        " ",
        ui.Styled("(includes all parameters and days)", "quiet"),
        look="files",
    )
    if of_paper:
        formats = f"; PNG and SVG with {SIZE}={' or '.join(PAPER_WIDTHS_MM)}."
        yield ui.quiet("PDF for a paper: ", *ui.separate(of_paper, " or "), formats)
    if command := result.query.export_command:
        yield ui.Folded("Export these measurements", ui.Command(command))


def _explain_no_points(result: ExploreResult) -> Iterator[ui.Section]:
    """Explain that no measurements match, or that the database is empty."""
    query = result.query
    if not (query.conditions or query.campaigns or query.first or query.last):
        yield ui.Paragraph(
            "No measurements yet. The demo runs a campaign on this machine with its own database and "
            "prints the command that opens it:"
        )
        yield ui.Command("treehammer demo")
        return
    period = (("from", query.first), ("to", query.last))
    days = [f"{word} {day}" for word, day in period if day]
    yield ui.Paragraph(
        f"No measurements match the selection{', ' if days else ''}{' '.join(days)}. ",
        ui.Link("Show all days without filters", f"{link_to(result.route)}?from=&to="),
        ".",
    )


#: Looks of S0's figure, by their titles.
_S0_LOOKS: Mapping[str, Mapping[str, str]] = {
    "Heat map": {"view": View.HEATMAP},
    "Panel per variant": {"view": View.MEANS, "panels": VARIANT_COLUMN, "color": "axis_root"},
    "Points with bars": {"view": View.MEANS},
}
#: Other figures of a metric; each distinguishes variants: a mean over several would depend on their mix.
_PRESETS: Mapping[str, Mapping[str, str]] = {
    "Trend by day": {"by": "day", "color": "site", "view": View.RELATIVE},
    "Small multiples by site": {"by": VARIANT_COLUMN, "color": "axis_root", "panels": "site"},
    "Read latency by variant": {
        "metric": "read_latency_p95_s",
        "by": VARIANT_COLUMN,
        "color": "axis_root",
    },
}
#: Parameters that select executions, which links to other figures keep.
_SELECTING = ("from", "to", "campaign", "where", "kind")


def _link_presets(result: ExploreResult) -> Iterator[ui.Link]:
    """Yield links to other figures of the same selection."""
    values = result.query.list_parameters()
    selecting = [(name, value) for name, value in values if name in _SELECTING]

    def preset(title: str, route: str, parameters: Mapping[str, str]) -> ui.Link:
        encoded = urlencode([*parameters.items(), *selecting])
        return ui.Link(title, f"{link_to(route)}?{encoded}")

    for title, parameters in (_S0_LOOKS if result.route == "s0" else {S0_TITLE: {}}).items():
        yield preset(title, "s0", parameters)
    for title, parameters in _PRESETS.items():
        yield preset(title, "explore", {"metric": result.query.metric, **parameters})
    selected = [pair for pair in selecting if pair[0] in ("campaign", "where")]
    doors = f"{link_to('compare')}?{urlencode([('axis', 'door'), *selected])}"
    yield ui.Link("Best door for sparse reads", doors)
    if has_page("cache"):
        yield preset("Reads through caches", "cache", {})


def _build_form(query: ExploreQuery) -> ui.Form:
    """Build the form of metric, view, days and conditions; the address names the columns."""
    names = sorted((metric.name for metric in METRICS), key=lambda name: name not in ROLLUP_METRICS)
    metrics = {query.metric: head_column(query.metric)}
    metrics |= {name: head_column(name) for name in names}
    inputs = query.list_inputs(metric=metrics, view=VIEWS, first=None, last=None)
    inputs += [
        FormInput("where", "Condition", text, is_text=True, example="site=SITE_A")
        for text in (*query.where, "")
    ]
    names_of_inputs = {item.name for item in inputs}
    hidden = [pair for pair in query.list_parameters() if pair[0] not in names_of_inputs]
    return ui.Form(inputs, hidden=hidden)


def _send_file(request: PageRequest[Any]) -> Response:
    form = request.raw.path_params["form"]
    if form not in FIGURE_FORMATS:
        raise RequestRefusedError(
            404, f"unknown format {form[:20]!r}; expected one of {', '.join(FIGURE_FORMATS)}"
        )
    result = run_query(request)
    figure = result.lay_out()
    if figure is None:
        text = explain_empty_figure(result.query, result.points.points)
        raise RequestRefusedError(404, text)
    size = request.raw.query_params.get(SIZE, "")
    if size and size not in PAPER_WIDTHS_MM:
        raise RequestRefusedError(
            400, f"{SIZE} must be one of {', '.join(PAPER_WIDTHS_MM)}, not {size[:20]!r}"
        )
    width_mm = PAPER_WIDTHS_MM.get(size, 0.0)
    chart = chart_figure(figure, paper_width=width_mm * PIXELS_PER_MM)
    address = result.link_permanently()
    content = draw_file(form, result.title, address, specification=chart, width_mm=width_mm)
    return make_figure_response(result.route, form, content)


_FILES: Any = {"position": 22, "make_pool": lambda resources: resources.share(make_drawing_pool)}
explore_file = page("/explore/figure.{form}", "explore-file", ExploreQuery, **_FILES)(_send_file)
s0_file = page("/figures/s0/figure.{form}", "s0-file", S0Query, **_FILES)(_send_file)
