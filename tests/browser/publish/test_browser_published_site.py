"""A published site in Chromium: every page, without scripts, and with zoom."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import page_database
import pytest
from browser import Visit
from local_servers import serve_http
from playwright.sync_api import expect

from treehammer.config import load_settings
from treehammer.publish.publication import PublicationRequest, publish_site
from treehammer.publish.site_check import PublishedSite
from treehammer.text_formatting import no_progress

#: Bytes that a page may load with its styles and scripts, before a reader zooms.
MAX_LOADED_BYTES = 145_000


_SUM_LOADED = """() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
    .reduce((sum, entry) => sum + entry.decodedBodySize, 0)"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> PublishedSite:
    folder = tmp_path_factory.mktemp("published")
    page_database.fill_database(f"sqlite:///{folder / 'results.db'}")
    settings = load_settings({"data_dir": folder}, environ={}, folder=folder)
    request = PublicationRequest(folder / "site")
    # Playwright holds the event loop of this thread.
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(publish_site, settings, request, no_progress).result().site


@pytest.fixture(scope="module")
def address(site: PublishedSite) -> Iterator[str]:
    """Address of a server of static files."""
    with serve_http(folder=site.folder) as port:
        yield f"http://127.0.0.1:{port}"


def test_pages_are_accessible_and_small(site: PublishedSite, address: str, open_tab: Visit) -> None:
    """In one look, since the service's pages, whose styles they have, are tested in both."""
    tab = open_tab(address, size="phone", scheme="dark")
    for page in sorted(site.folder.rglob("*.html")):
        assert tab.open(f"/{page.relative_to(site.folder)}") == 200
        tab.check_page()
        assert tab.page.evaluate(_SUM_LOADED) <= MAX_LOADED_BYTES, page


def test_page_is_readable_without_scripts(address: str, open_tab: Visit) -> None:
    tab = open_tab(address, script=False)
    assert tab.open("/index.html") == 200
    expect(tab.page.locator("main .headline")).to_contain_text(
        "more CPU time per event than 6.38.00"
    )
    expect(tab.page.locator(".canvas svg").first).to_be_visible()
    tab.page.get_by_role("link", name="ROOT 6.40.00 against 6.38.00").click()
    expect(tab.page.get_by_role("heading", name="By site")).to_be_visible()
    assert not tab.bad


def test_chart_zooms_when_a_reader_asks(address: str, open_tab: Visit) -> None:
    tab = open_tab(address)
    assert tab.open("/index.html") == 200
    tab.page.get_by_role("button", name="Zoom", exact=True).click()
    expect(tab.page.locator(".plot.ready svg.marks")).to_have_count(1, timeout=60_000)
    labels = tab.page.locator(".plot.ready .role-axis-label").last
    before = labels.text_content()
    tab.page.get_by_role("button", name="Zoom in").click()
    expect(labels).not_to_have_text(before or "")
    tab.page.get_by_role("link", name="ROOT 6.40.00 against 6.38.00").click()
    expect(tab.page.get_by_role("button", name="Zoom")).to_have_count(0)
    assert not tab.bad
