"""Comparisons in a real browser."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from browser import LOOKS, WatchedTab
from page_database import HOSTILE_TEXTS

Visit = Callable[..., WatchedTab]


@pytest.mark.parametrize("size, scheme", LOOKS)
def test_comparison_page(full_service: str, open_tab: Visit, size: str, scheme: str) -> None:
    tab = open_tab(full_service, size=size, scheme=scheme)
    assert tab.open("/compare/comparison") == 200
    assert tab.page.locator("tbody th", has_text=HOSTILE_TEXTS[2]).count() == 9
    for table in tab.page.locator("table.effects").all():
        heads, cells = (
            [round(one.bounding_box()["x"]) for one in table.locator(cell).all()]  # type: ignore[index]
            for cell in ("thead th", "tbody tr:first-child > *")
        )
        assert heads == cells
    tab.check_page()


def test_overview_links_to_comparison_and_csv(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service, script=False)
    tab.open("/")
    tab.page.get_by_role("link", name="ROOT 6.40.00 against 6.38.00").first.click()
    tab.page.wait_for_url("**/compare/comparison")
    assert tab.page.get_by_text("not enough data").count() == 0
    with tab.page.expect_download() as download:
        tab.page.get_by_role("link", name="By site as CSV").click()
    assert "SITE_A" in download.value.path().read_text("utf-8")
    tab.page.get_by_role("link", name="Compare", exact=True).first.click()
    assert tab.page.get_by_role("heading", name="Stored comparisons").is_visible()


@pytest.mark.parametrize("size, scheme", LOOKS)
def test_heat_map_leads_to_trend(
    full_service: str, open_tab: Visit, size: str, scheme: str
) -> None:
    tab = open_tab(full_service, size=size, scheme=scheme)
    tab.open("/compare?a=6.38.00&b=6.40.00")
    conclusion = tab.page.locator("p.headline").bounding_box()
    assert conclusion is not None
    assert conclusion["y"] < tab.page.viewport_size["height"], "on the first screen"  # type: ignore[index]
    tab.page.locator("table.matrix td a").first.click()
    tab.page.wait_for_url("**site=**variant=**")
    assert tab.page.get_by_role("heading", name="Jobs and trend").is_visible()
    tab.check_page()
