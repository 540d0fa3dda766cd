"""Charts of a load: attempted and observed rates, tails and bytes, by level and over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treehammer.analysis.descriptive.storage_status import StorageRule
from treehammer.sql.read.operation_figures import OperationGroup
from treehammer.sql.read.operation_queries import QUANTILES
from treehammer.text_formatting import pluralize
from treehammer.web.display.display_units import format_seconds
from treehammer.web.figures.line_chart import (
    ChartDot,
    ChartLine,
    ChartMark,
    LineChart,
    NumberAxis,
)
from treehammer.web.figures.plot_style import PALETTE

#: Lines of a chart with a color of their own.
MAX_SERIES = len(PALETTE)
#: Color of each quantile.
_QUANTILE_COLORS = {"p50_s": 2, "p95_s": 1, "p99_s": 5, "max_s": 3}

Labels = Callable[[OperationGroup], str]
FindRate = Callable[[OperationGroup], float]


@dataclass(frozen=True)
class LoadChart:
    """A chart with its heading and caption."""

    heading: str
    drawing: LineChart
    caption: str


def _find_target(rule: StorageRule, operation: str, *, by_bytes: bool) -> float | None:
    """Return the rate that study S1 expects of a site, in 1/s or MB/s."""
    if by_bytes:
        return rule.target_read_bytes_per_s / 1e6 if operation in rule.blocks else None
    return rule.target_open_hz if operation in rule.opens else None


def draw_levels(
    series: Sequence[tuple[str, Sequence[OperationGroup]]],
    label: Labels,
    rule: StorageRule,
    operation: str,
    shown: str,
) -> list[LoadChart]:
    """Draw observed rates and bytes against attempted rates.

    Args:
        series: name and levels of each line.
        label: labels a level.
        rule: contains the target rates.
        operation: name of the operation.
        shown: name of the line whose latencies are drawn.
    """
    known = [
        (name, sorted((one for one in levels if one.seconds), key=_attempted))
        for name, levels in series
    ]
    known = [(name, levels) for name, levels in known if levels]
    if not known:
        return []
    attempted = [_attempted(one) for _, levels in known for one in levels]
    most = max(attempted)
    axis = NumberAxis([0.0, most])
    ideal = ChartLine(
        "ideal: all succeed at once", "ideal", _flat_dots((0, 0), (most, most)), plain=True
    )

    def build(heading: str, unit: str, find: FindRate, *, by_bytes: bool) -> LoadChart:
        lines = [
            ChartLine(name, f"color{index}", [_level_dot(one, find, unit, label) for one in levels])
            for index, (name, levels) in enumerate(known[:MAX_SERIES])
        ]
        target = _find_target(rule, operation, by_bytes=by_bytes)
        largest = max(dot.value for line in lines for dot in line.dots)
        beyond = ""
        if target is not None and target <= 1.5 * max(largest, 0 if by_bytes else most):
            dots = _flat_dots((0, target), (most, target))
            lines.append(ChartLine(f"S1's target, {target:g} {unit}", "target", dots, plain=True))
        elif target is not None:
            beyond = f" Study S1's target of {target:g} {unit} is beyond the drawing."
        lines += [] if by_bytes else [ideal]
        omitted = f" The first {MAX_SERIES} of {len(known)} lines." * (len(known) > MAX_SERIES)
        title = f"{heading} by attempted rate"
        values = NumberAxis([0.0, *(dot.value for line in lines for dot in line.dots)])
        return LoadChart(
            heading,
            LineChart(title, lines, axis, values=values),
            f"{heading} ({unit}) against attempted rate (1/s); one point for each level. Outlined: "
            f"steps were left out.{beyond}{omitted}",
        )

    charts = [build("Observed rate", "1/s", lambda one: one.observed_hz or 0.0, by_bytes=False)]
    if any(one.bytes for _, levels in known for one in levels):
        charts.append(
            build("Bytes", "MB/s", lambda one: (one.bytes_per_s or 0.0) / 1e6, by_bytes=True)
        )
    line = dict(known).get(shown, ())
    tails = [(_attempted(one), one, label(one)) for one in line] if len(line) > 1 else []
    of_line = f"of {shown}, " * (len(known) > 1)
    return charts + _draw_tails(
        tails, "Latency by load", f"{of_line}against attempted rate (1/s)", axis
    )


def draw_steps(steps: Sequence[OperationGroup], points: int) -> list[LoadChart]:
    """Draw rates, latencies and bytes over time.

    Args:
        steps: with number and start in s as key, in order.
        points: steps merged into each point.
    """
    known = [(_start_s(one), one, f"step {_number(one)}") for one in steps if one.seconds]
    if not known:
        return []
    axis = NumberAxis([0.0, 1.0, *(_start_s(one) for one in steps)])
    marks = [
        ChartMark(_start_s(one), _number(one), _describe_limited(one))
        for one in steps
        if one.limited_steps
    ]
    merged = f" Each point merges {points} steps." * (points > 1)
    left_out = (
        " Numbered lines: steps in which the generator was the limit; such rows are left out."
        * bool(marks)
    )

    def build(heading: str, unit: str, lines: Sequence[ChartLine]) -> LoadChart:
        drawn = [dot.value for line in lines for dot in line.dots]
        chart = LineChart(
            f"{heading} over time",
            lines,
            axis,
            marks,
            marked="steps",
            values=NumberAxis([0.0, *drawn]),
        )
        return LoadChart(
            heading, chart, f"{heading} ({unit}) over seconds since the start.{merged}{left_out}"
        )

    rates: tuple[tuple[str, str, FindRate], ...] = (
        ("attempted", "ideal", lambda one: one.attempted_hz or 0.0),
        ("observed", "color0", lambda one: one.observed_hz or 0.0),
        ("failed", "color5", lambda one: one.failed / one.seconds),
    )
    charts = [
        build(
            "Rate",
            "1/s",
            [
                ChartLine(
                    name, css, [_step_dot(*one, find(one[1]), f"{name} %s/s") for one in known]
                )
                for name, css, find in rates
            ],
        )
    ]
    charts += _draw_tails(known, "Latency", f"over seconds since the start.{merged}", axis, marks)
    if any(one.bytes for _, one, _ in known):
        dots = [_step_dot(*one, (one[1].bytes_per_s or 0.0) / 1e6, "%s MB/s") for one in known]
        charts.append(build("Bytes", "MB/s", [ChartLine("bytes", "color0", dots)]))
    return charts


def _draw_tails(
    known: Sequence[tuple[float, OperationGroup, str]],
    heading: str,
    across: str,
    axis: NumberAxis,
    marks: Sequence[ChartMark] = (),
) -> list[LoadChart]:
    """Draw the quantiles on a logarithmic axis; nothing if no operation succeeded."""
    filled = [one for one in known if one[1].latency.count]
    if not filled:
        return []
    lines = [
        ChartLine(
            name.removesuffix("_s"),
            f"color{color}",
            [
                ChartDot(at, value, text=f"{text}: {name[:-2]} {format_seconds(value)}")
                for at, one, text in filled
                for value in (one.latency.quantile(QUANTILES[name]),)
            ],
            round=name != "max_s",
        )
        for name, color in _QUANTILE_COLORS.items()
    ]
    # A latency of 0 is below the histogram's unit of 1 µs.
    drawn = [max(dot.value, 1e-6) for line in lines for dot in line.dots]
    values = NumberAxis(drawn, format_seconds, logarithmic=True)
    chart = LineChart(f"{heading} quantiles", lines, axis, marks, marked="steps", values=values)
    caption = (
        f"Latencies of successful operations from the scheduled instant, {across.rstrip('.')}. "
    )
    return [LoadChart(heading, chart, f"{caption}Logarithmic axis.")]


def _attempted(group: OperationGroup) -> float:
    return group.attempted_hz or 0.0


def _number(step: OperationGroup) -> int:
    return int(step.key[0])  # type: ignore[index]


def _start_s(step: OperationGroup) -> float:
    return float(step.key[1])  # type: ignore[index]


def _describe_limited(step: OperationGroup) -> str:
    rows = pluralize(step.steps + step.limited_steps, "row")
    return f"step {_number(step)}: {step.limited_steps} of {rows} left out"


def _flat_dots(*points: tuple[float, float]) -> list[ChartDot]:
    return [ChartDot(at, value) for at, value in points]


def _level_dot(group: OperationGroup, find: FindRate, unit: str, label: Labels) -> ChartDot:
    value = find(group)
    text = f"{label(group)}: {value:.4g} {unit} at {_attempted(group):.4g}/s attempted"
    if group.limited_steps:
        text += f"; {pluralize(group.limited_steps, 'row')} left out"
    return ChartDot(_attempted(group), value, text=text, hollow=bool(group.limited_steps))


def _step_dot(at: float, group: OperationGroup, text: str, value: float, form: str) -> ChartDot:
    shown = form.replace("%s", f"{value:.4g}")
    return ChartDot(at, value, text=f"{text}: {shown}", hollow=bool(group.limited_steps))
