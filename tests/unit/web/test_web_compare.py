"""Compare: stored verdicts and comparisons computed on request."""

from __future__ import annotations

import csv
import html
import io
import itertools
import json
import math
import random
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import pytest
from click.testing import CliRunner
from measurement_factory import (
    build_instruction_rows,
    build_verdict,
    make_campaign_row,
    make_measurement,
    make_operation,
)
from page_database import HOSTILE_TEXTS
from service_thread import ServiceThread, run_service

from treehammer.analysis.comparison.comparison import ComparisonQuery, compare_samples
from treehammer.analysis.statistics.sample import SAMPLE_COLUMNS, Sample, find_axis_value
from treehammer.cli import cli
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.record.metric_catalogue import Value
from treehammer.hctests.definition.model import Scalar, Variant
from treehammer.sql.core.evidence import VerdictEvidence
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store

PEOPLE = {"Accept": "text/html,*/*"}
SITES = ("SITE_A", HOSTILE_TEXTS[0])
OTHER = quote(f"site={SITES[1]}")


def jobs(
    axis: str = "root", sides: tuple[Scalar, Scalar] = ("6.38.00", "6.40.00")
) -> Iterator[Measurement]:
    """Both sides in every job of two sites, the second slower; in March and in April."""
    dice = random.Random(2)
    for site in SITES:
        for number in range(14):
            for position, side in enumerate(sides, 1):
                if site == SITES[0] and number == 13 and side == sides[1]:
                    continue
                seconds = dice.gauss(0.02, 0.0002) * (1.1 if side == sides[1] else 1.0)
                variant: dict[str, Scalar] = {"root": "6.40.00", "cache_mb": 30, axis: side}
                values: dict[str, Any] = {
                    "variant": Variant(tuple(variant.items())).canonical_json,
                    "axis_root": variant["root"],
                    "site": site,
                    "door": f"door{SITES.index(site)}",
                    "host": f"node{number % 4}",
                    "day": 20260310 if number < 7 else 20260410,
                    "cpu_per_event_s": seconds,
                    "wall_per_event_s": 1.2 * seconds,
                    "loop_cpu_s": 5.0,
                    "plausible": True,
                }
                yield make_measurement(f"{site}-{number}", 1, position, **values)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    folder = tmp_path_factory.mktemp("measured")
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        store.add(jobs())
    with run_service(folder, reading_open=True) as service:
        yield service


def test_stored_verdicts_are_shown_as_they_are(filled_service: ServiceThread) -> None:
    found = filled_service.load_tables("/compare/comparison")
    with Store.open(filled_service.url) as store:
        rows = store.verdicts("comparison")
    shown = [*found["pooled"], *found["by_site"], *found["missing"]]
    assert len(shown) == len(rows)
    known = {(row.scope, row.site, row.metric): row for row in rows}
    for one in shown:
        row = known[one["scope"], one["site"], one["metric"]]
        assert (one["effect"], one["low"], one["high"]) == (row.effect, row.low, row.high)
        assert (one["verdict"], one["jobs"], one["hosts"]) == (row.verdict, row.jobs, row.hosts)
    text = filled_service.client.get("/compare/comparison?format=csv&table=by_site").text
    assert len([*csv.DictReader(io.StringIO(text))]) == len(found["by_site"])


