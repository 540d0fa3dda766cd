"""Tests of the API: pages for programs, reference, operations of loads and common starts."""

from __future__ import annotations

import csv
import io
import json
from typing import Any
from urllib.parse import quote, unquote

import pytest
from measurement_factory import make_measurement, make_operation
from page_database import CHANGE, HOSTILE_TEXTS, STATE_CHANGE
from service_thread import ServiceThread, StartService, make_body

from treehammer.collectors.job_spec import API_PREFIX
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.web.api import page_data
from treehammer.web.api.openapi import build_description
from treehammer.web.api.page_data import OPERATIONS
from treehammer.web.core.request_limits import RequestLimits
from treehammer.web.display_formats import today
from treehammer.web.page import PageOperation
from treehammer.web.pages import load_pages

PARTS = {
    "day": today().isoformat(),
    "campaign_id": "running",
    "job_id": "r4",
    "site": quote(HOSTILE_TEXTS[1], safe=""),
    "comparison": "comparison",
    "change": STATE_CHANGE,
}
#: Operation -> its own values of these parts.
OWN_PARTS = {"getChange": {"change": CHANGE}, "getRelease": {"release": "6.40.00"}}
#: Pages without tables: forms, files, and those that the API has in another form.
OTHER_PAGES = {"api", "doors", "measurement-page", "rootfile", "sign-in"}
#: Paths of pages that differ from those of their operations.
PAGES = {
    "getOverview": "/",
    "getDay": "/days/{day}",
    "exploreMeasurements": "/explore",
    "getFigureS0": "/figures/s0",
    "listComparisons": "/compare",
    "getComparison": "/compare/{comparison}",
}


def _drop_ages(tables: dict[str, Any]) -> dict[str, Any]:
    """Leave out the ages of alarms' figures, which grow between two requests."""
    for state in tables.get("states", ()):
        for figure in state.get("figures", ()):
            if figure["unit"] == "s":
                figure["value"] = None
    return tables


@pytest.mark.parametrize(
    "operation",
    # A search for a build is no part of the database.
    [page for page in OPERATIONS if page.name not in ("compareSelections", "getBisection")],
    ids=lambda page: page.name,
)
def test_operation_returns_content_of_page(
    filled_service: ServiceThread, operation: PageOperation
) -> None:
    parts = {**PARTS, **OWN_PARTS.get(operation.name, {})}
    address = f"{API_PREFIX}{operation.path.format(**parts)}"
    needed = {
        parameter["name"]: unquote(PARTS[parameter["name"]])
        for parameter in operation.query.describe_parameters(operation.path)
        if parameter["required"] and parameter["in"] == "query"
    }
    response = filled_service.client.get(address, params=needed)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    assert set(body["tables"]) == set(operation.tables)
    assert set(body["about"]) == set(operation.about)
    page = PAGES.get(operation.name, operation.path).format(**parts)
    document = filled_service.client.get(page, params={**needed, "format": "json"}).json()
    assert body["title"] == document["title"]
    assert _drop_ages(body["tables"]) == _drop_ages(document["tables"])
    first = next(iter(operation.tables))
    lines = filled_service.client.get(address, params={**needed, "format": "csv"})
    rows = [*csv.reader(io.StringIO(lines.text))]
    assert len(rows) == 1 + len(body["tables"][first])


def test_comparison_is_refused_as_on_page(filled_service: ServiceThread) -> None:
    query = {"a": "6.38.00", "b": "6.40.00", "where": "site=nowhere"}
    response = filled_service.client.get(f"{API_PREFIX}/compare", params=query)
    page = filled_service.client.get("/compare", params={**query, "format": "json"})
    assert response.status_code == page.status_code >= 400
    assert response.json() == page.json()


def test_each_page_has_an_operation() -> None:
    """Programs get what people see; files and feeds are for programs already."""
    without = {page.name for page in load_pages() if not page.operations}
    assert {
        name for name in without if not name.endswith(("-file", "-feed", "-data"))
    } <= OTHER_PAGES


def test_description_has_all_operations(filled_service: ServiceThread) -> None:
    pages = filled_service.client.get("/api/v1/openapi.json").json()["paths"]
    assert {f"{API_PREFIX}{operation.path}" for operation in OPERATIONS} <= set(pages)
    assert pages == build_description(RequestLimits())["paths"]


def test_about_holds_values_outside_tables(filled_service: ServiceThread) -> None:
    about = filled_service.client.get("/api/v1/campaigns/running").json()["about"]
    assert about["facts"]["campaign"] == "running"
    assert about["command_line"].startswith("treehammer submit")
    assert about["job_count"] == 6
    news = filled_service.client.get("/api/v1/overview").json()["about"]["changes"]
    assert any("received" in text for text in news)


