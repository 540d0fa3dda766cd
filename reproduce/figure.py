"""Figure of published results: the range in print, and the ratio measured here with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from treehammer.reproduce.agreement import Agreement, Reproduction
from treehammer.web.figures import chart_parts as vega
from treehammer.web.figures.figure_layout import PALETTE

_WIDTH, _LINE_HEIGHT, _LETTER_WIDTH = 420, 26, 7
_IN_PRINT, _TOLERANCE = PALETTE[7], PALETTE[7]
_COLORS = {
    Agreement.AGREES.value: PALETTE[2],
    Agreement.DIFFERS.value: PALETTE[5],
    Agreement.UNJUDGED.value: PALETTE[0],
}
CAPTION = (
    "Ratios in print (dark gray: the range of the published ones; light gray: what still agrees, with the "
    "tolerance of other machines and versions), and the ratio measured here with its interval."
)


@dataclass(frozen=True)
class PrintFigure:
    """Published and measured ratios on a logarithmic axis, a line for each result."""

    reproductions: Sequence[Reproduction]

    @property
    def title(self) -> str:
        """Description for screen readers, with all points."""
        points = "; ".join(
            f"{row['name']}: in print {row['published_low']:.3g} to {row['published_high']:.3g}, "
            f"here {row['measured']:.3g}, {row['verdict']}"
            for row in self._rows
        )
        return f"Published ratios beside those measured here. {points}"

    @property
    def _rows(self) -> list[dict[str, object]]:
        return [
            reproduction.to_row()
            for reproduction in self.reproductions
            if reproduction.measured and reproduction.measured.low > 0
        ]

    @property
    def specification(self) -> vega.Specification:
        """The chart in Vega-Lite."""
        names = [str(row["name"]) for row in self._rows]
        line = vega.encode_field(
            "name", vega.NOMINAL, sort=names, title=None, axis={"ticks": False}
        )
        scale = {"type": "log", "nice": False, "padding": 20}

        def ratio(field: str) -> vega.Specification:
            return vega.encode_field(field, vega.QUANTITATIVE, title="ratio", scale=scale)

        verdicts = [name for name in _COLORS if name in {row["verdict"] for row in self._rows}]
        color = vega.encode_field(
            "verdict",
            vega.NOMINAL,
            title=None,
            scale={"domain": verdicts, "range": [_COLORS[name] for name in verdicts]},
            legend={"orient": "top", "symbolType": "circle"},
        )
        bars = [
            vega.make_layer(
                "rule",
                {"x": ratio(f"{kind}_low"), "x2": {"field": f"{kind}_high"}, "y": line},
                color=shade,
                opacity=opacity,
                strokeWidth=14,
            )
            for kind, shade, opacity in (
                ("agrees", _TOLERANCE, 0.25),
                ("published", _IN_PRINT, 0.6),
            )
        ]
        # The range of a single published ratio has no width.
        ticks = vega.make_layer(
            "tick", {"x": ratio("published_low"), "y": line}, color=_IN_PRINT, thickness=3, size=14
        )
        interval = vega.make_layer(
            "rule",
            {"x": ratio("low"), "x2": {"field": "high"}, "y": line, "color": color},
            strokeWidth=2,
        )
        point = vega.make_layer(
            "point", {"x": ratio("measured"), "y": line, "color": color}, filled=True, size=60
        )
        chart: vega.Specification = {
            "data": vega.MARKS,
            "width": _WIDTH,
            "height": _LINE_HEIGHT * len(names),
            # The script of charts sets them.
            "params": [*vega.LEGEND_PARAMETERS],
            "layer": [*bars, ticks, interval, point],
        }
        labels = max(map(len, names), default=0) * _LETTER_WIDTH
        return vega.complete_specification(chart, self._rows, {"label_width": labels})
