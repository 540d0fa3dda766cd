"""The API: its description, operations and parameters."""

from __future__ import annotations

import csv
import io
import json
from datetime import date
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

import pytest
from jsonschema import Draft202012Validator
from measurement_factory import make_measurement, make_operation
from page_database import CHANGE, HOSTILE_TEXTS, STATE_CHANGE
from pydantic import Field
from service_thread import ServiceThread, StartService, make_body
from starlette.requests import Request

from treehammer.collectors.job_spec import API_PREFIX
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.errors import ConfigError
from treehammer.web.api import page_data
from treehammer.web.api.openapi import build_description
from treehammer.web.api.page_data import OPERATIONS
from treehammer.web.core.request_limits import RequestLimits
from treehammer.web.display_formats import today
from treehammer.web.page import PageOperation
from treehammer.web.page_query import (
    CAMPAIGNS,
    DayOrBlank,
    FormInput,
    OneOf,
    PageNumber,
    PathText,
    Text,
    WindowQuery,
)
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


class TideQuery(WindowQuery):
    """Every kind of parameter."""

    filter_columns = ("host", "site")

    harbor: PathText = Field(description="Name of the harbor.")
    days: Annotated[int, OneOf((7, 14))] = Field(7, description="Number of days.")
    state: Annotated[str, OneOf(("ebb", "flood"))] = Field("", description="Only this state.")
    name: Text = Field("", title="Name of a tide", description="Only this name.")
    height: Annotated[float, Field(gt=0, lt=9)] = Field(1.0, description="At least this height.")
    page: PageNumber = Field(1, description="Page number.")
    first: DayOrBlank = Field("", alias="from", description="First day; empty for no bound.")
    campaigns: tuple[Text, ...] = CAMPAIGNS
    filters: tuple[tuple[str, Text], ...] = Field((), exclude=True)


OPERATION = PageOperation("getTides", "Tides", {"tides": ""}, (), "/tides/{harbor}", TideQuery)


class KnownTideQuery(TideQuery):
    """A page that refuses unknown parameters."""

    other_parameters = ("part",)


def make_request(*parameters: tuple[str, str]) -> Request:
    query = urlencode(parameters).encode()
    path = {"path_params": {"harbor": "Cuxhaven"}}
    return Request({"type": "http", "query_string": query, "headers": [], **path})


def test_page_parses_what_forms_send() -> None:
    sent = "days=14&to=2026-03-01&state=&name=x&name=spring&height=.5&page=&from="
    more = "&campaign=&campaign=a&campaign=b&host=n1&site=&host=n2&utm_source=mail"
    query = TideQuery.parse(make_request(*parse_qsl(sent + more, keep_blank_values=True)))
    assert (query.harbor, query.state, query.name, query.height) == ("Cuxhaven", "", "spring", 0.5)
    assert (query.window[0], query.window[-1]) == (date(2026, 2, 16), date(2026, 3, 1))
    assert query.campaigns == ("a", "b")
    assert query.filters == (("host", "n1"), ("host", "n2"))
    # A blank bound differs from none.
    assert {"first", "to"} <= query.model_fields_set
    assert not {"state", "page"} & query.model_fields_set


def test_missing_parameters_have_defaults() -> None:
    query = TideQuery.parse(make_request(), strict=True)
    assert (query.to, query.days, query.page, query.campaigns) == (today(), 7, 1, ())


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("days", "30", "days must be one of 7, 14, not '30'"),
        ("days", "07", "days must be one of 7, 14, not '07'"),
        ("state", "flod", "state must be one of ebb, flood, not 'flod'. Did you mean 'flood'?"),
        ("to", "today", "to must be a date such as 2026-03-01, not 'today'"),
        ("from", "2026-02-30", "from must be a date such as 2026-03-01, not '2026-02-30'"),
        ("page", "0", "page must be a positive number, not '0'"),
        ("page", "01", "page must be a positive number"),
        ("page", "+1", "page must be a positive number"),
        ("page", "1_0", "page must be a positive number"),
        ("page", "9" * 5000, "page must be a positive number"),
        ("page", "1000001", "page cannot be '1000001'. Page number."),
        ("height", "x", "height cannot be 'x'. At least this height."),
        ("height", "nan", "height cannot be 'nan'"),
        ("height", "9", "height cannot be '9'"),
        ("name", "x" * 4001, f"name cannot be '{'x' * 40}'. Only this name."),
        ("campaign", "x" * 4001, f"campaign cannot be '{'x' * 40}'"),
        ("host", "x" * 4001, f"host cannot be '{'x' * 40}'. Only of this host"),
    ],
)
def test_invalid_value_is_refused_by_page_and_api(name: str, value: str, message: str) -> None:
    for query, strict in ((TideQuery, False), (OPERATION.full_query, True)):
        with pytest.raises(ConfigError) as refusal:
            query.parse(make_request((name, value)), strict=strict)
        assert message in f"{refusal.value.message}. {refusal.value.hint}"


