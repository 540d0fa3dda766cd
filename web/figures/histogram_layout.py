"""Layout of latency histograms: reads by bin, one series per release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treehammer.web.display.display_units import format_seconds
from treehammer.web.figures.figure_layout import (
    LINEAR,
    STEPS,
    FigureLayout,
    FigureMark,
    FigurePanel,
    style_series,
)


def lay_out_histograms(reads_by_release: Mapping[str, Sequence[int]]) -> FigureLayout | None:
    """Lay out reads by latency with common axes; None without reads.

    Args:
        reads_by_release: number of reads by bin; bin i is [2^i, 2^(i+1)) microseconds (bin 0 from 0).
    """
    drawn = {name: bins for name, bins in reads_by_release.items() if any(bins)}
    filled = [bin_ for bins in drawn.values() for bin_, reads in enumerate(bins) if reads > 0]
    if not filled:
        return None
    # The empty bins beside them end the steps, of which a single one would be no line.
    shown = range(max(min(filled) - 1, 0), max(filled) + 2)
    marks = [
        FigureMark(series, place, bins[bin_] if bin_ < len(bins) else 0, None, None)
        for series, bins in enumerate(drawn.values())
        for place, bin_ in enumerate(shown)
    ]
    names = {name: f"ROOT {name}" if name[:1].isdigit() else name or "all reads" for name in drawn}
    return FigureLayout(
        kind=STEPS,
        title="Read latency",
        x_title="read latency",
        y_title="reads",
        groups=("", "from", "release"),
        counted="",
        scale=LINEAR,
        places=tuple(map(format_edge, shown)),
        series=tuple(style_series([(names[name], name, name) for name in drawn], by_release=True)),
        panels=(FigurePanel("", tuple(marks)),),
        bars="number of reads in each bin of latency",
    )


def format_edge(bin_: int) -> str:
    """Format the lower edge of a bin."""
    return format_seconds(bin_lower_s(bin_)) if bin_ else "0"


def bin_lower_s(bin_: int) -> float:
    """Lower edge in seconds of any bin but the first, which starts at 0."""
    return 1e-6 * 2.0**bin_
