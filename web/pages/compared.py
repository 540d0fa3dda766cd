"""Stored comparisons in lists: what was compared, of which measurements, when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.requests import Request

from treehammer.analysis import wording
from treehammer.analysis.verdict import Evidence
from treehammer.sql import campaigns
from treehammer.sql.rows import VerdictRow
from treehammer.sql.store import Store
from treehammer.web.pages.context import link_to
from treehammer.web.pages.tables import Column

#: What tells a comparison from others between the same two values, as data.
SELECTED = ("selection", "campaigns", "where", "where_a", "where_b", "delta")


def campaign_names(store: Store, rows: Iterable[VerdictRow]) -> dict[str, str]:
    """Names of the campaigns that comparisons are of or between, by identity; each row stands for one."""
    ids: set[str] = set()
    for row in rows:
        ids.update(Evidence.from_json(row.evidence).campaigns or ())
        ids.update((row.a, row.b) if row.axis == "campaign" else ())
    return campaigns.names_apart(store, ids)


def described(row: VerdictRow, names: Mapping[str, str]) -> dict[str, Any]:
    """What the row's comparison is, in words and as data."""
    evidence = Evidence.from_json(row.evidence)
    told = {name: getattr(evidence, name) for name in SELECTED[1:]}
    return {
        "compared": wording.title(row, names),
        "comparison_id": row.comparison_id,
        "axis": row.axis,
        "a": row.a,
        "b": row.b,
        "selection": wording.selection(evidence, names),
        **told,
        "judged_us": row.created_us,
    }


def columns(request: Request) -> tuple[Column, ...]:
    """The columns of :func:`described` but the time: in words for people, as data for programs."""
    return (
        Column(
            "compared",
            "compared",
            long=True,
            link=lambda row: link_to(request, "comparison", comparison=row["comparison_id"]),
        ),
        *(Column(name, hidden=True) for name in ("comparison_id", "axis", "a", "b", *SELECTED)),
    )
