"""Page of one comparison: conclusion, heat map, effects, charts by job and day, counters and notes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import cache, cached_property
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request

from treehammer.analysis.changes import change_points
from treehammer.analysis.comparison import (
    comparison_notes,
    instruction_changes,
    series_changes,
    verdict_text,
)
from treehammer.analysis.comparison.comparison_notes import summarize_attribution
from treehammer.analysis.comparison.conclusion import describe_conclusion, select_headline
from treehammer.analysis.comparison.series_changes import CounterChange
from treehammer.analysis.statistics.verdict import (
    DEFAULT_DELTA,
    ONE_SIDED_VERDICTS,
    SERIES_SCOPES,
    SITES_SCOPE,
    Verdict,
)
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.sql.core.rows import PairRow, VerdictRow
from treehammer.sql.read import figure_sql
from treehammer.sql.read.query_model import DAY, FigureQuery, Selection
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable
from treehammer.text_formatting import format_significant, pluralize
from treehammer.web import sections as ui
from treehammer.web.addresses import HTML, link_to, link_to_same_page, requested_format
from treehammer.web.display_formats import day_from_number, day_number, format_day, format_time
from treehammer.web.figures.figure_layout import choose_release_colors
from treehammer.web.figures.forest_plot import ForestPlot
from treehammer.web.figures.line_chart import ChartDot, ChartLine, DayAxis, LineChart, NumberAxis
from treehammer.web.page import PageContent
from treehammer.web.pages.common_tables import (
    describe_comparison,
    list_recent_changes,
    load_campaign_names,
)
from treehammer.web.pages.compare_query import VerdictFilter, list_filter_choices
from treehammer.web.pages.effect_matrix import (
    MATRIX_LEGEND,
    matrix_of_counters,
    matrix_of_verdicts,
)
from treehammer.web.pages.effect_tables import (
    counter_table,
    instruction_table,
    make_bar_column,
    missing_table,
    pair_table,
    pooled_table,
    side_conditions,
    site_table,
)

#: Notes shown before the others are folded.
MAX_NOTES = 10
#: Steps over time that the page names.
MAX_REGRESSIONS = 2

#: Days before the comparison at which the trend begins at the earliest.
TREND_DAYS = 90
_SIDES = (("a", "own", True), ("b", "median", False))


@dataclass(frozen=True)
class DisplayedComparison:
    """A comparison to show.

    Attributes:
        store: the database.
        request: of the page.
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
        return load_campaign_names(self.store, self.rows[:1])

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
    def split(self) -> _VerdictRows:
        """Filtered verdicts by table."""
        is_counter = self.shows_counter
        return _VerdictRows.split(self.filter.select(self.rows, any_metric=is_counter))

    @property
    def titled(self) -> VerdictRow:
        """First row with the names of its sides."""
        a, b = verdict_text.side_names(self.rows[0], self.names)
        return replace(self.rows[0], a=a, b=b)


@dataclass(frozen=True)
class _VerdictRows:
    """Verdicts of a comparison by the table that shows them, most notable first."""

    pooled: Sequence[VerdictRow]
    by_site: Sequence[VerdictRow]
    missing: Sequence[VerdictRow]

    @classmethod
    def split(cls, rows: Sequence[VerdictRow]) -> _VerdictRows:
        """Distribute rows over the tables."""
        series = [row for row in rows if row.scope in SERIES_SCOPES]
        return cls(
            _sort_by_weight([row for row in rows if row.scope == SITES_SCOPE]),
            _sort_by_weight([row for row in series if row.verdict not in ONE_SIDED_VERDICTS]),
            [row for row in series if row.verdict in ONE_SIDED_VERDICTS],
        )


