"""Page of a campaign's load: rates, failures and tails by level, step, server and site."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import anyio

from treehammer.analysis.statistics.metric_units import format_metric
from treehammer.collectors.job_spec import JobState
from treehammer.collectors.record.operation_steps import SERVER, LoadProgress
from treehammer.errors import TreehammerError
from treehammer.load.charts.load_charts import make_side_table, step_number, step_start_s
from treehammer.load.charts.load_levels import (
    LoadDetails,
    LoadQuery,
    check_size,
    compute_evenness,
    find_slowest,
    level_of,
    load_details,
)
from treehammer.load.charts.load_summary import (
    conclude,
    draw_figures,
    figure_columns,
    level_table,
    list_limits,
)
from treehammer.load.operation_figures import OperationGroup
from treehammer.load.outcome import StartSpread, summarize_campaign_starts
from treehammer.sql.core.rows import CampaignRow, JobRow
from treehammer.sql.read import campaign_queries
from treehammer.submit.batch.interface import BatchSystem
from treehammer.submit.campaigns.campaign_outcome import describe_running_loads
from treehammer.submit.campaigns.tracker import group_by_batch_system
from treehammer.tables import MAX_SHOWN_ROWS, DataTable, TableColumn, build_table, hidden_columns
from treehammer.text_formatting import format_counts, format_share, format_significant, pluralize
from treehammer.web import sections as ui
from treehammer.web.addresses import link_to, link_to_same_page
from treehammer.web.columns import column, count_columns
from treehammer.web.display_formats import format_time
from treehammer.web.page import (
    PageContent,
    PageOperation,
    PageRequest,
    PageResources,
    QueryPool,
    page,
)
from treehammer.web.page_query import FormInput
from treehammer.web.pages.execution_logs import open_own_batch_system

#: Pages read at a time.
MAX_CONCURRENT = 2
#: Part of the page with the rates of running jobs, and seconds between two looks at it.
RUNNING, REFRESH_INTERVAL_S = "running", 2


@page(
    "/campaigns/{campaign_id:some}/load",
    "campaign-load",
    LoadQuery,
    position=51,
    help="load-tests",
    make_pool=lambda _: QueryPool(anyio.CapacityLimiter(MAX_CONCURRENT)),
    api=PageOperation(
        "getCampaignLoad",
        "Operations of a load test: rates, failures and latencies",
        {
            "levels": "every load: storage, door and variant, by operation and side",
            "steps": "time steps of the chosen load",
            "sides": "time steps as clients and servers saw them, if both timed the operation",
            "servers": "servers of the chosen load",
            "sites": "sites of the jobs of the chosen load",
            "starts": "common starts, and the spread of the real ones",
        },
        ("operation", "side", "load", "evenness"),
    ),
)
def load_page(request: PageRequest[LoadQuery]) -> PageContent:
    """Build the page of a known campaign."""
    store = request.store
    campaign = campaign_queries.load_campaign(store, request.query.campaign_id)
    if request.raw.query_params.get("part") == RUNNING and request.is_html:
        ended = ui.Live(
            ui.Paragraph("All jobs have ended: load the page again."), address="", every_s=0
        )
        return PageContent("", [_show_running(request, campaign) or ended], is_part=True)
    load = campaign.plan.definition.load_test
    with store.snapshot() as snapshot:
        check_size(snapshot, campaign)
        details = load_details(snapshot, campaign, load, request.query)
    spreads, lonely = summarize_campaign_starts(store, campaign)
    tables = {
        "levels": level_table(details, campaign.id),
        "steps": _step_table(details),
        "sides": make_side_table(details.sides),
        "servers": _server_table(details),
        "sites": _site_table(details),
        "starts": _start_table(spreads),
    }
    previews = {name: replace(table, max_rows=MAX_SHOWN_ROWS) for name, table in tables.items()}
    levels, steps = draw_figures(details, campaign.test_name) if request.is_html else ([], [])
    campaign_name = campaign.name or campaign.id
    title = f"Load of {campaign_name}"
    alone = f"{pluralize(lonely, 'measurement')} began without a common start." if lonely else ""
    sections = (
        ui.headline(conclude(details)),
        _show_running(request, campaign),
        ui.Paragraph(load.describe() if load else "", look="quiet under"),
        *(
            _suggest_test(campaign, tables["levels"])
            if details.selection is None
            else _describe_chosen(details, details.selection, previews, levels, steps)
        ),
        ui.Titled(
            "Common starts", ui.if_filled(previews["starts"]), ui.Paragraph(alone), anchor="starts"
        ),
    )
    crumbs = [
        ui.Link("Campaigns", link_to("campaigns")),
        ui.Link(campaign_name, link_to("campaign", campaign_id=campaign.id)),
    ]
    about = _describe_selection(details)
    return PageContent(title, sections, tuple(tables.values()), about, crumbs)


def _describe_selection(details: LoadDetails) -> dict[str, Any]:
    """Describe the chosen load for programs."""
    selection, evenness = details.selection, compute_evenness(details.servers)
    return {
        "operation": selection.operation if selection else "",
        "side": selection.side if selection else "",
        "load": level_of(selection).id if selection else "",
        "evenness": evenness[1] if evenness else None,
    }


def _show_running(request: PageRequest[LoadQuery], campaign: CampaignRow) -> ui.Live | None:
    """Show the rates of the jobs of this installation that load now, until they end."""
    running = [
        job for job in request.store.jobs(campaign.id) if job.state == JobState.RUNNING.value
    ]
    if not running:
        return None
    line = describe_running_loads(request.resources.share(LoadReader).read(running))
    text = f"Now: {line}." if line else f"{pluralize(len(running), 'job')} running."
    address = link_to_same_page(part=RUNNING)
    return ui.Live(ui.Paragraph(text, role="status"), address=address, every_s=REFRESH_INTERVAL_S)


class LoadReader:
    """Reads the loads of running jobs, and remembers how far it read the logs of pools.

    Args:
        resources: of the service.
    """

    def __init__(self, resources: PageResources) -> None:
        self._resources = resources
        self._batches: dict[str, BatchSystem] = {}
        self._lock = threading.Lock()

    def read(self, jobs: Sequence[JobRow]) -> list[LoadProgress]:
        """Return the last time step of each of the jobs that loads now."""
        steps: list[LoadProgress] = []
        with self._lock:
            for name, group in group_by_batch_system(jobs):
                with suppress(TreehammerError):
                    if batch := self._find_batch(name):
                        steps += batch.read_load_steps(job.batch_id for job in group)
        return steps

    def _find_batch(self, name: str) -> BatchSystem | None:
        batch = self._batches.get(name) or open_own_batch_system(self._resources, name)
        if batch:
            self._batches[name] = batch
        return batch


def _suggest_test(campaign: CampaignRow, levels: DataTable) -> Iterator[ui.Section]:
    address = f"{link_to('campaign', campaign_id=campaign.id)}#failures"
    yield ui.Paragraph(
        f"{levels.empty_text} Load tests report them: ",
        ui.Link("see the failures", address),
        ", or run one:",
    )
    yield ui.Command("treehammer submit open-rate --wait")


def _describe_chosen(
    details: LoadDetails,
    selection: OperationGroup,
    tables: Mapping[str, DataTable],
    levels: Sequence[ui.Figure],
    steps: Sequence[ui.Figure],
) -> Iterator[ui.Section | None]:
    """Show the chosen operation: all loads, one over time, and its servers and sites."""
    label = details.label(selection)
    operations = dict.fromkeys((level.operation, level.side) for level in details.levels)
    if len(operations) > 1:
        yield ui.Links([_link_to_operation(*each, selection) for each in operations], "Operations")
    limit = "door's ceiling" if selection.is_held else "generator"
    limited = f"The {limit} was the limit in all steps, so that no rate can be shown."
    yield ui.Titled(
        f"Attempted and observed: {_name_operation(selection.operation, selection.side)}",
        ui.Group("charts", *levels) if levels else ui.Paragraph(limited),
        ui.Bullets(list_limits(details), ""),
        tables["levels"],
        ui.quiet(
            "Rates are over the time that the steps cover, observed ones until the answers came, and add "
            "over jobs that ran at the same time. "
            "Latencies are those of successful operations, from the scheduled instant. Rows of steps in "
            "which the generator was the limit are left out: counted, but in no other figure."
        ),
        anchor="levels",
    )
    yield _describe_course(details, selection, tables, steps)
    evenness, slowest = compute_evenness(details.servers), find_slowest(details.servers)
    yield ui.Titled(
        f"Servers and sites: {label}",
        tables["servers"],
        ui.Paragraph(
            f"Evenness: {evenness[0]} has the smallest rate, {100 * evenness[1]:.0f} % of the largest."
        )
        if evenness
        else None,
        ui.Paragraph(
            f"Slowest: {slowest[0]}, p50 {format_metric('p50_s', slowest[1], 's')}, "
            f"{format_significant(slowest[2])} times that of the fastest server."
        )
        if slowest
        else None,
        tables["sites"],
        anchor="servers",
    )


def _describe_course(
    details: LoadDetails,
    selection: OperationGroup,
    tables: Mapping[str, DataTable],
    steps: Sequence[ui.Figure],
) -> ui.Titled:
    """Show the chosen load over time."""
    loads = {level_of(level).id: details.label(level) for level in details.similar}
    choice = FormInput("load", "Load", level_of(selection).id, loads)
    fixed = (("operation", selection.operation), ("side", selection.side))
    failures, left_out = format_counts(selection.failures), selection.limited_failures
    return ui.Titled(
        f"Over time: {details.label(selection)}",
        ui.Form([choice], anchor="#time", hidden=fixed) if len(loads) > 1 else None,
        ui.Group("charts", *steps),
        ui.Paragraph(f"Failures: {failures}." if selection.failures else ""),
        ui.Paragraph(f"Failures of steps left out: {format_counts(left_out)}." if left_out else ""),
        ui.Folded("Table of time steps", tables["steps"], is_open=not steps),
        ui.Folded("Table of client and server", ui.if_filled(tables["sides"])),
        anchor="time",
    )


def _name_operation(operation: str, side: str) -> str:
    return f"{operation}{', server side' if side == SERVER else ''}"


def _link_to_operation(operation: str, side: str, selection: OperationGroup) -> ui.Link:
    address = link_to_same_page(operation=operation, side=side, load=None)
    is_current = (operation, side) == (selection.operation, selection.side)
    return ui.Link(_name_operation(operation, side), address, is_current=is_current)


def _step_table(details: LoadDetails) -> DataTable:
    # Answers may have come in later steps.
    no_bounds = {"least_hz": None, "least_bytes_per_s": None}
    rows = [
        {"step": step_number(step), "start_s": step_start_s(step)} | step.list_figures() | no_bounds
        for step in details.steps
    ]
    columns = (
        TableColumn("step", "step", is_number=True),
        TableColumn("start_s", "from (s)", is_number=True),
        *hidden_columns("operation", "side"),
        *figure_columns("operation", "side"),
    )
    note = "An operation counts in the step in which it was due."
    note += f" Each row merges {details.points} steps." if details.points > 1 else ""
    return DataTable("steps", "Time steps", columns, rows, note=note)


def _server_table(details: LoadDetails) -> DataTable:
    seconds = details.selection.seconds if details.selection else 0.0
    rows = [
        {
            "server": server.key,
            **server.list_figures(),
            "observed_hz": server.done / seconds if seconds else None,
            "bytes_per_s": server.bytes / seconds if seconds else None,
            "attempted_hz": None,
        }
        for server in details.servers
    ]
    columns = (
        TableColumn("server", "server", format_row=lambda row: row["server"] or "unknown"),
        *hidden_columns("operation", "side", "attempted_hz"),
        *figure_columns("operation", "side", "attempted_hz"),
    )
    note = "Rates are over the whole time of the load."
    return DataTable("servers", "Servers", columns, rows, note=note)


def _site_table(details: LoadDetails) -> DataTable:
    rows = [{"site": site.key, **site.list_figures()} for site in details.sites]
    columns = (
        TableColumn("site", "site of the jobs"),
        *hidden_columns("operation", "side"),
        *figure_columns("operation", "side"),
    )
    return DataTable("sites", "Sites of the jobs", columns, rows)


def _start_table(spreads: Sequence[StartSpread]) -> DataTable:
    def write(name: str) -> Callable[[float], str]:
        return partial(format_metric, name, unit="s")

    return build_table(
        "starts",
        "Spread of the real starts",
        (
            column("start_us", "common start", format_value=format_time),
            column("judgment", "judged"),
            column("spread_s", "spread", format_value=write("spread_s"), is_number=True),
            column(
                "clock_error_s",
                "clocks within",
                format_value=write("clock_error_s"),
                is_number=True,
            ),
            *count_columns("jobs", "started", "late"),
            column("latest_s", "by up to (s)", is_number=True),
            column(
                "missing_load",
                "load missing",
                format_value=lambda share: format_share(share, 1),
                is_number=True,
            ),
        ),
        spreads,
    )
