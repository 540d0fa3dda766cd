"""Seconds of the service for each page on a large database, beside a page that asks it nothing.

``treehammer serve`` runs in a process of its own; what it says itself in ``Server-Timing`` counts.
Beside it stand its CPU time, and how long it waited for a CPU that others had, as the kernel tells.
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
from matplotlib.figure import Figure as Canvas

from benchmarks import records, world
from benchmarks.databases import filled, seed_of
from benchmarks.jobs import TREEHAMMER
from benchmarks.report import RESULTS, SEED, Figure, write_rows
from treehammer.errors import NothingToDo
from treehammer.sql.store import Store

#: Each page is asked so often, after so many times that do not count, unless that takes longer.
REPEATS, WARM_UP, PATIENCE_S = 40, 2, 30.0
#: What pages read.
NOTHING, SUMS, LONG = "nothing", "roll-ups and verdicts", "roll-ups of more than 90 days"
INDEX, RAW = "an index", "measurements"
COLOURS = {
    NOTHING: "0.4",
    SUMS: "tab:blue",
    LONG: "tab:purple",
    INDEX: "tab:green",
    RAW: "tab:red",
}
#: Seconds that 95 of 100 answers from roll-ups and verdicts may take at most.
AT_MOST_S = 0.2
_HEADERS = {"Accept": "text/html", "Accept-Encoding": "gzip"}


@dataclass(frozen=True)
class Page:
    """A page, what it reads, and with what status it answers; :data:`SUMS` keep :data:`AT_MOST_S`.

    ``shows`` is a table of the page and one of its columns: a row with nothing there, or 0, shows
    nothing.  Without a table it is how lines of plain text begin.
    """

    name: str
    path: str
    shows: tuple[str, str]
    reads: str = SUMS
    asked: Sequence[tuple[str, object]] = ()
    status: int = 200

    @property
    def address(self) -> str:
        """What follows the port."""
        return f"{self.path}?{urlencode(self.asked)}" if self.asked else self.path

    @property
    def plain_address(self) -> str:
        """Where programs get the same."""
        if self.path.startswith(("/api/", "/metrics")):
            return self.address
        return f"{self.path}?{urlencode([*self.asked, ('format', 'json')])}"

    def rows(self, plain: bytes) -> int:
        """How many rows of what programs get show something."""
        table, column = self.shows
        if not table:
            return sum(line.startswith(column) for line in plain.decode().splitlines())
        return sum(bool(row[column]) for row in json.loads(plain)["tables"][table])


@dataclass
class Answers:
    """What came back for a page, and bytes as they were sent.

    ``seconds`` are those in the service, ``cpu_s`` and ``waited_s`` those of its threads on a CPU, and
    ready to run without one.
    """

    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    waited_s: list[float] = field(default_factory=list)
    size: int = 0


def measure(options: argparse.Namespace) -> list[Figure]:
    """Ask databases of either kind."""
    rows: list[dict[str, Any]] = []
    for kind in options.databases:
        with filled(kind, options.rows, options.keep) as found:
            with Store.open(found.url, create=False) as store:
                records.complete(store, seed_of(options.rows))
            with _service(found.url) as (port, process):
                shown = {page.name: _shown(port, page) for page in pages()}
                asked = _ask_all(port, process, pages())
        rows += [
            _row(kind, options.rows, page, asked[page.name], shown[page.name]) for page in pages()
        ]
    write_rows("pages", rows)
    _draw(rows)
    return _figures(rows)


def pages() -> list[Page]:
    """The pages, as of the last day of :mod:`benchmarks.world`."""
    last = world.DAYS - 1
    until, week, first = (_day(day) for day in (last, last - 6, 0))
    site, campaign, job = world.SITES[0], world.campaign_id(last), world.job_id(last, 0)
    everything = (("from", first), ("to", until))
    return [
        Page("empty page", "/nothing", ("", ""), NOTHING, status=404),
        Page("overview", "/", ("site_days", "good"), asked=[("until", until)]),
        Page(
            "overview, 60 days", "/", ("site_days", "good"), asked=[("until", until), ("days", 60)]
        ),
        Page("a day of a site", f"/days/{until}", ("measured", "good"), asked=[("site", site)]),
        Page("sites", "/sites", ("sites", "good")),
        Page("a site, 30 days", f"/sites/{site}", ("series", "mean"), asked=[("until", until)]),
        Page(
            "a site, 90 days",
            f"/sites/{site}",
            ("series", "mean"),
            asked=[("until", until), ("days", 90)],
        ),
        Page(
            "a site, 180 days",
            f"/sites/{site}",
            ("series", "mean"),
            LONG,
            [("until", until), ("days", 180)],
        ),
        Page("campaigns", "/campaigns", ("campaigns", "recorded"), INDEX),
        Page("a campaign", f"/campaigns/{campaign}", ("jobs", "recorded"), INDEX),
        Page("a job", f"/jobs/{job}", ("measurements", "outcome"), INDEX),
        Page("comparisons", "/compare", ("comparisons", "over_sites")),
        Page("a comparison", f"/compare/{records.identity(0)}", ("pooled", "shown_verdict")),
        Page("figure S0", "/figures/s0", ("figure", "number")),
        Page("explore", "/explore", ("figure", "number")),
        Page(
            "explore: trend by day and site",
            "/explore",
            ("figure", "number"),
            asked=[("by", "day"), ("colour", "site")],
        ),
        Page(
            "explore: two releases by site, all days",
            "/explore",
            ("figure", "number"),
            LONG,
            asked=[
                ("metric", "cpu_per_event_s"),
                *(("axis_root", one) for one in records.RELEASES),
                *everything,
            ],
        ),
        Page(
            "explore: a panel for each site",
            "/explore",
            ("figure", "number"),
            asked=[("by", "variant"), ("colour", "axis_root"), ("panels", "site")],
        ),
        Page(
            "explore: read latency by site",
            "/explore",
            ("figure", "reads"),
            asked=[("view", "latency"), ("by", "site")],
        ),
        Page("metrics for Prometheus", "/metrics", ("", "treehammer_site_status{")),
        Page("API: overview", "/api/v1/overview", ("site_days", "good"), asked=[("until", until)]),
        Page("API: a site", f"/api/v1/sites/{site}", ("series", "mean"), asked=[("until", until)]),
        Page(
            "API: explore",
            "/api/v1/explore",
            ("figure", "number"),
            asked=[("by", "day"), ("colour", "site")],
        ),
        Page(
            "explore: 16,000 groups, all days and sites",
            "/explore",
            ("figure", "number"),
            LONG,
            asked=[("by", "day"), ("colour", "site"), *everything],
        ),
        Page(
            "explore: slowest hosts of a site, 7 days",
            "/explore",
            ("figure", "number"),
            RAW,
            asked=[("by", "host"), ("site", site), ("from", week), ("to", until)],
        ),
        Page(
            "explore: distribution at a site, 30 days",
            "/explore",
            ("figure", "number"),
            RAW,
            asked=[("view", "distribution"), ("site", site)],
        ),
        Page(
            "explore: intervals over jobs of a campaign",
            "/explore",
            ("figure", "number"),
            RAW,
            asked=[("bars", "interval"), ("campaign", campaign)],
        ),
    ]


def _day(day: int) -> str:
    return datetime.strptime(str(world.day_number(day)), "%Y%m%d").date().isoformat()


@contextmanager
def _service(url: str) -> Iterator[tuple[int, int]]:
    """The service in a process of its own; its port, and the process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command: list[str | Path] = [TREEHAMMER, "--database", url, "--data-dir", folder, "serve"]
        command += ["--port", str(port), "--reading", "open", "--quiet"]
        process = subprocess.Popen(command)
        try:
            _wait(process, f"http://127.0.0.1:{port}/api/v1/health")
            yield port, process.pid
        finally:
            process.terminate()
            process.wait()


