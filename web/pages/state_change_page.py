"""Page of one change of a site's state: its reason, rule and evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.errors import NothingToDoError
from treehammer.sql.core.watch_rows import StatusChangeRow
from treehammer.sql.watch import state_history
from treehammer.sql.watch.state_history import CENTRAL, locate_subject, name_subject
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, TableColumn
from treehammer.web.core.request_checks import require_text
from treehammer.web.display_formats import format_time
from treehammer.web.pages.common_tables import describe_state
from treehammer.web.pages.page_context import PageContext, PageView, link_to

#: Keys of the evidence with identities -> words, and route and parameter of their page.
_IDENTITIES: Mapping[str, tuple[str, str, str]] = {
    "measurements": ("measurement", "measurement-page", "measurement_id"),
    "jobs": ("job", "job", "job_id"),
    "campaigns": ("campaign", "campaign", "campaign_id"),
    "sites": ("site", "site", "site"),
}


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the route of the page."""
    path = require_text("/state-changes/{change}")
    return [context.page_route(path, state_change_view, "state-change")]


def state_change_view(store: Store, request: Request) -> PageView:
    """Collect the evidence of a change.

    Raises:
        NothingToDoError: there is no such change.
    """
    identity = str(request.path_params["change"])
    row = state_history.find_change(store, identity)
    if row is None:
        raise NothingToDoError(f"there is no change of a state {identity[:100]!r}")
    evidence = row.load_evidence()
    tests = _test_table(evidence)
    results = _result_table(evidence, request)
    values = {
        "change": describe_state(row),
        "site_address": ""
        if row.subject_kind == CENTRAL
        else link_to(request, "site", site=locate_subject(row.subject_kind, row.site)[0]),
        "facts": list(_list_facts(row, evidence)),
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


def _list_facts(row: StatusChangeRow, evidence: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "since", format_time(row.since_us)
    yield "before", row.previous
    yield "decided by", f"{row.cause}, version {row.rule_version}"
    yield "decided", format_time(row.decided_us)
    if row.superseded_us:
        yield "superseded", f"{format_time(row.superseded_us)}, by results that arrived late"
    for key, title in (("rules", "states by rule"), ("counts", "counts"), ("failures", "failures")):
        if counts := evidence.get(key):
            yield title, ", ".join(f"{name}: {value}" for name, value in counts.items())
    for key in ("source", "url"):
        if value := evidence.get(key):
            yield key, str(value)
    if until_us := evidence.get("until_us"):
        yield "until", format_time(until_us)


def _test_table(evidence: Mapping[str, Any]) -> DataTable:
    rows = [{"test": test, **counts} for test, counts in evidence.get("tests", {}).items()]
    columns = (
        TableColumn("test", "test"),
        TableColumn("succeeded", "succeeded", is_number=True),
        TableColumn("failed", "failed", is_number=True),
    )
    return DataTable("tests", "Runs by test", columns, rows, "The rule counts no runs by test.")


def _result_table(evidence: Mapping[str, Any], request: Request) -> DataTable:
    """Build the table of the results behind the change, each with its page."""
    rows = [
        {
            "kind": word,
            "identity": identity,
            "address": link_to(request, route, **{parameter: identity}),
        }
        for key, (word, route, parameter) in _IDENTITIES.items()
        for identity in evidence.get(key, ())
    ]
    columns = (
        TableColumn("identity", "identity", link=lambda row: row["address"]),
        TableColumn("kind", "kind"),
        TableColumn("address", hidden=True),
    )
    return DataTable("results", "Results", columns, rows, "No results are named.")
