"""Bytes, memory and page times of a service for 10, 100 and 1,000 sites.

Every site reports the same number of measurements a day. They go through the store, day by day, so that
the last day's growth is what a further day costs, with roll-ups and indexes. Then ``treehammer serve``
answers pages of all sites.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness.filled_databases import DURABLE_SETTINGS, run_postgres
from benchmarks.harness.ratio_figures import RatioFigure, write_rows
from benchmarks.harness.service_runs import run_service
from benchmarks.harness.synthetic_measurements import MEASUREMENTS_PER_JOB, SyntheticCampaigns
from benchmarks.service.page_cost import PageRequest, iso_day, request_page
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.engine.database_engine import measure_database
from treehammer.sql.setup.database_setup import open_engine
from treehammer.sql.write.store import Store

#: Numbers of sites, and jobs of each site a day.
SITE_COUNTS, JOBS_PER_SITE_DAY = (10, 100, 1000), 6
#: Measurements of each site a day.
ROWS_PER_SITE_DAY = JOBS_PER_SITE_DAY * MEASUREMENTS_PER_JOB
#: Requests of each page after one uncounted.
REPEATS = 10


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--sites", type=int, nargs="+", default=SITE_COUNTS, help="sizing: numbers of sites"
    )
    parser.add_argument(
        "--sizing-days", type=int, default=14, help="sizing: days of measurements (default: 14)"
    )


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Fill a database of each kind and size, and measure it."""
    rows: list[dict[str, Any]] = []
    for kind in options.databases:
        for sites in options.sites:
            with tempfile.TemporaryDirectory(prefix="treehammer-") as name:
                rows.append(_measure_database(kind, sites, options.sizing_days, Path(name)))
            write_rows("sizing", rows)
    return [
        RatioFigure(f"{name}, {row['sites']} sites, {row['database']}", row[name])
        for row in rows
        for name in ("bytes_per_row", "rows_per_s", "service_peak_bytes", "slowest_page_s")
    ]


def _measure_database(kind: str, sites: int, days: int, folder: Path) -> dict[str, Any]:
    if kind == "sqlite":
        return _measure_at(f"sqlite:///{folder / 'results.db'}", kind, sites, days)
    with run_postgres(folder / kind, DURABLE_SETTINGS) as server:
        server.create_database("sizing")
        return _measure_at(server.url("sizing"), kind, sites, days)


def _measure_at(url: str, kind: str, sites: int, days: int) -> dict[str, Any]:
    sizes = [_measure_size(url)]
    start = time.monotonic()
    rows = 0
    for day in range(days):
        with Store.open(url) as store:
            rows += store.add(iter_day(sites, day)).new
        sizes.append(_measure_size(url))
    stored_s = time.monotonic() - start
    with run_service(url) as (port, process):
        pages = {page.name: _time_page(port, page) for page in build_pages(days)}
        peak = read_peak_bytes(process)
    return {
        "database": kind,
        "sites": sites,
        "days": days,
        "rows": rows,
        "rows_per_day": rows // days,
        "bytes": sizes[-1],
        "bytes_per_row": (sizes[-1] - sizes[-2]) / (rows // days),
        "rows_per_s": rows / stored_s,
        "service_peak_bytes": peak,
        "slowest_page_s": max(pages.values()),
        **{f"{name}_s": seconds for name, seconds in pages.items()},
        "load": os.getloadavg()[0],
    }


def _measure_size(url: str) -> int:
    """Return the size of a database with all its rows in place."""
    engine = open_engine(url, create=True)
    try:
        with engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        return measure_database(engine) or 0
    finally:
        engine.dispose()


def iter_day(sites: int, day: int) -> Iterator[Measurement]:
    """Yield one day's measurements of all sites."""
    campaigns = SyntheticCampaigns(day + 1, (day + 1) * sites * ROWS_PER_SITE_DAY)
    for number, one in enumerate(campaigns.iterate_day(day)):
        site = (number // MEASUREMENTS_PER_JOB) % sites
        name = f"SITE-{site:04}"
        values = one.values
        yield Measurement(
            {
                **values,
                "site": name,
                "storage_site": name,
                "series": f"{site:04}{str(values['series'])[2:62]}",
                "host": f"{str(values['host']).partition('.')[0]}.{name.lower()}.example.org",
            }
        )


def build_pages(days: int) -> list[PageRequest]:
    """Build the pages that show all sites, or one of them, on the last day."""
    until = f"to={iso_day(days - 1)}"
    return [
        PageRequest("overview", f"/?{until}"),
        PageRequest("sites", f"/sites?{until}"),
        PageRequest("site", f"/sites/SITE-0003?{until}"),
        PageRequest("explore", f"/explore?by=day&color=site&{until}"),
        PageRequest("metrics", "/metrics"),
    ]


def _time_page(port: int, page: PageRequest) -> float:
    request_page(port, page)
    return median(request_page(port, page)[0] for _ in range(REPEATS))


def read_peak_bytes(process: int) -> int:
    """Return the peak resident memory of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0
