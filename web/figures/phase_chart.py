"""Bars of the phases of executions, one below the other, with a segment for each phase."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from treehammer.web.display.display_units import format_seconds
from treehammer.web.figures.chart_parts import (
    FADE_SERIES,
    HIDE_SERIES,
    LEGEND_PARAMETERS,
    MARKS,
    NOMINAL,
    QUANTITATIVE,
    Specification,
    add_zoom,
    complete_specification,
    encode_color,
    encode_field,
    make_layer,
)
from treehammer.web.figures.figure_layout import FigureSeries
from treehammer.web.figures.plot_style import PALETTE

_WIDTH, _BAR_HEIGHT = 700, 34


@dataclass(frozen=True)
class PhaseChart:
    """Seconds of each phase by bar.

    Attributes:
        title: of the chart.
        phases: names of the phases in their order.
        bars: title of each bar -> seconds by phase; phases without seconds are left out.
    """

    title: str
    phases: Sequence[str]
    bars: Mapping[str, Mapping[str, float]]

    @property
    def series(self) -> list[FigureSeries]:
        """Name and color of each phase."""
        colors = [PALETTE[number % len(PALETTE)] for number in range(len(self.phases))]
        return [
            FigureSeries(name, color, "square")
            for name, color in zip(self.phases, colors, strict=True)
        ]

    @property
    def specification(self) -> Specification:
        """The chart as Vega-Lite."""
        encoding = {
            "x": encode_field("from", QUANTITATIVE, title="seconds", scale={"nice": False}),
            "x2": {"field": "to"},
            "y": encode_field("bar", NOMINAL, title=None, sort=list(self.bars)),
            "color": encode_color(self.series, _WIDTH, json.dumps(list(self.phases))),
            "opacity": FADE_SERIES,
            "tooltip": encode_field("text", NOMINAL, title=" "),
        }
        bars = make_layer("bar", encoding, [HIDE_SERIES], stroke="white", strokeWidth=0.5)
        layers, zoom = add_zoom([bars], ["x"])
        chart = {
            "layer": layers,
            "data": MARKS,
            "params": [zoom, *LEGEND_PARAMETERS],
            "title": self.title,
            "width": _WIDTH,
            "height": _BAR_HEIGHT * len(self.bars),
        }
        meta = {"series": [asdict(one) for one in self.series], "legend": "Phases"}
        return complete_specification(chart, self._list_rows(), meta)

    def _list_rows(self) -> list[dict[str, str | float]]:
        rows: list[dict[str, str | float]] = []
        for bar, seconds in self.bars.items():
            start = 0.0
            for number, phase in enumerate(self.phases):
                if phase in seconds:
                    end = start + seconds[phase]
                    text = f"{bar}, {phase}: {format_seconds(seconds[phase])}"
                    rows.append({"bar": bar, "s": number, "from": start, "to": end, "text": text})
                    start = end
        return rows
