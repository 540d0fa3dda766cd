"""Defaults and status column shared by the pages of sites."""

from __future__ import annotations

from treehammer.tables import Row

#: Numbers of days to choose from, and the default.
WINDOW_CHOICES, DEFAULT_WINDOW_DAYS = (14, 30, 90, 180), 30
#: The default metric, and the one in the list of sites.
DEFAULT_METRIC = "eff_job"


def status_class(row: Row) -> str:
    """Return the CSS class of a row's status."""
    return str(row["status"]).replace(" ", "-")
