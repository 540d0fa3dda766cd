"""Pages of sites in a real browser."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from browser import LOOKS, WatchedTab
from page_database import HOSTILE_TEXTS

Visit = Callable[..., WatchedTab]


@pytest.mark.parametrize("size, scheme", LOOKS)
def test_site_page_is_reachable_and_drawn(
    full_service: str, open_tab: Visit, size: str, scheme: str
) -> None:
    tab = open_tab(full_service, size=size, scheme=scheme)
    tab.open("/")
    tab.page.get_by_role("link", name="Sites", exact=True).click()
    tab.page.get_by_role("heading", name="Sites", level=1).wait_for()
    tab.check_page()
    tab.page.get_by_role("link", name="SITE_B").click()
    tab.page.get_by_role("heading", name="SITE_B", level=1).wait_for()
    tab.page.get_by_text("Table of values").first.click()
    tab.page.locator(".plot.ready").wait_for()
    assert tab.page.locator(".canvas .mark-symbol.role-mark path").count() > 10
    assert tab.page.locator(".canvas .mark-text.role-mark text").count() == 1
    tab.check_page()


def test_metric_and_window_are_selectable(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service)
    tab.open("/sites/SITE_A")
    tab.page.get_by_label("Metric").select_option("cpu_per_event_s")
    tab.page.get_by_label("Days").select_option("90")
    tab.page.get_by_role("button", name="Show").click()
    tab.page.wait_for_url("**metric=cpu_per_event_s*")
    assert tab.page.get_by_text("Lower is better").is_visible()
    tab.check_page()


def test_hostile_site_names_are_escaped(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service)
    tab.open("/sites")
    for text in HOSTILE_TEXTS:
        tab.page.get_by_role("link", name=text).click()
        tab.page.get_by_role("heading", name=text, level=1).wait_for()
        tab.check_page()
        tab.page.go_back()


@pytest.mark.parametrize("script", [True, False])
def test_tables_are_sorted_and_filtered(full_service: str, open_tab: Visit, script: bool) -> None:
    tab = open_tab(full_service, script=script)
    tab.open("/sites/SITE_A?days=30")
    if script:
        # A chart that is still being drawn moves the table under a click.
        tab.page.locator(".plot.ready").first.wait_for()
    table = tab.page.locator("#table-outcomes")
    count = table.locator("tbody tr").count()
    table.locator("#sort-outcomes-good").click()
    tab.page.wait_for_url("**sort-outcomes=-good*")
    assert "days=30" in tab.page.url
    table.locator("th[aria-sort=descending]").wait_for()
    good = [int(text) for text in table.locator("tbody tr td:nth-child(3)").all_inner_texts()]
    assert good == sorted(good, reverse=True)
    assert len(good) == count
    day = table.locator("tbody th").first.inner_text()
    words = table.get_by_label("Filter")
    words.fill(day)
    if not script:
        words.press("Enter")
    table.get_by_text(f"1 of {count} rows").wait_for()
    assert table.locator("tbody th").all_inner_texts() == [day]
    assert "sort-outcomes=-good" in tab.page.url
    if script:
        # Typing goes on in the same field.
        assert tab.page.evaluate("document.activeElement.id") == "find-outcomes"
        tab.check_page()
    words.fill("nothing like this")
    words.press("Enter")
    table.get_by_text("No row contains").wait_for()


def test_chart_is_read_and_followed_by_keys(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service)
    tab.open("/sites/SITE_A")
    tab.page.locator(".plot.ready").first.wait_for()
    tab.page.locator(".canvas").first.focus()
    reading = tab.page.locator(".reading").first
    texts = []
    for key in ("ArrowRight", "ArrowRight", "Home", "End"):
        tab.page.keyboard.press(key)
        texts.append(reading.text_content() or "")
    assert texts[0] == texts[2]
    assert len({*texts}) == 3
    assert all("timed measurements" in text for text in texts)
    tab.check_page()
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url("**/days/**site=SITE_A")
