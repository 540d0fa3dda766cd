"""Exports of large databases: CPU for each row against a bare loop, and memory against a tenth.

The peer reads rows by sqlite3 and writes columns by pyarrow to Parquet, in one small loop. It leaves
lists as JSON text and packed bytes, and so does less than an export.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from sqlalchemy.dialects import sqlite

from benchmarks.harness.figures import RatioFigure, print_table, write_results
from benchmarks.harness.filled_databases import filled_database
from benchmarks.harness.program_runs import TREEHAMMER, account_command
from treehammer.collectors.record.metric_catalogue import CATALOGUE
from treehammer.sql.core.measurement_columns import ALL_COLUMNS, stored_columns
from treehammer.sql.read.measurement_queries import MeasurementQueries
from treehammer.sql.read.measurement_selection import Selection

EXPORT_FORMATS = ("parquet", "csv", "root")
#: Ratio between the larger and the smaller database.
SIZE_FACTOR = 10
BARE_LABEL = "bare loop"
#: Bytes per row of the largest export, a TTree; CSV takes 9 kB.
MAX_EXPORT_BYTES_PER_ROW = 2_300
#: Limits: CPU of a row / that of the bare loop, and memory / that of a tenth of the rows.
MAX_CPU_RATIO, MAX_MEMORY_RATIO = 2.0, 1.25


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--formats",
        nargs="+",
        choices=EXPORT_FORMATS,
        default=("parquet", "root"),
        help="export: formats (default: parquet root)",
    )


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Export all rows and a tenth of them, in each format and by the bare loop."""
    rows = [
        row
        for count in (options.rows // SIZE_FACTOR, options.rows)
        for row in _measure_exports(count, options)
    ]
    write_results("export", rows)
    print_table(rows)
    return list(_build_figures(rows))


def _measure_exports(count: int, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with (
        filled_database(count, options.keep, MAX_EXPORT_BYTES_PER_ROW) as database,
        tempfile.TemporaryDirectory(dir=options.keep) as folder,
    ):
        target = Path(folder) / "out.parquet"
        base = [TREEHAMMER, "--database", f"sqlite:///{database}", "export"]
        commands: dict[str, Sequence[str | Path]] = {
            name: [*base, target.with_suffix(f".{name}")] for name in options.formats
        }
        commands[BARE_LABEL] = [sys.executable, "-m", __name__, database, target]
        for name, command in commands.items():
            account = account_command(command)
            written = Path(command[-1])
            size = written.stat().st_size
            load = os.getloadavg()[0]
            row = {"export": name, "rows": count, **asdict(account)}
            yield {**row, "file_bytes": size, "load": load}
            written.unlink()


def _build_figures(rows: Sequence[dict[str, Any]]) -> Iterator[RatioFigure]:
    runs: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        runs.setdefault(row["export"], []).append(row)
    for name, (few, many) in runs.items():
        title = f"{name}, {many['rows']} rows"
        yield RatioFigure(f"rows/s, {title}", many["rows"] / many["wall_s"])
        if name != BARE_LABEL:
            ratio = _cpu_per_row(few, many) / _cpu_per_row(*runs[BARE_LABEL])
            yield RatioFigure(
                f"CPU of a row / bare loop, {title}", ratio, upper_bound=MAX_CPU_RATIO
            )
            memory = many["peak_bytes"] / few["peak_bytes"]
            yield RatioFigure(
                f"peak memory / that of a tenth, {title}", memory, upper_bound=MAX_MEMORY_RATIO
            )


def _cpu_per_row(few: dict[str, Any], many: dict[str, Any]) -> float:
    """Return CPU seconds for each row over all processes, without their start."""
    return float((many["cpu_s"] - few["cpu_s"]) / (many["rows"] - few["rows"]))


def export_bare(database: str, target: str) -> None:
    """Export with the peer."""
    names = stored_columns(ALL_COLUMNS)
    kinds = {"int": pa.int64(), "float": pa.float64(), "bool": pa.int64()}
    types = {metric.name: kinds.get(metric.type, pa.string()) for metric in CATALOGUE}
    schema = pa.schema([(name, types.get(name, pa.binary())) for name in names])
    query = MeasurementQueries(Selection(), "sqlite").measurements()
    with (
        closing(sqlite3.connect(database)) as connection,
        parquet.ParquetWriter(target, schema, compression="zstd") as writer,
    ):
        cursor = connection.execute(str(query.compile(dialect=sqlite.dialect())))
        while rows := cursor.fetchmany(5000):
            columns = zip(zip(*rows, strict=True), schema, strict=True)
            arrays = [pa.array(values, field.type) for values, field in columns]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


if __name__ == "__main__":
    export_bare(*sys.argv[1:])
