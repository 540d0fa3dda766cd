"""Tables of states and of changes over time, shared by pages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from treehammer.sql.core.subjects import CENTRAL, locate_subject
from treehammer.sql.core.watch_rows import ChangePointRow, ReleaseCheck, StatusChangeRow
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, TableColumn, hidden_columns
from treehammer.watch.alarms.alarm_overview import list_decisive
from treehammer.watch.changes import WINDOW_DAYS, change_points
from treehammer.watch.states.site_status import use_by_state
from treehammer.watch.store.alarms import load_change_points
from treehammer.watch.store.state_history import name_subject
from treehammer.web.addresses import link_rows, link_to
from treehammer.web.columns import column, columns
from treehammer.web.display_formats import day_number, format_time, today

_SUBJECT = (TableColumn("site", "site", hidden=True), TableColumn("of", "of"))
_DETAILS = hidden_columns("explanation", "rule_version", "decided_us", "id")


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
        "explanation": str(row.evidence.explanation or ""),
        "rule_version": row.rule_version,
        "decided_us": row.decided_us,
        "superseded_us": row.superseded_us,
        "id": row.id,
    }


def build_states_table(states: Sequence[StatusChangeRow]) -> DataTable:
    """Build the table of current states."""
    table_columns = (
        *_SUBJECT,
        column("state", link=link_rows("state-change", change="id")),
        *columns("use", "since_us", "cause", "reason"),
        *_DETAILS,
    )
    rows = [describe_state(row) for row in states]
    empty = "No state has been evaluated yet."
    return DataTable("states", "States", table_columns, rows, empty_text=empty)


def link_check(check: ReleaseCheck) -> str:
    """Link the comparison of a check, or the release where there is none."""
    if check.comparison_id:
        return link_to("comparison", comparison=check.comparison_id)
    return link_to("release", release=check.b)


def build_check_table(checks: Sequence[ReleaseCheck]) -> DataTable:
    """Build the table of a release's checks: those that decide of each test and base, or the newest."""
    by_test: dict[tuple[str, str], list[ReleaseCheck]] = {}
    for check in checks:
        by_test.setdefault((check.test_name, check.a), []).append(check)
    rows = [
        {
            "test": check.test_name,
            "against": check.a,
            "check": check.state,
            "result": check.text.partition("\n")[0],
            "checked_us": check.checked_us,
            "comparison_id": check.comparison_id,
        }
        for same_checks in by_test.values()
        for check in list_decisive(same_checks) or same_checks[:1]
    ]
    table_columns = (
        column("test"),
        column("against", link=link_rows("comparison", comparison="comparison_id")),
        column("check"),
        column("result", is_long=True),
        column("checked_us", "checked", format_value=format_time),
        *hidden_columns("comparison_id"),
    )
    return DataTable("checks", "Checks", table_columns, rows, empty_text="")


def build_history_table(changes: Sequence[StatusChangeRow]) -> DataTable:
    """Build the table of changes, the newest first."""
    newest = sorted(changes, key=lambda row: (row.since_us, row.decided_us), reverse=True)
    table_columns = (
        column("since_us", link=link_rows("state-change", change="id")),
        *_SUBJECT,
        column("previous", "from"),
        column("state", "to"),
        *columns("use", "cause"),
        column(
            "reason",
            detail=lambda row: (
                f"superseded {format_time(row['superseded_us'])}, as results or downtimes changed"
                if row["superseded_us"]
                else ""
            ),
        ),
        *_DETAILS,
        *hidden_columns("superseded_us"),
    )
    rows = [describe_state(row) for row in newest]
    return DataTable("state_changes", "Changes of the state", table_columns, rows, max_rows=30)


def build_change_point_table(changes: Sequence[ChangePointRow]) -> DataTable:
    """Build the table of changes; each leads to its evidence."""
    table_columns = (
        column(
            "since",
            link=link_rows("change", change="id"),
            detail=lambda row: f"steadily until {row['until']}" if row["until"] else "",
        ),
        *hidden_columns("until"),
        *(column(name, is_long=True) for name in ("points_at", "quantity", "test")),
        column(
            "change",
            is_number=True,
            css_class=lambda row: "worse-2" if row["effect"] > 0 else "better-2",
        ),
        column("interval", "95 % interval", is_number=True),
        TableColumn("state", "state"),
        column("cause", "changed on that day", is_long=True),
        *hidden_columns("id", "attribution", "subject", "metric", "kind", "control", "effect"),
        *hidden_columns("low", "high"),
    )
    return DataTable(
        "changepoints",
        "Changes over time",
        table_columns,
        [change_points.make_change_record(change) for change in changes],
        empty_text="No changes found in this period.",
    )


def list_recent_changes(store: Store, site: str = "", release: str = "") -> list[ChangePointRow]:
    """List the changes of the last 90 days, slower ones first, newest first."""
    first = today() - timedelta(days=WINDOW_DAYS)
    changes = load_change_points(store, day_number(first))
    changes = change_points.select_changes(changes, site, release)
    return sorted(
        changes, key=lambda change: (not change_points.is_regression(change), -change.day)
    )
