"""Notes on values aggregated in figures, and on marks left out."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator
from datetime import date, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import uproot
from measurement_factory import make_measurement, variant_values
from page_charts import list_marks, list_names, load_charts
from service_thread import ServiceThread, run_service

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.record.outcome import NOT_SUPPORTED
from treehammer.sql.write.store import Store
from treehammer.web.figures import drawing
from treehammer.web.figures.work_mix import count_aggregated

PEOPLE = {"Accept": "text/html,*/*"}
ALL = "from=&to="
LAST = date(2026, 6, 30)
DAYS = 450


def measured() -> Iterator[Measurement]:
    """Two tests at A, one at B, failures at C, and 450 days at D."""
    shared: dict[str, Any] = {"door": "near", "dataset": "one", "plausible": True, "host": "node"}
    number = 0
    for site, test, variant, value in (
        ("A", "tree", "root=6.38 size=1", 0.8),
        ("A", "tree", "root=6.40 size=1", 0.6),
        ("A", "tree", "root=6.38 size=2", 0.4),
        ("A", "nano", "root=6.38 size=1", 0.2),
        ("B", "tree", "root=6.38 size=1", 0.5),
    ):
        for more in (0.0, 0.1):
            number += 1
            values = {**shared, "site": site, "test_name": test, **variant_values(variant)}
            values["dataset"] = "two" if test == "nano" else "one"
            values["axis_root"] = variant[5:9]
            yield make_measurement(f"{number}", day=20260630, eff_job=value + more, **values)
    known = variant_values("root=6.38 size=1")
    nothing = {**shared, "site": "C", "test_name": "tree", **known}
    for place, kind in enumerate((NOT_SUPPORTED, "exit")):
        failed: dict[str, Any] = {"failure_class": "software-setup", "failure_kind": kind}
        yield make_measurement(f"failed {place}", day=20260630, **nothing, **failed)
    for back in range(DAYS):
        day = LAST - timedelta(days=back)
        values = {**shared, "site": "D", "test_name": "tree", **known}
        values["day"] = day.year * 10000 + day.month * 100 + day.day
        yield make_measurement(f"day {back}", eff_job=0.5, **values)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    folder = tmp_path_factory.mktemp("mixes")
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        store.add(measured())
    with run_service(folder, reading_open=True) as service:
        yield service


def load_json(service: ServiceThread, query: str, path: str = "/explore") -> dict[str, Any]:
    where = re.sub(r"&(site|host)=(\w+)", r"&where=\1%3D\2", f"&{query}")
    answer = service.client.get(f"/api/v1{path}?{where[1:]}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def load_chart(service: ServiceThread, query: str, path: str = "/explore") -> dict[str, Any]:
    """Load the chart that a page draws."""
    (chart,) = load_charts(service.load_page(f"{path}?{query}"))
    return chart


@pytest.mark.usefixtures("draw_in_process")
@pytest.mark.parametrize(
    "query",
    [
        "by=site&color=",
        "by=site&color=&panels=host",
        "by=site&color=&bars=interval",
        "by=site&color=&view=distribution",
    ],
)
def test_figure_notes_aggregated_values(filled: ServiceThread, query: str) -> None:
    about = load_json(filled, f"{query}&site=A&site=B&{ALL}")["about"]
    assert (
        about["aggregated"]
        == "Points aggregate up to 2 tests, 2 variants, 2 datasets and 2 releases."
    )
    assert about["aggregated_max"] == {"test_name": 2, "variant": 2, "dataset": 2, "axis_root": 2}
    page = filled.load_page(f"/explore?{query}&site=A&site=B&{ALL}")
    assert about["aggregated"] in page
    figure = filled.client.get(f"/explore/figure.svg?{query}&site=A&site=B&{ALL}").text
    assert about["aggregated"] in figure


def test_csv_rows_list_aggregated_values(filled: ServiceThread) -> None:
    answer = filled.client.get(f"/explore?by=site&color=&site=A&site=B&{ALL}&format=csv")
    rows = {row["site"]: row["aggregates"] for row in csv.DictReader(io.StringIO(answer.text))}
    assert rows == {"A": "2 tests, 2 variants, 2 datasets, 2 releases", "B": ""}


def test_trend_notes_aggregation_of_lines(filled: ServiceThread) -> None:
    about = load_json(filled, f"by=day&color=site&site=A&{ALL}")["about"]
    assert about["aggregated"].startswith("Each line aggregates 2 tests,")
    about = load_json(filled, f"by=week&color=site&site=A&host=node&{ALL}")["about"]
    assert about["aggregated"].startswith("Each line aggregates 2 tests,")


def test_figure_notes_differing_work() -> None:
    columns = ("site", "test_name", "variant", "dataset", "axis_root", "door")
    rows = [(*one, '{"size":1}', "one", "6.38", "near") for one in (("A", "x"), ("B", "y"))]
    assert (
        count_aggregated(["site"], columns, rows).describe_figure(["site"])
        == "Points differ in their test."
    )
    assert count_aggregated(["test_name"], columns, rows).describe_figure(["test_name"]) == ""


def test_s0_separates_tests_and_datasets(filled: ServiceThread) -> None:
    answer = load_json(filled, f"site=A&site=B&{ALL}", "/figures/s0")
    assert answer["title"] == "CPU efficiency by site (study S0)"
    assert answer["about"]["aggregated"] == ""
    rows = answer["tables"]["figure"]
    means = {(r["site"], r["test_name"], r["variant"]): r["mean"] for r in rows}
    variant = variant_values("root=6.38 size=1")["variant"]
    assert means["A", "tree", variant] == pytest.approx(0.85)
    assert means["A", "nano", variant] == pytest.approx(0.25)
    names = list_names(load_chart(filled, f"site=A&site=B&{ALL}", "/figures/s0"), "series")
    assert "nano · two · root=6.38 size=1" in names
    one = load_json(filled, f"site=B&{ALL}", "/figures/s0")
    assert "test_name" not in one["about"]["groups"]


def test_s0_with_other_columns_has_its_own_title(filled: ServiceThread) -> None:
    answer = load_json(filled, f"metric=cpu_per_event_s&by=door&{ALL}", "/figures/s0")
    assert answer["title"] == "CPU time per event by door and variant"


def test_error_bars_are_symmetric_rms(filled: ServiceThread) -> None:
    chart = load_chart(filled, f"by=site&color=&site=B&{ALL}")
    (mark,) = list_marks(chart)
    assert mark["y"] == pytest.approx(0.55)
    assert mark["y"] - mark["l"] == pytest.approx(0.05)
    assert mark["h"] - mark["y"] == pytest.approx(0.05)


def test_unsupported_executions_are_not_failures(filled: ServiceThread) -> None:
    for query in ("by=site&color=", "by=site&color=host", "by=site&color=&view=distribution"):
        (row,) = load_json(filled, f"{query}&site=C&{ALL}")["tables"]["figure"]
        counts = (row["good"], row["failed"], row["implausible"], row["not_supported"])
        assert counts == (0, 1, 0, 1), query


@pytest.mark.usefixtures("draw_in_process")
def test_long_trend_shows_newest_days_and_a_note(filled: ServiceThread, tmp_path: Path) -> None:
    query = f"by=day&color=&site=D&{ALL}"
    chart = load_chart(filled, query)
    assert len(list_names(chart, "places")) == 400
    assert list_names(chart, "places")[-1] == LAST.isoformat()
    expected = "The figure shows 400 of 450 marks: at most the 400 newest days, weeks or months"
    assert expected in " ".join(chart["title"]["subtitle"])
    page = filled.load_page(f"/explore?{query}")
    assert page.count(expected) == 2
    assert expected in filled.client.get(f"/explore/figure.svg?{query}").text.replace("\n", " ")
    table = page[page.index("<tbody>") :]
    assert "Last 100 of 450 rows" in table
    assert LAST.isoformat() in table
    assert (LAST - timedelta(days=300)).isoformat() not in table
    file = tmp_path / "figure.root"
    file.write_bytes(filled.client.get(f"/explore/figure.root?{query}").content)
    with uproot.open(file) as opened:
        assert opened["figure"].num_entries == DAYS
        assert "site=D; timed executions; n = 450" in opened["figure"].title


def test_latency_panels_show_newest_days() -> None:
    from treehammer.web.figures.explore_query import LATENCY, ExploreQuery
    from treehammer.web.figures.figure_points import FigurePoint, FigurePoints
    from treehammer.web.pages import latency_figure

    asked = ExploreQuery(by="day", color="", view=LATENCY)
    points = tuple(FigurePoint({"day": 20260601 + day}, 1, reads=[1, 2]) for day in range(30))
    picture = latency_figure.lay_out_latencies(asked, FigurePoints(points, "roll-ups"), "title")
    assert picture is not None
    assert [picture.panels[0].title, picture.panels[-1].title] == ["2026-06-07", "2026-06-30"]
    assert picture.left_out.startswith("The figure shows 48 of 60 marks")


def test_unknown_values_of_root_file_are_marked(tmp_path: Path) -> None:
    types = {"site": "text", "jobs": "int", "mean": "float", "plausible": "bool"}
    columns = [{"name": name, "type": kind} for name, kind in types.items()]
    file = tmp_path / "figure.root"
    file.write_bytes(drawing.write_tree(columns, [dict.fromkeys(types)], "title"))
    with uproot.open(file) as opened:
        tree = opened["figure"].arrays(library="np")
    assert (tree["site"][0], tree["jobs"][0], tree["plausible"][0]) == ("", -(2**63), 255)
    assert math.isnan(tree["mean"][0])


@pytest.mark.usefixtures("draw_in_process")
def test_root_file_without_groups_is_empty(filled: ServiceThread, tmp_path: Path) -> None:
    file = tmp_path / "figure.root"
    answer = filled.client.get(f"/explore/figure.root?by=site&kind=checksum&{ALL}")
    assert answer.status_code == 200, answer.text
    file.write_bytes(answer.content)
    with uproot.open(file) as opened:
        assert opened["figure"].num_entries == 0


def test_unrecorded_metric_is_explained(filled: ServiceThread) -> None:
    page = filled.load_page(f"/explore?metric=extra_nothing&{ALL}")
    assert "no selected good execution recorded nothing" in page
    assert "figure.png" not in page
    refused = filled.client.get(f"/explore/figure.png?metric=extra_nothing&{ALL}")
    assert refused.status_code == 404
    assert "execution recorded nothing" in refused.json()["error"]


def test_kind_is_selectable(filled: ServiceThread) -> None:
    assert load_json(filled, f"by=kind&color=&{ALL}")["about"]["kind"] is None
    assert load_json(filled, f"where=kind%3Dchecksum&{ALL}")["about"]["kind"] is None
    assert load_json(filled, f"kind=&color=&{ALL}")["about"]["selection"].startswith(
        "all days; executions of all kinds"
    )
    page = filled.load_page(f"/explore?kind=checksum&{ALL}")
    assert re.search(r'name="kind">.*<option selected>checksum', page)


@pytest.mark.parametrize(
    "condition, expected", [("variant=", "variant –"), ("variant!=", "no variant –")]
)
def test_missing_variant_is_shown_as_dash(
    filled: ServiceThread, condition: str, expected: str
) -> None:
    about = load_json(filled, f"where={condition}&{ALL}")["about"]
    assert f"; {expected}; " in about["selection"]


def test_invalid_condition_keeps_form_values(filled: ServiceThread) -> None:
    query = "metric=cpu_per_event_s&site=A&where=host"
    page = filled.client.get(f"/explore?{query}", headers=PEOPLE)
    assert page.status_code == 400
    assert "--where" not in page.text
    assert '<input name="where" value="host"' in page.text
    assert re.search(r'value="cpu_per_event_s"[^>]* selected', page.text)
    assert '<option selected value="A">' in page.text
    # Without days in the URL the default window applies.
    assert f'name="to" value="{LAST.isoformat()}"' in page.text
    for query, expected in (
        ("by=read_latency_hist", "read_latency_hist: it is a list"),
        ("site=A&sitte=A", "Did you mean &#39;site&#39;? All catalogue columns"),
    ):
        assert expected in filled.client.get(f"/explore?{query}", headers=PEOPLE).text


def test_rows_link_to_sites_and_jobs(filled: ServiceThread) -> None:
    page = filled.load_page(f"/explore?by=site&color=week&site=A&{ALL}")
    table = page[page.index("<tbody>") :]
    assert 'href="/sites/A"' in table
    jobs = re.search(r'href="([^"]*by=job_id[^"]*)"', table)
    assert jobs
    page = filled.load_page(unescape(jobs[1]))
    links = re.findall(r'href="/jobs/(\d+)"', page[page.index("<tbody>") :])
    assert sorted(links, key=int) == [str(number) for number in range(1, 9)]
