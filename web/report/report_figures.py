"""Figures of a report as inline SVG in the page's text color, reproducible for the same data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

from treehammer.analysis.comparison.wording.verdict_text import METRIC_TITLES
from treehammer.analysis.descriptive.group_summary import MeanAndRms
from treehammer.web.figures.figure_layout import (
    DOTS,
    LOG,
    POINTS,
    ZERO,
    FigureLayout,
    FigureMark,
    FigurePanel,
    shorten_label,
    style_series,
)
from treehammer.web.figures.inline_svg import InlineFigure, draw_inline
from treehammer.web.report.execution_cells import ExecutionCell

_MS_PER_S = 1e3
#: Ratio of means above which they are drawn on a logarithmic scale.
_MAX_LINEAR_RATIO = 20


def draw_efficiency_figure(cells: Sequence[ExecutionCell]) -> InlineFigure | None:
    """Draw ``eff_job`` by variant, one group per site (study S0); None without values."""
    cells = [cell for cell in cells if "eff_job" in cell.spreads]
    if not cells:
        return None
    alt = "CPU efficiency. " + _alt_text(cells, lambda spreads: f"{spreads['eff_job'].mean:.2f}")
    places = list(dict.fromkeys(cell.place for cell in cells))
    names = _name_series(cells)
    numbers = {name: number for number, name in enumerate(names)}
    marks = [
        _make_mark(
            cell.spreads["eff_job"], numbers[cell.variant, cell.release], places.index(cell.place)
        )
        for cell in cells
    ]
    layout = FigureLayout(
        kind=POINTS,
        x_title="",
        y_title="CPU efficiency of the job (eff_job)",
        groups=("", "site", "variant"),
        scale=ZERO,
        places=tuple(map(shorten_label, places)),
        series=tuple(
            style_series([(shorten_label(text, 90), *name) for name, text in names.items()])
        ),
        panels=(FigurePanel("", tuple(marks)),),
    )
    caption = (
        "CPU efficiency by variant, one group per site: eff_job, the CPU of set-up, stage-in and "
        "payload over their wall time. Points are means, error bars the RMS over repeated "
        f"executions in repeated jobs ({_count_range(cells, 'eff_job')} per point; single "
        "executions have no bar). Efficiency describes the site: a release that saves CPU lowers it."
    )
    return InlineFigure(draw_inline(layout, "efficiency", alt), caption)


def _name_series(cells: Sequence[ExecutionCell]) -> Mapping[tuple[str, str], str]:
    """Name each variant and release, sorted by variant; a single variant is not named."""
    variants = list(dict.fromkeys(cell.variant for cell in cells))
    pairs = dict.fromkeys((cell.variant, cell.release) for cell in cells)
    before = "{} · " if len(variants) > 1 else ""
    return {
        (variant, release): f"{before.format(variant)}root={release}"
        for variant, release in sorted(pairs, key=lambda pair: variants.index(pair[0]))
    }


def draw_time_figure(cells: Sequence[ExecutionCell]) -> InlineFigure | None:
    """Draw CPU and wall time per event by variant and release, two panels per site."""
    cells = [cell for cell in cells if METRIC_TITLES.keys() <= cell.spreads.keys()]
    if not cells:
        return None
    alt = "CPU and wall milliseconds per event. " + _alt_text(
        cells,
        lambda spreads: " and ".join(
            f"{_MS_PER_S * spreads[name].mean:.3g}" for name in METRIC_TITLES
        ),
    )
    variants = list(dict.fromkeys(cell.variant for cell in cells))
    releases = list(dict.fromkeys(cell.release for cell in cells))
    marks = _mark_times(cells, variants, releases)
    layout = FigureLayout(
        kind=DOTS,
        x_title="",
        y_title="time of the loop per event (ms)",
        groups=("site", "variant", "root"),
        scale=_choose_scale(chain.from_iterable(marks.values())),
        places=tuple(map(shorten_label, variants)),
        series=tuple(
            style_series(
                [(f"root={release}", release, release) for release in releases], by_release=True
            )
        ),
        panels=tuple(
            FigurePanel(shorten_label(name), tuple(panel_marks))
            for name, panel_marks in marks.items()
        ),
    )
    caption = (
        "CPU and wall time of the read loop per event by variant and release: means, with the RMS "
        f"over repeated executions as error bars ({_count_range(cells, 'cpu_per_event_s')} per "
        "point). Verdicts use pairs within jobs, which this figure does not show."
    )
    return InlineFigure(draw_inline(layout, "times", alt), caption)


def _mark_times(
    cells: Sequence[ExecutionCell], variants: Sequence[str], releases: Sequence[str]
) -> dict[str, list[FigureMark]]:
    """Make the marks of each panel, whose places are variants and whose series are releases."""
    marks: dict[str, list[FigureMark]] = defaultdict(list)
    for cell in cells:
        position = releases.index(cell.release), variants.index(cell.variant)
        for name, title in METRIC_TITLES.items():
            mark = _make_mark(cell.spreads[name], *position, scale=_MS_PER_S)
            marks[f"{cell.place}: {title}"].append(mark)
    return marks


def _choose_scale(marks: Iterable[FigureMark]) -> str:
    means = [mark.y for mark in marks]
    return LOG if max(means) > _MAX_LINEAR_RATIO * min(means) else ZERO


def _make_mark(spread: MeanAndRms, series: int, place: int, scale: float = 1.0) -> FigureMark:
    """Make the mark of a mean; a single execution has no bar, as its length of zero would suggest certainty."""
    mean, rms = scale * spread.mean, scale * spread.rms
    low, high = (mean - rms, mean + rms) if spread.n > 1 else (None, None)
    return FigureMark(series, place, mean, low, high, count=spread.n)


def _alt_text(
    cells: Sequence[ExecutionCell], value: Callable[[Mapping[str, MeanAndRms]], str]
) -> str:
    """Return the points of a figure as text for screen readers."""
    return "; ".join(
        f"{shorten_label(cell.place)}, {shorten_label(cell.variant)}, {shorten_label(cell.release)}: "
        f"{value(cell.spreads)}"
        for cell in cells
    )


def _count_range(cells: Sequence[ExecutionCell], metric: str) -> str:
    counts = [cell.spreads[metric].n for cell in cells]
    low, high = min(counts), max(counts)
    return f"n = {low}" if low == high else f"n = {low} to {high}"
