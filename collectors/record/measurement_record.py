"""The measurement record: all that one execution measured, and its validation.

On disk a record is one JSON object:
``{"values": {catalogue name: value}, "extras": {name: number}, "operations": [row, …]}``;
only load tests have operations.
Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Sequence

from ..json_documents import load_json
from .day_numbers import DAY_US, current_us, epoch_day_to_number
from .metric_catalogue import CATALOGUE, Metric, Value
from .operation_steps import (
    MAX_OPERATION_STEPS,
    OPERATION_METRICS,
    REQUIRED_COLUMNS,
    find_operation_problems,
)
from .value_checks import Check, is_number, make_check

#: Names of metrics that a test defines; they become names of branches and columns.
EXTRA_NAME = "^[A-Za-z_][A-Za-z0-9_]{0,63}$"
#: Maximum number of metrics that a test defines.
MAX_EXTRAS = 256
#: Bytes of a record at most; the worker writes no larger one.
MAX_RECORD_BYTES = 16_000_000
#: 2000-01-01, and the largest lead of a node's clock: days outside would dominate all pages.
FIRST_START_US = 946_684_800_000_000
MAX_AHEAD_US = DAY_US
_EXTRA_NAME = re.compile(EXTRA_NAME[:-1] + r"\Z")

#: Columns from which the identity is derived.
IDENTITY_COLUMNS = ("job_id", "attempt", "round", "position")


class RecordError(ValueError):
    """Invalid record; ``problems`` lists every wrong field, the message joins them."""

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems) or (message,)


@dataclass(frozen=True)
class Measurement:
    """Record of one execution.

    The worker builds it of values that are valid already. Whatever comes from elsewhere enters
    through :meth:`from_document`, and is not validated again.

    Attributes:
        values: catalogue name -> value; absent and ``None`` mean the same.
        extras: metrics that the test defines.
        operations: rows of a load test, see :data:`OPERATION_METRICS`.
    """

    values: Mapping[str, Value]
    extras: Mapping[str, float] = field(default_factory=dict)
    operations: Sequence[Mapping[str, Value]] = ()

    @property
    def id(self) -> str:
        """Return the identity of the measurement."""
        return str(self.values["measurement_id"])

    def to_json(self) -> str:
        """Write the record as one line of JSON without NaN."""
        document: Dict[str, Any] = {"values": dict(self.values), "extras": dict(self.extras)}
        if self.operations:
            document["operations"] = list(self.operations)
        return json.dumps(document, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Measurement:
        """Parse a record.

        Raises:
            RecordError: not JSON, or not a valid record.
        """
        try:
            document = load_json(text)
        except ValueError as error:
            raise RecordError(f"not JSON: {error}") from error
        return cls.from_document(document)

    @classmethod
    def from_document(cls, document: Any) -> Measurement:
        """Validate an external document, such as parsed JSON, and build the measurement.

        Raises:
            RecordError: not a valid record, or its fields contradict each other.
        """
        if not isinstance(document, dict) or set(document) - {"operations"} != {"values", "extras"}:
            raise RecordError(
                "an object with 'values', 'extras' and possibly 'operations' is expected"
            )
        if not isinstance(document["values"], dict) or not isinstance(document["extras"], dict):
            raise RecordError("'values' and 'extras' must be objects")
        operations = document.get("operations", [])
        if not isinstance(operations, list):
            raise RecordError("'operations' must be a list")
        values, extras = document["values"], document["extras"]
        # Contradictions are only searched among values of the right type.
        problems = (
            _find_field_problems(values, extras)
            or find_operation_problems(operations)
            or _find_contradictions(values)
        )
        if problems:
            raise RecordError("; ".join(problems), problems)
        return cls(values, extras, operations)


def make_measurement_id(job_id: str, attempt: int, round_: int, position: int) -> str:
    """Derive the identity of a measurement: the same execution always has the same one."""
    text = f"{job_id}/{attempt}/{round_}/{position}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


# Validation, driven by the catalogue


def _find_field_problems(values: Mapping[str, Any], extras: Mapping[str, Any]) -> List[str]:
    problems = []
    for name, value in values.items():
        check = _CHECKS.get(name)
        if check is None:
            problems.append(f"unknown field {name!r}")
        elif value is not None:
            reason = check(value)
            if reason:
                problems.append(f"{name} {reason}")
    problems += [f"{name} is missing" for name in _REQUIRED if values.get(name) is None]
    return problems + _find_extra_problems(extras)


def _find_extra_problems(extras: Mapping[str, Any]) -> List[str]:
    if len(extras) > MAX_EXTRAS:
        return [f"{len(extras)} extras; at most {MAX_EXTRAS} are possible"]
    problems = []
    for name, value in extras.items():
        if not isinstance(name, str) or not _EXTRA_NAME.match(name):
            problems.append(f"extra {name!r} is not a name")
        elif not is_number(value):
            problems.append(f"extra {name} must be a finite number")
    return problems


def describe_value_error(metric: Metric, value: Any) -> str:
    """Describe the violation of a metric's constraints by ``value``; empty if it is valid."""
    return _CHECKS[metric.name](value)


