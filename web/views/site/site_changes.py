"""State of a site's doors, middleware and releases, and its changes."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from treehammer.analysis.samples.sample import natural_sort_key
from treehammer.sql.read.site_history import ContextAspect, ContextHistory
from treehammer.tables import DataTable, Row, TableColumn
from treehammer.web.display import calendar_days

_NO_VERSIONS_NOTE = "No versions reported in this period."


def build_state_table(history: ContextHistory, *, earlier: bool) -> DataTable:
    """List the last known state of doors, middleware and releases, with its beginning.

    Args:
        history: states by day.
        earlier: the site measured before the first day, so that a state may be older.
    """
    rows = [_state_row(aspect, by_day, earlier=earlier) for aspect, by_day in history.items()]
    columns = (
        TableColumn("thing", "component"),
        TableColumn("what", "attribute"),
        TableColumn("value", "value", ", ".join, is_long=True),
        TableColumn("since", "unchanged since", format_row=_format_since),
        TableColumn("since_known", hidden=True),
        TableColumn("last", "last reported"),
    )
    return DataTable(
        "state", "Doors, middleware and releases", columns, rows, empty_text=_NO_VERSIONS_NOTE
    )


def _state_row(
    aspect: ContextAspect, by_day: Mapping[int, Collection[str]], *, earlier: bool
) -> dict[str, Any]:
    days = list(by_day)
    first, last = days[0], days[-1]
    *_, first_day = itertools.takewhile(lambda day: by_day[day] == by_day[last], reversed(days))
    return {
        "thing": aspect.component,
        "what": aspect.attribute,
        "value": sorted(by_day[last], key=natural_sort_key),
        "since": calendar_days.day_from_number(first_day).isoformat(),
        "since_known": not earlier or first_day != first,
        "last": calendar_days.day_from_number(last).isoformat(),
    }


def _format_since(row: Row) -> str:
    return str(row["since"]) if row["since_known"] else f"{row['since']} or before"


def list_changes(history: ContextHistory) -> list[dict[str, Any]]:
    """Return the changes between measured days, by day; changes of the same day share a mark."""
    changes = [
        {
            "day": calendar_days.day_from_number(after).isoformat(),
            "thing": aspect.component,
            "what": aspect.attribute,
            "before": sorted(by_day[before], key=natural_sort_key),
            "after": sorted(by_day[after], key=natural_sort_key),
        }
        for aspect, by_day in history.items()
        for before, after in itertools.pairwise(by_day)
        if by_day[before] != by_day[after]
    ]
    days = sorted({str(change["day"]) for change in changes})
    marks = {day: number for number, day in enumerate(days, 1)}
    rows = [{"mark": marks[str(change["day"])], **change} for change in changes]
    return sorted(rows, key=lambda row: row["mark"])


def build_change_table(rows: Sequence[Row]) -> DataTable:
    """Build the table of changes."""
    columns = (
        TableColumn("mark", "mark"),
        TableColumn("day", "day (UTC)"),
        TableColumn("thing", "component"),
        TableColumn("what", "attribute"),
        TableColumn("before", "before", ", ".join, is_long=True),
        TableColumn("after", "after", ", ".join, is_long=True),
    )
    return DataTable("changes", "Changes", columns, rows, empty_text="No changes in this period.")
