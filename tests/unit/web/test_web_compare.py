"""Compare: stored verdicts and comparisons computed on request."""

from __future__ import annotations

import html
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
    build_pair,
    build_verdict,
    make_campaign_row,
    make_measurement,
)
from page_contents import PageTable
from page_database import HOSTILE_TEXTS
from service_thread import BROWSER, ServiceThread, run_service

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.comparison.comparison import ComparisonQuery, compare_samples
from treehammer.analysis.statistics.sample import SAMPLE_COLUMNS, Sample, find_axis_value
from treehammer.cli import cli
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.record.metric_catalogue import Value
from treehammer.hctests.definition.model import Scalar, Variant
from treehammer.sql.core.evidence import VerdictEvidence
from treehammer.sql.read.query_model import Selection
from treehammer.web.pages import comparison_list_page

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
    with run_service(tmp_path_factory.mktemp("measured"), reading_open=True) as service:
        service.store.add(jobs())
        yield service


def test_stored_verdicts_are_shown_as_they_are(filled_service: ServiceThread) -> None:
    tables = filled_service.load_tables("/compare/comparison")
    rows = filled_service.store.verdicts("comparison")
    records = [*tables["pooled"], *tables["by_site"], *tables["missing"]]
    assert len(records) == len(rows)
    verdicts = {(row.scope, row.site, row.metric): row for row in rows}
    for line in records:
        row = verdicts[line["scope"], line["site"], line["metric"]]
        assert (line["effect"], line["low"], line["high"]) == (row.effect, row.low, row.high)
        assert (line["verdict"], line["jobs"], line["hosts"]) == (row.verdict, row.jobs, row.hosts)


def test_exact_counters_are_stored_and_shown(pages: ServiceThread, tmp_path: Path) -> None:
    calls = {"6.38.00": 1000, "6.40.00": 1010}
    measurements = []
    for job in jobs():
        counters: dict[str, Value] = {
            "read_calls": calls[str(job.values["axis_root"])],
            # It varies from job to job, and is the same on both sides.
            "bytes_read": 5_000_000 + int(str(job.values["job_id"])[-1]) % 2,
        }
        measurements.append(Measurement({**job.values, "door_protocol": "file", **counters}))
    pages.store.add(measurements)
    options = ["--database", f"sqlite:///{tmp_path / 'results.db'}", "compare"]
    done = CliRunner().invoke(cli, [*options, "6.38.00", "6.40.00"], standalone_mode=False)
    assert "+1.0 % read calls" in done.output
    question = ComparisonQuery("root", "6.38.00", "6.40.00")
    verdicts = pages.store.verdicts(question.id)
    evidence = [row.evidence.counters for row in verdicts]
    assert [values for values in evidence if values] == [
        {"bytes_read": ("varies", 5e6, 5e6, 14), "read_calls": ("more", 1000, 1010, 14)}
    ] * len(SITES)
    for address in (f"/compare/{question.id}", "/compare?a=6.38.00&b=6.40.00&recompute=1"):
        page = pages.read(address)
        summary = (
            "1 variant at 2 sites: 2 more, 2 that vary between executions (+1.0 % read calls)."
        )
        assert f"Exact counters of {summary}" in page.text
        assert page.tables["counters"].column("b_value") == ["1,010"] * 2
        rows = pages.load_tables(address)["counters"]
        assert {(row["metric"], row["verdict"], row["site"]) for row in rows} == {
            (name, verdict, site)
            for name, verdict in (("bytes_read", "varies"), ("read_calls", "more"))
            for site in SITES
        }


def test_instructions_are_shown_beside_times(pages: ServiceThread) -> None:
    axes = {"cache_mb": 30}
    work: dict[str, Any] = {"test_hash": "t", "dataset_hash": "d"}
    of_a = {**work, "variant": json.dumps({"root": "6.38.00", **axes})}
    evidence = VerdictEvidence(campaigns=(), of_a=of_a)
    pages.store.replace_comparison("c", [], [build_verdict("c", evidence=evidence)])
    for root, instructions in (("6.38.00", 400_116_000), ("6.40.00", 400_873_000)):
        variant = json.dumps({"root": root, **axes})
        facts = {"variant": variant, "instructions": instructions, **work}
        pages.store.replace_instruction_count(build_instruction_rows(root, lines=1, **facts))
    (row,) = pages.load_tables("/compare/c")["instructions"]
    assert (row["a_per_event"], row["b_per_event"]) == (400_116, 400_873)
    page = pages.load_page("/compare/c")
    assert "+0.19 %" in page
    assert "libRIO.so +757" in page
    assert "they are not time" in page


