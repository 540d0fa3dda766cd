"""Ten queries of pages with and without roll-ups, on all rows and on a tenth of them."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.axes import Axes

from benchmarks.harness import synthetic_measurements
from benchmarks.harness.filled_databases import filled_database
from benchmarks.harness.ratio_figures import RatioFigure, database_panels, write_rows
from treehammer.errors import NothingToDoError
from treehammer.sql.read.figure_query import FigureQuery as Asked
from treehammer.sql.read.figure_query import FigureResult
from treehammer.sql.read.measurement_selection import Condition, Selection
from treehammer.sql.write.store import Store

#: Ratio of rows between the larger and the smaller database.
SIZE_FACTOR = 10
#: Runs per query, unless they take longer than so many seconds.
REPEATS, TIMEOUT_S = 5, 20.0
FROM_ROLLUPS, FROM_MEASUREMENTS, FROM_INDEX = "roll-ups", "measurements", "index"
COLORS = {FROM_ROLLUPS: "tab:blue", FROM_MEASUREMENTS: "tab:red", FROM_INDEX: "0.4"}


@dataclass(frozen=True)
class BenchmarkQuery:
    """One query: a figure, or another call of the store."""

    name: str
    figure_query: Asked | None = None
    store_call: Callable[[Store], Sequence[Any]] | None = None


def measure(options: argparse.Namespace) -> list[RatioFigure]:
    """Fill databases of each kind and run the queries."""
    rows: list[dict[str, Any]] = []
    for kind in options.databases:
        for count in (options.rows // SIZE_FACTOR, options.rows):
            rows += _run_all_queries(kind, count, options.keep)
    write_rows("queries", rows)
    _plot_timings(rows, options.rows)
    return _build_figures(rows, options.rows)


def _run_all_queries(kind: str, count: int, keep: Path | None) -> list[dict[str, Any]]:
    rows = []
    with filled_database(kind, count, keep) as found, Store.open(found.url, create=False) as store:
        for query in build_queries():
            if query.figure_query is None:
                assert query.store_call is not None
                seconds, answer = _time_query(lambda other=query.store_call: other(store))  # type: ignore[misc]
                _require_rows(query, kind, count, answer)
                rows.append(_result_row(kind, count, query, FROM_INDEX, seconds, len(answer)))
                continue
            answers: dict[str, FigureResult] = {}
            for raw in (False, True):
                figure = replace(query.figure_query, from_measurements=raw)
                if figure.source in answers:
                    continue  # roll-ups lack this information
                seconds, answer = _time_query(lambda query=figure: store.fetch_figure(query))  # type: ignore[misc]
                _require_rows(query, kind, count, answer.groups)
                answers[figure.source] = answer
                rows.append(
                    _result_row(kind, count, query, figure.source, seconds, len(answer.groups))
                )
            _require_same_answer(query, [*answers.values()])
    return rows


def build_queries() -> list[BenchmarkQuery]:
    """Build the queries for the last days of the synthetic measurements."""
    last = synthetic_measurements.DAYS - 1
    week: dict[str, Any] = {"first_day": synthetic_measurements.day_number(last - 6)}
    month: dict[str, Any] = {"first_day": synthetic_measurements.day_number(last - 29)}
    old, new = synthetic_measurements.RELEASES[1:3]
    # The newest campaign has this job for any number of rows, and the job has the series.
    site, variant = (
        synthetic_measurements.SITE_NAMES[0],
        synthetic_measurements.variant_of_job(last, 0),
    )
    campaign, job = synthetic_measurements.campaign_id(last), synthetic_measurements.job_id(last, 0)
    series = synthetic_measurements.subject_columns(
        0, variant, synthetic_measurements.releases_of_variant(variant)[-1]
    )["series"]
    job_alone = Selection((campaign,), (Condition("job_id", "=", job),))
    place = (
        Condition("site", "=", site),
        Condition("axis_cache", "=", "warm"),
        Condition("day", ">=", month["first_day"]),
        Condition("kind", "=", "timed"),
    )
    return [
        BenchmarkQuery(
            "efficiency by site and variant, 7 days", _figure_by("site", "variant_label", **week)
        ),
        BenchmarkQuery(
            "two releases by site, all days",
            _figure_by(
                "site",
                "axis_root",
                metric="cpu_per_event_s",
                selection=Selection(conditions=(Condition("axis_root", "=", (old, new)),)),
            ),
        ),
        BenchmarkQuery("efficiency by site and day, all days", _figure_by("site", "day")),
        BenchmarkQuery(
            "trend of one series, by day",
            _figure_by(
                "day",
                metric="wall_per_event_s",
                selection=Selection(conditions=(Condition("series", "=", series),)),
            ),
        ),
        BenchmarkQuery(
            "failures by site and class, 30 days",
            Asked(by=("site", "failure_class"), kind=None, **month),
        ),
        BenchmarkQuery(
            "percentiles of read latency by door, 30 days",
            Asked(by=("door",), latencies=True, **month),
        ),
        BenchmarkQuery(
            "slowest hosts, 7 days", _figure_by("host", metric="cpu_per_event_s", **week)
        ),
        BenchmarkQuery(
            "counts of the newest campaign",
            store_call=lambda store: store.count_measurements(campaign),
        ),
        BenchmarkQuery(
            "the rows of one job",
            store_call=lambda store: [*store.measurements(job_alone)],
        ),
        BenchmarkQuery(
            "distribution at one site, 30 days",
            store_call=lambda store: [
                *store.measurements(Selection(conditions=place), ["eff_job"])
            ],
        ),
    ]


def _figure_by(*by: str, metric: str = "eff_job", **more: Any) -> Asked:
    return Asked((metric,), by, **more)


def _time_query(ask: Callable[[], Any]) -> tuple[list[float], Any]:
    seconds: list[float] = []
    while len(seconds) < REPEATS and sum(seconds) < TIMEOUT_S:
        start = time.monotonic()
        answer = ask()
        seconds.append(time.monotonic() - start)
    return seconds, answer


def _require_rows(query: BenchmarkQuery, kind: str, count: int, answer: Sequence[Any]) -> None:
    """Refuse empty results: their time is meaningless."""
    if not answer:
        raise NothingToDoError(f"{query.name}: nothing is found in {count} rows", where=kind)


def _require_same_answer(query: BenchmarkQuery, answers: Sequence[FigureResult]) -> None:
    """Refuse different results of roll-ups and measurements."""
    for one, other in pairwise(answers):
        for mine, theirs in zip(one.groups, other.groups, strict=True):
            same = (mine.by, mine.outcomes, [*mine.reads]) == (
                theirs.by,
                theirs.outcomes,
                [*theirs.reads],
            )
            for name, moments in mine.metrics.items():
                same = same and math.isclose(
                    moments.total, theirs.metrics[name].total, rel_tol=1e-9
                )
            if not same:
                raise AssertionError(f"{query.name}: {mine} is not {theirs}")


def _result_row(
    kind: str, rows: int, query: BenchmarkQuery, way: str, seconds: Sequence[float], answers: int
) -> dict[str, Any]:
    return {
        "database": kind,
        "rows": rows,
        "query": query.name,
        "from": way,
        "wall_s": median(seconds),
        "slowest_s": max(seconds),
        "repeats": len(seconds),
        "answers": answers,
    }


def _build_figures(rows: Sequence[dict[str, Any]], count: int) -> list[RatioFigure]:
    seconds = {(row["database"], row["query"], row["from"], row["rows"]): row for row in rows}

    def wall_s(kind: str, query: str, way: str, size: int) -> float:
        return float(seconds[kind, query, way, size]["wall_s"])

    rolled = [
        (row["database"], row["query"])
        for row in rows
        if (row["from"], row["rows"]) == (FROM_ROLLUPS, count)
    ]
    ratios = [
        RatioFigure(
            f"{query}: {FROM_MEASUREMENTS} / {FROM_ROLLUPS}, {kind}, {count} rows",
            wall_s(kind, query, FROM_MEASUREMENTS, count)
            / wall_s(kind, query, FROM_ROLLUPS, count),
        )
        for kind, query in rolled
    ]
    growth = [
        RatioFigure(
            f"{query}: {FROM_ROLLUPS}, {kind}, {count} / {count // SIZE_FACTOR} rows",
            wall_s(kind, query, FROM_ROLLUPS, count)
            / wall_s(kind, query, FROM_ROLLUPS, count // SIZE_FACTOR),
        )
        for kind, query in rolled
    ]
    return ratios + growth


def _plot_timings(rows: Sequence[dict[str, Any]], count: int) -> None:
    """Plot seconds per query, one panel per database; large dots for all rows."""
    kinds = list(dict.fromkeys(row["database"] for row in rows))
    names = [query.name for query in build_queries()]
    with database_panels("queries", kinds, names, 4.2) as panels:
        for axes, kind in zip(panels, kinds, strict=True):
            _plot_database(axes, [row for row in rows if row["database"] == kind], names, count)
            axes.set_xlabel("seconds")
            axes.set_title(kind, loc="left", fontsize="medium")


def _plot_database(
    axes: Axes, rows: Sequence[dict[str, Any]], names: Sequence[str], count: int
) -> None:
    for way, color in COLORS.items():
        for size, area in ((count // SIZE_FACTOR, 16), (count, 60)):
            found = [row for row in rows if (row["from"], row["rows"]) == (way, size)]
            axes.scatter(
                [row["wall_s"] for row in found],
                [names.index(row["query"]) for row in found],
                s=area,
                color=color,
                alpha=0.8,
                label=way if size == count else None,
            )