def _wait(process: subprocess.Popen[bytes], address: str) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(address, timeout=60).close()
            return
        except urllib.error.URLError:
            if process.poll() is not None or time.monotonic() > until:
                raise
            time.sleep(0.1)


def _shown(port: int, page: Page) -> int:
    """How many rows a page shows: how fast one without any comes says nothing."""
    if page.reads == NOTHING:
        return 0
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{page.plain_address}") as answer:
        shown = page.rows(answer.read())
    if not shown:
        raise NothingToDo("the page shows nothing", where=f"{page.name} ({page.address})")
    return shown


def _ask_all(port: int, process: int, wanted: Sequence[Page]) -> dict[str, Answers]:
    """Every page in each round, in another order each time."""
    found = {page.name: Answers() for page in wanted}
    order = list(wanted)
    dice = random.Random(SEED)
    for round_ in range(-WARM_UP, REPEATS):
        dice.shuffle(order)
        for page in order:
            answers = found[page.name]
            if sum(answers.seconds) >= PATIENCE_S:
                continue
            cpu, waited = _clocks(process)
            seconds, answers.size = _ask(port, page)
            if round_ >= 0:
                now, waited_now = _clocks(process)
                answers.seconds.append(seconds)
                answers.cpu_s.append(now - cpu)
                answers.waited_s.append(waited_now - waited)
    return found


