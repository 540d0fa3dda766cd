"""Page of a campaign's load: rates, failures and tails by level, step, server and site."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import anyio
from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis.status.load_tests import StartSpread
from treehammer.analysis.status.status_rules import load_operations_rule
from treehammer.collectors.record.operation_steps import CLIENT, FIGURE_NAMES, QUANTILES, SERVER
from treehammer.sql.read import campaign_queries
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns.campaign_outcome import read_load, summarize_campaign_starts
from treehammer.tables import MAX_SHOWN_ROWS, DataTable, TableColumn, hidden_columns
from treehammer.text_formatting import format_cell, format_counts, format_share
from treehammer.web.addresses import HTML, link_to, requested_format
from treehammer.web.core.responses import require_text
from treehammer.web.display_formats import format_seconds, format_time
from treehammer.web.figures.drawing import DRAWN_FORMATS
from treehammer.web.figures.line_chart import ChartSheet, LineChart
from treehammer.web.page import QueryPool
from treehammer.web.page_query import PageOperation
from treehammer.web.page_service import PageContext, PageModule, PageView
from treehammer.web.pages.load_charts import (
    LoadChart,
    draw_levels,
    draw_sides,
    draw_steps,
    make_side_table,
    step_number,
    step_start_s,
)
from treehammer.web.pages.load_levels import (
    LoadDetails,
    LoadQuery,
    compute_evenness,
    find_slowest,
    find_smallest_share,
    level_of,
    load_details,
)

#: Pages read at a time.
MAX_CONCURRENT = 2

#: Content of the pages for programs.
OPERATIONS = (
    PageOperation(
        "/campaigns/{campaign_id}/load",
        "getCampaignLoad",
        "campaign-load",
        "Operations of a load test: rates, failures and latencies",
        {
            "levels": "every load: storage, door and variant, by operation and side",
            "steps": "time steps of the chosen load",
            "sides": "time steps as clients and servers saw them, if both timed the operation",
            "servers": "servers of the chosen load",
            "sites": "sites of the jobs of the chosen load",
            "starts": "common starts, and the spread of the real ones",
        },
        LoadQuery,
        ("operation", "side", "load", "evenness"),
    ),
)


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the route of the page."""
    pool = QueryPool(anyio.CapacityLimiter(MAX_CONCURRENT))
    path = require_text("/campaigns/{campaign_id}/load")
    return [context.page_route(path, load_view, "campaign-load", pool=pool)]


PAGES = PageModule(routes, position=51, operations=OPERATIONS)


def load_view(store: Store, request: Request) -> PageView:
    """Collect the data of the page.

    Raises:
        ConfigError: a parameter names nothing of the campaign, or its operations are too many.
        NothingToDoError: the campaign does not exist.
    """
    query = LoadQuery.parse(request)
    campaign = campaign_queries.fetch_campaign(store, query.campaign_id)
    load = read_load(campaign)
    with store.snapshot() as snapshot:
        details = load_details(snapshot, campaign, load, query)
    spreads, lonely = summarize_campaign_starts(store, campaign)
    is_page = requested_format(request) == HTML
    tables = {
        "levels": _level_table(details, request),
        "steps": _step_table(details),
        "sides": make_side_table(details.sides),
        "servers": _server_table(details),
        "sites": _site_table(details),
        "starts": _start_table(spreads),
    }
    values = {
        **{name: replace(table, max_rows=MAX_SHOWN_ROWS) for name, table in tables.items()},
        "campaign": campaign,
        "load_text": load.describe() if load else "",
        **_describe_chosen(details),
        "operations": list(
            dict.fromkeys((level.operation, level.side) for level in details.levels)
        ),
        "loads": [(level_of(level).id, details.label(level)) for level in details.similar],
        "limits": [
            (details.label(level), text)
            for level in details.similar
            if (text := level.describe_limit())
        ],
        "level_charts": _draw_level_charts(details, campaign.test_name) if is_page else [],
        "step_charts": _draw_step_charts(details) if is_page else [],
        "formats": DRAWN_FORMATS,
        "slowest": find_slowest(details.servers),
        "smallest_share": find_smallest_share(details.servers),
        "evenness": compute_evenness(details.servers),
        "lonely": lonely,
    }
    title = f"Load of {campaign.name or campaign.id}"
    charts = _name_charts(values, title)
    return PageView("load.html.j2", title, values, tuple(tables.values()), charts=charts)


def _name_charts(values: Mapping[str, Any], title: str) -> dict[str, LineChart | ChartSheet]:
    """Return the charts of the page by name, and all on one sheet."""
    charts: list[LoadChart] = [*values["level_charts"], *values["step_charts"]]
    side = ", server side" * (values["side"] == SERVER)
    over_time = f"{values['operation']}{side}; over time: {values['load_label']}"
    sheet = ChartSheet(
        f"{title}: {over_time}", [(chart.heading, chart.caption, chart.drawing) for chart in charts]
    )
    return (
        {"all": sheet, **{chart.drawing.title: chart.drawing for chart in charts}} if charts else {}
    )


def _describe_chosen(details: LoadDetails) -> dict[str, Any]:
    """Return the values of the chosen level and operation; empty ones without any."""
    chosen = details.chosen
    if chosen is None:
        texts = ("operation", "side", "load", "load_label", "failures")
        return {**dict.fromkeys(texts, ""), "chosen": None}
    return {
        "operation": chosen.operation,
        "side": chosen.side,
        "load": level_of(chosen).id,
        "load_label": details.label(chosen),
        "failures": format_counts(chosen.failures),
        "chosen": chosen,
    }


