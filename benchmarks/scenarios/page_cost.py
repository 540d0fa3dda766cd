"""Seconds of the service for each page on a large database, and of the main pages in a browser.

``treehammer serve`` runs in its own process. Its ``Server-Timing`` is the measured time; its CPU time
comes from the kernel. A page is done in Chromium when it has loaded and its figures on the screen are
drawn, counted from the start of the navigation.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import re
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from benchmarks.harness import synthetic_jobs, synthetic_measurements
from benchmarks.harness.figures import SEED, RatioFigure, print_table, write_results
from benchmarks.harness.filled_databases import filled_database, seed_campaigns
from benchmarks.harness.program_runs import REPOSITORY, run_service
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.write.store import Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: Requests per page after uncounted ones, unless they take too long, and loads in the browser.
REPEATS, WARM_UP, TIMEOUT_S, LOADS = 40, 2, 30.0, 10
#: Sites whose pages are requested, the first ones: small databases have no others.
REQUESTED_SITES = 10
#: Pages that answer the readers' questions.
MAIN_PAGES = ("overview", "a comparison", "figure S0", "a site, 30 days")
#: Number of measurements -> limit of the main pages' 95th percentile in the service, in seconds;
#: larger databases have the last one.
MAX_PAGE_S = {2_000_000: 0.3, 10_000_000: 1.0}
#: Limit of their 95th percentile in Chromium.
MAX_DONE_S = 1.0
_HEADERS = {"Accept": "text/html", "Accept-Encoding": "gzip"}
#: Milliseconds since the start of the navigation, once the page is done.
_WAIT_UNTIL_DONE = """() => {
    const isShown = plot => plot.checkVisibility() && plot.getBoundingClientRect().top < innerHeight;
    const isDrawn = plot => plot.classList.contains("ready");
    if (document.readyState !== "complete" || !performance.timing.loadEventEnd) return null;
    const plots = [...document.querySelectorAll(".plot")].filter(isShown);
    return plots.every(isDrawn) ? performance.now() : null;
}"""


@dataclass(frozen=True)
class PageRequest:
    """A page and the rows that it must show.

    Attributes:
        name: title in tables.
        address: path and query; ``{site}`` and ``{comparison}`` stand for another one in each
            round.
        row_marker: a table of the page and one of its columns, whose values other than 0 are
            counted; or '' and the start of the lines of plain text to count; None for the unknown
            page, which shows nothing.
    """

    name: str
    address: str
    row_marker: tuple[str, str] | None

    @property
    def status(self) -> HTTPStatus:
        """Expected status of the response."""
        return HTTPStatus.OK if self.row_marker else HTTPStatus.NOT_FOUND

    def address_in_round(self, number: int) -> str:
        """Return the address in a round."""
        sites = synthetic_measurements.SITE_NAMES[:REQUESTED_SITES]
        comparison = synthetic_jobs.comparison_id(number % synthetic_jobs.COMPARISON_COUNT)
        return self.address.format(site=sites[number % len(sites)], comparison=comparison)

    @property
    def api_address(self) -> str:
        """The address of the same data for programs."""
        address = self.address_in_round(0)
        if address == "/metrics":
            return address
        return f"{address}{'&' if '?' in address else '?'}format=json"


@dataclass
class PageTimings:
    """Timings of a page, and bytes as sent.

    ``seconds`` is the service's time, ``cpu_s`` that of its threads on a CPU.
    """

    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    size: int = 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--no-browser", action="store_true", help="pages: without Chromium")


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Measure the pages on a large database."""
    pages = build_page_requests()
    jobs = REQUESTED_SITES * synthetic_measurements.DAYS
    minimum = jobs * synthetic_measurements.MEASUREMENTS_PER_JOB
    if options.rows < minimum:
        message = f"{REQUESTED_SITES} sites with a job a day have at least {minimum} rows"
        raise ConfigError(message, where="--rows")
    with filled_database(options.rows, options.keep) as database:
        url = f"sqlite:///{database}"
        with Store.open(url, create=False) as store:
            synthetic_jobs.add_missing_records(store, seed_campaigns(options.rows))
        with run_service(url) as (port, process):
            counts = {page.name: count_shown_rows(port, page) for page in pages}
            timings = _request_all_pages(port, process, pages)
            done_s = {} if options.no_browser else _load_main_pages(port, pages)
    rows = [
        {
            **_result_row(options.rows, page, timings[page.name]),
            "shown_rows": counts[page.name],
            "done_p95_s": done_s.get(page.name, ""),
        }
        for page in pages
    ]
    write_results("pages", rows)
    print_table(rows)
    return list(_build_figures(rows))


def _load_main_pages(port: int, pages: Sequence[PageRequest]) -> dict[str, float]:
    """Load the main pages in Chromium, another address in every round; return their p95 in s."""
    main_pages = [page for page in pages if page.name in MAIN_PAGES]
    seconds: dict[str, list[float]] = {page.name: [] for page in main_pages}
    with _run_chromium() as browser:
        context = browser.new_context(viewport={"width": 1400, "height": 900}, timezone_id="UTC")
        tab = context.new_page()
        for number in range(LOADS + 1):
            for page in main_pages:
                address = f"http://127.0.0.1:{port}{page.address_in_round(number)}"
                tab.goto(address, wait_until="commit")
                done_ms = float(tab.wait_for_function(_WAIT_UNTIL_DONE).json_value())
                if number:  # the first load fills the browser's cache
                    seconds[page.name].append(done_ms / 1000)
        context.close()
    return {name: float(np.percentile(values, 95)) for name, values in seconds.items()}


