"""Page of one comparison: conclusion, heat map, effects, charts by job and day, counters and notes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cache, cached_property
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request

from treehammer.analysis.comparison import (
    comparison_notes,
    instruction_changes,
    series_changes,
    verdict_text,
)
from treehammer.analysis.comparison.conclusion import describe_conclusion
from treehammer.analysis.comparison.series_changes import CounterChange
from treehammer.analysis.statistics import verdict
from treehammer.analysis.statistics.metric_units import find_display_unit, head_unit
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.sql.core.rows import PairRow, VerdictRow
from treehammer.sql.read import figure_sql
from treehammer.sql.read.query_model import DAY, FigureQuery, Selection
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, LazyRows
from treehammer.text_formatting import format_signed, format_significant, pluralize
from treehammer.web import sections as ui
from treehammer.web.addresses import HTML, link_to, link_to_same_page, requested_format
from treehammer.web.display_formats import day_from_number, day_number, format_time
from treehammer.web.figures.drawing import FIGURE_FORMATS
from treehammer.web.figures.figure_layout import choose_release_colors
from treehammer.web.figures.forest_plot import ForestPlot, ForestSlide, effect_weight
from treehammer.web.figures.line_chart import ChartDot, ChartLine, DayAxis, LineChart, NumberAxis
from treehammer.web.page import PageContent
from treehammer.web.pages import common_tables, effect_tables
from treehammer.web.pages.compare_query import VerdictFilter, list_filter_choices
from treehammer.web.pages.comparison_findings import link_job_outputs, list_findings, select_pairs
from treehammer.web.pages.effect_matrix import MATRIX_LEGEND, matrix_of_verdicts

#: Notes shown before the others are folded.
MAX_NOTES = 10
#: Days before the comparison at which the trend begins at the earliest.
TREND_DAYS = 90
_SIDES = (("a", "own", True), ("b", "median", False))


@dataclass(frozen=True)
class DisplayedComparison:
    """A comparison to show.

    Attributes:
        rows: all verdicts, at least one.
        live_pairs: pairs of jobs of a comparison computed just now; None for a stored one.
        form: to compare something else, of a comparison that was asked for by its values.
        command: stores the comparison; '' for none.
    """

    store: Store
    request: Request
    rows: Sequence[VerdictRow]
    live_pairs: Sequence[PairRow] | None = None
    form: ui.Special | None = None
    command: str = ""

    @property
    def is_live(self) -> bool:
        """Whether it was computed just now and is not stored."""
        return self.live_pairs is not None

    @property
    def pairs(self) -> Sequence[PairRow]:
        """Pairs of jobs behind the verdicts."""
        if self.live_pairs is not None:
            return self.live_pairs
        return self.store.pairs(self.rows[0].comparison_id)

    @cached_property
    def names(self) -> dict[str, str]:
        """Names of its campaigns, by identity."""
        return common_tables.load_campaign_names(self.store, self.rows[:1])

    @cached_property
    def description(self) -> dict[str, Any]:
        """Its values as text and as data."""
        return common_tables.describe_comparison(self.rows[0], self.names)

    @property
    def delta(self) -> float:
        """Effects within it are ignored, in ln."""
        return float(self.description["delta"] or verdict.DEFAULT_DELTA)

    @cached_property
    def counters(self) -> list[CounterChange]:
        """Changes of exact counters."""
        return series_changes.stored_counters(self.rows)

    @cached_property
    def shows_counter(self) -> bool:
        """Whether an exact counter is chosen."""
        return self.filter.metric in {change.metric for change in self.counters}

    @cached_property
    def filter(self) -> VerdictFilter:
        """Filters of the URL."""
        return VerdictFilter.parse(self.request)

    @cached_property
    def selected(self) -> list[VerdictRow]:
        """Verdicts that pass the filters, most notable first."""
        rows = self.filter.select(self.rows, any_metric=self.shows_counter)
        return sorted(rows, key=effect_weight, reverse=True)

    @cached_property
    def pooled(self) -> list[VerdictRow]:
        """Selected verdicts over sites."""
        return [row for row in self.selected if row.scope == verdict.SITES_SCOPE]

    @cached_property
    def by_site(self) -> list[VerdictRow]:
        """Selected verdicts on series with two sides."""
        series = [row for row in self.selected if row.scope in verdict.SERIES_SCOPES]
        return [row for row in series if row.verdict not in verdict.ONE_SIDED_VERDICTS]

    @cached_property
    def missing(self) -> list[VerdictRow]:
        """Selected verdicts on series with one side, in the order of the comparison."""
        rows = self.filter.select(self.rows, any_metric=self.shows_counter)
        series = [row for row in rows if row.scope in verdict.SERIES_SCOPES]
        return [row for row in series if row.verdict in verdict.ONE_SIDED_VERDICTS]

    @property
    def titled(self) -> VerdictRow:
        """First row with the names of its sides."""
        a, b = verdict_text.side_names(self.rows[0], self.names)
        return replace(self.rows[0], a=a, b=b)

    @cached_property
    def plot(self) -> ForestPlot | None:
        """Changes of the selected verdicts with their intervals; None without any."""
        return ForestPlot.of_comparisons([[*self.pooled, *self.by_site]], self.delta)


def build_comparison(comparison: DisplayedComparison) -> PageContent:
    """Build the page of a comparison."""
    is_page = requested_format(comparison.request) == HTML
    rows, names, titled = comparison.rows, comparison.names, comparison.titled
    bars = effect_tables.make_bar_column(rows, comparison.delta)
    pooled = effect_tables.pooled_table(comparison.pooled, titled, bars)
    by_site = effect_tables.site_table(comparison.by_site, titled, bars)
    missing = effect_tables.missing_table(comparison.missing, titled)
    counts = instruction_changes.load_counted_work(comparison.store, rows)
    instructions = effect_tables.instruction_table(counts, titled)
    counters = _build_counter_table(comparison, is_page=is_page)
    needs_pairs = not comparison.is_live and not is_page
    pairs = [effect_tables.pair_table(comparison.pairs)] if needs_pairs else []
    conclusion = describe_conclusion(rows, names)
    attribution = comparison_notes.summarize_attribution(rows, names)
    summary = effect_tables.summary_table(rows)
    environment = comparison_notes.describe_environment(rows)
    notes = [
        *series_changes.describe_phases(series_changes.stored_phases(rows)),
        *verdict_text.explain_not_pooled(comparison.pooled),
        *(note for note in comparison_notes.comparison_notes(rows) if note not in environment),
    ]
    findings = list_findings(comparison.store, rows, names, lambda: comparison.pairs)
    choices = list_filter_choices(comparison.filter, rows, comparison.counters)
    sections = (
        ui.headline(conclusion),
        ui.if_filled(summary),
        ui.Bullets([*environment, *findings, *attribution]),
        *(
            ui.Links(choices[name], name.capitalize()) if len(choices[name]) > 2 else None
            for name in ("metric", "verdict")
        ),
        ui.Paragraph(*choices["remove"], look="chosen"),
        *_show_forest(comparison),
        *_show_matrix(comparison),
        _show_cell(comparison),
        _describe_origin(comparison),
        ui.Folded("Compare something else", comparison.form),
        _show_pooled(comparison, pooled, has_filters=bool(choices["remove"])),
        ui.Titled(
            "By site",
            ui.quiet(
                "Sorted by |effect| ÷ width of its interval. Effects within the shaded band are ignored; "
                "arrows mark intervals that extend beyond the axis."
            ),
            *_fold_same(comparison, by_site, comparison.by_site),
            anchor="by-site",
        ),
        _show_counters(comparison, counters),
        ui.Titled(
            "Instructions",
            ui.quiet(
                f"{instruction_changes.NOT_TIME} ",
                ui.Code("treehammer count"),
                " lists libraries and functions.",
            ),
            instructions,
            anchor="instructions",
        )
        if instructions.rows
        else None,
        ui.Titled("On one side only", ui.if_filled(missing), anchor="missing"),
        _show_notes(comparison, notes),
    )
    about = {
        "conclusion": conclusion,
        "selection": comparison.description,
        "environment": environment,
        "attribution": attribution,
        "notes": notes,
    }
    return PageContent(
        comparison.description["compared"],
        sections,
        (summary, pooled, by_site, missing, counters, instructions, *pairs),
        about,
        [ui.Link("Compare", link_to("compare"))],
        drawings={"talk": ForestSlide(comparison.plot, conclusion)} if comparison.plot else {},
    )


def _build_counter_table(comparison: DisplayedComparison, *, is_page: bool) -> DataTable:
    """Build the table of exact counters; on a page, of those only that changed."""
    any_metric = not comparison.shows_counter
    changes = comparison.filter.select(comparison.counters, any_metric=any_metric)
    if is_page:
        changes = [change for change in changes if change.has_changed]
    return effect_tables.counter_table(changes, comparison.titled)


def _show_forest(comparison: DisplayedComparison) -> Iterator[ui.Section]:
    """Show the changes with their intervals, and link to them as a slide."""
    plot = comparison.plot
    if plot is None:
        return
    files = (
        ui.Link(form.upper(), link_to_same_page(drawing=f"talk.{form}"), is_file=True)
        for form in FIGURE_FORMATS
    )
    if len(plot.lines) > 1:  # A single change is told in words.
        yield ui.Figure("changes", plot, plot.caption)
    yield ui.service_note("For a talk (16:9): ", *ui.separate(files, ", "))


def _fold_same(
    comparison: DisplayedComparison, table: DataTable, rows: Sequence[VerdictRow]
) -> Iterator[ui.Section]:
    """Show a table of these effects; the same ones only as a line, unless they were asked for."""
    different = [number for number, row in enumerate(rows) if row.verdict != verdict.Verdict.SAME]
    if comparison.filter.verdict or not different or len(different) == len(rows):
        yield ui.TableSection(table, "effects")
        return
    # Pages show few of thousands of rows, which are built when they are read.
    differing = replace(table, rows=LazyRows(different, table.rows.__getitem__))
    yield ui.TableSection(differing, "effects", table)
    link = ui.Link("show them", link_to_same_page(verdict=verdict.Verdict.SAME.value, page=None))
    count = pluralize(len(rows) - len(different), "further row")
    yield ui.quiet(f"{count}: the same (", link, ").")


def _show_matrix(comparison: DisplayedComparison) -> Iterator[ui.Section]:
    # The start of the link is built once, as there may be thousands of cells.
    base = link_to_same_page(site=None, variant=None)
    start = base if base == "?" else f"{base}&"
    encode = cache(lambda name, value: urlencode({name: value}) if value else "")

    def link(site: str, variant: str) -> str:
        both = encode("site", site), encode("variant", variant)
        return f"{start}{'&'.join(filter(None, both))}"

    rows = comparison.filter.select(comparison.rows, any_metric=comparison.shows_counter)
    matrix = matrix_of_verdicts(rows, link)
    if matrix:
        legend = [(ui.Badge("\xa0", css_class), text) for css_class, text in MATRIX_LEGEND.items()]
        yield matrix
        yield ui.Legend(legend)
        yield ui.quiet("Darker: larger. Slowest sites first.")
        yield ui.service_note("A cell opens its jobs and its trend.")


def _show_cell(comparison: DisplayedComparison) -> ui.Titled | None:
    """Draw the jobs and the trend of each series of the chosen site and variant; None without both."""
    if not (comparison.filter.site and comparison.filter.variant):
        return None
    pairs, series = comparison.pairs, comparison.by_site
    plots = [
        chart
        for row in series
        if row.metric == series[0].metric
        for chart in (_chart_jobs(row, pairs), _chart_trend(comparison.store, row))
        if chart
    ]
    figures = [
        ui.Figure(f"cell-{number}", chart, chart.title, is_caption_first=True)
        for number, chart in enumerate(plots, 1)
    ]
    trend = ui.quiet("Trend: ratio of the daily means of equal work in all campaigns.")
    charts = ui.Group("charts", *figures)
    jobs = link_job_outputs(comparison.store, series[0], pairs) if series else None
    return ui.Titled("Jobs and trend", jobs, trend, charts, anchor="cell") if figures else None


def _describe_origin(comparison: DisplayedComparison) -> ui.Paragraph:
    """Say when it was judged, from which measurements, and which effects are ignored."""
    first = comparison.rows[0]
    parts: list[ui.Inline] = ["Computed now from the measurements and not stored"]
    if not comparison.is_live:
        address = link_to("comparison", comparison=first.comparison_id)
        parts = [f"Judged {format_time(first.created_us)} · ", ui.Link("Permanent link", address)]
        if comparison.form:
            address = link_to_same_page(recompute=1)
            parts += [" · ", ui.Link("Compare again with the latest measurements", address)]
    campaigns = comparison.description["campaigns"]
    selection = f"Selection: {comparison.description['selection']}"
    if campaigns is None:
        selection = "The selected measurements were not recorded"
    ignored = verdict_text.format_delta(comparison.delta)
    parts.append(f". {selection}. Effects within {ignored} are ignored.")
    for id_ in campaigns or ():
        name = f"Campaign {comparison.names.get(id_, id_)}"
        parts += [" · ", ui.Link(name, link_to("campaign", campaign_id=id_))]
    return ui.quiet(*parts)


def _show_pooled(
    comparison: DisplayedComparison, table: DataTable, *, has_filters: bool
) -> ui.Titled | None:
    if comparison.rows[0].axis == "site" or (has_filters and not table.rows):
        return None
    pooled = comparison.pooled
    if any(row.effect is not None for row in pooled):
        return ui.Titled("Over all sites", *_fold_same(comparison, table, pooled), anchor="pooled")
    text = "No effect over several sites; see the notes below. "
    downloads = ui.Downloads(table) if table.rows else ""
    return ui.Titled("Over all sites", ui.Paragraph(text, downloads), anchor="pooled")


def _show_counters(comparison: DisplayedComparison, counters: DataTable) -> ui.Titled | None:
    if not comparison.counters:
        return None
    summary = series_changes.summarize_counters(comparison.counters)
    return ui.Titled(
        "Exact counters",
        ui.Paragraph(f"{summary} Equal reads give equal counts, so that one job decides."),
        ui.service_note("All counters: ", *_link_files("counters")),
        ui.if_filled(counters),
        anchor="counters",
    )


def _show_notes(comparison: DisplayedComparison, notes: Sequence[str]) -> ui.Titled:
    command = comparison.command
    pairs = ui.service_note("All pairs of jobs: ", *_link_files("pairs"))
    return ui.Titled(
        "Notes",
        ui.Bullets(notes, limit=MAX_NOTES),
        None if comparison.is_live else pairs,
        ui.Paragraph("To store this comparison, run:" if command else ""),
        ui.Command(command) if command else None,
        anchor="notes",
    )


def _link_files(table: str) -> Iterator[ui.Inline]:
    """Link to a table that the page does not show, or not all of it."""
    yield ui.Link("CSV", link_to_same_page(format="csv", table=table))
    yield " or "
    yield ui.Link("JSON", link_to_same_page(format="json", table=table))
    yield "."


def _chart_jobs(row: VerdictRow, pairs: Sequence[PairRow]) -> LineChart | None:
    """Draw the values of both sides of each job of a series; None without jobs that hold both."""
    pairs = select_pairs(row, pairs)
    if not pairs:
        return None
    colors = choose_release_colors((row.a, row.b)) if row.axis == "root" else {}
    display_unit = find_display_unit(row.metric, row.evidence.unit)
    unit = head_unit(row.metric, row.evidence.unit, row.evidence.work)
    lines = []
    for side, css_class, is_round in _SIDES:
        name, dots = getattr(row, side), []
        for number, pair in enumerate(pairs, 1):
            value = display_unit.convert(getattr(pair, f"{side}_value"))
            text = (
                f"{pair.job_id} on {pair.host}: {name} {format_significant(value, 4)} {unit}, change "
                f"{verdict_text.format_effect(pair.log_ratio)}"
            )
            link = link_to("job", job_id=pair.job_id)
            dots.append(ChartDot(float(number), value, text=text, link=link))
        lines.append(ChartLine(name, css_class, dots, round=is_round, color=colors.get(name, "")))
    title = f"{verdict_text.title_metric(row.metric)} by job{f', {unit}' if unit else ''}"
    axis = NumberAxis([1.0, float(len(pairs))], "job", whole=True)
    return LineChart(title, lines, axis, values=unit or row.metric)


def _chart_trend(store: Store, row: VerdictRow) -> LineChart | None:
    """Draw B against A by day, from all campaigns; None if no day has both sides.

    Figures know daily means of the catalogue's metrics only, not of operations.
    """
    if row.metric not in METRICS_BY_NAME:
        return None
    a, b = (_load_day_means(store, row, side) for side in "ab")
    changes = {day: 100 * (b[day] / a[day] - 1) for day in sorted(a.keys() & b.keys()) if a[day]}
    if not changes:
        return None
    first, last = min(changes), max(changes)
    title = f"{verdict_text.title_metric(row.metric)} of {row.b} against {row.a} by day, %"
    dots = [
        ChartDot(day, change, text=f"{day}: {format_signed(change)} %")
        for day, change in changes.items()
    ]
    equal = [ChartDot(first, 0.0), ChartDot(last, 0.0)]
    lines = [
        ChartLine("ratio of daily means", "own", dots),
        ChartLine("no change", "ideal", equal, plain=True),
    ]
    return LineChart(title, lines, DayAxis(first, last), values="change (%)")


def _load_day_means(store: Store, row: VerdictRow, side: str) -> dict[date, float]:
    """Load the mean of each day of one side, over all campaigns."""
    conditions = effect_tables.side_conditions(verdict_text.flatten_verdict(row), side)
    if not conditions:
        return {}
    judged = datetime.fromtimestamp(row.created_us / 1e6, UTC).date()
    first = day_number(judged - timedelta(days=TREND_DAYS))
    selection = Selection(conditions=conditions)
    figure = FigureQuery((row.metric,), (DAY,), selection, first_day=first)
    with store.connection() as connection:
        groups = figure_sql.load_figure(connection, figure).groups
    return {
        day_from_number(int(group.by[DAY] or 0)): mean
        for group in groups
        if (mean := group.metrics[row.metric].mean) is not None
    }
