"""Charts of a load: rates, tails and bytes by level and over time, as clients and servers saw them.

Attempted rates are drawn beside observed ones. Calls as clients and servers saw them are study S4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from treehammer.analysis.status.status_rules import OperationsRule
from treehammer.collectors.record.operation_steps import CLIENT, QUANTILES, SERVER
from treehammer.sql.read.operation_figures import OperationGroup
from treehammer.tables import DataTable, TableColumn
from treehammer.text_formatting import pluralize
from treehammer.web.display_formats import format_seconds
from treehammer.web.figures.figure_layout import PALETTE
from treehammer.web.figures.line_chart import ChartDot, ChartLine, ChartMark, LineChart, NumberAxis

#: Lines of a chart with a color of their own.
MAX_SERIES = len(PALETTE)
#: Color of each quantile.
_QUANTILE_COLORS = {"p50_s": 2, "p95_s": 1, "p99_s": 5, "max_s": 3}

Labels = Callable[[OperationGroup], str]
FindRate = Callable[[OperationGroup], float]
#: Quantiles that are drawn for both sides, with the color of each side.
_COLORS = {CLIENT: {"p50_s": 2, "p99_s": 5}, SERVER: {"p50_s": 0, "p99_s": 3}}
_FIGURES = ("scheduled", "done", "failed", *QUANTILES)


@dataclass(frozen=True)
class LoadChart:
    """A chart with its heading and caption."""

    heading: str
    drawing: LineChart
    caption: str


def _find_target(
    rule: OperationsRule, test: str, operation: str, *, by_bytes: bool
) -> float | None:
    """Return the rate that study S1 expects of a site in its tests, in 1/s or MB/s."""
    if test not in rule.target_tests:
        return None
    if by_bytes:
        return rule.target_read_bytes_per_s / 1e6 if operation in rule.blocks else None
    return rule.target_open_hz if operation in rule.opens else None


class _LoadPoint(NamedTuple):
    """Operations at a place of the horizontal axis, with the text that describes it."""

    at: float
    group: OperationGroup
    text: str


def draw_levels(
    series: Mapping[str, Sequence[OperationGroup]],
    label: Labels,
    rule: OperationsRule,
    test: str,
    operation: str,
    latency_line: str,
) -> list[LoadChart]:
    """Draw observed rates and bytes against attempted rates.

    Args:
        series: levels of each line, by its name.
        label: labels a level.
        rule: contains the target rates.
        test: name of the test.
        operation: name of the operation.
        latency_line: name of the line whose latencies are drawn.
    """
    lines = {name: levels for name, groups in series.items() if (levels := sort_levels(groups))}
    if not lines:
        return []
    charts = _LevelCharts(lines, label)
    drawn = [charts.draw_rates(_find_target(rule, test, operation, by_bytes=False))]
    if any(level.bytes for levels in lines.values() for level in levels):
        drawn.append(charts.draw_bytes(_find_target(rule, test, operation, by_bytes=True)))
    return drawn + charts.draw_latencies(latency_line)


def sort_levels(levels: Sequence[OperationGroup]) -> list[OperationGroup]:
    """Sort the levels that have figures by their attempted rates."""
    return sorted((level for level in levels if level.seconds), key=_attempted)


class _LevelCharts:
    """Charts of one operation with a common axis of attempted rates."""

    def __init__(self, lines: Mapping[str, Sequence[OperationGroup]], label: Labels) -> None:
        self._lines = lines
        self._label = label
        self._most = max(_attempted(level) for levels in lines.values() for level in levels)
        self._axis = NumberAxis([0.0, self._most])

    def draw_rates(self, target: float | None) -> LoadChart:
        ideal = _flat_dots((0, 0), (self._most, self._most))
        line = ChartLine("ideal: all succeed at once", "ideal", ideal, plain=True)
        return self._draw("Observed rate", "1/s", _observed, target, [line])

    def draw_bytes(self, target: float | None) -> LoadChart:
        ideal = []
        size = _find_common_size(level for levels in self._lines.values() for level in levels)
        if size:
            dots = _flat_dots((0, 0), (self._most, self._most * size / 1e6))
            ideal.append(ChartLine("ideal: all succeed at once", "ideal", dots, plain=True))
        return self._draw("Bytes", "MB/s", _megabytes_per_s, target, ideal)

    def draw_latencies(self, name: str) -> list[LoadChart]:
        """Draw the latencies of one line; nothing if it has a single level."""
        levels = self._lines.get(name, ())
        if len(levels) < 2:
            return []
        points = [_LoadPoint(_attempted(level), level, self._label(level)) for level in levels]
        of_line = f"of {name}, " * (len(self._lines) > 1)
        return _draw_tails(
            points, "Latency by load", f"{of_line}against attempted rate (1/s)", self._axis
        )

    def _draw(
        self,
        heading: str,
        unit: str,
        find: FindRate,
        target: float | None,
        ideal: Sequence[ChartLine],
    ) -> LoadChart:
        lines = [
            ChartLine(
                name,
                f"color{index}",
                [_level_dot(level, find, unit, self._label) for level in levels],
            )
            for index, (name, levels) in enumerate(islice(self._lines.items(), MAX_SERIES))
        ]
        target_lines, beyond = self._draw_target(target, unit, [*lines, *ideal])
        lines += [*target_lines, *ideal]
        count = len(self._lines)
        omitted = f" The first {MAX_SERIES} of {count} lines." * (count > MAX_SERIES)
        chart = LineChart(
            f"{heading} by attempted rate",
            lines,
            self._axis,
            values=NumberAxis([0.0, *(dot.value for line in lines for dot in line.dots)]),
        )
        caption = (
            f"{heading} ({unit}) against attempted rate (1/s); one point for each level. Outlined: "
            f"steps were left out.{beyond}{omitted}"
        )
        return LoadChart(heading, chart, caption)

    def _draw_target(
        self, target: float | None, unit: str, lines: Sequence[ChartLine]
    ) -> tuple[list[ChartLine], str]:
        """Draw the target as a line; if that would flatten the other ones, return a sentence."""
        if target is None:
            return [], ""
        if target > 1.5 * max(dot.value for line in lines for dot in line.dots):
            return [], f" Study S1's target of {target:g} {unit} is beyond the drawing."
        dots = _flat_dots((0, target), (self._most, target))
        return [ChartLine(f"S1's target, {target:g} {unit}", "target", dots, plain=True)], ""


def draw_steps(steps: Sequence[OperationGroup], points: int) -> list[LoadChart]:
    """Draw rates, latencies and bytes over time.

    Args:
        steps: with number and start in s as key, in order.
        points: steps merged into each point.
    """
    charts = _StepCharts(steps, points)
    return charts.draw() if charts.points else []


class _StepCharts:
    """Charts of time steps with a common time axis, on which limited steps are marked."""

    def __init__(self, steps: Sequence[OperationGroup], merged_steps: int) -> None:
        self.points = [
            _LoadPoint(step_start_s(step), step, f"step {step_number(step)}")
            for step in steps
            if step.seconds
        ]
        self._axis = NumberAxis([0.0, 1.0, *map(step_start_s, steps)])
        self._marks = [
            ChartMark(step_start_s(step), step_number(step), _describe_limited(step))
            for step in steps
            if step.limited_steps
        ]
        self._merged = f" Each point merges {merged_steps} steps." * (merged_steps > 1)

    def draw(self) -> list[LoadChart]:
        rates = [
            self._draw_line("attempted", "ideal", _attempted, "attempted %s/s"),
            self._draw_line("observed", "color0", _observed, "observed %s/s"),
            self._draw_line(
                "failed", "color5", lambda group: group.failed / group.seconds, "failed %s/s"
            ),
        ]
        charts = [self._draw("Rate", "1/s", rates)]
        axis_text = f"over seconds since the start.{self._merged}"
        charts += _draw_tails(self.points, "Latency", axis_text, self._axis, self._marks)
        if any(point.group.bytes for point in self.points):
            line = self._draw_line("bytes", "color0", _megabytes_per_s, "%s MB/s")
            charts.append(self._draw("Bytes", "MB/s", [line]))
        return charts

    def _draw_line(self, name: str, css: str, find: FindRate, form: str) -> ChartLine:
        return ChartLine(
            name, css, [_step_dot(point, find(point.group), form) for point in self.points]
        )

    def _draw(self, heading: str, unit: str, lines: Sequence[ChartLine]) -> LoadChart:
        chart = LineChart(
            f"{heading} over time",
            lines,
            self._axis,
            self._marks,
            marked="steps",
            values=NumberAxis([0.0, *(dot.value for line in lines for dot in line.dots)]),
        )
        left_out = (
            " Numbered lines: steps in which the generator was the limit; such rows are left out."
            * bool(self._marks)
        )
        caption = f"{heading} ({unit}) over seconds since the start.{self._merged}{left_out}"
        return LoadChart(heading, chart, caption)


def _draw_tails(
    points: Sequence[_LoadPoint],
    heading: str,
    axis_text: str,
    axis: NumberAxis,
    marks: Sequence[ChartMark] = (),
) -> list[LoadChart]:
    """Draw the quantiles on a logarithmic axis; nothing if no operation succeeded."""
    filled = [point for point in points if point.group.latency.count]
    if not filled:
        return []
    lines = [
        ChartLine(
            name.removesuffix("_s"),
            f"color{color}",
            [_quantile_dot(point, name) for point in filled],
            round=name != "max_s",
        )
        for name, color in _QUANTILE_COLORS.items()
    ]
    # A latency of 0 is below the histogram's unit of 1 µs.
    drawn = [max(dot.value, 1e-6) for line in lines for dot in line.dots]
    values = NumberAxis(drawn, seconds=True, logarithmic=True)
    chart = LineChart(f"{heading} quantiles", lines, axis, marks, marked="steps", values=values)
    caption = (
        f"Latencies of successful operations from the scheduled instant, {axis_text.rstrip('.')}. "
    )
    return [LoadChart(heading, chart, f"{caption}Logarithmic axis.")]


def _attempted(group: OperationGroup) -> float:
    return group.attempted_hz or 0.0


def _observed(group: OperationGroup) -> float:
    return group.observed_hz or 0.0


def _megabytes_per_s(group: OperationGroup) -> float:
    return (group.bytes_per_s or 0.0) / 1e6


def _find_common_size(groups: Iterable[OperationGroup]) -> float | None:
    """Return the bytes of an operation if they are the same everywhere."""
    sizes = {group.bytes / group.done for group in groups if group.done}
    return sizes.pop() if len(sizes) == 1 else None


def step_number(step: OperationGroup) -> int:
    """Return the number of a time step, the first part of its key."""
    return int(step.key[0])  # type: ignore[index]


def step_start_s(step: OperationGroup) -> float:
    """Return the start of a time step, the second part of its key."""
    return float(step.key[1])  # type: ignore[index]


def _describe_limited(step: OperationGroup) -> str:
    rows = pluralize(step.steps + step.limited_steps, "row")
    return f"step {step_number(step)}: {step.limited_steps} of {rows} left out"


def _flat_dots(*points: tuple[float, float]) -> list[ChartDot]:
    return [ChartDot(position, value) for position, value in points]


def _level_dot(group: OperationGroup, find: FindRate, unit: str, label: Labels) -> ChartDot:
    value = find(group)
    text = f"{label(group)}: {value:.4g} {unit} at {_attempted(group):.4g}/s attempted"
    if group.limited_steps:
        text += f"; {pluralize(group.limited_steps, 'row')} left out"
    return ChartDot(_attempted(group), value, text=text, hollow=bool(group.limited_steps))


def _step_dot(point: _LoadPoint, value: float, form: str) -> ChartDot:
    text = f"{point.text}: {form.replace('%s', f'{value:.4g}')}"
    return ChartDot(point.at, value, text=text, hollow=bool(point.group.limited_steps))


def _quantile_dot(point: _LoadPoint, name: str) -> ChartDot:
    value = point.group.latency.quantile(QUANTILES[name])
    text = f"{point.text}: {name.removesuffix('_s')} {format_seconds(value)}"
    return ChartDot(point.at, value, text=text)


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
