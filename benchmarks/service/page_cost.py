"""Seconds of the service for each page on a large database, beside a page without queries.

``treehammer serve`` runs in its own process. Its ``Server-Timing`` is the measured time; its CPU
time and run-queue wait come from the kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes

from benchmarks.harness import synthetic_jobs, synthetic_measurements
from benchmarks.harness.chromium import run_chromium
from benchmarks.harness.filled_databases import filled_database, seed_rows
from benchmarks.harness.ratio_figures import SEED, RatioFigure, database_panels, write_rows
from benchmarks.harness.service_runs import run_service
from benchmarks.service import page_done
from treehammer.errors import NothingToDoError
from treehammer.sql.write.store import Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser

#: Requests per page after uncounted ones, unless they take too long.
REPEATS, WARM_UP, TIMEOUT_S = 40, 2, 30.0
#: Sources of a page's data.
READS_NOTHING, READS_ROLLUPS, READS_LONG_ROLLUPS = (
    "nothing",
    "roll-ups and verdicts",
    "roll-ups of more than 90 days",
)
READS_INDEX, READS_MEASUREMENTS = "an index", "measurements"
#: Marker of a page whose rows are not counted.
NO_ROWS = ("", "")
COLORS = {
    READS_NOTHING: "0.4",
    READS_ROLLUPS: "tab:blue",
    READS_LONG_ROLLUPS: "tab:purple",
    READS_INDEX: "tab:green",
    READS_MEASUREMENTS: "tab:red",
}
EMPTY_PAGE = "empty page"
#: Pages that answer the readers' questions.
MAIN_PAGES = ("overview", "a comparison", "figure S0", "a site, 30 days")
#: Limits in seconds of the 95th percentile: of the main pages, and of other pages of roll-ups and
#: verdicts.
MAX_MAIN_PAGE_S, MAX_PAGE_S = 0.1, 0.2
#: Starts of the service before each main page.
STARTS = 5
_HEADERS = {"Accept": "text/html", "Accept-Encoding": "gzip"}


@dataclass(frozen=True)
class PageRequest:
    """A page and its data source.

    Attributes:
        name: title in tables and plots.
        address: path and query; ``{site}`` and ``{comparison}`` stand for another one in each
            round.
        row_marker: a table of the page and one of its columns, whose values other than 0 are
            counted; or '' and the start of the lines of plain text to count.
        reads: source of its data.
    """

    name: str
    address: str
    row_marker: tuple[str, str] = NO_ROWS
    reads: str = READS_ROLLUPS

    @property
    def status(self) -> HTTPStatus:
        """Expected status of the response."""
        return HTTPStatus.NOT_FOUND if self.reads == READS_NOTHING else HTTPStatus.OK

    def address_in_round(self, number: int) -> str:
        """Return the address in a round."""
        sites = synthetic_measurements.SITE_NAMES
        comparison = synthetic_jobs.comparison_id(number % synthetic_jobs.COMPARISON_COUNT)
        return self.address.format(site=sites[number % len(sites)], comparison=comparison)

    @property
    def api_address(self) -> str:
        """The address of the same data for programs."""
        address = self.address_in_round(0)
        if address.startswith(("/api/", "/metrics")):
            return address
        return f"{address}{'&' if '?' in address else '?'}format=json"

    def count_rows(self, plain: bytes) -> int:
        """Count the rows with a value in the data for programs."""
        table, column = self.row_marker
        if not table:
            return sum(line.startswith(column) for line in plain.decode().splitlines())
        return sum(bool(row[column]) for row in json.loads(plain)["tables"][table])


@dataclass
class PageTimings:
    """Timings of a page, and bytes as sent.

    ``seconds`` is the service's time; ``cpu_s`` and ``run_queue_s`` are its threads' time on a CPU and
    ready to run without one.
    """

    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    run_queue_s: list[float] = field(default_factory=list)
    size: int = 0


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Measure the pages on each kind of database."""
    pages = build_page_requests()
    rows: list[dict[str, Any]] = []
    first: list[dict[str, Any]] = []
    done: list[dict[str, Any]] = []
    for kind in options.databases:
        with filled_database(kind, options.rows, options.keep) as found:
            with Store.open(found.url, create=False) as store:
                synthetic_jobs.add_missing_records(store, seed_rows(options.rows))
            with run_service(found.url) as (port, process):
                shown = {page.name: _count_shown_rows(port, page) for page in pages}
                timings = _request_all_pages(port, process, pages)
                with run_chromium() as browser:
                    done += _load_in_browser(browser, kind, port, pages)
            first += _measure_first_pages(kind, found.url, pages)
        rows += [
            _result_row(kind, options.rows, page, timings[page.name], shown[page.name])
            for page in pages
        ]
    write_rows("pages", rows)
    write_rows("first_pages", first)
    write_rows("pages_in_browser", done)
    _plot_timings(rows)
    return [
        *_build_figures(rows),
        *page_done.build_figures(
            first, "first page after start", page_done.MAX_FIRST_S, EMPTY_PAGE
        ),
        *page_done.build_figures(done, "done in Chromium", page_done.MAX_DONE_S, EMPTY_PAGE),
    ]


