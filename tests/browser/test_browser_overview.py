"""Overview, sites, comparisons, forms, errors and signing in, in a real browser."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import pytest
from browser import LOOKS, VIEWPORT_WIDTHS, Visit, check_form_after_back
from command_forker import run_command
from page_database import CHANGE, HOSTILE_TEXTS, SITES, STATE_CHANGE
from playwright.sync_api import Browser, expect

#: Pages without tests of their own, and the text that shows that they are filled.
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
    "/compare?axis=door": "reads of few branches",
    "/search?q=SITE": "SITE_A",
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


#: Page -> command that it suggests while nothing is measured.
EMPTY_PAGES: dict[str, str | re.Pattern[str]] = {
    "/": "treehammer submit",
    "/campaigns": "treehammer submit",
    "/sites": "treehammer submit",
    "/root-file": re.compile("treehammer (submit|export)"),  # the latter installs a ROOT
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
    # The browser stays there after a wrong key.
    assert tab.open("/sign-in") == 401
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
    assert tab.page.locator("header.bar").evaluate("bar => bar.offsetHeight") < 90
    line = tab.page.locator(".matrix tbody tr").filter(has_text=HOSTILE_TEXTS[0])
    line.locator("td.warning a, td.critical a").last.click()
    tab.page.get_by_role("heading", name=f"{HOSTILE_TEXTS[0]} on").wait_for()
    tab.check_page()
    tab.page.locator("summary", has_text="measurement").first.click()
    assert tab.page.get_by_role("group", name="Measurements that are not good").count() == 1
    tab.page.get_by_role("link", name="day before").click()
    tab.page.get_by_role("link", name="Sites by day").click()
    tab.page.wait_for_url("**/#days")


def test_name_does_not_turn_the_text_after_it(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service)
    tab.open(f"/days/2026-03-01?site={quote(HOSTILE_TEXTS[3])}")
    letters = """heading => [0, heading.lastChild.length - 1].map((place) => {
        const letter = document.createRange();
        letter.setStart(heading.lastChild, place), letter.setEnd(heading.lastChild, place + 1);
        return letter.getBoundingClientRect().left;
    })"""
    first, last = tab.page.locator("h1").evaluate(letters)
    assert first < last


def test_arrow_keys_move_inside_the_matrix(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service)
    tab.open("/")
    matrix = tab.page.locator("table.matrix").first
    links = matrix.locator("tbody a")
    links.first.focus()
    focused = "document.activeElement.getAttribute('href')"
    heading = tab.page.evaluate(focused)
    tab.page.keyboard.press("ArrowRight")
    assert tab.page.evaluate(focused) == links.nth(1).get_attribute("href") != heading
    tab.page.keyboard.press("ArrowLeft")
    tab.page.keyboard.press("ArrowDown")
    assert tab.page.evaluate(focused) == matrix.locator("tbody th a").nth(1).get_attribute("href")
    tab.page.keyboard.press("End")
    assert "/days/" in tab.page.evaluate(focused)
    tab.page.keyboard.press("Home")
    tab.page.keyboard.press("ArrowUp")
    assert tab.page.evaluate(focused) == heading
    # Tab leaves the matrix: it is one stop.
    tab.page.keyboard.press("Tab")
    assert not tab.page.evaluate("document.activeElement.closest('table.matrix tbody') !== null")
    tab.check_page()


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
    tab.page.locator(".plot.ready").first.wait_for()
    assert tab.page.locator(".canvas .mark-symbol.role-mark path").count() > 10
    # The only change of the site has its number in each chart that is drawn.
    assert {*tab.page.locator(".canvas .mark-text.role-mark text").all_text_contents()} == {"1"}
    tab.check_page()


# A service that is busy, and a proxy whose page asks for a sign-in, answer in place of the table.
@pytest.mark.parametrize("script, status", [(True, 503), (True, 200), (False, 503)])
def test_tables_are_sorted_and_filtered(
    full_service: str, open_tab: Visit, script: bool, status: int
) -> None:
    tab = open_tab(full_service, script=script)
    tab.open("/sites/SITE_A?days=30")
    if script:
        # A chart that is still being drawn moves the table under a click.
        tab.page.locator(".plot.ready").first.wait_for()
    table = tab.page.locator("#table-outcomes")
    count = table.locator("tbody tr").count()
    table.locator("#sort-outcomes-good").click()
    tab.page.wait_for_url("**days=30**sort-outcomes=-good*")
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
        tab.page.locator("#sort-parts-name").click()
        tab.page.wait_for_url("**sort-parts=name*")
        assert f"find-outcomes={day}" in tab.page.url
        tab.check_page()
    words.fill("nothing like this")
    words.press("Enter")
    table.get_by_text("No row contains").wait_for()
    tab.page.go_back()
    table.get_by_text(f"1 of {count} rows").wait_for()
    assert words.input_value() == day
    if script:
        tab.page.locator(".plot.ready").first.wait_for()
        # Words that are typed while the table is fetched are sent, too.
        with tab.page.expect_request(re.compile("find-outcomes=2(&|$)")):
            words.fill("2")
        words.press("x")
        table.get_by_text("No row contains").wait_for()
        tab.page.route("**/sites/**", lambda route: route.fulfill(status=status, body="busy"))
        table.locator("#sort-outcomes-good").click()
        expect(tab.page.locator("body")).to_have_text("busy")


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


@pytest.mark.parametrize("size, scheme", LOOKS)
def test_comparison_page(full_service: str, open_tab: Visit, size: str, scheme: str) -> None:
    tab = open_tab(full_service, size=size, scheme=scheme)
    assert tab.open("/compare/comparison") == 200
    # Two further rows are the same, and folded.
    assert tab.page.locator("tbody th", has_text=HOSTILE_TEXTS[2]).count() == 7
    for table in tab.page.locator("table.effects").all():
        heads, cells = (
            [round(cell_box.bounding_box()["x"]) for cell_box in table.locator(cell).all()]  # type: ignore[index]
            for cell in ("thead th", "tbody tr:first-child > *")
        )
        assert heads == cells
    tab.check_page()


@pytest.mark.parametrize("size, scheme", LOOKS)
def test_heat_map_leads_to_trend(
    full_service: str, open_tab: Visit, size: str, scheme: str
) -> None:
    tab = open_tab(full_service, size=size, scheme=scheme)
    tab.open("/compare?a=6.38.00&b=6.40.00")
    expect(tab.page.locator("p.headline")).to_be_in_viewport()
    # Safari writes no cell vertically.
    heading = tab.page.locator(".matrix thead th > :text('all sites')")
    expect(heading).to_have_css("writing-mode", "vertical-rl")
    tab.page.emulate_media(forced_colors="active")
    cells = tab.page.locator(".effects-by-site tbody td, .legend .badge")
    backgrounds = "cells => cells.map(cell => getComputedStyle(cell).backgroundColor)"
    assert len({*cells.evaluate_all(backgrounds)}) > 2
    tab.page.locator("table.matrix td a").first.click()
    tab.page.wait_for_url("**site=**variant=**")
    assert tab.page.get_by_role("heading", name="Jobs and trend").is_visible()
    tab.check_page()


#: Address, name of a choice, what the page shows, and what is chosen then.  That of ROOT files needs ROOT.
CHOICES = [
    ("/?days=14", "days", "14", "30"),
    (f"/sites/{SITES[0]}?days=30", "days", "30", "90"),
    ("/campaigns/running?state=running", "state", "running", "done"),
    ("/compare?axis=door", "axis", "door", "site"),
]


@pytest.mark.parametrize("address, name, value, chosen", CHOICES)
def test_form_agrees_with_page_after_going_back(
    full_service: str, open_tab: Visit, address: str, name: str, value: str, chosen: str
) -> None:
    check_form_after_back(open_tab(full_service), address, name, value, chosen)


def test_form_agrees_with_page_restored_from_cache(full_service: str, open_tab: Visit) -> None:
    """Automated browsers have no back-forward cache, so its event is dispatched."""
    tab = open_tab(full_service)
    tab.open("/?days=14")
    box = tab.page.locator("select[name=days]")
    box.select_option("30")
    for persisted, value in (("false", "30"), ("true", "14")):
        tab.page.evaluate(
            f"dispatchEvent(new PageTransitionEvent('pageshow', {{persisted: {persisted}}}))"
        )
        expect(box).to_have_value(value)


@pytest.mark.parametrize(
    "path, size, share",
    [("/", "laptop", 0.6), ("/?days=60", "laptop", 0.9), ("/?days=60", "phone", 0.9)],
)
def test_state_and_last_day_stay_in_view(
    full_service: str, open_tab: Visit, path: str, size: str, share: float
) -> None:
    tab = open_tab(full_service, size=size)
    tab.open(path)
    matrix = tab.page.locator(".wide:has([data-table=days])")
    row = matrix.locator("tbody tr").filter(has=tab.page.locator("td.critical, td.warning")).first
    window, site, state, last = (
        box.evaluate("box => box.getBoundingClientRect().toJSON()")
        for box in (matrix, row.locator("th"), row.locator(".state"), row.locator("td").last)
    )
    assert site["right"] <= state["left"]
    assert state["right"] < last["right"] <= window["right"]
    # No part of the window's width is empty.
    assert window["width"] > share * VIEWPORT_WIDTHS[size]


#: Pixels of a sheet of A4 in landscape within its margins.
SHEET_WIDTH = 1032


def test_print_has_colors_whole_tables_and_all_charts(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service, scheme="dark")
    tab.page.add_init_script("delete window.requestIdleCallback")  # as in Safari
    tab.page.emulate_media(media="print")
    tab.open("/figures/s0")
    content = "box => getComputedStyle(box, '::before').content"
    assert "not drawn yet" in tab.page.locator(".canvas").evaluate(content)
    for address in ("/sites/SITE_A", "/figures/s0", "/compare/comparison", "/?days=60"):
        tab.page.emulate_media(media="screen", color_scheme="dark")
        tab.open(address)
        expect(tab.page.locator(".plot:not(.ready)")).to_have_count(0)
        # Browsers print in light colors.
        tab.page.emulate_media(media="print", color_scheme="light")
        tab.page.set_viewport_size({"width": SHEET_WIDTH, "height": 700})
        expect(tab.page.locator(".canvas svg:not(:has(path))")).to_have_count(0)
        colors = tab.page.locator("body, .canvas .role-axis-label text").evaluate_all(
            "boxes => boxes.map(box => getComputedStyle(box)[box === document.body ? 'color' : 'fill'])"
        )
        assert len({*colors}) == 1, address
        right = tab.page.locator("td, th, .canvas svg").evaluate_all(
            "boxes => Math.max(0, ...boxes.map(box => box.getBoundingClientRect().right))"
        )
        assert right <= SHEET_WIDTH, address
        positions = "boxes => boxes.map(box => getComputedStyle(box).position)"
        assert "sticky" not in tab.page.locator("main *").evaluate_all(positions), address
        expect(tab.page.locator(".tools:visible, header nav:visible")).to_have_count(0)
    cell = tab.page.locator(".matrix td.critical, .matrix td.warning").first
    expect(cell).to_have_css("print-color-adjust", "exact")
    expect(cell).not_to_have_css("background-color", "rgba(0, 0, 0, 0)")


@pytest.mark.parametrize(
    ("zone", "local"),
    [
        ("Asia/Kolkata", " (05:30 local)"),
        ("America/St_Johns", " (2026-02-28 20:30 local)"),
        ("Europe/London", ""),
    ],
)
def test_local_time_beside_utc(full_service: str, open_tab: Visit, zone: str, local: str) -> None:
    tab = open_tab(full_service, timezone=zone)
    tab.page.clock.set_fixed_time("2026-07-01")
    tab.open("/digest")
    texts = tab.page.locator("main time").all_inner_texts()
    assert f"2026-03-01 00:00 UTC{local}" in texts
    tab.check_page()


def test_form_of_another_site_is_refused(
    closed_service: tuple[str, Path], chromium: Browser
) -> None:
    """Attack with a real browser: a page of another origin sends the form by itself."""
    target = closed_service[0] + "/sign-out"
    html = f"<form method=post action={target}><input name=token value=x></form>"
    with chromium.new_context() as context:
        context.route(
            "http://127.0.0.1:1/", lambda route: route.fulfill(body=html, content_type="text/html")
        )
        page = context.new_page()
        page.goto("http://127.0.0.1:1/")
        with page.expect_navigation(url=target) as navigation:
            page.evaluate("document.forms[0].submit()")
        assert navigation.value.status == 403


def test_sign_in_page_is_accessible(closed_service: tuple[str, Path], open_tab: Visit) -> None:
    """In the other look than where a reader signs in."""
    tab = open_tab(closed_service[0], size="phone", scheme="dark")
    assert tab.open("/") == 401
    tab.check_page()
    tab.page.add_init_script("Object.defineProperty(navigator, 'cookieEnabled', {value: false})")
    tab.page.reload()
    tab.page.get_by_text("This browser blocks cookies").wait_for()
