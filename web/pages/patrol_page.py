"""Entries and starts of the patrol, and the budget of each site."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis.status.site_status import SiteUses, list_uses
from treehammer.sql.core.watch_rows import PatrolStartRow
from treehammer.sql.watch.patrol_report import (
    MAX_STARTS,
    EntryReport,
    PatrolReport,
    SiteReport,
    fetch_report,
)
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn, hidden_columns
from treehammer.text_formatting import format_duration, format_size
from treehammer.web.display_formats import format_time
from treehammer.web.pages.page_context import PageContext, PageView, link_to


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the route of the page."""
    return [context.page_route("/patrol", patrol_view, "patrol")]


def patrol_view(store: Store, request: Request) -> PageView:
    """Collect leader, entries, budgets and the latest starts."""
    report = fetch_report(store)
    tables = (
        _entry_table(report, request),
        _budget_table(report.sites, list_uses(store), request),
        _start_table(report.starts, request),
    )
    values = {
        "entries": tables[0],
        "budgets": tables[1],
        "starts": tables[2],
        "leader": report.lease.holder if report.lease and report.has_leader else "",
        "has_run": report.lease is not None,
    }
    return PageView("patrol.html.j2", "Patrol", values, tables)


def _entry_table(report: PatrolReport, request: Request) -> DataTable:
    columns = (
        TableColumn("entry", "entry"),
        TableColumn("test", "test", is_long=True),
        TableColumn("follows", "follows"),
        TableColumn("sites", "sites", is_long=True),
        TableColumn("every_s", "every", format_duration, is_number=True),
        TableColumn(
            "last_start_us",
            "last start, UTC",
            format_time,
            link=_link_to_campaign(request),
            detail=lambda row: str(row["occasion"] or "").partition(":")[0],
        ),
        *hidden_columns("occasion", "campaign_id"),
        TableColumn("next_start_us", "next start, UTC", format_time),
        TableColumn("in_flight", "campaigns in flight", is_number=True),
        TableColumn("in_flight_limit", "at most", is_number=True),
        TableColumn("result", "last result", is_long=True),
        TableColumn("remark", "remark", is_long=True),
    )
    rows = [_entry_row(entry) for entry in report.entries]
    return DataTable("entries", "Entries", columns, rows, empty_text="No entries.")


def _entry_row(report: EntryReport) -> dict[str, Any]:
    return {
        "entry": report.entry.name,
        "test": report.entry.test,
        "follows": report.entry.follows or "time",
        "sites": report.entry.sites,
        "every_s": report.entry.every_s,
        "last_start_us": report.last.claimed_us if report.last else None,
        "occasion": report.last.occasion if report.last else None,
        "campaign_id": report.last.campaign_id if report.last else None,
        "next_start_us": report.entry.next_us,
        "in_flight": len(report.open_campaigns),
        "in_flight_limit": report.entry.in_flight,
        "result": report.result,
        "remark": report.entry.note,
    }


def _budget_table(sites: tuple[SiteReport, ...], uses: SiteUses, request: Request) -> DataTable:
    columns = (
        TableColumn("site", "site", link=lambda row: link_to(request, "site", site=row["site"])),
        TableColumn(
            "cpu_used_s",
            "CPU used",
            format_duration,
            is_number=True,
            bar=lambda row: _share(row["cpu_used_s"], row["cpu_limit_s"]),
        ),
        TableColumn("cpu_left_s", "CPU left", format_duration, is_number=True),
        TableColumn("cpu_limit_s", hidden=True),
        TableColumn(
            "bytes_used",
            "read",
            format_size,
            is_number=True,
            bar=lambda row: _share(row["bytes_used"], row["bytes_limit"]),
        ),
        TableColumn("bytes_left", "left to read", format_size, is_number=True),
        TableColumn("bytes_limit", hidden=True),
        TableColumn("use", "use"),
        TableColumn("reason", "reason", is_long=True),
    )
    rows = [
        {
            "site": site.site.site,
            "cpu_used_s": site.use.cpu_s,
            "cpu_left_s": site.cpu_left_s,
            "cpu_limit_s": site.site.cpu_limit_s,
            "bytes_used": site.use.bytes,
            "bytes_left": site.bytes_left,
            "bytes_limit": site.site.bytes_limit,
            "use": uses.summarize(site.site.site).value,
            "reason": uses.describe_restrictions(site.site.site),
        }
        for site in sites
    ]
    return DataTable("budgets", "Budgets of today (UTC)", columns, rows, empty_text="No sites.")


def _start_table(starts: tuple[PatrolStartRow, ...], request: Request) -> DataTable:
    columns = (
        TableColumn("start_us", "start, UTC", format_time, link=_link_to_campaign(request)),
        TableColumn("entry", "entry"),
        TableColumn("occasion", "occasion", is_long=True),
        TableColumn("campaign_id", hidden=True),
        TableColumn("state", "state"),
        TableColumn("end_us", "end, UTC", format_time),
        TableColumn("message", "remark", is_long=True),
    )
    rows = [
        {
            "start_us": start.claimed_us,
            "entry": start.entry,
            "occasion": start.occasion,
            "campaign_id": start.campaign_id,
            "state": start.state,
            "end_us": start.finished_us,
            "message": start.message,
        }
        for start in starts
    ]
    caption = f"Starts, newest first, at most {MAX_STARTS}"
    return DataTable("starts", caption, columns, rows, empty_text="No starts yet.")


def _link_to_campaign(request: Request) -> Any:
    def link(row: Row) -> str:
        id_ = row["campaign_id"]
        return link_to(request, "campaign", campaign_id=id_) if id_ else ""

    return link


def _share(used: float, limit: float | None) -> float | None:
    return min(1.0, used / limit) if limit else None
