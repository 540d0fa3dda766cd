"""The measurement record: what one execution of one variant recorded.

On disk it is one JSON object: ``{"values": {catalogue name: value}, "extras": {name: number}}``.
Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Sequence

from .metric_catalogue import (
    CATALOGUE,
    LONG_TEXT_METRICS,
    METRIC_TYPES,
    METRICS_BY_NAME,
    Metric,
    Value,
)

#: Version of the record's layout, in every record.
RECORD_VERSION = 1

#: What names other rows, and words of a small vocabulary: databases index them, so they are short.
IDENTITY_METRICS = ("measurement_id", "campaign_id", "job_id", "series")
WORD_METRICS = ("kind", "failure_class")
#: Longest text in characters: of identities, of words, of any other (Oracle's VARCHAR2), and what
#: :data:`LONG_TEXTS` may hold.
MAX_IDENTITY = 128
MAX_WORD = 64
MAX_TEXT = 4000
MAX_LONG_TEXT = 1_000_000
INT64_LIMIT = 2**63

#: Names of metrics that a test defines: they become names of branches and columns.
EXTRA_NAME = "^[A-Za-z_][A-Za-z0-9_]{0,63}$"
_MAX_LENGTHS: Dict[str, int] = {
    **dict.fromkeys(IDENTITY_METRICS, MAX_IDENTITY),
    **dict.fromkeys(WORD_METRICS, MAX_WORD),
    **dict.fromkeys(LONG_TEXT_METRICS, MAX_LONG_TEXT),
}
_EXTRA_NAME = re.compile(EXTRA_NAME[:-1] + r"\Z")


class RecordError(ValueError):
    """A record is not valid; the message names every wrong field, ``problems`` are the same apart."""

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems) or (message,)


@dataclass(frozen=True)
class Measurement:
    """One valid record.

    Attributes:
        values: catalogue name -> value; absent and ``None`` mean the same.
        extras: metrics that the test defines.
    """

    values: Mapping[str, Value]
    extras: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problems = find_record_problems(self.values, self.extras)
        if problems:
            raise RecordError("; ".join(problems), problems)

    @property
    def id(self) -> str:
        """Identity of the measurement."""
        return str(self.values["measurement_id"])

    def to_json(self) -> str:
        """One line of JSON without NaN."""
        document = {"values": dict(self.values), "extras": dict(self.extras)}
        return json.dumps(document, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Measurement:
        """Read a record.

        Raises:
            RecordError: not JSON, or a field is unknown, missing or of the wrong type.
        """
        try:
            document = json.loads(text)
        except ValueError as error:
            raise RecordError(f"not JSON: {error}") from error
        return cls.from_document(document)

    @classmethod
    def from_document(cls, document: Any) -> Measurement:
        """The record that was read from JSON.

        Raises:
            RecordError: a field is unknown, missing or of the wrong type.
        """
        if not isinstance(document, dict) or set(document) != {"values", "extras"}:
            raise RecordError("an object with exactly 'values' and 'extras' is expected")
        if not isinstance(document["values"], dict) or not isinstance(document["extras"], dict):
            raise RecordError("'values' and 'extras' must be objects")
        return cls(document["values"], document["extras"])


def make_measurement_id(job_id: str, attempt: int, round_: int, position: int) -> str:
    """Identity of a measurement: the same execution always gives the same one."""
    text = f"{job_id}/{attempt}/{round_}/{position}"
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def find_record_problems(values: Mapping[str, Any], extras: Mapping[str, Any]) -> List[str]:
    """Every reason why these are no valid record; empty when they are one."""
    return [] if _is_valid(values, extras) else _find_reasons(values, extras)


def _find_reasons(values: Mapping[str, Any], extras: Mapping[str, Any]) -> List[str]:
    problems = [f"unknown field {name!r}" for name in values if name not in METRICS_BY_NAME]
    for metric in CATALOGUE:
        value = values.get(metric.name)
        if value is None:
            if metric.required:
                problems.append(f"{metric.name} is missing")
        else:
            reason = describe_type_error(metric, value)
            if reason:
                problems.append(f"{metric.name} {reason}")
    for name, value in extras.items():
        if not isinstance(name, str) or not _EXTRA_NAME.match(name):
            problems.append(f"extra {name!r} is not a name")
        elif isinstance(value, bool) or not is_number(value):
            problems.append(f"extra {name} must be a finite number")
    return problems


def max_length(metric: Metric) -> int:
    """Longest text, in characters, that a metric of type ``text`` may hold."""
    return _MAX_LENGTHS.get(metric.name, MAX_TEXT)


_REQUIRED = tuple(metric.name for metric in CATALOGUE if metric.required)
#: Names of the metrics of each type; of text, apart by the longest that they may hold.
_NAMES_BY_TYPE = {kind: tuple(m.name for m in CATALOGUE if m.type == kind) for kind in METRIC_TYPES}
_TEXTS_BY_LIMIT = {
    limit: tuple(m.name for m in CATALOGUE if m.type == "text" and max_length(m) == limit)
    for limit in (MAX_IDENTITY, MAX_WORD, MAX_TEXT, MAX_LONG_TEXT)
}


def _is_valid(values: Mapping[str, Any], extras: Mapping[str, Any]) -> bool:
    """Whether this is a valid record, told in a third of the time by looking at all of a type at once.

    A service does this for every record; False only means that somebody must look closely.
    """
    get = values.get
    if not values.keys() <= METRICS_BY_NAME.keys() or None in map(get, _REQUIRED):
        return False
    try:
        for limit, names in _TEXTS_BY_LIMIT.items():
            texts = [value for value in map(get, names) if value is not None]
            if texts and (len(max(texts, key=len)) > limit or not is_storable("".join(texts))):
                return False
        floats = [value for value in map(get, _NAMES_BY_TYPE["float"]) if value is not None]
        ints = [value for value in map(get, _NAMES_BY_TYPE["int"]) if value is not None]
        bools = {type(value) for value in map(get, _NAMES_BY_TYPE["bool"]) if value is not None}
        lists = [get(name) for name in _NAMES_BY_TYPE["ints"] + _NAMES_BY_TYPE["floats"]]
        return (
            all(map(get, IDENTITY_METRICS))
            and _are_ints(ints)
            and _are_floats(floats)
            and bools <= {bool}
            and all(_are_ints(get(name) or []) for name in _NAMES_BY_TYPE["ints"])
            and all(_are_floats(get(name) or []) for name in _NAMES_BY_TYPE["floats"])
            and {type(value) for value in lists} <= {list, type(None)}
            and _are_floats(list(extras.values()))
            and all(map(_EXTRA_NAME.match, extras))
        )
    except (TypeError, ValueError, OverflowError):
        return False


def is_storable(text: str) -> bool:
    """Whether databases can hold a text, and be asked for it: neither NUL nor a lone surrogate is in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _are_ints(values: List[Any]) -> bool:
    if not values:
        return True
    return (
        set(map(type, values)) == {int}
        and min(values) >= -INT64_LIMIT
        and max(values) < INT64_LIMIT
    )


