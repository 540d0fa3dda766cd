"""Figures of reads through caches: rates by size of block, cost against the direct door, releases."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from treehammer.load.analysis.cache_cost import LIMIT, CacheComparison, LogMean, describe_condition
from treehammer.load.analysis.cache_reads import COLUMNS, METRICS, TEST, CacheRead, parse_read
from treehammer.sql.read.measurement_queries import DatabaseSnapshot
from treehammer.sql.read.query_model import MAX_READ, Condition, FigureQuery, Selection
from treehammer.web.figures.figure_layout import (
    FigureLayout,
    FigureMark,
    FigurePanel,
    FigureSeries,
    Kind,
    Scale,
    style_series,
)

#: Color of the direct door's lines and of the limit.
_REFERENCE_COLOR = "#8c8c8c"
_LIMIT_TEXT = f"{100 * (LIMIT - 1):.0f} %"
RATE_TITLE, COST_TITLE = "MB/s", "time through the cache ÷ direct"


def load_cache_reads(
    snapshot: DatabaseSnapshot,
    campaigns: tuple[str, ...],
    conditions: Sequence[Condition] = (),
    days: tuple[int | None, int | None] = (None, None),
) -> list[CacheRead]:
    """Load the good reads of campaigns and days (YYYYMMDD) that meet the conditions."""
    selection = Selection(campaigns, (Condition.parse(f"test_name={TEST}"), *conditions))
    first, last = days
    query = FigureQuery(METRICS, COLUMNS, selection, first_day=first, last_day=last)
    groups = snapshot.load_figure(query, MAX_READ).groups
    reads = (
        parse_read(group.by, {name: group.metrics[name].mean for name in METRICS})
        for group in groups
    )
    return [read for read in reads if read is not None]


class CacheFigure(NamedTuple):
    """A figure with its short name, heading and caption."""

    name: str
    heading: str
    layout: FigureLayout
    caption: str


def lay_out_figures(comparison: CacheComparison) -> Iterator[CacheFigure]:
    """Lay out the figures that have data: rates, and costs."""
    if any(cell.rate for cell in comparison.cached):
        yield CacheFigure(
            "curves",
            "Rate by size of block",
            _lay_out_curves(comparison),
            "Rate by the client's size of block; a line and marker for each share of the file that was "
            "read, a color for each release of the cache, gray for the direct door in the same jobs. "
            "Logarithmic axis; bars are 95 % intervals over jobs.",
        )
    if any(cell.cost for cell in comparison.cached):
        yield CacheFigure(
            "cost",
            "Cost of the cache",
            _lay_out_cost(comparison),
            f"Time through the cache divided by the time through the door {comparison.direct_door} in "
            f"the same round. Red costs more than {_LIMIT_TEXT}, blue less, gray is that line.",
        )


def format_block(kib: float) -> str:
    """Format a size of block, e.g. ``64 KiB`` or ``1 MiB``."""
    return f"{kib / 1024:g} MiB" if kib >= 1024 else f"{kib:g} KiB"


def _shorten_releases(releases: Sequence[str]) -> dict[str, str]:
    """Leave out the name of the server if all releases have the same: ``5.8.1``."""
    starts = {re.match(r"\D*", release)[0] for release in releases}  # type: ignore[index]
    common = starts.pop() if len(starts) == 1 else ""
    return {release: release.removeprefix(common) or release for release in releases}


def _make_mark(series: int, place: int, value: LogMean, count: int | None = None) -> FigureMark:
    low, high = value.ends or (None, None)
    return FigureMark(series, place, value.ratio, low, high, count=count)


def _lay_out_panels(
    panels: Sequence[FigurePanel],
    series: Sequence[FigureSeries],
    *,
    title: str,
    titles: tuple[str, str],
    groups: tuple[str, str, str],
    places: Sequence[str],
    better: str,
    limit: float | None = None,
) -> FigureLayout:
    """Lay out curves, or with a limit the heat map, on a logarithmic scale."""
    return FigureLayout(
        kind=Kind.HEAT_MAP if limit else Kind.CURVES,
        title=title,
        x_title=titles[0],
        y_title=titles[1],
        groups=groups,
        count_title="jobs",
        scale=Scale.LOG,
        places=tuple(places),
        series=tuple(series),
        panels=tuple(panels),
        better=better,
        limit=limit,
    )


def _lay_out_curves(comparison: CacheComparison) -> FigureLayout:
    """Lay out rates by size of block: a panel for each state and distance."""
    measured = {(key.release, key.read) for key, cell in comparison.cells.items() if cell.rate}

    def list_lines(releases: Sequence[str]) -> list[tuple[str, str]]:
        return [line for line in product(releases, comparison.reads) if line in measured]

    # The direct door has several names if its server's release changed.
    doors = dict.fromkeys(key.release for key in comparison.cells if key.is_direct)
    lines, direct = list_lines(comparison.releases), list_lines([*doors])
    names = _shorten_releases(comparison.releases)
    series = style_series(
        [(f"{names[release]}, {read}", read, release) for release, read in lines],
        by_release=True,
        reserved=(_REFERENCE_COLOR,),
    )
    markers = {read: line.marker for line, (_, read) in zip(series, lines, strict=True)}
    series += [
        FigureSeries(f"{label}, {read}", _REFERENCE_COLOR, markers[read]) for label, read in direct
    ]
    panels = [
        FigurePanel(
            describe_condition(condition),
            tuple(_mark_rates(comparison, condition, [*lines, *direct])),
        )
        for condition in comparison.conditions
    ]
    return _lay_out_panels(
        panels,
        series,
        title="Rate through the cache by size of block",
        titles=("size of block", RATE_TITLE),
        groups=("condition", "block", "cache and share of the file"),
        places=[*map(format_block, comparison.blocks)],
        better="higher",
    )


def _mark_rates(
    comparison: CacheComparison, condition: tuple[str, float], lines: Sequence[tuple[str, str]]
) -> Iterator[FigureMark]:
    """Mark the rates under a condition, and those of the direct door at the same distance."""
    state, latency = condition
    for key, cell in comparison.cells.items():
        is_shown = (key.release, key.read) in lines and key.block_kib in comparison.blocks
        if cell.rate and is_shown and key.latency_ms == latency and key.state in (state, ""):
            place = comparison.blocks.index(key.block_kib)
            yield _make_mark(lines.index((key.release, key.read)), place, cell.rate, cell.jobs)


def _lay_out_cost(comparison: CacheComparison) -> FigureLayout:
    """Lay out costs as a heat map: rows are releases and conditions, columns reads and blocks."""
    cells = [cell for cell in comparison.cached if cell.cost]
    columns = sorted(
        {(cell.key.read, cell.key.block_kib) for cell in cells},
        key=lambda column: (comparison.reads.index(column[0]), column[1]),
    )
    rows = sorted(
        {(cell.key.release, cell.key.condition) for cell in cells},
        key=lambda row: (comparison.conditions.index(row[1]), comparison.releases.index(row[0])),
    )
    marks = tuple(
        _make_mark(
            rows.index((cell.key.release, cell.key.condition)),
            columns.index((cell.key.read, cell.key.block_kib)),
            cell.cost,
            cell.jobs,
        )
        for cell in cells
        if cell.cost
    )
    names = _shorten_releases(comparison.releases)
    series = [
        FigureSeries(
            f"{names[release]} · {describe_condition(condition)}", _REFERENCE_COLOR, "circle"
        )
        for release, condition in rows
    ]
    return _lay_out_panels(
        [FigurePanel("", marks)],
        series,
        title="Cost of the cache",
        titles=("share of the file, size of block (K: KiB, M: MiB)", COST_TITLE),
        groups=("", "read", "cache and condition"),
        places=[
            f"{read.removeprefix('whole ')} {format_block(block).replace(' ', '')[:-2]}"
            for read, block in columns
        ],
        better="lower",
        limit=LIMIT,
    )
