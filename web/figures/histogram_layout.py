"""Layout of latency histograms that a template renders as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from treehammer.web.display.display_units import format_seconds

#: Size of the drawing in SVG units, and its margins.
WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 640, 200, 56, 32, 36, 10


@dataclass(frozen=True)
class HistogramBar:
    """One bin: position and size in SVG units, number of reads, and a label."""

    x: float
    y: float
    width: float
    height: float
    reads: int
    label: str


@dataclass(frozen=True)
class HistogramLayout:
    """A laid-out histogram.

    Attributes:
        title: title of the drawing.
        bars: from the first to the last bin with reads.
        ticks: positions and labels of the axis.
        largest_count: reads of the highest bar.
        reads: all reads.
    """

    title: str
    bars: tuple[HistogramBar, ...]
    ticks: tuple[tuple[float, str], ...]
    largest_count: int
    reads: int

    @property
    def alt_text(self) -> str:
        """Text for screen readers."""
        return f"{self.title}: {self.reads} reads by latency; see the numbers below"


def lay_out_histograms(reads_by_title: Mapping[str, Sequence[int]]) -> list[HistogramLayout]:
    """Lay out reads by latency with a common axis; empty histograms are left out.

    Args:
        reads_by_title: number of reads by bin; bin i is [2^i, 2^(i+1)) microseconds (bin 0 from 0).
    """
    filled = [
        bin_ for bins in reads_by_title.values() for bin_, reads in enumerate(bins) if reads > 0
    ]
    return [
        _lay_out_histogram(title, bins, min(filled), max(filled))
        for title, bins in reads_by_title.items()
        if any(reads > 0 for reads in bins)
    ]


def _lay_out_histogram(title: str, bins: Sequence[int], first: int, last: int) -> HistogramLayout:
    largest = max(bins)
    bar_width = (WIDTH - LEFT - RIGHT) / max(last - first + 1, 8)
    scale = (HEIGHT - BOTTOM - TOP) / largest
    return HistogramLayout(
        title,
        tuple(_lay_out_bars(bins, first, last, bar_width, scale)),
        tuple(_latency_ticks(first, last, bar_width)),
        largest,
        sum(bins),
    )


def _lay_out_bars(
    bins: Sequence[int], first: int, last: int, bar_width: float, scale: float
) -> Iterator[HistogramBar]:
    for bin_ in range(first, last + 1):
        reads = max(bins[bin_], 0) if bin_ < len(bins) else 0
        height = max(reads * scale, 1.0) if reads else 0.0
        label = f"{format_edge(bin_)} to {format_seconds(bin_lower_s(bin_ + 1))}: {reads} reads"
        x = LEFT + (bin_ - first) * bar_width
        yield HistogramBar(x + 1, HEIGHT - BOTTOM - height, bar_width - 2, height, reads, label)


def _latency_ticks(first: int, last: int, bar_width: float) -> Iterator[tuple[float, str]]:
    step = max(1, round((last - first + 1) / 8))
    for bin_ in range(first, last + 2, step):
        yield LEFT + (bin_ - first) * bar_width, format_edge(bin_)


def format_edge(bin_: int) -> str:
    """Format the lower edge of a bin."""
    return format_seconds(bin_lower_s(bin_)) if bin_ else "0"


def bin_lower_s(bin_: int) -> float:
    """Lower edge in seconds of any bin but the first, which starts at 0."""
    return 1e-6 * 2.0**bin_
