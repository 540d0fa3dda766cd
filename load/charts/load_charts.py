"""Charts of a load: rates, tails and bytes by level and over time, as clients and servers saw them.

Attempted rates are drawn beside observed ones. Calls as clients and servers saw them are study S4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

from treehammer.analysis.statistics.metric_units import format_metric
from treehammer.analysis.status.day_outcomes import OperationsRule
from treehammer.collectors.record.latency_histograms import QUANTILES
from treehammer.collectors.record.operation_steps import CLIENT, SERVER
from treehammer.load.operation_figures import OperationGroup
from treehammer.tables import DataTable, TableColumn
from treehammer.text_formatting import format_cell, pluralize
from treehammer.web.figures.figure_layout import PALETTE
from treehammer.web.figures.line_chart import ChartDot, ChartLine, ChartMark, LineChart, NumberAxis
from treehammer.web.sections import Figure

#: Lines of a chart with a color of their own.
MAX_SERIES = len(PALETTE)
#: Titles of axes.
_ATTEMPTED, _SINCE_START = "attempted rate (1/s)", "seconds since the start"
#: Color of each quantile.
_QUANTILE_COLORS = {"p50_s": 2, "p95_s": 1, "p99_s": 5, "max_s": 3}

Labels = Callable[[OperationGroup], str]
FindRate = Callable[[OperationGroup], float]
#: Quantiles that are drawn for both sides, with the color of each side.
_COLORS = {CLIENT: {"p50_s": 2, "p99_s": 5}, SERVER: {"p50_s": 0, "p99_s": 3}}
_FIGURES = ("scheduled", "done", "failed", *QUANTILES)


def draw_levels(
    series: Mapping[str, Sequence[OperationGroup]],
    label: Labels,
    rule: OperationsRule,
    test: str,
    operation: str,
    latency_line: str,
) -> list[Figure]:
    """Draw observed rates, bytes and latencies against attempted rates.

    Args:
        series: levels of each line, by its name.
        rule: contains the rates that study S1 expects of a site in its tests.
        latency_line: name of the line whose latencies are drawn if it has several levels.
    """
    lines = {name: levels for name, groups in series.items() if (levels := sort_levels(groups))}
    if not lines:
        return []
    levels = [*chain.from_iterable(lines.values())]
    rate_target, bytes_target = _find_targets(rule, test, operation)
    figures = [_draw_levels(lines, label, "Observed rate", "1/s", _observed, rate_target, 1.0)]
    if any(level.bytes for level in levels):
        size = _find_common_size(levels)
        figures.append(
            _draw_levels(lines, label, "Bytes", "MB/s", _megabytes_per_s, bytes_target, size)
        )
    of_line = lines.get(latency_line, ())
    if len(of_line) > 1:
        groups = [(_attempted(level), label(level), level) for level in of_line]
        subject = f"of {latency_line}, " if len(lines) > 1 else ""
        across = f"{subject}against attempted rate (1/s)"
        axis = NumberAxis([0.0, max(map(_attempted, levels))], _ATTEMPTED)
        figures += _draw_tails(groups, "Latency by load", across, axis)
    return figures


def _find_common_size(levels: Sequence[OperationGroup]) -> float:
    """Return the MB of an operation; 0 if levels differ in it."""
    sizes = {level.bytes / level.done for level in levels if level.done}
    return sizes.pop() / 1e6 if len(sizes) == 1 else 0.0


def _find_targets(
    rule: OperationsRule, test: str, operation: str
) -> tuple[float | None, float | None]:
    """Find the rate (1/s) and the MB/s that study S1 expects of an operation; None without any."""
    if test not in rule.target_tests:
        return None, None
    return (
        rule.target_open_hz if operation in rule.opens else None,
        rule.target_read_bytes_per_s / 1e6 if operation in rule.blocks else None,
    )


def sort_levels(levels: Sequence[OperationGroup]) -> list[OperationGroup]:
    """Sort the levels that have figures by their attempted rates."""
    return sorted((level for level in levels if level.seconds), key=_attempted)


def _draw_levels(
    series: Mapping[str, Sequence[OperationGroup]],
    label: Labels,
    heading: str,
    unit: str,
    find: FindRate,
    target: float | None,
    size: float,
) -> Figure:
    """Draw a figure of levels, the ideal of a common size, and the target unless it flattens them."""
    most = max(map(_attempted, chain.from_iterable(series.values())))

    def make_dot(level: OperationGroup) -> ChartDot:
        value, limited = find(level), level.limited_steps
        text = f"{label(level)}: {format_cell(value)} {unit} at {format_cell(_attempted(level))}/s attempted"
        text += f"; {pluralize(limited, 'step')} left out" if limited else ""
        return ChartDot(_attempted(level), value, text=text, hollow=bool(limited))

    def draw_straight(name: str, role: str, first: float, last: float) -> ChartLine:
        return ChartLine(name, role, [ChartDot(0, first), ChartDot(most, last)], plain=True)

    lines = [
        ChartLine(name, f"color{index}", [*map(make_dot, levels)])
        for index, (name, levels) in enumerate(islice(series.items(), MAX_SERIES))
    ]
    ideal = [draw_straight("ideal: all succeed at once", "ideal", 0, most * size)] if size else []
    beyond = ""
    if target is not None:
        if target > 1.5 * max(dot.value for line in (*lines, *ideal) for dot in line.dots):
            beyond = f" Study S1's target of {target:g} {unit} is beyond the drawing."
        else:
            name = f"S1's target, {target:g} {unit}"
            lines.append(draw_straight(name, "target", target, target))
    count = len(series)
    omitted = f" The first {MAX_SERIES} of {count} lines." if count > MAX_SERIES else ""
    caption = (
        f"{heading} ({unit}) against attempted rate (1/s); one point for each level. Outlined: "
        f"steps were left out.{beyond}{omitted}"
    )
    axis = NumberAxis([0.0, most], _ATTEMPTED)
    return _draw(f"{heading} by attempted rate", heading, caption, [*lines, *ideal], axis, unit)


def draw_steps(steps: Sequence[OperationGroup], merged_steps: int) -> list[Figure]:
    """Draw rates, latencies and bytes over time, on which limited steps are marked."""
    nonempty = [step for step in steps if step.seconds]
    if not nonempty:
        return []
    axis = NumberAxis([0.0, 1.0, *map(step_start_s, steps)], _SINCE_START)
    marks = [
        ChartMark(step_start_s(step), step_number(step), _describe_limited(step))
        for step in steps
        if step.limited_steps
    ]
    merged = f" Each point merges {merged_steps} steps." if merged_steps > 1 else ""
    note = " Numbered lines: steps in which the generator was the limit; those of such jobs are left out."
    left_out = note if marks else ""

    def make_line(name: str, role: str, find: FindRate, unit: str = "/s") -> ChartLine:
        measured = f"{name} " if name != "bytes" else ""
        dots = [
            ChartDot(
                step_start_s(step),
                find(step),
                text=f"step {step_number(step)}: {measured}{format_cell(find(step))}{unit}",
                hollow=bool(step.limited_steps),
            )
            for step in nonempty
        ]
        return ChartLine(name, role, dots)

    def draw(heading: str, unit: str, lines: Sequence[ChartLine]) -> Figure:
        due = "an operation counts in the step in which it was due"
        caption = f"{heading} ({unit}) over seconds since the start; {due}.{merged}{left_out}"
        return _draw(f"{heading} over time", heading, caption, lines, axis, unit, marks)

    rates = [
        make_line("attempted", "ideal", _attempted),
        make_line("observed", "color0", _observed),
        make_line("failed", "color5", lambda step: step.failed / step.seconds),
    ]
    groups = [(step_start_s(step), f"step {step_number(step)}", step) for step in nonempty]
    across = f"over seconds since the start.{merged}"
    figures = [draw("Rate", "1/s", rates), *_draw_tails(groups, "Latency", across, axis, marks)]
    if any(step.bytes for step in nonempty):
        line = make_line("bytes", "color0", _megabytes_per_s, " MB/s")
        figures.append(draw("Bytes", "MB/s", [line]))
    return figures


def _draw_tails(
    groups: Iterable[tuple[float, str, OperationGroup]],
    heading: str,
    across: str,
    axis: NumberAxis,
    marks: Sequence[ChartMark] = (),
) -> list[Figure]:
    """Draw the quantiles of groups, each with place and label; nothing if no operation succeeded."""
    filled = [group for group in groups if group[2].latency.count]
    if not filled:
        return []
    lines = [
        ChartLine(
            name.removesuffix("_s"),
            f"color{color}",
            [_quantile_dot(place, f"{text}:", group, name) for place, text, group in filled],
            round=name != "max_s",
        )
        for name, color in _QUANTILE_COLORS.items()
    ]
    caption = (
        f"Latencies of successful operations from the scheduled instant, {across.rstrip('.')}. "
        "Logarithmic axis."
    )
    return [_draw(f"{heading} quantiles", heading, caption, lines, axis, marks=marks)]


def _quantile_dot(place: float, text: str, group: OperationGroup, name: str) -> ChartDot:
    value = group.latency.quantile(QUANTILES[name])
    return ChartDot(
        place, value, text=f"{text} {name.removesuffix('_s')} {format_metric(name, value, 's')}"
    )


def _draw(
    name: str,
    heading: str,
    caption: str,
    lines: Sequence[ChartLine],
    axis: NumberAxis,
    unit: str = "",
    marks: Sequence[ChartMark] = (),
) -> Figure:
    """Draw lines over an axis from zero, or without a unit of latencies over a logarithmic one."""
    dot_values = [dot.value for line in lines for dot in line.dots]
    values = NumberAxis([0.0, *dot_values], unit)
    if not unit:
        # A latency of 0 is below the histogram's unit of 1 µs.
        dot_values = [max(value, 1e-6) for value in dot_values]
        values = NumberAxis(dot_values, "latency", seconds=True, logarithmic=True)
    chart = LineChart(name, lines, axis, marks, marked="steps", values=values)
    return Figure(name, chart, caption, heading)


def _attempted(group: OperationGroup) -> float:
    return group.attempted_hz or 0.0


def _observed(group: OperationGroup) -> float:
    return group.observed_hz or 0.0


def _megabytes_per_s(group: OperationGroup) -> float:
    return (group.bytes_per_s or 0.0) / 1e6


def step_number(step: OperationGroup) -> int:
    """Return the number of a time step, the first part of its key."""
    return int(step.key[0])  # type: ignore[index]


def step_start_s(step: OperationGroup) -> float:
    """Return the start of a time step, the second part of its key."""
    return float(step.key[1])  # type: ignore[index]


def _describe_limited(step: OperationGroup) -> str:
    count = step.steps + step.limited_steps
    return f"step {step_number(step)}: {step.limited_steps} of {count} steps of jobs left out"


def list_sides(steps: Sequence[OperationGroup]) -> dict[str, list[OperationGroup]]:
    """Return the time steps by side; empty unless both sides timed the calls."""
    sides: dict[str, list[OperationGroup]] = {CLIENT: [], SERVER: []}
    for step in steps:
        sides.setdefault(step.side, []).append(step)
    timed = all(any(step.latency.count for step in sides[side]) for side in (CLIENT, SERVER))
    return sides if timed else {}


def draw_sides(sides: dict[str, list[OperationGroup]], merged_steps: int) -> list[Figure]:
    """Draw the quantiles of both sides over time; nothing without both."""
    if not sides:
        return []
    lines = [
        ChartLine(
            f"{side} {name.removesuffix('_s')}",
            f"color{color}",
            [
                _quantile_dot(step_start_s(step), f"step {step_number(step)}: {side}", step, name)
                for step in sides[side]
                if step.latency.count
            ],
            round=side == CLIENT,
        )
        for side, colors in _COLORS.items()
        for name, color in colors.items()
    ]
    starts = [step_start_s(step) for steps in sides.values() for step in steps]
    merged = f" Each point merges {merged_steps} steps." if merged_steps > 1 else ""
    caption = (
        "Latency of the same operation as clients and servers saw it, over seconds since the start. "
        "The distance is the time outside the server: network, listen queue, and the client itself. "
        f"Clients count from the scheduled instant. Logarithmic axis.{merged}"
    )
    axis = NumberAxis([0.0, 1.0, *starts], _SINCE_START)
    return [_draw("Client and server over time", "Client and server", caption, lines, axis)]


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
                partial(format_metric, name, unit="s") if name.endswith("_s") else str,
                is_number=True,
            )
            for name in names
        ),
    )
    return DataTable("sides", "Client and server by time step", columns, rows)
