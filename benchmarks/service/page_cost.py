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
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
from matplotlib.axes import Axes

from benchmarks.harness import synthetic_jobs, synthetic_measurements
from benchmarks.harness.filled_databases import filled_database, seed_rows
from benchmarks.harness.ratio_figures import SEED, RatioFigure, database_panels, write_rows
from benchmarks.harness.worker_runs import TREEHAMMER
from treehammer.errors import NothingToDoError
from treehammer.sql.write.store import Store

#: Requests per page after uncounted ones, unless they take too long.
REPEATS, WARM_UP, TIMEOUT_S = 40, 2, 30.0
#: Sources of a page's data.
READS_NOTHING, READS_ROLLUPS, READS_LONG_ROLLUPS = (
    "nothing",
    "roll-ups and verdicts",
    "roll-ups of more than 90 days",
)
READS_INDEX, READS_MEASUREMENTS = "an index", "measurements"
COLORS = {
    READS_NOTHING: "0.4",
    READS_ROLLUPS: "tab:blue",
    READS_LONG_ROLLUPS: "tab:purple",
    READS_INDEX: "tab:green",
    READS_MEASUREMENTS: "tab:red",
}
#: Limit in seconds of the 95th percentile for pages of roll-ups and verdicts.
MAX_PAGE_S = 0.2
_HEADERS = {"Accept": "text/html", "Accept-Encoding": "gzip"}


@dataclass(frozen=True)
class PageRequest:
    """A page, its data source and expected status.

    ``shows`` is a table of the page and one of its columns: a row without a value, or with 0, does
    not count. Without a table it is the beginning of lines of plain text.
    """

    name: str
    path: str
    row_marker: tuple[str, str]
    reads: str = READS_ROLLUPS
    query_parameters: Sequence[tuple[str, object]] = ()
    status: int = 200

    @property
    def address(self) -> str:
        """The address after the port."""
        return (
            f"{self.path}?{urlencode(self.query_parameters)}"
            if self.query_parameters
            else self.path
        )

    @property
    def api_address(self) -> str:
        """The address of the same data for programs."""
        if self.path.startswith(("/api/", "/metrics")):
            return self.address
        return f"{self.path}?{urlencode([*self.query_parameters, ('format', 'json')])}"

    def count_rows(self, plain: bytes) -> int:
        """Count the rows with a value in the data for programs."""
        table, column = self.row_marker
        if not table:
            return sum(line.startswith(column) for line in plain.decode().splitlines())
        return sum(bool(row[column]) for row in json.loads(plain)["tables"][table])


