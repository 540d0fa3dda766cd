"""Tests of queries of pages: parsing, strictness of the API, forms, and their description."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

import pytest
from jsonschema import Draft202012Validator
from pydantic import Field
from starlette.requests import Request

from treehammer.errors import ConfigError
from treehammer.web.api.page_data import OPERATIONS
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
