"""Pages at both widths and color schemes, errors and signing in, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest
from browser import LOOKS, WatchedTab
from command_forker import run_command
from page_database import CHANGE, HOSTILE_TEXTS, STATE_CHANGE

Visit = Callable[..., WatchedTab]


#: Pages without journeys of their own, and the text that shows that they are filled.
FILLED_PAGES = {
    "/": "Sites by day",
    "/campaigns": "nightly",
    "/campaigns/running": HOSTILE_TEXTS[1],
    "/jobs/r4": HOSTILE_TEXTS[0],
    "/changes": HOSTILE_TEXTS[1],
    f"/changes/{CHANGE}": HOSTILE_TEXTS[1],
    "/releases/6.40.00": HOSTILE_TEXTS[1],
    f"/releases/{quote(HOSTILE_TEXTS[0], safe='')}": HOSTILE_TEXTS[0],
    f"/digest?week={datetime.now(UTC):%G-W%V}": HOSTILE_TEXTS[1],
    "/alarms": HOSTILE_TEXTS[0],
    f"/state-changes/{STATE_CHANGE}": HOSTILE_TEXTS[1],
    "/patrol": HOSTILE_TEXTS[0],
}


@pytest.mark.parametrize("path", FILLED_PAGES)
@pytest.mark.parametrize("size, scheme", LOOKS)
def test_filled_pages(
    full_service: str, open_tab: Visit, path: str, size: str, scheme: str
) -> None:
    tab = open_tab(full_service, size=size, scheme=scheme)
    assert tab.open(path) == 200
    assert FILLED_PAGES[path] in tab.page.locator("main").inner_text()
    tab.check_page()


@pytest.mark.parametrize("path", FILLED_PAGES)
def test_filled_pages_without_javascript(full_service: str, open_tab: Visit, path: str) -> None:
    tab = open_tab(full_service, script=False)
    assert tab.open(path) == 200
    assert FILLED_PAGES[path] in tab.page.locator("main").inner_text()
    assert tab.page.locator("main .plot img").count() == ("/releases/" in path)


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
    assert (
        tab.page.locator(".matrix tbody tr").first.locator("td:not(.state):not(.spark)").count()
        == 7
    )


def test_window_is_in_url(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service)
    tab.open("/")
    tab.page.get_by_label("Days").select_option("30")
    tab.page.get_by_role("button", name="Show").click()
    tab.page.wait_for_url("**days=30*")
    assert (
        tab.page.locator(".matrix tbody tr").first.locator("td:not(.state):not(.spark)").count()
        == 30
    )
    tab.open("/?to=2020-01-01")
    tab.check_page()
    tab.page.get_by_role("link", name="20").last.click()


#: Page -> command that it suggests while nothing is measured.
EMPTY_PAGES = {
    "/": "treehammer submit",
    "/campaigns": "treehammer submit",
    "/sites": "treehammer submit",
    "/root-file": "treehammer submit",
    "/figures/s0": "treehammer demo",
    "/compare": "",
}

REFUSED_PAGES = {
    "/?days=1000": 400,
    "/nothing": 404,
    "/sites/none": 404,
    "/campaigns/nothing": 404,
    "/campaigns?page=0": 400,
    "/jobs/a/b": 404,
    "/compare?a=6.38.00&b=6.40.00": 404,
    "/explore?by=nothing": 400,
}


@pytest.mark.parametrize("size, scheme", LOOKS)
def test_empty_database_suggests_command(
    empty_service: str, open_tab: Visit, size: str, scheme: str
) -> None:
    tab = open_tab(empty_service, size=size, scheme=scheme)
    for path, command in EMPTY_PAGES.items():
        assert tab.open(path) == 200, path
        assert not command or tab.page.get_by_text(command).is_visible(), path
        tab.check_page()


@pytest.mark.parametrize("size, scheme", LOOKS)
def test_refused_pages_are_readable(
    empty_service: str, open_tab: Visit, size: str, scheme: str
) -> None:
    tab = open_tab(empty_service, size=size, scheme=scheme)
    for path, status in REFUSED_PAGES.items():
        assert tab.open(path) == status, path
        assert tab.page.get_by_role("heading", level=1).is_visible(), path
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
    made = run_command(words)
    key = next(word for word in made.stdout.split() if word.startswith("th1."))
    tab.page.get_by_label("Key").fill(key)
    tab.page.get_by_role("button", name="Show results").click()
    tab.page.wait_for_url("**/?days=7")
    tab.check_page()
    tab.page.get_by_role("button", name="Sign out").click()
    tab.page.get_by_label("Key").wait_for()


@pytest.mark.parametrize("size, scheme", LOOKS)
def test_status_cell_links_to_day(
    full_service: str, open_tab: Visit, size: str, scheme: str
) -> None:
    tab = open_tab(full_service, size=size, scheme=scheme)
    tab.open("/")
    line = tab.page.locator(".matrix tbody tr").filter(has_text=HOSTILE_TEXTS[0])
    line.locator("td.warning a, td.critical a").last.click()
    tab.page.get_by_role("heading", name=f"{HOSTILE_TEXTS[0]} on").wait_for()
    tab.check_page()
    assert tab.page.get_by_role("region", name="Measurements that are not good").count() == 1
    tab.page.get_by_role("link", name="day before").click()
    tab.check_page()
    tab.page.get_by_role("link", name="Sites by day").click()
    tab.page.wait_for_url("**/#days")


def test_arrow_keys_move_inside_the_matrix(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service)
    tab.open("/")
    matrix = tab.page.locator("table.matrix").first
    links = matrix.locator("tbody a")
    assert links.count() > 40
    assert matrix.locator("tbody a[tabindex='0']").count() == 1
    links.first.focus()
    focused = "document.activeElement.getAttribute('href')"
    heading = tab.page.evaluate(focused)
    tab.page.keyboard.press("ArrowRight")
    assert tab.page.evaluate(focused) == links.nth(1).get_attribute("href") != heading
    tab.page.keyboard.press("ArrowLeft")
    tab.page.keyboard.press("ArrowDown")
    next_heading = tab.page.evaluate(focused)
    assert next_heading.startswith("/sites/")
    assert next_heading != heading
    tab.page.keyboard.press("End")
    assert "/days/" in tab.page.evaluate(focused)
    tab.page.keyboard.press("Home")
    tab.page.keyboard.press("ArrowUp")
    tab.page.keyboard.press("Home")
    assert tab.page.evaluate(focused) == heading
    # Tab leaves the matrix: it is one stop.
    tab.page.keyboard.press("Tab")
    assert not tab.page.evaluate("document.activeElement.closest('table.matrix tbody') !== null")
    tab.check_page()
