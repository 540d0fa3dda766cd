"""Columns of instruction counts, as ``count`` and ``compare`` print them."""

from __future__ import annotations

from functools import partial

from treehammer.analysis.comparison.instruction_changes import format_change, format_count
from treehammer.tables import TableColumn

DIFFERENCE_COLUMN = TableColumn(
    "difference", "difference", partial(format_count, signed=True), is_number=True
)


def change_columns(a: str, b: str) -> tuple[TableColumn, ...]:
    """Return the columns of counts per event on both sides and their change."""
    return (
        TableColumn("a_per_event", a, format_count, is_number=True),
        TableColumn("b_per_event", b, format_count, is_number=True),
        DIFFERENCE_COLUMN,
        TableColumn("relative", "change", format_change, is_number=True),
    )