def _run_chromium() -> AbstractContextManager[Browser]:
    """Run the tests' headless browser."""
    for folder in ("common", "web"):
        sys.path.append(str(REPOSITORY / "tests" / "helpers" / folder))
    browser = importlib.import_module("browser").run_chromium()
    return cast("AbstractContextManager[Browser]", browser)


def build_page_requests() -> list[PageRequest]:
    """Build the pages for the last day of :mod:`benchmarks.harness.synthetic_measurements`."""
    last = synthetic_measurements.DAYS - 1
    until, week, first = (_iso_day(day) for day in (last, last - 6, 0))
    site = "{site}"
    campaign = synthetic_measurements.campaign_id(last)
    job = synthetic_measurements.job_id(last, 0)
    figure = ("figure", "number")
    week_of_site = f"site={site}&from={week}&to={until}"
    pages = (
        ("empty page", "/nothing", None),
        ("overview", f"/?to={until}", ("site_days", "good")),
        ("a comparison", "/compare/{comparison}", ("pooled", "shown_verdict")),
        ("figure S0", "/figures/s0", figure),
        ("a site, 30 days", f"/sites/{site}?to={until}", ("series", "mean")),
        ("sites", "/sites", ("sites", "good")),
        ("explore", "/explore", figure),
        ("explore, all days", f"/explore?by=day&color=site&from={first}&to={until}", figure),
        ("explore, slowest hosts of a site", f"/explore?by=host&{week_of_site}", figure),
        ("metrics for Prometheus", "/metrics", ("", "treehammer_site_status{")),
        ("campaigns", "/campaigns", ("campaigns", "recorded")),
        ("a campaign", f"/campaigns/{campaign}", ("jobs", "recorded")),
        ("a job", f"/jobs/{job}", ("measurements", "outcome")),
    )
    return [PageRequest(*page) for page in pages]


def _iso_day(day: int) -> str:
    return (synthetic_measurements.FIRST_DAY + timedelta(days=day)).isoformat()


def count_shown_rows(port: int, page: PageRequest) -> int:
    """Count the rows with a value in the page's data for programs; raise if there are none."""
    if page.row_marker is None:
        return 0
    table, column = page.row_marker
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{page.api_address}") as response:
        body = response.read()
    if table:
        count = sum(bool(row[column]) for row in json.loads(body)["tables"][table])
    else:
        count = sum(line.startswith(column) for line in body.decode().splitlines())
    if not count:
        raise NothingToDoError("the page shows nothing", where=f"{page.name} ({page.address})")
    return count


def _request_all_pages(
    port: int, process: int, pages: Sequence[PageRequest]
) -> dict[str, PageTimings]:
    """Request every page in each round, in random order."""
    timings = {page.name: PageTimings() for page in pages}
    shuffled = list(pages)
    dice = random.Random(SEED)
    for round_ in range(-WARM_UP, REPEATS):
        dice.shuffle(shuffled)
        for page in shuffled:
            of_page = timings[page.name]
            if sum(of_page.seconds) >= TIMEOUT_S:
                continue
            cpu_before = _cpu_seconds(process)
            seconds, of_page.size = request_page(port, page, WARM_UP + round_)
            if round_ >= 0:
                of_page.seconds.append(seconds)
                of_page.cpu_s.append(_cpu_seconds(process) - cpu_before)
    return timings


def _cpu_seconds(process: int) -> float:
    """Return a process's seconds on a CPU, over all threads."""
    total = 0
    for file in Path(f"/proc/{process}/task").glob("*/schedstat"):
        try:
            total += int(file.read_text().split()[0])
        except FileNotFoundError:
            continue  # the thread has ended
    return total / 1e9


def request_page(port: int, page: PageRequest, number: int) -> tuple[float, int]:
    """Return seconds until the service responds in a round, and bytes of the body."""
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request("GET", page.address_in_round(number), headers=_HEADERS)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    timing = re.match(r"total;dur=([\d.]+)$", answer.headers.get("Server-Timing", ""))
    if answer.status != page.status or not timing:
        raise RuntimeError(f"{page.address}: {answer.status} {answer.headers} {body[:200]!r}")
    return float(timing[1]) / 1000, len(body)


def _result_row(rows: int, page: PageRequest, timings: PageTimings) -> dict[str, Any]:
    p50, p95 = np.percentile(timings.seconds, (50, 95))
    return {
        "rows": rows,
        "page": page.name,
        "p50_s": float(p50),
        "p95_s": float(p95),
        "cpu_p95_s": float(np.percentile(timings.cpu_s, 95)),
        "repeats": len(timings.seconds),
        "bytes": timings.size,
        "load": os.getloadavg()[0],
    }


def _build_figures(rows: Sequence[dict[str, Any]]) -> Iterator[RatioFigure]:
    for row in rows:
        title = f"{row['page']}, {row['rows']} rows"
        is_main = row["page"] in MAIN_PAGES
        limits = [limit for count, limit in MAX_PAGE_S.items() if row["rows"] <= count]
        limit = next(iter(limits), max(MAX_PAGE_S.values())) if is_main else None
        yield RatioFigure(f"p95 s, {title}", row["p95_s"], upper_bound=limit)
        if row["done_p95_s"] != "":
            name = f"p95 s in Chromium, {title}"
            yield RatioFigure(name, row["done_p95_s"], upper_bound=MAX_DONE_S)
