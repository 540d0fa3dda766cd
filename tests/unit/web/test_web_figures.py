"""Tests of charts, labels, units and tables."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from measurement_factory import build_verdict, make_campaign_row, make_job_row, make_measurement
from page_contents import list_marks, load_charts
from service_thread import ServiceThread, run_service

from treehammer.analysis.statistics.verdict import DEFAULT_DELTA
from treehammer.analysis.status.rule_judgements import DayOutcomes
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.errors import ConfigError
from treehammer.hctests.definition.model import Scalar
from treehammer.sql.core.rows import VerdictRow
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, LazyRows, TableColumn
from treehammer.text_formatting import format_significant
from treehammer.web.arranged_table import TableArrangement
from treehammer.web.display_formats import aligned_format, fit_unit, format_per_cent, format_seconds
from treehammer.web.figures.drawing import draw_chart
from treehammer.web.figures.explore_query import METRICS
from treehammer.web.figures.figure_chart import chart_figure
from treehammer.web.figures.figure_layout import (
    POINTS,
    FigureLayout,
    FigureMark,
    FigurePanel,
    FigureSeries,
    choose_release_colors,
    style_series,
)
from treehammer.web.figures.line_chart import ChartDot, ChartLine, LineChart, NumberAxis
from treehammer.web.labels import head_axis, head_column, label_variants
from treehammer.web.pages.effect_tables import (
    EffectBar,
    find_axis_reach,
    place_effect_bar,
    render_effect,
)
from treehammer.web.pages.measurement_page import PhaseChart, chart_phases
from treehammer.web.pages.overview_tiles import DayCell, SiteRow

BLUE = "#0072b2"


def draw(marks: Sequence[Sequence[FigureMark]], names: Sequence[str] = ("n",), **more: Any) -> str:
    """A figure as SVG, with one panel per list of marks."""
    values: dict[str, Any] = {
        "kind": POINTS,
        "title": "<b>",
        "x_title": "where",
        "y_title": "what",
        "groups": ("", "place", "series"),
        "counted": "executions",
        "dates": False,
        "scale": "linear",
        "places": ("only",),
        "series": tuple(FigureSeries(name, BLUE, "circle") for name in names),
        "panels": tuple(
            FigurePanel(f"p{number}" if len(marks) > 1 else "", tuple(some))
            for number, some in enumerate(marks)
        ),
        **dict.fromkeys(("bars", "shared", "caption", "aggregated"), ""),
        "selection": "all days",
    }
    chart = chart_figure(FigureLayout(**{**values, **more}))
    return draw_chart(json.loads(json.dumps(chart)), "svg").decode()


def mark(y: float, low: float | None = None, high: float | None = None) -> FigureMark:
    return FigureMark(0, 0, y, low, high)


def test_points_of_line_charts_are_opaque() -> None:
    """Translucent blue has too little contrast on the dark theme's background."""
    line = ChartLine("SITE_A", "own", (ChartDot(0.0, 1.0), ChartDot(1.0, 2.0)))
    chart = LineChart("speed", [line], NumberAxis((0.0, 1.0)))
    drawn = draw_chart(json.loads(json.dumps(chart.draw_still({}))), "svg").decode()
    assert set(re.findall(r'opacity="([\d.]+)"', drawn)) <= {"1"}


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


def test_releases_have_the_same_color_in_every_figure() -> None:
    some = choose_release_colors(["6.40.00", "6.38.00"])
    all_ = choose_release_colors(["6.38.00", "6.40.00", "6.36.02", "6.40.02", "master"])
    assert some.items() <= all_.items()
    assert len({*all_.values()}) == len(all_)
    by_variant = style_series([("v 6.38", "v", "6.38.00"), ("v 6.40", "v", "6.40.00")])
    assert [one.color for one in by_variant] == [all_["6.38.00"], all_["6.40.00"]]
    assert len({one.marker for one in by_variant}) == 1


#: Largest reach of the axis: a factor of 12 in either direction.
MAX_REACH = 2.5


