"""The OpenAPI description of the service, generated from the catalogue."""

from __future__ import annotations

from typing import Any

from treehammer.collectors.record.measurement_record import build_record_schema
from treehammer.collectors.service_spec import API_PREFIX, CAMPAIGNS_PATH, MEASUREMENTS_PATH
from treehammer.sql.write.record_consistency import build_json_schema
from treehammer.version import __version__
from treehammer.web.api.campaign_document import DOCUMENT_NAME, document_schemas
from treehammer.web.api.campaign_ingest import MAX_ROWS
from treehammer.web.api.operations import (
    DESCRIPTION_PATH,
    HEALTH_PATH,
    MEASUREMENT_PATH,
    NO_NUL,
    OPERATIONS,
    TOKEN_PATH,
    Operation,
    Parameter,
)
from treehammer.web.core.request_bodies import RequestLimits

#: Raised with every change of the interface: the first number when clients must change.
API_VERSION = "1.3.0"

_TEXT_SCHEMA = {"type": "string"}
_COUNT_SCHEMA = {"type": "integer", "minimum": 0}


def build_description(limits: RequestLimits) -> dict[str, Any]:
    """The description, as one JSON object of OpenAPI 3.1."""
    record = _measurement_schema()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Treehammer results service",
            "version": API_VERSION,
            "description": "Takes measurements in and answers once they are safe; tells what pages show. "
            f"Treehammer {__version__}.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": {
            MEASUREMENTS_PATH: {"post": _post_measurements(limits)},
            MEASUREMENT_PATH: {"get": _get_measurement()},
            TOKEN_PATH: {"get": _get_token()},
            HEALTH_PATH: {"get": _get_health()},
            DESCRIPTION_PATH: {"get": _get_description()},
            **_page_data_paths(limits),
        },
        "components": {
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A job's token, or a key as 'treehammer token create' prints it.",
                }
            },
            "schemas": {
                "Record": record,
                "StoredRecord": _stored_record_schema(record),
                "Error": _error_schema(),
                "Invalid": _error_schema(
                    errors={
                        "type": "array",
                        "items": _object_schema(
                            index=_COUNT_SCHEMA, reasons={"type": "array", "items": _TEXT_SCHEMA}
                        ),
                    }
                ),
                **document_schemas(),
                "InvalidCampaign": _error_schema(reasons={"type": "array", "items": _TEXT_SCHEMA}),
                "Taken": _object_schema(
                    new=_COUNT_SCHEMA, changed=_COUNT_SCHEMA, known=_COUNT_SCHEMA
                ),
                "Outcome": _object_schema(
                    new=_COUNT_SCHEMA,
                    known=_COUNT_SCHEMA,
                    conflicting={"type": "array", "items": _TEXT_SCHEMA},
                ),
                "Token": _token_schema(),
                "Health": _object_schema(
                    status={"enum": ["ok", "unavailable"]},
                    version=_TEXT_SCHEMA,
                    time_us=_COUNT_SCHEMA,
                ),
            },
        },
    }


def _measurement_schema() -> dict[str, Any]:
    record = build_record_schema()
    del record["$schema"]
    values = record["properties"]["values"]
    values["properties"] = build_json_schema(values["properties"])
    return record


def _post_measurements(limits: RequestLimits) -> dict[str, Any]:
    body = _object_schema(
        measurements={
            "type": "array",
            "description": f"At most {limits.measurements}.",
            "items": {"$ref": "#/components/schemas/Record"},
        }
    )
    return {
        "operationId": "addMeasurements",
        "summary": "Hand in measurements",
        "description": "All or none are stored. What was handed in before is known, and harmless; of "
        "one identity with other content the first stays. After 503, 408 or no answer, send the same "
        f"again. At most {limits.measurements} measurements and {limits.packed_bytes} bytes "
        f"({limits.unpacked_bytes} unpacked, with Content-Encoding: gzip), and {limits.json_marks} commas, "
        "colons and brackets; measurement_id must be that of job_id, attempt, round and position, day that of started_us; whole numbers are written without a fraction.",
        "security": [{"token": []}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": _response("They are safe.", "Outcome"),
            **_body_error_responses(),
            "422": _response("Measurements are not valid; none was stored.", "Invalid"),
        },
    }


def _body_error_responses() -> dict[str, Any]:
    """Answers to what cannot be taken in, whatever it is."""
    return {
        "400": _response("The body is damaged or not strict JSON.", "Error"),
        "401": _unauthorized_response(),
        "403": _response("The token is for something else.", "Error"),
        "408": _response("The body did not arrive in time.", "Error"),
        "413": _response("Too much at once.", "Error"),
        "415": _response("Not JSON in UTF-8, or packed otherwise than with gzip.", "Error"),
        "503": _unavailable_response(),
    }


def _page_data_paths(limits: RequestLimits) -> dict[str, Any]:
    """What pages show, for programs; campaigns are also handed in."""
    paths = {f"{API_PREFIX}{one.path}": {"get": _get_page_data(one)} for one in OPERATIONS}
    paths[CAMPAIGNS_PATH]["post"] = _post_campaign(limits)
    return paths


