"""Journeys through the pages, on campaigns of real ROOT reads at the testbed's sites."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, pstdev
from urllib.parse import parse_qs, urlsplit

import grid_campaigns
import pytest
import uproot
from browser import WatchedTab
from grid_campaigns import (
    BROKEN_SITE,
    DISTANT_SITE,
    DOORS_CAMPAIGN,
    GOOD_SITE,
    NIGHTLY_CAMPAIGN,
    RELEASES,
    GridCampaigns,
)
from grid_fixtures import Grid
from playwright.sync_api import Locator, expect

from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue

pytestmark = pytest.mark.root

Visit = Callable[..., WatchedTab]
#: (site, release or variant) -> values of good executions, none where none is good.
Groups = dict[tuple[str, str], list[float]]


@pytest.fixture(scope="module")
def results(
    grid: Grid, tiny_catalogue: FolderCatalogue, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GridCampaigns]:
    folder = tmp_path_factory.mktemp("journeys")
    with grid_campaigns.run_grid_campaigns(grid, tiny_catalogue, folder) as made:
        yield made


def table(tab: WatchedTab, name: str) -> Locator:
    """The table in the region of a name."""
    return tab.page.get_by_role("region", name=name)


def drawn(tab: WatchedTab) -> None:
    tab.page.locator(".plot.ready .canvas svg.marks").first.wait_for()


def today() -> str:
    return datetime.now(UTC).date().isoformat()


# -- from the overview to a failure


def test_status_cell_links_to_job_with_log(results: GridCampaigns, open_tab: Visit) -> None:
    tab = open_tab(results.address)
    tab.open("/")
    line = tab.page.locator(".matrix tbody tr").filter(has_text=BROKEN_SITE)
    cell = line.locator("td a").last
    assert "warning" in cell.inner_text()
    tab.check_page()
    cell.click()
    tab.page.get_by_role("heading", name=f"{BROKEN_SITE} on").wait_for()
    tab.check_page()
    failing = table(tab, "Measurements that are not good")
    assert failing.locator("tbody tr").count() == len(
        results.query_database("1", f"site = '{BROKEN_SITE}' and failure_class is not null")
    )
    failing.locator("tbody a").first.click()
    tab.page.get_by_role("heading", name=f"at {BROKEN_SITE}").wait_for()
    job = urlsplit(tab.page.url).path.rpartition("/")[2]
    ((failure, phase, host, excerpt),) = set(
        results.query_database(
            "failure_class, failure_phase, host, log_excerpt",
            f"job_id = '{job}' and failure_class is not null",
        )[:1]
    )
    expect(tab.page.get_by_role("heading", name="Attempt 1")).to_be_visible()
    text = tab.page.locator("main").inner_text()
    assert failure in text
    assert phase in text
    assert host in text
    log = tab.page.locator("pre.log").first.inner_text()
    assert log.strip() == excerpt.strip()
    assert "adler32" in log or "ReadBasketBuffers" in log, "the log names the failure"
    tab.check_page()


def test_unsupported_door_is_not_a_failure_of_the_site(
    results: GridCampaigns, open_tab: Visit
) -> None:
    tab = open_tab(results.address)
    tab.open("/campaigns")
    tab.page.get_by_role("link", name=DOORS_CAMPAIGN).click()
    expect(tab.page.get_by_text("4 of 4 measured")).to_be_visible()
    tab.open("/")
    line = tab.page.locator(".matrix tbody tr").filter(has_text=DISTANT_SITE)
    assert line.locator("td a").last.inner_text().split() == ["O", "ok"]
    line.locator("td a").last.click()
    expect(tab.page.get_by_text("2 of 2 good, 2 not supported")).to_be_visible()
    tab.check_page()


# -- rerun


def test_rerun_campaign_is_followed(results: GridCampaigns, open_tab: Visit) -> None:
    tab = open_tab(results.address)
    tab.open("/campaigns")
    tab.page.get_by_role("link", name=NIGHTLY_CAMPAIGN).first.click()
    words = shlex.split(tab.page.locator("#again ~ pre code").first.inner_text())
    assert words[0] == "treehammer"
    (plan,) = json.loads(results.run_command(*words[1:], "--dry-run", "--json"))[:1]
    assert plan["jobs"] > 0
    running = table(tab, "Campaigns with active jobs")
    again = results.start_command(*words[1:], "--name", "again", "--in-flight", "3", "--wait")
    try:
        for _ in range(300):
            tab.open("/")
            if running.get_by_role("link", name="again").count():
                break
            assert again.poll() is None, again.communicate()[0]
            tab.page.wait_for_timeout(100)
        running.get_by_role("link", name="again").click()
        tab.page.evaluate("document.body.dataset.mark = 'the same page'")
        seen = set()
        while tab.page.locator("#live[hx-get]").count():
            seen.add(int(re.split(r"\D", tab.page.get_by_role("status").inner_text())[0]))
            assert len(seen) < 100
            tab.page.wait_for_timeout(200)
        assert again.wait(timeout=120) == 1
        assert len(seen) > 1, "progress changes while jobs report"
        expect(tab.page.get_by_text("8 of 8 measured")).to_be_visible()
        assert tab.page.evaluate("document.body.dataset.mark") == "the same page"
        tab.check_page()
    finally:
        again.communicate(timeout=120)


# -- Explore


def test_figure_is_selected_linked_and_downloaded(
    results: GridCampaigns, open_tab: Visit, tmp_path: Path
) -> None:
    tab = open_tab(results.address)
    tab.open("/")
    tab.page.get_by_role("link", name="Explore").click()
    drawn(tab)
    tab.page.locator("[name=metric]").select_option("cpu_per_event_s")
    tab.page.locator("[name=by]").select_option("site")
    tab.page.locator("[name=color]").select_option("axis_root")
    tab.page.get_by_text("More choices and filters").click()
    tab.page.locator("[name=test_name]").select_option("ttree-read")
    tab.page.get_by_role("button", name="Show").click()
    tab.page.wait_for_url("**metric=cpu_per_event_s**")
    drawn(tab)
    tab.check_page()
    asked = parse_qs(urlsplit(tab.page.url).query)
    assert (asked["by"], asked["test_name"]) == (["site"], ["ttree-read"])
    shown = tab.page.locator("main table tbody").inner_text()
    tab.page.reload()
    drawn(tab)
    assert tab.page.locator("main table tbody").inner_text() == shown
    tab.page.get_by_role("link", name="Permanent link").click()
    drawn(tab)
    assert tab.page.locator("main table tbody").inner_text() == shown

    files = {form: taken(tab, form, tmp_path) for form in ("PNG", "SVG", "PDF", "TTree", "CSV")}
    assert files["PNG"].read_bytes().startswith(b"\x89PNG\r\n")
    assert files["PDF"].read_bytes().startswith(b"%PDF-")
    assert "<svg" in files["SVG"].read_text("utf-8")
    assert min(file.stat().st_size for name, file in files.items() if name != "CSV") > 5000
    expected = stored_groups(results, "cpu_per_event_s", "axis_root", "test_name = 'ttree-read'")
    with files["CSV"].open(encoding="utf-8", newline="") as stream:
        equal(csv.DictReader(stream), "axis_root", expected)
    with uproot.open(files["TTree"]) as file:
        columns = file["figure"].arrays(library="np")
    rows = zip(*columns.values(), strict=True)
    equal([dict(zip(columns, row, strict=True)) for row in rows], "axis_root", expected)
    tab.page.get_by_role("link", name="JSON", exact=True).first.click()
    answer = json.loads(tab.page.locator("body").inner_text())
    equal(answer["tables"]["figure"], "axis_root", expected)


def taken(tab: WatchedTab, form: str, folder: Path) -> Path:
    """Download a figure."""
    with tab.page.expect_download() as download:
        tab.page.locator(".files").get_by_role("link", name=form, exact=True).click()
    path = folder / f"figure.{form.lower()}"
    download.value.save_as(path)
    return path


def stored_groups(results: GridCampaigns, metric: str, by: str, where: str) -> Groups:
    """What the database holds, asked without any of our code."""
    found: Groups = defaultdict(list)
    good = f"failure_class is null and plausible and {metric} is not null"
    columns = f"site, {by}, {good}, {metric}"
    for site, other, counts, value in results.query_database(
        columns, f"kind = 'timed' and {where}"
    ):
        found[site, other] += [value] if counts else []
    return found


def equal(rows: Iterable[Mapping[str, object]], by: str, expected: Groups) -> None:
    """Rows of a figure are these groups, no more and no fewer."""
    found = [(row, expected[str(row["site"]), str(row[by])]) for row in rows]
    assert len(found) == len(expected) > 0
    assert len({(row["site"], row[by]) for row, _ in found}) == len(found)
    for row, values in found:
        assert int(str(row["number"])) == len(values)
        if values:
            assert float(str(row["mean"])) == pytest.approx(fmean(values), rel=1e-12)
            spread = pytest.approx(pstdev(values), rel=1e-6, abs=1e-7 * fmean(values))
            assert float(str(row["rms"])) == spread
        else:
            assert str(row["mean"]) in ("", "None", "nan")


def test_overview_links_to_study_s0(results: GridCampaigns, open_tab: Visit) -> None:
    tab = open_tab(results.address)
    tab.open("/explore")
    tab.page.get_by_role("link", name="study S0").click()
    tab.page.wait_for_url("**/figures/s0?**")
    drawn(tab)
    places = tab.page.locator(".canvas .role-axis-label text").all_text_contents()
    assert set(places) >= {GOOD_SITE, BROKEN_SITE, DISTANT_SITE}
    rows = csv.DictReader(io.StringIO(tab.context.request.get(f"{tab.page.url}&format=csv").text()))
    equal(rows, "variant", stored_groups(results, "eff_job", "variant", "1"))
    tab.check_page()


# -- Compare, sites and ROOT files


def test_releases_and_sites_are_compared(results: GridCampaigns, open_tab: Visit) -> None:
    tab = open_tab(results.address)
    tab.open("/")
    title = f"ROOT {RELEASES[1]} against {RELEASES[0]}"
    table(tab, "Latest 5 comparisons").get_by_role("link", name=title).first.click()
    tab.page.get_by_role("heading", name=title).wait_for()
    expect(tab.page.get_by_role("heading", name="Over all sites")).to_be_visible()
    by_site = tab.page.locator("h2#by-site ~ div table tbody tr")
    assert by_site.count() > 0
    # Loops of milliseconds read too little for a verdict.
    expect(tab.page.get_by_text("too little read").first).to_be_visible()
    tab.check_page()
    said = json.loads(tab.context.request.get(f"{tab.page.url}?format=json").text())
    ranks = [
        abs(row["effect"]) / (row["high"] - row["low"])
        for row in said["tables"]["by_site"]
        if None not in (row["effect"], row["low"], row["high"])
    ]
    assert ranks == sorted(ranks, reverse=True)
    assert {row["site"] for row in said["tables"]["by_site"]} == {GOOD_SITE, BROKEN_SITE}
    tab.open("/compare")
    tab.page.get_by_label("A", exact=True).fill(GOOD_SITE)
    tab.page.get_by_label("B", exact=True).fill(BROKEN_SITE)
    tab.page.get_by_label("Axis").select_option("site")
    tab.page.get_by_role("button", name="Compare").click()
    tab.page.get_by_role("heading", name=f"site {BROKEN_SITE} against {GOOD_SITE}").wait_for()
    expect(tab.page.get_by_text("not stored")).to_be_visible()
    tab.check_page()


def test_site_page_shows_comparison_and_server(results: GridCampaigns, open_tab: Visit) -> None:
    tab = open_tab(results.address)
    tab.open("/sites")
    tab.check_page()
    tab.page.get_by_role("link", name=GOOD_SITE).click()
    expect(tab.page.get_by_role("heading", level=1)).to_have_text(GOOD_SITE)
    drawn(tab)
    assert tab.page.locator(".canvas .mark-symbol.role-mark path").count() >= 1  # one day
    ((server,),) = set(
        results.query_database("server_version", f"site = '{GOOD_SITE}' and door = 'root'")
    )
    expect(tab.page.get_by_role("cell", name=server).first).to_be_visible()
    tab.check_page()


def test_root_file_columns_are_drawn(results: GridCampaigns, open_tab: Visit) -> None:
    tab = open_tab(results.address)
    tab.open("/campaigns")
    tab.open(f"/root-file?campaign={NIGHTLY_CAMPAIGN}")
    tab.page.get_by_text("eff_job: ").wait_for(timeout=120_000)
    tab.page.get_by_label("Column", exact=True).select_option("wall_per_event_s")
    tab.page.get_by_text("wall_per_event_s: ").wait_for()
    tab.page.locator(".drawing svg path").nth(3).wait_for(state="attached")
    tab.page.get_by_label("Column", exact=True).select_option("site")
    tab.page.get_by_text("2 different values").wait_for()
    assert tab.page.get_by_role("rowheader", name=GOOD_SITE).count() == 1
    tab.check_page()


# -- accessibility


def test_navigation_by_keyboard(results: GridCampaigns, open_tab: Visit) -> None:
    tab = open_tab(results.address)
    tab.open("/")
    press = tab.page.keyboard.press

    def go_to(wanted: Callable[[str, str], bool]) -> None:
        for _ in range(150):
            press("Tab")
            text, address = tab.page.evaluate(
                "[document.activeElement.textContent, document.activeElement.href || '']"
            )
            if wanted(text, address):
                return
        raise AssertionError("no such link")

    press("Tab")
    assert tab.page.evaluate("document.activeElement.textContent") == "Skip to content"
    press("Enter")
    # The matrix of days is one tab stop; arrow keys move inside.
    go_to(lambda text, address: address.endswith(f"/sites/{text}"))
    for _ in range(20):
        if tab.page.evaluate("document.activeElement.textContent") == BROKEN_SITE:
            break
        press("ArrowDown")
    press("End")
    address = tab.page.evaluate("document.activeElement.href")
    assert f"/days/{today()}" in address
    assert BROKEN_SITE in address
    outline = tab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none", "the focus is visible"
    press("Enter")
    tab.page.get_by_role("heading", name=f"{BROKEN_SITE} on").wait_for()
    go_to(lambda _, address: "/jobs/" in address)
    press("Enter")
    tab.page.get_by_role("heading", name="Attempt 1").wait_for()
    go_to(lambda _, address: "/campaigns/" in address)
    press("Enter")
    tab.page.get_by_role("heading", name="Run again").wait_for()


def test_pages_without_javascript(results: GridCampaigns, open_tab: Visit) -> None:
    tab = open_tab(results.address, script=False)
    ((campaign, job),) = results.query_database("campaign_id, job_id", f"site = '{BROKEN_SITE}'")[
        :1
    ]
    pages = (
        "/",
        f"/days/{today()}?site={BROKEN_SITE}",
        "/campaigns",
        f"/campaigns/{campaign}",
        f"/jobs/{job}",
        "/sites",
        f"/sites/{GOOD_SITE}",
        "/explore",
        "/figures/s0",
        "/compare",
        f"/compare?a={RELEASES[0]}&b={RELEASES[1]}",
    )
    for page in pages:
        assert tab.open(page) == 200, page
        assert tab.page.locator("main table tbody tr").count() > 0, page
    assert tab.open(f"/root-file?campaign={campaign}") == 200
    expect(tab.page.get_by_role("link", name="Download the ROOT file")).to_be_visible()
