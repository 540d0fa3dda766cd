"""Columns that several pages have."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request

from treehammer.web.pages.context import link_to
from treehammer.web.pages.tables import Column
from treehammer.web.pages.variants import VARIANT, Variants


def variant_column(variants: Variants, key: str = VARIANT) -> Column:
    """One of some variants."""
    return Column(key, "variant", variants.name, long=True)


def number_columns(*names: str) -> tuple[Column, ...]:
    """Counts that are called as their keys are."""
    return tuple(Column(name, name, number=True) for name in names)


def job_column(request: Request, title: str) -> Column:
    """The job that ``job_id`` names, in short, as a link to its page."""
    return Column(
        "job_id",
        title,
        lambda id_: id_[:8],
        link=lambda row: link_to(request, "job", job_id=row["job_id"]),
    )


def tally(counts: Mapping[str, int]) -> str:
    """How often each verdict was given."""
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) or "–"
