"""Columns and formats of the table of published results, for terminal, page and report."""

from __future__ import annotations

from treehammer.tables import Row, TableColumn, hidden_columns


def format_print(row: Row) -> str:
    """Format the published ratio, or the range of several."""
    low, high = row["published_low"], row["published_high"]
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


def format_interval(row: Row) -> str:
    """Format the interval of the measured ratio; 'exact' for one that repeats."""
    if row["low"] is None:
        return "–"
    return "exact" if row["low"] == row["high"] else f"{row['low']:.3g} to {row['high']:.3g}"


COLUMNS = (
    TableColumn("name", "published result"),
    TableColumn("published_low", "in print", format_row=format_print, is_number=True),
    TableColumn("measured", "here", "{:.3g}".format, is_number=True),
    TableColumn("low", "interval", format_row=format_interval, is_number=True),
    TableColumn("verdict", "verdict"),
    *hidden_columns(
        "title", "source", "exact", "published_high", "agrees_low", "agrees_high", "high"
    ),
    *hidden_columns("reason", "campaign"),
)
