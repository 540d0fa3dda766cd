"""Current states of sites and their changes, as tables and badges of several pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup
from starlette.requests import Request

from treehammer.analysis.status.failure_explanation import FailureExplanation
from treehammer.analysis.status.usability import use_by_state
from treehammer.sql.core.watch_rows import StatusChangeRow
from treehammer.sql.watch.state_history import CENTRAL, locate_subject, name_subject
from treehammer.tables import DataTable, Row, TableColumn, hidden_columns
from treehammer.web.display.template_environment import format_time
from treehammer.web.views.shared.page_context import link_to

_SUBJECT = (TableColumn("site", "site", hidden=True), TableColumn("of", "of"))
_DETAILS = hidden_columns("explanation", "rule_version", "decided_us", "id")


def index_by_site(states: Iterable[StatusChangeRow], kind: str) -> dict[str, StatusChangeRow]:
    """Index the states of one kind by site."""
    return {row.site: row for row in states if row.subject_kind == kind}


def describe_state(row: StatusChangeRow) -> dict[str, Any]:
    """Describe a change of a state as the row of a table."""
    return {
        "site": "" if row.subject_kind == CENTRAL else row.site,
        "of": f"{name_subject(row)} {locate_subject(row.subject_kind, row.site)[1]}".strip(),
        "state": row.state,
        "use": None if row.subject_kind == CENTRAL else use_by_state(row).usability.value,
        "previous": row.previous,
        "since_us": row.since_us,
        "cause": row.cause,
        "reason": row.reason,
        "explanation": str(FailureExplanation.from_change(row) or ""),
        "rule_version": row.rule_version,
        "decided_us": row.decided_us,
        "superseded_us": row.superseded_us,
        "id": row.id,
    }


def build_states_table(states: Sequence[StatusChangeRow], request: Request) -> DataTable:
    """Build the table of current states."""
    columns = (
        *_SUBJECT,
        TableColumn("state", "state", css_class=_state_class, link=_make_linker(request)),
        TableColumn("use", "use"),
        TableColumn("since_us", "since", format_time),
        TableColumn("cause", "by"),
        TableColumn("reason", "reason", is_long=True),
        *_DETAILS,
    )
    rows = [describe_state(row) for row in states]
    empty = "No state has been evaluated yet."
    return DataTable("states", "States", columns, rows, empty_text=empty)


def make_state_column(states: Mapping[str, StatusChangeRow], request: Request) -> TableColumn:
    """Make the column of the current state of each site, linked to its evidence."""

    def draw(row: Row) -> Markup:
        state = states.get(row["site"])
        badge = Markup('<span class="badge {}">{}</span>').format(
            *((state.state.replace(" ", "-"), state.state) if state else ("unknown", "unknown"))
        )
        if state is None:
            return badge
        reason = FailureExplanation.from_change(state) or state.reason
        title = f"since {format_time(state.since_us)}, by {state.cause}: {reason}"
        address = link_to(request, "state-change", change=state.id)
        return Markup('<a href="{}" title="{}">{}</a>').format(address, title, badge)

    return TableColumn("state", "state", css_class=lambda _: "state", draw=draw)


def build_history_table(changes: Sequence[StatusChangeRow], request: Request) -> DataTable:
    """Build the table of changes, the newest first."""
    newest = sorted(changes, key=lambda row: (row.since_us, row.decided_us), reverse=True)
    columns = (
        TableColumn("since_us", "since", format_time, link=_make_linker(request)),
        *_SUBJECT,
        TableColumn("previous", "from"),
        TableColumn("state", "to", css_class=_state_class),
        TableColumn("use", "use"),
        TableColumn("cause", "by"),
        TableColumn("reason", "reason", is_long=True, detail=_describe_correction),
        *_DETAILS,
        TableColumn("superseded_us", hidden=True),
    )
    rows = [describe_state(row) for row in newest]
    return DataTable("state_changes", "Changes of the state", columns, rows, max_rows=30)


def _state_class(row: Row) -> str:
    return "" if row.get("superseded_us") else str(row["state"])


def _describe_correction(row: Row) -> str:
    superseded_us = row["superseded_us"]
    return f"superseded {format_time(superseded_us)} by late results" if superseded_us else ""


def _make_linker(request: Request) -> Any:
    return lambda row: link_to(request, "state-change", change=row["id"])
