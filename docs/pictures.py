"""Screenshots of pages for the documentation.

``make pictures`` fills a synthetic world of 40 sites, serves it and writes
``docs/images/page-*.webp``. ``make pictures DATA=folder`` takes those of the newest campaign in a
data folder instead. With ``--looks FOLDER`` the first screen of each page is taken in two widths
into that folder.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import browser as browsers
import page_database
import planted_world
from PIL import Image
from playwright.sync_api import Browser
from service_process import serve_folder

from benchmarks.harness import synthetic_measurements
from treehammer.analysis.comparison.conclusion import count_slower
from treehammer.analysis.status.site_uses import SiteState
from treehammer.sql.core.watch_rows import PatrolEntryRow, PatrolStartRow
from treehammer.sql.read import campaign_queries, overview_queries, stored_comparisons
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.watch.store import alarms, state_history
from treehammer.watch.store.patrol_report import write_entries, write_limits
from treehammer.watch.store.patrol_starts import (
    PatrolLease,
    PatrolStarts,
    SiteCharge,
    SiteLimits,
)

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
        part: CSS selector of the element to scroll to.
    """

    path: str
    height: int
    width: int = 1280
    scheme: str = "light"
    part: str = ""


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
    "latency": Shot(
        f"/explore?view=latency&by=site&color=axis_root&campaign={{campaign}}{_SOME_SITES}",
        1100,
        scheme="dark",
    ),
    "campaign": Shot("/campaigns/{campaign}", 800),
    "job": Shot("/jobs/{job}", 1000),
    "measurement": Shot("/measurements/{measurement}", 1000),
    "day": Shot("/days/{day}?site={site}", 1000),
    "sites": Shot("/sites", 1000),
    "campaigns": Shot("/campaigns", 1000),
    "comparisons": Shot("/compare", 1000),
    "changes": Shot("/changes", 1000),
    "change": Shot("/changes/{change}", 1000),
    "state": Shot("/state-changes/{state}", 1000),
    "week": Shot("/digest", 1000),
    "release": Shot(f"/releases/{planted_world.SLOWER}", 1000),
    "doors": Shot("/figures/doors", 1000),
    "trend": Shot("/explore?by=day&color=site", 1000),
    "patrol": Shot("/patrol", 1000),
    "rootfile": Shot("/root-file?campaign={campaign}", 1000),
    "cache": Shot("/figures/cache", 1000),
    "load": Shot(f"/campaigns/{page_database.CAMPAIGN}/load", 1000),
    "alarms": Shot("/alarms", 1000),
    "search": Shot("/search?q=SITE-4", 1000),
}
#: Taken by default: those of the synthetic world, and those of a real campaign of few sites.
OF_WORLD = (
    *("overview", "overview-phone", "compare", "site", "s0"),
    *("campaign", "explore", "latency"),
)
OF_CAMPAIGN = ("campaign", "explore", "latency")
#: Those of a data folder of study S5, which the synthetic world lacks.
OF_CACHES = ("cache",)
#: Sizes of windows of ``--looks``.
LOOKS = ((1400, 1300), (390, 1300))
#: Quality of its pictures, in which texts can be read.
LOOKS_QUALITY = 50


