"""Table columns shared by several pages."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from treehammer.analysis.status.day_states import DayOutcomes
from treehammer.tables import TableColumn
from treehammer.web.display.variant_labels import VARIANT_COLUMN, VariantLabels
from treehammer.web.views.shared.page_context import link_to


def variant_column(variants: VariantLabels) -> TableColumn:
    """Build a column of variant labels."""
    return TableColumn(VARIANT_COLUMN, "variant", variants.label, is_long=True)


def count_columns(*names: str) -> tuple[TableColumn, ...]:
    """Build columns of counts whose titles are their keys."""
    return tuple(TableColumn(name, name, is_number=True) for name in names)


def outcome_columns() -> tuple[TableColumn, ...]:
    """Build columns of the counts of :func:`outcome_counts`."""
    return (
        *count_columns("good", "failed", "implausible"),
        TableColumn("not_supported", "not supported", is_number=True),
    )


def outcome_counts(outcomes: DayOutcomes) -> dict[str, Any]:
    """Return the number of measurements by outcome, as values of a row."""
    return {
        "good": outcomes.good,
        "failed": outcomes.failed,
        "implausible": outcomes.implausible,
        "not_supported": outcomes.unsupported,
    }


def job_column(request: Request, title: str) -> TableColumn:
    """Build a column of shortened job ids that link to the jobs' pages."""
    return TableColumn(
        "job_id",
        title,
        lambda id_: id_[:8],
        link=lambda row: link_to(request, "job", job_id=row["job_id"]),
    )