def _clocks(process: int) -> tuple[float, float]:
    """Seconds that all threads of a process had a CPU, and that they were ready and had none."""
    cpu = waited = 0
    for file in Path(f"/proc/{process}/task").glob("*/schedstat"):
        try:
            had, missed, _ = file.read_text().split()
        except FileNotFoundError:
            continue  # it has just ended
        cpu, waited = cpu + int(had), waited + int(missed)
    return cpu / 1e9, waited / 1e9


def _ask(port: int, page: Page) -> tuple[float, int]:
    """Seconds until the service began to answer, and bytes of the body."""
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


def _row(kind: str, rows: int, page: Page, answers: Answers, shown: int) -> dict[str, Any]:
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
        "waited_p95_s": float(np.percentile(answers.waited_s, 95)),
        "repeats": len(answers.seconds),
        "shown": shown,
        "bytes": answers.size,
        "load": os.getloadavg()[0],
    }


def _figures(rows: Sequence[dict[str, Any]]) -> list[Figure]:
    figures = []
    for row in rows:
        empty = next(
            one for one in rows if one["database"] == row["database"] and one["reads"] == NOTHING
        )
        where = f"{row['page']}, {row['database']}, {row['rows']} rows"
        bound = AT_MOST_S if row["reads"] == SUMS else None
        figures.append(Figure(f"p95 s, {where}", row["p95_s"], at_most=bound))
        if row is not empty:
            figures.append(Figure(f"p50 / empty page, {where}", row["p50_s"] / empty["p50_s"]))
    return figures


def _draw(rows: Sequence[dict[str, Any]]) -> None:
    """A panel a database: the median and the p95 of each page, and what it may take."""
    kinds = list(dict.fromkeys(row["database"] for row in rows))
    names = list(dict.fromkeys(row["page"] for row in rows))
    canvas = Canvas(figsize=(4.2 + 3.6 * len(kinds), 1.2 + 0.24 * len(names)), layout="constrained")
    panels = canvas.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        axes.axvline(1000 * AT_MOST_S, color="0.6", linewidth=1)
        for reads, colour in COLOURS.items():
            found = [row for row in rows if (row["database"], row["reads"]) == (kind, reads)]
            places = [names.index(row["page"]) for row in found]
            ends = [[1000 * row[name] for row in found] for name in ("p50_s", "p95_s")]
            axes.hlines(places, *ends, color=colour, linewidth=1)
            axes.plot(ends[0], places, "o", color=colour, markersize=4, label=f"from {reads}")
            axes.plot(ends[1], places, "|", color=colour, markersize=9)
        axes.set_xscale("log")
        axes.set_xlabel("milliseconds in the service: median (dot) to p95 (bar)")
        title = (
            f"{kind}, {next(row['rows'] for row in rows if row['database'] == kind):,} measurements"
        )
        axes.set_title(title, loc="left", fontsize="medium")
        axes.grid(axis="x", linewidth=0.3)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    panels[-1].legend(fontsize="small")
    RESULTS.mkdir(exist_ok=True)
    canvas.savefig(RESULTS / "pages.svg", metadata={"Date": None})
