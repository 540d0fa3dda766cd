"""Screenshots of pages for the documentation.

``make pictures`` fills a synthetic world of 40 sites, serves it and writes
``docs/images/page-*.webp``. ``make pictures DATA=folder`` takes those of the newest campaign in a
data folder instead.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import browser as browsers
import page_database
import planted_world
from PIL import Image
from playwright.sync_api import Browser
from service_process import serve_folder

from benchmarks.harness import synthetic_measurements
from treehammer.analysis.comparison.conclusion import count_slower
from treehammer.sql.read import overview_queries, stored_comparisons
from treehammer.sql.write.store import Store

IMAGES = Path(__file__).parent / "images"
#: Latest comparisons of which one is shown.
MAX_COMPARISONS = 10


@dataclass(frozen=True)
class Shot:
    """One screenshot.

    Attributes:
        path: of the page, with names of parts in braces; see :func:`_find_parts`.
        height: of the window in pixels.
        width: of the window in pixels.
        scheme: color scheme.
    """

    path: str
    height: int
    width: int = 1280
    scheme: str = "light"


#: Sites of the synthetic world, of which one is slow; a data folder has few anyway.
_SOME_SITES = "".join(
    f"&where=site={site}"
    for site in (*synthetic_measurements.SITE_NAMES[:2], planted_world.INEFFICIENT_SITE)
)
#: Name -> screenshot.
SHOTS: Mapping[str, Shot] = {
    "overview": Shot("/", 1230),
    "overview-phone": Shot("/", 844, width=390, scheme="dark"),
    "compare": Shot("/compare/{comparison}", 1150),
    "site": Shot("/sites/{site}", 1150),
    "s0": Shot("/figures/s0", 1130),
    "explore": Shot(
        "/explore?metric=cpu_per_event_s&by=variant&color=axis_root&panels=site&campaign={campaign}"
        + _SOME_SITES,
        1180,
    ),
    "campaign": Shot("/campaigns/{campaign}", 800),
    "load": Shot(f"/campaigns/{page_database.CAMPAIGN}/load", 1000),
}
#: Taken by default: those of the synthetic world, and those of a real campaign of few sites.
OF_WORLD = tuple(name for name in SHOTS if name != "load")
OF_CAMPAIGN = ("campaign", "explore")


def main() -> None:
    """Take the screenshots that suit the data, or the named ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", default="", help="data folder with results.db")
    parser.add_argument(
        "names", nargs="*", help=f"of {', '.join(SHOTS)}; default: all that suit the data"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="treehammer-") as temporary:
        data = Path(arguments.data or temporary)
        url = f"sqlite:///{data / 'results.db'}"
        if not arguments.data:
            planted_world.fill_database(url)
        with Store.open(url) as store:
            parts = _find_parts(store, is_world=not arguments.data)
            if not arguments.data:
                page_database.add_load_campaign(store)
        _take_pictures(
            data, arguments.names or (OF_CAMPAIGN if arguments.data else OF_WORLD), parts
        )


def _find_parts(store: Store, *, is_world: bool) -> dict[str, str]:
    """Find the newest campaign of reads, a comparison with slower variants, and a site."""
    latest = stored_comparisons.list_latest_comparisons(store, MAX_COMPARISONS)
    compared = max(latest, key=lambda summary: count_slower(summary.counts)[0], default=None)
    site = planted_world.INEFFICIENT_SITE if is_world else overview_queries.list_sites(store)[-1]
    return {
        "campaign": store.campaign("last").id,
        "comparison": compared.first_verdict.comparison_id if compared else "",
        "site": site,
    }


def _take_pictures(data: Path, names: Iterable[str], parts: Mapping[str, str]) -> None:
    with (
        serve_folder(data, "--read-access", "public") as address,
        browsers.run_chromium() as chromium,
    ):
        for name in names:
            url = address + SHOTS[name].path.format(**parts)
            _take_picture(chromium, url, SHOTS[name], IMAGES / f"page-{name}.webp")


def _take_picture(chromium: Browser, address: str, shot: Shot, file: Path) -> None:
    """Take a picture and write it without loss."""
    context = chromium.new_context(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme="dark" if shot.scheme == "dark" else "light",
        locale="en-GB",
        timezone_id="UTC",
    )
    page = context.new_page()
    page.goto(address)
    page.wait_for_load_state("networkidle")
    with Image.open(io.BytesIO(page.screenshot())) as picture:
        picture.save(file, lossless=True, quality=80, method=6)
    context.close()
    print(f"{file.name}: {file.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
