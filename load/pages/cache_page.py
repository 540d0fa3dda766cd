"""Reads through caches: their rates by size of block, cost against the direct door, and releases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from treehammer.load.analysis.cache_cost import CacheCell, CacheComparison, conclude
from treehammer.load.analysis.cache_reads import COUNTS, CacheRead, list_setups, shorten_setups
from treehammer.load.charts.cache_figures import (
    RATE_TITLE,
    CacheFigure,
    lay_out_figures,
    load_cache_reads,
)
from treehammer.sql.core.measurement_columns import EXTRA_PREFIX
from treehammer.sql.read.query_model import parse_alternatives
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, TableColumn
from treehammer.text_formatting import format_significant
from treehammer.web.display_formats import day_number
from treehammer.web.figures.figure_chart import FigureChart
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


class CacheQuery(PageQuery):
    """Parameters of the comparison of caches."""

    setup: TextOrBlank = Field(
        "", description="Site, dataset and other axes; by default those with most reads."
    )
    direct: TextOrBlank = Field(
        "",
        title="Compared with",
        description="Direct door that costs refer to; by default the one in most pairs.",
    )
    read: TextOrBlank = Field(
        "", description="Share of the file, as `10 %`, or `whole copy`; by default all."
    )
    first: DayOrBlank = Field("", alias="from", title="From", description="First day (UTC).")
    last: DayOrBlank = Field("", alias="to", title="To", description="Last day (UTC).")
    campaigns: tuple[Text, ...] = CAMPAIGNS
    where: Conditions = Field((), description=f"A condition, as COLUMN=VALUE; {ALTERNATIVES}.")


def _load_reads(store: Store, query: CacheQuery) -> list[CacheRead]:
    campaigns = tuple(store.campaign(name).id for name in query.campaigns)
    first, last = (day_number(day) if day else None for day in (query.first, query.last))
    with store.snapshot() as snapshot:
        return load_cache_reads(snapshot, campaigns, parse_alternatives(query.where), (first, last))


@page(
    "/figures/cache",
    "cache",
    CacheQuery,
    position=24,
    help="load-tests",
    api=PageOperation(
        "compareCaches",
        "Rates of reads through caches, and their cost against the direct door",
        {"caches": "kinds of reads by release, state, distance and size of block"},
        about=("answer", "direct_door"),
    ),
)
def cache_page(request: PageRequest[CacheQuery]) -> PageContent:
    """Answer what reading through a cache costs, by block size, distance and release."""
    query = request.query
    reads = _load_reads(request.store, query)
    setups = shorten_setups(list_setups(reads))
    setup = query.setup if query.setup in setups else next(iter(setups), "")
    of_setup = [read for read in reads if read.setup == setup]
    whole = CacheComparison(of_setup, query.direct)
    read = query.read if query.read in whole.reads else ""
    comparison = CacheComparison(of_setup, query.direct, read) if read else whole
    answer = conclude(comparison)
    table = _build_table(comparison)
    title = "Reads through caches"
    about = {"answer": answer, "direct_door": comparison.direct_door}
    if not request.is_html:
        return PageContent(title, (), (table,), about)
    form = Form(
        query.list_inputs(
            setup={"": "with most reads", **setups},
            direct={"": "most frequent door", **{door: door for door in whole.direct_doors}},
            read=whole.reads,
            first=None,
            last=None,
        )
    )
    sections = (
        headline(answer),
        quiet(_describe_selection(comparison, setups.get(setup, ""))),
        form if setups else None,
        *map(_show_figure, lay_out_figures(comparison)),
        *((quiet(_METHOD), table) if table.rows else ()),
    )
    return PageContent(title, sections, (table,), about)


def _show_figure(figure: CacheFigure) -> Titled:
    return Titled(
        figure.heading,
        Figure(figure.name, FigureChart(figure.layout), figure.caption, title=figure.layout.title),
    )


def _describe_selection(comparison: CacheComparison, setup: str) -> str:
    """Describe the setup and the door that costs refer to."""
    if not comparison.direct_door:
        return setup
    doors = ", ".join(door for door in comparison.direct_doors if door != comparison.direct_door)
    left_out = f"; the door {doors} is left out" if doors else ""
    door = f"{comparison.direct_door} ({', '.join(comparison.direct_releases)})"
    return f"{setup}. Costs refer to the direct door {door} in the same job{left_out}."


_METHOD = (
    "Good timed executions of one round in a job, with the same planned state, differ by the door alone. "
    "A cost is the mean of ln(time through the cache ÷ time direct) over jobs, or over the rounds where "
    "there is one job. Its 95 % interval is Student's, with the spread of all cells of the same release, "
    "state and distance, since each has few values. Means over sizes of blocks give each size the same "
    "weight. Caches of one release that differ by door, pfc.blocksize or release of the origin are "
    "separate."
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
        *_number_columns("rate_mb_per_s", RATE_TITLE, "rate"),
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
    rate, cost = ((mean and mean.ends) or (None, None) for mean in (cell.rate, cell.cost))
    return {
        "release": key.release,
        "state": key.state or "–",
        "latency_ms": key.latency_ms,
        "read": key.read,
        "block_kib": key.block_kib,
        "jobs": cell.jobs,
        "rate_mb_per_s": cell.rate.ratio if cell.rate else None,
        "rate_low": rate[0],
        "rate_high": rate[1],
        "cost": cell.cost.ratio if cell.cost else None,
        "cost_low": cost[0],
        "cost_high": cost[1],
        **{name.removeprefix(EXTRA_PREFIX): cell.counts.get(name) for name in COUNTS},
    }
