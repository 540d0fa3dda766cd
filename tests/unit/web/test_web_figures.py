"""Tests of charts, drawings and bars."""

from __future__ import annotations

import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from measurement_factory import build_verdict, make_measurement
from page_contents import list_marks, load_charts
from service_thread import ServiceThread, run_service

from treehammer.analysis.statistics.verdict import DEFAULT_DELTA
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.write.store import Store
from treehammer.web.columns import IntervalCell, SparkCell
from treehammer.web.figures.chart_parts import log_ticks
from treehammer.web.figures.drawing import PAPER_WIDTHS_MM, PIXELS_PER_MM, draw_chart
from treehammer.web.figures.figure_chart import chart_figure
from treehammer.web.figures.figure_layout import (
    FigureLayout,
    FigureMark,
    FigurePanel,
    FigureSeries,
    Kind,
    choose_release_colors,
    style_series,
)
from treehammer.web.figures.line_chart import ChartDot, ChartLine, LineChart, NumberAxis
from treehammer.web.pages.effect_tables import find_axis_reach
from treehammer.web.pages.latency_figure import chart_histograms
from treehammer.web.pages.measurement_page import PhaseChart, chart_phases

BLUE = "#0072b2"


def lay_out(
    marks: Sequence[Sequence[FigureMark]], names: Sequence[str] = ("n",), **more: Any
) -> FigureLayout:
    """A figure with one panel per list of marks."""
    values: dict[str, Any] = {
        "kind": Kind.POINTS,
        "title": "<b>",
        "x_title": "where",
        "y_title": "what",
        "groups": ("", "place", "series"),
        "count_title": "executions",
        "dates": False,
        "scale": "linear",
        "places": ("only",),
        "series": tuple(FigureSeries(name, BLUE, "circle") for name in names),
        "panels": tuple(
            FigurePanel(f"p{number}" if len(marks) > 1 else "", tuple(points))
            for number, points in enumerate(marks)
        ),
        **dict.fromkeys(("bars", "shared", "caption", "aggregated"), ""),
        "selection": "all days",
    }
    return FigureLayout(**{**values, **more})


def draw(*figure: Any, **more: Any) -> str:
    """A figure as SVG; see :func:`lay_out`."""
    chart = chart_figure(lay_out(*figure, **more))
    return draw_chart(json.loads(json.dumps(chart)), "svg").decode()


def mark(y: float, low: float | None = None, high: float | None = None) -> FigureMark:
    return FigureMark(0, 0, y, low, high)


def test_points_of_line_charts_are_opaque() -> None:
    """Translucent blue has too little contrast on the dark theme's background."""
    line = ChartLine("SITE_A", "own", (ChartDot(0.0, 1.0), ChartDot(1.0, 2.0)))
    chart = LineChart("speed", [line], NumberAxis((0.0, 1.0), "time"), values="MB/s")
    drawn = draw_chart(json.loads(json.dumps(chart.specification)), "svg").decode()
    assert set(re.findall(r'opacity="([\d.]+)"', drawn)) <= {"1"}
    assert {">time<", ">MB/s<"} <= set(re.findall(">[^<]+<", drawn))


def test_shared_axis_includes_all_points() -> None:
    drawn = draw([[mark(1.0)], [mark(100.0)]], ["_hidden"])
    # The shared axis has a label near the highest point.
    assert ">100<" in drawn
    assert "_hidden" in drawn


def test_error_bars_have_correct_ends() -> None:
    drawn = draw([[mark(10.0, 4.0, 13.0)]])
    bar = re.search(
        rf'<line [^>]*transform="translate\([\d.]+,([\d.]+)\)" x2="0" y2="(-?[\d.]+)" stroke="{BLUE}"',
        drawn,
    )
    point = re.search(
        rf'<path [^>]*transform="translate\([\d.]+,([\d.]+)\)" d="[^"]*" fill="{BLUE}"', drawn
    )
    assert bar
    assert point
    low, length = map(float, bar.groups())
    high = low + length
    assert (low - float(point[1])) / (low - high) == pytest.approx((10 - 4) / (13 - 4), rel=1e-4)