def test_what_stands_out_comes_first(filled_service: ServiceThread) -> None:
    rows = filled_service.load_tables("/compare/comparison")["by_site"]
    weights = [abs(row["effect"]) / (row["high"] - row["low"]) for row in rows]
    assert weights == sorted(weights, reverse=True)
    assert rows[0]["verdict"] == "faster"


def test_conditions_of_another_version_are_shown_unchanged(pages: ServiceThread) -> None:
    """On a column that this version does not know: no page fails for it."""
    evidence = VerdictEvidence(
        campaigns=(), where=("column_of_next=1",), of_a={"axis_root": "6.38.00"}
    )
    rows = [build_verdict("next", scope="site", evidence=evidence)]
    pages.store.replace_comparison("next", [], rows)
    for address in ("/", "/compare", "/compare/next", "/api/v1/overview"):
        page = pages.client.get(address, headers=BROWSER)
        assert (page.status_code, "column_of_next=1" in page.text) == (200, True), address


def test_compared_campaigns_are_called_by_their_names(pages: ServiceThread) -> None:
    for id_ in ("first", "second"):
        pages.store.add_campaign(make_campaign_row(id_, name=f"{id_} night"), [])
    sides = {"axis": "campaign", "a": "first", "b": "second"}
    nights = ComparisonQuery("campaign", "first", "second").id
    verdict_row = build_verdict(nights, scope="site", verdict="slower", effect=0.1, **sides)
    rows = [replace(verdict_row, site=site) for site in SITES]
    over_sites = {"scope": "sites", "evidence": VerdictEvidence(points_at_change=True)}
    rows.append(build_verdict(nights, label="all of it", **over_sites, **sides))
    pages.store.replace_comparison(nights, [], rows)
    by_name = "/compare?axis=campaign&a=first+night&b=sec"
    assert {row["comparison_id"] for row in pages.load_tables(by_name)["by_site"]} == {nights}
    for address in (f"/compare/{nights}", "/compare", "/", by_name):
        page = pages.load_page(address)
        assert "campaign second night against first night" in page, address
    page = pages.load_page(f"/compare/{nights}")
    assert "first night, ms/event" in page
    assert "second night, ms/event" in page
    assert "points at campaign second night: all of it" in page
    comparisons = pages.load_tables("/compare")["comparisons"]
    assert (comparisons[0]["a"], comparisons[0]["b"]) == ("first", "second")


def test_a_live_comparison_is_that_of_the_command(measured: ServiceThread) -> None:
    tables = measured.load_tables("/compare?a=6.38.00&b=6.40.00")
    samples = [
        Sample.from_row(row) for row in measured.store.measurements(Selection(), SAMPLE_COLUMNS)
    ]
    question = ComparisonQuery("root", "6.38.00", "6.40.00", selection=Selection())
    expected = compare_samples(samples, question, now_us=1)
    assert measured.store.verdicts(question.id) == []
    effects = {(row["site"], row["metric"]): row["effect"] for row in tables["by_site"]}
    assert effects == {(r.site, r.metric): r.effect for r in expected.of_series}
    assert {row["verdict"] for row in tables["by_site"]} == {"slower"}
    page = measured.load_page("/compare?a=6.38.00&b=6.40.00")
    assert "treehammer compare 6.38.00 6.40.00" in page
    assert "which points at the release" in page
    assert "<script>document" not in page


def test_unmeasured_sides_are_refused_before_reading(
    filled_service: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparison_list_page, "compare_now", None)
    for axis, value in (("root", "6.40.00"), ("site", "SITE_A")):
        text = filled_service.read(f"/compare?axis={axis}&a={value}&b=nonsense", 404).text
        assert f"No measurement has {axis}=nonsense. Values present:" in text
        assert value in text


