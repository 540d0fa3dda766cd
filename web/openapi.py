"""The OpenAPI description of the service, generated from the catalogue."""

from __future__ import annotations

from typing import Any

from treehammer.collectors.record import json_schema
from treehammer.collectors.service import API, CAMPAIGNS_PATH, MEASUREMENTS_PATH
from treehammer.sql.contradictions import describe
from treehammer.version import __version__
from treehammer.web.api import (
    DESCRIPTION_PATH,
    HEALTH_PATH,
    MEASUREMENT_PATH,
    NO_NUL,
    OPERATIONS,
    TOKEN_PATH,
    Operation,
    Parameter,
)
from treehammer.web.bodies import Limits
from treehammer.web.campaign_document import DOCUMENT, schemas
from treehammer.web.handing_in import ROWS

#: Raised with every change of the interface: the first number when clients must change.
API_VERSION = "1.3.0"

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}


def description(limits: Limits) -> dict[str, Any]:
    """The description, as one JSON object of OpenAPI 3.1."""
    record = _record()
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
            MEASUREMENTS_PATH: {"post": _post(limits)},
            MEASUREMENT_PATH: {"get": _get()},
            TOKEN_PATH: {"get": _token()},
            HEALTH_PATH: {"get": _health()},
            DESCRIPTION_PATH: {"get": _openapi()},
            **_asked(limits),
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
                "StoredRecord": _stored(record),
                "Error": _error(),
                "Invalid": _error(
                    errors={
                        "type": "array",
                        "items": _object(index=_COUNT, reasons={"type": "array", "items": _TEXT}),
                    }
                ),
                **schemas(),
                "InvalidCampaign": _error(reasons={"type": "array", "items": _TEXT}),
                "Taken": _object(new=_COUNT, changed=_COUNT, known=_COUNT),
                "Outcome": _object(
                    new=_COUNT, known=_COUNT, conflicting={"type": "array", "items": _TEXT}
                ),
                "Token": _token_schema(),
                "Health": _object(
                    status={"enum": ["ok", "unavailable"]}, version=_TEXT, time_us=_COUNT
                ),
            },
        },
    }


def _record() -> dict[str, Any]:
    record = json_schema()
    del record["$schema"]
    values = record["properties"]["values"]
    values["properties"] = describe(values["properties"])
    return record


def _post(limits: Limits) -> dict[str, Any]:
    body = _object(
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
        f"({limits.unpacked_bytes} unpacked, with Content-Encoding: gzip), and {limits.marks} commas, "
        "colons and brackets; measurement_id must be that of job_id, attempt, round and position, day that of started_us; whole numbers are written without a fraction.",
        "security": [{"token": []}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "200": _answer("They are safe.", "Outcome"),
            **_body_refusals(),
            "422": _answer("Measurements are not valid; none was stored.", "Invalid"),
        },
    }


def _body_refusals() -> dict[str, Any]:
    """Answers to what cannot be taken in, whatever it is."""
    return {
        "400": _answer("The body is damaged or not strict JSON.", "Error"),
        "401": _unauthorized(),
        "403": _answer("The token is for something else.", "Error"),
        "408": _answer("The body did not arrive in time.", "Error"),
        "413": _answer("Too much at once.", "Error"),
        "415": _answer("Not JSON in UTF-8, or packed otherwise than with gzip.", "Error"),
        "503": _unavailable(),
    }


def _asked(limits: Limits) -> dict[str, Any]:
    """What pages show, for programs; campaigns are also handed in."""
    paths = {f"{API}{one.address}": {"get": _data(one)} for one in OPERATIONS}
    paths[CAMPAIGNS_PATH]["post"] = _hand_in(limits)
    return paths