def test_file_has_selection_and_notes() -> None:
    notes = {
        "selection": "site=A; n = 5",
        "aggregated": "Each point aggregates 2 tests.",
        "left_out": "48 of 60",
    }
    drawn = draw([[mark(1.0)]], **notes)
    for text in notes.values():
        assert text in drawn


@pytest.mark.parametrize("count", [1, 2, 24])
def test_legend_entries_are_complete(count: int) -> None:
    names = [f"{number:02} " + "W" * 57 for number in range(count)]
    drawn = draw([[mark(1.0)]], names)
    assert [name for name in names if f">{name}<" not in drawn] == []


def test_each_panel_column_has_labels() -> None:
    drawn = draw([[mark(1.0)]] * 5)
    assert drawn.count(">only<") == 3
    assert drawn.count(">where<") == 3


def test_labels_lie_under_their_places() -> None:
    """Level labels are centered, slanted ones end at their place."""
    for letters, anchor in (("i", "middle"), ("i" * 40, "end")):
        drawn = draw([[mark(1.0)]], places=[f"{number}{letters}" for number in range(4)])
        assert re.search(rf'text-anchor="{anchor}"[^>]*>2{letters}<', drawn)


def test_heat_map_colors_differences_from_the_median_of_the_row() -> None:
    values = ((1.0, 1.0, 2.0), (10.0, 10.0, 5.0))
    marks = [
        FigureMark(s, x, y, None, None) for s, row in enumerate(values) for x, y in enumerate(row)
    ]
    options: dict[str, Any] = {"kind": Kind.HEAT_MAP, "places": ("a", "b", "c")}
    chart = chart_figure(lay_out([marks], ("first", "second"), better="lower", **options))
    (layer,) = chart["layer"]
    scale = layer["encoding"]["color"]["scale"]
    # More is worse, and equal differences have equal colors in both directions.
    assert scale["range"] == ["#14639b", "#d9dee2", "#b8431a"]
    assert scale["domain"][0] == -scale["domain"][2]
    assert "[1.0, 10.0][datum.s]" in json.dumps(layer["transform"])
    negative = chart_figure(lay_out([[mark(-1.0), mark(1.0)]], **options))
    assert negative["layer"][0]["encoding"]["color"]["field"] == "y"


@pytest.mark.parametrize(
    ("ends", "ticks"),
    [
        ((0.9, 90.0), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0]),
        ((0.002, 30.0), [0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0]),
        ((1.0, 2e7), [10.0**power for power in range(8)]),
    ],
)
def test_logarithmic_axes_have_ticks_at_round_numbers(
    ends: tuple[float, float], ticks: list[float]
) -> None:
    assert log_ticks(*ends)["values"] == ticks


def test_axis_of_counts_has_whole_numbers() -> None:
    drawn = draw([[mark(1.0), mark(2.0)]], whole=True)
    assert ">1<" in drawn
    assert ">1.5<" not in drawn


def test_legend_of_steps_has_lines() -> None:
    chart = chart_histograms({"6.38.00": [0, 3], "6.40.00": [1, 2]})
    assert chart
    assert {series["marker"] for series in chart.specification["usermeta"]["series"]} == {"line"}


#: Metadata of a file, and the width of a single column of a paper.
METADATA = {
    "Title": "Efficiency – Größe",
    "Subject": "/figures/s0?by=site",
    "Creator": "Treehammer 1",
}
COLUMN_MM = PAPER_WIDTHS_MM["single"]


def draw_paper(form: str, *names: Sequence[str], **more: Any) -> bytes:
    layout = lay_out([[mark(1.0)]], *names, **more)
    chart = chart_figure(layout, paper_width=COLUMN_MM * PIXELS_PER_MM)
    return draw_chart(chart, form, width_mm=COLUMN_MM, metadata=METADATA)