def _select_main_pages(pages: Sequence[PageRequest]) -> list[PageRequest]:
    return [page for page in pages if page.name in (EMPTY_PAGE, *MAIN_PAGES)]


def _measure_first_pages(kind: str, url: str, pages: Sequence[PageRequest]) -> list[dict[str, Any]]:
    """Measure each main page as the first one of a service."""
    rows = []
    for page in _select_main_pages(pages):
        seconds = []
        for number in range(STARTS):
            with run_service(url) as (port, _):
                seconds.append(request_page(port, page, number)[0])
        row = {"database": kind, "page": page.name, "starts": STARTS}
        rows.append(row | {"p50_s": float(np.median(seconds)), "slowest_s": max(seconds)})
    return rows


def _load_in_browser(
    browser: Browser, kind: str, port: int, pages: Sequence[PageRequest]
) -> list[dict[str, Any]]:
    """Measure the main pages in Chromium."""
    addresses = {
        page.name: [page.address_in_round(number) for number in range(page_done.LOADS + 1)]
        for page in _select_main_pages(pages)
    }
    rows = page_done.measure_pages(browser, f"http://127.0.0.1:{port}", addresses)
    return [{"database": kind, **row} for row in rows]


def build_page_requests() -> list[PageRequest]:
    """Build the pages for the last day of :mod:`benchmarks.harness.synthetic_measurements`."""
    last = synthetic_measurements.DAYS - 1
    until, week, first = (iso_day(day) for day in (last, last - 6, 0))
    site = "{site}"
    campaign = synthetic_measurements.campaign_id(last)
    job = synthetic_measurements.job_id(last, 0)
    all_days = f"from={first}&to={until}"
    releases = "&".join(f"axis_root={one}" for one in synthetic_jobs.RELEASES)
    overview, series, figure = ("site_days", "good"), ("series", "mean"), ("figure", "number")
    by_source = {
        READS_NOTHING: [(EMPTY_PAGE, "/nothing", NO_ROWS)],
        READS_ROLLUPS: [
            ("overview", f"/?to={until}", overview),
            ("overview, 60 days", f"/?to={until}&days=60", overview),
            ("a day of a site", f"/days/{until}?site={site}", ("measured", "good")),
            ("sites", "/sites", ("sites", "good")),
            ("a site, 30 days", f"/sites/{site}?to={until}", series),
            ("a site, 90 days", f"/sites/{site}?to={until}&days=90", series),
            ("comparisons", "/compare", ("comparisons", "over_sites")),
            ("a comparison", "/compare/{comparison}", ("pooled", "shown_verdict")),
            ("figure S0", "/figures/s0", figure),
            ("explore", "/explore", figure),
            ("explore: trend by day and site", "/explore?by=day&color=site", figure),
            (
                "explore: a panel for each site",
                "/explore?by=variant&color=axis_root&panels=site",
                figure,
            ),
            (
                "explore: read latency by site",
                "/explore?view=latency&by=site",
                ("figure", "reads"),
            ),
            ("metrics for Prometheus", "/metrics", ("", "treehammer_site_status{")),
            ("API: overview", f"/api/v1/overview?to={until}", overview),
            ("API: a site", f"/api/v1/sites/{site}?to={until}", series),
            ("API: explore", "/api/v1/explore?by=day&color=site", figure),
        ],
        READS_LONG_ROLLUPS: [
            ("a site, 180 days", f"/sites/{site}?to={until}&days=180", series),
            (
                "explore: two releases by site, all days",
                f"/explore?metric=cpu_per_event_s&{releases}&{all_days}",
                figure,
            ),
            (
                "explore: 16,000 groups, all days and sites",
                f"/explore?by=day&color=site&{all_days}",
                figure,
            ),
        ],
        READS_INDEX: [
            ("campaigns", "/campaigns", ("campaigns", "recorded")),
            ("a campaign", f"/campaigns/{campaign}", ("jobs", "recorded")),
            ("a job", f"/jobs/{job}", ("measurements", "outcome")),
        ],
        READS_MEASUREMENTS: [
            (
                "explore: slowest hosts of a site, 7 days",
                f"/explore?by=host&site={site}&from={week}&to={until}",
                figure,
            ),
            (
                "explore: distribution at a site, 30 days",
                f"/explore?view=distribution&site={site}",
                figure,
            ),
            (
                "explore: intervals over jobs of a campaign",
                f"/explore?bars=interval&campaign={campaign}",
                figure,
            ),
        ],
    }
    return [PageRequest(*page, reads) for reads, pages in by_source.items() for page in pages]