def _are_floats(values: List[Any]) -> bool:
    kinds = set(map(type, values))
    if not kinds <= {float, int} or not all(map(math.isfinite, values)):
        return False
    return int not in kinds or _are_ints([value for value in values if type(value) is int])


def describe_type_error(metric: Metric, value: Any) -> str:
    """Why ``value`` does not fit the metric's type; empty when it does."""
    kind = metric.type
    if kind == "bool":
        return "" if isinstance(value, bool) else "must be true or false"
    if kind == "text":
        if not isinstance(value, str):
            return "must be text"
        if not is_storable(value):
            return "must not contain NUL or lone surrogates"
        if not value and metric.name in IDENTITY_METRICS:
            return "must not be empty"
        limit = max_length(metric)
        return "" if len(value) <= limit else f"is longer than {limit} characters"
    if kind == "int":
        return "" if _is_int(value) else "must be a 64-bit whole number"
    if kind == "float":
        return "" if is_number(value) else "must be a finite number"
    if not isinstance(value, list):
        return "must be a list"
    test = _is_int if kind == "ints" else is_number
    return "" if all(test(item) for item in value) else "must hold finite numbers only"


def _is_int(value: Any) -> bool:
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and -INT64_LIMIT <= value < INT64_LIMIT
    )


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite number that fits a column (a bool is none)."""
    return _is_int(value) or (isinstance(value, float) and math.isfinite(value))


def build_record_schema() -> Dict[str, Any]:
    """JSON Schema (2020-12) of the record, generated from the catalogue."""
    types: Dict[str, Dict[str, Any]] = {
        "int": {"type": ["integer", "null"], "minimum": -INT64_LIMIT, "maximum": INT64_LIMIT - 1},
        "float": {"type": ["number", "null"]},
        "text": {"type": ["string", "null"], "pattern": "^[^\\u0000]*$"},
        "bool": {"type": ["boolean", "null"]},
        "ints": {"type": ["array", "null"], "items": {"type": "integer"}},
        "floats": {"type": ["array", "null"], "items": {"type": "number"}},
    }
    properties: Dict[str, Any] = {}
    for metric in CATALOGUE:
        entry = dict(types[metric.type])
        if metric.type == "text":
            entry["maxLength"] = max_length(metric)
        if metric.name in IDENTITY_METRICS:
            entry["minLength"] = 1
        if metric.required:
            entry["type"] = entry["type"][0]
        unit = f" [{metric.unit}]" if metric.unit else ""
        entry["description"] = f"{metric.meaning}{unit} Source: {metric.source}."
        properties[metric.name] = entry
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
                "required": [metric.name for metric in CATALOGUE if metric.required],
                "properties": properties,
            },
            "extras": {
                "type": "object",
                "propertyNames": {"pattern": EXTRA_NAME},
                "additionalProperties": {"type": "number"},
            },
        },
    }
