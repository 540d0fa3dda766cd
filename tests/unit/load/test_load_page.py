"""The page of a campaign's load: levels, steps, figures and refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from measurement_factory import make_campaign_row, make_job_row, make_measurement, make_operation
from page_contents import load_charts, read_tables
from page_database import CAMPAIGN, LIMITED_STEP, RATES, SERVERS, STEPS, add_load_campaign
from service_thread import ServiceThread, run_service

from treehammer.collectors.record.operation_steps import LoadProgress
from treehammer.load.charts import load_levels
from treehammer.load.operation_figures import load_operations
from treehammer.load.pages import load_page
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.web.campaign_report import write_report
from treehammer.web.figures.line_chart import NumberAxis

PAGE = f"/campaigns/{CAMPAIGN}/load"
API = f"/api/v1{PAGE}"


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    with run_service(tmp_path_factory.mktemp("loaded"), reading_open=True) as service:
        add_load_campaign(service.store)
        yield service


def test_levels_equal_stored_operations(loaded: ServiceThread) -> None:
    rows = loaded.load_tables(API)["levels"]
    assert [row["label"] for row in rows] == [f"clients={rate}" for rate in RATES]
    assert [row["attempted_hz"] for row in rows] == [20, 100, 200]
    assert [row["observed_hz"] for row in rows] == [20, 100, 150]
    assert [row["limited_steps"] for row in rows] == [0, 0, 2]
    assert rows[2]["failed_fraction"] == pytest.approx(0.25)
    assert rows[2]["failures"] == {"reset": 5 * 500}
    with loaded.store.snapshot() as snapshot:
        stored = load_operations(
            snapshot, Selection((CAMPAIGN,)), columns=["variant"], key=lambda row: row["variant"]
        )
    for row in rows:
        [group] = [level for level in stored if level.key == row["variant"]]
        names = ("done", "seconds", "active_clients", "measurements")
        assert [row[name] for name in names] == [getattr(group, name) for name in names]
        assert row["p95_s"] == group.latency.quantile(0.95)


def test_highest_load_is_shown_over_time(loaded: ServiceThread) -> None:
    document = loaded.load_document(PAGE)
    steps = document["tables"]["steps"]
    assert [row["start_s"] for row in steps] == [10 * step for step in range(STEPS)]
    limited = steps[LIMITED_STEP]
    assert {limited[name] for name in ("observed_hz", "least_hz")} == {None}
    assert {row["observed_hz"] for row in steps if row["steps"]} == {150}
    servers = {row["server"]: row for row in document["tables"]["servers"]}
    assert set(servers) == {"", *SERVERS}
    fast, slow = (servers[name] for name in SERVERS)
    assert fast["observed_hz"] + slow["observed_hz"] == pytest.approx(150)
    evenness = slow["done"] / fast["done"]
    assert document["about"]["evenness"] == pytest.approx(evenness)
    assert slow["p50_s"] == pytest.approx(0.5, rel=0.01)
    assert [row["site"] for row in document["tables"]["sites"]] == ["SITE_A", "SITE_B"]
    assert [row["observed_hz"] for row in document["tables"]["sites"]] == [75, 75]
    starts = document["tables"]["starts"]
    assert [(row["jobs"], row["judgment"]) for row in starts] == [(2, "good")] * len(RATES)
    assert starts[0]["spread_s"] == pytest.approx(0.1)


def test_report_opens_with_the_sentence_and_figures_of_the_page(
    loaded: ServiceThread, store: Store, tmp_path: Path
) -> None:
    add_load_campaign(store)
    write_report(str(store.url), [CAMPAIGN], file := tmp_path / "report.html")
    report = file.read_text("utf-8")
    page = loaded.read(PAGE)
    assert (
        unescape(re.findall("<h1>(.*)</h1>", report)[0])
        == "The storage of SITE_C keeps 100 open operations/s; at 200/s 25 % fail"
    )
    assert "The storage of SITE_C keeps 100 open operations/s; at 200/s 25 % fail." in page.text
    assert re.findall("<h2.*?>(.*?)<", report)[:2] == ["Load", "What was measured"]
    assert report.count("<figure>") == len(page.charts)
    for reported, page_row in zip(
        read_tables(report)["levels"].rows, page.tables["levels"].rows, strict=True
    ):
        assert reported.items() <= page_row.items()
    assert "CPU efficiency" not in report


def test_levels_link_to_their_time_steps(loaded: ServiceThread) -> None:
    addresses = loaded.read(PAGE).list_links(".*/load.*#time")
    assert len(addresses) == len(RATES)
    assert "Over time: clients=20" in loaded.read(addresses[0]).text
    level = loaded.load_tables(API)["levels"][0]["load"]
    steps = loaded.load_tables(f"{API}?load={level}")["steps"]
    assert {row["observed_hz"] for row in steps} == {20}


def test_figures_have_points_marks_and_ideal(loaded: ServiceThread) -> None:
    page = unescape(loaded.load_page(PAGE))
    page += json.dumps(load_charts(page), ensure_ascii=False)
    for text in (
        "The storage of SITE_C keeps 100 open operations/s; at 200/s 25 % fail.",
        "clients=200: 150 1/s at 200/s attempted; 2 steps left out",
        "ideal: all succeed at once",
        "S1's target, 100 1/s",
        "step 3: observed 150/s",
        "step 3: failed 50/s",
        f"step {LIMITED_STEP}: 2 of 2 steps of jobs left out",
        "Evenness: slow:1094 has the smallest rate, 33 % of the largest.",
        "Failures: 2,500 reset.",
    ):
        assert text in page
    assert re.search(r"step 3: p99 50\d ms", page)
    assert re.search(r"Slowest: slow:1094, p50 \d+ ms, 2\d\d times that of the fastest", page)
    assert f"step {LIMITED_STEP}: observed" not in page
    assert "<script>" not in page
    assert loaded.read(f"/campaigns/{CAMPAIGN}").list_links(f"{PAGE}$") == [PAGE]


@pytest.mark.parametrize("test, is_study_s1", [("read-rate", True), ("pretend-transfer", False)])
def test_operations_and_sides_are_shown_one_at_a_time(
    pages: ServiceThread, test: str, is_study_s1: bool
) -> None:
    pages.store.add_campaign(make_campaign_row(test_name=test), [])
    steps = [
        make_operation([0.1] * 5),
        make_operation([0.2] * 50, operation="read", bytes=125_000_000),
        make_operation([0.1] * 50, operation="read", side="server"),
    ]
    pages.store.add([make_measurement(operations=steps, variant='{"clients":2,"root":"none"}')])
    about = pages.load_document("/campaigns/campaign/load")["about"]
    assert (about["operation"], about["side"]) == ("read", "client")
    page = unescape(pages.load_page("/campaigns/campaign/load"))
    assert "Over time: clients=2 root=none" in page
    assert "step 0: 12.5 MB/s" in page
    target = "Study S1's target of 150 MB/s is beyond the drawing."
    assert (target in page) == is_study_s1
    (other,) = pages.read("/campaigns/campaign/load").list_links(r"\?operation=read&side=server")
    contents = pages.read(f"/campaigns/campaign/load{other}")
    assert any(heading.endswith("read, server side") for heading in contents.list_texts("h2"))
    refused = pages.get_path("/campaigns/campaign/load?operation=write")
    assert refused.status_code == 400
    assert "Known: open, read" in refused.json()["error"]


def test_blocks_have_an_ideal_total_and_times_without_the_round_trip(pages: ServiceThread) -> None:
    """Study S1 compares the total rate with the ideal one, and excludes the round trip."""
    pages.store.add_campaign(make_campaign_row(test_name="read-rate"), [])
    for clients, trip_s, failed in ((2, 0.02, 0), (8, 0.02, 40)):
        steps = [
            make_operation(
                [0.12] * (10 * clients - failed),
                {"timeout": failed} if failed else {},
                operation="read",
                bytes=2_500_000 * (10 * clients - failed),
            )
        ]
        variant = json.dumps({"clients": clients})
        pages.store.add(
            [make_measurement(str(clients), operations=steps, variant=variant, door_rtt_s=trip_s)]
        )
    rows = pages.load_tables("/api/v1/campaigns/campaign/load")["levels"]
    assert [row["net_mean_s"] for row in rows] == pytest.approx([0.1, 0.1], rel=0.01)
    page = pages.load_page("/campaigns/campaign/load")
    assert "100 ms" in page
    rates, megabytes, *_ = (json.dumps(chart) for chart in load_charts(page))
    for chart in (rates, megabytes):
        assert "ideal: all succeed at once" in chart
    assert "Study S1's target of 150 MB/s" in unescape(page)


def test_rates_of_running_jobs_are_shown_until_they_end(
    pages: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Batch:
        steps: list[LoadProgress] = []

        def read_load_steps(self, batch_ids: Iterable[str]) -> list[LoadProgress]:
            assert list(batch_ids) == ["1.0@c.a"]
            return self.steps

    job = make_job_row("a", state="running", batch_id="1.0@c.a")
    pages.store.add_campaign(make_campaign_row(test_name="read-rate"), [job])
    batch = Batch()
    monkeypatch.setattr(load_page, "open_own_batch_system", lambda *_: batch)
    address = "/campaigns/campaign/load"
    assert "1 job running." in pages.read(address).list_texts("p")
    batch.steps = [LoadProgress(3, 10, 1000, 20, 5_000_000)]
    sentence = "Now: step 3, 1 job: 100 operations/s, 2 failed/s, 0.5 MB/s."
    assert sentence in pages.read(address).list_texts("p")
    part = pages.load_page(f"{address}?part=running")
    assert sentence in part
    assert "hx-get" in part
    assert "<html" not in part
    pages.store.set_jobs([replace(job, state="done")])
    part = pages.load_page(f"{address}?part=running")
    assert "All jobs have ended" in part
    assert "hx-get" not in part


def test_client_and_server_are_drawn_together(pages: ServiceThread) -> None:
    """Calls that wait before the server sees them are slow for the client alone."""
    pages.store.add_campaign(make_campaign_row(), [])
    client = [make_operation([1.0] * 10, step=step) for step in range(2)]
    server = [make_operation([0.01] * 10, step=step, side="server") for step in range(2)]
    packets = [make_operation([], side="server", operation="net_send", scheduled=10**6)]
    for site, rows in (("NEAR", client), ("DISK1", [*server, *packets])):
        pages.store.add(
            [make_measurement(site, operations=rows, site=site, storage_site="STORAGE")]
        )
    page = unescape(pages.load_page("/campaigns/campaign/load"))
    document = pages.load_document("/campaigns/campaign/load")
    assert (document["about"]["operation"], document["about"]["side"]) == ("open", "client")
    for text in ("Client and server over time", "step 1: client p50 1", "step 1: server p99 10"):
        assert text in page
    sides = document["tables"]["sides"]
    assert [(row["step"], row["client_done"], row["server_done"]) for row in sides] == [
        (0, 10, 10),
        (1, 10, 10),
    ]
    assert sides[0]["client_p50_s"] == pytest.approx(1, rel=0.01)
    assert sides[0]["server_p50_s"] == pytest.approx(0.01, rel=0.01)


def test_ramp_makes_levels(pages: ServiceThread) -> None:
    plan = {"definition": {"load": {"ramp": "1/20s", "duration_s": 60.0}}}
    pages.store.add_campaign(make_campaign_row(plan=json.dumps(plan)), [])
    for index in range(2):
        steps = [make_operation([0.1] * 10, step=n) for n in range(2 * index, 6)]
        pages.store.add([make_measurement(f"{index}", operations=steps, load_jobs=2)])
    rows = pages.load_tables("/api/v1/campaigns/campaign/load")["levels"]
    assert [(row["label"], row["jobs"], row["attempted_hz"]) for row in rows] == [
        ("1 job", 1, 1.0),
        ("2 jobs", 2, 2.0),
    ]


def test_campaign_without_usable_operations(pages: ServiceThread) -> None:
    pages.store.add_campaign(make_campaign_row(), [])
    assert "No timed measurement" in pages.load_page("/campaigns/campaign/load")
    limited = make_operation([9.0], generator_limited=True)
    pages.store.add([make_measurement(operations=[limited])])
    page = pages.load_page("/campaigns/campaign/load")
    assert "no rate can be shown" in page
    assert "the storage carries at least 0.1 operations/s" in page
    assert pages.get_path("/campaigns/other/load").status_code == 404


def test_invalid_load_of_uploaded_plan_is_ignored(pages: ServiceThread) -> None:
    loads: list[object] = [{"ramp": "x"}, {"step_s": 0}, {"ceiling": 3}, {"x": 1}]
    for number, load in enumerate(loads):
        plan = json.dumps({"definition": {"load": load}})
        pages.store.add_campaign(make_campaign_row(f"c{number}", plan=plan), [])
        operations = [make_operation()]
        pages.store.add(
            [
                make_measurement(
                    f"c{number}", campaign_id=f"c{number}", operations=operations, load_jobs=2
                )
            ]
        )
        assert "Over time: " in pages.load_page(f"/campaigns/c{number}/load"), load


def test_too_many_rows_are_refused(loaded: ServiceThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_levels, "MAX_ROWS", 10)
    refused = loaded.get_path(PAGE)
    assert refused.status_code == 400
    assert "summary --campaign load" in refused.json()["error"]


def test_number_axes_hold_their_values() -> None:
    assert NumberAxis([0.0, 0.3, 200.0], "").ends == (0.0, 208.0)
    assert [NumberAxis([value], "").ends for value in (4.0, 0.0)] == [(2.0, 6.0), (-1.0, 1.0)]
    decades = NumberAxis([0.0, 0.002, 5.0], "", logarithmic=True)
    assert decades.ends == pytest.approx((0.002 / 1.1, 5.5))
    assert decades.place(0.0) is None
