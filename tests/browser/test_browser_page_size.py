"""Transfer sizes of pages with large amounts of data, measured by the browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import quote, urlencode

import extreme_databases
import pytest
from browser import WatchedTab
from extreme_databases import CAMPAIGN, JOB, SITES
from service_process import serve_folder

from treehammer import config
from treehammer.collectors.software import providers

Visit = Callable[..., WatchedTab]

#: Bytes of a page once the styles, scripts and libraries are there, and with all of them.
MOST, MOST_AT_FIRST = 1_000_000, 1_000_000
PAGES = (
    "/?days=60",
    f"/sites/{SITES[0]}?days=90",
    "/sites",
    "/campaigns",
    f"/campaigns/{CAMPAIGN}",
    f"/jobs/{quote(JOB)}",
    f"/explore?{urlencode({'by': 'site', 'color': 'variant', 'panels': 'axis_root'})}",
    f"/explore?{urlencode({'by': 'day', 'color': 'site', 'from': '', 'to': ''})}",
    f"/explore?{urlencode({'by': 'host', 'color': 'variant', 'view': 'distribution'})}",
    "/figures/s0",
    "/compare/comparison",
)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("large")
    extreme_databases.fill_large_database(f"sqlite:///{folder / 'results.db'}")
    with serve_folder(folder, "--read-access", "public") as address:
        yield address


class Scale:
    """Weighs what a tab loads."""

    def __init__(self, tab: WatchedTab) -> None:
        self.tab = tab
        self.bytes = 0
        session = tab.context.new_cdp_session(tab.page)
        session.send("Network.enable")
        session.on("Network.loadingFinished", self._add)

    def _add(self, told: dict[str, float]) -> None:
        self.bytes += int(told["encodedDataLength"])

    def weigh(self, path: str) -> int:
        """Open a page; the bytes on the wire, headers and all it loads included."""
        self.bytes = 0
        assert self.tab.open(path) == 200
        return self.bytes


def test_pages_are_small(large: str, open_tab: Visit) -> None:
    scale = Scale(open_tab(large))
    first = scale.weigh("/explore")
    assert 100_000 < first < MOST_AT_FIRST
    weights = {path: scale.weigh(path) for path in PAGES}
    assert max(weights.values()) < MOST, weights
    assert scale.weigh("/explore") < first / 4, "libraries are cached"


@pytest.mark.root
def test_root_file_is_read_partially(large: str, open_tab: Visit) -> None:
    newest = max(providers.WHEELS)
    providers.prepare_software(
        providers.parse_software_request(newest), config.load_settings().software_dir
    )
    tab = open_tab(large)
    scale = Scale(tab)
    for _ in range(2):
        scale.weigh(f"/root-file?campaign={CAMPAIGN}")
        tab.page.get_by_text("eff_job: ").wait_for(timeout=60_000)
    tab.page.get_by_label("Column", exact=True).select_option("cpu_per_event_s")
    tab.page.get_by_text("cpu_per_event_s: ").wait_for()
    tab.page.locator(".drawing svg path").nth(3).wait_for(state="attached")
    assert scale.bytes < MOST
