"""Bars of the time of executions, one below the other, with a segment for each phase."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from treehammer.web.display.display_units import DisplayUnit, fit_unit, format_seconds
from treehammer.web.figures.chart_parts import (
    FADE_SERIES,
    HIDE_SERIES,
    NOMINAL,
    QUANTITATIVE,
    Specification,
    chart_layers,
    complete_specification,
    encode_color,
    encode_field,
    make_layer,
)
from treehammer.web.figures.figure_layout import FigureSeries
from treehammer.web.figures.plot_style import PALETTE

_WIDTH, _BAR_HEIGHT = 700, 34


class Phase(NamedTuple):
    """A phase of an execution, with the columns of its seconds, which are added."""

    name: str
    color: str
    wall: tuple[str, ...]
    cpu: tuple[str, ...]


# In their order; there are more phases than colors in the palette.
_PHASES = (
    Phase("set-up", "#9467bd", ("setup_wall_s",), ("setup_cpu_s",)),
    Phase("build", PALETTE[1], ("build_wall_s",), ("build_cpu_s",)),
    Phase("stage-in", PALETTE[2], ("stagein_wall_s",), ("stagein_cpu_s",)),
    Phase("loading ROOT", PALETTE[3], ("import_wall_s",), ("import_user_s", "import_sys_s")),
    Phase("compiling", PALETTE[4], ("compile_wall_s",), ()),
    Phase("open", PALETTE[5], ("open_wall_s",), ("open_user_s", "open_sys_s")),
    Phase("get the tree", PALETTE[6], ("get_tree_wall_s",), ("get_tree_user_s", "get_tree_sys_s")),
    Phase("prepare", PALETTE[7], ("prepare_wall_s",), ("prepare_user_s", "prepare_sys_s")),
    Phase("event loop", PALETTE[0], ("loop_wall_s",), ("loop_user_s", "loop_sys_s")),
    Phase("close", "#8c564b", ("close_wall_s",), ("close_user_s", "close_sys_s")),
)


def chart_phases(executions: Mapping[str, Mapping[str, Any]]) -> PhaseChart | None:
    """Chart wall and CPU time by phase; None if no phase was recorded.

    Args:
        executions: title of each execution, '' for a single one -> its values by column.
    """
    # By kind of time, so that the bars to compare lie beside each other.
    bars = {
        f"{kind}, {title}" if title else kind: {
            phase.name: _add_seconds(row, getattr(phase, columns)) for phase in _PHASES
        }
        for kind, columns in (("wall time", "wall"), ("CPU time", "cpu"))
        for title, row in executions.items()
    }
    phases = [
        phase for phase in _PHASES if any(seconds[phase.name] > 0 for seconds in bars.values())
    ]
    return PhaseChart("Time by phase", phases, bars) if phases else None


def _add_seconds(row: Mapping[str, Any], columns: Sequence[str]) -> float:
    return sum(row[column] or 0.0 for column in columns)


@dataclass(frozen=True)
class PhaseChart:
    """Seconds of each phase by bar.

    Attributes:
        title: of the chart.
        phases: phases in their order.
        bars: title of each bar -> seconds by phase; phases without seconds are left out.
    """

    title: str
    phases: Sequence[Phase]
    bars: Mapping[str, Mapping[str, float]]

    @property
    def series(self) -> list[FigureSeries]:
        """Name and color of each phase."""
        return [FigureSeries(phase.name, phase.color, "square") for phase in self.phases]

    @property
    def unit(self) -> DisplayUnit:
        """Unit of the axis."""
        return fit_unit("s", (sum(seconds.values()) for seconds in self.bars.values()))

    @property
    def specification(self) -> Specification:
        """The chart as Vega-Lite."""
        names = json.dumps([phase.name for phase in self.phases])
        encoding = {
            "x": encode_field(
                "from", QUANTITATIVE, title=f"time, {self.unit.name}", scale={"nice": False}
            ),
            "x2": {"field": "to"},
            "y": encode_field("bar", NOMINAL, title=None, sort=list(self.bars)),
            "color": encode_color(self.series, _WIDTH, names),
            "opacity": FADE_SERIES,
            "tooltip": encode_field("text", NOMINAL, title=" "),
        }
        bars = make_layer("bar", encoding, [HIDE_SERIES], stroke="white", strokeWidth=0.5)
        size = _WIDTH, _BAR_HEIGHT * len(self.bars)
        chart = chart_layers([bars], self.title, size, zoomed=["x"])
        meta = {"series": [asdict(line) for line in self.series], "legend": "Phases"}
        return complete_specification(chart, self._list_rows(), meta)

    def _list_rows(self) -> list[dict[str, str | float]]:
        rows: list[dict[str, str | float]] = []
        for bar, seconds in self.bars.items():
            start = 0.0
            for number, phase in enumerate(self.phases):
                length = seconds.get(phase.name, 0.0)
                if length > 0:
                    end = start + length
                    text = f"{bar}, {phase.name}: {format_seconds(length)}"
                    ends = {"from": self.unit.convert(start), "to": self.unit.convert(end)}
                    rows.append({"bar": bar, "s": number, **ends, "text": text})
                    start = end
        return rows
