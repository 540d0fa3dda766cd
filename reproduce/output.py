"""Columns and formats of the table of published results, for terminal, page and report."""

from __future__ import annotations

import math

from treehammer.tables import Row, TableColumn, hidden_columns
from treehammer.text_formatting import write_minus


def format_print(row: Row) -> str:
    """Format the published ratio, or the range of several."""
    low, high = row["published_low"], row["published_high"]
    return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"


def format_interval(row: Row) -> str:
    """Format the interval of the measured ratio; 'exact' for one that repeats."""
    if row["low"] is None:
        return "–"
    if row["low"] == row["high"]:
        return "exact"
    return f"{_format_measured(row, 'low')} to {_format_measured(row, 'high')}"


def format_here(row: Row) -> str:
    """Format the measured ratio, like the ends of its interval."""
    return "–" if row["measured"] is None else _format_measured(row, "measured")


def _format_measured(row: Row, name: str) -> str:
    """Format a measured number with the decimals of the ratio's third digit; exact ones without zeros."""
    if row["low"] == row["high"] or not row["measured"]:
        return f"{row[name]:.3g}"
    decimals = max(2 - math.floor(math.log10(abs(row["measured"]))), 0)
    return write_minus(f"{row[name]:,.{decimals}f}")


COLUMNS = (
    TableColumn("name", "published result"),
    TableColumn("published_low", "in print", format_row=format_print, is_number=True),
    TableColumn("measured", "here", format_row=format_here, is_number=True),
    TableColumn("low", "interval", format_row=format_interval, is_number=True),
    TableColumn("verdict", "verdict"),
    *hidden_columns(
        "title", "source", "exact", "published_high", "agrees_low", "agrees_high", "high"
    ),
    *hidden_columns("reason", "campaign"),
)
