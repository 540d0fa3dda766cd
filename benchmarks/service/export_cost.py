"""Cost of exports: rows per second and peak memory, each format against Parquet."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness.ratio_figures import (
    SEED,
    RatioFigure,
    median_ratio,
    plot_points,
    write_rows,
)
from benchmarks.harness.worker_runs import TREEHAMMER, account_command
from treehammer.collectors.record.measurement_record import Measurement, make_measurement_id
from treehammer.collectors.record.metric_catalogue import CATALOGUE, LATENCY_BINS, Metric
from treehammer.sql.write.store import Store

EXPORT_FORMATS = ("parquet", "csv", "root")
#: Row counts; the last is repeated, the first shows whether memory grows with rows.
ROW_COUNTS = (10_000, 20_000)
REPEATS = 2
#: Characters of an inventory, the longest text of a real record.
INVENTORY_CHARS = 6_500


def measure() -> list[RatioFigure]:
    """Fill databases with synthetic measurements and export them in each format in turn."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for count in ROW_COUNTS:
            url = f"sqlite:///{folder}/{count}.db"
            with Store.open(url) as store:
                store.add(random_measurements(count))
            for repeat in range(REPEATS if count == ROW_COUNTS[-1] else 1):
                for form in EXPORT_FORMATS:
                    target = Path(folder) / f"out.{form}"
                    wall, cpu, peak = account_command(
                        [TREEHAMMER, "--database", url, "export", target]
                    )
                    row = {"rows": count, "repeat": repeat, "format": form, "wall_s": wall}
                    size = target.stat().st_size
                    rows.append({**row, "cpu_s": cpu, "peak_bytes": peak, "file_bytes": size})
    write_rows("export", rows)
    return _build_figures(rows)


def random_measurements(count: int) -> Iterator[Measurement]:
    """Yield measurements with random values of realistic size in every column."""
    values = random.Random(SEED)
    for number in range(count):
        found: dict[str, Any] = {
            metric.name: random_value(metric, values, INVENTORY_CHARS) for metric in CATALOGUE
        }
        found["measurement_id"] = make_measurement_id(str(number), 1, 1, 1)
        yield Measurement(found)


def random_value(metric: Metric, values: random.Random, inventory: int) -> Any:
    """Return a value of realistic size; ``inventory`` is the length of that text."""
    if metric.type == "text":
        length = inventory if metric.name == "inventory" else 24
        return values.randbytes(length // 2).hex()
    if metric.type == "bool":
        return values.random() < 0.5
    length = LATENCY_BINS if metric.name == "read_latency_hist" else 3
    return {
        "int": values.randrange(10**9),
        "float": values.random(),
        "ints": [values.randrange(10**6) for _ in range(length)],
        "floats": [values.random() for _ in range(length)],
    }[metric.type]


def _build_figures(rows: list[dict[str, Any]]) -> list[RatioFigure]:
    few, many = ROW_COUNTS

    def column(name: str, form: str, count: int) -> list[float]:
        return [row[name] for row in rows if (row["format"], row["rows"]) == (form, count)]

    figures, rates = [], {}
    for form in EXPORT_FORMATS:
        rates[form] = [many / seconds for seconds in column("wall_s", form, many)]
        if form == "parquet":
            continue
        for name, what in (
            ("wall_s", "wall time"),
            ("cpu_s", "CPU time"),
            ("peak_bytes", "peak memory"),
            ("file_bytes", "size of the file"),
        ):
            pair = (column(name, one, many) for one in (form, "parquet"))
            figures.append(median_ratio(f"{what}, .{form} / .parquet", *pair))
    for form in EXPORT_FORMATS:
        (less,) = column("peak_bytes", form, few)
        more = max(column("peak_bytes", form, many))
        figures.append(RatioFigure(f"peak memory of .{form}, {many} / {few} rows", more / less))
    plot_points(
        "export", f"Export of {many} measurements", "rows per second", rates, reference=None
    )
    return figures
