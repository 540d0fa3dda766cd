"""Explore in a real browser: figures, filters, links and hostile text."""

from __future__ import annotations

import pytest
from browser import LOOKS, Visit, WatchedTab
from playwright.sync_api import expect


def drawn(tab: WatchedTab, *, scrolls: bool = False) -> None:
    drawing = tab.page.locator(".plot.ready .canvas svg.marks").first
    drawing.wait_for()
    # The figure fits its container; a heat map whose columns would be too narrow scrolls in it.
    sizes = "one => [one, one.closest('.canvas')].map(e => e.getBoundingClientRect().width)"
    drawn_size, room = drawing.evaluate(sizes)
    assert room / 2 < drawn_size
    assert scrolls or drawn_size <= room + 1


@pytest.mark.parametrize("size, scheme", LOOKS)
def test_figure(full_service: str, open_tab: Visit, size: str, scheme: str) -> None:
    tab = open_tab(full_service, size=size, scheme=scheme)
    assert tab.open("/figures/s0") == 200
    drawn(tab, scrolls=size == "phone")
    fills = "cells => new Set(cells.map(cell => cell.getAttribute('fill'))).size"
    assert tab.page.locator(".canvas .mark-rect path").evaluate_all(fills) > 4, "shades"
    tab.check_page()


@pytest.mark.parametrize(
    "query",
    [
        "by=variant&panels=site&metric=cpu_per_event_s",
        "by=day&color=site",
        "by=site&color=variant&view=heatmap",
        "by=test_name&color=site&site=" + "%3Cscript%3Edocument.title%3D%27got%27%3C%2Fscript%3E",
    ],
)
def test_kinds_of_figures(full_service: str, open_tab: Visit, query: str) -> None:
    tab = open_tab(full_service)
    assert tab.open(f"/explore?{query}") == 200
    drawn(tab)
    tab.check_page()


def test_legend_and_zoom_change_the_figure(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service)
    tab.open("/figures/s0?view=means")
    drawn(tab)
    points = tab.page.locator(".canvas .mark-symbol.role-mark path")
    total = points.count()
    legend = tab.page.locator(".series button")
    legend.first.click()
    expect(points).not_to_have_count(total)
    assert [entry.get_attribute("aria-pressed") for entry in legend.all()][:2] == ["true", "false"]
    legend.first.click()
    expect(points).to_have_count(total)
    legend.first.click(modifiers=["Shift"])
    expect(legend.first).to_have_attribute("aria-pressed", "false")
    ticks = tab.page.locator(".canvas .role-axis-label text")
    before = ticks.all_text_contents()
    tab.page.get_by_role("button", name="Zoom in").click()
    expect(ticks).not_to_have_text(before)
    with tab.page.expect_download() as download:
        tab.page.get_by_role("button", name="Save view as SVG").click()
    saved = download.value.path().read_text("utf-8")
    assert "CPU efficiency by site" in saved
    assert saved.count("ttree-read") > 0
    tab.page.get_by_role("button", name="Reset").click()
    # Vega appends the labels that come back.
    expect(ticks).to_have_count(len(before))
    assert sorted(ticks.all_text_contents()) == sorted(before)
    tab.check_page()


def test_point_opens_its_jobs(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service)
    tab.open("/explore?by=site&color=&site=SITE_A")
    drawn(tab)
    tab.page.locator(".canvas .mark-symbol.role-mark path").first.click()
    tab.page.wait_for_url("**by=job_id**")
    tab.page.locator("tbody th a").first.wait_for()
    tab.check_page()


def test_answer_on_doors(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service)
    tab.open("/explore")
    tab.page.get_by_role("link", name="Best door for sparse reads").click()
    tab.page.wait_for_url("**/compare?axis=door**")
    expect(tab.page.locator(".headline").first).to_contain_text("reads of few branches")
    tab.check_page()


def test_figure_can_be_filtered_and_downloaded(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service)
    tab.open("/")
    tab.page.get_by_role("link", name="Explore").click()
    drawn(tab)
    tab.page.locator("[name=metric]").select_option("cpu_per_event_s")
    tab.page.locator("[name=where]").fill("site=SITE_A")
    tab.page.get_by_role("button", name="Show").click()
    tab.page.wait_for_url("**metric=cpu_per_event_s**where=site%3DSITE_A**")
    drawn(tab)
    tab.check_page()
    with tab.page.expect_download() as download:
        tab.page.get_by_role("link", name="PDF", exact=True).click()
    assert download.value.path().read_bytes().startswith(b"%PDF")
    tab.page.get_by_role("link", name="Permanent link").click()
    drawn(tab)
    tab.page.get_by_role("link", name="study S0").click()
    tab.page.wait_for_url("**/figures/s0?**site%3DSITE_A**")
    drawn(tab)


def test_figure_without_javascript(full_service: str, open_tab: Visit) -> None:
    tab = open_tab(full_service, script=False)
    tab.open("/explore")
    assert tab.page.locator("tbody tr").count() >= 8
    picture = tab.page.locator(".plot img")
    assert picture.evaluate("image => image.naturalWidth") > 300
    above = "image => image.getBoundingClientRect().y - image.closest('figure').getBoundingClientRect().y"
    assert picture.evaluate(above) < 60, "no space is reserved for the interactive figure"