@pytest.mark.parametrize(
    "parameters, message",
    [
        (
            [("nam", "x")],
            "unknown parameter 'nam'. Did you mean 'name'? Known parameters: to, days",
        ),
        ([("harbor", "x")], "unknown parameter 'harbor'"),
        ([("filters", "x")], "unknown parameter 'filters'"),
        ([("sort-tides", "x")], "any column of the catalogue"),
        ([("days", "7"), ("days", "14")], "days may not be repeated"),
        ([("name", "")], "name cannot be ''"),
        ([("host", "")], "host cannot be ''"),
        ([("campaign", "")], "campaign cannot be ''"),
        ([("table", "none")], "table must be one of tides"),
        ([("format", "html")], "format must be one of json, csv"),
    ],
)
def test_api_refuses_what_pages_ignore(parameters: list[tuple[str, str]], message: str) -> None:
    request = make_request(*parameters)
    TideQuery.parse(request)
    with pytest.raises(ConfigError) as refusal:
        OPERATION.full_query.parse(request, strict=True)
    assert message in f"{refusal.value.message}. {refusal.value.hint}"


def test_page_may_refuse_unknown_parameters() -> None:
    KnownTideQuery.parse(make_request(("part", "x"), ("format", "csv"), ("sort-tides", "-x")))
    with pytest.raises(ConfigError, match="unknown parameter 'nam'"):
        KnownTideQuery.parse(make_request(("nam", "x")))


def test_required_parameter_is_named() -> None:
    class NamedQuery(TideQuery):
        boat: Text = Field(description="A boat.")

    with pytest.raises(ConfigError, match="boat is missing"):
        NamedQuery.parse(make_request())


def test_form_derives_from_the_parameters() -> None:
    query = TideQuery.parse(make_request(("days", "14"), ("from", "2026-03-01")))
    one_value = TideQuery.parse(make_request(("name", "neap")))
    inputs = query.list_inputs(name={"n": "neap", "s": "spring"}, days=(), state=(), first=None)
    assert inputs == [
        FormInput("name", "Name of a tide", "", {"": "all", "n": "neap", "s": "spring"}),
        FormInput("days", "Days", "14", {"7": "7", "14": "14"}),
        FormInput("state", "State", "", {"": "all", "ebb": "ebb", "flood": "flood"}),
        FormInput("from", "First", "2026-03-01"),
    ]
    assert query.list_inputs(name=["neap"], state=()) == [inputs[2]]
    assert [item.name for item in one_value.list_inputs(name=["neap"])] == ["name"]


def test_description_is_made_of_the_declaration() -> None:
    described = OPERATION.full_query.describe_parameters(OPERATION.path)
    by_name: dict[str, dict[str, Any]] = {parameter["name"]: parameter for parameter in described}
    assert list(by_name) == [
        *("to", "days", "harbor", "state", "name", "height", "page", "from", "campaign"),
        *("table", "format", "host", "site"),
    ]
    assert {
        name: parameter["in"] for name, parameter in by_name.items() if parameter["required"]
    } == {"harbor": "path"}
    schemas = {name: parameter["schema"] for name, parameter in by_name.items()}
    assert schemas["days"] == {"type": "integer", "enum": [7, 14]}
    assert schemas["to"] == {"type": "string", "format": "date"}
    assert schemas["height"] == {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 9}
    assert schemas["page"] == {"type": "integer", "minimum": 1, "maximum": 1_000_000}
    assert schemas["host"]["type"] == schemas["campaign"]["type"] == "array"
    assert schemas["name"]["maxLength"] == 4000


def test_schemas_of_all_operations_are_valid() -> None:
    for operation in OPERATIONS:
        for parameter in operation.full_query.describe_parameters(operation.path):
            Draft202012Validator.check_schema(parameter["schema"])
            assert parameter["description"]
