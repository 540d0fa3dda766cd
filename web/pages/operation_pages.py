"""Pages of continuous operation: states with their alarms, the change of one, and the patrol.

Alarms lists states of the service, sites and releases, and the events that messages are sent about.
The page of a change has its reason, rule and evidence; that of the patrol its entries and starts, and
the budget of each site.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis.alarms import alarm_overview
from treehammer.analysis.status.site_status import SiteUses, list_uses
from treehammer.analysis.status.subject_state import AlarmKind, SubjectState
from treehammer.errors import NothingToDoError
from treehammer.sql.core.evidence import StateEvidence
from treehammer.sql.core.watch_rows import AlarmMessage, PatrolStartRow, StatusChangeRow
from treehammer.sql.watch import state_history
from treehammer.sql.watch.alarms import AlarmOutbox
from treehammer.sql.watch.patrol_report import (
    MAX_STARTS,
    EntryReport,
    PatrolReport,
    SiteReport,
    fetch_report,
)
from treehammer.sql.watch.state_history import CENTRAL, locate_subject, name_subject
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn, hidden_columns
from treehammer.text_formatting import format_duration, format_size
from treehammer.web.core.responses import require_text
from treehammer.web.display_formats import format_time
from treehammer.web.page_query import OneOf, PageOperation, PageQuery, PathText, Text
from treehammer.web.pages.common_tables import describe_state
from treehammer.web.pages.page_context import PageContext, PageModule, PageView, link_to

#: Keys of the evidence with identities -> words, and route and parameter of their page.
_IDENTITIES: Mapping[str, tuple[str, str, str]] = {
    "measurements": ("measurement", "measurement-page", "measurement_id"),
    "jobs": ("job", "job", "job_id"),
    "campaigns": ("campaign", "campaign", "campaign_id"),
    "sites": ("site", "site", "site"),
}
#: Events on the page.
MAX_EVENTS = 100


class AlarmQuery(PageQuery):
    """Parameters of the alarms."""

    kind: Annotated[str, OneOf((AlarmKind.SITE, AlarmKind.RELEASE, AlarmKind.SERVICE))] = Field(
        "", description="Only the subject of this kind and name."
    )
    name: Text = Field("", description="Name of the site or release.")


class StateChangeQuery(PageQuery):
    """Parameters of the page of a change."""

    change: PathText = Field(description="Identity.")


#: Content of the pages for programs.
OPERATIONS = (
    PageOperation(
        "/alarms",
        "listAlarms",
        "alarms",
        "States of the service, sites and releases for monitoring, and events",
        {
            "states": "states, worst first; figures only with kind and name",
            "events": "changed states and confirmed regressions, newest first",
        },
        AlarmQuery,
    ),
    PageOperation(
        "/state-changes/{change}",
        "getStateChange",
        "state-change",
        "A change of a site's state with its evidence",
        {"results": "results behind it", "tests": "runs by test"},
        StateChangeQuery,
        ("change", "facts"),
    ),
    PageOperation(
        "/patrol",
        "getPatrol",
        "patrol",
        "The patrol: entries, budgets of today, latest starts",
        {
            "entries": "entries of the patrol file with their last and next start",
            "budgets": "use and limits of sites today (UTC), and their back-off",
            "starts": "latest starts, newest first",
        },
        about=("leader",),
    ),
)


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the routes of the pages."""
    path = require_text("/state-changes/{change}")
    return [
        context.page_route("/alarms", alarms_view, "alarms"),
        context.page_route(path, state_change_view, "state-change"),
        context.page_route("/patrol", patrol_view, "patrol"),
    ]


PAGES = PageModule(
    routes, position=70, menu={"alarms": "Alarms", "patrol": "Patrol"}, operations=OPERATIONS
)


def state_change_view(store: Store, request: Request) -> PageView:
    """Collect the evidence of a change.

    Raises:
        NothingToDoError: there is no such change.
    """
    identity = StateChangeQuery.parse(request).change
    row = state_history.find_change(store, identity)
    if row is None:
        raise NothingToDoError(f"there is no change of a state {identity[:100]!r}")
    tests = _test_table(row.evidence)
    results = _result_table(row.evidence, request)
    values = {
        "change": describe_state(row),
        "site_address": ""
        if row.subject_kind == CENTRAL
        else link_to(request, "site", site=locate_subject(row.subject_kind, row.site)[0]),
        "facts": list(_list_facts(row)),
        "tests": tests,
        "results": results,
    }
    subject = name_subject(row)
    title = (
        f"{row.site}, {subject}: {row.state}"
        if row.subject_kind != CENTRAL
        else f"{subject}: {row.state}"
    )
    return PageView("state_change.html.j2", title, values, (results, tests))


