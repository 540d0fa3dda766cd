"""Seconds until a page is done in Chromium, and of the first page after the service's start.

A page is done when it has loaded and its figures on the screen are drawn. Chromium counts from the
start of the navigation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.harness.ratio_figures import RatioFigure

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

#: Loads of each page after one that fills the browser's cache.
LOADS = 10
#: Limits in seconds: a page in Chromium, and the service's first page after its start.
MAX_DONE_S, MAX_FIRST_S = 0.5, 1.0
#: Milliseconds since the start of the navigation, once the page is done.
_WAIT_UNTIL_DONE = """() => {
    const isShown = one => one.checkVisibility() && one.getBoundingClientRect().top < innerHeight;
    const isDrawn = one => one.classList.contains("ready");
    if (document.readyState !== "complete" || !performance.timing.loadEventEnd) return null;
    const plots = [...document.querySelectorAll(".plot")].filter(isShown);
    return plots.every(isDrawn) ? {ms: performance.now(), drawn: plots.length} : null;
}"""


def load_page(page: Page, address: str) -> tuple[float, int]:
    """Load a page; return seconds until it is done, and the number of figures drawn."""
    page.goto(address, wait_until="commit")
    done = page.wait_for_function(_WAIT_UNTIL_DONE).json_value()
    return done["ms"] / 1000, done["drawn"]


def measure_pages(
    browser: Browser, base: str, addresses: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """Load pages by name, another address of each in every round; return a row for each page."""
    context = browser.new_context(viewport={"width": 1400, "height": 900}, timezone_id="UTC")
    page = context.new_page()
    seconds: dict[str, list[float]] = {name: [] for name in addresses}
    drawn: dict[str, int] = {}
    for number in range(LOADS + 1):
        for name, some in addresses.items():
            passed, drawn[name] = load_page(page, f"{base}{some[number % len(some)]}")
            if number:
                seconds[name].append(passed)
    context.close()
    return [
        {
            "page": name,
            "figures": drawn[name],
            "loads": len(passed),
            "p50_s": float(np.median(passed)),
            "p95_s": float(np.percentile(passed, 95)),
        }
        for name, passed in seconds.items()
    ]


def build_figures(
    rows: Sequence[Mapping[str, Any]], title: str, limit: float, empty: str
) -> list[RatioFigure]:
    """Return the seconds of each page against a limit, and their ratio to an empty page."""
    median = {row["page"]: row["p50_s"] for row in rows}
    figures = []
    for name, seconds in median.items():
        figures.append(RatioFigure(f"{title} s, {name}", seconds, upper_bound=limit))
        if name != empty:
            figures.append(RatioFigure(f"{title} / empty page, {name}", seconds / median[empty]))
    return figures