def build_comparison(comparison: DisplayedComparison) -> PageContent:
    """Build the page of a comparison."""
    is_page = requested_format(comparison.request) == HTML
    description = describe_comparison(comparison.rows[0], comparison.names)
    delta = description["delta"] or DEFAULT_DELTA
    effects = _build_effect_tables(comparison, delta)
    counts = instruction_changes.load_counted_work(comparison.store, comparison.rows)
    instructions = instruction_table(counts, comparison.titled)
    counters = _build_counter_table(comparison, is_page=is_page)
    pairs = [] if comparison.is_live or is_page else [pair_table(comparison.pairs)]
    conclusion = describe_conclusion(comparison.rows, comparison.names)
    attribution = summarize_attribution(comparison.rows, comparison.names)
    notes = [
        *series_changes.describe_phases(series_changes.stored_phases(comparison.rows)),
        *verdict_text.explain_not_pooled(comparison.split.pooled),
        *comparison_notes.comparison_notes(comparison.rows),
    ]
    choices = list_filter_choices(comparison.filter, comparison.rows, comparison.counters)
    matrix = _build_matrix(comparison)
    sections = (
        ui.headline(conclusion),
        ui.Bullets([*_list_findings(comparison), *attribution]),
        *(
            ui.Links(choices[name], name.capitalize()) if len(choices[name]) > 2 else None
            for name in ("metric", "verdict")
        ),
        ui.Paragraph(*choices["remove"], look="chosen"),
        _show_forest(comparison, delta),
        *(_show_matrix(matrix) if matrix else ()),
        _show_cell(comparison) if comparison.filter.is_one_cell else None,
        _describe_origin(comparison, description, delta),
        ui.Folded("Compare something else", comparison.form),
        _show_pooled(comparison, effects[0], has_filters=bool(choices["remove"])),
        ui.Titled(
            "By site",
            ui.quiet(
                "Sorted by |effect| ÷ width of its interval. Effects within the shaded band are ignored; "
                "arrows mark intervals that extend beyond the axis."
            ),
            *_fold_same(comparison, effects[1], comparison.split.by_site),
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
        ui.Titled("On one side only", ui.if_filled(effects[2]), anchor="missing"),
        _show_notes(comparison, notes),
    )
    about = {
        "conclusion": conclusion,
        "selection": description,
        "attribution": attribution,
        "notes": notes,
    }
    return PageContent(
        description["compared"],
        sections,
        (*effects, counters, instructions, *pairs),
        about,
        [ui.Link("Compare", link_to("compare"))],
    )


def _list_findings(comparison: DisplayedComparison) -> Iterator[ui.Paragraph]:
    """Describe the largest regression, and since when the release is slower, with the evidence."""
    if largest := _describe_largest_regression(comparison.rows, comparison.names):
        yield ui.Paragraph(f"Largest: {largest}")
    for text, address in _list_regressions(comparison):
        yield ui.Paragraph(f"{text} (", ui.Link("evidence", address, f"Evidence: {text}"), ")")


def _show_forest(comparison: DisplayedComparison, delta: float) -> ui.Figure | None:
    split = comparison.split
    plot = ForestPlot.of_comparisons([[*split.pooled, *split.by_site]], delta)
    # A single change is told in words.
    return ui.Figure("changes", plot, plot.caption) if plot and len(plot.lines) > 1 else None


def _fold_same(
    comparison: DisplayedComparison, table: DataTable, rows: Sequence[VerdictRow]
) -> Iterator[ui.Section]:
    """Show a table of effects; those that are the same only as a line, unless they were asked for.

    Args:
        comparison: the comparison.
        table: of all rows, which is exported.
        rows: its verdicts, in the order of its rows.
    """
    different = [number for number, row in enumerate(rows) if row.verdict != Verdict.SAME]
    if comparison.filter.verdict or not different or len(different) == len(rows):
        yield ui.TableSection(table, "effects")
        return
    yield ui.TableSection(
        replace(table, rows=[table.rows[place] for place in different]), "effects", table
    )
    link = ui.Link("show them", link_to_same_page(verdict=Verdict.SAME.value, page=None))
    count = pluralize(len(rows) - len(different), "further row")
    yield ui.quiet(f"{count}: the same (", link, ").")


def _show_matrix(matrix: DataTable) -> Iterator[ui.Section]:
    yield matrix
    yield ui.Legend(
        [(ui.Badge("\xa0", css_class), text) for css_class, text in MATRIX_LEGEND.items()]
    )
    yield ui.quiet("Darker: larger. Slowest sites first. A cell opens its jobs and its trend.")


def _show_cell(comparison: DisplayedComparison) -> ui.Titled | None:
    figures = [
        ui.Figure(f"cell-{number}", chart, chart.title, is_caption_first=True)
        for number, chart in enumerate(_draw_cell(comparison), 1)
    ]
    trend = ui.quiet("Trend: ratio of the daily means of equal work in all campaigns.")
    return (
        ui.Titled("Jobs and trend", trend, ui.Group("charts", *figures), anchor="cell")
        if figures
        else None
    )


def _describe_origin(
    comparison: DisplayedComparison, description: Mapping[str, Any], delta: float
) -> ui.Paragraph:
    """Say when it was judged, from which measurements, and which effects are ignored."""
    first = comparison.rows[0]
    parts: list[ui.Inline] = ["Computed now from the measurements and not stored."]
    if not comparison.is_live:
        address = link_to("comparison", comparison=first.comparison_id)
        parts = [f"Judged {format_time(first.created_us)} · ", ui.Link("Permanent link", address)]
        if comparison.form:
            address = link_to_same_page(recompute=1)
            parts += [" · ", ui.Link("Compare again with the latest measurements", address)]
    campaigns = description["campaigns"]
    selection = (
        "The selected measurements were not recorded"
        if campaigns is None
        else f"Selection: {description['selection']}"
    )
    parts.append(f" {selection}. Effects within {verdict_text.format_delta(delta)} are ignored.")
    for id_ in campaigns or ():
        name = f"Campaign {comparison.names.get(id_, id_)}"
        parts += [" · ", ui.Link(name, link_to("campaign", campaign_id=id_))]
    return ui.quiet(*parts)


def _show_pooled(
    comparison: DisplayedComparison, table: DataTable, *, has_filters: bool
) -> ui.Titled | None:
    if comparison.rows[0].axis == "site" or (has_filters and not table.rows):
        return None
    if any(row.effect is not None for row in comparison.split.pooled):
        return ui.Titled(
            "Over all sites",
            *_fold_same(comparison, table, comparison.split.pooled),
            anchor="pooled",
        )
    text = "No effect over several sites; see the notes below. "
    downloads = ui.Downloads(table) if table.rows else ""
    return ui.Titled("Over all sites", ui.Paragraph(text, downloads), anchor="pooled")


def _show_counters(comparison: DisplayedComparison, counters: DataTable) -> ui.Titled | None:
    summary = series_changes.summarize_counters(comparison.counters)
    if not summary:
        return None
    equal = f"{summary} Equal reads give equal counts, so that one job decides. All counters: "
    listed = ui.Paragraph(equal, *_link_files("counters"))
    return ui.Titled("Exact counters", listed, ui.if_filled(counters), anchor="counters")


def _show_notes(comparison: DisplayedComparison, notes: Sequence[str]) -> ui.Titled:
    command = comparison.command
    pairs = ui.Paragraph("All pairs of jobs: ", *_link_files("pairs"))
    store = ui.Paragraph("To store this comparison, run:" if command else "")
    return ui.Titled(
        "Notes",
        ui.Bullets(notes, limit=MAX_NOTES),
        None if comparison.is_live else pairs,
        store,
        ui.Command(command) if command else None,
        anchor="notes",
    )


def _link_files(table: str) -> Iterator[ui.Inline]:
    """Link to a table that the page does not show, or not all of it."""
    yield ui.Link("CSV", link_to_same_page(format="csv", table=table))
    yield " or "
    yield ui.Link("JSON", link_to_same_page(format="json", table=table))
    yield "."


def _describe_largest_regression(rows: Sequence[VerdictRow], names: Mapping[str, str]) -> str:
    """Describe the headline's largest certain regression with its interval; '' for none."""
    slower = [
        row
        for row in select_headline(rows)
        if row.verdict == Verdict.SLOWER and row.effect is not None
    ]
    if not slower:
        return ""
    largest = max(slower, key=lambda row: abs(row.effect or 0.0))
    return f"{largest.label}: {verdict_text.describe_verdict(largest, names)}"


def _list_regressions(comparison: DisplayedComparison) -> list[tuple[str, str]]:
    """List the newest confirmed steps to the slower of release B, with their pages."""
    first = comparison.rows[0]
    if first.axis != "root":
        return []
    return [
        (
            change_points.describe_change(change),
            link_to("change", change=change.id),
        )
        for change in list_recent_changes(comparison.store, release=first.b)
        if change_points.is_regression(change)
    ][:MAX_REGRESSIONS]


def _build_matrix(comparison: DisplayedComparison) -> DataTable | None:
    # The start of the link is built once, as there may be thousands of cells.
    base = link_to_same_page(site=None, variant=None)
    start = base if base == "?" else f"{base}&"
    encode = cache(lambda name, value: urlencode({name: value}) if value else "")

    def link(site: str, variant: str) -> str:
        both = encode("site", site), encode("variant", variant)
        return f"{start}{'&'.join(filter(None, both))}"

    if comparison.shows_counter:
        return matrix_of_counters(comparison.filter.select(comparison.counters), link)
    return matrix_of_verdicts(comparison.filter.select(comparison.rows), link)


def _draw_cell(comparison: DisplayedComparison) -> list[LineChart]:
    """Draw the jobs and the trend of each series of the chosen site and variant."""

    def link(job: str) -> str:
        return link_to("job", job_id=job)

    pairs, charts = comparison.pairs, list[LineChart | None]()
    series = comparison.split.by_site
    for row in series:
        if row.metric == series[0].metric:
            charts += [
                chart_jobs(row, pairs, link),
                chart_trend(comparison.store, row),
            ]
    return [chart for chart in charts if chart]


def _build_effect_tables(comparison: DisplayedComparison, delta: float) -> list[DataTable]:
    """Build the tables over sites, by site, and of series that lack a side."""
    bars = make_bar_column(comparison.rows, delta)
    return [
        pooled_table(comparison.split.pooled, comparison.titled, bars),
        site_table(comparison.split.by_site, comparison.titled, bars),
        missing_table(comparison.split.missing, comparison.titled),
    ]


def _build_counter_table(comparison: DisplayedComparison, *, is_page: bool) -> DataTable:
    """Build the table of exact counters; on a page, of those only that changed."""
    is_counter = comparison.shows_counter
    chosen = comparison.filter.select(comparison.counters, any_metric=not is_counter)
    if is_page:
        chosen = [change for change in chosen if change.verdict != series_changes.SAME]
    return counter_table(chosen, comparison.titled)


def effect_weight(row: VerdictRow) -> float:
    """Return |effect| ÷ width of its interval to sort by notability; −1 without an interval."""
    if row.effect is None or row.low is None or row.high is None:
        return -1.0
    return abs(row.effect) / max(row.high - row.low, 1e-12)


def _sort_by_weight(rows: Sequence[VerdictRow]) -> list[VerdictRow]:
    return sorted(rows, key=effect_weight, reverse=True)


def chart_jobs(
    row: VerdictRow, pairs: Sequence[PairRow], link: Callable[[str], str]
) -> LineChart | None:
    """Draw the values of both sides of each job; None without jobs that hold both.

    Args:
        row: verdict on the series.
        pairs: of the comparison.
        link: address of the page of a job, which shows both sides.
    """
    series_pairs = [
        pair
        for pair in pairs
        if (pair.comparison_key, pair.site, pair.metric)
        == (row.comparison_key, row.site, row.metric)
    ]
    if not series_pairs:
        return None
    is_time = row.metric in verdict_text.METRIC_TITLES
    colors = choose_release_colors((row.a, row.b)) if row.axis == "root" else {}
    factor, unit = (1e3, "ms/event") if is_time else (1.0, "")
    lines = [
        ChartLine(
            getattr(row, side),
            css_class,
            [
                ChartDot(
                    float(number),
                    factor * getattr(pair, f"{side}_value"),
                    text=f"{pair.job_id} on {pair.host}: {getattr(row, side)} "
                    f"{format_significant(factor * getattr(pair, f'{side}_value'), 4)} {unit}, "
                    f"change {verdict_text.format_effect(pair.log_ratio)}",
                    link=link(pair.job_id),
                )
                for number, pair in enumerate(series_pairs, 1)
            ],
            round=is_round,
            color=colors.get(getattr(row, side), ""),
        )
        for side, css_class, is_round in _SIDES
    ]
    title = f"{verdict_text.title_metric(row.metric)} by job{f', {unit}' if unit else ''}"
    return LineChart(title, lines, NumberAxis([1.0, float(len(series_pairs))], whole=True))


def chart_trend(store: Store, row: VerdictRow) -> LineChart | None:
    """Draw B against A by day, from all campaigns; None if no day has both sides.

    Figures know daily means of the catalogue's metrics only, not of operations.
    """
    if row.metric not in METRICS_BY_NAME:
        return None
    means = [_load_day_means(store, row, side) for side in "ab"]
    shared = sorted(means[0].keys() & means[1].keys())
    if not shared:
        return None
    changes = {
        day_from_number(number): 100 * (means[1][number] / means[0][number] - 1)
        for number in shared
        if means[0][number]
    }
    return _draw_trend(row, changes) if changes else None


def _draw_trend(row: VerdictRow, changes: Mapping[date, float]) -> LineChart:
    first, last = min(changes), max(changes)
    title = f"{verdict_text.title_metric(row.metric)} of {row.b} against {row.a} by day, %"
    dots = [
        ChartDot(day, change, text=f"{format_day(day)}: {change:+.1f} %")
        for day, change in changes.items()
    ]
    equal = [ChartDot(first, 0.0), ChartDot(last, 0.0)]
    lines = [
        ChartLine("ratio of daily means", "own", dots),
        ChartLine("no change", "ideal", equal, plain=True),
    ]
    return LineChart(title, lines, DayAxis(first, last))


def _load_day_means(store: Store, row: VerdictRow, side: str) -> dict[int, float]:
    """Load the mean of each day (YYYYMMDD) of one side, over all campaigns."""
    conditions = side_conditions(verdict_text.flatten_verdict(row), side)
    if not conditions:
        return {}
    judged = datetime.fromtimestamp(row.created_us / 1e6, UTC).date()
    first = day_number(judged - timedelta(days=TREND_DAYS))
    selection = Selection(conditions=conditions)
    figure = FigureQuery((row.metric,), (DAY,), selection, first_day=first)
    with store.connection() as connection:
        groups = figure_sql.fetch_figure(connection, figure).groups
    return {
        int(group.by[DAY] or 0): mean
        for group in groups
        if (mean := group.metrics[row.metric].mean) is not None
    }
