"""A histogram of latencies, laid out for an SVG that the template writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from treehammer.web.display.display_units import format_seconds

#: Size of the drawing in its own units, and of the margins around the bars.
WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM, TOP = 640, 200, 56, 32, 36, 10


@dataclass(frozen=True)
class HistogramBar:
    """One bin: its place and size, its reads, and the latencies that it holds in words."""

    x: float
    y: float
    width: float
    height: float
    reads: int
    label: str


@dataclass(frozen=True)
class LatencyHistogram:
    """The bins from the first to the last that counts; ``ticks`` are places and texts of the axis."""

    title: str
    bars: tuple[HistogramBar, ...]
    ticks: tuple[tuple[float, str], ...]
    largest_count: int
    reads: int

    @property
    def alt_text(self) -> str:
        """For who cannot see it."""
        return f"{self.title}: {self.reads} reads by latency; their numbers stand below"


def lay_out_histograms(named: Mapping[str, Sequence[int]]) -> list[LatencyHistogram]:
    """Lay out reads by latency, all with the same axis; what has no reads is left out.

    Args:
        named: title -> reads, bin i = [2^i, 2^(i+1)) microseconds (bin 0 from 0).
    """
    filled = [place for bins in named.values() for place, reads in enumerate(bins) if reads > 0]
    return [
        _lay_out_histogram(title, bins, min(filled), max(filled))
        for title, bins in named.items()
        if any(reads > 0 for reads in bins)
    ]


def _lay_out_histogram(title: str, bins: Sequence[int], first: int, last: int) -> LatencyHistogram:
    most = max(bins)
    each = (WIDTH - LEFT - RIGHT) / max(last - first + 1, 8)
    scale = (HEIGHT - BOTTOM - TOP) / most
    return LatencyHistogram(
        title,
        tuple(_lay_out_bars(bins, first, last, each, scale)),
        tuple(_latency_ticks(first, last, each)),
        most,
        sum(bins),
    )


def _lay_out_bars(
    bins: Sequence[int], first: int, last: int, each: float, scale: float
) -> Iterator[HistogramBar]:
    for place in range(first, last + 1):
        reads = max(bins[place], 0) if place < len(bins) else 0
        height = max(reads * scale, 1.0) if reads else 0.0
        label = f"{format_edge(place)} to {format_seconds(bin_lower_s(place + 1))}: {reads} reads"
        x = LEFT + (place - first) * each
        yield HistogramBar(x + 1, HEIGHT - BOTTOM - height, each - 2, height, reads, label)


def _latency_ticks(first: int, last: int, each: float) -> Iterator[tuple[float, str]]:
    step = max(1, round((last - first + 1) / 8))
    for place in range(first, last + 2, step):
        yield LEFT + (place - first) * each, format_edge(place)


def format_edge(place: int) -> str:
    """The lower edge of a bin in words."""
    return format_seconds(bin_lower_s(place)) if place else "0"


def bin_lower_s(place: int) -> float:
    """The lower edge of a bin above the first, in seconds."""
    return 1e-6 * 2.0**place