def _draw_level_charts(details: LoadDetails, test: str) -> list[LoadChart]:
    chosen = details.chosen
    if chosen is None:
        return []
    latency_line = details.labels.label_series(level_of(chosen))
    lines = details.group_by_line()
    return draw_levels(
        lines, details.label, load_operations_rule(), test, chosen.operation, latency_line
    )


def _draw_step_charts(details: LoadDetails) -> list[LoadChart]:
    return [
        *draw_sides(details.sides, details.points),
        *draw_steps(details.steps, details.points),
    ]


def _level_table(details: LoadDetails, request: Request) -> DataTable:
    def link_to_level(row: Mapping[str, Any]) -> str:
        query = {name: row[name] for name in ("operation", "side", "load")}
        id_ = request.path_params["campaign_id"]
        return link_to("campaign-load", campaign_id=id_, query=query) + "#time"

    rows = [
        {
            "load": level_of(level).id,
            "label": details.label(level),
            **{
                name: getattr(level_of(level), name) for name in ("storage_site", "door", "variant")
            },
            "jobs": level_of(level).jobs or None,
            **level.list_figures(),
            "net_mean_s": level.net_mean_s if level.side == CLIENT else None,
        }
        for level in details.levels
    ]
    columns = (
        TableColumn("label", "load", link=link_to_level),
        *hidden_columns("load", "storage_site", "door", "variant", "jobs"),
        TableColumn("operation", "operation"),
        TableColumn("side", "side"),
        *_figure_columns("operation", "side"),
        TableColumn("net_mean_s", "mean without round trip", format_seconds, is_number=True),
    )
    empty = "No timed measurement of this campaign that is good has operations."
    return DataTable(
        "levels", "All loads", columns, rows, empty_text=empty, note=details.labels.variants.note
    )


def _step_table(details: LoadDetails) -> DataTable:
    rows = [
        {"step": step_number(step), "start_s": step_start_s(step), **step.list_figures()}
        for step in details.steps
    ]
    columns = (
        TableColumn("step", "step", is_number=True),
        TableColumn("start_s", "from (s)", is_number=True),
        *hidden_columns("operation", "side"),
        *_figure_columns("operation", "side"),
    )
    merged = f"Each row merges {details.points} steps." * (details.points > 1)
    return DataTable("steps", "Time steps", columns, rows, note=merged)


def _server_table(details: LoadDetails) -> DataTable:
    rows = [
        {
            "server": share.server,
            **share.group.list_figures(),
            "observed_hz": share.observed_hz,
            "bytes_per_s": share.bytes_per_s,
            "attempted_hz": None,
        }
        for share in details.servers
    ]
    columns = (
        TableColumn("server", "server", format_row=lambda row: row["server"] or "unknown"),
        *hidden_columns("operation", "side", "attempted_hz"),
        *_figure_columns("operation", "side", "attempted_hz"),
    )
    note = "Rates are over the whole time of the load."
    return DataTable("servers", "Servers", columns, rows, note=note)


def _site_table(details: LoadDetails) -> DataTable:
    rows = [{"site": site.key, **site.list_figures()} for site in details.sites]
    columns = (
        TableColumn("site", "site of the jobs"),
        *hidden_columns("operation", "side"),
        *_figure_columns("operation", "side"),
    )
    return DataTable("sites", "Sites of the jobs", columns, rows)


def _start_table(spreads: Sequence[StartSpread]) -> DataTable:
    rows = [
        {
            **{name: getattr(spread, name) for name in StartSpread.__annotations__},
            "judgment": spread.judgment,
        }
        for spread in spreads
    ]
    columns = (
        TableColumn("start_us", "common start", format_time),
        TableColumn("judgment", "judged"),
        TableColumn("spread_s", "spread", format_seconds, is_number=True),
        TableColumn("clock_error_s", "clocks within", format_seconds, is_number=True),
        TableColumn("jobs", "jobs", is_number=True),
        TableColumn("started", "started", is_number=True),
        TableColumn("late", "late", is_number=True),
        TableColumn("latest_s", "by up to (s)", is_number=True),
        TableColumn(
            "missing_load", "load missing", lambda share: format_share(share, 1), is_number=True
        ),
    )
    return DataTable("starts", "Spread of the real starts", columns, rows)


def _figure_columns(*leading: str) -> Iterator[TableColumn]:
    """Build the columns of all figures but those shown already."""
    titles = {
        "active_clients": "clients",
        "attempted_hz": "attempted (1/s)",
        "observed_hz": "observed (1/s)",
        "failed_fraction": "failed",
        "bytes_per_s": "MB/s",
        **{name: name.removesuffix("_s") for name in QUANTILES},
        "failures": "failures",
        "steps": "rows",
        "limited_steps": "left out",
        "least_hz": "at least (1/s)",
        "least_bytes_per_s": "at least (MB/s)",
    }
    formats: Mapping[str, Callable[[Any], str]] = {
        "failed_fraction": lambda share: format_share(share, 2),
        **dict.fromkeys(("bytes_per_s", "least_bytes_per_s"), lambda rate: f"{rate / 1e6:.4g}"),
        "least_hz": lambda rate: f"{rate:.4g}",
        "failures": format_counts,
        **dict.fromkeys(QUANTILES, format_seconds),
    }
    names = [*titles, *(name for name in FIGURE_NAMES if name not in titles)]
    for name in names:
        if name in leading:
            continue
        yield TableColumn(
            name,
            titles.get(name, name),
            formats.get(name, format_cell),
            is_number=name != "failures",
            is_long=name == "failures",
            hidden=name not in titles,
        )
