"""Table of change points."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from starlette.requests import Request

from treehammer.analysis.changes import change_text
from treehammer.analysis.changes.change_terms import WINDOW_DAYS
from treehammer.sql.core.watch_rows import ChangePointRow
from treehammer.sql.watch.change_points import fetch_change_points
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn, hidden_columns
from treehammer.web.display import calendar_days
from treehammer.web.views.shared.page_context import link_to


def build_change_point_table(changes: Sequence[ChangePointRow], request: Request) -> DataTable:
    """Build the table of changes; each leads to its evidence."""
    rows = [change_text.make_change_record(change) for change in changes]
    columns = (
        TableColumn(
            "since", "since", link=lambda row: link_to(request, "change", change=row["id"])
        ),
        TableColumn("points_at", "points at", is_long=True),
        TableColumn("quantity", "quantity", is_long=True),
        TableColumn("test", "test", is_long=True),
        TableColumn("change", "change", is_number=True, css_class=_color),
        TableColumn("interval", "95 % interval", is_number=True),
        TableColumn("state", "state"),
        TableColumn("cause", "changed on that day", is_long=True),
        *hidden_columns("id", "attribution", "subject", "metric", "kind", "control", "effect"),
        *hidden_columns("low", "high"),
    )
    return DataTable(
        "changepoints",
        "Changes over time",
        columns,
        rows,
        empty_text="No changes found in this period.",
    )


def _color(row: Row) -> str:
    return "worse-2" if row["effect"] > 0 else "better-2"


def list_recent_changes(store: Store, site: str = "", release: str = "") -> list[ChangePointRow]:
    """List the changes of the last 90 days, slower ones first, newest first."""
    first = calendar_days.today() - timedelta(days=WINDOW_DAYS)
    changes = fetch_change_points(store, calendar_days.day_number(first))
    chosen = change_text.select_changes(changes, site, release)
    return sorted(chosen, key=lambda change: (not change_text.is_regression(change), -change.day))
