"""Tests of the mix of work: notes on aggregated values, and comparisons of the same work."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from measurement_factory import make_campaign_row, make_job_row, make_measurement, variant_values
from page_contents import PageContents, list_marks, list_names, load_charts
from service_thread import ServiceThread, run_service

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.record.outcome import NOT_SUPPORTED
from treehammer.explore import explore_figure
from treehammer.explore.work_mix import count_aggregated
from treehammer.web import display_formats

ALL = "from=&to="
LAST = date(2026, 6, 30)
DAYS = 120


def measured() -> Iterator[Measurement]:
    """Two tests at A, one at B, failures at C, and 120 days at D."""
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
    failure = {**shared, "site": "C", "test_name": "tree", **known}
    for place, kind in enumerate((NOT_SUPPORTED, "exit")):
        failed: dict[str, Any] = {"failure_class": "software-setup", "failure_kind": kind}
        yield make_measurement(f"failed {place}", day=20260630, **failure, **failed)
    for back in range(DAYS):
        day = LAST - timedelta(days=back)
        values = {**shared, "site": "D", "test_name": "tree", **known}
        values["day"] = day.year * 10000 + day.month * 100 + day.day
        yield make_measurement(f"day {back}", eff_job=0.5, **values)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    with run_service(tmp_path_factory.mktemp("mixes"), reading_open=True) as service:
        service.store.add(measured())
        yield service


def load_json(service: ServiceThread, query: str, path: str = "/explore") -> dict[str, Any]:
    where = re.sub(r"&(site|host)=(\w+)", r"&where=\1%3D\2", f"&{query}")
    answer = service.client.get(f"/api/v1{path}?{where[1:]}")
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def load_chart(service: ServiceThread, query: str, path: str = "/explore") -> dict[str, Any]:
    """Load the chart that a page draws."""
    (chart,) = load_charts(service.load_page(f"{path}?{query}"))
    return chart


def test_figure_notes_aggregated_values(filled: ServiceThread) -> None:
    query = "by=site&color=&panels=host"
    about = load_json(filled, f"{query}&site=A&site=B&{ALL}")["about"]
    assert (
        about["aggregated"]
        == "Points aggregate up to 2 tests, 2 variants, 2 datasets and 2 releases."
    )
    assert about["aggregated_max"] == {"test_name": 2, "variant": 2, "dataset": 2, "axis_root": 2}
    assert about["aggregated"] in filled.read(f"/explore?{query}&site=A&site=B&{ALL}").text


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
    rows = [(*pair, '{"size":1}', "one", "6.38", "near") for pair in (("A", "x"), ("B", "y"))]
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
    document = load_json(filled, f"site=B&{ALL}", "/figures/s0")
    assert "test_name" not in document["about"]["groups"]


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
    for query in ("by=site&color=", "by=site&color=host"):
        (row,) = load_json(filled, f"{query}&site=C&{ALL}")["tables"]["figure"]
        counts = (row["good"], row["failed"], row["implausible"], row["not_supported"])
        assert counts == (0, 1, 0, 1), query


def test_long_trend_shows_newest_days_and_a_note(
    filled: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explore_figure, "MAX_TIMES", 110)
    query = f"by=day&color=&site=D&{ALL}"
    chart = load_chart(filled, query)
    assert len(list_names(chart, "places")) == 110
    assert list_names(chart, "places")[-1] == LAST.isoformat()
    expected = "The figure shows 110 of 120 marks: at most the 110 newest days, weeks or months"
    assert expected in " ".join(chart["title"]["subtitle"])
    page = filled.load_page(f"/explore?{query}")
    assert page.count(expected) == 2
    table = PageContents.parse(page).tables["figure"]
    assert "First 100 of 120 rows" in page
    assert table.column("day")[0] == LAST.isoformat(), "the newest comes first"
    assert LAST.isoformat() in table.column("day")
    assert (LAST - timedelta(days=105)).isoformat() not in table.column("day")


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


@pytest.mark.parametrize(
    "condition, expected", [("variant=", "variant –"), ("variant!=", "no variant –")]
)
def test_missing_variant_is_shown_as_dash(
    filled: ServiceThread, condition: str, expected: str
) -> None:
    about = load_json(filled, f"where={condition}&{ALL}")["about"]
    assert f"; {expected}; " in about["selection"]


def test_rows_link_to_sites_and_jobs(filled: ServiceThread) -> None:
    page = filled.read(f"/explore?by=site&color=week&site=A&{ALL}")
    assert "/sites/A" in page.list_links()
    (jobs, *_) = page.list_links("/explore.*by=job_id")
    links = filled.read(jobs).list_links("/jobs/")
    assert sorted(int(link.rpartition("/")[2]) for link in links) == [*range(1, 9)]


LIGHT, HEAVY = (json.dumps({"branches": share, "root": "6.40.00"}) for share in (0.02, 1.0))
#: Time of each variant at an ordinary site.
SECONDS = {LIGHT: 1e-6, HEAVY: 50e-6}
#: Site -> its factor for each variant.
FACTORS = {
    "A": {LIGHT: 1.10, HEAVY: 0.95},
    "B": {LIGHT: 1.0, HEAVY: 1.0},
    "C": {LIGHT: 1.0, HEAVY: 1.0},
}
STEP_DAYS = range(20260301, 20260309)
STEP_DAY = 20260305


def variants_of(day: int) -> tuple[str, ...]:
    """Both on every fourth day, else one of them in turn: a mean would be a sawtooth."""
    return (LIGHT, HEAVY) if day % 4 == 1 else (LIGHT,) if day % 2 else (HEAVY,)


def measure(metric: str = "cpu_per_event_s") -> Iterator[Measurement]:
    """All sites; A is 20 % slower from a day on."""
    for site, factors in FACTORS.items():
        for day in STEP_DAYS:
            for variant in variants_of(day):
                step = 1.2 if site == "A" and day >= STEP_DAY else 1.0
                values: dict[str, Any] = {metric: SECONDS[variant] * factors[variant] * step}
                yield make_measurement(
                    f"{site} {day} {variant}",
                    site=site,
                    day=day,
                    variant=variant,
                    axis_root="6.40.00",
                    door="near",
                    door_protocol="root",
                    plausible=True,
                    **values,
                )


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    with run_service(tmp_path_factory.mktemp("stepped"), reading_open=True) as service:
        service.store.add(measure())
        yield service


def ask(service: ServiceThread, query: str) -> tuple[dict[Any, float], PageContents]:
    """Return the differences by site and day, and the page."""
    address = f"/explore?metric=cpu_per_event_s&from=&to=&by=day&color=site&{query}"
    rows = service.load_tables(address)["figure"]
    differences = {(row.get("site"), row.get("day")): row.get("difference", 0.0) for row in rows}
    return differences, service.read(address)


def test_alternating_variants_are_no_change(stepped: ServiceThread) -> None:
    cells, page = ask(stepped, "view=relative")
    before = {cells["A", day] for day in STEP_DAYS if day < STEP_DAY}
    after = {cells["A", day] for day in STEP_DAYS if day >= STEP_DAY}
    assert max(before) - min(before) < 1e-6 > max(after) - min(after)
    assert math.log1p(max(after)) - math.log1p(max(before)) == pytest.approx(math.log(1.2))
    assert [cells["B", day] for day in STEP_DAYS] == pytest.approx([0] * len(STEP_DAYS), abs=1e-9)
    (chart,) = page.charts
    assert [layer["mark"]["type"] for layer in chart["layer"]] == ["rule", "line", "point"]
    per_cent = {mark["y"] for mark in list_marks(chart) if mark["s"] == 0}
    assert max(per_cent) == pytest.approx(100 * max(after), rel=1e-6)


def test_other_sites_are_the_reference_of_selected_ones(stepped: ServiceThread) -> None:
    whole, _ = ask(stepped, "view=relative")
    alone, page = ask(stepped, "view=relative&site=A")
    assert alone == {key: value for key, value in whole.items() if key[0] == "A"}
    # Each execution is the only one of its work.
    assert {*page.tables["figure"].column("rms")} == {"–"}


@pytest.mark.parametrize(
    "query, joined",
    [
        ("view=relative&where=day!%3D20260301&where=day!%3D20260305", False),
        ("", False),
        ("panels=variant", True),
    ],
)
def test_mean_over_variants_is_not_joined(stepped: ServiceThread, query: str, joined: bool) -> None:
    _, page = ask(stepped, query)
    (chart,) = page.charts
    layers = chart.get("layer") or chart["spec"]["layer"]
    assert ("line" in {layer["mark"]["type"] for layer in layers}) is joined
    assert query or page.list_links(".*view=relative")


RELEASE = "6.40.00"
DAY = display_formats.today() - timedelta(days=1)


def variant(branches: float, cache_mb: int, root: str = RELEASE) -> str:
    axes = {"access": "direct", "branches": branches, "cache_mb": cache_mb, "root": root}
    return json.dumps(axes, separators=(",", ":"))


WHOLE, PART, CACHED = variant(1.0, 0), variant(0.02, 0), variant(0.02, 30)
#: Site, campaign, variant, its label there, CPU time per event and CPU efficiency.
MEASURED = (
    ("A", "whole", WHOLE, "cache_mb=0", 80e-6, 0.9),
    ("B", "part", PART, "cache_mb=0", 7e-6, 0.5),
    ("C", "part", PART, "cache_mb=0", 9e-6, 0.7),
    ("A", "both", CACHED, "branches=2% cache_mb=30", 10e-6, 0.6),
    ("B", "part", CACHED, "cache_mb=30", 12e-6, 0.8),
    ("C", "root", CACHED, f"root={RELEASE}", 14e-6, 0.4),
    # Several variants with one label on one day at one site.
    ("A", "part", PART, "cache_mb=0", 8e-6, 0.5),
)


def measure_work() -> Iterator[Measurement]:
    for number, (site, campaign, axes, label, cpu_s, efficiency) in enumerate(MEASURED):
        shared: dict[str, Any] = {"door": "near", "door_protocol": "root", "plausible": True}
        shared |= {"test_name": "ttree-read", "dataset": "small", "dataset_hash": "sha256:0"}
        yield make_measurement(
            f"{number}",
            day=display_formats.day_number(DAY),
            site=site,
            campaign_id=campaign,
            variant=axes,
            variant_label=label,
            axis_root=RELEASE,
            cpu_per_event_s=cpu_s,
            eff_job=efficiency,
            **shared,
        )


@pytest.fixture(scope="module")
def work_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    with run_service(tmp_path_factory.mktemp("same"), reading_open=True) as work_service:
        for campaign in sorted({item[1] for item in MEASURED}):
            items = [(n, item[0]) for n, item in enumerate(MEASURED) if item[1] == campaign]
            jobs = [make_job_row(f"{n}", campaign_id=campaign, site=site) for n, site in items]
            work_service.store.add_campaign(make_campaign_row(campaign), jobs)
        work_service.store.add(measure_work())
        yield work_service


def test_site_is_compared_by_variant_not_label(work_service: ServiceThread) -> None:
    parameters = {"metric": "cpu_per_event_s"}
    (row,) = work_service.load_document("/sites/A", **parameters)["tables"]["series"]
    # No other site measured the variant that takes 80 µs.
    assert (row["measurements"], row["compared"], row["sites"]) == (3, 2, 2)
    assert row["own"] == pytest.approx(9e-6)
    assert row["median"] == pytest.approx((8e-6 + 13e-6) / 2)
    (row,) = work_service.load_document("/sites/B", **parameters)["tables"]["series"]
    assert row["median"] == pytest.approx((8.5e-6 + 12e-6) / 2)


def test_variants_with_same_label_are_counted_separately(work_service: ServiceThread) -> None:
    document = work_service.load_document(f"/explore?by=site&color=&{ALL}")
    assert document["about"]["aggregated_max"] == {"variant": 3}


SHARED = "access=direct"
NAMES = ["branches=2% cache_mb=0", "branches=2% cache_mb=30", "branches=100% cache_mb=0"]


def test_s0_has_one_series_per_variant(work_service: ServiceThread) -> None:
    document = work_service.load_document(f"/figures/s0?{ALL}")
    assert document["about"]["aggregated"] == ""
    means = {(row["site"], row["variant"]): row["mean"] for row in document["tables"]["figure"]}
    expected = {(site, axes): mean for site, _, axes, _, _, mean in MEASURED}
    assert means == pytest.approx(expected)
    (chart,) = load_charts(work_service.load_page(f"/figures/s0?{ALL}"))
    assert list_names(chart, "series") == NAMES
    assert f"all variants: {SHARED} root={RELEASE}" in chart["title"]["subtitle"]


def test_figure_by_variant_does_not_aggregate_variants(work_service: ServiceThread) -> None:
    query = f"metric=cpu_per_event_s&by=variant&panels=site&color=axis_root&{ALL}"
    document = work_service.load_document(f"/explore?{query}")
    assert "variant" not in document["about"]["aggregated_max"]
    rows = [row for row in document["tables"]["figure"] if row["site"] == "A"]
    values = {row["variant"]: row["mean"] for row in rows}
    assert values == pytest.approx({WHOLE: 80e-6, CACHED: 10e-6, PART: 8e-6})
    page = work_service.read(f"/explore?{query}")
    assert f"All variants: {SHARED}" in page.list_texts("p", "quiet")
    assert {*page.tables["figure"].column("variant")} == {*NAMES}
    assert "share of branches · cache size" in json.dumps(page.charts, ensure_ascii=False)


def test_links_use_variants_instead_of_labels(work_service: ServiceThread) -> None:
    addresses = [f"/explore?{ALL}", "/sites/A", f"/days/{DAY}?site=A", "/jobs/0", "/campaigns/part"]
    for address in addresses:
        links = work_service.read(address).list_links()
        explored = [link for link in links if "/explore?" in link]
        assert explored, address
        assert not [link for link in explored if "variant_label" in link], address


def test_day_page_separates_variants_with_same_label(work_service: ServiceThread) -> None:
    address = f"/days/{DAY}"
    rows = work_service.load_document(address, site="A")["tables"]["measured"]
    means = {row["variant"]: row["cpu_per_event_s_mean"] for row in rows}
    assert means == pytest.approx({WHOLE: 80e-6, PART: 8e-6, CACHED: 10e-6})
    page = work_service.read(f"{address}?site=A")
    assert {*page.tables["measured"].column("variant")} == {*NAMES}
    assert f"All variants: {SHARED}" in page.text


def test_job_link_by_day_selects_same_variant(work_service: ServiceThread) -> None:
    """Three executions share the job's label, but only one its variant."""
    (link,) = {*work_service.read("/jobs/0").list_links("/explore.*by=day")}
    query = urlsplit(link).query
    (row,) = load_json(work_service, query)["tables"]["figure"]
    assert (row["number"], row["mean"]) == (1, pytest.approx(80e-6))
    page = work_service.read(f"/explore?{query}")
    assert "; variant access=direct branches=100% cache_mb=0 root=6.40.00; " in page.text
    assert not page.list_texts("p", "aggregated")


