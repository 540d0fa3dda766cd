"""Cost of imports: rows per second against the bare loop of each database's driver.

The peer writes the same rows into the same table with the same indexes, by psycopg's COPY or
sqlite3's executemany. It gets tuples and does no reading, validation, duplicate search, sharing of
texts or roll-ups.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.engine import make_url

from benchmarks.harness import synthetic_measurements
from benchmarks.harness.filled_databases import run_postgres
from benchmarks.harness.ratio_figures import RatioFigure, median_ratio, plot_points, write_rows
from treehammer.progress import no_progress
from treehammer.sql.core.schema import dimension_tables, measurement
from treehammer.sql.engine.backends.postgresql import libpq_connection_string
from treehammer.sql.engine.database_engine import parse_url
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.setup.database_setup import open_engine
from treehammer.sql.transfer.export import export_file
from treehammer.sql.transfer.importer import collect_files, import_files
from treehammer.sql.write.store import Store

ROW_COUNT, REPEATS = 20_000, 3
#: Rows per day, as in a year of ten million.
ROWS_PER_DAY = 25_000
IMPORT_LABEL, BARE_LABEL = "import", "bare loop"

Rows = Sequence[tuple[Any, ...]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--import-rows",
        type=int,
        default=ROW_COUNT,
        help=f"import: number of rows (default: {ROW_COUNT})",
    )


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Import one file into new databases, each beside the bare loop."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="treehammer-") as name:
        folder = Path(name)
        file = _write_export(folder, int(options.import_rows))
        for kind in options.databases:
            with _empty_databases(kind, folder) as make:
                for repeat in range(REPEATS):
                    ours, theirs = make(), make()
                    spent = {
                        IMPORT_LABEL: _time_import(file, ours),
                        BARE_LABEL: _time_bare_loop(ours, theirs),
                    }
                    found += [
                        {
                            "database": kind,
                            "repeat": repeat,
                            "rows": options.import_rows,
                            "what": what,
                            "wall_s": wall_s,
                            "load": os.getloadavg()[0],
                        }
                        for what, wall_s in spent.items()
                    ]
    write_rows("import", found)
    return _build_figures(found)


def _write_export(folder: Path, rows: int) -> Path:
    file = folder / "results.parquet"
    with Store.open(f"sqlite:///{folder}/source.db") as store:
        store.add(synthetic_measurements.SyntheticCampaigns(max(1, rows // ROWS_PER_DAY), rows))
        export_file(store, Selection(), file, software_dir=folder)
    return file


@contextmanager
def _empty_databases(kind: str, folder: Path) -> Iterator[Callable[[], str]]:
    """Provide URLs of new, empty databases."""
    numbers = count()
    if kind == "sqlite":
        yield lambda: f"sqlite:///{folder}/{next(numbers)}.db"
        return
    with run_postgres(folder / kind) as server:

        def make() -> str:
            name = f"import_{next(numbers)}"
            server.create_database(name)
            return server.url(name)

        yield make


def _time_import(file: Path, url: str) -> float:
    with Store.open(url) as store:
        start = time.monotonic()
        (done,) = import_files(
            store, collect_files([file]), ignore_unknown=False, dry_run=False, bars=no_progress
        )
        wall_s = time.monotonic() - start
    if done.problems or done.duplicates:
        raise RuntimeError(f"unexpected result of the import: {done}")
    return wall_s


def _time_bare_loop(source: str, target: str) -> float:
    """Copy a database's content into another one; return the seconds for measurements alone."""
    old, new = open_engine(source, create=False), open_engine(target, create=True)
    try:
        with old.connect() as from_, new.begin() as to:
            for table in dimension_tables.values():
                rows = [dict(row) for row in from_.execute(sa.select(table)).mappings()]
                to.execute(sa.insert(table), rows)
        with old.connect() as from_:
            columns = ", ".join(f'"{column.name}"' for column in measurement.c)
            plain = from_.exec_driver_sql(f"SELECT {columns} FROM measurement")
            rows_: Rows = [tuple(row) for row in plain]
    finally:
        old.dispose()
        new.dispose()
    url = parse_url(target)
    loop = _insert_rows if url.get_backend_name() == "sqlite" else _copy_rows
    start = time.monotonic()
    loop(target, rows_)
    return time.monotonic() - start


def _copy_rows(target: str, rows: Rows) -> None:
    names = sql.SQL(", ").join(sql.Identifier(column.name) for column in measurement.c)
    statement = sql.SQL("COPY measurement ({}) FROM STDIN").format(names)
    with (
        psycopg.connect(libpq_connection_string(parse_url(target))) as connection,
        connection.cursor() as cursor,
        cursor.copy(statement) as copy,
    ):
        for row in rows:
            copy.write_row(row)


def _insert_rows(target: str, rows: Rows) -> None:
    marks = ", ".join("?" for _ in measurement.c)
    names = ", ".join(f'"{column.name}"' for column in measurement.c)
    with closing(sqlite3.connect(str(make_url(target).database))) as connection, connection:
        connection.execute("PRAGMA synchronous=FULL")
        connection.executemany(f"INSERT INTO measurement ({names}) VALUES ({marks})", rows)


def _select_walls(rows: Iterable[dict[str, Any]], label: str) -> list[float]:
    return [row["wall_s"] for row in rows if row["what"] == label]


def _build_figures(found: Sequence[dict[str, Any]]) -> list[RatioFigure]:
    figures, rates = [], {}
    for kind in dict.fromkeys(row["database"] for row in found):
        mine = [row for row in found if row["database"] == kind]
        spent = {label: _select_walls(mine, label) for label in (IMPORT_LABEL, BARE_LABEL)}
        peer = "psycopg's bare COPY" if kind == "postgresql" else "bare executemany of sqlite3"
        figures.append(median_ratio(f"wall time, import into {kind} / {peer}", *spent.values()))
        for label, walls in spent.items():
            rates[f"{label}, {kind}"] = [mine[0]["rows"] / wall_s for wall_s in walls]
    figures += [
        RatioFigure(f"rows a second, {name}", sorted(rate)[len(rate) // 2])
        for name, rate in rates.items()
    ]
    plot_points("import", "Import of a Parquet file", "rows per second", rates, reference=None)
    return figures
