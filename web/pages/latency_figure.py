"""Histograms of read latency, of single measurements and of selected groups: figures and tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest

from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.collectors.record.outcome import Outcome, classify_outcome
from treehammer.tables import DataTable, Row, TableColumn
from treehammer.text_formatting import format_share
from treehammer.web.columns import column
from treehammer.web.display_formats import fit_unit, format_seconds
from treehammer.web.figures.explore_query import ExploreQuery
from treehammer.web.figures.figure_captions import describe_figure, figure_heading
from treehammer.web.figures.figure_chart import FigureChart
from treehammer.web.figures.figure_layout import (
    LINEAR,
    LOG,
    MAX_PANELS,
    MAX_PLACES,
    QUANTILES,
    STEPS,
    FigureLayout,
    FigureMark,
    FigurePanel,
    GroupNames,
    MarkPosition,
    lay_out_figure,
    style_series,
)
from treehammer.web.figures.figure_points import FigurePoints
from treehammer.web.pages.spread_figure import RowLinks, aggregation_column, group_columns
from treehammer.web.sections import (
    Figure,
    Titled,
    table_of_values,
)

#: Columns of :func:`list_filled_bins`.
BIN_COLUMNS = (
    TableColumn("from_s", "from", format_seconds, is_number=True),
    TableColumn("to_s", "to", format_seconds, is_number=True),
    TableColumn("reads", "reads", is_number=True),
)
_QUANTILE_SHARES = {"p50_s": 0.5, "p95_s": 0.95, "p99_s": 0.99}


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
        whole=True,
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


def lay_out_latencies(query: ExploreQuery, data: FigurePoints, title: str) -> FigureLayout | None:
    """Lay out quantiles of the read latency, the slowest places first; None if there are no reads."""
    drawn = [point for point in data.points if any(point.reads)]
    if not drawn:
        return None
    panels, places = (GroupNames(data, drawn, column) for column in (query.panels, query.by))
    color = query.color if query.color != query.by else ""
    names = GroupNames(data, drawn, color, query.separated_columns)
    quantiles = [point.latency_quantiles_s(_QUANTILE_SHARES.values()) for point in drawn]
    unit = fit_unit("s", (values[1] for values in quantiles))
    panel_titles = panels.select_drawable(MAX_PANELS)
    place_names = places.select_drawable(MAX_PLACES)
    if not places.are_time:
        place_names = _sort_slowest_first(places.label_points(drawn), quantiles)[:MAX_PLACES]
    series = names.build_series()
    short, x_title = places.axis_names()
    empty = FigureLayout(
        kind=QUANTILES,
        x_title=x_title,
        y_title=f"read latency in {unit.name}",
        groups=(panels.title, places.title, names.title),
        counted="executions",
        scale=LOG,
        places=tuple(place_names),
        series=tuple(series),
        panels=tuple(FigurePanel(text, ()) for text in panel_titles),
        keys=(
            panels.list_values(panel_titles),
            places.list_values(place_names),
            names.list_values(line.name for line in series),
        ),
        **describe_figure(query, data, title),
    )
    labels = (axis_names.label_points(drawn) for axis_names in (panels, places, names))
    marks = [
        (
            MarkPosition(*position),
            partial(_mark_quantiles, [*map(unit.convert, values)], point.good),
        )
        for point, values, *position in zip(drawn, quantiles, *labels, strict=True)
    ]
    return lay_out_figure(empty, marks, short)


def _sort_slowest_first(places: Sequence[str], quantiles: Sequence[Sequence[float]]) -> list[str]:
    """Sort places by the largest of their 95 % quantiles."""
    slowest: dict[str, float] = {}
    for place, (_, high, _) in zip(places, quantiles, strict=True):
        slowest[place] = max(slowest.get(place, 0.0), high)
    return sorted(slowest, key=lambda place: -slowest[place])


def _mark_quantiles(quantiles: Sequence[float], good: int, series: int, place: int) -> FigureMark:
    middle, high, highest = quantiles
    return FigureMark(series, place, middle, middle, highest, count=good, middle=high)


def latency_table(query: ExploreQuery, data: FigurePoints, links: RowLinks) -> DataTable:
    """Build the table of reads of every group by bin."""
    columns = (
        *group_columns(query, data, links),
        *BIN_COLUMNS,
        TableColumn("share", "share", lambda share: f"{100 * share:.2f} %", is_number=True),
    )
    rows = [
        {**point.key, **bin_, "share": bin_["reads"] / sum(point.reads)}
        for point in data.points
        for bin_ in list_filled_bins(point.reads)
    ]
    return DataTable("figure", f"{figure_heading(query)}, bin by bin", columns, rows)


def quantile_table(query: ExploreQuery, data: FigurePoints, links: RowLinks) -> DataTable:
    """Build the table of quantiles of the read latency of every group."""
    columns: tuple[TableColumn, ...] = (
        *group_columns(query, data, links),
        TableColumn("good", "executions", is_number=True, link=links.jobs_link),
        TableColumn("reads", "reads", is_number=True),
        *(
            TableColumn(key, f"{format_share(share)} below", format_seconds, is_number=True)
            for key, share in _QUANTILE_SHARES.items()
        ),
    )
    rows = [
        {
            **point.key,
            "good": point.good,
            "reads": sum(point.reads),
            **dict(
                zip(
                    _QUANTILE_SHARES,
                    point.latency_quantiles_s(_QUANTILE_SHARES.values()),
                    strict=True,
                )
            ),
            "aggregates": data.aggregation.describe_point(point.key),
        }
        for point in data.points
        if sum(point.reads)
    ]
    columns += tuple(aggregation_column(query, data))
    note = (
        "Quantiles are accurate to a factor of two: reads are assumed to be evenly distributed "
        "within a bin."
    )
    return DataTable("quantiles", figure_heading(query), columns, rows, note=note)


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
    rows = [
        {"root_version": release, **bin_}
        for release, bins in reads_by_release.items()
        for bin_ in list_filled_bins(bins)
    ]
    listed = (column("root_version"), *BIN_COLUMNS)
    return DataTable("latencies", "Reads by latency", listed, rows)


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
