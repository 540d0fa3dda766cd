"""The measurement record: values and test-defined metrics of one execution, and their validation.

On disk a record is one JSON object:
``{"values": {catalogue name: value}, "extras": {name: number}}``.
Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Callable, Dict, List, Mapping, Sequence

from .day_numbers import DAY_US, epoch_day_to_number
from .metric_catalogue import CATALOGUE, INT64_LIMIT, Metric, Value

#: Names of metrics that a test defines; they become names of branches and columns.
EXTRA_NAME = "^[A-Za-z_][A-Za-z0-9_]{0,63}$"
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
    """Validated record of one execution.

    Attributes:
        values: catalogue name -> value; absent and ``None`` mean the same.
        extras: metrics that the test defines.
    """

    values: Mapping[str, Value]
    extras: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _raise_problems(_find_field_problems(self.values, self.extras))

    @property
    def id(self) -> str:
        """Return the identity of the measurement."""
        return str(self.values["measurement_id"])

    def to_json(self) -> str:
        """Write the record as one line of JSON without NaN."""
        document = {"values": dict(self.values), "extras": dict(self.extras)}
        return json.dumps(document, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Measurement:
        """Parse a record.

        Raises:
            RecordError: not JSON, or not a valid record.
        """
        try:
            document = json.loads(text)
        except ValueError as error:
            raise RecordError(f"not JSON: {error}") from error
        return cls.from_document(document)

    @classmethod
    def from_document(cls, document: Any) -> Measurement:
        """Build a measurement from an external document, such as parsed JSON.

        Raises:
            RecordError: not a valid record, or its fields contradict each other.
        """
        if not isinstance(document, dict) or set(document) != {"values", "extras"}:
            raise RecordError("an object with exactly 'values' and 'extras' is expected")
        if not isinstance(document["values"], dict) or not isinstance(document["extras"], dict):
            raise RecordError("'values' and 'extras' must be objects")
        measurement = cls(document["values"], document["extras"])
        _raise_problems(_find_contradictions(measurement.values))
        return measurement


def make_measurement_id(job_id: str, attempt: int, round_: int, position: int) -> str:
    """Derive the identity of a measurement: the same execution always has the same one."""
    text = f"{job_id}/{attempt}/{round_}/{position}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def is_variant(text: str) -> bool:
    """Check that a text is the JSON object of a variant's axes and their values."""
    try:
        axes = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(axes, dict) and all(
        is_storable(axis)
        and (
            is_storable(value)
            if isinstance(value, str)
            else isinstance(value, bool) or is_number(value)
        )
        for axis, value in axes.items()
    )


def is_storable(text: str) -> bool:
    """Check that databases can hold a text: it contains neither NUL nor a lone surrogate."""
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_number(value: Any) -> bool:
    """Check that ``value`` is a finite number that fits a column; a bool is not one."""
    if type(value) is float:
        return isfinite(value)
    return _is_int(value) or (isinstance(value, float) and isfinite(value))


def _is_int(value: Any) -> bool:
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and -INT64_LIMIT <= value < INT64_LIMIT
    )


# Validation, driven by the catalogue


def find_record_problems(values: Mapping[str, Any], extras: Mapping[str, Any]) -> List[str]:
    """List every reason for rejecting a record; empty if it is valid."""
    # Contradictions are only searched among values of the right type.
    return _find_field_problems(values, extras) or _find_contradictions(values)


def _raise_problems(problems: Sequence[str]) -> None:
    if problems:
        raise RecordError("; ".join(problems), problems)


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
    if values["plausible"] and values.get("implausible_reasons"):
        problems.append("plausible must be false where implausible_reasons has a reason")
    # Otherwise one job could take the identity of another's measurement.
    if values["measurement_id"] != make_measurement_id(*map(values.__getitem__, IDENTITY_COLUMNS)):
        problems.append("measurement_id is not that of job_id, attempt, round and position")
    return problems


_Check = Callable[[Any], str]


def _make_check(metric: Metric) -> _Check:
    """Build the validator of a metric's values; it describes a violation."""
    check = _CHECK_MAKERS[metric.type](metric)
    if metric.name == "variant":
        return lambda value: check(value) or _check_variant(value)
    if not metric.choices:
        return check
    choices = metric.choices
    listed = ", ".join(map(str, filter(None, choices)))
    reason = f"must be one of {listed}" if len(choices) > 1 else f"must be {listed}"
    return lambda value: check(value) or ("" if value in choices else reason)


def _make_text_check(metric: Metric) -> _Check:
    limit, may_be_empty = metric.max_length, not metric.is_identity

    def check(value: Any) -> str:
        if not isinstance(value, str):
            return "must be text"
        if "\0" in value or not (value.isascii() or is_storable(value)):
            return "must not contain NUL or lone surrogates"
        if len(value) > limit:
            return f"is longer than {limit} characters"
        return "" if value or may_be_empty else "must not be empty"

    return check


def _make_int_check(metric: Metric) -> _Check:
    low, high = metric.minimum, metric.maximum

    def check(value: Any) -> str:
        if type(value) is int and low <= value <= high:
            return ""
        if not _is_int(value):
            return "must be a 64-bit whole number"
        return "" if low <= value <= high else f"must be {_describe_range(metric)}"

    return check


def _make_list_check(metric: Metric) -> _Check:
    """Build the validator of a list whose items have the metric's range."""
    is_item = _is_int if metric.type == "ints" else is_number
    low = metric.minimum if metric.minimum > -INT64_LIMIT else None
    floats = {float}

    def check(value: Any) -> str:
        if not isinstance(value, list):
            return "must be a list"
        if set(map(type, value)) == floats:
            are_items = is_item is is_number and all(map(isfinite, value))
        else:
            are_items = all(map(is_item, value))
        if not are_items:
            return "must hold finite numbers only"
        if low is not None and min(value, default=low) < low:
            return f"must hold numbers of {_describe_range(metric)} only"
        return ""

    return check


def _check_float(value: Any) -> str:
    if type(value) is float and isfinite(value):  # most, and a record has a hundred of them
        return ""
    return "" if is_number(value) else "must be a finite number"


def _check_bool(value: Any) -> str:
    return "" if isinstance(value, bool) else "must be true or false"


def _check_variant(text: str) -> str:
    if is_variant(text):
        return ""
    return (
        "must be a JSON object of texts (without NUL or lone surrogates), true, false and numbers "
        "(whole ones within 64 bits)"
    )


def _describe_range(metric: Metric) -> str:
    if metric.maximum == INT64_LIMIT - 1:
        return f"at least {metric.minimum}"
    return f"between {metric.minimum} and {metric.maximum}"


_CHECK_MAKERS: Dict[str, Callable[[Metric], _Check]] = {
    "int": _make_int_check,
    "float": lambda _: _check_float,
    "text": _make_text_check,
    "bool": lambda _: _check_bool,
    "ints": _make_list_check,
    "floats": _make_list_check,
}
_CHECKS = {metric.name: _make_check(metric) for metric in CATALOGUE}
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
                "propertyNames": {"pattern": EXTRA_NAME},
                "additionalProperties": {"type": "number"},
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
        schema["items"] = {"type": "integer"}
        if metric.minimum > -INT64_LIMIT:
            schema["items"]["minimum"] = metric.minimum
    elif metric.type == "floats":
        schema["items"] = {"type": "number"}
    if metric.choices:
        schema["enum"] = [*metric.choices] if metric.required else [None, *metric.choices]
    unit = f" [{metric.unit}]" if metric.unit else ""
    schema["description"] = f"{metric.meaning}{unit} Source: {metric.source}."
    return schema
