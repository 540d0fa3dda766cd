"""Defaults and status column shared by the pages of sites."""

from __future__ import annotations

from treehammer.web.display.data_tables import Row

#: Days that may be shown, and those that are when nothing is said.
WINDOW_CHOICES, DEFAULT_WINDOW_DAYS = (14, 30, 90, 180), 30
#: The metric that is shown when nothing is said, and that of the list.
DEFAULT_METRIC = "eff_job"


def status_class(row: Row) -> str:
    """The class of the style sheet for a row's status."""
    return str(row["status"]).replace(" ", "-")
