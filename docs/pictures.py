"""Screenshots of pages for the documentation.

``make pictures`` fills a synthetic world of 40 sites, serves it and writes
``docs/images/page-*.png``. ``make pictures DATA=folder`` takes those of the newest campaign in a
data folder instead. With ``--looks FOLDER`` each page is taken in two widths, light and dark, whole
and into that folder.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import browser as browsers
from local_service import serve_folder
from PIL import Image
from playwright.sync_api import Browser

from benchmarks.harness import planted_world, synthetic_measurements
from treehammer.sql.write.store import Store

IMAGES = Path(__file__).parent / "images"
#: Maximum bytes of a picture.
MOST = 200_000
#: Colors of a picture.
COLORS = 128


@dataclass(frozen=True)
class Shot:
    """One screenshot.

    Attributes:
        path: of the page; ``{campaign}`` and ``{comparison}`` are replaced.
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
    "site": Shot(f"/sites/{planted_world.INEFFICIENT_SITE}", 1150),
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
    "load": Shot("/campaigns/{campaign}/load", 1000),
}
#: Taken by default: those of the synthetic world, and those of a real campaign of few sites. The
#: others need the campaign of a load test.
OF_WORLD = (
    *("overview", "overview-phone", "compare", "site", "s0"),
    *("campaign", "explore", "latency"),
)
OF_CAMPAIGN = ("campaign", "explore", "latency")
#: Widths of windows and color schemes of ``--looks``.
LOOKS = [(width, scheme) for width in (1400, 390) for scheme in ("light", "dark")]


def main() -> None:
    """Take the screenshots that suit the data, or the named ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", default="", help="data folder with results.db")
    parser.add_argument(
        "names", nargs="*", help=f"of {', '.join(SHOTS)}; default: all that suit the data"
    )
    parser.add_argument("--looks", type=Path, metavar="FOLDER", help="all widths and schemes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="treehammer-") as temporary:
        data = Path(given.data or temporary)
        url = f"sqlite:///{data / 'results.db'}"
        if not given.data:
            planted_world.fill_database(url)
        with Store.open(url) as store:
            campaign = store.campaign("last").id
        default = OF_CAMPAIGN if given.data else OF_WORLD
        _take_pictures(data, given.names or default, campaign, given.looks)


def _take_pictures(data: Path, names: Sequence[str], campaign: str, looks: Path | None) -> None:
    with (
        serve_folder(data, "--read-access", "public") as address,
        browsers.run_chromium() as chromium,
    ):
        parts = {"campaign": campaign, "comparison": _newest_comparison(chromium, address)}
        for name in names:
            shot = SHOTS[name]
            if looks:
                _take_looks(chromium, address + shot.path.format(**parts), looks / f"{name}.png")
                continue
            png = _small(_taken(chromium, address + shot.path.format(**parts), shot))
            if len(png) > MOST:
                raise SystemExit(f"{name} has {len(png):,} bytes, and {MOST:,} is the limit")
            (IMAGES / f"page-{name}.png").write_bytes(png)
            print(f"page-{name}.png: {len(png) / 1e3:.0f} kB")


def _take_looks(chromium: Browser, address: str, file: Path) -> None:
    """Take a page in each width and scheme, whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    for width, scheme in LOOKS:
        png = _taken(chromium, address, Shot("", 900, width, scheme), whole=True)
        file.with_stem(f"{file.stem}-{width}-{scheme}").write_bytes(_small(png))


def _newest_comparison(chromium: Browser, address: str) -> str:
    """Return the id of the newest stored comparison; '' if there is none."""
    answer = chromium.new_context().request.get(f"{address}/compare?format=json")
    listed = answer.json()["tables"]["comparisons"]
    return str(listed[0]["comparison_id"]) if listed else ""


def _taken(chromium: Browser, address: str, shot: Shot, *, whole: bool = False) -> bytes:
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
    png = page.screenshot(full_page=whole)
    context.close()
    return png


def _small(png: bytes) -> bytes:
    """Reduce the number of colors."""
    stream = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        few = picture.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
        few.save(stream, "PNG", optimize=True)
    return stream.getvalue()


if __name__ == "__main__":
    main()
