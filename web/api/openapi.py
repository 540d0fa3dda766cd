"""OpenAPI description of the service, generated from metric catalogue and models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.responses import RedirectResponse, Response

from treehammer.collectors.job_spec import (
    API_PREFIX,
    CAMPAIGNS_PATH,
    MEASUREMENTS_PATH,
    STARTS_PATH,
)
from treehammer.collectors.record.measurement_record import build_record_schema
from treehammer.version import __version__
from treehammer.web.addresses import link_to
from treehammer.web.api.ingest import MAX_ROWS, CampaignDocument
from treehammer.web.api.page_data import (
    CAMPAIGN_OPERATIONS_PATH,
    DESCRIPTION_PATH,
    HEALTH_PATH,
    JSON_LINES,
    LIVE_PATH,
    MEASUREMENT_PATH,
    OPERATIONS,
    TOKEN_PATH,
    CampaignOperationsQuery,
)
from treehammer.web.core import responses as models
from treehammer.web.core.request_limits import RequestLimits
from treehammer.web.page import PageOperation, PageRequest, page
from treehammer.web.page_query import PageQuery
from treehammer.web.pages.measurement_page import MeasurementQuery

#: Raised with every change of the interface: the first number when clients must change.
API_VERSION = "1.3.0"

_REFERENCE = "#/components/schemas/{model}"
_TOKEN: list[dict[str, list[str]]] = [{"token": []}]
_TOKEN_OR_PUBLIC = [*_TOKEN, {}]
_CHALLENGE = {"WWW-Authenticate": {"schema": {"type": "string"}}}
_RETRY = {
    "Retry-After": {
        "description": "Seconds to wait before the next attempt.",
        "schema": {"type": "integer", "minimum": 0},
    }
}
#: Refusals by HTTP status: description and response headers.
_REFUSALS: dict[int, tuple[str, dict[str, Any]]] = {
    400: ("The request is malformed.", {}),
    401: ("The token is missing or invalid.", _CHALLENGE),
    403: ("The token does not permit this.", {}),
    404: ("Not found.", {}),
    409: ("The request contradicts earlier ones.", {}),
    408: ("The body did not arrive in time.", {}),
    413: ("The body is too large.", {}),
    422: ("A value is invalid.", {}),
    415: ("The body is not JSON in UTF-8, or has an encoding other than gzip.", {}),
    503: ("The service is overloaded or stopping, or has no database.", _RETRY),
}
_READ_REFUSALS = (400, 401, 403, 404, 503)
_UPLOAD_REFUSALS = (400, 401, 403, 408, 413, 415, 503)


@cache
def build_description(limits: RequestLimits) -> dict[str, Any]:
    """Build the OpenAPI 3.1 document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Treehammer results service",
            "version": API_VERSION,
            "description": "Stores measurements and serves the content of the pages. "
            f"Treehammer {__version__}.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": _build_paths(limits),
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A job's token, or a key from 'treehammer token create'.",
                }
            },
            "schemas": _build_schemas(),
        },
    }


def _build_schemas() -> dict[str, Any]:
    record = build_record_schema()
    del record["$schema"]
    values = record["properties"]["values"]
    # Empty text is not stored, so that any field may be absent from a stored record.
    optional = {name: member for name, member in values.items() if name != "required"}
    database_record = {**record, "properties": {**record["properties"], "values": optional}}
    _, schemas = models_json_schema(
        [
            *models.RESPONSE_MODELS,
            (CampaignDocument, "validation"),
            (models.StartRequest, "validation"),
        ],
        ref_template=_REFERENCE,
    )
    return {"Record": record, "StoredRecord": database_record, **schemas["$defs"]}


def _build_paths(limits: RequestLimits) -> dict[str, Any]:
    pages = {
        f"{API_PREFIX}{operation.path}": {"get": _describe_page(operation)}
        for operation in OPERATIONS
    }
    pages[CAMPAIGNS_PATH]["post"] = _describe_campaign_upload(limits)
    unavailable = {**_describe_refusal(503), **_json_response("Not ready.", "Health")}
    return {
        MEASUREMENTS_PATH: {"post": _describe_measurement_upload(limits)},
        MEASUREMENT_PATH: _describe_query(
            "getMeasurement",
            "One stored measurement",
            _json_response("The measurement.", "StoredRecord"),
            _READ_REFUSALS,
            security=_TOKEN_OR_PUBLIC,
            parameters=MeasurementQuery.describe_parameters(MEASUREMENT_PATH),
        ),
        STARTS_PATH: {"post": _describe_common_start()},
        CAMPAIGN_OPERATIONS_PATH: {"get": _describe_operation_stream()},
        TOKEN_PATH: _describe_query(
            "getToken",
            "Permissions of the request's token",
            _json_response("The token is valid.", "Token"),
            (401, 503),
            security=_TOKEN,
        ),
        HEALTH_PATH: _describe_query(
            "getHealth",
            "Whether the service can store measurements",
            _json_response("Ready.", "Health"),
            responses={"503": unavailable},
        ),
        LIVE_PATH: _describe_query(
            "getLive",
            "Whether the process of the service answers, with or without its database",
            _json_response("It answers.", "Health"),
        ),
        DESCRIPTION_PATH: _describe_query(
            "getDescription", "This description", _json_response("OpenAPI 3.1.", {"type": "object"})
        ),
        **pages,
    }


