"""Histograms of read latency, of single measurements and of selected groups: figures and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest

from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.collectors.record.outcome import Outcome, classify_outcome
from treehammer.tables import DataTable, Row, TableColumn
from treehammer.web.columns import column
from treehammer.web.display_formats import format_seconds
from treehammer.web.figures import figure_layout
from treehammer.web.figures.figure_chart import FigureChart
from treehammer.web.sections import Figure, Titled, table_of_values

#: Columns of bins, beside that of the release.
_BIN_COLUMNS = (
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
    nonempty = {name: reads for name, reads in filled.items() if reads}
    if not nonempty:
        return None
    bins = set[int]().union(*nonempty.values())
    # An empty bin at either end closes the steps; a single bin alone would draw no line.
    axis_bins = range(max(min(bins) - 1, 0), max(bins) + 2)
    marks = [
        figure_layout.FigureMark(series, place, reads[bin_], None, None)
        for series, reads in enumerate(nonempty.values())
        for place, bin_ in enumerate(axis_bins)
    ]
    layout = figure_layout.FigureLayout(
        kind=figure_layout.Kind.STEPS,
        title="Read latency",
        x_title="read latency",
        y_title="reads",
        groups=("", "from", "release"),
        count_title="",
        scale=figure_layout.Scale.LINEAR,
        places=tuple(format_seconds(_lower_edge_s(bin_)) if bin_ else "0" for bin_ in axis_bins),
        series=tuple(
            figure_layout.style_series(
                [(_title_reads(name), name, name) for name in nonempty], by_release=True
            )
        ),
        panels=(figure_layout.FigurePanel("", tuple(marks)),),
        bars="number of reads in each bin of latency",
        whole=True,
    )
    return FigureChart(layout)


def _title_reads(release: str) -> str:
    if not release:
        return "all reads"
    return f"ROOT {release}" if release[0].isdigit() else release


def _lower_edge_s(bin_: int) -> float:
    """Return the lower edge of a bin in seconds; the first one starts at 0."""
    return 1e-6 * 2.0**bin_ if bin_ else 0.0


def sum_reads(rows: Sequence[Row]) -> dict[str, list[int]]:
    """Sum the reads of good measurements by release and bin of latency."""
    sums: dict[str, list[int]] = {}
    for row in rows:
        bins = row["read_latency_hist"]
        if bins and classify_outcome(row) is Outcome.GOOD:
            release = row["root_version"] or ""
            counts = sums.get(release, [])
            sums[release] = [a + b for a, b in zip_longest(counts, bins, fillvalue=0)]
    return dict(sorted(sums.items(), key=lambda item: natural_sort_key(item[0])))


def build_bin_table(reads_by_release: Mapping[str, Sequence[int]]) -> DataTable:
    """Build the table of the reads of a job by release and bin of latency."""
    keys = ("root_version", "from_s", "to_s", "reads")
    values = (
        (release, _lower_edge_s(bin_), _lower_edge_s(bin_ + 1), reads)
        for release, bins in reads_by_release.items()
        for bin_, reads in enumerate(bins)
        if reads
    )
    rows = [dict(zip(keys, row, strict=True)) for row in values]
    columns = (column("root_version"), *_BIN_COLUMNS)
    return DataTable("latencies", "Reads by latency", columns, rows)


def draw_reads(reads: Mapping[str, Sequence[int]], bins: DataTable) -> Titled | None:
    """Draw the reads of a job by latency and release; None without any."""
    chart = chart_histograms(reads)
    if not chart:
        return None
    caption = (
        "Reads of good measurements by latency; each bin is twice as wide as the previous one and "
        "labeled by its lower edge. The percentiles of measurements use finer bins."
    )
    figure = Figure("latencies", chart, caption, title="Reads by latency")
    return Titled("Read latency", figure, table_of_values(bins), anchor="latency")
