"""Effects and their intervals as bars on a common axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from treehammer.analysis.comparison.wording import verdict_text
from treehammer.analysis.statistics.verdict import DEFAULT_DELTA
from treehammer.sql.core.rows import VerdictRow
from treehammer.tables import Row, TableColumn

#: Maximum reach of the drawn axis to either side, in ln.
_MAX_AXIS_REACH = 2.5


def find_axis_reach(rows: Sequence[VerdictRow]) -> float:
    """Find the reach of the drawn axis to either side, in ln."""
    ends = sorted(
        max(abs(row.low), abs(row.high))
        for row in rows
        if row.low is not None and row.high is not None
    )
    effects = sorted(abs(row.effect) for row in rows if row.effect is not None)
    # Intervals of few jobs are wide: they may exceed the axis, so that effects stay distinguishable.
    typical = max(_find_quantile(ends, 0.25), 1.5 * _find_quantile(effects, 0.9))
    return min(max(1.2 * typical, 2 * DEFAULT_DELTA), _MAX_AXIS_REACH)


def _find_quantile(numbers: Sequence[float], share: float) -> float:
    return numbers[int(share * (len(numbers) - 1))] if numbers else 0.0


@dataclass(frozen=True)
class EffectBar:
    """An effect and its interval as positions from 0 to 100 on the drawn axis.

    Attributes:
        low: start of the interval, clipped to the axis.
        high: end of the interval, clipped to the axis.
        effect: None if it lies beyond the axis.
        starts_before_axis: whether the interval starts left of the axis.
        ends_beyond_axis: whether the interval ends right of the axis.
    """

    low: float
    high: float
    effect: float | None
    starts_before_axis: bool
    ends_beyond_axis: bool

    def render(self) -> str:
        """Render the bar as parts of an SVG drawing."""
        parts = [f'<line class="bar" x1="{self.low}" x2="{self.high}" y1="6" y2="6"/>']
        if self.starts_before_axis:
            parts.append('<path class="cut" d="M0 6l6-4v8z"/>')
        if self.ends_beyond_axis:
            parts.append('<path class="cut" d="M100 6l-6-4v8z"/>')
        if self.effect is not None:
            parts.append(
                f'<line class="mean" x1="{self.effect}" x2="{self.effect}" y1="2" y2="10"/>'
            )
        return "".join(parts)


def place_effect_bar(row: Row, reach: float) -> EffectBar | None:
    """Place the effect of a table's row on the axis; None without an interval."""
    effect, low, high = row["effect"], row["low"], row["high"]
    if effect is None or low is None or high is None:
        return None

    def place(value: float) -> float:
        return round(50 + 50 * max(-1.0, min(1.0, value / reach)), 2)

    return EffectBar(
        place(low),
        place(high),
        place(effect) if abs(effect) <= reach else None,
        low < -reach,
        high > reach,
    )


def make_bar_column(rows: Sequence[VerdictRow], delta: float) -> TableColumn:
    """Make the column that draws effects on a common axis, whose ends are its heading.

    Args:
        rows: all rows of the comparison.
        delta: effects within it are ignored, in ln.
    """
    reach = find_axis_reach(rows)
    ends = " … ".join(verdict_text.format_effect(end) for end in (-reach, reach))
    return TableColumn(
        "bar",
        f"{verdict_text.name_directions(rows)}\n{ends}",
        tooltip="change and interval",
        draw=lambda row: render_effect(row, reach, delta),
    )


def render_effect(row: Row, reach: float, delta: float) -> Markup:
    """Draw the effect of a table's row on the axis, with a band of the effects that are ignored.

    In Python, because a template takes twice the time.
    """
    bar = place_effect_bar(row, reach)
    half = round(50 * min(delta / reach, 1), 2)
    return Markup(  # noqa: S704
        '<svg class="effect" viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true" '
        f'focusable="false"><rect class="none" x="{50 - half}" y="0" width="{2 * half}" height="12"/>'
        '<line class="zero" x1="50" x2="50" y1="0" y2="12"/>'
        f"{bar.render() if bar else ''}</svg>"
    )