@dataclass
class PageTimings:
    """Timings of a page, and bytes as sent.

    ``seconds`` is the service's time; ``cpu_s`` and ``waited_s`` are its threads' time on a CPU and
    ready to run without one.
    """

    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    run_queue_s: list[float] = field(default_factory=list)
    size: int = 0


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Measure the pages on each kind of database."""
    rows: list[dict[str, Any]] = []
    for kind in options.databases:
        with filled_database(kind, options.rows, options.keep) as found:
            with Store.open(found.url, create=False) as store:
                synthetic_jobs.add_missing_records(store, seed_rows(options.rows))
            with run_service(found.url) as (port, process):
                shown = {page.name: _count_shown_rows(port, page) for page in build_page_requests()}
                asked = _request_all_pages(port, process, build_page_requests())
        rows += [
            _result_row(kind, options.rows, page, asked[page.name], shown[page.name])
            for page in build_page_requests()
        ]
    write_rows("pages", rows)
    _plot_timings(rows)
    return _build_figures(rows)


def build_page_requests() -> list[PageRequest]:
    """Build the pages for the last day of :mod:`benchmarks.harness.synthetic_measurements`."""
    last = synthetic_measurements.DAYS - 1
    until, week, first = (iso_day(day) for day in (last, last - 6, 0))
    site, campaign, job = (
        synthetic_measurements.SITE_NAMES[0],
        synthetic_measurements.campaign_id(last),
        synthetic_measurements.job_id(last, 0),
    )
    everything = (("from", first), ("to", until))
    return [
        PageRequest("empty page", "/nothing", ("", ""), READS_NOTHING, status=404),
        PageRequest("overview", "/", ("site_days", "good"), query_parameters=[("to", until)]),
        PageRequest(
            "overview, 60 days",
            "/",
            ("site_days", "good"),
            query_parameters=[("to", until), ("days", 60)],
        ),
        PageRequest(
            "a day of a site",
            f"/days/{until}",
            ("measured", "good"),
            query_parameters=[("site", site)],
        ),
        PageRequest("sites", "/sites", ("sites", "good")),
        PageRequest(
            "a site, 30 days",
            f"/sites/{site}",
            ("series", "mean"),
            query_parameters=[("to", until)],
        ),
        PageRequest(
            "a site, 90 days",
            f"/sites/{site}",
            ("series", "mean"),
            query_parameters=[("to", until), ("days", 90)],
        ),
        PageRequest(
            "a site, 180 days",
            f"/sites/{site}",
            ("series", "mean"),
            READS_LONG_ROLLUPS,
            [("to", until), ("days", 180)],
        ),
        PageRequest("campaigns", "/campaigns", ("campaigns", "recorded"), READS_INDEX),
        PageRequest("a campaign", f"/campaigns/{campaign}", ("jobs", "recorded"), READS_INDEX),
        PageRequest("a job", f"/jobs/{job}", ("measurements", "outcome"), READS_INDEX),
        PageRequest("comparisons", "/compare", ("comparisons", "over_sites")),
        PageRequest(
            "a comparison",
            f"/compare/{synthetic_jobs.comparison_id(0)}",
            ("pooled", "shown_verdict"),
        ),
        PageRequest("figure S0", "/figures/s0", ("figure", "number")),
        PageRequest("explore", "/explore", ("figure", "number")),
        PageRequest(
            "explore: trend by day and site",
            "/explore",
            ("figure", "number"),
            query_parameters=[("by", "day"), ("color", "site")],
        ),
        PageRequest(
            "explore: two releases by site, all days",
            "/explore",
            ("figure", "number"),
            READS_LONG_ROLLUPS,
            query_parameters=[
                ("metric", "cpu_per_event_s"),
                *(("axis_root", one) for one in synthetic_jobs.RELEASES),
                *everything,
            ],
        ),
        PageRequest(
            "explore: a panel for each site",
            "/explore",
            ("figure", "number"),
            query_parameters=[("by", "variant"), ("color", "axis_root"), ("panels", "site")],
        ),
        PageRequest(
            "explore: read latency by site",
            "/explore",
            ("figure", "reads"),
            query_parameters=[("view", "latency"), ("by", "site")],
        ),
        PageRequest("metrics for Prometheus", "/metrics", ("", "treehammer_site_status{")),
        PageRequest(
            "API: overview",
            "/api/v1/overview",
            ("site_days", "good"),
            query_parameters=[("to", until)],
        ),
        PageRequest(
            "API: a site",
            f"/api/v1/sites/{site}",
            ("series", "mean"),
            query_parameters=[("to", until)],
        ),
        PageRequest(
            "API: explore",
            "/api/v1/explore",
            ("figure", "number"),
            query_parameters=[("by", "day"), ("color", "site")],
        ),
        PageRequest(
            "explore: 16,000 groups, all days and sites",
            "/explore",
            ("figure", "number"),
            READS_LONG_ROLLUPS,
            query_parameters=[("by", "day"), ("color", "site"), *everything],
        ),
        PageRequest(
            "explore: slowest hosts of a site, 7 days",
            "/explore",
            ("figure", "number"),
            READS_MEASUREMENTS,
            query_parameters=[("by", "host"), ("site", site), ("from", week), ("to", until)],
        ),
        PageRequest(
            "explore: distribution at a site, 30 days",
            "/explore",
            ("figure", "number"),
            READS_MEASUREMENTS,
            query_parameters=[("view", "distribution"), ("site", site)],
        ),
        PageRequest(
            "explore: intervals over jobs of a campaign",
            "/explore",
            ("figure", "number"),
            READS_MEASUREMENTS,
            query_parameters=[("bars", "interval"), ("campaign", campaign)],
        ),
    ]


def iso_day(day: int) -> str:
    return (
        datetime.strptime(str(synthetic_measurements.day_number(day)), "%Y%m%d").date().isoformat()
    )


@contextmanager
def run_service(url: str) -> Iterator[tuple[int, int]]:
    """Run the service in its own process; yield its port and pid."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command: list[str | Path] = [TREEHAMMER, "--database", url, "--data-dir", folder, "serve"]
        command += ["--port", str(port), "--read-access", "public", "--quiet"]
        process = subprocess.Popen(command)
        try:
            _wait_for_service(process, f"http://127.0.0.1:{port}/api/v1/health")
            yield port, process.pid
        finally:
            process.terminate()
            process.wait()


def _wait_for_service(process: subprocess.Popen[bytes], address: str) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(address, timeout=60).close()
            return
        except urllib.error.URLError:
            if process.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.1)


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
            seconds, answers.size = request_page(port, page)
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


def request_page(port: int, page: PageRequest) -> tuple[float, int]:
    """Return seconds until the service responds, and bytes of the body."""
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request("GET", page.address, headers=_HEADERS)
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    told = re.match(r"total;dur=([\d.]+)$", answer.headers.get("Server-Timing", ""))
    if answer.status != page.status or not told:
        raise RuntimeError(f"{page.address}: {answer.status} {answer.headers} {body[:200]!r}")
    return float(told[1]) / 1000, len(body)


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
