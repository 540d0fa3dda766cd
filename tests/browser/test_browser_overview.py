"""Overview, errors and signing in, in a real browser."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from browser import WatchedTab
from page_database import HOSTILE_TEXTS

Visit = Callable[..., WatchedTab]


@pytest.mark.parametrize(
    "size, scheme", [*itertools.product(("phone", "laptop"), ("light", "dark"))]
)
def test_overview(full_service: str, open_tab: Visit, size: str, scheme: str) -> None:
    tab = open_tab(full_service, size=size, scheme=scheme)
    assert tab.open("/") == 200
    tab.check_page()


def test_hostile_text_is_escaped(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service)
    tab.open("/")
    names = tab.page.locator(".matrix tbody th").all_inner_texts()
    assert set(HOSTILE_TEXTS) <= set(names)
    assert (
        tab.page.get_by_role("cell", name=HOSTILE_TEXTS[1])
        .or_(tab.page.get_by_role("rowheader", name=HOSTILE_TEXTS[1]))
        .count()
    )


def test_overview_without_javascript(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service, script=False)
    tab.open("/?days=7")
    assert tab.page.locator(".matrix tbody tr").count() >= 7
    assert tab.page.locator(".matrix tbody tr").first.locator("td").count() == 7


def test_window_is_in_url(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service)
    tab.open("/")
    tab.page.get_by_label("Days").select_option("30")
    tab.page.get_by_role("button", name="Show").click()
    tab.page.wait_for_url("**days=30*")
    assert tab.page.locator(".matrix tbody tr").first.locator("td").count() == 30
    tab.open("/?to=2020-01-01")
    tab.check_page()
    tab.page.get_by_role("link", name="20").last.click()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_empty_database_suggests_command(empty_service: str, open_tab: Visit, scheme: str) -> None:
    tab = open_tab(empty_service, scheme=scheme)
    assert tab.open("/") == 200
    assert tab.page.get_by_text("treehammer submit").count() == 1
    tab.check_page()


def test_unknown_pages_are_reported(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service, size="phone")
    assert tab.open("/nothing") == 404
    assert tab.page.get_by_role("heading", name="Not Found").is_visible()
    tab.check_page()
    assert tab.open("/?days=1000") == 400
    tab.check_page()


def test_reader_signs_in_with_key(closed_service: tuple[str, Path], open_tab: Visit) -> None:
    address, folder = closed_service
    tab = open_tab(address)
    assert tab.open("/?days=7") == 401
    tab.check_page()
    tab.page.get_by_label("Key").fill("th1.none.none")
    tab.page.get_by_role("button", name="Show results").click()
    tab.page.get_by_role("alert").wait_for()
    tab.check_page()
    words = ["--data-dir", str(folder), "token", "create", "--role", "read", "--name", "reader"]
    made = subprocess.run(
        [sys.executable, "-m", "treehammer", *words], capture_output=True, text=True, check=True
    )
    key = next(word for word in made.stdout.split() if word.startswith("th1."))
    tab.page.get_by_label("Key").fill(key)
    tab.page.get_by_role("button", name="Show results").click()
    tab.page.wait_for_url("**/?days=7")
    tab.check_page()
    tab.page.get_by_role("button", name="Sign out").click()
    tab.page.get_by_label("Key").wait_for()


@pytest.mark.parametrize("size, scheme", [("phone", "dark"), ("laptop", "light")])
def test_status_cell_links_to_day(
    full_service: str, open_tab: Visit, size: str, scheme: str
) -> None:
    tab = open_tab(full_service, size=size, scheme=scheme)
    tab.open("/")
    line = tab.page.locator(".matrix tbody tr").filter(has_text=HOSTILE_TEXTS[0])
    line.locator("td.warning a, td.failing a").last.click()
    tab.page.get_by_role("heading", name=f"{HOSTILE_TEXTS[0]} on").wait_for()
    tab.check_page()
    assert tab.page.get_by_role("region", name="Measurements that are not good").count() == 1
    tab.page.get_by_role("link", name="day before").click()
    tab.check_page()
    tab.page.get_by_role("link", name="Sites by day").click()
    tab.page.wait_for_url("**/#days")
