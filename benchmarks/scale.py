"""Planning and storing at scale: whether memory stays flat, and rows a second against bare loops."""

from __future__ import annotations

import argparse
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from benchmarks.export_cost import FORMATS, INVENTORY, random_value
from benchmarks.jobs import TREEHAMMER
from benchmarks.report import SEED, Figure, draw_points, write_rows
from treehammer.collectors.metrics import CATALOGUE
from treehammer.collectors.record import Measurement, measurement_id
from treehammer.sql.store import Store

#: Rows and jobs of the larger of two runs, unless the command line says otherwise.
ROWS = 20_000
#: How many times more than in the smaller run.
FACTOR = 10
#: Variants of the planned test; the rest are repeats.
VARIANTS = 100
#: Different texts and lists in a column: a campaign has so many hosts, doors and variants.
DIFFERENT = 20

TEST = """
[test]
name = "wide"
payload = "run.sh"
repeats = {repeats}
[matrix]
point = {points}
"""

# Goes through every job of a plan, as storing them does.
PLAN = """
import sys, time
from treehammer import config
from treehammer.collectors import software
from treehammer.hctests.options import load_pinned
from treehammer.submit.plan import make_plan
from treehammer.submit.sites import known_sites
settings = config.load()
pinned = load_pinned(sys.argv[1], {}, {}, settings)
releases = {str(root): software.parse(str(root)) for root in pinned.definition.axes["root"]}
sites = list(known_sites(settings).values())
plan = make_plan(pinned, sites, None, releases, created_us=1)
sum(1 for _ in plan.job_rows())
"""


@dataclass(frozen=True)
class Account:
    """Wall and CPU seconds of a command with its children, and the peak of their common memory.

    Memory is the sum of resident sizes, so that libraries that they share count in each.
    """

    wall_s: float
    cpu_s: float
    peak_bytes: int


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument(
        "--rows", type=int, default=ROWS, help=f"scale: rows and jobs (default: {ROWS})"
    )


