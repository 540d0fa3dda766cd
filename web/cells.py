"""Cells of tables that are drawn: heat, sparks, and intervals on a common axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape


@dataclass(frozen=True)
class HeatCell:
    """A colored cell with a short text, whose description screen readers read.

    Attributes:
        text: a few characters.
        description: in words.
        css_class: color of the cell.
        address: of the evidence, '' for none.
        tooltip: of the link.
        is_symbol: the text is a letter that the description replaces.
    """

    text: str
    description: str
    css_class: str = ""
    address: str = ""
    tooltip: str = ""
    is_symbol: bool = False

    def __html__(self) -> str:
        """Render the content of the cell."""
        # Comparisons have a thousand cells: Markup.format would take a tenth of their page's time.
        text, description = escape(self.text), escape(self.description)
        content = (
            f'<span aria-hidden="true">{text}</span><span class="unseen">{description}</span>'
            if self.is_symbol
            else f'{text}<span class="unseen"> {description}</span>'
        )
        if not self.address:
            return f'<span class="letter">{content}</span>'
        title = f' title="{escape(self.tooltip)}"' if self.tooltip else ""
        return f'<a href="{escape(self.address)}"{title}>{content}</a>'


@dataclass(frozen=True)
class SparkCell:
    """Counts by day as steps, relative to the largest."""

    counts: Sequence[int]

    @property
    def path(self) -> str:
        """SVG path in a box of one unit a day by 1."""
        largest = max(self.counts, default=0) or 1
        steps = (f"V{round(1 - count / largest, 2):g}h1" for count in self.counts)
        return f"M0 1{''.join(steps)}V1z"

    def __html__(self) -> str:
        """Render the drawing."""
        return Markup(
            '<svg viewBox="0 0 {} 1" preserveAspectRatio="none" aria-hidden="true" '
            'focusable="false"><path d="{}"/></svg>'
        ).format(len(self.counts), self.path)


@dataclass(frozen=True)
class IntervalCell:
    """A value and its interval on an axis around zero that many rows share.

    Attributes:
        low: start of the interval; None for none.
        high: end of the interval.
        value: the value.
        reach: end of the axis to either side; intervals beyond it end in an arrow.
        band: values within it are ignored.
    """

    low: float | None
    high: float | None
    value: float | None
    reach: float
    band: float

    def _place(self, value: float) -> float:
        return round(50 + 50 * max(-1.0, min(1.0, value / self.reach)), 2)

    def _draw_interval(self) -> str:
        if self.value is None or self.low is None or self.high is None:
            return ""
        low, high, value = self._place(self.low), self._place(self.high), self._place(self.value)
        parts = [f'<line class="bar" x1="{low}" x2="{high}" y1="6" y2="6"/>']
        if self.low < -self.reach:
            parts.append('<path class="cut" d="M0 6l6-4v8z"/>')
        if self.high > self.reach:
            parts.append('<path class="cut" d="M100 6l-6-4v8z"/>')
        if abs(self.value) <= self.reach:
            parts.append(f'<line class="mean" x1="{value}" x2="{value}" y1="2" y2="10"/>')
        return "".join(parts)

    def __html__(self) -> str:
        """Render the drawing."""
        half = round(50 * min(self.band / self.reach, 1), 2)
        return Markup(  # noqa: S704
            '<svg class="effect" viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true" '
            f'focusable="false"><rect class="none" x="{50 - half}" y="0" width="{2 * half}" '
            'height="12"/><line class="zero" x1="50" x2="50" y1="0" y2="12"/>'
            f"{self._draw_interval()}</svg>"
        )
