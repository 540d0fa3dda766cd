"""Columns of instruction counts, as ``count`` and ``compare`` print them."""

from __future__ import annotations

from functools import partial

from treehammer.analysis.comparison.instruction_changes import format_change, format_count
from treehammer.terminal import OutputColumn

DIFFERENCE_COLUMN = OutputColumn(
    "difference", "difference", partial(format_count, signed=True), True
)


def change_columns(a: str, b: str) -> tuple[OutputColumn, ...]:
    """Return the columns of counts per event on both sides and their change."""
    return (
        OutputColumn("a_per_event", a, format_count, True),
        OutputColumn("b_per_event", b, format_count, True),
        DIFFERENCE_COLUMN,
        OutputColumn("relative", "change", format_change, True),
    )