def test_only_measured_axes_are_offered(pages: ServiceThread) -> None:
    """Another one is refused at once, before measurements are read."""
    pages.store.add(jobs())
    page = pages.read("/compare")
    axes = set(page.list_choices("axis"))
    assert {"root", "site", "door", "selection"} <= axes
    assert not {"cache_mb", "format", "server_version", "campaign"} & axes
    assert (
        "Measured with one value only, so that nothing can be said: cache_mb (30), format (ttree)"
        in page.text
    )
    refused = pages.read("/compare?axis=format&a=ttree&b=rntuple", 404).text
    assert "No measurement has the axis format. Axes with several values: root, site" in refused
    assert "--axis" not in refused
    shared = (("root", "6.40.00"), ("cache_mb", 300))
    pages.store.add(
        Measurement({**job.values, "variant": variant, "measurement_id": f"{number:024x}"})
        for number, job in enumerate(jobs())
        for variant in [Variant((*shared, ("clients", number % 2))).canonical_json]
    )
    links = pages.read("/compare").list_links(r".*axis=(cache_mb|clients)")
    assert [link.partition("?")[2] for link in links] == ["axis=cache_mb&a=30&b=300"]


@pytest.mark.usefixtures("draw_in_process")
def test_effect_on_a_cpu_model_is_that_of_the_verdict(pages: ServiceThread) -> None:
    """A job of three launches counts more than one of two."""
    pages.store.add([make_measurement("job", host="host", cpu_model="EPYC")])
    pairs = [
        replace(build_pair("c", size), job_id=f"job{rounds}", rounds=rounds)
        for rounds, size in ((2, 0.0), (3, 0.1))
    ]
    row = build_verdict("c", verdict="slower", effect=0.06, low=0.05, high=0.07, scope="host")
    row = replace(row, site="local", label="label", evidence=VerdictEvidence(launches=5))
    pages.store.replace_comparison("c", pairs, [row])
    assert "others may differ: EPYC +6.2 % (2 jobs)." in pages.read("/compare/c").text


@pytest.mark.usefixtures("draw_in_process")
def test_first_screen_says_where_on_which_node_and_links_outputs(pages: ServiceThread) -> None:
    """Sites that lose most by a setting, CPU models, the output of the slowest job, a slide."""
    measurements = [
        Measurement({**job.values, "cpu_model": f"CPU {int(str(job.values['host'])[-1]) % 2}"})
        for job in jobs("cache_mb", (30, 300))
    ]
    pages.store.add(measurements)
    address = "/compare?axis=cache_mb&a=30&b=300"
    page = pages.read(address)
    findings = page.list_texts("li")
    assert any(re.match(r"wall, Lose: .*SITE_A \(\+\d", text) for text in findings), findings
    models = r"Slower variants by CPU model: CPU 0 \+\d.* % \(\d+ jobs\), CPU 1 \+\d"
    assert any(re.match(models, text) for text in findings), findings
    assert len(page.list_links(r".*drawing=talk\.")) == 3
    label = quote(pages.load_tables(address)["by_site"][0]["label"])
    cell = pages.read(f"{address}&site=SITE_A&variant={label}")
    outputs = cell.list_links("/jobs/.*#output")
    assert len(outputs) == 3
    slide = pages.client.get(f"{address}&drawing=talk.svg").text
    assert re.match("<svg[^>]*><title>cache_mb 300 against 30, all", slide), slide
    width, height = map(float, re.findall(r'(?:width|height)="([\d.]+)"', slide)[:2])
    assert width / height == pytest.approx(16 / 9, rel=0.01)
    assert "needs 9" in slide or "needs 10" in slide


def test_form_suggests_values_of_the_axis(filled_service: ServiceThread) -> None:
    page = filled_service.load_page("/compare?axis=site")
    assert page.count('list="values-site"') == 2
    assert '<option value="SITE_A"></option>' in page.partition('id="values-site"')[2]
    releases = page.partition('id="values-root"')[2].partition("</datalist>")[0]
    assert '<option value="6.40.00"></option>' in releases
    assert "SITE_A" not in releases


