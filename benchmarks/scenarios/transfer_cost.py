"""Exports and imports of many measurements: time, and memory against a tenth of them.

The peer of exports reads rows by sqlite3 and writes columns by pyarrow to Parquet, in one small loop.
It leaves lists as JSON text and packed bytes, and so does less than an export.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from sqlalchemy.dialects import sqlite

from benchmarks.harness.figures import RatioFigure, print_table, write_results
from benchmarks.harness.filled_databases import filled_database
from benchmarks.harness.program_runs import TREEHAMMER, account_command, run_postgres
from treehammer.collectors.record.metric_catalogue import CATALOGUE
from treehammer.sql.core.measurement_columns import ALL_COLUMNS, stored_columns
from treehammer.sql.read.measurement_queries import select_measurements
from treehammer.sql.read.query_model import Selection

EXPORT_FORMATS = ("parquet", "csv", "root")
#: Ratio between the larger and the smaller run, and the limit of their ratio of memory, from so many
#: rows on: buffers must be full in the smaller run.
SIZE_FACTOR, MAX_MEMORY_RATIO, MIN_MEMORY_ROWS = 10, 1.25, 1_000_000
BARE_LABEL = "bare loop"
#: Bytes per row of the largest export, a TTree; CSV takes 9 kB.
MAX_EXPORT_BYTES_PER_ROW = 2_300
#: Limits: CPU of an exported row / that of the bare loop, seconds to import a million rows.
MAX_CPU_RATIO, MAX_S_PER_MILLION = 2.0, 900.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of exports."""
    parser.add_argument(
        "--formats",
        nargs="+",
        choices=EXPORT_FORMATS,
        default=("parquet", "root"),
        help="export: formats (default: parquet root)",
    )


def measure_exports(options: argparse.Namespace) -> list[RatioFigure]:
    """Export all rows and a tenth of them, in each format and by the bare loop."""
    rows = []
    for count in (options.rows // SIZE_FACTOR, options.rows):
        with (
            filled_database(count, options.keep, MAX_EXPORT_BYTES_PER_ROW) as database,
            tempfile.TemporaryDirectory(dir=options.keep) as folder,
        ):
            target = Path(folder) / "out.parquet"
            base: list[str | Path] = [TREEHAMMER, "--database", f"sqlite:///{database}", "export"]
            commands: dict[str, Sequence[str | Path]] = {
                name: [*base, target.with_suffix(f".{name}")] for name in options.formats
            }
            commands[BARE_LABEL] = [sys.executable, "-m", __name__, database, target]
            for name, command in commands.items():
                rows.append(_account_transfer(name, count, command))
                Path(command[-1]).unlink()
    write_results("export", rows)
    print_table(rows)
    return list(_build_export_figures(rows))


def _account_transfer(name: str, count: int, command: Sequence[str | Path]) -> dict[str, Any]:
    """Run a command whose last argument is the file that it reads or writes."""
    account = account_command(command)
    size, load = Path(command[-1]).stat().st_size, os.getloadavg()[0]
    return {"name": name, "rows": count, **asdict(account), "file_bytes": size, "load": load}


def _build_export_figures(rows: Sequence[dict[str, Any]]) -> Iterator[RatioFigure]:
    runs = _pair_runs(rows)
    for name, (few, many) in runs.items():
        title = f"{name}, {many['rows']} rows"
        yield RatioFigure(f"rows/s, {title}", many["rows"] / many["wall_s"])
        if name != BARE_LABEL:
            ratio = _cpu_per_row(few, many) / _cpu_per_row(*runs[BARE_LABEL])
            yield RatioFigure(
                f"CPU of a row / bare loop, {title}", ratio, upper_bound=MAX_CPU_RATIO
            )
            yield _memory_figure(title, few, many)


def _pair_runs(rows: Sequence[dict[str, Any]]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return the smaller and the larger run of each name."""
    half = len(rows) // 2
    return {few["name"]: (few, many) for few, many in zip(rows[:half], rows[half:], strict=True)}


def _memory_figure(title: str, few: dict[str, Any], many: dict[str, Any]) -> RatioFigure:
    ratio = many["peak_bytes"] / few["peak_bytes"]
    name = f"peak memory / that of a tenth, {title}"
    limit = MAX_MEMORY_RATIO if many["rows"] >= MIN_MEMORY_ROWS else None
    return RatioFigure(name, ratio, upper_bound=limit)


def _cpu_per_row(few: dict[str, Any], many: dict[str, Any]) -> float:
    """Return CPU seconds for each row over all processes, without their start."""
    return float((many["cpu_s"] - few["cpu_s"]) / (many["rows"] - few["rows"]))


def export_bare(database: str, target: str) -> None:
    """Export with the peer."""
    names = stored_columns(ALL_COLUMNS)
    kinds = {"int": pa.int64(), "float": pa.float64(), "bool": pa.int64()}
    types = {metric.name: kinds.get(metric.type, pa.string()) for metric in CATALOGUE}
    schema = pa.schema([(name, types.get(name, pa.binary())) for name in names])
    query = select_measurements(Selection(), "sqlite")
    with (
        closing(sqlite3.connect(database)) as connection,
        parquet.ParquetWriter(target, schema, compression="zstd") as writer,
    ):
        cursor = connection.execute(str(query.compile(dialect=sqlite.dialect())))
        while rows := cursor.fetchmany(5000):
            columns = zip(zip(*rows, strict=True), schema, strict=True)
            arrays = [pa.array(values, field.type) for values, field in columns]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def measure_imports(options: argparse.Namespace) -> list[RatioFigure]:
    """Import all rows and a tenth of them into an empty, durable database of each kind."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="treehammer-", dir=options.keep) as name:
        for count in (options.rows // SIZE_FACTOR, options.rows):
            file = Path(name) / f"{count}.parquet"
            with filled_database(count, options.keep) as source:
                account_command([TREEHAMMER, "--database", f"sqlite:///{source}", "export", file])
            for kind in ("sqlite", "postgresql"):
                with _empty_database(kind, Path(name) / f"{kind}-{count}") as url:
                    command: list[str | Path] = [TREEHAMMER, "--database", url, "import", file]
                    rows.append(_account_transfer(kind, count, command))
    write_results("import", rows)
    print_table(rows)
    return list(_build_import_figures(rows))


@contextmanager
def _empty_database(kind: str, path: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{path}.db"
        return
    with run_postgres(path) as server:
        server.create_database("imported")
        yield server.url("imported")


def _build_import_figures(rows: Sequence[dict[str, Any]]) -> Iterator[RatioFigure]:
    for kind, (few, many) in _pair_runs(rows).items():
        title = f"{kind}, {many['rows']} rows"
        # Without the start of the program.
        seconds = 1e6 * (many["wall_s"] - few["wall_s"]) / (many["rows"] - few["rows"])
        yield RatioFigure(f"s for a million rows, {title}", seconds, upper_bound=MAX_S_PER_MILLION)
        yield _memory_figure(title, few, many)


if __name__ == "__main__":
    export_bare(*sys.argv[1:])