def _list_facts(row: StatusChangeRow) -> Iterator[tuple[str, str]]:
    evidence = row.evidence
    yield "since", format_time(row.since_us)
    yield "before", row.previous
    yield "decided by", f"{row.cause}, version {row.rule_version}"
    yield "decided", format_time(row.decided_us)
    if row.superseded_us:
        yield "superseded", f"{format_time(row.superseded_us)}, by results that arrived late"
    counts: Mapping[str, Mapping[str, object] | None] = {
        "states by rule": evidence.rules,
        "counts": evidence.counts,
        "failures": evidence.failures,
    }
    for title, values in counts.items():
        if values:
            yield title, ", ".join(f"{name}: {value}" for name, value in values.items())
    for title, text in (("source", evidence.source), ("url", evidence.url)):
        if text:
            yield title, text
    if evidence.until_us:
        yield "until", format_time(evidence.until_us)


def _test_table(evidence: StateEvidence) -> DataTable:
    rows = [{"test": test, **counts} for test, counts in (evidence.tests or {}).items()]
    columns = (
        TableColumn("test", "test"),
        TableColumn("succeeded", "succeeded", is_number=True),
        TableColumn("failed", "failed", is_number=True),
    )
    return DataTable("tests", "Runs by test", columns, rows, "The rule counts no runs by test.")


def _result_table(evidence: StateEvidence, request: Request) -> DataTable:
    """Build the table of the results behind the change, each with its page."""
    rows = [
        {
            "kind": word,
            "identity": identity,
            "address": link_to(request, route, **{parameter: identity}),
        }
        for key, (word, route, parameter) in _IDENTITIES.items()
        for identity in getattr(evidence, key) or ()
    ]
    columns = (
        TableColumn("identity", "identity", link=lambda row: row["address"]),
        TableColumn("kind", "kind"),
        TableColumn("address", hidden=True),
    )
    return DataTable("results", "Results", columns, rows, "No results are named.")


def alarms_view(store: Store, request: Request) -> PageView:
    """Collect the states, worst first; with ``kind`` and ``name`` only one, with its figures.

    Raises:
        ConfigError: the kind is unknown.
        NothingToDoError: the subject is unknown.
    """
    query = AlarmQuery.parse(request)
    states = _select_states(store, query)
    root = request.scope.get("root_path", "")
    events = [] if query.kind else AlarmOutbox(store).list_events(MAX_EVENTS)
    tables = (_state_table(states, root), _event_table(events, root))
    return PageView("alarms.html.j2", "Alarms", {"states": tables[0], "events": tables[1]}, tables)


def _select_states(store: Store, query: AlarmQuery) -> list[SubjectState]:
    now_us = time.time_ns() // 1000
    if query.kind:
        return [alarm_overview.assess_subject(store, AlarmKind(query.kind), query.name, now_us)]
    return sorted(alarm_overview.assess_all(store, now_us), key=lambda state: -state.level.rank)


def _state_table(states: Sequence[SubjectState], root: str) -> DataTable:
    columns = (
        TableColumn("name", "subject", format_row=lambda row: row["title"], link=_link_below(root)),
        *hidden_columns("kind", "title"),
        TableColumn("state", "state", css_class=_state_class),
        TableColumn("code", hidden=True),
        TableColumn("summary", "reason", is_long=True),
        TableColumn("since_us", "since, UTC", format_time),
        TableColumn("rule", "rule"),
        *hidden_columns("evidence", "details", "figures"),
    )
    rows = [{**state.to_document(), "title": state.title} for state in states]
    return DataTable("states", "States", columns, rows)


def _event_table(events: Sequence[AlarmMessage], root: str) -> DataTable:
    columns = (
        TableColumn("title", "event", is_long=True, link=_link_below(root)),
        TableColumn("happened_us", "time, UTC", format_time),
        TableColumn("severity", "severity"),
        *hidden_columns("id", "kind", "subject_kind", "subject", "state", "text", "evidence"),
    )
    return DataTable(
        "events",
        f"Events, newest first, at most {MAX_EVENTS}",
        columns,
        [event.to_event_document() for event in events],
        empty_text="No events yet.",
    )


def _link_below(root: str) -> Any:
    def link(row: Row) -> str:
        path = str(row["evidence"] or "")
        # Link paths of this service only: no other scheme or host.
        return f"{root}{path}" if re.match(r"/[^/\\]", path) else ""

    return link


def _state_class(row: Row) -> str:
    return str(row["state"]).lower()


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
