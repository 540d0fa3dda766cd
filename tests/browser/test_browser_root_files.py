"""A ROOT file of measurements, browsed with JSROOT in a real browser."""

from __future__ import annotations

import io
import re

import httpx
import pytest
from browser import LOOKS, Visit, WatchedTab, check_form_after_back
from cached_software import prepare_cached
from playwright.sync_api import Route, expect

from treehammer.collectors.software import providers


@pytest.fixture(scope="module", autouse=True)
def root() -> None:
    """A ROOT that writes."""
    prepare_cached(max(providers.WHEELS))


def opened(tab: WatchedTab, query: str = "?campaign=nightly") -> None:
    assert tab.open(f"/root-file{query}") == 200
    # The most common column is drawn first.
    tab.page.get_by_text("eff_job: ").wait_for(timeout=60_000)
    assert tab.page.get_by_label("Column", exact=True).input_value() == "eff_job"


@pytest.mark.parametrize("size, scheme", LOOKS)
def test_column_is_drawn(full_service: str, open_tab: Visit, size: str, scheme: str) -> None:
    tab = open_tab(full_service, size=size, scheme=scheme)
    opened(tab)
    tab.check_page()
    tab.page.get_by_label("Entries").select_option("all")
    tab.page.get_by_text(re.compile(", \\d+ missing")).wait_for()
    assert tab.page.locator(".drawing svg path").count() > 3
    assert tab.page.locator("[data-part=values] tbody tr").count() == 25
    tab.check_page()


def test_failed_and_untimed_entries_are_selectable(full_service: str, open_tab: Visit) -> None:
    import uproot

    tab = open_tab(full_service)
    opened(tab)
    link = tab.page.get_by_role("link", name="Download the ROOT file").get_attribute("href")
    content = httpx.get(f"{full_service}{link}", trust_env=False).content
    with uproot.open(io.BytesIO(content)) as file:
        names = ["kind", "failure_class", "plausible"]
        rows = list(zip(*file["results"].arrays(names, library="np").values(), strict=True))
    good = sum(kind == "timed" and not failure and ok == 1 for kind, failure, ok in rows)
    assert 0 < good < len(rows)
    status = tab.page.get_by_role("status")
    status.get_by_text(f"eff_job: {good} good timed measurements of {len(rows)} entries").wait_for()
    tab.page.get_by_label("Entries").select_option("all")
    status.get_by_text(f"eff_job: {len(rows)} entries").wait_for()


def test_form_agrees_with_page_after_going_back(full_service: str, open_tab: Visit) -> None:
    check_form_after_back(
        open_tab(full_service), "/root-file?campaign=over", "campaign", "over", "running"
    )


def test_drawing_is_in_url(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service)
    opened(tab)
    tab.page.get_by_label("Entries").select_option("all")
    tab.page.get_by_label("Column", exact=True).select_option("cpu_per_event_s")
    tab.page.get_by_label("Draw", exact=True).select_option("wall_per_event_s")
    drawing = tab.page.get_by_role("img", name="cpu_per_event_s against wall_per_event_s")
    drawing.wait_for()
    second_tab = open_tab(full_service)
    second_tab.open(tab.page.url.removeprefix(full_service))
    second_tab.page.get_by_role("img", name="cpu_per_event_s against wall_per_event_s").wait_for()
    assert second_tab.page.get_by_label("Entries").input_value() == "all"
    second_tab.open("/root-file?campaign=nightly&tree=campaign&column=name")
    second_tab.page.get_by_text("name: 1 entries, 1 different values").wait_for(timeout=60_000)


def test_last_selection_wins_over_slow_earlier_one(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service)
    opened(tab)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    column, status = tab.page.get_by_label("Column", exact=True), tab.page.get_by_role("status")
    tab.page.route("**/root-file/*.root*", hold, times=1)
    column.select_option("wall_per_event_s")
    while not held:
        tab.page.wait_for_timeout(50)
    column.select_option("site")
    status.get_by_text("8 different values").wait_for()
    with tab.page.expect_request_finished():
        held[0].continue_()
    tab.page.wait_for_timeout(1000)
    expect(status).to_contain_text("site: ")
    expect(tab.page.get_by_role("img")).to_have_count(0)
    assert "column=site" in tab.page.url


def test_texts_lists_and_column_pairs(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service)
    opened(tab)
    column = tab.page.get_by_label("Column", exact=True)
    tab.page.get_by_label("Filter columns").fill("SITE")
    column.select_option("site")
    tab.page.get_by_text("8 different values").wait_for()
    # Texts are decoded as UTF-8 and escaped.
    assert tab.page.get_by_role("rowheader", name="中文").count() == 1
    assert tab.page.get_by_role("rowheader", name="<script>").count() == 1
    tab.check_page()
    tab.page.get_by_label("Filter columns").fill("")
    column.select_option("read_latency_hist")
    tab.page.get_by_text("read_latency_hist: ").wait_for()
    assert tab.page.locator(".drawing svg").count()
    column.select_option("cpu_per_event_s")
    tab.page.get_by_label("Draw", exact=True).select_option("wall_per_event_s")
    tab.page.get_by_role("img", name="cpu_per_event_s against wall_per_event_s").wait_for()
    tab.check_page()
    tab.page.get_by_label("Tree").select_option("campaign")
    tab.page.get_by_text("campaign: ").wait_for()
    tab.check_page()
