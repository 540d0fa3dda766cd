"""Columns that describe stored comparisons in lists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.requests import Request

from treehammer.analysis.comparison.wording import verdict_text
from treehammer.analysis.statistics.verdict import SERIES_SCOPES, SITES_SCOPE, VerdictEvidence
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.write.store import Store
from treehammer.tables import TableColumn
from treehammer.web.views.shared.page_context import link_to

#: Fields that distinguish comparisons of the same two values.
SELECTION_FIELDS = ("selection", "campaigns", "where", "where_a", "where_b", "among", "delta")


def load_campaign_names(store: Store, rows: Iterable[VerdictRow]) -> dict[str, str]:
    """Load names of the campaigns that comparisons select or compare, by id; one row per comparison."""
    ids: set[str] = set()
    for row in rows:
        ids.update(VerdictEvidence.from_json(row.evidence).campaigns or ())
        ids.update((row.a, row.b) if row.axis == "campaign" else ())
    return campaign_queries.fetch_distinct_names(store, ids)


def split_by_scope(
    counts: Mapping[str, Mapping[str, int]],
) -> tuple[dict[str, int], dict[str, int]]:
    """Split counts of verdicts by scope into those of series and those over sites."""
    series: Counter[str] = Counter()
    for scope in SERIES_SCOPES:
        series.update(counts.get(scope, {}))
    return dict(series.most_common()), dict(counts.get(SITES_SCOPE, {}))


def describe_comparison(row: VerdictRow, names: Mapping[str, str]) -> dict[str, Any]:
    """Describe the comparison of a row as text and as data."""
    evidence = VerdictEvidence.from_json(row.evidence)
    fields = {name: getattr(evidence, name) for name in SELECTION_FIELDS[1:]}
    return {
        "compared": verdict_text.comparison_title(row, names),
        "comparison_id": row.comparison_id,
        "axis": row.axis,
        "a": row.a,
        "b": row.b,
        "selection": verdict_text.describe_selection(evidence, names),
        **fields,
        "judged_us": row.created_us,
    }


def comparison_columns(request: Request) -> tuple[TableColumn, ...]:
    """Build the columns of :func:`describe_comparison`: text for readers, hidden data for files."""
    return (
        TableColumn(
            "compared",
            "compared",
            is_long=True,
            link=lambda row: link_to(request, "comparison", comparison=row["comparison_id"]),
        ),
        *(
            TableColumn(name, hidden=True)
            for name in ("comparison_id", "axis", "a", "b", *SELECTION_FIELDS)
        ),
    )