def iso_day(day: int) -> str:
    return (synthetic_measurements.FIRST_DAY + timedelta(days=day)).isoformat()


def _count_shown_rows(port: int, page: PageRequest) -> int:
    """Count the rows that a page shows; raise if there are none."""
    if page.reads == READS_NOTHING:
        return 0
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{page.api_address}") as answer:
        shown = page.count_rows(answer.read())
    if not shown:
        raise NothingToDoError("the page shows nothing", where=f"{page.name} ({page.address})")
    return shown


def _request_all_pages(
    port: int, process: int, wanted: Sequence[PageRequest]
) -> dict[str, PageTimings]:
    """Request every page in each round, in random order."""
    found = {page.name: PageTimings() for page in wanted}
    order = list(wanted)
    dice = random.Random(SEED)
    for round_ in range(-WARM_UP, REPEATS):
        dice.shuffle(order)
        for page in order:
            answers = found[page.name]
            if sum(answers.seconds) >= TIMEOUT_S:
                continue
            cpu, waited = _cpu_and_queue_s(process)
            seconds, answers.size = request_page(port, page, WARM_UP + round_)
            if round_ >= 0:
                now, waited_now = _cpu_and_queue_s(process)
                answers.seconds.append(seconds)
                answers.cpu_s.append(now - cpu)
                answers.run_queue_s.append(waited_now - waited)
    return found


def _cpu_and_queue_s(process: int) -> tuple[float, float]:
    """Return a process's seconds on a CPU and ready without one, over all threads."""
    cpu = waited = 0
    for file in Path(f"/proc/{process}/task").glob("*/schedstat"):
        try:
            had, missed, _ = file.read_text().split()
        except FileNotFoundError:
            continue  # the thread has ended
        cpu, waited = cpu + int(had), waited + int(missed)
    return cpu / 1e9, waited / 1e9


def request_page(port: int, page: PageRequest, number: int = 0) -> tuple[float, int]:
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


def _result_row(
    kind: str, rows: int, page: PageRequest, answers: PageTimings, shown: int
) -> dict[str, Any]:
    p50, p95 = np.percentile(answers.seconds, (50, 95))
    return {
        "database": kind,
        "rows": rows,
        "page": page.name,
        "reads": page.reads,
        "p50_s": float(p50),
        "p95_s": float(p95),
        "slowest_s": max(answers.seconds),
        "cpu_p95_s": float(np.percentile(answers.cpu_s, 95)),
        "waited_p95_s": float(np.percentile(answers.run_queue_s, 95)),
        "repeats": len(answers.seconds),
        "shown": shown,
        "bytes": answers.size,
        "load": os.getloadavg()[0],
    }


def _build_figures(rows: Sequence[dict[str, Any]]) -> list[RatioFigure]:
    figures = []
    for row in rows:
        empty = next(
            one
            for one in rows
            if one["database"] == row["database"] and one["reads"] == READS_NOTHING
        )
        where = f"{row['page']}, {row['database']}, {row['rows']} rows"
        bound = MAX_PAGE_S if row["reads"] == READS_ROLLUPS else None
        bound = MAX_MAIN_PAGE_S if row["page"] in MAIN_PAGES else bound
        figures.append(RatioFigure(f"p95 s, {where}", row["p95_s"], upper_bound=bound))
        if row is not empty:
            figures.append(RatioFigure(f"p50 / empty page, {where}", row["p50_s"] / empty["p50_s"]))
    return figures


def _plot_timings(rows: Sequence[dict[str, Any]]) -> None:
    """Plot median and p95 of each page against the limit, one panel per database."""
    kinds = list(dict.fromkeys(row["database"] for row in rows))
    names = list(dict.fromkeys(row["page"] for row in rows))
    with database_panels("pages", kinds, names, 1.2 + 0.24 * len(names)) as panels:
        for axes, kind in zip(panels, kinds, strict=True):
            _plot_database(axes, [row for row in rows if row["database"] == kind], names)
            axes.set_xlabel("milliseconds in the service: median (dot) to p95 (bar)")


def _plot_database(axes: Axes, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> None:
    axes.axvline(1000 * MAX_PAGE_S, color="0.6", linewidth=1)
    for reads, color in COLORS.items():
        found = [row for row in rows if row["reads"] == reads]
        places = [names.index(row["page"]) for row in found]
        medians, p95s = ([1000 * row[name] for row in found] for name in ("p50_s", "p95_s"))
        axes.hlines(places, medians, p95s, color=color, linewidth=1)
        axes.plot(medians, places, "o", color=color, markersize=4, label=f"from {reads}")
        axes.plot(p95s, places, "|", color=color, markersize=9)
    title = f"{rows[0]['database']}, {rows[0]['rows']:,} measurements"
    axes.set_title(title, loc="left", fontsize="medium")
