"""Load of a campaign in a real browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from browser import LOOKS, WatchedTab
from measurement_factory import STARTED_DAY
from page_database import CAMPAIGN, RATES, STEPS, add_load_campaign
from service_process import serve_folder

from treehammer.sql.write.store import Store

Visit = Callable[..., WatchedTab]

PAGE = f"/campaigns/{CAMPAIGN}/load"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("load")
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        add_load_campaign(store)
    with serve_folder(folder, "--read-access", "public") as address:
        yield address


@pytest.mark.parametrize("size, scheme", LOOKS)
def test_load_is_reachable_and_drawn(loaded: str, open_tab: Visit, size: str, scheme: str) -> None:
    tab = open_tab(loaded, size=size, scheme=scheme)
    tab.open(f"/campaigns/{CAMPAIGN}")
    tab.page.get_by_role("link", name="Load", exact=True).click()
    tab.page.get_by_role("heading", name="Load of opens", level=1).wait_for()
    figures = tab.page.locator("figure")
    points, marks = ".canvas .mark-symbol.role-mark path", ".canvas .mark-text.role-mark text"
    figures.first.locator(".plot.ready").wait_for()
    assert figures.first.locator(points).count() == len(RATES)
    rates = figures.filter(has_text="over seconds since the start").first
    rates.scroll_into_view_if_needed()
    rates.locator(".plot.ready").wait_for()
    assert rates.locator(points).count() == 3 * (STEPS - 1)
    assert rates.locator(marks).count() == 1
    tab.check_page()


def test_load_over_time_is_selectable_without_javascript(loaded: str, open_tab: Visit) -> None:
    tab = open_tab(loaded, script=False)
    tab.open(PAGE)
    tab.page.get_by_role("combobox", name="Load").select_option(label="clients=20")
    tab.page.get_by_role("button", name="Show").click()
    tab.page.get_by_role("heading", name="Over time: clients=20").wait_for()
    tab.page.get_by_text("Table of time steps").click()
    assert tab.page.get_by_role("table", name="Time steps").locator("tbody tr").count() == STEPS


def test_letters_of_storages_are_drawn(loaded: str, open_tab: Visit) -> None:
    tab = open_tab(loaded)
    day = f"{STARTED_DAY // 10000}-{STARTED_DAY // 100 % 100:02}-{STARTED_DAY % 100:02}"
    tab.open(f"/?to={day}")
    matrix = tab.page.get_by_role("region", name="Status of each storage by day")
    assert matrix.locator("td.warning").inner_text().startswith("W")
    tab.check_page()
    matrix.locator("td.warning a").click()
    tab.page.get_by_role("link", name="opens").first.wait_for()
