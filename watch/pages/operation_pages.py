"""Pages of continuous operation: states with their alarms, the change of one, and the patrol.

Alarms lists states of the service, sites and releases, and events.
The page of a change has its reason, rule and evidence; that of the patrol its entries and starts, and
the budget of each site.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import Field

from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.record.outcome import Outcome, classify_outcome
from treehammer.errors import NothingToDoError
from treehammer.sql.core.evidence import StateEvidence
from treehammer.sql.core.subjects import CENTRAL, locate_subject
from treehammer.sql.core.watch_rows import StatusChangeRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn, build_table, hidden_columns
from treehammer.text_formatting import format_duration, format_size
from treehammer.watch.alarms import alarm_overview
from treehammer.watch.alarms.subject_state import AlarmKind
from treehammer.watch.pages.watch_tables import describe_state
from treehammer.watch.states.site_status import list_uses
from treehammer.watch.store import state_history
from treehammer.watch.store.alarms import EventTable
from treehammer.watch.store.patrol_report import MAX_STARTS, PatrolReport, load_report
from treehammer.watch.store.state_history import name_subject
from treehammer.web import sections as ui
from treehammer.web.addresses import CURRENT_REQUEST, link_rows, link_to
from treehammer.web.columns import OUTCOME_COLUMNS, column, columns, hidden
from treehammer.web.display_formats import format_time
from treehammer.web.page import PageContent, PageOperation, PageRequest, page
from treehammer.web.page_query import OneOf, PageQuery, PathText, Text
from treehammer.web.pages.common_tables import count_messages

#: Keys of the evidence with identities -> words, and route and parameter of their page.
_IDENTITIES: Mapping[str, tuple[str, str, str]] = {
    "measurements": ("measurement", "measurement-page", "measurement_id"),
    "jobs": ("job", "job", "job_id"),
    "campaigns": ("campaign", "campaign", "campaign_id"),
    "sites": ("site", "site", "site"),
}
#: Columns that name a measurement, and those of its outcome.
_RESULT_COLUMNS = ("measurement_id", "variant_label", "kind", "started_us", *OUTCOME_COLUMNS)
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


@page(
    "/alarms",
    "alarms",
    AlarmQuery,
    menu="Alarms",
    position=70,
    help="site-status",
    api=PageOperation(
        "listAlarms",
        "States of the service, sites and releases for monitoring, and events",
        {
            "states": "states, worst first; figures only with kind and name",
            "events": "changed states and confirmed regressions, newest first",
        },
    ),
)
def alarm_page(request: PageRequest[AlarmQuery]) -> PageContent:
    """List the states, worst first; with ``kind`` and ``name`` only one, with its figures."""
    query, now_us = request.query, current_us()
    if query.kind:
        kind = AlarmKind(query.kind)
        states = [alarm_overview.assess_subject(request.store, kind, query.name, now_us)]
    else:
        states = alarm_overview.assess_all(request.store, now_us)
        states = sorted(states, key=lambda state: -state.level.rank)
    rows = [{**state.to_document(), "title": state.title} for state in states]
    table_columns = (
        column("name", "subject", format_row=lambda row: row["title"], link=_link_to_evidence),
        *hidden_columns("kind", "title"),
        column("state"),
        hidden("code"),
        column("summary", "reason", is_long=True),
        column("since_us", "since, UTC"),
        column("rule"),
        *hidden_columns("evidence", "details", "figures"),
    )
    note = ui.quiet(
        "The same states as of ",
        ui.Code("treehammer check"),
        ", ",
        ui.Link("/metrics", link_to("metrics")),
        ". During a downtime nobody is alarmed.",
    )
    events = ui.Titled("Events", _build_event_table(request))
    return PageContent("Alarms", (DataTable("states", "States", table_columns, rows), note, events))


def _build_event_table(request: PageRequest[AlarmQuery]) -> DataTable:
    events = [] if request.query.kind else EventTable(request.store).list_events(MAX_EVENTS)
    table_columns = (
        column("title", "event", is_long=True, link=_link_to_evidence),
        column("happened_us", "time, UTC", format_value=format_time),
        column("severity"),
        *hidden_columns("id", "kind", "subject_kind", "subject", "state", "text", "evidence"),
    )
    return DataTable(
        "events",
        f"Events, newest first, at most {MAX_EVENTS}",
        table_columns,
        [event.to_event_document() for event in events],
        empty_text="No events yet.",
    )


def _link_to_evidence(row: Row) -> str:
    path = str(row["evidence"] or "")
    # Link paths of this service only: no other scheme or host.
    root = CURRENT_REQUEST.get().scope.get("root_path", "")
    return f"{root}{path}" if re.match(r"/[^/\\]", path) else ""


@page(
    "/state-changes/{change:some}",
    "state-change",
    StateChangeQuery,
    position=71,
    help="site-status",
    api=PageOperation(
        "getStateChange",
        "A change of a site's state with its evidence",
        {"results": "results behind it", "tests": "runs by test"},
        ("change", "facts"),
    ),
)
def state_change_page(request: PageRequest[StateChangeQuery]) -> PageContent:
    """Show the reason, rule and evidence of a change; an unknown one is refused."""
    identity = request.query.change
    row = state_history.find_change(request.store, identity)
    if row is None:
        raise NothingToDoError(f"there is no change of a state {identity[:100]!r}")
    change, facts = describe_state(row), list(_list_facts(row))
    failed = campaign_queries.load_measurements(
        request.store, row.evidence.measurements or (), _RESULT_COLUMNS
    )
    table_columns = (column("test"), column("succeeded", is_number=True), column("failed"))
    rows = [{"test": test, **counts} for test, counts in (row.evidence.tests or {}).items()]
    tests = DataTable(
        "tests", "Runs by test", table_columns, rows, "The rule counts no runs by test."
    )
    results = _build_result_table(row.evidence, _name_results(request.store, row.evidence, failed))
    bad = [values for values in failed if classify_outcome(values) is not Outcome.GOOD]
    title, above = f"{name_subject(row)}: {row.state}", ui.Link("Sites", link_to("sites"))
    if row.subject_kind != CENTRAL:
        site = locate_subject(row.subject_kind, row.site)[0]
        title, above = f"{row.site}, {title}", ui.Link(row.site, link_to("site", site=site))
    sections = (
        ui.headline(change["explanation"]),
        ui.headline(ui.Badge(row.state), f" since {format_time(row.since_us)}: {row.reason}"),
        ui.Facts(facts),
        ui.Titled("Runs by test", tests, anchor="tests"),
        ui.Titled(
            "Results",
            count_messages(bad) if bad else None,
            results,
            ui.quiet(
                "At most 20 of each kind, the newest first; those that are not good if there are any."
            ),
            anchor="results",
        ),
    )
    about = {"change": change, "facts": dict(facts)}
    return PageContent(title, sections, (results, tests), about, [above])


def _list_facts(row: StatusChangeRow) -> Iterator[tuple[str, str]]:
    evidence = row.evidence
    yield "since", format_time(row.since_us)
    yield "before", row.previous
    yield "decided by", f"{row.cause}, version {row.rule_version}"
    yield "decided", format_time(row.decided_us)
    if row.superseded_us:
        yield "superseded", f"{format_time(row.superseded_us)}, as results or downtimes changed"
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


def _name_results(
    store: Store, evidence: StateEvidence, measurements: Sequence[Row]
) -> dict[str, str]:
    """Map identities of results to names for readers."""
    names = {
        row["measurement_id"]: ", ".join(
            (row["variant_label"] or row["kind"], format_time(row["started_us"]))
        )
        for row in measurements
    }
    names |= campaign_queries.name_jobs(store, evidence.jobs or ())
    return names | campaign_queries.load_distinct_names(store, evidence.campaigns or ())


def _build_result_table(evidence: StateEvidence, names: Mapping[str, str]) -> DataTable:
    rows = [
        {
            "name": names.get(identity) or identity,
            "kind": word,
            "identity": identity,
            "address": link_to(route, **{parameter: identity}),
        }
        for key, (word, route, parameter) in _IDENTITIES.items()
        for identity in getattr(evidence, key) or ()
    ]
    table_columns = (
        column("name", "result", link=lambda row: row["address"]),
        column("kind"),
        *hidden_columns("identity", "address"),
    )
    return DataTable("results", "Results", table_columns, rows, "No results are named.")


@page(
    "/patrol",
    "patrol",
    menu="Patrol",
    position=72,
    help="patrol",
    api=PageOperation(
        "getPatrol",
        "The patrol: entries, budgets of today, latest starts",
        {
            "entries": "entries of the patrol file with their last and next start",
            "budgets": "use and limits of sites today (UTC), and their back-off",
            "starts": "latest starts, newest first",
        },
        ("leader",),
    ),
)
def patrol_page(request: PageRequest[PageQuery]) -> PageContent:
    """Show leader, entries, budgets and the latest starts."""
    report = load_report(request.store)
    entries, budgets = _build_entry_table(report), _build_budget_table(request.store, report)
    starts = _build_start_table(report)
    leader = report.lease.holder if report.lease and report.has_leader else ""
    state = ui.Paragraph(f"Led by {leader}.")
    if not leader:
        state = ui.Paragraph(ui.Strong("No patrol is running."), " Nothing starts until one does.")
    note = ui.quiet(
        "Used is measured for campaigns that have ended, and reserved for those in flight. A site that "
        "is not usable by its state gets no campaigns; where its use is “probe only”, single jobs find "
        "out whether it has recovered."
    )
    start = (
        ui.Paragraph("No patrol has run on this database. Start one:"),
        ui.Command("treehammer patrol run patrol.toml"),
    )
    sections = start if report.lease is None else (state, entries, budgets, note, starts)
    return PageContent("Patrol", sections, (entries, budgets, starts), {"leader": leader})


_duration_column = partial(TableColumn, format_value=format_duration, is_number=True)
_size_column = partial(TableColumn, format_value=format_size, is_number=True)


def _build_entry_table(report: PatrolReport) -> DataTable:
    def last(name: str) -> Callable[[Any], Any]:
        return lambda item: getattr(item.last, name) if item.last else None

    return build_table(
        "entries",
        "Entries",
        (
            column("entry", value="entry.name"),
            column("test", value="entry.test", is_long=True),
            column("follows", value=lambda item: item.entry.follows or "time"),
            TableColumn("sites", "sites", value="entry.sites", is_long=True),
            _duration_column("every_s", "every", value="entry.every_s"),
            column(
                "last_start_us",
                "last start, UTC",
                value=last("claimed_us"),
                format_value=format_time,
                link=link_rows("campaign", campaign_id="campaign_id"),
                detail=lambda row: str(row["occasion"] or "").partition(":")[0],
            ),
            hidden("occasion", value=last("occasion")),
            hidden("campaign_id", value=last("campaign_id")),
            column(
                "next_start_us", "next start, UTC", value="entry.next_us", format_value=format_time
            ),
            column(
                "in_flight",
                "campaigns in flight",
                value=lambda item: len(item.open_campaigns),
                is_number=True,
            ),
            column("in_flight_limit", "at most", value="entry.in_flight", is_number=True),
            column("result", "last result"),
            column("remark", value="entry.note"),
        ),
        report.entries,
        empty_text="No entries.",
    )


def _build_budget_table(store: Store, report: PatrolReport) -> DataTable:
    uses = list_uses(store)
    return build_table(
        "budgets",
        "Budgets of today (UTC)",
        (
            column("site", value="site.site"),
            _duration_column(
                "cpu_used_s",
                "CPU used",
                value="use.cpu_s",
                bar=lambda row: _share(row["cpu_used_s"], row["cpu_limit_s"]),
            ),
            _duration_column("cpu_left_s", "CPU left"),
            hidden("cpu_limit_s", value="site.cpu_limit_s"),
            _size_column(
                "bytes_used",
                "read",
                value="use.bytes",
                bar=lambda row: _share(row["bytes_used"], row["bytes_limit"]),
            ),
            _size_column("bytes_left", "left to read"),
            hidden("bytes_limit", value="site.bytes_limit"),
            column("use", value=lambda item: uses.summarize(item.site.site).value),
            column("reason", value=lambda item: uses.describe_restrictions(item.site.site)),
        ),
        report.sites,
        empty_text="No sites.",
    )


def _build_start_table(report: PatrolReport) -> DataTable:
    link = link_rows("campaign", campaign_id="campaign_id")
    table_columns = (
        TableColumn("start_us", "start, UTC", format_time, link=link, value="claimed_us"),
        *columns("entry", "occasion"),
        hidden("campaign_id"),
        TableColumn("state", "state"),
        TableColumn("end_us", "end, UTC", format_time, value="finished_us"),
        column("message", "remark"),
    )
    caption = f"Starts, newest first, at most {MAX_STARTS}"
    return build_table("starts", caption, table_columns, report.starts, empty_text="No starts yet.")


def _share(used: float, limit: float | None) -> float | None:
    return min(1.0, used / limit) if limit else None
