"""Reads through caches: their rates by size of block, cost against the direct door, and releases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from treehammer.analysis.descriptive.cache_cost import (
    COLUMNS,
    COUNTS,
    LIMIT,
    METRICS,
    TEST,
    CacheCell,
    CacheComparison,
    CacheRead,
    LogMean,
    conclude,
    list_setups,
    parse_read,
    shorten_setups,
)
from treehammer.sql.core.measurement_columns import EXTRA_PREFIX
from treehammer.sql.read.measurement_queries import DatabaseSnapshot
from treehammer.sql.read.query_model import (
    Condition,
    FigureQuery,
    Selection,
    parse_alternatives,
)
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, TableColumn
from treehammer.text_formatting import format_significant
from treehammer.web.display_formats import day_number
from treehammer.web.figures.figure_chart import FigureChart
from treehammer.web.figures.figure_layout import (
    FigureLayout,
    FigureMark,
    FigurePanel,
    FigureSeries,
    Kind,
    Scale,
    style_series,
)
from treehammer.web.figures.figure_points import MAX_READ
from treehammer.web.page import PageContent, PageOperation, PageRequest, page
from treehammer.web.page_query import (
    ALTERNATIVES,
    CAMPAIGNS,
    Conditions,
    DayOrBlank,
    PageQuery,
    Text,
    TextOrBlank,
)
from treehammer.web.sections import Figure, Form, Titled, headline, quiet

#: Name and color of the direct door's lines.
_DIRECT, _DIRECT_COLOR = "direct", "#8c8c8c"
_RATE_TITLE, _COST_TITLE = "MB/s", "time through the cache ÷ direct"


class CacheQuery(PageQuery):
    """Parameters of the comparison of caches."""

    setup: TextOrBlank = Field(
        "", description="Site, dataset and other axes; by default those with most reads."
    )
    first: DayOrBlank = Field("", alias="from", title="From", description="First day (UTC).")
    last: DayOrBlank = Field("", alias="to", title="To", description="Last day (UTC).")
    campaigns: tuple[Text, ...] = CAMPAIGNS
    where: Conditions = Field((), description=f"A condition, as COLUMN=VALUE; {ALTERNATIVES}.")


def _load_reads(store: Store, query: CacheQuery) -> list[CacheRead]:
    """Load the good reads of the selection."""
    campaigns = tuple(store.campaign(name).id for name in query.campaigns)
    conditions = (Condition.parse(f"test_name={TEST}"), *parse_alternatives(query.where))
    figure = FigureQuery(
        metrics=METRICS,
        by=COLUMNS,
        selection=Selection(campaigns, conditions),
        first_day=day_number(query.first) if query.first else None,
        last_day=day_number(query.last) if query.last else None,
    )
    with store.connection() as connection:
        groups = DatabaseSnapshot(connection).fetch_figure(figure, MAX_READ).groups
    reads = (
        parse_read(group.by, {name: group.metrics[name].mean for name in METRICS})
        for group in groups
    )
    return [read for read in reads if read is not None]


@page(
    "/figures/cache",
    "cache",
    CacheQuery,
    position=24,
    api=PageOperation(
        "compareCaches",
        "Rates of reads through caches, and their cost against the direct door",
        {"caches": "kinds of reads by release, state, distance and size of block"},
        about=("answer",),
    ),
)
def cache_page(request: PageRequest[CacheQuery]) -> PageContent:
    """Answer what reading through a cache costs, by block size, distance and release."""
    query = request.query
    reads = _load_reads(request.store, query)
    setups = shorten_setups(list_setups(reads))
    chosen = query.setup if query.setup in setups else next(iter(setups), "")
    comparison = CacheComparison(read for read in reads if read.setup == chosen)
    answer = conclude(comparison)
    table = _build_table(comparison)
    title = "Reads through caches"
    about = {"answer": answer}
    if not request.is_html:
        return PageContent(title, (), (table,), about)
    form = Form(query.list_inputs(setup=setups, first=None, last=None)) if setups else None
    figures = [
        Titled(heading, Figure(name, FigureChart(layout), caption, title=layout.title))
        for name, heading, layout, caption in _lay_out_figures(comparison)
        if layout.marks
    ]
    selection = f"Selection: {chosen}. " if chosen else ""
    sections = (
        headline(answer),
        form,
        *figures,
        quiet(selection, _METHOD) if table.rows else None,
        table if table.rows else None,
    )
    return PageContent(title, sections, (table,), about)


_METHOD = (
    "Good timed executions of one round in a job differ by the door alone. A cost is the mean of "
    "ln(time through the cache ÷ time direct) over jobs, or over the rounds where there is one job. Its "
    "95 % interval is Student's, with the spread of all cells of the same release, state and distance, "
    "since each has few values. Means over sizes of blocks give each size the same weight."
)
_CURVES_CAPTION = (
    "Rate through the cache by the client's size of block; a line for each share of the file that was "
    "read, a color for each release of the cache, gray for the direct door at the same distance. "
    "Logarithmic axis; bars are 95 % intervals over jobs."
)
_COST_CAPTION = (
    f"Time through the cache divided by the time through the direct door in the same round. Red costs "
    f"more than {100 * (LIMIT - 1):.0f} %, blue less, gray is that line."
)
_EVOLUTION_CAPTION = (
    "Cost by release of the cache, the mean over those sizes of blocks that all releases have; the line "
    f"of {100 * (LIMIT - 1):.0f} % in gray."
)


def _lay_out_figures(
    comparison: CacheComparison,
) -> Iterator[tuple[str, str, FigureLayout, str]]:
    """Yield name, heading, layout and caption of each figure."""
    yield "curves", "Rate by size of block", _lay_out_curves(comparison), _CURVES_CAPTION
    yield "cost", "Cost of the cache", _lay_out_cost(comparison), _COST_CAPTION
    if len(comparison.releases) > 1:
        yield "evolution", "Over releases", _lay_out_evolution(comparison), _EVOLUTION_CAPTION


def format_block(kib: float) -> str:
    """Format a size of block, e.g. ``64 KiB`` or ``1 MiB``."""
    return f"{kib / 1024:g} MiB" if kib >= 1024 else f"{kib:g} KiB"


def _format_column(read: str, block_kib: float) -> str:
    """Format a short label of a column, which is narrow: ``10 % 64K``."""
    return f"{read.removeprefix('whole ')} {format_block(block_kib).replace(' ', '')[:-2]}"


def _format_condition(condition: tuple[str, float]) -> str:
    state, latency = condition
    return f"{state}, {latency:g} ms away" if latency else f"{state}, no added distance"


def _make_mark(series: int, place: int, value: LogMean, count: int | None = None) -> FigureMark:
    low, high = value.ends or (None, None)
    return FigureMark(series, place, value.ratio, low, high, count=count)


def _lay_out_curves(comparison: CacheComparison) -> FigureLayout:
    """Lay out rates by size of block: a panel for each state and distance."""
    releases = [*comparison.releases, ""]
    names = [(release, read) for release in releases for read in comparison.reads]
    series = style_series(
        [(f"{release or _DIRECT}, {read}", read, release or _DIRECT) for release, read in names],
        by_release=True,
    )
    series = [
        line if release else FigureSeries(line.name, _DIRECT_COLOR, line.marker)
        for line, (release, _) in zip(series, names, strict=True)
    ]
    panels = []
    for state, latency in comparison.conditions:
        marks = []
        for key, cell in comparison.cells.items():
            is_shown = key.latency_ms == latency and key.state in (state, "")
            if is_shown and key.read in comparison.reads and key.block_kib in comparison.blocks:
                line = names.index((key.release, key.read))
                place = comparison.blocks.index(key.block_kib)
                marks.append(_make_mark(line, place, cell.rate, cell.jobs))
        panels.append(FigurePanel(_format_condition((state, latency)), tuple(marks)))
    return FigureLayout(
        kind=Kind.CURVES,
        title="Rate through the cache by size of block",
        x_title="size of block",
        y_title=_RATE_TITLE,
        groups=("condition", "block", "cache and share of the file"),
        counted="jobs",
        scale=Scale.LOG,
        places=tuple(map(format_block, comparison.blocks)),
        series=tuple(series),
        panels=tuple(panels),
        better="higher",
    )


def _lay_out_cost(comparison: CacheComparison) -> FigureLayout:
    """Lay out costs as a heat map: rows are releases and conditions, columns reads and blocks."""
    columns = [(read, block) for read in comparison.reads for block in comparison.blocks]
    costs = {cell.key: (cell.cost, cell.jobs) for cell in comparison.cached if cell.cost}
    measured_rows = {(key.release, key.state, key.latency_ms) for key in costs}
    rows = [
        (release, *condition)
        for condition in comparison.conditions
        for release in comparison.releases
        if (release, *condition) in measured_rows
    ]
    marks = tuple(
        _make_mark(
            rows.index((key.release, key.state, key.latency_ms)),
            columns.index((key.read, key.block_kib)),
            cost,
            jobs,
        )
        for key, (cost, jobs) in costs.items()
    )
    return FigureLayout(
        kind=Kind.HEAT_MAP,
        title="Cost of the cache",
        x_title="share of the file, size of block (K: KiB, M: MiB)",
        y_title=_COST_TITLE,
        groups=("", "read", "cache and condition"),
        counted="jobs",
        scale=Scale.LOG,
        places=tuple(_format_column(read, block) for read, block in columns),
        series=tuple(
            FigureSeries(f"{release} · {_format_condition((state, ms))}", _DIRECT_COLOR, "circle")
            for release, state, ms in rows
        ),
        panels=(FigurePanel("", marks),),
        better="lower",
        limit=LIMIT,
    )


def _lay_out_evolution(comparison: CacheComparison) -> FigureLayout:
    """Lay out costs by release, with the line of the limit."""
    limit = len(comparison.reads)
    panels = []
    for condition in comparison.conditions:
        marks = []
        for line, read in enumerate(comparison.reads):
            blocks = comparison.list_common_blocks(condition, read)
            for place, release in enumerate(comparison.releases if blocks else ()):
                if cost := comparison.pool_cost(release, condition, read, blocks):
                    marks.append(_make_mark(line, place, cost))
        if marks:
            ends = range(len(comparison.releases))
            marks += [FigureMark(limit, place, LIMIT, None, None) for place in ends]
        panels.append(FigurePanel(_format_condition(condition), tuple(marks)))
    lines = style_series([(read, read, "") for read in comparison.reads])
    limit_line = FigureSeries(f"{100 * (LIMIT - 1):.0f} %", _DIRECT_COLOR, "circle")
    return FigureLayout(
        kind=Kind.CURVES,
        title="Cost of the cache by release",
        x_title="release of the cache",
        y_title=_COST_TITLE,
        groups=("condition", "release", "share of the file"),
        counted="jobs",
        scale=Scale.LOG,
        places=tuple(comparison.releases),
        series=(*lines, limit_line),
        panels=tuple(panels),
        better="lower",
    )


def _build_table(comparison: CacheComparison) -> DataTable:
    """Build the table of all cells, those of the direct door last."""
    columns = (
        TableColumn("release", "cache"),
        TableColumn("state", "state"),
        TableColumn("latency_ms", "distance (ms)", is_number=True),
        TableColumn("read", "read"),
        TableColumn("block_kib", "block (KiB)", is_number=True),
        TableColumn("jobs", "jobs", is_number=True),
        *_number_columns("rate_mb_per_s", _RATE_TITLE, "rate"),
        *_number_columns("cost", "cost (ratio)", "cost"),
        TableColumn("fetch_ratio", "fetched ÷ asked", _format_number, is_number=True),
        TableColumn("hit_share", "hits", _format_share, is_number=True),
        TableColumn("stored_share", "stored before", _format_share, is_number=True),
    )
    rows = [_build_row(cell) for cell in comparison.cells.values()]
    return DataTable("caches", "Reads through caches and direct", columns, rows)


def _number_columns(name: str, title: str, prefix: str) -> Iterator[TableColumn]:
    for column, text in ((name, title), (f"{prefix}_low", "from"), (f"{prefix}_high", "to")):
        yield TableColumn(column, text, _format_number, is_number=True)


def _format_number(value: Any) -> str:
    return "" if value is None else format_significant(value)


def _format_share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"


def _build_row(cell: CacheCell) -> dict[str, Any]:
    key = cell.key
    rate, cost = cell.rate.ends or (None, None), (cell.cost and cell.cost.ends) or (None, None)
    return {
        "release": key.release or _DIRECT,
        "state": key.state or "–",
        "latency_ms": key.latency_ms,
        "read": key.read,
        "block_kib": key.block_kib,
        "jobs": cell.jobs,
        "rate_mb_per_s": cell.rate.ratio,
        "rate_low": rate[0],
        "rate_high": rate[1],
        "cost": cell.cost.ratio if cell.cost else None,
        "cost_low": cost[0],
        "cost_high": cost[1],
        **{name.removeprefix(EXTRA_PREFIX): cell.counts.get(name) for name in COUNTS},
    }
