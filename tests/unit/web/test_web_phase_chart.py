"""Bars of the phases of an execution."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from measurement_factory import make_measurement
from page_charts import list_marks, load_charts
from service_thread import ServiceThread, run_service

from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.sql.write.store import Store
from treehammer.web.figures.drawing import draw_chart
from treehammer.web.pages.measurement_page import PhaseChart, chart_phases

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


def test_no_chart_without_phases() -> None:
    assert chart_phases({"": dict.fromkeys(METRICS_BY_NAME)}) is None


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
