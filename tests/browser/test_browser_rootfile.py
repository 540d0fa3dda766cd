"""A ROOT file, made from measurements and browsed with JSROOT in a real browser."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable

import httpx
import pytest
import uproot
from browser import Watched, require_agreement
from playwright.sync_api import Route, expect

from treehammer import config
from treehammer.collectors import software

Visit = Callable[..., Watched]


@pytest.fixture(scope="module", autouse=True)
def root() -> None:
    """A ROOT that writes."""
    newest = max(software.WHEELS)
    software.prepare(software.parse(newest), config.load().software_dir)


def opened(tab: Watched, query: str = "?campaign=nightly") -> None:
    assert tab.open(f"/root-file{query}") == 200
    # What is looked for most is drawn at once.
    tab.page.get_by_text("eff_job: ").wait_for(timeout=60_000)
    assert tab.page.get_by_label("Column", exact=True).input_value() == "eff_job"


@pytest.mark.parametrize(
    "size, scheme", [*itertools.product(("phone", "laptop"), ("light", "dark"))]
)
def test_a_column_is_drawn(rich: str, visit: Visit, size: str, scheme: str) -> None:
    tab = visit(rich, size=size, scheme=scheme)
    opened(tab)
    tab.check()
    tab.page.get_by_label("Entries").select_option("all")
    tab.page.get_by_text("not known and left out").wait_for()
    assert tab.page.locator(".drawing svg path").count() > 3
    assert tab.page.locator("[data-part=values] tbody tr").count() == 25
    tab.check()


def test_what_failed_or_was_not_timed_is_drawn_where_it_is_asked_for(
    rich: str, visit: Visit
) -> None:
    tab = visit(rich)
    opened(tab)
    link = tab.page.get_by_role("link", name="Download the ROOT file").get_attribute("href")
    content = httpx.get(f"{rich}{link}", trust_env=False).content
    with uproot.open(io.BytesIO(content)) as file:
        names = ["kind", "failure_class", "plausible"]
        rows = list(zip(*file["results"].arrays(names, library="np").values(), strict=True))
    good = sum(kind == "timed" and not failure and ok == 1 for kind, failure, ok in rows)
    assert 0 < good < len(rows)
    told = tab.page.get_by_role("status")
    told.get_by_text(f"eff_job: {good} good timed measurements of {len(rows)} entries").wait_for()
    tab.page.get_by_label("Entries").select_option("all")
    told.get_by_text(f"eff_job: {len(rows)} entries").wait_for()


def test_the_form_agrees_with_its_page_after_going_back(rich: str, visit: Visit) -> None:
    require_agreement(visit(rich), "/root-file?campaign=over", "campaign", "over", "running")


def test_what_is_drawn_stands_in_the_address(rich: str, visit: Visit) -> None:
    tab = visit(rich)
    opened(tab)
    tab.page.get_by_label("Entries").select_option("all")
    tab.page.get_by_label("Column", exact=True).select_option("cpu_per_event_s")
    tab.page.get_by_label("Drawn as").select_option("wall_per_event_s")
    drawing = tab.page.get_by_role("img", name="cpu_per_event_s against wall_per_event_s")
    drawing.wait_for()
    again = visit(rich)
    again.open(tab.page.url.removeprefix(rich))
    again.page.get_by_role("img", name="cpu_per_event_s against wall_per_event_s").wait_for()
    assert again.page.get_by_label("Entries").input_value() == "all"
    again.open("/root-file?campaign=nightly&tree=campaign&column=name")
    again.page.get_by_text("name: 1 entries, 1 different values").wait_for(timeout=60_000)


def test_what_was_chosen_last_is_shown_however_long_the_one_before_takes(
    rich: str, visit: Visit
) -> None:
    tab = visit(rich)
    opened(tab)
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    column, told = tab.page.get_by_label("Column", exact=True), tab.page.get_by_role("status")
    tab.page.route("**/root-file/*.root*", hold, times=1)
    column.select_option("wall_per_event_s")
    while not held:
        tab.page.wait_for_timeout(50)
    column.select_option("site")
    told.get_by_text("8 different values").wait_for()
    with tab.page.expect_request_finished():
        held[0].continue_()
    tab.page.wait_for_timeout(1000)
    expect(told).to_contain_text("site: ")
    expect(tab.page.get_by_role("img")).to_have_count(0)
    assert "column=site" in tab.page.url


def test_texts_lists_and_two_columns(rich: str, visit: Visit) -> None:
    tab = visit(rich)
    opened(tab)
    column = tab.page.get_by_label("Column", exact=True)
    tab.page.get_by_label("Find a column").fill("SITE")
    column.select_option("site")
    tab.page.get_by_text("8 different values").wait_for()
    # A byte is no character, nor is a text part of the page.
    assert tab.page.get_by_role("rowheader", name="中文").count() == 1
    assert tab.page.get_by_role("rowheader", name="<script>").count() == 1
    tab.check()
    tab.page.get_by_label("Find a column").fill("")
    column.select_option("read_latency_hist")
    tab.page.get_by_text("read_latency_hist: ").wait_for()
    assert tab.page.locator(".drawing svg").count()
    column.select_option("cpu_per_event_s")
    tab.page.get_by_label("Drawn as").select_option("wall_per_event_s")
    tab.page.get_by_role("img", name="cpu_per_event_s against wall_per_event_s").wait_for()
    tab.check()
    tab.page.get_by_label("Tree").select_option("campaign")
    tab.page.get_by_text("campaign: ").wait_for()
    tab.check()


def test_what_is_downloaded_is_what_was_selected(rich: str, visit: Visit) -> None:
    tab = visit(rich)
    opened(tab, "?campaign=nightly&where=site%3DSITE_B")
    link = tab.page.get_by_role("link", name="Download the ROOT file").get_attribute("href")
    content = httpx.get(f"{rich}{link}", trust_env=False).content
    with uproot.open(io.BytesIO(content)) as file:
        sites = file["results"]["site"].array()
    assert tab.page.get_by_text(f"{len(sites)} measurements selected").is_visible()
    assert set(sites) == {"SITE_B"}


def test_nothing_to_browse(empty: str, visit: Visit) -> None:
    tab = visit(empty)
    assert tab.open("/root-file") == 200
    assert tab.page.get_by_text("treehammer submit").is_visible()
    tab.check()
