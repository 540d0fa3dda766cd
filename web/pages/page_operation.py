"""Declaration of a page's API operation: path, parameters, tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from treehammer.collectors.record.metric_catalogue import CATALOGUE, MAX_TEXT

#: Maximum length of a parameter value, in characters.
MAX_VALUE_CHARS = 500
#: Text as an address may contain it.
NO_NUL: Mapping[str, Any] = {"type": "string", "pattern": "^[^\\u0000]*$"}
TEXT: Mapping[str, Any] = {**NO_NUL, "minLength": 1, "maxLength": MAX_VALUE_CHARS}
#: A condition COLUMN=VALUE; the value may be as long as that of a filter.
_CONDITION: Mapping[str, Any] = {
    **TEXT,
    "maxLength": MAX_TEXT + max(len(f"{metric.name}!=") for metric in CATALOGUE),
}
_FORMAT: Mapping[str, Any] = {"enum": ["json", "csv"]}
DAY: Mapping[str, Any] = {"type": "string", "format": "date"}
_EMPTY: Mapping[str, Any] = {"const": ""}
TEXT_OR_NONE: Mapping[str, Any] = {"anyOf": [TEXT, _EMPTY]}
DAY_OR_NONE: Mapping[str, Any] = {"anyOf": [DAY, _EMPTY]}
PAGE_NUMBER: Mapping[str, Any] = {"type": "integer", "minimum": 1, "maximum": 1_000_000}


@dataclass(frozen=True)
class Parameter:
    """A query parameter, or with ``in_path`` a part of the path."""

    name: str
    description: str
    schema: Mapping[str, Any]
    in_path: bool = False
    repeatable: bool = False
    required: bool = False

    def allows(self, value: str) -> bool:
        """Return whether a query value matches the schema, except for the format of days."""
        return _matches(self.schema, value)


def _matches(schema: Mapping[str, Any], value: str) -> bool:
    for keyword, check in _CHECKS.items():
        if keyword in schema:
            return check(schema[keyword], value)
    return _TYPE_CHECKS[schema["type"]](schema, value)


def _is_integer(schema: Mapping[str, Any], value: str) -> bool:
    # No sign and no leading zeros, as in JSON.
    plain = re.fullmatch(r"[1-9]\d{0,14}", value, re.ASCII)
    return bool(plain) and schema["minimum"] <= int(value) <= schema["maximum"]


def _is_number(schema: Mapping[str, Any], value: str) -> bool:
    plain = re.fullmatch(r"\d+(\.\d+)?([eE][+-]?\d+)?", value, re.ASCII)
    return bool(plain) and schema["exclusiveMinimum"] < float(value) < schema["exclusiveMaximum"]


def _is_text(schema: Mapping[str, Any], value: str) -> bool:
    return bool(value) and len(value) <= schema.get("maxLength", MAX_VALUE_CHARS)


#: Checks by the keyword of a schema, the first that it has.
_CHECKS: Mapping[str, Callable[[Any, str], bool]] = {
    "anyOf": lambda schemas, value: any(_matches(schema, value) for schema in schemas),
    "const": lambda constant, value: value == str(constant),
    "enum": lambda choices, value: value in map(str, choices),
}
#: Checks by the type of any other schema.
_TYPE_CHECKS: Mapping[str, Callable[[Mapping[str, Any], str], bool]] = {
    "integer": _is_integer,
    "number": _is_number,
    "string": _is_text,
}


@dataclass(frozen=True)
class PageOperation:
    """An operation that returns the tables of a page.

    Attributes:
        path: below :data:`~treehammer.collectors.job_spec.API_PREFIX`, in OpenAPI notation.
        name: the operationId.
        page_route: name of the route of the page with the same content.
        summary: one line.
        tables: description of the rows by name of the table.
        parameters: of this operation alone.
        about: names of the values that the response holds beside its tables.
        always_about: whether every response holds all of them.
        filters: parameters that select measurements by the value of a column.
    """

    path: str
    name: str
    page_route: str
    summary: str
    tables: Mapping[str, str]
    parameters: tuple[Parameter, ...] = ()
    about: tuple[str, ...] = ()
    always_about: bool = True
    filters: tuple[Parameter, ...] = ()

    @property
    def all_parameters(self) -> tuple[Parameter, ...]:
        """Return named parameters and filters."""
        return (*self.named_parameters, *self.filters)

    @property
    def named_parameters(self) -> tuple[Parameter, ...]:
        """Return the operation's own parameters and the common ones."""
        return (
            *self.parameters,
            Parameter("table", "Only this table.", {"enum": list(self.tables)}),
            Parameter("format", "CSV contains one table, by default the first.", _FORMAT),
        )


#: Description of the table of times.
TIME_TABLE = "parts of the wall time of good timed measurements in solo mode"
#: Selects campaigns.
CAMPAIGN = Parameter(
    "campaign", "Only measurements of this campaign; may be repeated.", TEXT, repeatable=True
)


def make_window_parameters(day_counts: tuple[int, ...]) -> tuple[Parameter, ...]:
    """Create the parameters of a window of days."""
    days = {"type": "integer", "enum": list(day_counts)}
    return (
        Parameter("to", "Last day (UTC), by default today.", DAY),
        Parameter("days", "Number of days.", days),
    )


def make_condition(name: str, meaning: str) -> Parameter:
    """Create a parameter of conditions on columns."""
    rule = "several on one column match any of them."
    return Parameter(name, f"{meaning}; {rule}", _CONDITION, repeatable=True)
