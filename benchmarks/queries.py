"""Ten questions that pages ask, of a tenth of the rows and of all: with and without roll-ups."""

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

from matplotlib.figure import Figure as Canvas

from benchmarks import world
from benchmarks.databases import filled
from benchmarks.report import RESULTS, Figure, write_rows
from treehammer.errors import NothingToDo
from treehammer.sql.figures import Answer
from treehammer.sql.figures import Figure as Asked
from treehammer.sql.selection import Selection, Where
from treehammer.sql.store import Store

#: How many times fewer rows the smaller database has.
FACTOR = 10
#: A question is asked so often, unless that takes longer than so many seconds.
REPEATS, PATIENCE_S = 5, 20.0
ROLLED, RAW, OTHER = "roll-ups", "measurements", "index"
COLOURS = {ROLLED: "tab:blue", RAW: "tab:red", OTHER: "0.4"}


@dataclass(frozen=True)
class Query:
    """One question: a figure, or what else is asked of the store."""

    name: str
    figure: Asked | None = None
    other: Callable[[Store], Sequence[Any]] | None = None


def measure(options: argparse.Namespace) -> list[Figure]:
    """Fill databases of either kind, and ask them."""
    rows: list[dict[str, Any]] = []
    for kind in options.databases:
        for count in (options.rows // FACTOR, options.rows):
            rows += _ask_all(kind, count, options.keep)
    write_rows("queries", rows)
    _draw(rows, options.rows)
    return _figures(rows, options.rows)


def _ask_all(kind: str, count: int, keep: Path | None) -> list[dict[str, Any]]:
    rows = []
    with filled(kind, count, keep) as found, Store.open(found.url, create=False) as store:
        for query in queries():
            if query.figure is None:
                assert query.other is not None
                seconds, answer = _timed(lambda other=query.other: other(store))  # type: ignore[misc]
                _require_some(query, kind, count, answer)
                rows.append(_row(kind, count, query, OTHER, seconds, len(answer)))
                continue
            answers: dict[str, Answer] = {}
            for raw in (False, True):
                figure = replace(query.figure, raw=raw)
                if figure.source in answers:
                    continue  # roll-ups cannot tell
                seconds, answer = _timed(lambda asked=figure: store.figure(asked))  # type: ignore[misc]
                _require_some(query, kind, count, answer.groups)
                answers[figure.source] = answer
                rows.append(_row(kind, count, query, figure.source, seconds, len(answer.groups)))
            _require_same(query, [*answers.values()])
    return rows


def queries() -> list[Query]:
    """The questions, of the last days of :mod:`benchmarks.world`."""
    last = world.DAYS - 1
    week: dict[str, Any] = {"first_day": world.day_number(last - 6)}
    month: dict[str, Any] = {"first_day": world.day_number(last - 29)}
    old, new = world.RELEASES[1:3]
    # The newest campaign has this job, with any number of rows, and the job the series.
    site, variant = world.SITES[0], world.variant_of(last, 0)
    campaign, job = world.campaign_id(last), world.job_id(last, 0)
    series = world.subject(0, variant, world.releases_of(variant)[-1])["series"]
    job_alone = Selection((campaign,), (Where("job_id", "=", job),))
    place = (
        Where("site", "=", site),
        Where("axis_cache", "=", "warm"),
        Where("day", ">=", month["first_day"]),
        Where("kind", "=", "timed"),
    )
    return [
        Query("efficiency by site and variant, 7 days", _by("site", "variant_label", **week)),
        Query(
            "two releases by site, all days",
            _by(
                "site",
                "axis_root",
                metric="cpu_per_event_s",
                selection=Selection(wheres=(Where("axis_root", "=", (old, new)),)),
            ),
        ),
        Query("efficiency by site and day, all days", _by("site", "day")),
        Query(
            "trend of one series, by day",
            _by(
                "day",
                metric="wall_per_event_s",
                selection=Selection(wheres=(Where("series", "=", series),)),
            ),
        ),
        Query(
            "failures by site and class, 30 days",
            Asked(by=("site", "failure_class"), kind=None, **month),
        ),
        Query(
            "percentiles of read latency by door, 30 days",
            Asked(by=("door",), latencies=True, **month),
        ),
        Query("slowest hosts, 7 days", _by("host", metric="cpu_per_event_s", **week)),
        Query("counts of the newest campaign", other=lambda store: store.counts(campaign)),
        Query(
            "the rows of one job",
            other=lambda store: [*store.measurements(job_alone)],
        ),
        Query(
            "distribution at one site, 30 days",
            other=lambda store: [*store.measurements(Selection(wheres=place), ["eff_job"])],
        ),
    ]


def _by(*by: str, metric: str = "eff_job", **more: Any) -> Asked:
    return Asked((metric,), by, **more)


def _timed(ask: Callable[[], Any]) -> tuple[list[float], Any]:
    seconds: list[float] = []
    while len(seconds) < REPEATS and sum(seconds) < PATIENCE_S:
        start = time.monotonic()
        answer = ask()
        seconds.append(time.monotonic() - start)
    return seconds, answer


def _require_some(query: Query, kind: str, count: int, answer: Sequence[Any]) -> None:
    """How fast nothing is found says nothing."""
    if not answer:
        raise NothingToDo(f"{query.name}: nothing is found in {count} rows", where=kind)


def _require_same(query: Query, answers: Sequence[Answer]) -> None:
    """A quick answer that is another one is worth nothing."""
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


def _row(
    kind: str, rows: int, query: Query, way: str, seconds: Sequence[float], answers: int
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


def _figures(rows: Sequence[dict[str, Any]], count: int) -> list[Figure]:
    seconds = {(row["database"], row["query"], row["from"], row["rows"]): row for row in rows}

    def wall_s(kind: str, query: str, way: str, size: int) -> float:
        return float(seconds[kind, query, way, size]["wall_s"])

    rolled = [
        (row["database"], row["query"])
        for row in rows
        if (row["from"], row["rows"]) == (ROLLED, count)
    ]
    ratios = [
        Figure(
            f"{query}: {RAW} / {ROLLED}, {kind}, {count} rows",
            wall_s(kind, query, RAW, count) / wall_s(kind, query, ROLLED, count),
        )
        for kind, query in rolled
    ]
    growth = [
        Figure(
            f"{query}: {ROLLED}, {kind}, {count} / {count // FACTOR} rows",
            wall_s(kind, query, ROLLED, count) / wall_s(kind, query, ROLLED, count // FACTOR),
        )
        for kind, query in rolled
    ]
    return ratios + growth


def _draw(rows: Sequence[dict[str, Any]], count: int) -> None:
    """A panel a database: seconds of each question, large dots of all rows, small ones of a tenth."""
    kinds = list(dict.fromkeys(row["database"] for row in rows))
    names = [query.name for query in queries()]
    canvas = Canvas(figsize=(4.2 + 3.6 * len(kinds), 4.2), layout="constrained")
    panels = canvas.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        for way, colour in COLOURS.items():
            for size, area in ((count // FACTOR, 16), (count, 60)):
                found = [
                    r for r in rows if (r["database"], r["from"], r["rows"]) == (kind, way, size)
                ]
                axes.scatter(
                    [row["wall_s"] for row in found],
                    [names.index(row["query"]) for row in found],
                    s=area,
                    color=colour,
                    alpha=0.8,
                    label=way if size == count else None,
                )
        axes.set_xscale("log")
        axes.set_xlabel("seconds")
        axes.set_title(kind, loc="left", fontsize="medium")
        axes.grid(axis="x", linewidth=0.3)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    panels[-1].legend(fontsize="small")
    RESULTS.mkdir(exist_ok=True)
    canvas.savefig(RESULTS / "queries.svg", metadata={"Date": None})