def main() -> None:
    """Take the screenshots that suit the data, or the named ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", default="", help="data folder with results.db")
    parser.add_argument(
        "names", nargs="*", help=f"of {', '.join(SHOTS)}; default: all that suit the data"
    )
    parser.add_argument("--looks", type=Path, metavar="FOLDER", help="all pages in both widths")
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
                _add_patrol(store, parts["campaign"])
        default = OF_CAMPAIGN if arguments.data else OF_WORLD
        looks = [name for name in SHOTS if name not in OF_CACHES]
        names = arguments.names or (looks if arguments.looks else default)
        _take_pictures(data, names, parts, arguments.looks)


def _add_patrol(store: Store, campaign: str) -> None:
    """Add a patrol of two entries, of which one has started a campaign."""
    lease = PatrolLease(store, "node1:/data")
    lease.acquire()
    sites = synthetic_measurements.SITE_NAMES[:3]
    limits = {site: SiteLimits(cpu_s=36_000, bytes=10**11) for site in sites}
    write_limits(store, lease, limits)
    now_us = time.time_ns() // 1000
    day_us = 86_400_000_000
    entries = [
        PatrolEntryRow("daily", 1, "ttree-read", "", "all", 86_400, 1, now_us + day_us, "", now_us),
        PatrolEntryRow(
            "releases", 9, "ttree-read", "releases", ", ".join(sites), None, 1, None, "", now_us
        ),
    ]
    write_entries(store, lease, entries)
    start = PatrolStartRow("daily", "time:1", campaign, "", now_us, 0, None, 0, "", "{}", "")
    PatrolStarts(store, lease).claim(start, {sites[0]: SiteCharge(1800.0, 5 * 10**9)}, limits, 1)


def _find_parts(store: Store, *, is_world: bool) -> dict[str, str]:
    """Find the newest campaign of reads, a comparison with slower variants, a job, a site and their pages."""
    campaign = store.campaign("last").id
    latest = stored_comparisons.list_latest_comparisons(store, MAX_COMPARISONS)
    compared = max(latest, key=lambda summary: count_slower(summary.counts)[0], default=None)
    (job,), _ = campaign_queries.list_job_summaries(store, campaign, {}, 0, 1)
    site = planted_world.INEFFICIENT_SITE if is_world else overview_queries.list_sites(store)[-1]
    of_job = Selection.parse((), [f"job_id={job.job.id}"])
    row = next(iter(store.measurements(of_job, ("measurement_id", "day"))))
    changes = [change.id for change in alarms.load_change_points(store)]
    warnings = [
        change.id
        for change in state_history.list_state_changes(store)
        if change.state == SiteState.WARNING.value
    ]
    return {
        "campaign": campaign,
        "change": changes[0] if changes else "",
        "state": warnings[-1] if warnings else "",
        "comparison": compared.first_verdict.comparison_id if compared else "",
        "site": site,
        "job": job.job.id,
        "measurement": str(row["measurement_id"]),
        "day": date.fromisoformat(str(row["day"])).isoformat(),
    }


def _take_pictures(
    data: Path, names: Sequence[str], parts: Mapping[str, str], looks: Path | None
) -> None:
    with (
        serve_folder(data, "--read-access", "public") as address,
        browsers.run_chromium() as chromium,
    ):
        for name in names:
            shot = SHOTS[name]
            url = address + shot.path.format(**parts)
            if looks:
                _take_looks(chromium, url, looks / f"{name}.webp")
                continue
            _take_picture(chromium, url, shot, IMAGES / f"page-{name}.webp")


def _take_looks(chromium: Browser, address: str, file: Path) -> None:
    """Take the first screen of a page in each size."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for width, height in LOOKS:
        path = file.with_stem(f"{file.stem}-{width}")
        _take_picture(chromium, address, Shot("", height, width), path, quality=LOOKS_QUALITY)


def _take_picture(
    chromium: Browser, address: str, shot: Shot, file: Path, *, quality: int = 0
) -> None:
    """Take a picture and write it, without loss unless a quality is given."""
    context = chromium.new_context(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme="dark" if shot.scheme == "dark" else "light",
        locale="en-GB",
        timezone_id="UTC",
    )
    page = context.new_page()
    page.goto(address)
    page.wait_for_load_state("networkidle")
    if shot.part:
        page.locator(shot.part).evaluate("part => part.scrollIntoView()")
    with Image.open(io.BytesIO(page.screenshot())) as picture:
        picture.save(file, lossless=not quality, quality=quality or 80, method=6)
    context.close()
    print(f"{file.name}: {file.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