def test_json_has_label_of_uniquely_labeled_variants(pages: ServiceThread) -> None:
    called = [(PART, "cache_mb=0"), (WHOLE, "branches=100%"), (WHOLE, "cache_mb=0")]
    jobs = [make_job_row(f"{n}", site="A") for n in range(len(called))]
    pages.store.add_campaign(make_campaign_row(), jobs)
    shared: dict[str, Any] = {
        "site": "A",
        "day": display_formats.day_number(DAY),
        "plausible": False,
    }
    pages.store.add(
        make_measurement(f"{n}", variant=axes, variant_label=label, **shared)
        for n, (axes, label) in enumerate(called)
    )
    day = pages.load_document(f"/days/{DAY}", site="A")["tables"]
    work = pages.load_document("/sites/A")["tables"]["work"]
    for rows in (day["measured"], work):
        labels = [(row["variant"], row["variant_label"]) for row in rows]
        assert sorted(labels) == sorted([(PART, "cache_mb=0"), (WHOLE, "")])
    failing = [(row["variant"], row["variant_label"]) for row in day["failing"]]
    assert sorted(failing) == sorted(called)


def test_job_links_include_all_releases(pages: ServiceThread) -> None:
    done = [("a", 1, "6.38.00", 0), ("b", 1, "6.40.00", 0), ("b", 2, "6.40.00", 30)]
    jobs = [make_job_row(name, campaign_id="both", site="A") for name in ("a", "b")]
    pages.store.add_campaign(make_campaign_row("both"), jobs)
    shared: dict[str, Any] = {"campaign_id": "both", "site": "A", "plausible": True}
    shared |= {"day": display_formats.day_number(DAY), "cpu_per_event_s": 1e-6}
    pages.store.add(
        make_measurement(
            job, round_, variant=variant(1.0, cache_mb, root), axis_root=root, **shared
        )
        for job, round_, root, cache_mb in done
    )
    for by in ("day", "site"):
        (link,) = pages.read("/jobs/a").list_links(f"/explore.*by={by}")
        query = urlsplit(link).query
        rows = pages.client.get(f"/explore?{query}&format=json").json()["tables"]["figure"]
        numbers = {row["axis_root"]: row["number"] for row in rows}
        assert numbers == {"6.38.00": 1, "6.40.00": 1}, by