def measure(options: argparse.Namespace) -> list[Figure]:
    """Plan, store and export a tenth of the rows and all of them."""
    rows = int(options.rows)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for count in (rows // FACTOR, rows):
            found += _plans(folder, count)
            found += _stores(folder, count)
    write_rows("scale", found)
    return _figures(found, rows)


def _plans(folder: Path, jobs: int) -> list[dict[str, Any]]:
    test = folder / "test"
    test.mkdir(exist_ok=True)
    text = TEST.format(repeats=jobs // VARIANTS, points=list(range(VARIANTS)))
    (test / "test.toml").write_text(text)
    (test / "run.sh").write_text("#!/bin/sh\n")
    (test / "run.sh").chmod(0o755)
    return [
        _row("dry run", jobs, account([TREEHAMMER, "submit", test, "--dry-run"])),
        _row("plan", jobs, account([sys.executable, "-P", "-c", PLAN, test])),
    ]


def _stores(folder: Path, count: int) -> list[dict[str, Any]]:
    file = folder / f"{count}.db"
    url = f"sqlite:///{file}"
    records = list(alike(min(count, 5000)))
    start, cpu = time.monotonic(), time.process_time()
    with Store.open(url) as store:
        store.add(_numbered(records, count))
    own = Account(time.monotonic() - start, time.process_time() - cpu, 0)
    rows = [_row("store", count, own, file.stat().st_size)]
    for form in FORMATS:
        target = folder / f"out.{form}"
        spent = account([TREEHAMMER, "--database", url, "export", target])
        rows.append(_row(form, count, spent, target.stat().st_size))
    target = folder / "bare.parquet"
    command = [sys.executable, "-m", "benchmarks.scale", str(file), str(target)]
    rows.append(_row("bare", count, account(command), target.stat().st_size))
    file.unlink()
    return rows


def alike(count: int) -> Iterator[Measurement]:
    """Measurements as a campaign has them: numbers differ, texts come from few hosts and variants."""
    values = random.Random(SEED)
    texts = {
        metric.name: [random_value(metric, values, INVENTORY) for _ in range(DIFFERENT)]
        for metric in CATALOGUE
        if metric.type == "text"
    }
    for _ in range(count):
        yield Measurement(
            {
                metric.name: values.choice(texts[metric.name])
                if metric.type == "text"
                else random_value(metric, values, INVENTORY)
                for metric in CATALOGUE
            }
        )


def _numbered(records: Sequence[Measurement], count: int) -> Iterator[Measurement]:
    """The records again and again, each time with an identity of its own."""
    for number in range(count):
        record = records[number % len(records)]
        job = f"job {number // 4}"
        identity = measurement_id(job, 1, 1, number % 4 + 1)
        yield Measurement({**record.values, "measurement_id": identity, "job_id": job})


def account(command: Sequence[str | Path]) -> Account:
    """Run a command in a session of its own and watch the memory of all its processes."""
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    peak = 0
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        peak = max(peak, _session_bytes(process.pid))
        time.sleep(0.05)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return Account(time.monotonic() - start, usage.ru_utime + usage.ru_stime, peak)


def _session_bytes(session: int) -> int:
    total = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # After the name in brackets: state, parent, group, session … and, 22nd, resident pages.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if int(fields[3]) == session:
                total += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
    return total


def bare(database: str, target: str) -> None:
    """The named peer: rows from sqlite3, columns by pyarrow, all in one small loop."""
    names = [metric.name for metric in CATALOGUE]
    kinds = {"int": pa.int64(), "float": pa.float64(), "bool": pa.int64()}
    # Lists stay the JSON text that they are: the peer does less than we do.
    schema = pa.schema([(m.name, kinds.get(m.type, pa.string())) for m in CATALOGUE])
    order = "campaign_id, site, job_id, attempt, round, position, measurement_id"
    query = f"SELECT {', '.join(names)} FROM measurement ORDER BY {order}"
    with (
        closing(sqlite3.connect(database)) as connection,
        parquet.ParquetWriter(target, schema, compression="zstd") as writer,
    ):
        cursor = connection.execute(query)
        while rows := cursor.fetchmany(5000):
            columns = zip(zip(*rows, strict=True), schema, strict=True)
            arrays = [pa.array(values, field.type) for values, field in columns]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _row(what: str, count: int, spent: Account, size: int = 0) -> dict[str, Any]:
    return {
        "what": what,
        "rows": count,
        "wall_s": spent.wall_s,
        "cpu_s": spent.cpu_s,
        "peak_bytes": spent.peak_bytes,
        "file_bytes": size,
        "load": os.getloadavg()[0],
    }


def _figures(rows: list[dict[str, Any]], count: int) -> list[Figure]:
    few = {row["what"]: row for row in rows if row["rows"] != count}
    many = {row["what"]: row for row in rows if row["rows"] == count}
    grown = [name for name in many if many[name]["peak_bytes"]]
    figures = [
        Figure(
            f"peak memory, {name}, {count} / {count // FACTOR}",
            many[name]["peak_bytes"] / few[name]["peak_bytes"],
        )
        for name in grown
    ]
    figures += [
        Figure(
            f"CPU a row, .{form} / bare sqlite3 and pyarrow to Parquet",
            _rate(few["bare"], many["bare"]) / _rate(few[form], many[form]),
        )
        for form in FORMATS
    ]
    figures += [
        Figure(f"rows a second of CPU, {name}", _rate(few[name], many[name]))
        for name in many
        if name != "dry run"  # a plan of more repeats takes it no longer
    ]
    draw_points(
        "scale",
        f"Peak memory of {count} rows or jobs against a tenth of them",
        "ratio",
        {name: [many[name]["peak_bytes"] / few[name]["peak_bytes"]] for name in grown},
    )
    return figures


def _rate(few: dict[str, Any], many: dict[str, Any]) -> float:
    """Rows a second of CPU of all processes, without what starting them costs."""
    return float((many["rows"] - few["rows"]) / (many["cpu_s"] - few["cpu_s"]))


if __name__ == "__main__":
    bare(*sys.argv[1:])