def _describe_operation(
    name: str,
    summary: str,
    answer: Mapping[str, Any],
    refusals: Iterable[int] = (),
    *,
    responses: Mapping[str, Any] = MappingProxyType({}),
    body: Mapping[str, Any] | None = None,
    **members: Any,
) -> dict[str, Any]:
    """Describe an operation: its answer, its refusals, and further responses and members."""
    if body is not None:
        content = {"application/json": {"schema": body}}
        members["requestBody"] = {"required": True, "content": content}
    refused = {str(status): _describe_refusal(status) for status in refusals}
    return {
        "operationId": name,
        "summary": summary,
        "responses": {"200": answer, **refused, **responses},
        **members,
    }


def _describe_query(*arguments: Any, **members: Any) -> dict[str, Any]:
    """Describe a path whose only operation is GET; see :func:`_describe_operation`."""
    return {"get": _describe_operation(*arguments, **members)}


def _describe_operation_stream() -> dict[str, Any]:
    description = (
        "One line of JSON per measurement and row: a row of Record.operations, columns of its "
        "measurement, line (its place, from 0), and p50_s, p95_s, p99_s and max_s of its latencies "
        "(null where none was taken)."
    )
    content = {JSON_LINES: {"schema": {"type": "string"}}}
    return _describe_operation(
        "getCampaignOperations",
        "Operations of a load campaign, as a stream",
        {"description": description, "content": content},
        _READ_REFUSALS,
        security=_TOKEN_OR_PUBLIC,
        parameters=CampaignOperationsQuery.describe_parameters(CAMPAIGN_OPERATIONS_PATH),
    )


def _describe_measurement_upload(limits: RequestLimits) -> dict[str, Any]:
    invalid = "Some measurements are invalid; nothing was stored."
    return _describe_operation(
        "addMeasurements",
        "Upload measurements",
        _json_response("The rows are stored.", "MeasurementsStored"),
        _UPLOAD_REFUSALS,
        responses={"422": _json_response(invalid, "InvalidMeasurements")},
        body={
            "type": "object",
            "additionalProperties": False,
            "required": ["measurements"],
            "properties": {"measurements": {"type": "array", "items": _reference("Record")}},
        },
        description="Stores all measurements or none. A measurement stored before with the same "
        "content is known; with other content the first stays. Repeat the request after 503, 408 or "
        f"no response. Limits: {limits.measurements:,} measurements; {limits.packed_bytes:,} bytes, "
        f"{limits.unpacked_bytes:,} after decompression (Content-Encoding: gzip); {limits.json_marks:,} "
        "commas, colons and brackets. measurement_id must be derived from job_id, attempt, round "
        "and position, and day from started_us. Integers are written without a fraction.",
        security=_TOKEN,
    )


def _describe_campaign_upload(limits: RequestLimits) -> dict[str, Any]:
    invalid = "The campaign is invalid; nothing was stored."
    return _describe_operation(
        "uploadCampaign",
        "Upload a campaign, its jobs and their attempts",
        _json_response("The rows are stored.", "CampaignStored"),
        _UPLOAD_REFUSALS,
        responses={"422": _json_response(invalid, "InvalidCampaign")},
        body=_reference("CampaignUpload"),
        description="For the submitter, with a key of the role submit. Uploaded rows replace "
        "earlier ones; other rows stay. Jobs that the service's own installation tracks are not "
        f"changed. Stores all rows or none. Limits: {MAX_ROWS:,} jobs, attempts and replicas in total, "
        f"without duplicates; {limits.packed_bytes:,} bytes, {limits.unpacked_bytes:,} after "
        "decompression.",
        security=_TOKEN,
    )


def _describe_common_start() -> dict[str, Any]:
    return _describe_operation(
        "registerStart",
        "Start together with other jobs of the campaign",
        _json_response("The job is registered.", "StartAnswer"),
        (*_UPLOAD_REFUSALS, 409, 422),
        body=_reference("StartRequest"),
        description="For a job, with its token. Repeat the request every poll_s seconds, also "
        "after the start is known, until then: the service keeps it in memory only. time_us allows "
        "the job to compare its clock.",
        security=_TOKEN,
    )


def _describe_page(operation: PageOperation) -> dict[str, Any]:
    """Describe an operation that answers with the tables of a page."""
    body = models.PageData.model_json_schema()
    rows = body["properties"]["tables"]["additionalProperties"]
    body["properties"]["tables"]["properties"] = {
        name: {**rows, "description": f"{meaning[0].upper()}{meaning[1:]}."}
        for name, meaning in operation.tables.items()
    }
    if operation.always_about:
        body["properties"]["about"]["required"] = list(operation.about)
    answer = _json_response("The content of the page.", body)
    answer["content"]["text/csv"] = {"schema": {"type": "string"}}
    return _describe_operation(
        operation.name,
        operation.summary,
        answer,
        _READ_REFUSALS,
        security=_TOKEN_OR_PUBLIC,
        parameters=operation.full_query.describe_parameters(operation.path),
    )


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": _REFERENCE.format(model=name)}


def _json_response(description: str, schema: str | dict[str, Any]) -> dict[str, Any]:
    content = _reference(schema) if isinstance(schema, str) else schema
    return {"description": description, "content": {"application/json": {"schema": content}}}


def _describe_refusal(status: int) -> dict[str, Any]:
    description, headers = _REFUSALS[status]
    return {**_json_response(description, "Error"), "headers": headers}


@page(API_PREFIX, "api", position=92)
def reference_page(_request: PageRequest[PageQuery]) -> Response:
    """Lead to the description of all operations, which any viewer of OpenAPI shows."""
    return RedirectResponse(link_to("openapi"))
