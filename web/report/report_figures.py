"""Figures of a report as inline SVG in the page's text color, reproducible for the same data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from treehammer.analysis.descriptive.group_summary import MeanAndRms
from treehammer.web.figures.inline_svg import INK_COLOR, InlineFigure, render_svg, xml_text
from treehammer.web.figures.plot_style import MARKERS, PALETTE, plot_style
from treehammer.web.report.execution_cells import ExecutionCell

_STYLE = plot_style(
    INK_COLOR,
    {
        "xtick.color": INK_COLOR,
        "ytick.color": INK_COLOR,
        "grid.color": INK_COLOR,
        "grid.alpha": 0.18,
        "grid.linewidth": 0.6,
    },
)
_MARKERS = tuple(MARKERS.values())


def draw_efficiency_figure(cells: Sequence[ExecutionCell]) -> InlineFigure | None:
    """Draw ``eff_job`` by variant, one group per site (study S0); None without values."""
    cells = [cell for cell in cells if "eff_job" in cell.spreads]
    if not cells:
        return None
    style = _CellStyle(cells)
    alt = "CPU efficiency. " + _alt_text(cells, lambda of: f"{of['eff_job'].mean:.2f}")
    places = list(dict.fromkeys(cell.place for cell in cells))
    slots = list(
        dict.fromkeys((cell.variant, cell.release) for cell in sorted(cells, key=style.sort_key))
    )
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(_figure_width(len(cells)), 4.6), layout="constrained")
        axes = figure.add_subplot()
        for cell in cells:
            place = places.index(cell.place)
            offset = _offset_in_group(slots.index((cell.variant, cell.release)), len(slots))
            spread = cell.spreads["eff_job"]
            style.draw_point(
                axes, cell, place + 0.8 * offset, spread.mean, y_error=spread.rms, n=spread.n
            )
        _label_site_axis(axes, places)
        highest = max(c.spreads["eff_job"].mean + c.spreads["eff_job"].rms for c in cells)
        axes.set_ylim(0, max(1.05, 1.05 * highest))
        axes.axhline(1, color=INK_COLOR, linewidth=0.8, alpha=0.5)
        axes.set_ylabel("CPU efficiency of the job (eff_job)")
        axes.grid(axis="y")
        style.draw_legend(figure)
        svg = render_svg(figure, "efficiency", alt)
    counts = [cell.spreads["eff_job"].n for cell in cells]
    caption = (
        "CPU efficiency by variant, one group per site: eff_job, the CPU of set-up, stage-in and "
        "payload over their wall time. Points are means, error bars the RMS over repeated "
        f"executions in repeated jobs ({_count_range(counts)} per point; single executions have "
        "no bar). Efficiency describes the site: a release that saves CPU lowers it."
    )
    return InlineFigure(svg, caption)


def draw_time_figure(cells: Sequence[ExecutionCell]) -> InlineFigure | None:
    """Draw CPU and wall time per event by variant and release, one row of panels per site."""
    panels = (("cpu_per_event_s", "CPU"), ("wall_per_event_s", "Wall"))
    cells = [cell for cell in cells if all(name in cell.spreads for name, _ in panels)]
    if not cells:
        return None
    style = _CellStyle(cells, by_release=True)
    alt = "CPU and wall milliseconds per event. " + _alt_text(
        cells,
        lambda of: " and ".join(f"{1e3 * of[name].mean:.3g}" for name, _ in panels),
    )
    by_place: dict[str, list[ExecutionCell]] = {}
    for cell in cells:
        by_place.setdefault(cell.place, []).append(cell)
    with mpl.rc_context(_STYLE):
        height = len(by_place) * (0.5 + 0.2 * len(style.variants) * max(len(style.releases), 2))
        figure = Figure(figsize=(9, height + 1.0), layout="constrained")
        grid = figure.subplots(len(by_place), 2, sharex="col", sharey=True, squeeze=False)
        for column, (name, title) in zip(grid.T, panels, strict=True):
            _draw_time_column(column, by_place, name, style)
            column[-1].set_xlabel(f"{title} time of the loop per event (ms)")
        style.draw_legend(figure)
        svg = render_svg(figure, "times", alt)
    counts = [cell.spreads["cpu_per_event_s"].n for cell in cells]
    caption = (
        "CPU and wall time of the read loop per event by variant and release: means, with the RMS "
        f"over repeated executions as error bars ({_count_range(counts)} per point). Verdicts use "
        "pairs within jobs, which this figure does not show."
    )
    return InlineFigure(svg, caption)


def _draw_time_column(
    column: Sequence[Axes],
    by_place: Mapping[str, Sequence[ExecutionCell]],
    name: str,
    style: _CellStyle,
) -> None:
    """Draw one panel for each place, with a common scale."""
    for axes, (place, cells) in zip(column, by_place.items(), strict=True):
        _draw_times(axes, cells, name, style)
        _label_variant_axis(axes, style.variants, xml_text(place))
    means = [1e3 * cell.spreads[name].mean for cells in by_place.values() for cell in cells]
    _scale_time_axis(column[0], means)


def _draw_times(axes: Axes, cells: Sequence[ExecutionCell], name: str, style: _CellStyle) -> None:
    """Draw a time of each cell, in milliseconds, in the row of its variant."""
    for cell in cells:
        offset = _offset_in_group(style.releases.index(cell.release), len(style.releases))
        spread = cell.spreads[name]
        style.draw_point(
            axes,
            cell,
            1e3 * spread.mean,
            style.variants.index(cell.variant) + 0.6 * offset,
            x_error=1e3 * spread.rms,
            n=spread.n,
        )


def _offset_in_group(index: int, count: int) -> float:
    """Offset of one of ``count`` points that share a place, between -0.5 and 0.5."""
    return (index + 0.5) / count - 0.5


class _CellStyle:
    """Color per variant and marker per release, or color per release with ``by_release``."""

    def __init__(self, cells: Sequence[ExecutionCell], *, by_release: bool = False) -> None:
        self.variants = list(dict.fromkeys(cell.variant for cell in cells))
        self.releases = list(dict.fromkeys(cell.release for cell in cells))
        self._by_release = by_release or len(self.variants) == 1
        names = self.releases if self._by_release else self.variants
        self._color = dict(zip(names, _palette(len(names)), strict=True))

    def sort_key(self, cell: ExecutionCell) -> tuple[int, int]:
        return self.variants.index(cell.variant), self.releases.index(cell.release)

    def color(self, cell: ExecutionCell) -> str:
        return self._color[cell.release if self._by_release else cell.variant]

    def draw_point(
        self,
        axes: Axes,
        cell: ExecutionCell,
        x: float,
        y: float,
        *,
        n: int,
        x_error: float | None = None,
        y_error: float | None = None,
    ) -> None:
        # A single execution has no RMS; a bar of length zero would suggest certainty.
        axes.errorbar(
            x,
            y,
            xerr=x_error if n > 1 else None,
            yerr=y_error if n > 1 else None,
            color=self.color(cell),
            marker=_marker_for(self.releases.index(cell.release)),
            markersize=6,
            capsize=3,
            linestyle="none",
        )

    def draw_legend(self, figure: Figure) -> None:
        handles = []
        if not self._by_release:
            for variant in self.variants:
                color = self._color[variant]
                handles.append(_legend_handle(variant, color=color, linewidth=5, linestyle="-"))
        for place, release in enumerate(self.releases):
            color = self._color[release] if self._by_release else INK_COLOR
            handles.append(
                _legend_handle(
                    f"root={release}", color=color, marker=_marker_for(place), linestyle="none"
                )
            )
        figure.legend(handles=handles, loc="outside lower center", ncols=min(len(handles), 3))


def _legend_handle(label: str, **style: Any) -> Line2D:
    # matplotlib hides entries with a leading underscore.
    text = xml_text(label)
    return Line2D([], [], label=f" {text}" if text.startswith("_") else text, **style)


def _marker_for(place: int) -> str:
    return _MARKERS[place % len(_MARKERS)]


def _palette(count: int) -> list[str]:
    if count <= len(PALETTE):
        return list(PALETTE[:count])
    ramp = mpl.colormaps["viridis"]
    return [mpl.colors.to_hex(ramp(0.1 + 0.8 * i / (count - 1))) for i in range(count)]


def _figure_width(points: int) -> float:
    """Width in inches that keeps neighboring points apart."""
    return max(9.0, 1.5 + 0.12 * points)


def _label_site_axis(axes: Axes, places: Sequence[str]) -> None:
    turned = len(places) > 6 or max(map(len, places)) * len(places) > 80
    axes.set_xticks(
        range(len(places)),
        [xml_text(place) for place in places],
        rotation=40 if turned else 0,
        ha="right" if turned else "center",
        rotation_mode="anchor" if turned else "default",
    )
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.5, len(places) - 0.5)
    for place in range(1, len(places)):
        axes.axvline(place - 0.5, color=INK_COLOR, linewidth=0.6, alpha=0.25)


def _label_variant_axis(axes: Axes, variants: Sequence[str], title: str) -> None:
    axes.set_yticks(range(len(variants)), [xml_text(variant) for variant in variants])
    axes.set_ylim(len(variants) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_title(title, loc="left")
    axes.grid(axis="x")


def _scale_time_axis(axes: Axes, values: Sequence[float]) -> None:
    if max(values) > 20 * min(values):
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)


def _alt_text(
    cells: Sequence[ExecutionCell], value: Callable[[Mapping[str, MeanAndRms]], str]
) -> str:
    """Points of a figure as text for screen readers."""
    return "; ".join(
        f"{xml_text(cell.place)}, {xml_text(cell.variant)}, {xml_text(cell.release)}: "
        f"{value(cell.spreads)}"
        for cell in cells
    )


def _count_range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"n = {low}" if low == high else f"n = {low} to {high}"