@pytest.mark.parametrize(
    "axis, recorded, asked",
    [
        ("root", ("6.38.00", "6.40.00"), ("6.38.00", "6.40.00")),
        ("cache_mb", (0.5, 1), ("0.5", "1")),
        ("fast", (False, True), ("false", "True")),
    ],
)
def test_a_stored_comparison_answers_the_same_question(
    pages: ServiceThread, axis: str, recorded: tuple[Scalar, Scalar], asked: tuple[str, str]
) -> None:
    pages.store.add(jobs(axis, recorded))
    samples = [
        Sample.from_row(row) for row in pages.store.measurements(Selection(), SAMPLE_COLUMNS)
    ]
    a, b = (find_axis_value(samples, axis, side) for side in asked)
    question = ComparisonQuery(axis, a, b, 0.05, Selection())
    made = compare_samples(samples, question, now_us=1_772_323_200_000_000)
    pages.store.replace_comparison(question.id, made.pairs, made.verdicts)
    address = f"/compare?axis={axis}&a={asked[0]}&b={asked[1]}&delta=0.05"
    assert "Judged 2026-03-01" in pages.load_page(address)
    assert "Judged" not in pages.load_page(address + "&recompute=1")
    rows = pages.client.get(f"/api/v1{address}").json()["tables"]["by_site"]
    assert {row["comparison_id"] for row in rows} == {question.id}
    pairs = pages.load_tables(f"/compare/{question.id}")["pairs"]
    expected = pages.load_page(f"/compare/{question.id}")
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