def test_labels_in_a_column_lie_inside_and_leave_room_for_cells() -> None:
    svg = draw_paper("svg", ["W" * 60], kind=Kind.HEAT_MAP, places=["W" * 14] * 9).decode()
    (width, height), (_, top), (cells, rows), (_, below) = (
        map(float, re.findall(pattern, svg)[0])
        for pattern in (
            r'viewBox="0 0 (\S+) (\S+)"',
            r"<g [^>]*translate\((\S+),(\S+?)\)",
            r'd="M0,0h(\S+?)v(\S+?)h',
            r"translate\((\S+),(\S+?)\)[^>]*>where<",
        )
    )
    assert cells > 0.4 * width
    assert top + rows + below < height


def test_pdf_has_the_width_of_a_column_and_metadata() -> None:
    pdf = draw_paper("pdf")
    box = re.search(rb"/MediaBox \[0 0 ([\d.]+)", pdf)
    assert box
    assert float(box[1]) == pytest.approx(COLUMN_MM / 25.4 * 72, rel=1e-3)
    for text in METADATA.values():
        assert text.encode("utf-16-be").hex().encode() in pdf
    assert re.search(rb"/CreationDate <feff", pdf)
    # The last table of objects refers to the information that it adds.
    position = int(pdf.split(b"startxref")[-1].split()[0])
    assert pdf[position:].startswith(b"xref\n")
    offset = int(pdf[position:].split(b"\n")[2].split()[0])
    assert re.match(rb"\d+ 0 obj\n<< /Title", pdf[offset:])


def test_png_has_the_width_of_a_column_and_metadata() -> None:
    png = draw_paper("png")
    width = int.from_bytes(png[16:20])
    dots_per_m = int.from_bytes(png.partition(b"pHYs")[2][:4])
    assert 1000 * width / dots_per_m == pytest.approx(COLUMN_MM, rel=0.01)
    for name, text in METADATA.items():
        data = b"iTXt" + name.encode() + b"\0\0\0\0\0" + text.encode()
        assert data + zlib.crc32(data).to_bytes(4) in png
    assert b"iTXtCreationDate" in png


def test_svg_has_the_width_of_a_column_and_metadata() -> None:
    svg = draw_paper("svg").decode()
    assert f'width="{COLUMN_MM:g}mm"' in svg
    for text in METADATA.values():
        assert f">{text}</dc:" in svg
    assert "<title>Efficiency – Größe</title>" in svg


def test_releases_have_the_same_color_in_every_figure() -> None:
    subset = choose_release_colors(["6.40.00", "6.38.00"])
    all_ = choose_release_colors(["6.38.00", "6.40.00", "6.36.02", "6.40.02", "master"])
    assert subset.items() <= all_.items()
    assert len({*all_.values()}) == len(all_)
    by_variant = style_series([("v 6.38", "v", "6.38.00"), ("v 6.40", "v", "6.40.00")])
    assert [series.color for series in by_variant] == [all_["6.38.00"], all_["6.40.00"]]
    assert len({series.marker for series in by_variant}) == 1


#: Largest reach of the axis: a factor of 12 in either direction.
MAX_REACH = 2.5


@pytest.mark.parametrize(
    ("good", "heights"),
    [((10, 0, 5), [1.0, 0.0, 0.5]), ((3,), [1.0]), ((0, 0), [0.0, 0.0]), ((1, 3), [0.33, 1.0])],
)
def test_sparkline_has_a_step_per_day_relative_to_the_best(
    good: tuple[int, ...], heights: list[float]
) -> None:
    path = SparkCell(good).path
    # Downwards from the top of the box; each step is one wide, and the area is closed at the bottom.
    assert re.fullmatch(r"M0 1(V[\d.]+h1)+V1z", path)
    tops = [float(top) for top in re.findall(r"V([\d.]+)h1", path)]
    assert tops == pytest.approx([1 - height for height in heights])


def make_row(effect: float | None, low: float | None, high: float | None) -> VerdictRow:
    return build_verdict("c", effect=effect, low=low, high=high)