def _post_campaign(limits: RequestLimits) -> dict[str, Any]:
    reference = {"$ref": f"#/components/schemas/{DOCUMENT_NAME}"}
    return {
        "operationId": "handInCampaign",
        "summary": "Tell of a campaign, its jobs and their attempts",
        "description": "For who submitted it, with a key of the role submit. What is told later stands "
        "in place of what was told before; what is not told stays. Jobs that the service's own "
        f"installation follows are left to it. All or nothing is stored. At most {MAX_ROWS} jobs, attempts "
        f"and replicas together and {limits.packed_bytes} bytes ({limits.unpacked_bytes} unpacked); none may "
        "stand twice.",
        "security": [{"token": []}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference}}},
        "responses": {
            "200": _response("It is safe: rows that are new, changed, or as they were.", "Taken"),
            **_body_error_responses(),
            "422": _response("It is not valid; nothing was stored.", "InvalidCampaign"),
        },
    }


def _get_measurement() -> dict[str, Any]:
    return {
        "operationId": "getMeasurement",
        "summary": "One measurement as it was stored",
        "security": [{"token": []}, {}],
        "parameters": [
            {
                "name": "measurement_id",
                "in": "path",
                "required": True,
                "schema": {**NO_NUL, "minLength": 1, "maxLength": 128},
            }
        ],
        "responses": {
            "200": _response("The measurement.", "StoredRecord"),
            "400": _response("There is a NUL in the address.", "Error"),
            "401": _unauthorized_response(),
            "403": _response("The token may not read.", "Error"),
            "404": _response("There is none of this identity.", "Error"),
            "503": _unavailable_response(),
        },
    }


def _get_token() -> dict[str, Any]:
    return {
        "operationId": "getToken",
        "summary": "What the token may do that is shown",
        "security": [{"token": []}],
        "responses": {
            "200": _response("It counts.", "Token"),
            "401": _unauthorized_response(),
            "503": _unavailable_response(),
        },
    }


def _get_health() -> dict[str, Any]:
    return {
        "operationId": "getHealth",
        "summary": "Whether measurements can be taken in now",
        "responses": {
            "200": _response("They can.", "Health"),
            "503": _unavailable_response("Health"),
        },
    }


def _get_description() -> dict[str, Any]:
    return {
        "operationId": "getDescription",
        "summary": "This description",
        "responses": {
            "200": {
                "description": "OpenAPI 3.1.",
                "content": {"application/json": {"schema": {"type": "object"}}},
            }
        },
    }


def _get_page_data(operation: Operation) -> dict[str, Any]:
    """One that answers what a page shows, as tables."""
    rows = {"type": "array", "items": {"type": "object"}}
    tables = {
        name: {**rows, "description": f"{meaning[0].upper()}{meaning[1:]}."}
        for name, meaning in operation.tables.items()
    }
    body = _object_schema(
        title={"type": "string", "description": "What the page is called."},
        tables={"type": "object", "additionalProperties": rows, "properties": tables},
        about={
            "type": "object",
            "description": "What the page tells beside its tables.",
            "required": list(operation.about) if operation.always_about else [],
        },
    )
    content = {
        "application/json": {"schema": body},
        "text/csv": {"schema": {"type": "string"}},
    }
    return {
        "operationId": operation.name,
        "summary": operation.summary,
        "security": [{"token": []}, {}],
        "parameters": [_parameter_object(one) for one in operation.all_parameters],
        "responses": {
            "200": {"description": "What the page shows.", "content": content},
            "400": _response("A parameter asks for what there is not.", "Error"),
            "401": _unauthorized_response(),
            "403": _response("The token may not read.", "Error"),
            "404": _response("There is no such thing.", "Error"),
            "503": _unavailable_response(),
        },
    }


def _parameter_object(one: Parameter) -> dict[str, Any]:
    schema = {"type": "array", "items": one.schema} if one.repeatable else one.schema
    return {
        "name": one.name,
        "in": "path" if one.in_path else "query",
        "required": one.in_path or one.required,
        "description": one.description,
        "schema": schema,
    }


def _token_schema() -> dict[str, Any]:
    nothing_or_text = {"type": ["string", "null"]}
    return _object_schema(
        role={"enum": ["read", "submit", "admin"]},
        key=_TEXT_SCHEMA,
        name=_TEXT_SCHEMA,
        expires_us={"type": ["integer", "null"]},
        campaign_id=nothing_or_text,
        job_id=nothing_or_text,
    )


def _stored_record_schema(record: dict[str, Any]) -> dict[str, Any]:
    """A record as it comes back: text that was empty is absent."""
    values = {**record["properties"]["values"]}
    del values["required"]
    return {**record, "properties": {**record["properties"], "values": values}}


def _object_schema(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }


def _error_schema(**beside: Any) -> dict[str, Any]:
    return _object_schema(error={"type": "string", "description": "One sentence."}, **beside)


def _response(meaning: str, schema: str) -> dict[str, Any]:
    content = {"schema": {"$ref": f"#/components/schemas/{schema}"}}
    return {"description": meaning, "content": {"application/json": content}}


def _unauthorized_response() -> dict[str, Any]:
    return {
        **_response("The token is missing or does not count, and why.", "Error"),
        "headers": {"WWW-Authenticate": {"schema": _TEXT_SCHEMA}},
    }


def _unavailable_response(schema: str = "Error") -> dict[str, Any]:
    seconds = {"description": "Seconds until trying again makes sense.", "schema": _COUNT_SCHEMA}
    return {
        **_response("Not now: too much to do, the database away, or stopping.", schema),
        "headers": {"Retry-After": seconds},
    }