@pytest.mark.parametrize(
    "address, status, message",
    [
        ("/sites/SITE_A?metrik=eff_job", 400, "Did you mean 'metric'"),
        ("/campaigns?page=1", 200, ""),
        ("/explore?where=site%3DSITE_A&where=host~*", 200, ""),
        ("/compare", 400, "compares nothing"),
        ("/compare?a=6.38.00&b=6.40.00&delta=5", 400, "delta cannot be"),
        ("/sites/nowhere", 404, "no site"),
        ("/explore?kind=", 200, ""),
        ("/explore?kind=checksum", 200, ""),
        ("/explore?metric=extra_", 400, "unknown metric"),
        ("/explore?metric=extra_my%20own", 400, "unknown metric"),
        ("/explore?metric=extra_own", 200, ""),
        ("/explore?retries=many", 400, "a whole number"),
        ("/explore?read_latency_hist=1", 400, "unknown parameter"),
        ("/campaigns/running?state=cancelled", 200, ""),
        ("/campaigns/running?failure=data-check", 200, ""),
        ("/campaigns/running?failure=implausible", 200, ""),
        ("/campaigns/running?failure=stage-in:%20not%20supported", 200, ""),
        ("/campaigns/running?site=SITE_X", 400, "Did you mean 'SITE_"),
        ("/campaigns/running?site=SITE_A", 200, ""),
        ("/campaigns/none?state=lost", 404, ""),
        ("/jobs/none", 404, ""),
        ("/nothing", 404, ""),
    ],
)
def test_operation_checks_parameters(
    filled_service: ServiceThread, address: str, status: int, message: str
) -> None:
    response = filled_service.client.get(f"{API_PREFIX}{address}")
    assert response.status_code == status, response.text
    assert message in response.text
    assert status == 200 or set(response.json()) == {"error"}
    assert status == 200 or len(response.json()["error"]) < 400


@pytest.mark.parametrize("path", ["/explore", "/figures/s0"])
def test_column_filters_work_as_on_page(filled_service: ServiceThread, path: str) -> None:
    query = "site=SITE_A&site=SITE_B&axis_root=6.40.00&host=node1.SITE_A&host=node2.SITE_B"
    response, page = (
        filled_service.client.get(f"{prefix}{path}?{query}&format=json").json()
        for prefix in (API_PREFIX, "")
    )
    assert response["tables"] == page["tables"]
    assert {row["site"] for row in response["tables"]["figure"]} == {"SITE_A", "SITE_B"}
    described = build_description(RequestLimits())["paths"][f"{API_PREFIX}{path}"]["get"][
        "parameters"
    ]
    filters = {parameter["name"] for parameter in described}
    assert len(filters) == len(described)
    assert {"site", "variant_label", "plausible", "retries", "kind"} <= filters
    assert not {"read_latency_hist", "pass_wall_s"} & filters


@pytest.mark.parametrize("before", ["variant=", "where=variant="])
def test_filter_accepts_text_as_long_as_column(filled_service: ServiceThread, before: str) -> None:
    longest = METRICS_BY_NAME["variant"].max_length
    for path in (f"{API_PREFIX}/explore", "/explore"):
        answer = filled_service.client.get(f"{path}?{before}{'x' * longest}&format=json")
        assert answer.status_code == 200, answer.text
    name, _, _ = before.partition("=")
    longer = filled_service.client.get(f"{API_PREFIX}/explore?{before}{'x' * 2 * longest}")
    assert longer.status_code == 400
    assert f"{name} cannot be" in longer.json()["error"]


def test_pages_link_to_reference(filled_service: ServiceThread) -> None:
    assert '<a href="/api/v1">API</a>' in filled_service.load_page("/")
    assert filled_service.client.get("/api/v1").headers["Location"] == "/api/v1/openapi.json"


ADDRESS = "/api/v1/campaigns/campaign/operations"


def load_measurements() -> list[Measurement]:
    steps = [make_operation([0.001] * 99 + [2.0], {"reset": 1}), make_operation([], step=1)]
    return [make_measurement(position=p, operations=steps) for p in (1, 2, 3)]


def test_uploaded_operations_are_part_of_the_record(service: ServiceThread) -> None:
    key = service.make_key("submit").text
    records = load_measurements()
    for counts in ({"new": 3, "known": 0}, {"new": 0, "known": 3}):
        answer = service.post_document(make_body(records), key)
        assert answer.json() == {**counts, "conflicting": []}
    reader = service.make_key("read").text
    document = service.get_path(f"/api/v1/measurements/{records[0].id}", reader).json()
    assert document["operations"] == list(records[0].operations)


def test_invalid_operations_are_refused_with_their_place(service: ServiceThread) -> None:
    document = make_body(load_measurements())
    document["measurements"][1]["operations"][1]["done"] = 5
    answer = service.post_document(document, service.make_key("submit").text)
    assert answer.status_code == 422
    [error] = answer.json()["errors"]
    assert error["index"] == 1
    assert error["reasons"][0].startswith("operations[1]: ")


def test_campaign_streams_its_operations(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_data, "CHUNK", 2)
    records = load_measurements()
    with start_service(reading_open=True) as service:
        service.store.add([*records, make_measurement(position=9)])
        answer = service.get_path(ADDRESS)
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        lines = [json.loads(line) for line in answer.text.splitlines()]
        assert [(row["measurement_id"], row["line"]) for row in lines] == [
            (record.id, line) for record in records for line in (0, 1)
        ]
        first, second = lines[:2]
        assert (first["site"], first["failures"], first["server"]) == ("local", '{"reset": 1}', "")
        assert first["p50_s"] == pytest.approx(0.001, rel=0.01)
        assert first["max_s"] == pytest.approx(2.0, rel=0.01)
        assert (second["p50_s"], second["latency"]) == (None, "")
        for address in ("/api/v1/campaigns/other/operations", f"{ADDRESS}x"):
            assert service.get_path(address).status_code == 404
        assert service.get_path(f"{ADDRESS}?side=client").status_code == 400


def test_stream_requires_key_unless_public(service: ServiceThread) -> None:
    assert service.get_path(ADDRESS).status_code == 401
