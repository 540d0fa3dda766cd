"""Planning and storing at scale: memory, and rows per second against bare loops."""

from __future__ import annotations

import argparse
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import make_url

from benchmarks.harness.filled_databases import filled_database
from benchmarks.harness.ratio_figures import RatioFigure, plot_points, write_rows
from benchmarks.harness.worker_runs import TREEHAMMER
from benchmarks.service.export_cost import EXPORT_FORMATS
from treehammer.collectors.record.metric_catalogue import CATALOGUE
from treehammer.sql.core.column_names import ALL_COLUMNS, stored_columns
from treehammer.sql.read.measurement_queries import MeasurementQueries
from treehammer.sql.read.measurement_selection import Selection

#: Rows and jobs of the larger run by default.
ROW_COUNT = 20_000
#: Ratio between the larger and the smaller run.
SIZE_FACTOR = 10
#: Most jobs of a plan.
MAX_JOBS = 1_000_000
#: Variants of the planned test; the rest are repeats.
VARIANT_COUNT = 100
BARE_LABEL = "bare"
#: Bytes per row of the largest export, a TTree; CSV takes more.
MAX_EXPORT_BYTES_PER_ROW = 2_300

TEST_TOML = """
[test]
name = "wide"
payload = "run.sh"
repeats = {repeats}
[matrix]
point = {points}
"""

# Iterates over all jobs of a plan, as storing them does.
PLAN_SCRIPT = """
import sys, time
from treehammer import config
from treehammer.collectors.software import providers
from treehammer.hctests.cli.definition_options import load_pinned_test
from treehammer.submit.planning.plan import make_plan
from treehammer.submit.planning.site_exclusion import SiteSelection
from treehammer.submit.sites.site_registry import load_sites
settings = config.load_settings()
pinned = load_pinned_test(sys.argv[1], {}, {}, settings)
roots = map(str, pinned.definition.axes["root"])
releases = {root: providers.parse_software_request(root) for root in roots}
plan = make_plan(pinned, SiteSelection(tuple(load_sites(settings).values())), None, releases, created_us=1)
sum(1 for _ in plan.make_job_rows())
"""


