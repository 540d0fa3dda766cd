"""Figures and tables of a campaign report, and the executions that they show.

Figures are inline SVG in the page's text color; the same data give the same figure.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from treehammer.analysis.descriptive.efficiency_diagnosis import select_usable
from treehammer.analysis.statistics.job_pairs import (
    ExecutionGroup,
    Key,
    MeanAndRms,
    Row,
    find_distinguishing_names,
    group_executions,
    lookup_value,
)
from treehammer.analysis.statistics.metric_units import find_display_unit, head_unit
from treehammer.analysis.statistics.sample import parse_variant
from treehammer.hctests.definition.model import (
    COMMIT_AXIS,
    RELEASE_AXIS,
    format_commit,
    identify_commit,
)
from treehammer.sql.core.rows import VerdictRow
from treehammer.tables import DataTable, TableColumn
from treehammer.web.display_formats import format_mean_and_rms
from treehammer.web.figures.drawing import draw_chart
from treehammer.web.figures.figure_chart import chart_figure
from treehammer.web.figures.figure_layout import (
    GRID_COLOR,
    INK_COLOR,
    FigureLayout,
    FigureMark,
    FigurePanel,
    Kind,
    Scale,
    shorten_label,
    style_series,
)
from treehammer.web.figures.forest_plot import ForestPlot
from treehammer.web.sections import Figure

_IDS = re.compile(r'(\bid="|url\(#|href="#)')
_SIZE = re.compile(r' width="(\d+)" height="\d+"')
#: Width of a drawing on a narrow screen, where it can be scrolled, relative to its own.
_LEAST_WIDTH_REM = 0.045
#: Characters of a text that is printed in one line.
_MAX_UNBROKEN = 30
_EXECUTIONS = TableColumn("executions", "executions", is_number=True)


def _mean_column(metric: str, title: str, work: str) -> TableColumn:
    unit, heading = find_display_unit(metric), head_unit(metric, work=work)

    def write(spread: MeanAndRms) -> str:
        return format_mean_and_rms(unit.convert(spread.mean), unit.convert(spread.rms))

    return TableColumn(metric, f"{title}, {heading}" if heading else title, write, is_number=True)


#: Averaged metrics, over usable timed executions only.
MEAN_TITLES = {
    "cpu_per_event_s": "CPU",
    "wall_per_event_s": "wall",
    "loop_wall_s": "loop",
    "eff_job": "eff_job",
    "eff_payload": "eff_payload",
    "eff_loop": "eff_loop",
    "bytes_read": "read",
    "read_calls": "read calls",
    "max_rss_bytes": "memory",
}


@dataclass(frozen=True)
class ExecutionCell:
    """Usable executions of one variant with one value of the compared axis at one place.

    Attributes:
        place: site, with that of the storage if it is another, and the door if there are several.
        variant: label of the varying axes without the compared one.
        value: on the compared axis.
        spreads: metric -> mean and RMS.
    """

    place: str
    variant: str
    value: str
    executions: int
    jobs: int
    hosts: int
    spreads: Mapping[str, MeanAndRms]


def summarize_executions(rows: Iterable[Row], axis: str = RELEASE_AXIS) -> list[ExecutionCell]:
    """Aggregate usable rows, in natural order of place, variant and value of the compared axis."""
    rows = select_usable(rows)
    axes = tuple(name for name in find_distinguishing_names(rows, ()) if name != axis)
    doors = defaultdict(set)
    for row in rows:
        doors[_name_sites(row)].add(row["door"])

    def key(row: Row) -> Key:
        sites = _name_sites(row)
        is_one_of_doors = axis != "door" and len(doors[sites]) > 1
        place = f"{sites} · {row['door']}" if is_one_of_doors else sites
        return place, *(lookup_value(row, name) for name in axes), _find_value(row, axis)

    return [_build_cell(group, axes) for group in group_executions(rows, key)]


def _find_value(row: Row, axis: str) -> str:
    """Find the value of an execution on the compared axis, as readers know it."""
    if axis == COMMIT_AXIS:
        commit = identify_commit(row["commit_id"] or "", bool(row["dirty"]), row["test_hash"] or "")
        return format_commit(commit)
    value = lookup_value(row, axis)
    return str(value or row["root_version"] or "") if axis == RELEASE_AXIS else str(value)


def _name_sites(row: Row) -> str:
    """Name the site of an execution, and the site that it read if that is another."""
    site, storage = str(row["site"]), row.get("storage_site")
    return site if storage in (None, site) else f"{storage} from {site}"


def _build_cell(group: ExecutionGroup, axes: tuple[str, ...]) -> ExecutionCell:
    variant = parse_variant(group.rows[0]["variant"])
    label_axes = tuple(axis for axis in axes if axis in dict(variant.values))
    spreads = {name: group.mean_and_rms(name) for name in MEAN_TITLES}
    return ExecutionCell(
        place=str(group.key[0]),
        variant=variant.label(label_axes) if label_axes else group.rows[0]["test_name"],
        value=str(group.key[-1]),
        executions=len(group.rows),
        jobs=group.jobs,
        hosts=group.hosts,
        spreads={name: spread for name, spread in spreads.items() if spread},
    )


@dataclass(frozen=True)
class InlineFigure:
    """An SVG element with a description of its points, and a caption."""

    svg: str
    caption: str


def draw_inline(chart: Mapping[str, Any], name: str, alt: str) -> str:
    """Draw a chart in Vega-Lite as an SVG element with own ids and without a background.

    Args:
        name: start of its ids, which are unique in the document.
        alt: description of its points.
    """
    plain = {**chart, "config": {**chart["config"], "background": None}}
    svg = draw_chart(json.loads(json.dumps(plain)), "svg").decode()
    text = svg.replace(GRID_COLOR, "#8885").replace(INK_COLOR, "currentColor")
    text = _IDS.sub(rf"\g<1>{name}-", text)
    size = _SIZE.search(text)
    width = int(size[1]) if size else 0
    # The page sets the size, the viewBox keeps the aspect ratio.
    style = f"min-width: {_LEAST_WIDTH_REM * width:.0f}rem"
    label = f' role="img" aria-label="{escape(alt)}" style="{style}"'
    return _SIZE.sub(label, text, count=1)


def draw_forest(
    comparisons: Iterable[Sequence[VerdictRow]], delta: float, name: str
) -> InlineFigure | None:
    """Draw the changes of comparisons with the same A; None without an interval.

    Args:
        name: start of the figure's ids, which are unique in the document.
    """
    plot = ForestPlot.of_comparisons(comparisons, delta)
    if plot is None:
        return None
    return InlineFigure(draw_inline(plot.specification, name, plot.title), plot.caption)


def draw_efficiency_figure(
    cells: Sequence[ExecutionCell], axis: str = RELEASE_AXIS
) -> InlineFigure | None:
    """Draw ``eff_job`` by variant, one group per site (study S0); None without values."""
    cells = [cell for cell in cells if "eff_job" in cell.spreads]
    if not cells:
        return None
    points = (
        f"{shorten_label(cell.place)}, {shorten_label(cell.variant)}, {shorten_label(cell.value)}: "
        f"{cell.spreads['eff_job'].mean:.2f}"
        for cell in cells
    )
    counts = sorted({cell.spreads["eff_job"].n for cell in cells})
    number = f"n = {' to '.join(map(str, sorted({counts[0], counts[-1]})))}"
    places = list(dict.fromkeys(cell.place for cell in cells))
    names = _name_series(cells, axis)
    numbers = {name: number for number, name in enumerate(names)}
    marks = [
        _make_mark(
            cell.spreads["eff_job"], numbers[cell.variant, cell.value], places.index(cell.place)
        )
        for cell in cells
    ]
    series = style_series([(shorten_label(text, 90), *name) for name, text in names.items()])
    caption = (
        "CPU efficiency by variant, one group per site: eff_job, the CPU of set-up, stage-in and "
        "payload over their wall time. Points are means, error bars the RMS over repeated "
        f"executions in repeated jobs ({number} per point; single "
        "executions have no bar). Efficiency describes the site: a release that saves CPU lowers it."
    )
    layout = FigureLayout(
        Kind.POINTS,
        x_title="",
        y_title="CPU efficiency of the job (eff_job)",
        groups=("", "site", "variant"),
        scale=Scale.ZERO,
        places=tuple(map(shorten_label, places)),
        series=tuple(series),
        panels=(FigurePanel("", tuple(marks)),),
    )
    alt = f"CPU efficiency. {'; '.join(points)}"
    return InlineFigure(draw_inline(chart_figure(layout), "efficiency", alt), caption)


def _name_series(cells: Sequence[ExecutionCell], axis: str) -> Mapping[tuple[str, str], str]:
    """Name each variant and compared value, sorted by variant; a single variant is not named."""
    variants = list(dict.fromkeys(cell.variant for cell in cells))
    pairs = dict.fromkeys((cell.variant, cell.value) for cell in cells)
    before = "{} · " if len(variants) > 1 else ""
    return {
        (variant, value): f"{before.format(variant)}{axis}={value}"
        for variant, value in sorted(pairs, key=lambda pair: variants.index(pair[0]))
    }


def _make_mark(spread: MeanAndRms, series: int, place: int) -> FigureMark:
    """Make the mark of a mean; a single execution has no bar, as a length of zero suggests certainty."""
    mean, rms = spread.mean, spread.rms
    low, high = (mean - rms, mean + rms) if spread.n > 1 else (None, None)
    return FigureMark(series, place, mean, low, high, spread.n)


def draw_section(figure: Figure) -> InlineFigure:
    """Draw a figure of a page, whose heading replaces the title of the chart."""
    chart = {key: part for key, part in figure.chart.specification.items() if key != "title"}
    svg = draw_inline(chart, figure.name, figure.title or figure.heading)
    return InlineFigure(svg, str(figure.caption))


@dataclass(frozen=True)
class ReportSection:
    """What a vertical adds to a report.

    Attributes:
        heading: of the section.
        sentences: what it says.
        figures: drawings by their headings.
        table: its numbers.
        campaigns: identities of the campaigns that it tells of, which count nowhere else.
    """

    heading: str
    sentences: Sequence[str]
    figures: Mapping[str, InlineFigure]
    table: DataTable | None = None
    campaigns: Collection[str] = ()


@dataclass(frozen=True)
class LoadSummary:
    """What the page of a load says first, for the report of its campaign.

    Attributes:
        limits: loads of which only lower bounds are known.
    """

    conclusion: str
    limits: Sequence[str]
    table: DataTable
    figures: Sequence[Figure]


def make_means_table(cells: Iterable[ExecutionCell], axis: str, work: str) -> DataTable:
    """Make the table of means and RMS by place, variant and compared value; times are per ``work``."""
    rows = [{**vars(cell), **{key: cell.spreads.get(key) for key in MEAN_TITLES}} for cell in cells]
    columns = (
        *_text_columns(rows, {"place": "site", "variant": "variant", "value": axis}),
        _EXECUTIONS,
        TableColumn("jobs", "jobs", is_number=True),
        TableColumn("hosts", "hosts", is_number=True),
        *(
            _mean_column(metric, title, work)
            for metric, title in MEAN_TITLES.items()
            if any(row[metric] for row in rows)
        ),
    )
    return DataTable("means", "Means ± RMS over usable executions", columns, rows)


def _text_columns(rows: Sequence[Row], titles: Mapping[str, str]) -> list[TableColumn]:
    """Make columns of texts, whose lines break where one is long."""
    return [
        TableColumn(key, title, is_long=any(len(str(row[key])) > _MAX_UNBROKEN for row in rows))
        for key, title in titles.items()
    ]


def make_counted_table(
    name: str, caption: str, rows: Sequence[Row], titles: Mapping[str, str]
) -> DataTable:
    """Make a table of distinct rows with the number of their executions, and a heading by column."""
    return DataTable(name, caption, (*_text_columns(rows, titles), _EXECUTIONS), rows)
