"""Limits of pages that docs/pages.md states."""

from __future__ import annotations

from pathlib import Path

import pytest

from treehammer.sql.read import campaign_queries
from treehammer.tables import MAX_SHOWN_ROWS
from treehammer.web.figures import figure_layout, figure_points
from treehammer.web.pages import (
    campaign_tables,
    compare_query,
    comparison_list_page,
    load_levels,
    page_context,
    root_file_page,
    site_page,
    site_standing,
)

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "sentence",
    [
        f"The page's table shows {MAX_SHOWN_ROWS} groups.",
        f"the first {MAX_SHOWN_ROWS} are shown.",
        f"at most {figure_points.MAX_READ:,} of them and {figure_points.MAX_GROUPS:,} groups",
        f"| Explore without daily sums | {figure_points.MAX_READ:,} measurements |",
        f"at most {figure_layout.MAX_PLACES} positions, {figure_layout.MAX_SERIES} series or "
        f"{figure_layout.MAX_PANELS} panels ({figure_layout.MAX_TIMES} of days, weeks, months)",
        f"| campaign | messages of {campaign_queries.MAX_FAILURE_MESSAGES} failed measurements, "
        f"{campaign_tables.MAX_MESSAGES} kinds; "
        f"{campaign_tables.JOBS_PER_PAGE} jobs per page |",
        f"At most {load_levels.MAX_ROWS:,} rows",
        f"Over {load_levels.MAX_POINTS} steps are merged.",
        f"| load of a campaign | {load_levels.MAX_ROWS:,} rows of operations |",
        f"the newest {site_page.MAX_EXPLAINED} measurements in seven days",
        f"| Compare, new query | {compare_query.MAX_READ:,} measurements at once, "
        f"{comparison_list_page.MAX_BACKGROUND_READ:,} in the background |",
        f"| ROOT file | {root_file_page.MAX_MEASUREMENTS:,} measurements, "
        f"{root_file_page.EXPORT_TIMEOUT_S} s of ROOT |",
    ],
)
def test_limits_of_pages_are_documented(sentence: str) -> None:
    assert sentence in (ROOT / "docs/pages.md").read_text(encoding="utf-8")


def test_documented_counts_in_words() -> None:
    text = (ROOT / "docs/pages.md").read_text(encoding="utf-8")
    assert (page_context.MAX_CONCURRENT_QUERIES, page_context.MAX_DRAWING_PROCESSES) == (6, 2)
    assert site_standing.MAX_BETTER_SITES == 10
    assert "Six queries, two figure files and one ROOT file" in text
    assert "more than half of the ten best sites" in text
