"""Reference of the API as a page, rendered from its OpenAPI description."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute

from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.collectors.service_spec import API_PREFIX
from treehammer.sql.write.store import Store
from treehammer.tables import DataTable, Row, TableColumn
from treehammer.web.api.openapi import build_description
from treehammer.web.core.request_bodies import RequestLimits
from treehammer.web.views.shared.page_context import PageContext, PageView

#: Operations with more parameters than this name the columns of the catalogue, which are left out.
_MAX_PARAMETERS = 40


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the route of the page."""
    return [context.page_route(API_PREFIX, reference_view, "api")]


def reference_view(_store: Store, request: Request) -> PageView:
    """Collect the operations of the service that answers."""
    info, operations = _describe_operations(request.app.state.limits)
    values = {"operations": operations, "info": info}
    return PageView(
        "api.html.j2", "API", values, tuple(operation["parameters"] for operation in operations)
    )


@cache
def _describe_operations(
    limits: RequestLimits,
) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    """Return title and version of the API, and its operations by path."""
    description = build_description(limits)
    return description["info"], [*_list_operations(description)]


def _list_operations(description: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for path, methods in sorted(description["paths"].items()):
        for method, operation in methods.items():
            yield {
                "identity": operation["operationId"],
                "method": method.upper(),
                "path": path,
                "summary": operation["summary"],
                "description": operation.get("description", ""),
                "needs_token": _needs_token(operation),
                "parameters": _build_parameter_table(operation),
                "answers": [
                    (status, response["description"])
                    for status, response in operation["responses"].items()
                ],
            }


def _needs_token(operation: Mapping[str, Any]) -> str:
    security = operation.get("security")
    if not security:
        return "no token"
    return "a token, unless reading is open" if {} in security else "a token"


def _build_parameter_table(operation: Mapping[str, Any]) -> DataTable:
    parameters = operation.get("parameters", [])
    columns = (
        TableColumn("name", "parameter"),
        TableColumn("place", "in"),
        TableColumn("meaning", "meaning", is_long=True),
        TableColumn("values", "values", is_long=True),
    )
    columns_apart = len(parameters) > _MAX_PARAMETERS
    listed = [
        parameter
        for parameter in parameters
        if not (columns_apart and parameter["name"] in METRICS_BY_NAME)
    ]
    hidden = len(parameters) - len(listed)
    note = f"Conditions on {hidden} columns of the catalogue, as COLUMN=VALUE." if hidden else ""
    rows = [_parameter_row(parameter) for parameter in listed]
    return DataTable(operation["operationId"], "Parameters", columns, rows, "No parameters.", note)


def _parameter_row(parameter: Mapping[str, Any]) -> Row:
    schema = parameter["schema"]
    values = schema.get("enum") or schema.get("items", {}).get("enum") or ()
    return {
        "name": parameter["name"] + (" (required)" if parameter["required"] else ""),
        "place": parameter["in"],
        "meaning": parameter.get("description", ""),
        "values": ", ".join(map(str, values)) or schema.get("type", ""),
    }