def _find_contradictions(values: Mapping[str, Any]) -> List[str]:
    """List contradictory fields; the worker never writes such a record."""
    problems = []
    if values["day"] != epoch_day_to_number(values["started_us"] // DAY_US):
        problems.append("day must be the UTC day of started_us, as YYYYMMDD")
    if not FIRST_START_US <= values["started_us"] <= current_us() + MAX_AHEAD_US:
        now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        problems.append(f"started_us is not from 2000 to {now}: set the node's clock, or this one")
    if values["plausible"] and values.get("implausible_reasons"):
        problems.append("plausible must be false where implausible_reasons has a reason")
    # Otherwise one job could take the identity of another's measurement.
    if values["measurement_id"] != make_measurement_id(*map(values.__getitem__, IDENTITY_COLUMNS)):
        problems.append("measurement_id is not that of job_id, attempt, round and position")
    return problems


_CHECKS: Dict[str, Check] = {metric.name: make_check(metric) for metric in CATALOGUE}
_REQUIRED = tuple(metric.name for metric in CATALOGUE if metric.required)


# Schema


def build_record_schema() -> Dict[str, Any]:
    """Build the JSON Schema (2020-12) of the record from the catalogue."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Treehammer measurement record",
        "type": "object",
        "additionalProperties": False,
        "required": ["values", "extras"],
        "properties": {
            "values": {
                "type": "object",
                "additionalProperties": False,
                "required": list(_REQUIRED),
                "properties": {metric.name: _build_metric_schema(metric) for metric in CATALOGUE},
            },
            "extras": {
                "type": "object",
                "maxProperties": MAX_EXTRAS,
                "propertyNames": {"pattern": EXTRA_NAME},
                "additionalProperties": {"type": "number"},
            },
            "operations": {
                "type": "array",
                "maxItems": MAX_OPERATION_STEPS,
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": list(REQUIRED_COLUMNS),
                    "properties": {
                        metric.name: _build_metric_schema(metric) for metric in OPERATION_METRICS
                    },
                },
            },
        },
    }


_JSON_TYPES = {
    "int": "integer",
    "float": "number",
    "text": "string",
    "bool": "boolean",
    "ints": "array",
    "floats": "array",
}


def _build_metric_schema(metric: Metric) -> Dict[str, Any]:
    json_type = _JSON_TYPES[metric.type]
    schema: Dict[str, Any] = {"type": json_type if metric.required else [json_type, "null"]}
    if metric.type == "int":
        schema.update(minimum=metric.minimum, maximum=metric.maximum)
    elif metric.type == "text":
        schema.update(pattern="^[^\\u0000]*$", maxLength=metric.max_length)
        if metric.is_identity:
            schema["minLength"] = 1
    elif metric.type == "ints":
        schema["items"] = {"type": "integer", "minimum": metric.minimum, "maximum": metric.maximum}
    elif metric.type == "floats":
        schema["items"] = {"type": "number"}
    if metric.choices:
        schema["enum"] = [*metric.choices] if metric.required else [None, *metric.choices]
    unit = f" [{metric.unit}]" if metric.unit else ""
    schema["description"] = f"{metric.meaning}{unit} Source: {metric.source}."
    return schema