@pytest.mark.parametrize(
    "address, status, expected",
    [
        ("/compare?a=1&b=1", 400, "both sides"),
        ("/compare?a=6.40&b=6.4", 404, "no measurement has root=6.40"),
        (
            "/compare?axis=selection&where_a=site=SITE_A&where_b=site=+SITE_A",
            400,
            "both sides select the same",
        ),
        ("/compare?a=6.38.00&b=6.40.00&campaign=none", 404, "no campaigns"),
        ("/compare?axis=selection&where_a=site=X&where_b=site=Y", 404, "no measurements match"),
        ("/compare/nothing", 404, "comparison does not exist"),
        ("/compare?a=+&b=6.38.00&axis=cache_mb", 400, "A is missing"),
        ("/compare?axis=cache_mb&a=&b=", 400, "A and B are missing"),
        ("/compare?where_a=day<1&where_b=day>1", 400, "choose the axis selection"),
        ("/compare?axis=selection&a=6.38.00&b=6.40.00", 400, "conditions for either side"),
        (
            "/compare?axis=selection&where_a=site=SITE_A&where_b=site!=SITE_A",
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


def test_sides_at_different_sites_are_listed_as_missing(pages: ServiceThread) -> None:
    """The conditions do not select different sites, so the page lists them."""
    places = {"6.38.00": SITES[0], "6.40.00": SITES[1]}
    pages.store.add(
        job for job in jobs() if job.values["site"] == places[str(job.values["axis_root"])]
    )
    missing = pages.load_tables("/compare?a=6.38.00&b=6.40.00")["missing"]
    assert {(row["site"], row["verdict"]) for row in missing} == {
        (SITES[0], "only in A"),
        (SITES[1], "only in B"),
    }


def test_commits_may_be_abbreviated(pages: ServiceThread) -> None:
    commits = {"6.38.00": "a" * 40, "6.40.00": "b" * 40}
    shared: dict[str, Value] = {"axis_root": "6.40.00", "test_path": "read", "dirty": False}
    measurements = []
    for job in jobs():
        commit = commits[str(job.values["axis_root"])]
        identity = {"commit_id": commit, "test_hash": commit, "variant": '{"root":"6.40.00"}'}
        measurements.append(Measurement({**job.values, **shared, **identity}))
    pages.store.add(measurements)
    page = html.unescape(pages.load_page("/compare?axis=commit&a=aaaaaa&b=bbbbbb"))
    assert pages.client.get("/compare?axis=commit&a=aaaaaa&b=c").status_code == 404
    assert "commit bbbbbbbbbb against aaaaaaaaaa" in page
    assert "slower" in page


@pytest.mark.parametrize(
    "query, status, expected",
    [
        ("a=6.38.00&b=7", 404, "No measurement has root=7"),
        ("a=6.38.00&where=day>1", 400, "B is missing"),
        ("b=6.38.00&where=day>1", 400, "A is missing"),
        ("where_b=day>1", 400, "A and B are missing"),
        ("a=6.38.00&b=6.40.00&where=dai>1", 400, "Unknown column 'dai'"),
    ],
)
def test_refused_comparison_keeps_form_values(
    measured: ServiceThread, query: str, status: int, expected: str
) -> None:
    page = measured.read(f"/compare?{query}", status)
    assert expected in page.text
    assert all(value in page.fields[name] for name, value in parse_qsl(query))


def test_empty_database_is_reported(pages: ServiceThread) -> None:
    answer = pages.client.get("/compare?a=6.38.00&b=6.40.00")
    assert (answer.status_code, answer.json()["error"]) == (404, "there are no measurements yet")


def test_invalid_variant_is_refused(pages: ServiceThread, tmp_path: Path) -> None:
    """A database may hold measurements from before uploads were validated."""
    pages.store.add(make_measurement(root, axis_root=root) for root in ("6.38.00", "6.40.00"))
    with closing(sqlite3.connect(tmp_path / "results.db")) as database, database:
        database.execute("UPDATE subject SET variant = '[1]'")
    answer = pages.client.get("/compare?a=6.38.00&b=6.40.00")
    assert answer.status_code == 400
    assert "not a JSON object" in answer.json()["error"]


@pytest.fixture(scope="module")
def stored_comparisons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    """The same two releases, compared over everything and at one site with another δ."""
    with run_service(tmp_path_factory.mktemp("asked"), reading_open=True) as service:
        service.store.add(jobs())
        samples = [
            Sample.from_row(row) for row in service.store.measurements(Selection(), SAMPLE_COLUMNS)
        ]
        at_site = Selection.parse([], ["site=SITE_A"])
        for question in (
            ComparisonQuery("root", "6.38.00", "6.40.00"),
            ComparisonQuery("root", "6.38.00", "6.40.00", 0.05, at_site),
        ):
            chosen = [s for s in samples if not question.selection.conditions or s.site == "SITE_A"]
            made = compare_samples(chosen, question, now_us=1_772_323_200_000_000)
            service.store.replace_comparison(question.id, made.pairs, made.verdicts)
        yield service


def test_selected_days_are_apart_from_since_when_it_is_so() -> None:
    evidence = VerdictEvidence(campaigns=(), where=("day>=20260301", "day<=20260331"))
    text = verdict_text.describe_selection(evidence, {})
    assert text == "days from 2026-03-01 and days to 2026-03-31"


def test_comparisons_describe_their_selection(stored_comparisons: ServiceThread) -> None:
    titles = {
        "ROOT 6.40.00 against 6.38.00, all measurements",
        "ROOT 6.40.00 against 6.38.00, site=SITE_A, ±5 %",
    }
    for address, name in (("/compare", "comparisons"), ("/", "verdicts")):
        rows = stored_comparisons.load_tables(address)[name]
        assert {row["compared"] for row in rows} == titles
        data = {(tuple(row["campaigns"]), tuple(row["where"]), row["delta"]) for row in rows}
        assert data == {((), (), 0.02), ((), ("site=SITE_A",), 0.05)}
    for row in stored_comparisons.load_tables("/compare")["comparisons"]:
        page = stored_comparisons.read(f"/compare/{row['comparison_id']}")
        assert page.list_texts("h1") == [row["compared"]]
        percent = f"Effects within ±{100 * row['delta']:g} %"
        assert f". Selection: {row['selection']}. {percent}" in page.text


def test_json_has_texts_of_page(measured: ServiceThread, stored_comparisons: ServiceThread) -> None:
    query = "/compare?a=6.38.00&b=6.40.00&where_b=site=SITE_A"
    (first, *_) = stored_comparisons.load_tables("/compare")["comparisons"]
    for service, address, operation in (
        (measured, query, query),
        (
            stored_comparisons,
            f"/compare/{first['comparison_id']}",
            f"/comparisons/{first['comparison_id']}",
        ),
    ):
        page, document = service.read(address), service.load_document(operation)
        about = document["about"]
        items = [text for text in page.list_texts("li") if text.startswith("Largest: ")]
        sentences = {*about["attribution"], *about["notes"]}
        assert sentences <= {*page.list_texts("li")}
        assert len(items) <= 1
        assert page.list_texts("p", "headline") == [about["conclusion"]]
        assert about["selection"]["compared"] == document["title"]
        assert {"left_out", "of_a", "jobs_b"} <= {*document["tables"]["by_site"][0]}
    missing = measured.client.get(f"/api/v1{query}").json()["tables"]["missing"]
    assert {row["jobs_a"] for row in missing} == {14}


def test_changed_phases_are_named(pages: ServiceThread) -> None:
    pages.store.add(
        Measurement({**job.values, "perfstats_unzip_s": base_s + 0.01 * (number % 3)})
        for number, job in enumerate(jobs())
        for base_s in [2.5 if job.values["axis_root"] == "6.40.00" else 2.0]
    )
    sentence = "by phase, in % of the loop's CPU: decompress +10."
    for address in ("/compare?a=6.38.00&b=6.40.00", "/compare?a=6.38.00&b=6.40.00&recompute=1"):
        assert sentence in html.unescape(pages.load_page(address))


def test_one_sided_series_have_their_own_table(measured: ServiceThread) -> None:
    query = "/compare?a=6.38.00&b=6.40.00&where_b=site=SITE_A"
    page = measured.read(query)
    missing = page.tables["missing"]
    assert missing.column("site") == [HOSTILE_TEXTS[0]] * 2
    (section,) = (text for text in page.list_texts("section") if "On one side only" in text)
    assert section.count("nothing was run on side B") == 2
    assert "run the test for B here, too" in section
    assert "missing" not in measured.read("/compare?a=6.38.00&b=6.40.00").tables


def list_job_links(table: PageTable, **texts: str) -> list[str]:
    """List the links to Explore in the first row with these texts."""
    cells = next(
        cells
        for cells, row in zip(table.cells, table.rows, strict=True)
        if texts.items() <= row.items()
    )
    return [cell.link for cell in cells.values() if cell.link.startswith("/explore")]


@pytest.mark.parametrize(
    "address",
    [
        f"/compare?a=6.38.00&b=6.40.00&where=site=SITE_A&where={quote('site=' + SITES[1])}",
        "/compare?axis=selection&where_a=day<20260401&where_b=day>=20260401",
    ],
)
def test_rows_link_to_jobs_of_either_side(measured: ServiceThread, address: str) -> None:
    row = next(
        record
        for record in measured.load_tables(address)["by_site"]
        if (record["site"], record["metric"]) == ("SITE_A", "cpu_per_event_s")
    )
    table = measured.read(address).tables["by_site"]
    links = list_job_links(table, site="SITE_A", metric="CPU")
    for side, link in zip("ab", links, strict=True):
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
    document = measured.client.get(f"/api/v1{address}").json()
    assert {row["site"] for row in document["tables"]["by_site"]} == {*sites}
    assert document["title"] == f"ROOT 6.40.00 against 6.38.00, {title}"
    # The command has no alternatives.
    page = measured.load_page(address)
    assert ("treehammer compare" in page) == (" or " not in title)


def test_pooled_rows_link_to_sites(measured: ServiceThread) -> None:
    table = measured.read("/compare?a=6.38.00&b=6.40.00").tables["pooled"]
    for link in list_job_links(table, metric="CPU"):
        groups = measured.load_tables(link)["figure"]
        assert {group["site"] for group in groups} == {*SITES}


def test_form_keeps_all_campaigns(filled_service: ServiceThread) -> None:
    ids = [campaign.id for campaign in filled_service.store.campaigns()][:2]
    query = "&".join(f"campaign={campaign}" for campaign in ids)
    fields = filled_service.read(f"/compare?a=6.38.00&b=none&{query}", 404).fields
    assert (fields["axis"], fields["campaign"]) == (["root"], ids)


def test_settings_with_an_empty_value_are_linked_without_it(pages: ServiceThread) -> None:
    pages.store.add(
        make_measurement(f"job {text}", variant=json.dumps({"text": text}), axis_root="6.40.00")
        for text in ("", "a", "b")
    )
    assert pages.read("/compare").list_links("/compare.*axis=text") == [
        "/compare?axis=text&a=a&b=b"
    ]