@pytest.mark.parametrize(
    ("rows", "reach"),
    [
        ([], 2 * DEFAULT_DELTA),
        ([make_row(None, None, None)], 2 * DEFAULT_DELTA),
        ([make_row(0.001, -0.001, 0.002)], 2 * DEFAULT_DELTA),
        # Without outliers the intervals fit, with a fifth of room.
        ([make_row(0.1, -0.2, 0.3)], 0.36),
        ([make_row(-0.1, -0.3, 0.2)], 0.36),
        # One wide interval of few jobs does not hide the other effects.
        ([make_row(0.1, 0.05, 0.15)] * 4 + [make_row(0.1, -2.0, 2.2)], 0.18),
        ([make_row(2.0, 1.9, 2.1)], MAX_REACH),
    ],
)
def test_axis_of_bars_fits_typical_effects(rows: list[VerdictRow], reach: float) -> None:
    assert find_axis_reach(rows) == pytest.approx(reach)


@pytest.mark.parametrize(
    ("values", "bar"),
    [
        ((0.1, 0.0, 0.2), (50.0, 75.0, 62.5)),
        ((-0.2, -0.4, 0.0), (0.0, 50.0, 25.0)),
        ((0.3, -0.5, 0.5), (0.0, 100.0, 87.5)),
        ((0.5, 0.3, 0.7), (87.5, 100.0, None)),
        ((-0.6, -0.7, -0.5), (0.0, 0.0, None)),
        ((0.1, None, 0.2), None),
        ((None, 0.1, 0.2), None),
    ],
)
def test_bar_is_placed_around_the_middle_and_clipped(
    values: tuple[float | None, ...], bar: tuple[float | None, ...] | None
) -> None:
    effect, low, high = values
    svg = IntervalCell(low, high, effect, 0.4, 0.02).__html__()
    drawn = re.search('class="bar" x1="([^"]*)" x2="([^"]*)"', svg)
    mean = re.search('class="mean" x1="([^"]*)"', svg)
    ends = (*map(float, drawn.groups()), float(mean[1]) if mean else None) if drawn else None
    assert ends == bar


@pytest.mark.parametrize(("delta", "band"), [(0.02, (47.5, 5.0)), (0.8, (0.0, 100.0))])
def test_ignored_effects_are_a_band_around_the_middle(
    delta: float, band: tuple[float, float]
) -> None:
    svg = IntervalCell(None, None, None, 0.4, delta).__html__()
    match = re.search('class="none" x="([^"]*)" y="0" width="([^"]*)"', svg)
    assert match
    assert (float(match[1]), float(match[2])) == band
    assert "bar" not in svg


def test_interval_that_leaves_the_drawing_ends_in_an_arrow() -> None:
    def draw(effect: float, low: float, high: float) -> tuple[bool, bool, bool]:
        svg = IntervalCell(low, high, effect, 0.2, 0.02).__html__()
        bars = svg.partition('class="zero"')[2]
        return "M0 " in bars, "M100 " in bars, 'class="mean"' in bars

    assert draw(0.01, -0.02, 0.03) == (False, False, True)
    assert draw(0.04, -0.457, 0.577) == (True, True, True)
    assert draw(0.5, 0.2, 0.9) == (False, True, False), "nor is its middle in the drawing"
    assert draw(-0.01, -0.3, 0.02) == (True, False, True)


#: Columns of an execution in another order than its phases, with a phase that took no time.
TIMES: dict[str, Any] = {
    "loop_wall_s": 20.0,
    "loop_user_s": 14.0,
    "loop_sys_s": 1.5,
    "loop_cpu_s": 15.5,
    "setup_wall_s": 3.0,
    "setup_cpu_s": 0.75,
    "open_wall_s": 0.5,
    "open_user_s": 0.25,
    "close_wall_s": 0.0,
}


def make_chart(**titles: dict[str, float]) -> PhaseChart:
    unknown = dict.fromkeys(METRICS_BY_NAME)
    chart = chart_phases({title: {**unknown, **times} for title, times in titles.items()})
    assert chart
    return chart


