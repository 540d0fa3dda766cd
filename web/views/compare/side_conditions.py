"""Conditions that select the measurements of one side of a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from treehammer.errors import ConfigError
from treehammer.sql.read.measurement_selection import (
    Condition,
    intersect_conditions,
    parse_alternatives,
)
from treehammer.tables import Row


def side_conditions(row: Row, side: str) -> tuple[Condition, ...]:
    """Build the conditions on the measurements of a side, in any campaign.

    Empty if the side has no measurements, or if they were not recorded or use columns unknown to
    this version.

    Args:
        row: a verdict as :func:`treehammer.analysis.comparison.wording.verdict_text.flatten_verdict` returns it.
        side: ``a`` or ``b``.
    """
    values: Mapping[str, Any] = row[f"of_{side}"]
    if not values:
        return ()
    try:
        conditions = (*parse_alternatives(row["where"]), *parse_alternatives(row[f"where_{side}"]))
    except ConfigError:
        return ()
    return intersect_conditions(
        (*conditions, *(Condition(name, "=", value) for name, value in values.items()))
    )
