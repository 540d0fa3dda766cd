"""Axes of a test's matrix, and their values.

Values are normalized, so that ``1`` and ``1.0`` are one fraction and one series.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.config import JsonDict
from pydantic_core import CoreSchema, core_schema

from treehammer.collectors.job_spec import (
    BANDWIDTH_AXIS,
    LATENCY_AXIS,
    MAX_BANDWIDTH_MBIT,
    MAX_LATENCY_MS,
    SERVER_CACHE_AXIS,
    SERVER_CACHE_STATES,
    THREADS_AXIS,
)
from treehammer.collectors.record.metric_catalogue import CATALOGUE_AXES
from treehammer.collectors.record.value_checks import is_number
from treehammer.collectors.software import providers
from treehammer.hctests.definition.document_problems import invalid_value
from treehammer.hctests.definition.model import (
    COMMIT_AXIS,
    DATASET_AXIS,
    FORMAT_AXIS,
    PREFETCH_AXIS,
    WORKING_TREE,
    Scalar,
)
from treehammer.toml_documents import write_value

#: The most threads of an execution; more are taken for an oversight.
MAX_THREADS = 1024
MAX_PREFETCH = 1000
AXIS_NAME_PATTERN = r"^[a-z][a-z0-9_]{0,29}$"
MAX_AXIS_TEXT = 1000

#: Axes that cannot run interleaved in one job -> reason.
NEVER_BUNDLED_AXES: Mapping[str, str] = {
    "access": "the copy of a staged execution warms the caches that the next one uses",
    "cache": "a warm execution leaves the server's cache warm for the next, cold one",
}


@dataclass(frozen=True)
class Axis:
    """Definition of an axis.

    ``normalize`` returns the normalized value, or raises ValueError with the reason; ``schema`` is
    the JSON Schema of one value; ``numeric`` is whether typed text is parsed as a number if possible.
    """

    default: tuple[Scalar, ...]
    expected: str
    schema: Mapping[str, Any]
    normalize: Callable[[Any], Scalar]
    numeric: bool = False

    def describe_problem(self, error: ValueError) -> str:
        """Describe why a value is invalid, with the expected ones unless the error lists them."""
        return str(error) if " known: " in str(error) else f"{error} (expected {self.expected})"


def check_text(value: Any) -> str:
    """Check that a value is one line of text without control characters.

    Raises:
        ValueError: any other value.
    """
    if not isinstance(value, str):
        raise ValueError(f"{write_value(value)} is not text in quotes")
    if not value.strip() or value != value.strip():
        raise ValueError(f"{value!r} is empty or has spaces around it")
    if not value.isprintable() or len(value) > MAX_AXIS_TEXT:
        raise ValueError(
            f"{value[:40]!r} contains control characters or more than {MAX_AXIS_TEXT} characters"
        )
    return value


def _check_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_number(value):
        reason = "does not fit 64 bits" if type(value) is int else "is not a number"
        raise ValueError(f"{write_value(value)} {reason}")
    return value


def _normalize_number(value: Any) -> int | float:
    """Convert to a whole number if possible: 30.0 and 30 are one value."""
    number = _check_number(value)
    integer = int(number)
    return integer if integer == number and is_number(integer) else number


def _normalize_root(value: Any) -> Scalar:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(
            f"the number {value!r} is not a version: TOML reads 6.40 as 6.4; put it in quotes"
        )
    providers.parse_software_request(check_text(value))
    return str(value)


def _normalize_fraction(value: Any) -> Scalar:
    number = float(_check_number(value))
    if not 0 < number <= 1:
        raise ValueError(f"{value!r} is not a fraction above 0 and up to 1")
    return number


def _normalize_branches(value: Any) -> Scalar:
    if not isinstance(value, str):
        return _normalize_fraction(value)
    if check_text(value) == "@":
        raise ValueError("'@' names no file")
    return value


def _make_number_axis(default: tuple[Scalar, ...], expected: str, high: int, unit: str) -> Axis:
    """Make an axis of numbers from 0 to a bound."""

    def read(value: Any) -> Scalar:
        number = _normalize_number(value)
        if not 0 <= number <= high:
            raise ValueError(f"{value!r} is not between 0 and {high} {unit}")
        return number

    schema = {"type": "number", "minimum": 0, "maximum": high}
    return Axis(default, expected, schema, read, numeric=True)


def _make_count_axis(expected: str, low: int, high: int) -> Axis:
    """Make an axis of whole numbers between two bounds, without a default."""

    def read(value: Any) -> Scalar:
        number = _normalize_number(value)
        if not isinstance(number, int) or not low <= number <= high:
            raise ValueError(f"{value!r} is not a whole number from {low} to {high}")
        return number

    schema = {"type": "integer", "minimum": low, "maximum": high}
    return Axis((), expected, schema, read, numeric=True)


def _normalize_name(value: Any) -> Scalar:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", check_text(value)):
        raise ValueError(f"{value!r} is not a name of letters, digits, '.', '_' and '-'")
    return str(value)


def _make_choice_axis(default: tuple[Scalar, ...], expected: str, choices: Sequence[str]) -> Axis:
    """Make an axis of some words."""

    def read(value: Any) -> Scalar:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"unknown value {write_value(value)}")
        return value

    return Axis(default, expected, {"enum": [*choices]}, read)


def _normalize_custom(value: Any) -> Scalar:
    if isinstance(value, bool):
        return value
    return check_text(value) if isinstance(value, str) else _normalize_number(value)


_TEXT_SCHEMA: Mapping[str, Any] = {"type": "string", "minLength": 1, "maxLength": MAX_AXIS_TEXT}
_FRACTION_SCHEMA: Mapping[str, Any] = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}

AXES_BY_NAME: Mapping[str, Axis] = {
    "root": Axis(
        ("current",),
        'a ROOT release in quotes, "path:/folder", "cvmfs:VIEW/PLATFORM", "wrap:COMMAND", '
        '"xrootd:VERSION", "build:/folder", "pypi:NAME==VERSION", "current" or "none"',
        _TEXT_SCHEMA,
        _normalize_root,
    ),
    "branches": Axis(
        (1.0,),
        'a fraction in (0, 1], patterns such as "Muon_*,!Muon_eta", "readable", or "@file" with a list',
        {"anyOf": [_FRACTION_SCHEMA, _TEXT_SCHEMA]},
        _normalize_branches,
        numeric=True,
    ),
    "cache_mb": _make_number_axis((30,), "megabytes of TTreeCache from 0 (off)", 100_000, "MB"),
    "events": Axis(
        (1.0,), "a fraction in (0, 1]", _FRACTION_SCHEMA, _normalize_fraction, numeric=True
    ),
    "door": Axis((), "the name of a door", _TEXT_SCHEMA, _normalize_name),
    "access": _make_choice_axis(("direct",), '"direct" or "staged"', ("direct", "staged")),
    "cache": _make_choice_axis(("warm",), '"warm" or "cold"', ("warm", "cold")),
}
assert tuple(AXES_BY_NAME) == CATALOGUE_AXES

#: Without columns of their own: tests without such an axis read TTrees with one thread and without
#: asynchronous prefetching, and their series are unaffected.
OPTIONAL_AXES: Mapping[str, Axis] = {
    FORMAT_AXIS: _make_choice_axis((), '"ttree" or "rntuple"', ("ttree", "rntuple")),
    THREADS_AXIS: _make_count_axis(
        f"a whole number of threads from 1 to {MAX_THREADS}, and of CPUs that the job requests",
        1,
        MAX_THREADS,
    ),
    PREFETCH_AXIS: _make_count_axis(
        f"a whole number from 0 to {MAX_PREFETCH}: 1 turns a TTreeCache's asynchronous prefetching on; "
        "of an RNTuple, clusters that are read at once (0: ROOT's choice)",
        0,
        MAX_PREFETCH,
    ),
    SERVER_CACHE_AXIS: _make_choice_axis(
        (),
        '"cold", "half" or "warm": the state of the cache behind the door, which is emptied before',
        SERVER_CACHE_STATES,
    ),
    DATASET_AXIS: Axis((), "the name of a dataset", _TEXT_SCHEMA, _normalize_name),
    LATENCY_AXIS: _make_number_axis(
        (), f"a round trip in milliseconds from 0 to {MAX_LATENCY_MS}", MAX_LATENCY_MS, "ms"
    ),
    BANDWIDTH_AXIS: _make_number_axis(
        (),
        f"a rate in Mbit/s up to {MAX_BANDWIDTH_MBIT}, 0 for no limit",
        MAX_BANDWIDTH_MBIT,
        "Mbit/s",
    ),
    COMMIT_AXIS: Axis(
        (),
        f'a branch, tag or commit of the test\'s repository, or "{WORKING_TREE}" for the working tree',
        _TEXT_SCHEMA,
        check_text,
    ),
}

CUSTOM_AXIS_TYPE = Axis(
    (),
    "text, a number, true or false",
    {"anyOf": [_TEXT_SCHEMA, {"type": "number"}, {"type": "boolean"}]},
    _normalize_custom,
)


def find_axis(name: str) -> Axis:
    """Find an axis by name; unknown names are custom axes."""
    return AXES_BY_NAME.get(name) or OPTIONAL_AXES.get(name, CUSTOM_AXIS_TYPE)


def have_same_kind(values: Sequence[Scalar]) -> bool:
    """Return whether all values of a custom axis are text, all numbers, or all booleans."""
    return len({_value_kind(value) for value in values}) <= 1


def _value_kind(value: Scalar) -> str:
    if isinstance(value, bool):
        return "bool"
    return "text" if isinstance(value, str) else "number"


def parse_axis_text(name: str, typed: str, declared: Sequence[Scalar]) -> Any:
    """Parse a typed value to a TOML value of the axis' type, without checking it.

    Args:
        name: name of the axis.
        typed: typed text, such as ``0.02`` or ``Muon_*``.
        declared: values in test.toml, which determine the type of a custom axis.
    """
    kind = "number" if find_axis(name).numeric else "text"
    if find_axis(name) is CUSTOM_AXIS_TYPE and declared:
        kind = _value_kind(declared[0])
    if kind == "bool":
        return {"true": True, "false": False}.get(typed, typed)
    if kind == "number":
        for number in (int, float):
            try:
                return number(typed)
            except ValueError:
                continue
    return typed


class AxisValue:
    """Annotation for values of an axis: pydantic validates and describes them as the axis does."""

    def __init__(self, axis: Axis) -> None:
        self._axis = axis

    def __get_pydantic_core_schema__(self, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(self, _: CoreSchema, __: GetJsonSchemaHandler) -> JsonDict:
        return dict(self._axis.schema)

    def _validate(self, value: Any) -> Scalar:
        try:
            return self._axis.normalize(value)
        except ValueError as error:
            raise invalid_value(self._axis.describe_problem(error)) from None


def _normalize_rule(rule: dict[str, Scalar]) -> dict[str, Scalar]:
    """Normalize the values of a rule; checks across keys report invalid ones."""
    normalized = {}
    for name, value in rule.items():
        try:
            normalized[name] = find_axis(name).normalize(value)
        except ValueError:
            normalized[name] = value
    return normalized


CustomValue = Annotated[Scalar, AxisValue(CUSTOM_AXIS_TYPE)]
#: Axes with a value each.
Rule = Annotated[dict[str, CustomValue], AfterValidator(_normalize_rule)]
