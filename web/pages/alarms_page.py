"""States of the service, sites and releases, and the events that messages are sent about."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.analysis.alarms import alarm_overview
from treehammer.analysis.status.subject_state import AlarmKind, SubjectState
from treehammer.errors import ConfigError
from treehammer.sql.core.watch_rows import AlarmMessage
from treehammer.sql.watch.alarms import AlarmOutbox
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn, hidden_columns
from treehammer.web.display_formats import format_time
from treehammer.web.pages.page_context import PageContext, PageView

#: Events on the page.
MAX_EVENTS = 100


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the route of the page."""
    return [context.page_route("/alarms", alarms_view, "alarms")]


def alarms_view(store: Store, request: Request) -> PageView:
    """Collect the states, worst first; with ``kind`` and ``name`` only one, with its figures.

    Raises:
        ConfigError: the kind is unknown.
        NothingToDoError: the subject is unknown.
    """
    states = _select_states(store, request)
    root = request.scope.get("root_path", "")
    events = [] if "kind" in request.query_params else AlarmOutbox(store).list_events(MAX_EVENTS)
    tables = (_state_table(states, root), _event_table(events, root))
    return PageView("alarms.html.j2", "Alarms", {"states": tables[0], "events": tables[1]}, tables)


def _select_states(store: Store, request: Request) -> list[SubjectState]:
    now_us = time.time_ns() // 1000
    kind = request.query_params.get("kind")
    if kind is not None:
        allowed = (AlarmKind.SITE, AlarmKind.RELEASE, AlarmKind.SERVICE)
        if kind not in allowed:
            raise ConfigError(f"kind must be one of {', '.join(allowed)}, not {kind[:40]!r}")
        name = request.query_params.get("name", "")
        return [alarm_overview.assess_subject(store, AlarmKind(kind), name, now_us)]
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
