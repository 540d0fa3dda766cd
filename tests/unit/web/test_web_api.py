"""What programs are told is what pages show, at addresses that are described."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

import pytest
from page_database import HOSTILE_TEXTS, fill_database
from service_thread import ServiceThread, StartService, run_service

from treehammer.collectors.record.measurement_record import max_length
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.collectors.service_spec import API_PREFIX
from treehammer.web.api.openapi import build_description
from treehammer.web.api.operations import OPERATIONS, Operation
from treehammer.web.core.request_bodies import RequestLimits
from treehammer.web.display.calendar_days import today

PARTS = {
    "day": today().isoformat(),
    "campaign_id": "running",
    "job_id": "r4",
    "site": quote(HOSTILE_TEXTS[1], safe=""),
    "comparison": "comparison",
}

#: Where the page that shows the same is.
PAGES = {
    "getOverview": "/",
    "getDay": "/days/{day}",
    "exploreMeasurements": "/explore",
    "getFigureS0": "/figures/s0",
    "listComparisons": "/compare",
    "getComparison": "/compare/{comparison}",
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceThread]:
    folder = tmp_path_factory.mktemp("data")
    fill_database(f"sqlite:///{folder / 'results.db'}")
    with run_service(folder, reading_open=True) as service:
        yield service


@pytest.mark.parametrize(
    "operation",
    [one for one in OPERATIONS if one.name != "compareSelections"],
    ids=lambda one: one.name,
)
def test_it_is_what_the_page_shows(filled: ServiceThread, operation: Operation) -> None:
    address = f"{API_PREFIX}{operation.path.format(**PARTS)}"
    needed = {one.name: unquote(PARTS[one.name]) for one in operation.parameters if one.required}
    found = filled.client.get(address, params=needed)
    assert found.status_code == 200, found.text
    told: dict[str, Any] = found.json()
    assert set(told["tables"]) == set(operation.tables)
    assert set(told["about"]) == set(operation.about)
    page = PAGES.get(operation.name, operation.path).format(**PARTS)
    shown = filled.client.get(page, params={**needed, "format": "json"}).json()
    assert (told["title"], told["tables"]) == (shown["title"], shown["tables"])
    first = next(iter(operation.tables))
    lines = filled.client.get(address, params={**needed, "format": "csv"})
    rows = [*csv.reader(io.StringIO(lines.text))]
    assert len(rows) == 1 + len(told["tables"][first])


def test_a_comparison_is_refused_as_on_the_page(filled: ServiceThread) -> None:
    query = {"a": "6.38.00", "b": "6.40.00", "where": "site=nowhere"}
    told = filled.client.get(f"{API_PREFIX}/compare", params=query)
    shown = filled.client.get("/compare", params={**query, "format": "json"})
    assert told.status_code == shown.status_code >= 400
    assert told.json() == shown.json()


def test_all_pages_with_tables_are_there(filled: ServiceThread) -> None:
    """Beside those that only lead elsewhere."""
    pages = filled.client.get("/api/v1/openapi.json").json()["paths"]
    assert {f"{API_PREFIX}{one.path}" for one in OPERATIONS} <= set(pages)
    assert pages == build_description(RequestLimits())["paths"]


def test_exactly_what_runs_is_told(filled: ServiceThread) -> None:
    about = filled.client.get("/api/v1/campaigns/running").json()["about"]
    assert about["facts"]["campaign"] == "running"
    assert about["command_line"].startswith("treehammer submit")
    assert about["job_count"] == 6
    news = filled.client.get("/api/v1/overview").json()["about"]["news"]
    assert any("came in" in text for text in news)


@pytest.mark.parametrize(
    "address, status, said",
    [
        ("/sites/SITE_A?metrik=eff_job", 400, "Did you mean 'metric'"),
        ("/sites/SITE_A?metric=host", 400, "metric cannot be"),
        ("/sites/SITE_A?days=30&days=90", 400, "days may not be repeated"),
        ("/sites/SITE_A?table=none", 400, "table cannot be"),
        ("/sites/SITE_A?format=html", 400, "format cannot be"),
        ("/sites/SITE_A?until=today", 400, "until must be a day"),
        ("/sites/SITE_A?root=", 400, "root cannot be"),
        ("/campaigns?page=0", 400, "page cannot be"),
        ("/campaigns?page=1", 200, ""),
        ("/explore?where=site%3DSITE_A&where=host~*", 200, ""),
        ("/compare", 400, "compares nothing"),
        ("/compare?a=6.38.00&b=6.40.00&delta=5", 400, "delta cannot be"),
        ("/compare?a=6.38.00&b=6.40.00&delta=x", 400, "delta cannot be"),
        ("/sites/nowhere", 404, "no site"),
        ("/explore?kind=banana", 400, "kind cannot be"),
        ("/explore?kind=", 200, ""),
        ("/explore?kind=checksum", 200, ""),
        ("/explore?metric=extra_", 400, "no metric"),
        ("/explore?metric=extra_my%20own", 400, "no metric"),
        ("/explore?metric=extra_own", 200, ""),
        ("/campaigns/running?state=banana", 400, "state cannot be"),
        ("/campaigns/running?state=cancelled", 200, ""),
        ("/campaigns/running?failure=banana", 400, "failure cannot be"),
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
def test_what_is_asked_for(filled: ServiceThread, address: str, status: int, said: str) -> None:
    answer = filled.client.get(f"{API_PREFIX}{address}")
    assert answer.status_code == status, answer.text
    assert said in answer.text
    assert status == 200 or set(answer.json()) == {"error"}


@pytest.mark.parametrize(
    "address, said",
    [
        ("/explore?kind=banana", "kind must be one of timed, checksum"),
        ("/figures/s0?kind=banana", "kind must be one of timed, checksum"),
        ("/campaigns/running?state=banana", "state cannot be 'banana' here"),
        ("/campaigns/running?failure=oepn", "Did you mean 'open'"),
        ("/campaigns/running?site=nowhere", "site cannot be 'nowhere' here"),
    ],
)
def test_pages_refuse_it_as_well(filled: ServiceThread, address: str, said: str) -> None:
    answer = filled.client.get(address)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["error"]


@pytest.mark.parametrize("path", ["/explore", "/figures/s0"])
def test_columns_are_filters_as_on_the_page(filled: ServiceThread, path: str) -> None:
    query = "site=SITE_A&site=SITE_B&axis_root=6.40.00&host=node1.SITE_A&host=node2.SITE_B"
    told, shown = (
        filled.client.get(f"{prefix}{path}?{query}&format=json").json()
        for prefix in (API_PREFIX, "")
    )
    assert told["tables"] == shown["tables"]
    assert {row["site"] for row in told["tables"]["figure"]} == {"SITE_A", "SITE_B"}
    described = build_description(RequestLimits())["paths"][f"{API_PREFIX}{path}"]["get"][
        "parameters"
    ]
    filters = {one["name"] for one in described}
    assert len(filters) == len(described)
    assert {"site", "variant_label", "plausible", "retries", "kind"} <= filters
    assert not {"read_latency_hist", "pass_wall_s"} & filters


@pytest.mark.parametrize("before", ["variant=", "where=variant="])
def test_a_filter_takes_as_much_as_its_column(filled: ServiceThread, before: str) -> None:
    longest = max_length(METRICS_BY_NAME["variant"])
    for path in (f"{API_PREFIX}/explore", "/explore"):
        answer = filled.client.get(f"{path}?{before}{'x' * longest}&format=json")
        assert answer.status_code == 200, answer.text
    name, _, _ = before.partition("=")
    longer = filled.client.get(f"{API_PREFIX}/explore?{before}{'x' * 2 * longest}")
    assert longer.status_code == 400
    assert f"{name} cannot be" in longer.json()["error"]


@pytest.mark.parametrize(
    "query, said",
    [
        ("sitte=A", "Did you mean 'site'"),
        ("sitte=A", "any column of the catalogue"),
        ("site=", "site cannot be"),
        ("retries=many", "a whole number"),
        ("read_latency_hist=1", "unknown parameter"),
    ],
)
def test_filters_that_cannot_be_are_refused(filled: ServiceThread, query: str, said: str) -> None:
    answer = filled.client.get(f"{API_PREFIX}/explore?{query}")
    assert answer.status_code == 400
    assert said in answer.json()["error"]
    assert len(answer.json()["error"]) < 400


def test_reading_may_need_a_key(start_service: StartService) -> None:
    with start_service() as service:
        assert service.get_path(f"{API_PREFIX}/sites").status_code == 401
        key = service.make_key("read").text
        assert service.get_path(f"{API_PREFIX}/sites", key).status_code == 200
