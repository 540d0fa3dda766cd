"""The same calls as clients and servers saw them, by time step (study S4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treehammer.collectors.record.latency_histogram import QUANTILES
from treehammer.collectors.record.operation_steps import CLIENT, SERVER
from treehammer.sql.read.operation_figures import OperationGroup
from treehammer.tables import DataTable, TableColumn
from treehammer.web.display.display_units import format_seconds
from treehammer.web.figures.line_chart import ChartDot, ChartLine, LineChart, NumberAxis
from treehammer.web.views.load.load_charts import LoadChart, step_number, step_start_s

#: Quantiles that are drawn for both sides, with the color of each side.
_COLORS = {CLIENT: {"p50_s": 2, "p99_s": 5}, SERVER: {"p50_s": 0, "p99_s": 3}}
_FIGURES = ("scheduled", "done", "failed", *QUANTILES)


def list_sides(
    steps: Sequence[OperationGroup],
) -> dict[str, list[OperationGroup]]:
    """Return the time steps by side; empty unless both sides timed the calls.

    Args:
        steps: steps of both sides, with number and start in s as key.
    """
    sides: dict[str, list[OperationGroup]] = {CLIENT: [], SERVER: []}
    for step in steps:
        sides.setdefault(step.side, []).append(step)
    timed = all(any(step.latency.count for step in sides[side]) for side in (CLIENT, SERVER))
    return sides if timed else {}


def draw_sides(sides: dict[str, list[OperationGroup]], points: int) -> list[LoadChart]:
    """Draw the quantiles of both sides over time; nothing without both."""
    if not sides:
        return []
    lines = [
        ChartLine(
            f"{side} {name.removesuffix('_s')}",
            f"color{color}",
            [_make_dot(step, side, name) for step in sides[side] if step.latency.count],
            round=side == CLIENT,
        )
        for side, colors in _COLORS.items()
        for name, color in colors.items()
    ]
    drawn = [max(dot.value, 1e-6) for line in lines for dot in line.dots]
    axis = NumberAxis(
        [0.0, 1.0, *(step_start_s(step) for steps in sides.values() for step in steps)]
    )
    chart = LineChart(
        "Client and server over time",
        lines,
        axis,
        values=NumberAxis(drawn, seconds=True, logarithmic=True),
    )
    merged = f" Each point merges {points} steps." * (points > 1)
    caption = (
        "Latency of the same operation as clients and servers saw it, over seconds since the start. "
        "The distance is the time outside the server: network, listen queue, and the client itself. "
        f"Clients count from the scheduled instant. Logarithmic axis.{merged}"
    )
    return [LoadChart("Client and server", chart, caption)]


def make_side_table(sides: dict[str, list[OperationGroup]]) -> DataTable:
    """Make the table of both sides' figures by time step."""
    rows_by_step: dict[tuple[int, float], dict[str, Any]] = {}
    for side, steps in sides.items():
        for step in steps:
            key = step_number(step), step_start_s(step)
            row = rows_by_step.setdefault(key, {"step": key[0], "start_s": key[1]})
            figures = step.list_figures()
            row.update({f"{side}_{name}": figures[name] for name in _FIGURES})
    names = [f"{side}_{name}" for side in (CLIENT, SERVER) for name in _FIGURES]
    rows = [{**dict.fromkeys(names), **rows_by_step[key]} for key in sorted(rows_by_step)]
    columns = (
        TableColumn("step", "step", is_number=True),
        TableColumn("start_s", "from (s)", is_number=True),
        *(
            TableColumn(
                name,
                name.removesuffix("_s").replace("_", " "),
                format_seconds if name.endswith("_s") else str,
                is_number=True,
            )
            for name in names
        ),
    )
    return DataTable("sides", "Client and server by time step", columns, rows)


def _make_dot(step: OperationGroup, side: str, name: str) -> ChartDot:
    value = step.latency.quantile(QUANTILES[name])
    text = f"step {step_number(step)}: {side} {name.removesuffix('_s')} {format_seconds(value)}"
    return ChartDot(step_start_s(step), value, text=text)