def test_exact_counters_are_stored_and_shown(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        counted = [
            replace(
                one,
                values={
                    **one.values,
                    "door_protocol": "file",
                    "bytes_read": 5_000_000,
                    "read_calls": 1010 if one.values["axis_root"] == "6.40.00" else 1000,
                },
            )
            for one in jobs()
        ]
        store.add(counted)
        options = ["--database", f"sqlite:///{tmp_path / 'results.db'}", "compare"]
        done = CliRunner().invoke(cli, [*options, "6.38.00", "6.40.00"], standalone_mode=False)
        assert "+1.0 % read calls" in done.output
        question = ComparisonQuery("root", "6.38.00", "6.40.00")
        verdicts = store.verdicts(question.id)
    kept = [row.evidence.counters for row in verdicts]
    assert [one for one in kept if one] == [
        {"bytes_read": ("same", 5e6, 5e6, 14), "read_calls": ("more", 1000, 1010, 14)}
    ] * len(SITES)
    with run_service(tmp_path, reading_open=True) as service:
        for address in (f"/compare/{question.id}", "/compare?a=6.38.00&b=6.40.00&recompute=1"):
            page = service.load_page(address)
            assert "Exact counters of 2 variants: 2 same, 2 more (+1.0 % read calls)." in page
            shown = page.split('id="counters"')[1]
            assert "1,010" in shown
            assert "5,000,000" not in shown.split("</section>")[0]
            rows = service.load_tables(address)["counters"]
            assert {(row["metric"], row["verdict"], row["site"]) for row in rows} == {
                (name, verdict, site)
                for name, verdict in (("bytes_read", "same"), ("read_calls", "more"))
                for site in SITES
            }


def test_instructions_are_shown_beside_times(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        axes = {"cache_mb": 30}
        work: dict[str, Any] = {"test_hash": "t", "dataset_hash": "d"}
        of_a = {**work, "variant": json.dumps({"root": "6.38.00", **axes})}
        evidence = VerdictEvidence(campaigns=(), of_a=of_a)
        store.replace_comparison("c", [], [build_verdict("c", evidence=evidence)])
        for root, instructions in (("6.38.00", 400_116_000), ("6.40.00", 400_873_000)):
            variant = json.dumps({"root": root, **axes})
            facts = {"variant": variant, "instructions": instructions, **work}
            store.replace_instruction_count(build_instruction_rows(root, lines=1, **facts))
    with run_service(tmp_path, reading_open=True) as service:
        (row,) = service.load_tables("/compare/c")["instructions"]
        assert (row["a_per_event"], row["b_per_event"]) == (400_116, 400_873)
        page = service.load_page("/compare/c")
    assert "+0.19 %" in page
    assert "libRIO.so +757" in page
    assert "they are not time" in page


def test_headline_metrics_are_shown_with_their_units(tmp_path: Path) -> None:
    plan = json.dumps({"definition": {"headline": ["rate_hz"], "metrics": {}, "load": {}}})
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        store.add_campaign(make_campaign_row(plan=plan), [])
        for number, position in itertools.product(range(4), (1, 2)):
            latencies = [0.001] * (position * 100 + number)
            values = {"variant": f'{{"listen":{position}}}', "host": "n"}
            steps = [make_operation(latencies)]
            store.add([make_measurement(f"j{number}", 1, position, operations=steps, **values)])
    with run_service(tmp_path, reading_open=True) as service:
        address = "/compare?axis=listen&a=1&b=2"
        (row,) = service.load_tables(address)["by_site"]
        assert (row["metric"], row["verdict"], row["unit"]) == ("rate_hz", "faster", "Hz")
        page = service.load_page(address)
    assert "10.2 Hz" in page  # the mean of 10.0 to 10.3
    assert ">better<" in page
    assert "lower ← 0 → higher" in page
    assert "ms/event" not in page


def test_what_stands_out_comes_first(filled_service: ServiceThread) -> None:
    rows = filled_service.load_tables("/compare/comparison")["by_site"]
    weights = [abs(row["effect"]) / (row["high"] - row["low"]) for row in rows]
    assert weights == sorted(weights, reverse=True)
    assert rows[0]["verdict"] == "faster"


def test_conditions_of_another_version_are_shown_unchanged(tmp_path: Path) -> None:
    """On a column that this version does not know: no page fails for it."""
    evidence = VerdictEvidence(
        campaigns=(), where=("column_of_next=1",), of_a={"axis_root": "6.38.00"}
    )
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        rows = [build_verdict("next", scope="site", evidence=evidence)]
        store.replace_comparison("next", [], rows)
    with run_service(tmp_path, reading_open=True) as service:
        for address in ("/", "/compare", "/compare/next", "/api/v1/overview"):
            page = service.client.get(address, headers=PEOPLE)
            assert (page.status_code, "column_of_next=1" in page.text) == (200, True), address


def test_compared_campaigns_are_called_by_their_names(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        for id_ in ("first", "second"):
            store.add_campaign(make_campaign_row(id_, name=f"{id_} night"), [])
        sides = {"axis": "campaign", "a": "first", "b": "second"}
        nights = ComparisonQuery("campaign", "first", "second").id
        one = build_verdict(nights, scope="site", verdict="slower", **sides)
        rows = [replace(one, site=site) for site in SITES]
        over_sites = {"scope": "sites", "evidence": VerdictEvidence(points_at_change=True)}
        rows.append(build_verdict(nights, label="all of it", **over_sites, **sides))
        store.replace_comparison(nights, [], rows)
    with run_service(tmp_path, reading_open=True) as service:
        by_name = "/compare?axis=campaign&a=first+night&b=sec"
        assert {row["comparison_id"] for row in service.load_tables(by_name)["by_site"]} == {nights}
        for address in (f"/compare/{nights}", "/compare", "/", by_name):
            page = service.load_page(address)
            assert "campaign second night against first night" in page, address
        page = service.load_page(f"/compare/{nights}")
        assert "first night, ms/event" in page
        assert "second night, ms/event" in page
        assert "points at campaign=second night: all of it" in page
        told = service.load_tables("/compare")["comparisons"]
    assert (told[0]["a"], told[0]["b"]) == ("first", "second")


def test_an_interval_that_leaves_the_drawing_ends_in_an_arrow(tmp_path: Path) -> None:
    narrow = [(-0.02, 0.03, 0.01)] * 10
    wide = [(-0.457, 0.577, 0.04), (0.2, 0.9, 0.5), (-0.3, 0.02, -0.01)]
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        rows = [
            build_verdict(
                "wide", scope="site", site=f"S{place}", low=low, high=high, effect=effect, hosts=2
            )
            for place, (low, high, effect) in enumerate([*narrow * 3, *wide])
        ]
        store.replace_comparison("wide", [], rows)
    with run_service(tmp_path, reading_open=True) as service:
        page = service.load_page("/compare/wide")
    drawn = {
        site: row.partition('class="zero"')[2].partition("</svg>")[0]
        for site, row in re.findall(r"<tr>(?:(?!</tr>).)*?>(S\d+)</a>(.*?)</tr>", page, re.DOTALL)
    }
    assert len(drawn) == 33
    found = {
        site: ("M0 " in svg, "M100 " in svg, 'class="mean"' in svg) for site, svg in drawn.items()
    }
    assert found["S30"] == (True, True, True)
    assert found["S31"] == (False, True, False), "nor is its middle in the drawing"
    assert found["S32"] == (True, False, True)
    assert {found[f"S{place}"] for place in range(30)} == {(False, False, True)}


def test_comparisons_are_listed_and_linked(filled_service: ServiceThread) -> None:
    (listed,) = filled_service.load_tables("/compare")["comparisons"]
    assert listed["comparison_id"] == "comparison"
    for address in ("/", "/compare"):
        assert "/compare/comparison" in filled_service.load_page(address)
    page_ = filled_service.load_page("/compare/comparison")
    assert "{{ 7 * 7 }}" in page_


def test_a_live_comparison_is_that_of_the_command(measured: ServiceThread) -> None:
    found = measured.load_tables("/compare?a=6.38.00&b=6.40.00")
    with Store.open(measured.url) as store:
        samples = [Sample.from_row(row) for row in store.measurements(Selection(), SAMPLE_COLUMNS)]
        question = ComparisonQuery("root", "6.38.00", "6.40.00", selection=Selection())
        there = compare_samples(samples, question, now_us=1)
        assert store.verdicts(question.id) == []
    effects = {(row["site"], row["metric"]): row["effect"] for row in found["by_site"]}
    assert effects == {(r.site, r.metric): r.effect for r in there.of_series}
    assert {row["verdict"] for row in found["by_site"]} == {"slower"}
    page = measured.load_page("/compare?a=6.38.00&b=6.40.00")
    assert "treehammer compare 6.38.00 6.40.00" in page
    assert "which points at the release" in page
    assert "<script>document" not in page


@pytest.mark.parametrize(
    "axis, kept, asked",
    [
        ("root", ("6.38.00", "6.40.00"), ("6.38.00", "6.40.00")),
        ("cache_mb", (0, 30), ("0", "30")),
        ("cache_mb", (0.5, 1), ("0.5", "1")),
        ("events", (0.5, 1.0), ("0.5", "1")),
        ("branches", ("Muon_*", 1.0), ("Muon_*", "1.0")),
        ("fast", (False, True), ("false", "True")),
        ("level", ("1", "2"), ("1", "2")),
    ],
)
def test_a_stored_comparison_answers_the_same_question(
    tmp_path: Path, axis: str, kept: tuple[Scalar, Scalar], asked: tuple[str, str]
) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        store.add(jobs(axis, kept))
        samples = [Sample.from_row(row) for row in store.measurements(Selection(), SAMPLE_COLUMNS)]
        a, b = (find_axis_value(samples, axis, side) for side in asked)
        question = ComparisonQuery(axis, a, b, 0.05, Selection())
        made = compare_samples(samples, question, now_us=1_772_323_200_000_000)
        store.replace_comparison(question.id, made.pairs, made.verdicts)
    address = f"/compare?axis={axis}&a={asked[0]}&b={asked[1]}&delta=0.05"
    with run_service(tmp_path, reading_open=True) as service:
        assert "Judged 2026-03-01" in service.load_page(address)
        assert "Judged" not in service.load_page(address + "&recompute=1")
        told = service.client.get(f"/api/v1{address}").json()["tables"]["by_site"]
        assert {row["comparison_id"] for row in told} == {question.id}
        pairs = service.load_tables(f"/compare/{question.id}")["pairs"]
        expected = service.load_page(f"/compare/{question.id}")
    assert len(pairs) == len(made.pairs)
    assert all(sentence.split(" ")[0] in expected for sentence in made.notes)


def test_two_months_are_compared_unpaired(measured: ServiceThread) -> None:
    address = "/compare?axis=selection&where_a=day<20260401&where_b=day>=20260401"
    rows = measured.load_tables(address)["by_site"]
    assert len(rows) == 8
    assert all(row["unpaired"] for row in rows)
    assert {row["a"] for row in rows} == {"day<20260401"}
    page = measured.load_page(address)
    assert "Welch" in page


def test_sides_have_separate_conditions(measured: ServiceThread) -> None:
    address = "/compare?a=6.38.00&b=6.40.00&where_a=day<20260401&where_b=day>=20260401"
    rows = measured.load_tables(address)["by_site"]
    assert {(row["verdict"], row["unpaired"]) for row in rows} == {("slower", True)}
    one = "/compare?a=6.38.00&b=6.40.00&where_b=site=SITE_A"
    missing = measured.load_tables(one)["missing"]
    assert {(row["site"], row["verdict"]) for row in missing} == {(HOSTILE_TEXTS[0], "only in A")}


@pytest.mark.parametrize(
    "address, status, expected",
    [
        ("/compare?a=6.38.00&b=7", 404, "no measurement has root=7"),
        ("/compare?a=1&b=1", 400, "both sides"),
        ("/compare?a=6.40&b=6.4", 404, "no measurement has root=6.40"),
        (
            "/compare?axis=selection&where_a=site=SITE_A&where_b=site=+SITE_A",
            400,
            "both sides select the same",
        ),
        ("/compare?a=6.38.00&b=6.40.00&delta=5", 400, "between 0 and 1"),
        ("/compare?aa=1", 400, "unknown parameter"),
        ("/compare?a=6.38.00&b=6.40.00&campaign=none", 404, "no campaigns"),
        ("/compare?axis=selection&where_a=site=X&where_b=site=Y", 404, "no measurements match"),
        ("/compare/nothing", 404, "comparison does not exist"),
        ("/compare?a=6.38.00", 400, "B is missing"),
        ("/compare?a=+&b=6.38.00&axis=cache_mb", 400, "A is missing"),
        ("/compare?where_a=day<1&where_b=day>1", 400, "choose the axis selection"),
        ("/compare?axis=selection&a=6.38.00&b=6.40.00", 400, "conditions for either side"),
        (
            "/compare?axis=selection&where_a=site=SITE_A&where_b=site!=SITE_A",
            400,
            "To compare two sites, choose the axis site",
        ),
        (
            "/compare?a=6.38.00&b=6.40.00&where_a=site=SITE_A&where_b=site!=SITE_A",
            400,
            "To compare two sites, choose the axis site",
        ),
        (
            "/compare?axis=selection&where_a=door=door0&where_b=door=door1",
            400,
            "To compare two doors, choose the axis door",
        ),
    ],
)
def test_invalid_comparisons_are_refused(
    measured: ServiceThread, address: str, status: int, expected: str
) -> None:
    answer = measured.client.get(address)
    assert answer.status_code == status
    assert expected in answer.json()["error"]


@pytest.mark.parametrize(
    "a, b",
    [
        ("where_a=site=SITE_A", f"where_b=site=SITE_A&where_b={OTHER}"),
        ("where_a=site~SITE*", "where_b=site!=SITE_B"),
        ("where_a=door~door*", "where_b=door!=door1"),
    ],
)
def test_overlapping_conditions_are_accepted(measured: ServiceThread, a: str, b: str) -> None:
    """No series is on both sides, but only because of the release."""
    address = f"/compare?axis=selection&{a}&where_a=axis_root=6.38.00&{b}&where_b=axis_root=6.40.00"
    missing = measured.load_tables(address)["missing"]
    assert {row["verdict"] for row in missing if row["site"] == "SITE_A"} == {
        "only in A",
        "only in B",
    }


def test_sides_at_different_sites_are_listed_as_missing(tmp_path: Path) -> None:
    """The conditions do not select different sites, so the page lists them."""
    places = {"6.38.00": SITES[0], "6.40.00": SITES[1]}
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        store.add(
            one for one in jobs() if one.values["site"] == places[str(one.values["axis_root"])]
        )
    with run_service(tmp_path, reading_open=True) as service:
        missing = service.load_tables("/compare?a=6.38.00&b=6.40.00")["missing"]
    assert {(row["site"], row["verdict"]) for row in missing} == {
        (SITES[0], "only in A"),
        (SITES[1], "only in B"),
    }


def test_commits_may_be_abbreviated(tmp_path: Path) -> None:
    commits = {"6.38.00": "a" * 40, "6.40.00": "b" * 40}
    shared: dict[str, Value] = {"axis_root": "6.40.00", "test_path": "read", "dirty": False}
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        for one in jobs():
            commit = commits[str(one.values["axis_root"])]
            own = {"commit_id": commit, "test_hash": commit, "variant": '{"root":"6.40.00"}'}
            store.add([Measurement({**one.values, **shared, **own})])
    with run_service(tmp_path, reading_open=True) as service:
        page = html.unescape(service.load_page("/compare?axis=commit&a=aaaaaa&b=bbbbbb"))
        assert service.client.get("/compare?axis=commit&a=aaaaaa&b=c").status_code == 404
    assert "commit bbbbbbbbbb against aaaaaaaaaa" in page
    assert "slower" in page


def test_refused_comparison_keeps_form_values(measured: ServiceThread) -> None:
    page = measured.client.get("/compare?a=6.38.00&b=7", headers=PEOPLE)
    assert page.status_code == 404
    assert "No measurement has root=7" in page.text
    assert 'name="b" value="7"' in page.text


@pytest.mark.parametrize(
    "query, expected",
    [
        ("a=6.38.00&where=day>1", "B is missing"),
        ("b=6.38.00&where=day>1", "A is missing"),
        ("where_b=day>1", "A and B are missing"),
        ("a=6.38.00&b=6.40.00&where=dai>1", "Unknown column 'dai'"),
    ],
)
def test_incomplete_comparison_is_refused(
    measured: ServiceThread, query: str, expected: str
) -> None:
    page = measured.client.get(f"/compare?{query}", headers=PEOPLE)
    assert page.status_code == 400
    assert expected in html.unescape(page.text)
    for name, value in parse_qsl(query):
        assert f'name="{name}" value="{html.escape(value)}"' in page.text


def test_empty_database_is_reported(tmp_path: Path) -> None:
    Store.open(f"sqlite:///{tmp_path / 'results.db'}").close()
    with run_service(tmp_path, reading_open=True) as service:
        answer = service.client.get("/compare?a=6.38.00&b=6.40.00")
    assert (answer.status_code, answer.json()["error"]) == (404, "there are no measurements yet")


def test_invalid_variant_is_refused(tmp_path: Path) -> None:
    """A database may hold measurements from before uploads were validated."""
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        store.add([make_measurement()])
    with closing(sqlite3.connect(tmp_path / "results.db")) as database, database:
        database.execute("UPDATE subject SET variant = '[1]'")
    with run_service(tmp_path, reading_open=True) as service:
        answer = service.client.get("/compare?a=6.38.00&b=6.40.00")
    assert answer.status_code == 400
    assert "not a JSON object" in answer.json()["error"]


@pytest.fixture(scope="module")
def stored_comparisons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    """The same two releases, compared over everything and at one site with another δ."""
    folder = tmp_path_factory.mktemp("asked")
    with Store.open(f"sqlite:///{folder / 'results.db'}") as store:
        store.add(jobs())
        samples = [Sample.from_row(row) for row in store.measurements(Selection(), SAMPLE_COLUMNS)]
        at_site = Selection.parse([], ["site=SITE_A"])
        for question in (
            ComparisonQuery("root", "6.38.00", "6.40.00"),
            ComparisonQuery("root", "6.38.00", "6.40.00", 0.05, at_site),
        ):
            chosen = [s for s in samples if not question.selection.conditions or s.site == "SITE_A"]
            made = compare_samples(chosen, question, now_us=1_772_323_200_000_000)
            store.replace_comparison(question.id, made.pairs, made.verdicts)
    with run_service(folder, reading_open=True) as service:
        yield service


def test_comparisons_describe_their_selection(stored_comparisons: ServiceThread) -> None:
    titles = {
        "ROOT 6.40.00 against 6.38.00, all measurements",
        "ROOT 6.40.00 against 6.38.00, site=SITE_A, ±5 %",
    }
    for address, name in (("/compare", "comparisons"), ("/", "verdicts")):
        page = stored_comparisons.load_page(address)
        rows = stored_comparisons.load_tables(address)[name]
        assert {row["compared"] for row in rows} == titles
        assert all(title in page for title in titles)
        data = {(tuple(row["campaigns"]), tuple(row["where"]), row["delta"]) for row in rows}
        assert data == {((), (), 0.02), ((), ("site=SITE_A",), 0.05)}
    for row in stored_comparisons.load_tables("/compare")["comparisons"]:
        page = stored_comparisons.client.get(
            f"/compare/{row['comparison_id']}", headers=PEOPLE
        ).text
        assert f"<h1>{row['compared']}</h1>" in page
        assert f"Selection: {row['selection']}. Effects within ±{100 * row['delta']:g} %" in page


def test_older_comparisons_have_no_recorded_selection(filled_service: ServiceThread) -> None:
    title = "ROOT 6.40.00 against 6.38.00, selection not recorded"
    for address in ("/", "/compare", "/compare/comparison"):
        assert title in filled_service.load_page(address)
    (listed,) = filled_service.load_tables("/compare")["comparisons"]
    assert listed["campaigns"] is listed["where"] is None


def test_json_has_texts_of_page(measured: ServiceThread, stored_comparisons: ServiceThread) -> None:
    query = "/compare?a=6.38.00&b=6.40.00&where_b=site=SITE_A"
    (first, *_) = stored_comparisons.load_tables("/compare")["comparisons"]
    for service, page, address in (
        (measured, query, query),
        (
            stored_comparisons,
            f"/compare/{first['comparison_id']}",
            f"/comparisons/{first['comparison_id']}",
        ),
    ):
        shown = html.unescape(service.load_page(page))
        told = service.client.get(f"/api/v1{address}").json()
        about = told["about"]
        assert all(sentence in shown for sentence in (*about["attribution"], *about["notes"]))
        lists = [part.split("</ul>")[0] for part in shown.split('<ul class="changes">')[1:]]
        items = "".join(lists)
        of_page = items.count("<li>Largest: ") + items.count(">evidence</a>)</li>")
        assert items.count("<li>") == of_page + len(about["attribution"]) + len(about["notes"])
        assert f'<p class="headline">{about["conclusion"]}</p>' in shown
        assert about["selection"]["compared"] == told["title"]
        assert {"left_out", "of_a", "jobs_b"} <= {*told["tables"]["by_site"][0]}
    missing = measured.client.get(f"/api/v1{query}").json()["tables"]["missing"]
    assert {row["jobs_a"] for row in missing} == {14}


def test_changed_phases_are_named(tmp_path: Path) -> None:
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        for number, one in enumerate(jobs()):
            unzip_s = (2.5 if one.values["axis_root"] == "6.40.00" else 2.0) + 0.01 * (number % 3)
            store.add([Measurement({**one.values, "perfstats_unzip_s": unzip_s})])
    sentence = "by phase, in % of the loop's CPU: decompress +10."
    result = CliRunner().invoke(
        cli, ["--database", f"sqlite:///{tmp_path / 'results.db'}", "compare", "6.38.00", "6.40.00"]
    )
    assert sentence in " ".join(result.output.split())
    with run_service(tmp_path, reading_open=True) as service:
        for address in (
            "/compare?a=6.38.00&b=6.40.00",
            "/compare?a=6.38.00&b=6.40.00&recompute=1",
        ):
            assert sentence in html.unescape(service.load_page(address))


def test_one_sided_series_have_their_own_table(measured: ServiceThread) -> None:
    query = "/compare?a=6.38.00&b=6.40.00&where_b=site=SITE_A"
    page = html.unescape(measured.load_page(query))
    section = page[page.index("On one side only") : page.index(">Notes<")]
    assert section.count("nothing was run on side B") == 2
    assert section.count(HOSTILE_TEXTS[0]) >= 2
    assert "run the test for B here, too" in section
    both = measured.load_page("/compare?a=6.38.00&b=6.40.00")
    assert "On one side only" not in both


def links(page: str, *words: str) -> list[str]:
    """Links to Explore in the first row that contains these words."""
    rows = (part.split("</tr>")[0] for part in page.split("<tr>"))
    row = next(row for row in rows if all(word in row for word in words))
    return [html.unescape(one) for one in re.findall(r'href="(/explore[^"]*)"', row)]


@pytest.mark.parametrize(
    "address",
    [
        "/compare?a=6.38.00&b=6.40.00",
        "/compare?a=6.38.00&b=6.40.00&where=host=node1",
        f"/compare?a=6.38.00&b=6.40.00&where=site=SITE_A&where={quote('site=' + SITES[1])}",
        "/compare?axis=selection&where_a=day<20260401&where_b=day>=20260401",
    ],
)
def test_rows_link_to_jobs_of_either_side(measured: ServiceThread, address: str) -> None:
    page = measured.load_page(address)
    row = next(
        one
        for one in measured.load_tables(address)["by_site"]
        if (one["site"], one["metric"]) == ("SITE_A", "cpu_per_event_s")
    )
    shown = page[page.index('id="by-site"') :]
    for side, link in zip("ab", links(shown, "SITE_A</a>", ">CPU<"), strict=True):
        groups = measured.load_tables(link)["figure"]
        # A job measured on one side only is among them.
        assert len(groups) - row[f"jobs_{side}"] in ((0, 1) if side == "a" else (0,))
        assert {group["number"] for group in groups} == {1}
        logs = [math.log(group["mean"]) for group in groups]
        if len(groups) == row[f"jobs_{side}"] and row["unpaired"]:
            # Each host counts once, but has some more or fewer jobs than others.
            mean = pytest.approx(row[f"{side}_value"], rel=0.002)
            assert math.exp(sum(logs) / len(logs)) == mean


@pytest.mark.parametrize(
    "query, sites, title",
    [
        ("where=host=node1&where=host=node2", SITES, "host=node1 or node2"),
        (f"where=site=SITE_A&where={OTHER}", SITES, f"site=SITE_A or {SITES[1]}"),
        (
            f"where=site=SITE_A&where={OTHER}&where_a=site=SITE_A&where_b=site=SITE_A",
            SITES[:1],
            f"site=SITE_A or {SITES[1]} and A: site=SITE_A and B: site=SITE_A",
        ),
        ("where=site=SITE_A&where=host=node1", SITES[:1], "site=SITE_A and host=node1"),
    ],
)
def test_values_of_one_column_are_alternatives(
    measured: ServiceThread, query: str, sites: tuple[str, ...], title: str
) -> None:
    address = f"/compare?a=6.38.00&b=6.40.00&{query}"
    told = measured.client.get(f"/api/v1{address}").json()
    assert {row["site"] for row in told["tables"]["by_site"]} == {*sites}
    assert told["title"] == f"ROOT 6.40.00 against 6.38.00, {title}"
    # The command has no alternatives.
    page = measured.load_page(address)
    assert ("treehammer compare" in page) == (" or " not in title)


def test_pooled_rows_link_to_sites(measured: ServiceThread) -> None:
    page = measured.load_page("/compare?a=6.38.00&b=6.40.00")
    shown = page[page.index('id="pooled"') : page.index('id="by-site"')]
    for link in links(shown, ">CPU<"):
        groups = measured.load_tables(link)["figure"]
        assert {group["site"] for group in groups} == {*SITES}


def test_form_keeps_all_campaigns(filled_service: ServiceThread) -> None:
    with Store.open(filled_service.url) as store:
        ids = [one.id for one in store.campaigns()][:2]
    query = "&".join(f"campaign={one}" for one in ids)
    page = filled_service.client.get(f"/compare?a=6.38.00&b=none&{query}", headers=PEOPLE).text
    assert re.findall(r'<option value="([^"]*)" selected>', page.split("Conditions")[0]) == [
        "root",
        *ids,
    ]
