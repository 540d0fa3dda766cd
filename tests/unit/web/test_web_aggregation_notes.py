"""What figures take together is said, wherever they are seen; and what they leave out."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from datetime import date, timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import uproot
from measurement_factory import make_measurement, variant_values
from service_thread import ServiceThread, run_service

from treehammer.collectors.record.failures import NOT_SUPPORTED
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.write.store import Store
from treehammer.web.figures.aggregation_notes import count_aggregated

PEOPLE = {"Accept": "text/html,*/*"}
ALL = "from=&to="
LAST = date(2026, 6, 30)
DAYS = 450


def measured() -> Iterator[Measurement]:
    """Two tests at A, of which B has one; failures; and a site of a year and a quarter."""
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


def told(service: ServiceThread, query: str, path: str = "/explore") -> dict[str, Any]:
    where = re.sub(r"&(site|host)=(\w+)", r"&where=\1%3D\2", f"&{query}")
    answer = service.client.get(f"/api/v1{path}?{where[1:]}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def drawn(service: ServiceThread, query: str, path: str = "/explore") -> dict[str, Any]:
    """What the page hands to Plotly."""
    page = service.client.get(f"{path}?{query}", headers=PEOPLE).text
    found = re.search(r'id="picture">(.*?)</script>', page, re.DOTALL)
    assert found
    picture: dict[str, Any] = json.loads(unescape(found[1]))
    return picture


@pytest.mark.parametrize(
    "query",
    [
        "by=site&color=",
        "by=site&color=&panels=host",
        "by=site&color=&bars=interval",
        "by=site&color=&view=distribution",
    ],
)
def test_a_mean_of_several_tests_says_so(filled: ServiceThread, query: str) -> None:
    about = told(filled, f"{query}&site=A&site=B&{ALL}")["about"]
    assert (
        about["aggregated"]
        == "Points aggregate up to 2 tests, 2 variants, 2 datasets and 2 releases."
    )
    assert about["aggregated_max"] == {"test_name": 2, "variant": 2, "dataset": 2, "axis_root": 2}
    page = filled.client.get(f"/explore?{query}&site=A&site=B&{ALL}", headers=PEOPLE).text
    assert about["aggregated"] in page
    figure = filled.client.get(f"/explore/figure.svg?{query}&site=A&site=B&{ALL}").text
    assert about["aggregated"] in figure


def test_each_row_tells_what_it_mixes(filled: ServiceThread) -> None:
    answer = filled.client.get(f"/explore?by=site&color=&site=A&site=B&{ALL}&format=csv")
    rows = {row["site"]: row["aggregates"] for row in csv.DictReader(io.StringIO(answer.text))}
    assert rows == {"A": "2 tests, 2 variants, 2 datasets, 2 releases", "B": ""}


def test_a_trend_tells_it_of_its_lines(filled: ServiceThread) -> None:
    about = told(filled, f"by=day&color=site&site=A&{ALL}")["about"]
    assert about["aggregated"].startswith("Each line aggregates 2 tests,")
    about = told(filled, f"by=week&color=site&site=A&host=node&{ALL}")["about"]
    assert about["aggregated"].startswith("Each line aggregates 2 tests,")


def test_what_differs_between_points_is_said() -> None:
    columns = ("site", "test_name", "variant", "dataset", "axis_root", "door")
    rows = [(*one, '{"size":1}', "one", "6.38", "near") for one in (("A", "x"), ("B", "y"))]
    assert (
        count_aggregated(["site"], columns, rows).describe_figure(["site"])
        == "Points differ in their test."
    )
    assert count_aggregated(["test_name"], columns, rows).describe_figure(["test_name"]) == ""


def test_s0_never_pools_tests_or_datasets(filled: ServiceThread) -> None:
    answer = told(filled, f"site=A&site=B&{ALL}", "/figures/s0")
    assert answer["title"] == "CPU efficiency by site (study S0)"
    assert answer["about"]["aggregated"] == ""
    rows = answer["tables"]["figure"]
    means = {(r["site"], r["test_name"], r["variant"]): r["mean"] for r in rows}
    variant = variant_values("root=6.38 size=1")["variant"]
    assert means["A", "tree", variant] == pytest.approx(0.85)
    assert means["A", "nano", variant] == pytest.approx(0.25)
    names = [one["name"] for one in drawn(filled, f"site=A&site=B&{ALL}", "/figures/s0")["series"]]
    assert "nano · two · root=6.38 size=1" in names
    one = told(filled, f"site=B&{ALL}", "/figures/s0")
    assert "test_name" not in one["about"]["groups"]


def test_another_figure_is_not_called_s0(filled: ServiceThread) -> None:
    answer = told(filled, f"metric=cpu_per_event_s&by=door&{ALL}", "/figures/s0")
    assert answer["title"] == "cpu_per_event_s by door and variant"


def test_bars_are_the_rms_on_both_sides(filled: ServiceThread) -> None:
    picture = drawn(filled, f"by=site&color=&site=B&{ALL}")
    (mark,) = picture["panels"][0]["marks"]
    assert mark["y"] == pytest.approx(0.55)
    assert mark["y"] - mark["low"] == pytest.approx(0.05)
    assert mark["high"] - mark["y"] == pytest.approx(0.05)


def test_what_is_not_supported_is_no_failure(filled: ServiceThread) -> None:
    for query in ("by=site&color=", "by=site&color=host", "by=site&color=&view=distribution"):
        (row,) = told(filled, f"{query}&site=C&{ALL}")["tables"]["figure"]
        counts = (row["good"], row["failed"], row["implausible"], row["not_supported"])
        assert counts == (0, 1, 0, 1), query


def test_the_newest_days_are_drawn_and_the_rest_is_named(
    filled: ServiceThread, tmp_path: Path
) -> None:
    query = f"by=day&color=&site=D&{ALL}"
    picture = drawn(filled, query)
    assert len(picture["places"]) == 400
    assert picture["places"][-1] == LAST.isoformat()
    said = "The figure shows 400 of 450 marks: at most the 400 newest days, weeks or months"
    assert picture["left_out"].startswith(said)
    page = filled.client.get(f"/explore?{query}", headers=PEOPLE).text
    assert page.count(said) == 2
    assert said in filled.client.get(f"/explore/figure.svg?{query}").text.replace("\n", " ")
    table = page[page.index("<tbody>") :]
    assert "Last 250 of 450 rows" in table
    assert LAST.isoformat() in table
    assert (LAST - timedelta(days=300)).isoformat() not in table
    file = tmp_path / "figure.root"
    file.write_bytes(filled.client.get(f"/explore/figure.root?{query}").content)
    with uproot.open(file) as opened:
        assert opened["figure"].num_entries == DAYS
        assert "site=D; timed executions; n = 450" in opened["figure"].title


def test_the_newest_days_have_panels_of_read_latencies() -> None:
    from treehammer.web.figures.explore_query import LATENCY, ExploreQuery
    from treehammer.web.figures.figure_points import FigurePoint, FigurePoints
    from treehammer.web.views.explore import latency_figure

    asked = ExploreQuery(by="day", color="", view=LATENCY)
    points = tuple(FigurePoint({"day": 20260601 + day}, 1, reads=[1, 2]) for day in range(30))
    picture = latency_figure.lay_out_latencies(asked, FigurePoints(points, "roll-ups"), "title")
    assert picture is not None
    assert [picture.panels[0].title, picture.panels[-1].title] == ["2026-06-07", "2026-06-30"]
    assert picture.left_out.startswith("The figure shows 48 of 60 marks")


def test_a_file_of_nothing_is_empty(filled: ServiceThread, tmp_path: Path) -> None:
    file = tmp_path / "figure.root"
    answer = filled.client.get(f"/explore/figure.root?by=site&kind=checksum&{ALL}")
    assert answer.status_code == 200, answer.text
    file.write_bytes(answer.content)
    with uproot.open(file) as opened:
        assert opened["figure"].num_entries == 0


def test_a_metric_that_nobody_recorded_is_named(filled: ServiceThread) -> None:
    page = filled.client.get(f"/explore?metric=extra_nothing&{ALL}", headers=PEOPLE).text
    assert "no selected good execution recorded extra_nothing" in page
    assert "figure.png" not in page
    refused = filled.client.get(f"/explore/figure.png?metric=extra_nothing&{ALL}")
    assert refused.status_code == 404
    assert "execution recorded extra_nothing" in refused.json()["error"]


def test_kinds_can_be_asked_for(filled: ServiceThread) -> None:
    assert told(filled, f"by=kind&color=&{ALL}")["about"]["kind"] is None
    assert told(filled, f"where=kind%3Dchecksum&{ALL}")["about"]["kind"] is None
    assert told(filled, f"kind=&color=&{ALL}")["about"]["selection"].startswith(
        "all days; executions of all kinds"
    )
    page = filled.client.get(f"/explore?kind=checksum&{ALL}", headers=PEOPLE).text
    assert re.search(r'name="kind">.*<option selected>checksum', page)


@pytest.mark.parametrize(
    "condition, said", [("variant=", "variant –"), ("variant!=", "no variant –")]
)
def test_no_variant_is_a_dash(filled: ServiceThread, condition: str, said: str) -> None:
    about = told(filled, f"where={condition}&{ALL}")["about"]
    assert f"; {said}; " in about["selection"]


def test_a_wrong_condition_keeps_the_form(filled: ServiceThread) -> None:
    query = "metric=cpu_per_event_s&site=A&where=host"
    page = filled.client.get(f"/explore?{query}", headers=PEOPLE)
    assert page.status_code == 400
    assert "--where" not in page.text
    assert '<input name="where" value="host"' in page.text
    assert re.search(r'value="cpu_per_event_s"[^>]* selected', page.text)
    assert '<option selected value="A">' in page.text
    # As long as no days are said they are the last thirty, not all.
    assert f'name="to" value="{LAST.isoformat()}"' in page.text
    for query, said in (
        ("by=read_latency_hist", ">read_latency_hist is a list"),
        ("site=A&sitte=A", "Did you mean &#39;site&#39;? All catalogue columns"),
    ):
        assert said in filled.client.get(f"/explore?{query}", headers=PEOPLE).text


def test_rows_lead_on(filled: ServiceThread) -> None:
    page = filled.client.get(f"/explore?by=site&color=week&site=A&{ALL}", headers=PEOPLE).text
    table = page[page.index("<tbody>") :]
    assert 'href="/sites/A"' in table
    jobs = re.search(r'href="([^"]*by=job_id[^"]*)"', table)
    assert jobs
    page = filled.client.get(unescape(jobs[1]), headers=PEOPLE).text
    links = re.findall(r'href="/jobs/(\d+)"', page[page.index("<tbody>") :])
    assert sorted(links, key=int) == [str(number) for number in range(1, 9)]
