"""API operations: same content as the pages, checked parameters, complete description."""

from __future__ import annotations

import csv
import io
from typing import Any
from urllib.parse import quote, unquote

import pytest
from page_database import HOSTILE_TEXTS, STATE_CHANGE
from service_thread import ServiceThread, StartService

from treehammer.collectors.job_spec import API_PREFIX
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.version import __version__
from treehammer.web.api.openapi import build_description
from treehammer.web.api.page_operations import OPERATIONS, PageOperation
from treehammer.web.core.request_limits import RequestLimits
from treehammer.web.display_formats import today

PARTS = {
    "day": today().isoformat(),
    "campaign_id": "running",
    "job_id": "r4",
    "site": quote(HOSTILE_TEXTS[1], safe=""),
    "comparison": "comparison",
    "change": STATE_CHANGE,
}

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
    [one for one in OPERATIONS if one.name != "compareSelections"],
    ids=lambda one: one.name,
)
def test_operation_returns_content_of_page(
    filled_service: ServiceThread, operation: PageOperation
) -> None:
    address = f"{API_PREFIX}{operation.path.format(**PARTS)}"
    needed = {one.name: unquote(PARTS[one.name]) for one in operation.parameters if one.required}
    response = filled_service.client.get(address, params=needed)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    assert set(body["tables"]) == set(operation.tables)
    assert set(body["about"]) == set(operation.about)
    page = PAGES.get(operation.name, operation.path).format(**PARTS)
    shown = filled_service.client.get(page, params={**needed, "format": "json"}).json()
    assert body["title"] == shown["title"]
    text = filled_service.client.get(page, params=needed, headers={"Accept": "text/html"}).text
    assert text.count(f"<p>Treehammer {__version__} · times are UTC") == 1
    assert _drop_ages(body["tables"]) == _drop_ages(shown["tables"])
    first = next(iter(operation.tables))
    lines = filled_service.client.get(address, params={**needed, "format": "csv"})
    rows = [*csv.reader(io.StringIO(lines.text))]
    assert len(rows) == 1 + len(body["tables"][first])


def test_comparison_is_refused_as_on_page(filled_service: ServiceThread) -> None:
    query = {"a": "6.38.00", "b": "6.40.00", "where": "site=nowhere"}
    response = filled_service.client.get(f"{API_PREFIX}/compare", params=query)
    shown = filled_service.client.get("/compare", params={**query, "format": "json"})
    assert response.status_code == shown.status_code >= 400
    assert response.json() == shown.json()


def test_description_has_all_operations(filled_service: ServiceThread) -> None:
    pages = filled_service.client.get("/api/v1/openapi.json").json()["paths"]
    assert {f"{API_PREFIX}{one.path}" for one in OPERATIONS} <= set(pages)
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
        ("/sites/SITE_A?metric=host", 400, "metric cannot be"),
        ("/sites/SITE_A?days=30&days=90", 400, "days may not be repeated"),
        ("/sites/SITE_A?table=none", 400, "table cannot be"),
        ("/sites/SITE_A?format=html", 400, "format cannot be"),
        ("/sites/SITE_A?to=today", 400, "to must be a date"),
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
        ("/explore?metric=extra_", 400, "unknown metric"),
        ("/explore?metric=extra_my%20own", 400, "unknown metric"),
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
def test_operation_checks_parameters(
    filled_service: ServiceThread, address: str, status: int, message: str
) -> None:
    response = filled_service.client.get(f"{API_PREFIX}{address}")
    assert response.status_code == status, response.text
    assert message in response.text
    assert status == 200 or set(response.json()) == {"error"}


@pytest.mark.parametrize(
    "address, message",
    [
        ("/explore?kind=banana", "kind must be one of timed, checksum"),
        ("/figures/s0?kind=banana", "kind must be one of timed, checksum"),
        ("/campaigns/running?state=banana", "state cannot be 'banana' here"),
        ("/campaigns/running?failure=oepn", "Did you mean 'open'"),
        ("/campaigns/running?site=nowhere", "site cannot be 'nowhere' here"),
    ],
)
def test_page_checks_parameters(filled_service: ServiceThread, address: str, message: str) -> None:
    response = filled_service.client.get(address)
    assert response.status_code == 400, response.text
    assert message in response.json()["error"]


@pytest.mark.parametrize("path", ["/explore", "/figures/s0"])
def test_column_filters_work_as_on_page(filled_service: ServiceThread, path: str) -> None:
    query = "site=SITE_A&site=SITE_B&axis_root=6.40.00&host=node1.SITE_A&host=node2.SITE_B"
    response, shown = (
        filled_service.client.get(f"{prefix}{path}?{query}&format=json").json()
        for prefix in (API_PREFIX, "")
    )
    assert response["tables"] == shown["tables"]
    assert {row["site"] for row in response["tables"]["figure"]} == {"SITE_A", "SITE_B"}
    described = build_description(RequestLimits())["paths"][f"{API_PREFIX}{path}"]["get"][
        "parameters"
    ]
    filters = {one["name"] for one in described}
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


@pytest.mark.parametrize(
    "query, message",
    [
        ("sitte=A", "Did you mean 'site'"),
        ("sitte=A", "any column of the catalogue"),
        ("site=", "site cannot be"),
        ("retries=many", "a whole number"),
        ("read_latency_hist=1", "unknown parameter"),
    ],
)
def test_invalid_filter_is_refused(filled_service: ServiceThread, query: str, message: str) -> None:
    response = filled_service.client.get(f"{API_PREFIX}/explore?{query}")
    assert response.status_code == 400
    assert message in response.json()["error"]
    assert len(response.json()["error"]) < 400


def test_operation_requires_key_unless_public(start_service: StartService) -> None:
    with start_service() as service:
        assert service.get_path(f"{API_PREFIX}/sites").status_code == 401
        key = service.make_key("read").text
        assert service.get_path(f"{API_PREFIX}/sites", key).status_code == 200