def draw_sparkline(*good: int) -> str:
    cells = [DayCell(date(2026, 3, 1), DayOutcomes(count, 5, 0)) for count in good]
    return SiteRow("SITE_A", tuple(cells)).sparkline


@pytest.mark.parametrize(
    ("good", "heights"),
    [
        ((10, 0, 5), [1.0, 0.0, 0.5]),
        ((3,), [1.0]),
        ((0, 0), [0.0, 0.0]),
        ((1, 3), [0.33, 1.0]),
    ],
)
def test_sparkline_has_a_step_per_day_relative_to_the_best(
    good: tuple[int, ...], heights: list[float]
) -> None:
    path = draw_sparkline(*good)
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
        ((0.1, 0.0, 0.2), EffectBar(50.0, 75.0, 62.5, False, False)),
        ((-0.2, -0.4, 0.0), EffectBar(0.0, 50.0, 25.0, False, False)),
        ((0.3, -0.5, 0.5), EffectBar(0.0, 100.0, 87.5, True, True)),
        ((0.5, 0.3, 0.7), EffectBar(87.5, 100.0, None, False, True)),
        ((-0.6, -0.7, -0.5), EffectBar(0.0, 0.0, None, True, False)),
        ((0.1, None, 0.2), None),
        ((None, 0.1, 0.2), None),
    ],
)
def test_bar_is_placed_around_the_middle_and_clipped(
    values: tuple[float | None, ...], bar: EffectBar | None
) -> None:
    row = dict(zip(("effect", "low", "high"), values, strict=True))
    assert place_effect_bar(row, 0.4) == bar


@pytest.mark.parametrize(("delta", "band"), [(0.02, (47.5, 5.0)), (0.8, (0.0, 100.0))])
def test_ignored_effects_are_a_band_around_the_middle(
    delta: float, band: tuple[float, float]
) -> None:
    svg = render_effect({"effect": None, "low": None, "high": None}, 0.4, delta)
    found = re.search('class="none" x="([^"]*)" y="0" width="([^"]*)"', svg)
    assert found
    assert (float(found[1]), float(found[2])) == band
    assert "bar" not in svg


def test_interval_that_leaves_the_drawing_ends_in_an_arrow() -> None:
    def draw(effect: float, low: float, high: float) -> tuple[bool, bool, bool]:
        svg = render_effect({"effect": effect, "low": low, "high": high}, 0.2, 0.02)
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
    names = [one["name"] for one in specification["usermeta"]["series"]]
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
    colors = {one.name: one.color for one in make_chart(a=TIMES).series}
    all_phases = {name: 1.0 for name in METRICS_BY_NAME if name.endswith("_wall_s")}
    series = make_chart(a=all_phases).series
    assert len({one.color for one in series}) == len(series) == 10
    assert colors.items() <= {one.name: one.color for one in series}.items()


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


def test_axis_of_short_phases_is_in_a_readable_unit() -> None:
    chart = make_chart(**{"": {"open_wall_s": 0.0004, "loop_wall_s": 0.0001}})
    assert ">time, µs<" in draw_chart(chart.specification, "svg").decode()
    segments = list_segments(chart.specification)["wall time"]
    assert [(phase, round(end)) for phase, _, end in segments] == [
        ("open", 400),
        ("event loop", 500),
    ]


@pytest.fixture(scope="module")
def measured(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[ServiceThread, list[str]]]:
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


def test_page_has_only_charts_of_recorded_values(
    measured: tuple[ServiceThread, list[str]],
) -> None:
    service, (first, second) = measured
    assert load_charts(service.load_page(f"/measurements/{second}")) == []
    phases, _ = load_charts(service.load_page(f"/measurements/{second}?with={first}"))
    assert {*list_segments(phases)} == {"wall time, B, ROOT 6.40.00", "CPU time, B, ROOT 6.40.00"}


