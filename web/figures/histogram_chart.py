"""Latency histograms: reads by bin, as a chart with one series per release and as rows of a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from treehammer.tables import Row, TableColumn
from treehammer.web.display.display_units import format_seconds
from treehammer.web.figures.figure_chart import FigureChart
from treehammer.web.figures.figure_layout import (
    LINEAR,
    STEPS,
    FigureLayout,
    FigureMark,
    FigurePanel,
    style_series,
)

#: Columns of :func:`list_filled_bins`.
BIN_COLUMNS = (
    TableColumn("from_s", "from", format_seconds, is_number=True),
    TableColumn("to_s", "to", format_seconds, is_number=True),
    TableColumn("reads", "reads", is_number=True),
)


def chart_histograms(reads_by_release: Mapping[str, Sequence[int]]) -> FigureChart | None:
    """Chart reads by latency with common axes; None without reads.

    Args:
        reads_by_release: number of reads by bin; bin i is [2^i, 2^(i+1)) microseconds (bin 0 from 0).
    """
    filled = {name: +Counter(dict(enumerate(bins))) for name, bins in reads_by_release.items()}
    drawn = {name: reads for name, reads in filled.items() if reads}
    if not drawn:
        return None
    bins = set[int]().union(*drawn.values())
    # An empty bin at either end closes the steps; a single bin alone would draw no line.
    axis_bins = range(max(min(bins) - 1, 0), max(bins) + 2)
    marks = [
        FigureMark(series, place, reads[bin_], None, None)
        for series, reads in enumerate(drawn.values())
        for place, bin_ in enumerate(axis_bins)
    ]
    layout = FigureLayout(
        kind=STEPS,
        title="Read latency",
        x_title="read latency",
        y_title="reads",
        groups=("", "from", "release"),
        counted="",
        scale=LINEAR,
        places=tuple(map(format_edge, axis_bins)),
        series=tuple(
            style_series([(_title_reads(name), name, name) for name in drawn], by_release=True)
        ),
        panels=(FigurePanel("", tuple(marks)),),
        bars="number of reads in each bin of latency",
    )
    return FigureChart(layout)


def _title_reads(release: str) -> str:
    if not release:
        return "all reads"
    return f"ROOT {release}" if release[0].isdigit() else release


def list_filled_bins(bins: Sequence[int]) -> Iterator[Row]:
    """Yield edges and number of reads of each bin that has reads."""
    for bin_, reads in enumerate(bins):
        if reads:
            yield {"from_s": _lower_edge_s(bin_), "to_s": _lower_edge_s(bin_ + 1), "reads": reads}


def format_edge(bin_: int) -> str:
    """Format the lower edge of a bin."""
    return format_seconds(_lower_edge_s(bin_)) if bin_ else "0"


def _lower_edge_s(bin_: int) -> float:
    """Return the lower edge of a bin in seconds; the first one starts at 0."""
    return 1e-6 * 2.0**bin_ if bin_ else 0.0