def _hand_in(limits: Limits) -> dict[str, Any]:
    reference = {"$ref": f"#/components/schemas/{DOCUMENT}"}
    return {
        "operationId": "handInCampaign",
        "summary": "Tell of a campaign, its jobs and their attempts",
        "description": "For who submitted it, with a key of the role submit. What is told later stands "
        "in place of what was told before; what is not told stays. Jobs that the service's own "
        f"installation follows are left to it. All or nothing is stored. At most {ROWS} jobs, attempts "
        f"and replicas together and {limits.packed_bytes} bytes ({limits.unpacked_bytes} unpacked); none may "
        "stand twice.",
        "security": [{"token": []}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": reference}}},
        "responses": {
            "200": _answer("It is safe: rows that are new, changed, or as they were.", "Taken"),
            **_body_refusals(),
            "422": _answer("It is not valid; nothing was stored.", "InvalidCampaign"),
        },
    }


def _get() -> dict[str, Any]:
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
            "200": _answer("The measurement.", "StoredRecord"),
            "400": _answer("There is a NUL in the address.", "Error"),
            "401": _unauthorized(),
            "403": _answer("The token may not read.", "Error"),
            "404": _answer("There is none of this identity.", "Error"),
            "503": _unavailable(),
        },
    }


def _token() -> dict[str, Any]:
    return {
        "operationId": "getToken",
        "summary": "What the token may do that is shown",
        "security": [{"token": []}],
        "responses": {
            "200": _answer("It counts.", "Token"),
            "401": _unauthorized(),
            "503": _unavailable(),
        },
    }


def _health() -> dict[str, Any]:
    return {
        "operationId": "getHealth",
        "summary": "Whether measurements can be taken in now",
        "responses": {
            "200": _answer("They can.", "Health"),
            "503": _unavailable("Health"),
        },
    }


def _openapi() -> dict[str, Any]:
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


def _data(operation: Operation) -> dict[str, Any]:
    """One that answers what a page shows, as tables."""
    rows = {"type": "array", "items": {"type": "object"}}
    tables = {
        name: {**rows, "description": f"{meaning[0].upper()}{meaning[1:]}."}
        for name, meaning in operation.tables.items()
    }
    body = _object(
        title={"type": "string", "description": "What the page is called."},
        tables={"type": "object", "additionalProperties": rows, "properties": tables},
        about={
            "type": "object",
            "description": "What the page tells beside its tables.",
            "required": list(operation.about) if operation.always else [],
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
        "parameters": [_parameter(one) for one in operation.all_parameters],
        "responses": {
            "200": {"description": "What the page shows.", "content": content},
            "400": _answer("A parameter asks for what there is not.", "Error"),
            "401": _unauthorized(),
            "403": _answer("The token may not read.", "Error"),
            "404": _answer("There is no such thing.", "Error"),
            "503": _unavailable(),
        },
    }


def _parameter(one: Parameter) -> dict[str, Any]:
    schema = {"type": "array", "items": one.schema} if one.many else one.schema
    return {
        "name": one.name,
        "in": "path" if one.path else "query",
        "required": one.path or one.required,
        "description": one.meaning,
        "schema": schema,
    }


def _token_schema() -> dict[str, Any]:
    nothing_or_text = {"type": ["string", "null"]}
    return _object(
        role={"enum": ["read", "submit", "admin"]},
        key=_TEXT,
        name=_TEXT,
        expires_us={"type": ["integer", "null"]},
        campaign_id=nothing_or_text,
        job_id=nothing_or_text,
    )


def _stored(record: dict[str, Any]) -> dict[str, Any]:
    """A record as it comes back: text that was empty is absent."""
    values = {**record["properties"]["values"]}
    del values["required"]
    return {**record, "properties": {**record["properties"], "values": values}}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }


def _error(**beside: Any) -> dict[str, Any]:
    return _object(error={"type": "string", "description": "One sentence."}, **beside)


def _answer(meaning: str, schema: str) -> dict[str, Any]:
    content = {"schema": {"$ref": f"#/components/schemas/{schema}"}}
    return {"description": meaning, "content": {"application/json": content}}


def _unauthorized() -> dict[str, Any]:
    return {
        **_answer("The token is missing or does not count, and why.", "Error"),
        "headers": {"WWW-Authenticate": {"schema": _TEXT}},
    }


def _unavailable(schema: str = "Error") -> dict[str, Any]:
    seconds = {"description": "Seconds until trying again makes sense.", "schema": _COUNT}
    return {
        **_answer("Not now: too much to do, the database away, or stopping.", schema),
        "headers": {"Retry-After": seconds},
    }