@pytest.mark.parametrize(
    "unit, values, name, first",
    [
        ("s", [3.1e-5, 6.4e-5], "µs", "31.00"),
        ("s", [0.5, 2.0], "s", "0.500"),
        ("B", [7_600_000, 4_100_000], "MB", "7.600"),
        ("1", [0.183, 0.0471], "", "0.1830"),
        ("1", [438.0, 12_000.0], "", "438"),
        ("1", [3e12], "", "3e+12"),
        ("s", [0.0], "s", "0"),
        ("MB", [30.0], "MB", "30.00"),
    ],
)
def test_unit_fits_largest_value(unit: str, values: list[float], name: str, first: str) -> None:
    found = fit_unit(unit, values)
    assert found.name == name
    assert aligned_format(values, found)(values[0]) == first


def test_decimals_are_aligned() -> None:
    values = [0.183, 0.0471, 0.00002, None, math.inf]
    write = aligned_format(values, fit_unit("1", values))
    assert [write(one) for one in values] == ["0.1830", "0.0471", "0.000020", "–", "inf"]
    values = [10.2, 0.02, 0.021]
    write = aligned_format(values, fit_unit("1", values))
    assert [write(one) for one in values] == ["10.20", "0.020", "0.021"]


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.0, "0 µs"),
        (32e-6, "32 µs"),
        (0.0009996, "1 ms"),
        (0.9996, "1 s"),
        (0.9994, "999 ms"),
        (999.6, "1000 s"),
        (3350.0, "3350 s"),
    ],
)
def test_seconds_never_have_exponents(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_small_losses_are_not_minus_zero() -> None:
    texts = [format_per_cent(share) for share in (-0.0004, 0.0004, -0.0006, 0.05)]
    assert texts == ["+0.0 %", "+0.0 %", "−0.1 %", "+5.0 %"]


@pytest.mark.parametrize(
    "value, digits, text",
    [
        (1455.3, 3, "1455"),
        (33_500.0, 4, "33500"),
        (999.6, 3, "1000"),
        (0.032, 3, "0.032"),
        (3.1e-5, 2, "0.000031"),
        (0.0, 3, "0"),
        (math.inf, 3, "inf"),
    ],
)
def test_numbers_have_no_powers_of_ten(value: float, digits: int, text: str) -> None:
    assert format_significant(value, digits) == text


@pytest.mark.parametrize(
    "name, title",
    [
        ("cpu_per_event_s", "CPU time per event"),
        ("wall_per_event_s", "Wall time per event"),
        ("axis_root", "ROOT release"),
        ("eff_job", "CPU efficiency"),
        ("pass_loop_user_s", "Pass loop user CPU time"),
        ("read_latency_p95_s", "Read latency, 95 % quantile"),
        ("bytes_read", "Bytes read"),
        ("mem_total_bytes", "Memory total"),
        ("extra_queue_depth", "Queue depth"),
        ("extra_per_event", "Per event"),
        ("p5", "P5"),
    ],
)
def test_columns_have_titles_for_people(name: str, title: str) -> None:
    assert head_column(name) == title


def test_titles_of_metrics_are_distinct() -> None:
    titles = [head_column(metric.name) for metric in METRICS]
    assert len({*titles}) == len(titles)
    assert head_axis("root") == "ROOT release"
    assert head_axis("site") == "Site"


def variant(**axes: Scalar) -> str:
    return json.dumps(axes, sort_keys=True, separators=(",", ":"))


def test_common_axes_are_left_out() -> None:
    variants = [
        variant(root=root, cache="warm", branches=share, cache_mb=mb)
        for root in ("6.40.00", "6.38.00")
        for share in (1.0, 0.02)
        for mb in (0, 30)
    ]
    labels = label_variants(variants, hide_release=True)
    assert labels.shared_text == "cache=warm"
    assert labels.axes == ("branches", "cache_mb")
    assert labels.names[variants[0]] == "branches=100% cache_mb=0"
    assert labels.values["branches=100% cache_mb=0"] == "100% · 0"
    assert list(dict.fromkeys(labels.names.values())) == [
        "branches=2% cache_mb=0",
        "branches=2% cache_mb=30",
        "branches=100% cache_mb=0",
        "branches=100% cache_mb=30",
    ]


def test_releases_of_a_variant_are_adjacent() -> None:
    variants = [variant(root=root, size=n) for root in ("6.38.00", "6.40.00") for n in (1, 2)]
    assert [*label_variants(variants).names] == [variants[place] for place in (0, 2, 1, 3)]


def test_invalid_variants_are_shown_unchanged() -> None:
    texts = ["<script>", variant(a=1, b=2), "[1]", "{}", '{"a":[1]}', '{"a":' + "9" * 400 + "}"]
    labels = label_variants(texts)
    assert (labels.axes, labels.shared_text) == ((), "")
    expected = dict(zip(texts, texts, strict=True)) | {texts[1]: "a=1 b=2"}
    assert labels.names == expected
    assert labels.label("another") == "another"
    assert labels.label(None) == "–"


def test_single_variant_has_all_axes() -> None:
    one, other = (variant(root=root, only=1) for root in ("6.38.00", "6.40.00"))
    labels = label_variants([one])
    assert (labels.names, labels.shared_text, labels.axes) == ({one: "only=1 root=6.38.00"}, "", ())
    labels = label_variants([one, other], hide_release=True)
    assert {*labels.names.values()} == {"only=1"}


@pytest.mark.parametrize(
    "values",
    [
        (1, 1.0, True),
        ("1", 1),
        (0.02, 0.0200000001),
        (0.12345678, 0.12345679),
        (0.5, "50%"),
        (1, "1 b=2"),
    ],
)
def test_different_variants_have_different_labels(values: tuple[Scalar, ...]) -> None:
    variants = [variant(branches=value) for value in values] + [variant(branches=1, b=2)]
    assert len({*label_variants(variants).names.values()}) == len({*variants})
    alone = label_variants(variants[:-1])
    short = {*alone.values.values()}
    assert len(short) == len(alone.values) == (len(values) if alone.axes else 0)


def test_label_is_independent_of_spelling() -> None:
    labels = label_variants(['{"a":1,"b":2}', '{"b": 2, "a": 1}', '{"a":2,"b":2}'])
    assert [*labels.names.values()] == ["a=1", "a=1", "a=2"]


def test_labels_are_in_the_order_of_their_values() -> None:
    """Numbers count as numbers, and text such as versions by its parts."""
    values = ["0.2", "0.04", "1.5", "0.4", "1.25", '"5.10"', '"5.9"']
    names = label_variants(f'{{"x":{value}}}' for value in values).names
    assert [*names.values()] == ["x=0.04", "x=0.2", "x=0.4", "x=1.25", "x=1.5", "x=5.9", "x=5.10"]


def test_pages_list_variants_in_the_order_of_their_values(tmp_path: Path) -> None:
    """Pages whose tables come from the database sort them as those that sort them themselves."""
    shares = (0.2, 10.5, 0.04, 2.5)
    labels = [f"share={share:g}" for share in shares]
    url = f"sqlite:///{tmp_path / 'results.db'}"
    with Store.open(url) as store:
        jobs = [make_job_row(f"j{place}", label=label) for place, label in enumerate(labels)]
        store.add_campaign(make_campaign_row(), jobs)
        for place, share in enumerate(shares):
            for root in ("6.38.00", "6.40.00"):
                values: dict[str, Any] = dict.fromkeys(
                    ("cpu_per_event_s", "wall_per_event_s", "loop_cpu_s"), 1e-3
                )
                values |= {"variant": f'{{"root":"{root}","share":{share}}}', "axis_root": root}
                position = 1 + (root == "6.40.00")
                store.add([make_measurement(f"j{place}", 1, position, site="A", **values)])
    with run_service(tmp_path, reading_open=True) as service:
        day = make_measurement("x").values["day"]
        tables = (
            service.load_tables("/compare?a=6.38.00&b=6.40.00")["by_site"],
            service.load_tables("/campaigns/campaign")["jobs"],
            service.load_tables(f"/days/{day}?site=A")["measured"],
            service.load_tables("/sites/A")["work"],
            service.load_tables("/explore?metric=cpu_per_event_s&by=variant")["figure"],
        )
    for rows in tables:
        names = [row["label"] if "label" in row else row["variant"] for row in rows]
        found = [float(re.findall(r"share\W+([\d.]+)", name)[0]) for name in names]
        assert list(dict.fromkeys(found)) == sorted(shares)


_ROWS: list[dict[str, Any]] = [
    {"release": "6.38.00", "jobs": 2, "change": "+1.0 %", "effect": 0.01},
    {"release": "6.9.00", "jobs": None, "change": "−3.0 %", "effect": -0.03},
    {"release": "6.40.00", "jobs": 0, "change": "", "effect": None},
]


def _table(**changes: Any) -> DataTable:
    columns = (
        TableColumn("release", "ROOT release"),
        TableColumn("jobs", "jobs", is_number=True),
        TableColumn("change", "change", is_number=True, sort_key="effect"),
        TableColumn("effect", hidden=True),
    )
    return DataTable("work", "Work", columns, _ROWS, **changes)


def _releases(**parameters: str) -> list[str]:
    given = {name.replace("_", "-"): value for name, value in parameters.items()}
    return [row["release"] for row in TableArrangement.parse(given, "work").apply(_table()).rows]


@pytest.mark.parametrize(
    "order, expected",
    [
        ("release", ["6.9.00", "6.38.00", "6.40.00"]),
        ("-release", ["6.40.00", "6.38.00", "6.9.00"]),
        ("jobs", ["6.40.00", "6.38.00", "6.9.00"]),
        ("-jobs", ["6.38.00", "6.40.00", "6.9.00"]),
        ("change", ["6.9.00", "6.38.00", "6.40.00"]),
        ("-change", ["6.38.00", "6.9.00", "6.40.00"]),
    ],
)
def test_sort_orders_numbers_text_and_empty_cells(order: str, expected: list[str]) -> None:
    assert _releases(sort_work=order) == expected


def test_filter_needs_all_words_in_any_column() -> None:
    assert _releases(find_work="6. 3") == ["6.38.00", "6.9.00"]
    assert _releases(find_work="−3.0 6.9") == ["6.9.00"]
    assert _releases(find_work="absent") == []
    assert _releases(find_other="absent") == [row["release"] for row in _ROWS]


def test_unknown_column_and_long_filter_are_refused() -> None:
    # Hidden columns are exported, but readers can't see their order.
    for key in ("absent", "effect"):
        with pytest.raises(ConfigError, match="sort-work must be one of release, jobs, change"):
            _releases(sort_work=key)
    with pytest.raises(ConfigError, match="at most 200 characters"):
        _releases(find_work="x" * 201)


def test_headings_cycle_through_both_orders_and_the_tables_own() -> None:
    release, jobs = _table().columns[:2]

    def next_order(order: str, column: TableColumn) -> str | None:
        return TableArrangement.parse({"sort-work": order}, "work").next_order(column)

    assert [next_order(order, release) for order in ("", "release", "-release")] == [
        "release",
        "-release",
        None,
    ]
    assert [next_order(order, jobs) for order in ("", "-jobs", "jobs")] == ["-jobs", "jobs", None]


def test_limit_applies_after_sorting() -> None:
    table = _table(max_rows=1, newest=True)
    assert [row["release"] for row in table.shown_rows] == ["6.40.00"]
    assert table.shown_note == "Last 1 of 3 rows; CSV and JSON hold all."
    arranged = TableArrangement.parse({"sort-work": "release"}, "work").apply(table)
    assert [row["release"] for row in arranged.shown_rows] == ["6.9.00"]
    assert arranged.shown_note == "First 1 of 3 rows; CSV and JSON hold all."


def test_pages_of_longer_lists_keep_their_order() -> None:
    table = _table(is_arrangeable=False)
    assert TableArrangement.parse({"sort-work": "release"}, "work").apply(table) is table


def test_lazy_rows_build_only_what_is_read() -> None:
    built: list[int] = []

    def build(item: int) -> dict[str, int]:
        built.append(item)
        return {"item": item}

    rows = LazyRows(range(100), build)
    assert (len(rows), rows[3], [row["item"] for row in rows[:2]]) == (100, {"item": 3}, [0, 1])
    assert built == [3, 0, 1]