@dataclass(frozen=True)
class CommandAccount:
    """Wall and CPU seconds of a command with its children, and their peak memory.

    Memory is the sum of resident sizes, so shared libraries count in each process.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--rows",
        type=int,
        default=ROW_COUNT,
        help=f"scale, queries, pages: rows and jobs (default: {ROW_COUNT})",
    )
    parser.add_argument(
        "--formats",
        nargs="+",
        choices=EXPORT_FORMATS,
        default=EXPORT_FORMATS,
        help="scale: export formats (default: all; CSV takes 9 kB a row)",
    )


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Plan, store and export all rows and a tenth of them."""
    rows = int(options.rows)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        for jobs in (min(rows, MAX_JOBS) // SIZE_FACTOR, min(rows, MAX_JOBS)):
            found += _measure_plans(Path(name), jobs)
    for kind in options.databases:
        for count in (rows // SIZE_FACTOR, rows):
            found += _measure_store(kind, count, options)
    write_rows("scale", found)
    return _build_figures(found, rows)


def _measure_plans(folder: Path, jobs: int) -> list[dict[str, Any]]:
    test = folder / "test"
    test.mkdir(exist_ok=True)
    text = TEST_TOML.format(repeats=jobs // VARIANT_COUNT, points=list(range(VARIANT_COUNT)))
    (test / "test.toml").write_text(text)
    (test / "run.sh").write_text("#!/bin/sh\n")
    (test / "run.sh").chmod(0o755)
    return [
        _result_row(
            "dry run",
            jobs,
            account_session([TREEHAMMER, "--data-dir", folder, "submit", test, "--dry-run"]),
        ),
        _result_row("plan", jobs, account_session([sys.executable, "-P", "-c", PLAN_SCRIPT, test])),
    ]


def _measure_store(kind: str, count: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    with (
        filled_database(kind, count, options.keep, MAX_EXPORT_BYTES_PER_ROW) as database,
        tempfile.TemporaryDirectory(dir=options.keep) as name,
    ):
        stored = CommandAccount(database.stored_wall_s, database.stored_cpu_s, 0)
        rows = [_result_row("store", database.stored_rows, stored, kind=kind)]
        for form in options.formats:
            target = Path(name) / f"out.{form}"
            spent = account_session([TREEHAMMER, "--database", database.url, "export", target])
            rows.append(_result_row(form, count, spent, target.stat().st_size, kind))
            target.unlink()
        if kind == "sqlite":
            target = Path(name) / "bare.parquet"
            file = str(make_url(database.url).database)
            spent = account_session(
                [sys.executable, "-m", "benchmarks.service.scaling", file, target]
            )
            rows.append(_result_row(BARE_LABEL, count, spent, target.stat().st_size, kind))
    return rows


def account_session(command: Sequence[str | Path]) -> CommandAccount:
    """Run a command in its own session and sample the memory of all its processes."""
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    peak = 0
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        peak = max(peak, _session_memory(process.pid))
        time.sleep(0.05)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return CommandAccount(time.monotonic() - start, usage.ru_utime + usage.ru_stime, peak)


def _session_memory(session: int) -> int:
    total = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # After the name in brackets: state, parent, group, session …; the 22nd is resident pages.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # the process has ended
            if int(fields[3]) == session:
                total += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return total


def export_bare(database: str, target: str) -> None:
    """Export with the peer: rows from sqlite3, columns by pyarrow, in one small loop."""
    names = stored_columns(ALL_COLUMNS)
    kinds = {"int": pa.int64(), "float": pa.float64(), "bool": pa.int64()}
    # Lists stay JSON text and packed bytes: the peer does less than the export.
    known = {metric.name: kinds.get(metric.type, pa.string()) for metric in CATALOGUE}
    schema = pa.schema([(name, known.get(name, pa.binary())) for name in names])
    question = MeasurementQueries(Selection(), "sqlite").measurements()
    with (
        closing(sqlite3.connect(database)) as connection,
        parquet.ParquetWriter(target, schema, compression="zstd") as writer,
    ):
        cursor = connection.execute(str(question.compile(dialect=sqlite.dialect())))
        while rows := cursor.fetchmany(5000):
            columns = zip(zip(*rows, strict=True), schema, strict=True)
            arrays = [pa.array(values, field.type) for values, field in columns]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _result_row(
    what: str, count: int, spent: CommandAccount, size: int = 0, kind: str | None = None
) -> dict[str, Any]:
    return {
        "what": what,
        "database": kind,
        "rows": count,
        "wall_s": spent.wall_s,
        "cpu_s": spent.cpu_s,
        "peak_bytes": spent.peak_bytes,
        "file_bytes": size,
        "load": os.getloadavg()[0],
    }


def _build_figures(rows: Sequence[dict[str, Any]], count: int) -> list[RatioFigure]:
    runs = _group_runs(rows)
    grown = {
        name: many["peak_bytes"] / few["peak_bytes"]
        for name, (few, many) in runs.items()
        if few["peak_bytes"]
    }
    figures = [
        RatioFigure(f"peak memory, {name}, {count} / {count // SIZE_FACTOR}", ratio)
        for name, ratio in grown.items()
    ]
    peer = runs.get(f"{BARE_LABEL}, sqlite")
    for name, (few, many) in runs.items():
        if name != "dry run":  # more repeats do not make it slower
            figures.append(RatioFigure(f"rows a second of CPU, {name}", _rows_per_cpu_s(few, many)))
        if many["file_bytes"]:
            figures.append(RatioFigure(f"rows a second, {name}", many["rows"] / many["wall_s"]))
        if peer and name in {f"{form}, sqlite" for form in EXPORT_FORMATS}:
            figures.append(
                RatioFigure(
                    f"CPU a row, {name} / bare sqlite3 and pyarrow to Parquet",
                    _rows_per_cpu_s(*peer) / _rows_per_cpu_s(few, many),
                )
            )
    plot_points(
        "scale",
        f"Peak memory of {count} rows or jobs against a tenth of them",
        "ratio",
        {name: [ratio] for name, ratio in grown.items()},
    )
    return figures


def _group_runs(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Group by name the runs with few and with many rows."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        name = f"{row['what']}, {row['database']}" if row["database"] else row["what"]
        runs.setdefault(name, []).append(row)
    return runs


def _rows_per_cpu_s(few: dict[str, Any], many: dict[str, Any]) -> float:
    """Return rows per second of CPU over all processes, without their start."""
    if many["rows"] == few["rows"]:  # the store was given equal numbers
        return float(many["rows"] / many["cpu_s"])
    return float((many["rows"] - few["rows"]) / (many["cpu_s"] - few["cpu_s"]))


if __name__ == "__main__":
    export_bare(*sys.argv[1:])
