"""Import of a Parquet file into an empty database: rows per second, and memory against a tenth."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import RatioFigure, print_table, write_results
from benchmarks.harness.filled_databases import filled_database
from benchmarks.harness.program_runs import TREEHAMMER, account_command, run_postgres

#: Ratio between the larger and the smaller file.
SIZE_FACTOR = 10
#: Limits: seconds for a million rows, and memory / that of a tenth of the rows.
MAX_S_PER_MILLION, MAX_MEMORY_RATIO = 900.0, 1.25


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Import all rows and a tenth of them into a database of each kind."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="treehammer-", dir=options.keep) as name:
        for count in (options.rows // SIZE_FACTOR, options.rows):
            file = Path(name) / f"{count}.parquet"
            with filled_database(count, options.keep) as source:
                account_command([TREEHAMMER, "--database", f"sqlite:///{source}", "export", file])
            for kind in ("sqlite", "postgresql"):
                with _empty_database(kind, Path(name) / f"{kind}-{count}") as url:
                    account = account_command([TREEHAMMER, "--database", url, "import", file])
                load = os.getloadavg()[0]
                rows.append({"database": kind, "rows": count, **asdict(account), "load": load})
    write_results("import", rows)
    print_table(rows)
    return list(_build_figures(rows))


@contextmanager
def _empty_database(kind: str, folder: Path) -> Iterator[str]:
    """Yield the URL of a new, empty and durable database."""
    if kind == "sqlite":
        yield f"sqlite:///{folder}.db"
        return
    with run_postgres(folder) as server:
        server.create_database("imported")
        yield server.url("imported")


def _build_figures(rows: Sequence[dict[str, Any]]) -> Iterator[RatioFigure]:
    for kind in dict.fromkeys(row["database"] for row in rows):
        few, many = (row for row in rows if row["database"] == kind)
        title = f"{kind}, {many['rows']} rows"
        seconds = 1e6 * many["wall_s"] / many["rows"]
        yield RatioFigure(f"s for a million rows, {title}", seconds, upper_bound=MAX_S_PER_MILLION)
        yield RatioFigure(
            f"peak memory / that of a tenth, {title}",
            many["peak_bytes"] / few["peak_bytes"],
            upper_bound=MAX_MEMORY_RATIO,
        )