def list_segments(specification: dict[str, Any]) -> dict[str, list[tuple[str, float, float]]]:
    """Phase, start and end of the segments of each bar, in the order in which they are drawn."""
    names = [line["name"] for line in specification["usermeta"]["series"]]
    bars = defaultdict(list)
    for mark in list_marks(specification):
        bars[mark["bar"]].append((names[mark["s"]], mark["from"], mark["to"]))
    return dict(bars)


def test_segments_follow_each_other_in_the_order_of_phases() -> None:
    assert list_segments(make_chart(**{"": TIMES}).specification) == {
        "wall time": [("set-up", 0.0, 3.0), ("open", 3.0, 3.5), ("event loop", 3.5, 23.5)],
        "CPU time": [("set-up", 0.0, 0.75), ("open", 0.75, 1.0), ("event loop", 1.0, 16.5)],
    }


def test_phase_has_the_same_color_in_every_chart() -> None:
    colors = {line.name: line.color for line in make_chart(a=TIMES).series}
    all_phases = {name: 1.0 for name in METRICS_BY_NAME if name.endswith("_wall_s")}
    series = make_chart(a=all_phases).series
    assert len({line.color for line in series}) == len(series) == 10
    assert colors.items() <= {line.name: line.color for line in series}.items()


def test_labels_that_would_touch_are_left_out() -> None:
    picture = draw_chart(make_chart(a={"loop_wall_s": 2.5e6}).specification, "svg").decode()
    assert re.findall(r'opacity="1">([\d,]+)<', picture)[:3] == ["0", "400,000", "800,000"]


def test_drawing_names_bars_phases_and_unit() -> None:
    chart = make_chart(**{"A, ROOT 6.38.00": TIMES, "B, ROOT 6.40.00": {"loop_wall_s": 1.0}})
    drawn = draw_chart(chart.specification, "svg").decode()
    # Times of a kind lie beside each other.
    texts = [f">{text}<" for text in ("wall time, A, ROOT 6.38.00", "wall time, B, ROOT 6.40.00")]
    texts += [f">{text}<" for text in ("CPU time, A, ROOT 6.38.00", "CPU time, B, ROOT 6.40.00")]
    positions = [drawn.find(text) for text in texts[:3]]
    assert -1 not in positions
    assert positions == sorted(positions)
    # No bar without a recorded time.
    assert texts[3] not in drawn
    assert ">time, s<" in drawn
    assert ">event loop<" in drawn
    assert ">close<" not in drawn
    tooltip = "CPU time, A, ROOT 6.38.00, open: 250 ms"
    assert tooltip in [mark["text"] for mark in list_marks(chart.specification)]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServiceThread, list[str]]]:
    """A service with two measurements, of which only the first has phases."""
    folder = tmp_path_factory.mktemp("phases")
    rows = [
        make_measurement(
            "job", 1, 1, root_version="6.40.00", read_latency_hist=[0, 0, 5, 7], **TIMES
        ),
        make_measurement("job", 1, 2),
    ]
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        store.add(rows)
    with run_service(folder, reading_open=True) as service:
        yield service, [str(row.values["measurement_id"]) for row in rows]


def test_page_draws_phases_and_latencies(measured: tuple[ServiceThread, list[str]]) -> None:
    service, (first, _) = measured
    phases, latencies = load_charts(service.load_page(f"/measurements/{first}"))
    assert list_segments(phases)["wall time"][-1] == ("event loop", 3.5, 23.5)
    # The empty bins beside the filled ones end the steps.
    assert [mark["y"] for mark in list_marks(latencies)] == [0, 5, 7, 0]


def test_page_has_only_charts_of_recorded_values(measured: tuple[ServiceThread, list[str]]) -> None:
    service, (first, second) = measured
    assert load_charts(service.load_page(f"/measurements/{second}")) == []
    phases, _ = load_charts(service.load_page(f"/measurements/{second}?with={first}"))
    assert {*list_segments(phases)} == {"wall time, B, ROOT 6.40.00", "CPU time, B, ROOT 6.40.00"}
