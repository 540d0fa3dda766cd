"""Columns that several pages have."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request

from treehammer.web.display.data_tables import TableColumn
from treehammer.web.display.variant_labels import VARIANT_COLUMN, VariantLabels
from treehammer.web.views.shared.page_context import link_to


def variant_column(variants: VariantLabels, key: str = VARIANT_COLUMN) -> TableColumn:
    """One of some variants."""
    return TableColumn(key, "variant", variants.label, is_long=True)


def count_columns(*names: str) -> tuple[TableColumn, ...]:
    """Counts that are called as their keys are."""
    return tuple(TableColumn(name, name, is_number=True) for name in names)


def job_column(request: Request, title: str) -> TableColumn:
    """The job that ``job_id`` names, in short, as a link to its page."""
    return TableColumn(
        "job_id",
        title,
        lambda id_: id_[:8],
        link=lambda row: link_to(request, "job", job_id=row["job_id"]),
    )


def format_counts(counts: Mapping[str, int]) -> str:
    """How often each verdict was given."""
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "–"