def test_site_page_lists_each_variant_once(work_service: ServiceThread) -> None:
    choices = work_service.read("/sites/A").list_choices("variant")
    assert [*choices.values()] == ["all", *NAMES]
    (*_, last) = choices
    document = work_service.load_document("/sites/A", variant=last, metric="cpu_per_event_s")
    (row,) = document["tables"]["series"]
    assert (row["mean"], row["median"]) == (pytest.approx(80e-6), None)


def test_equal_values_neither_scatter_nor_differ(pages: ServiceThread) -> None:
    values: dict[str, Any] = {"eff_job": 0.85, "cpu_per_event_s": 0.0018, "plausible": True}
    pages.store.add(
        make_measurement(f"{site} {job}", site=site, day=20260629 + job % 2, **values)
        for site in "AB"
        for job in range(24)
    )
    for view in ("by=site&color=&view=relative", "by=day&color=site&view=relative", "by=site"):
        for row in pages.load_tables(f"/explore?metric=eff_job&{view}&{ALL}")["figure"]:
            assert (row["rms"], row.get("difference", 0.0)) == (0.0, 0.0)
    (row,) = pages.load_tables("/days/2026-06-30?site=A")["measured"]
    assert (row["eff_job_rms"], row["cpu_per_event_s_rms"]) == (0.0, 0.0)
    assert {row["rms"] for row in pages.load_tables("/sites/A?to=2026-06-30")["series"]} == {0.0}
