"""Forest plot: changes with their intervals, one line for each variant and place, one panel for each metric."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from treehammer.analysis.comparison.verdict_text import (
    describe_variant,
    format_delta,
    format_effect,
    format_interval,
    list_metrics,
    side_names,
    title_metric,
    word_verdict,
)
from treehammer.analysis.statistics.verdict import SITES_SCOPE, Verdict
from treehammer.sql.core.rows import VerdictRow
from treehammer.web.figures import chart_parts as vega
from treehammer.web.figures.figure_layout import INK_COLOR, PALETTE, shorten_label

#: Lines of a plot; the others are in its table.
MAX_LINES = 30
_PANEL_WIDTH, _LINE_HEIGHT = 260, 18
#: Per cent beyond which intervals are cut off, unless a change itself is larger.
_MOST_PERCENT = 1000.0
_GRAY = PALETTE[7]
#: Claims with their colors; all others leave the question open.
_OPEN = "not certain"
_COLORS = {
    Verdict.SLOWER.value: PALETTE[5],
    Verdict.FASTER.value: PALETTE[2],
    Verdict.SAME.value: PALETTE[0],
    _OPEN: _GRAY,
}
_LABEL_LETTERS, _LETTER_WIDTH = 60, 7
#: Lines of a slide; pixels of its drawing, of its labels and between its panels.
_SLIDE_LINES, _SLIDE_WIDTH, _SLIDE_HEIGHT, _SLIDE_LABELS, _SLIDE_GAP = 12, 1600, 648, 330, 30
#: Draws a mark once in each panel, not for each line.
_ONCE: tuple[vega.Specification, ...] = (
    {"aggregate": [{"op": "count", "as": "lines"}], "groupby": ["metric"]},
)


@dataclass(frozen=True)
class ForestPlot:
    """Changes of B against A with their intervals.

    Attributes:
        rows: verdicts of one comparison, or of several with the same A, that have an interval.
        delta: limit of no effect (ln), drawn as a band.
    """

    rows: Sequence[VerdictRow]
    delta: float

    @classmethod
    def of_comparisons(
        cls, comparisons: Iterable[Sequence[VerdictRow]], delta: float
    ) -> ForestPlot | None:
        """Make the plot of comparisons with the same A; None without an interval."""
        entries: list[VerdictRow] = []
        for verdicts in comparisons:
            rows = [row for row in verdicts if row.effect is not None and row.low is not None]
            entries += [row for row in rows if row.scope == SITES_SCOPE] or rows
        return cls(tuple(entries), delta) if entries else None

    @cached_property
    def labels(self) -> Sequence[str]:
        """Label of the line of each row: the values that distinguish it from the others."""
        several_sites = len({row.site for row in self.rows}) > 1
        several_values = len({row.b for row in self.rows}) > 1
        labels = []
        for row in self.rows:
            place = row.site if several_sites and row.scope != SITES_SCOPE else ""
            value = side_names(row, {})[1] if several_values else ""
            text = " · ".join(filter(None, (value, describe_variant(row.label), place))) or row.axis
            labels.append(shorten_label(text, _LABEL_LETTERS))
        return labels

    @cached_property
    def lines(self) -> Sequence[str]:
        """Labels of the lines, those with the surest change first."""
        certainty: dict[str, float] = {}
        for label, row in zip(self.labels, self.rows, strict=True):
            certainty[label] = max(effect_weight(row), certainty.get(label, 0.0))
        return sorted(certainty, key=lambda label: (-certainty[label], label))

    @cached_property
    def drawn(self) -> Sequence[tuple[str, VerdictRow]]:
        """Labels and rows of the first lines."""
        lines = {*self.lines[:MAX_LINES]}
        labeled = zip(self.labels, self.rows, strict=True)
        return [(label, row) for label, row in labeled if label in lines]

    @property
    def title(self) -> str:
        """Description for screen readers, with all points."""
        points = "; ".join(
            f"{label}, {title_metric(row.metric)} {format_effect(row.effect or 0.0)} "
            f"({format_interval(row)}), {word_verdict(row.metric, row.verdict)}"
            for label, row in self.drawn
        )
        return f"Changes with their intervals. {points}"

    @property
    def caption(self) -> str:
        """What the plot shows."""
        left_out = len(self.lines) - MAX_LINES
        more = f" The {MAX_LINES} surest of {len(self.lines):,} lines." if left_out > 0 else ""
        if any(_to_percent(row.high or 0.0) > self._reach for _, row in self.drawn):
            more += f" Intervals are cut off at {self._reach:,.0f} %."
        return (
            "Changes of B against A on the same work, with intervals adjusted for all lines: 95 %, or "
            f"90 % where they are the same. Changes within the band, {format_delta(self.delta)}, count as none. "
            f"The surest changes come first.{more}"
        )

    @cached_property
    def _reach(self) -> float:
        """Largest number of the axis."""
        return max(_MOST_PERCENT, *(_to_percent(row.effect or 0.0) for _, row in self.drawn))

    @property
    def specification(self) -> vega.Specification:
        """The chart in Vega-Lite."""
        lines = self.lines[:MAX_LINES]
        metrics = list_metrics(self.rows)
        line = vega.encode_field(
            "line", vega.NOMINAL, sort=lines, title=None, axis={"ticks": False}
        )
        change = vega.encode_field(
            "effect", vega.QUANTITATIVE, title="change (%)", scale={"zero": True, "nice": True}
        )
        colors = {
            word_verdict(row.metric, claim): shade
            for claim, shade in _COLORS.items()
            for _, row in self.drawn
            if claim == _find_claim(row)
        }
        color = vega.encode_field(
            "claim",
            vega.NOMINAL,
            title=None,
            scale={"domain": [*colors], "range": [*colors.values()]},
            legend={"orient": "top", "symbolType": "circle"},
        )
        layers = [
            vega.make_layer(
                "rect",
                {
                    "x": {"datum": _to_percent(-self.delta)},
                    "x2": {"datum": _to_percent(self.delta)},
                },
                _ONCE,
                color=_GRAY,
                opacity=0.18,
            ),
            vega.make_layer("rule", {"x": {"datum": 0}}, _ONCE, color=INK_COLOR, strokeWidth=0.7),
            vega.make_layer(
                "rule",
                {
                    "x": {**change, "field": "low"},
                    "x2": {"field": "high"},
                    "y": line,
                    "color": color,
                },
                strokeWidth=2,
            ),
            vega.make_layer(
                "point", {"x": change, "y": line, "color": color}, filled=True, size=45
            ),
        ]
        chart: vega.Specification = {
            "data": vega.MARKS,
            "params": [*vega.LEGEND_PARAMETERS],
            "facet": vega.encode_field(
                "metric", vega.NOMINAL, sort=[*map(title_metric, metrics)], title=None
            ),
            "columns": len(metrics),
            "spec": {"width": _PANEL_WIDTH, "height": {"step": _LINE_HEIGHT}, "layer": layers},
        }
        rows = [
            {
                "line": label,
                "metric": title_metric(row.metric),
                "claim": word_verdict(row.metric, _find_claim(row)),
                **{
                    name: min(_to_percent(value), self._reach)
                    for name in ("effect", "low", "high")
                    if (value := getattr(row, name)) is not None
                },
            }
            for label, row in self.drawn
        ]
        labels = max(map(len, lines)) * _LETTER_WIDTH
        return vega.complete_specification(
            chart, rows, {"panels": len(metrics), "label_width": labels}
        )


@dataclass(frozen=True)
class ForestSlide:
    """A forest plot in 16:9, titled by its conclusion, for a talk."""

    plot: ForestPlot
    title: str

    @property
    def specification(self) -> vega.Specification:
        """The chart in Vega-Lite."""
        lines = {*self.plot.lines[:_SLIDE_LINES]}
        labeled = zip(self.plot.labels, self.plot.rows, strict=True)
        rows = tuple(row for label, row in labeled if label in lines)
        chart = ForestPlot(rows, self.plot.delta).specification
        panels = chart["usermeta"]["panels"]
        # With fixed room for labels and title, sheets of all plots have one shape.
        for layer in chart["spec"]["layer"]:
            if "y" in layer["encoding"]:
                extent = {"minExtent": _SLIDE_LABELS, "maxExtent": _SLIDE_LABELS}
                layer["encoding"]["y"]["axis"] |= extent | {"labelLimit": _SLIDE_LABELS - 10}
        width = (_SLIDE_WIDTH - _SLIDE_LABELS) / panels - _SLIDE_GAP
        chart["spec"] |= {"width": width, "height": _SLIDE_HEIGHT}
        chart["spacing"] = _SLIDE_GAP
        theme, sizes = chart["config"], {"labelFontSize": 18, "titleFontSize": 18}
        chart["config"] = {
            **theme,
            "axis": {**theme["axis"], **sizes, "labelSeparation": 8},
            "legend": {**theme["legend"], **sizes},
            "header": {**theme["header"], "labelFontSize": 20},
        }
        left_out = len(self.plot.lines) - len(lines)
        surest = f" The {len(lines)} surest of {len(self.plot.lines):,} lines."
        text = textwrap.wrap(self.title, 100, max_lines=3, placeholder=" …")
        title = {
            "text": [*text, "", "", ""][:3],
            "subtitle": f"{self.plot.caption.partition('. ')[0]}.{surest if left_out > 0 else ''}",
            "fontSize": 25,
            "subtitleFontSize": 16,
            "limit": _SLIDE_WIDTH,
            "offset": 18,
        }
        return {**chart, "title": title}


def _find_claim(row: VerdictRow) -> str:
    return row.verdict if row.verdict in _COLORS else _OPEN


def _to_percent(effect: float) -> float:
    return 100 * math.expm1(min(effect, 700.0))


def effect_weight(row: VerdictRow) -> float:
    """Return |effect| ÷ width of its interval to sort by notability; −1 without an interval."""
    if row.effect is None or row.low is None or row.high is None:
        return -1.0
    return abs(row.effect) / max(row.high - row.low, 1e-12)
