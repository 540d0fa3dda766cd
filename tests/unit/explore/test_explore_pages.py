"""Explore: tables, CSV and files agree with the database."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from statistics import fmean
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import anyio
import numpy as np
import pytest
from measurement_factory import make_campaign_row, make_measurement
from page_contents import list_marks, list_names, load_charts
from page_database import HOSTILE_TEXTS
from polling import wait_until
from service_thread import BROWSER, ServiceThread

from treehammer.explore import explore_result, figure_points
from treehammer.explore.explore_figure import name_outliers
from treehammer.explore.explore_query import FORMER_VIEWS, METRICS
from treehammer.explore.pages import explore_page
from treehammer.sql.read.query_model import Selection
from treehammer.web import page_service
from treehammer.web.display_formats import day_from_number
from treehammer.web.figures.drawing import FIGURE_FORMATS, draw_chart
from treehammer.web.figures.figure_chart import chart_figure
from treehammer.web.figures.figure_layout import (
    FigureLayout,
    FigureMark,
    FigurePanel,
    Kind,
    Scale,
    style_series,
)
from treehammer.web.labels import head_column

ALL = "from=&to="


def rows_of(service: ServiceThread, query: str, path: str = "/explore") -> list[dict[str, str]]:
    answer = service.client.get(f"{path}?{query}&format=csv")
    assert answer.status_code == 200, answer.text
    return [*csv.DictReader(io.StringIO(answer.text))]


def stored(service: ServiceThread) -> list[dict[str, Any]]:
    return [dict(row) for row in service.store.measurements(Selection())]


def good(row: dict[str, Any], metric: str) -> bool:
    return row["failure_class"] is None and row["plausible"] and row[metric] is not None


@pytest.mark.usefixtures("draw_in_process")
def test_campaigns_are_labeled_by_name(pages: ServiceThread) -> None:
    ids = {
        "0aaaaaaaaaaaaaaa": "weekly",
        "1bbbbbbbbbbbbbbb": "nightly",
        "2ccccccccccccccc": "nightly",
    }
    for id_, name in ids.items():
        pages.store.add_campaign(make_campaign_row(id_, name=name), [])
    good: dict[str, Any] = {"plausible": True, "eff_job": 0.5}
    pages.store.add(make_measurement(id_, campaign_id=id_, **good) for id_ in (*ids, "unknown"))
    query = f"by=site&color=campaign_id&{ALL}"
    page = pages.load_page(f"/explore?{query}")
    rows = rows_of(pages, query)
    svg = pages.client.get(f"/explore/figure.svg?{query}").text
    (chart,) = load_charts(page)
    names = ["nightly (1bbbbbbb)", "nightly (2ccccccc)", "weekly", "unknown"]
    assert list_names(chart, "series") == names
    assert {mark["s"] for mark in list_marks(chart)} == {0, 1, 2, 3}
    assert {row["campaign_id"] for row in rows} == {*ids, "unknown"}
    assert "weekly" in svg
    assert "0aaaaaaaaaaaaaaa" not in svg


@pytest.mark.parametrize(
    "metric, by",
    [
        ("eff_job", ("site", "axis_root")),
        ("cpu_per_event_s", ("day", "site")),
        ("eff_job", ("host", "axis_root")),
    ],
)
def test_csv_agrees_with_database(
    filled_service: ServiceThread, metric: str, by: tuple[str, str]
) -> None:
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in stored(filled_service):
        groups[tuple(str(row[name]) for name in by)].append(row)
    query = f"metric={metric}&by={by[0]}&color={by[1]}&{ALL}"
    rows_by_group = {tuple(row[name] for name in by): row for row in rows_of(filled_service, query)}
    assert rows_by_group.keys() == groups.keys()
    for key, rows in groups.items():
        values = [row[metric] for row in rows if good(row, metric)]
        line = rows_by_group[key]
        assert int(line["number"]) == len(values)
        assert int(line["failed"]) == sum(row["failure_class"] is not None for row in rows)
        if values:
            assert float(line["mean"]) == pytest.approx(fmean(values), rel=1e-12)
            spread = pytest.approx(np.std(values), rel=1e-6, abs=1e-7 * fmean(values))
            assert float(line["rms"] or 0) == spread
        else:
            assert line["mean"] == line["rms"] == ""


def test_url_parameters_filter(filled_service: ServiceThread) -> None:
    site = HOSTILE_TEXTS[0]
    answer = filled_service.client.get(
        "/explore", params={"site": [site, "SITE_A"], "format": "csv"}
    )
    assert {row["site"] for row in csv.DictReader(io.StringIO(answer.text))} == {site, "SITE_A"}
    of_campaign = rows_of(filled_service, "campaign=nightly")
    assert sum(int(row["good"]) for row in of_campaign) == sum(
        row["campaign_id"] == "over" and row["failure_class"] is None and row["plausible"]
        for row in stored(filled_service)
    )


def linked_counts(service: ServiceThread, address: str) -> list[tuple[int, int]]:
    """For each row linked to its jobs: shown and actual number of executions."""
    page = service.read(f"{address}&{ALL}")
    rows = [row for table in page.tables.values() for row in table.cells]
    queries = [
        (urlsplit(cell.link).query, int(cell.text))
        for row in rows
        for cell in row.values()
        if cell.link.startswith("/explore?") and cell.text.isdigit()
    ]
    return [(n, sum(int(row["number"]) for row in rows_of(service, query))) for query, n in queries]


@pytest.mark.parametrize(
    "address, rows",
    [
        ("/explore?by=axis_root&color=site&site=SITE_A&site=SITE_B", 4),
        ("/explore?by=site&color=&where=site%3DSITE_A&site=SITE_B&where=site!%3DX", 2),
        ("/explore?by=week&color=&site=SITE_A", None),
        ("/explore?by=kind&color=site&site=SITE_A&site=SITE_B&where=kind%3Dtimed", 2),
        ("/explore?by=failure_class&color=plausible&site=SITE_A", None),
        ("/explore?by=host&site=SITE_C", None),
        ("/explore?by=campaign_id&color=&campaign=over&campaign=running", 2),
        (f"/figures/s0?site=SITE_A&site={quote(HOSTILE_TEXTS[0])}", 8),
    ],
)
def test_counts_link_to_exactly_these_executions(
    filled_service: ServiceThread, address: str, rows: int | None
) -> None:
    counts = linked_counts(filled_service, address)
    assert counts
    assert rows in (None, len(counts))
    assert [n for n, _ in counts] == [linked for _, linked in counts]


def test_groups_of_floats_have_no_links(filled_service: ServiceThread) -> None:
    """A float such as 0.3 may not equal its decimal representation."""
    assert rows_of(filled_service, f"by=cpu_per_event_s&color=site&{ALL}")
    assert not linked_counts(filled_service, "/explore?by=cpu_per_event_s&color=site")


def test_permanent_link_has_all_parameters(filled_service: ServiceThread) -> None:
    page = filled_service.read("/figures/s0")
    (link,) = (
        element.attributes["href"]
        for element in page.elements
        if (element.tag, element.text) == ("a", "Permanent link")
    )
    asked = parse_qs(urlsplit(link).query, keep_blank_values=True)
    assert asked["metric"] == ["eff_job"]
    assert asked["by"] == ["site"]
    rows = filled_service.store.measurements(Selection(), ("day",))
    last = day_from_number(max(int(str(row["day"])) for row in rows))
    assert asked["to"] == [last.isoformat()]
    query = urlsplit(link).query
    assert rows_of(filled_service, query, "/figures/s0") == rows_of(
        filled_service, "", "/figures/s0"
    )


def test_files_of_figures(filled_service: ServiceThread, request: pytest.FixtureRequest) -> None:
    query = f"metric=eff_job&by=site&color=axis_root&{ALL}"
    starts = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<svg"}
    for form, start in starts.items():
        if form != "png":  # Another process draws them in the same way.
            request.getfixturevalue("draw_in_process")
        answer = filled_service.client.get(f"/explore/figure.{form}?{query}")
        assert answer.status_code == 200, answer.text
        assert answer.content.startswith(start)
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        if form == "svg":
            assert "<script" not in answer.text
            assert "error bars: RMS" in answer.text


@pytest.mark.parametrize(
    "query, expected",
    [
        ("metric=site", "site is not a number"),
        ("from=2026-02-01&to=2026-01-01", "later than"),
        ("sitte=A", "Did you mean 'site'"),
    ],
)
def test_invalid_parameters_are_refused(
    filled_service: ServiceThread, query: str, expected: str
) -> None:
    answer = filled_service.client.get(f"/explore?{query}")
    assert answer.status_code == 400
    assert expected in answer.json()["error"]


@pytest.mark.parametrize("view", FORMER_VIEWS)
def test_former_views_lead_to_the_figure_of_today(filled_service: ServiceThread, view: str) -> None:
    answer = filled_service.client.get(f"/explore?by=site&view={view}", headers=BROWSER)
    address = urlsplit(answer.headers["Location"])
    assert "by=site" in address.query
    assert filled_service.client.get(f"{address.path}?{address.query}").status_code == 200


def test_explore_opens_with_the_same_work_and_s0_with_means(filled_service: ServiceThread) -> None:
    def view(path: str) -> list[str]:
        return filled_service.read(path).fields["view"]

    assert view("/explore") == ["relative"]
    assert view("/explore?site=SITE_A") == ["relative"]
    assert view("/explore?metric=eff_job") == ["means"]
    assert view("/figures/s0?site=SITE_A") == ["means"]


def test_too_many_measurements_are_refused(
    filled_service: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure_points, "MAX_READ", 10)
    refused = filled_service.read("/explore?by=host", 400)
    assert "the limit is 10" in refused.text
    assert refused.fields["by"] == ["host"]
    assert filled_service.client.get("/explore?by=site").status_code == 200


def test_unknown_file_format_or_empty_figure_is_404(filled_service: ServiceThread) -> None:
    assert filled_service.client.get("/explore/figure.exe").status_code == 404
    assert filled_service.client.get("/explore/figure.png?site=NOWHERE").status_code == 404


def test_pages_respond_while_figures_are_drawn(
    filled_service: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = threading.Event()

    def slowly(form: str, text: bytes) -> bytes:
        assert drawn.wait(60)
        return f"{form} of {len(text)} bytes".encode()

    def noted(room: anyio.CapacityLimiter) -> AbstractAsyncContextManager[None]:
        rooms.append(room)
        return turn(room)

    def arrived() -> int:
        statistics = [room.statistics() for room in rooms[:1]]
        return sum(item.borrowed_tokens + item.tasks_waiting for item in statistics)

    rooms: list[anyio.CapacityLimiter] = []
    turn = page_service._acquire_slot
    monkeypatch.setattr(page_service, "_acquire_slot", noted)
    monkeypatch.setattr(page_service, "_run_drawing", slowly)
    paths = [
        f"{path}/figure.{form}?size={size}"
        for path in ("/explore", "/figures/s0")
        for form in FIGURE_FORMATS
        for size in ("", "double")
    ]
    with ThreadPoolExecutor(len(paths)) as clients:
        asked = [clients.submit(filled_service.client.get, path) for path in paths]
        try:
            assert len(paths) > page_service.MAX_CONCURRENT_QUERIES
            wait_until(lambda: arrived() == len(paths), "not all have arrived")
            for page in ("/", "/explore", "/sites"):
                assert filled_service.client.get(page, timeout=60).status_code == 200
            monkeypatch.setattr(page_service, "QUEUE_TIMEOUT_S", 0.1)
            late = filled_service.client.get("/explore/figure.png?by=axis_root")
            assert late.status_code == 503
            assert int(late.headers["Retry-After"]) > 0
            assert not any(request.done() for request in asked)
        finally:
            drawn.set()
        assert [request.result().status_code for request in asked] == [200] * len(paths)


def test_form_keeps_the_columns_and_filters_of_the_address(filled_service: ServiceThread) -> None:
    query = "by=host&color=&panels=site&campaign=over&campaign=running&site=SITE_A&where=host~*"
    page = filled_service.read(f"/explore?{query}&bars=interval&{ALL}")
    expected = {"by": ["host"], "color": [""], "panels": ["site"], "metric": ["eff_job"]}
    expected |= {"where": ["host~*", "site=SITE_A", ""], "campaign": ["over", "running"]}
    assert {name: page.fields[name] for name in expected} == expected
    assert "nightly and" in page.text or "and nightly." in page.text


def test_marks_link_to_their_executions(filled_service: ServiceThread) -> None:
    query = f"by=site&color=axis_root&site=SITE_A&site=SITE_B&where=site!%3DX&{ALL}"
    (chart,) = load_charts(filled_service.load_page(f"/explore?{query}"))
    links = chart["usermeta"]["links"]
    assert len(list_marks(chart)) == 4
    for mark in list_marks(chart):
        parts = [links["panels"][mark["p"]], links["places"][mark["x"]], links["series"][mark["s"]]]
        address = "&".join(filter(None, [links["base"], *parts]))
        rows = rows_of(filled_service, urlsplit(address).query)
        assert sum(int(row["number"]) for row in rows) == mark["n"]


def test_s0_of_many_sites_or_series_is_a_heat_map(
    filled_service: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kinds(query: str) -> set[str]:
        (chart,) = load_charts(filled_service.load_page(f"/figures/s0?{ALL}{query}"))
        return {layer["mark"]["type"] for layer in chart["layer"]}

    few = "&site=SITE_A&site=SITE_B"
    assert kinds(few) == {"rule", "point"}
    assert kinds("&view=means") == {"rule", "point"}
    assert kinds("") == {"rect"}
    monkeypatch.setattr(explore_result, "MAX_POINT_SITES", 1)
    assert kinds(few) == {"rect"}


def test_crawlers_are_kept_from_figures(filled_service: ServiceThread) -> None:
    rules = filled_service.client.get("/robots.txt").text.splitlines()
    assert {"Disallow: /explore", "Disallow: /figures/s0"} <= {*rules}


def test_titles_of_metrics_are_distinct() -> None:
    titles = [head_column(metric.name) for metric in METRICS]
    assert len({*titles}) == len(titles)


def test_too_many_groups_are_refused(
    filled_service: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure_points, "MAX_GROUPS", 3)
    for query in ("by=site", "by=host", "by=site&format=csv"):
        refused = filled_service.client.get(f"/explore?{query}")
        assert refused.status_code == 400
        assert "more than 3 groups" in refused.json()["error"]
    assert filled_service.client.get("/explore?by=axis_root&color=").status_code == 200


def test_long_tables_are_truncated_in_html_only(
    filled_service: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explore_page, "MAX_SHOWN_ROWS", 3)
    rows = len(rows_of(filled_service, "by=site&color="))
    page = filled_service.client.get("/explore?by=site&color=")
    assert rows > 3
    assert f"First 3 of {rows} rows; CSV and JSON hold all." in page.text


def test_outliers_of_a_trend_are_named_and_other_lines_are_grey() -> None:
    def lay_out(marks: Sequence[FigureMark], count: int = 12) -> FigureLayout:
        names = [f"SITE-{line:02}" for line in range(count)]
        return FigureLayout(
            Kind.POINTS,
            x_title="day",
            y_title="",
            groups=("", "day", "site"),
            scale=Scale.LINEAR,
            dates=True,
            places=("2026-03-01", "2026-03-02"),
            series=tuple(style_series([(name, name, "") for name in names])),
            panels=(FigurePanel("", tuple(marks)),),
        )

    marks = [
        FigureMark(line, day, -9.0 if line == 7 else 0.1 * line, None, None)
        for line in range(12)
        for day in range(2)
    ]
    layout, note = name_outliers(lay_out(marks), "%")
    assert [line.name for line in layout.series if not line.is_quiet] == ["SITE-07"]
    assert "on average: SITE-07 (−9.4 %)" in note
    drawn = draw_chart(json.loads(json.dumps(chart_figure(layout))), "svg").decode()
    assert drawn.count(">SITE-07<") == 2, "in the legend and beside its line"
    assert ">SITE-01<" not in drawn
    even, note = name_outliers(lay_out([mark for mark in marks if mark.series != 7]), "%")
    assert "No line stands out" in note
    assert len([line for line in even.series if not line.is_quiet]) == 2
    few = lay_out([mark for mark in marks if mark.series < 8], 8)
    assert name_outliers(few, "%") == (few, "")
