"""Checks of single values of a record, by type, range, length and choice."""

from __future__ import annotations

from math import isfinite
from typing import Any, Callable, Dict

from ..json_documents import decode_json
from .metric_catalogue import INT64_LIMIT, Metric

Check = Callable[[Any], str]


def is_variant(text: str) -> bool:
    """Check that a text is the JSON object of a variant's axes and their values."""
    try:
        axes = decode_json(text)
    except ValueError:
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
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def is_number(value: Any) -> bool:
    """Check that ``value`` is a finite number that fits a column; a bool is not one."""
    return (isinstance(value, float) and isfinite(value)) or _is_int(value)


def _is_int(value: Any) -> bool:
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and -INT64_LIMIT <= value < INT64_LIMIT
    )


def make_check(metric: Metric) -> Check:
    """Build the validator of a metric's values; it describes a violation."""
    check = _CHECK_MAKERS[metric.type](metric)
    if metric.name == "variant":
        return lambda value: check(value) or _check_variant(value)
    if not metric.choices:
        return check
    choices = metric.choices
    alternatives = ", ".join(map(str, filter(None, choices)))
    reason = f"must be one of {alternatives}" if len(choices) > 1 else f"must be {alternatives}"
    return lambda value: check(value) or ("" if value in choices else reason)


def _make_text_check(metric: Metric) -> Check:
    limit, may_be_empty = metric.max_length, not metric.is_identity

    def check(value: Any) -> str:
        if not isinstance(value, str):
            return "must be text"
        if not is_storable(value):
            return "must not contain NUL or lone surrogates"
        if len(value) > limit:
            return f"is longer than {limit} characters"
        return "" if value or may_be_empty else "must not be empty"

    return check


def _make_int_check(metric: Metric) -> Check:
    low, high = metric.minimum, metric.maximum

    def check(value: Any) -> str:
        if not _is_int(value):
            return "must be a 64-bit whole number"
        return "" if low <= value <= high else f"must be {_describe_range(metric)}"

    return check


def _make_list_check(metric: Metric) -> Check:
    """Build the validator of a list whose items have the metric's range."""
    is_item = _is_int if metric.type == "ints" else is_number
    low = metric.minimum if metric.minimum > -INT64_LIMIT else None

    def check(value: Any) -> str:
        if not isinstance(value, list):
            return "must be a list"
        if not all(map(is_item, value)):
            return "must hold finite numbers only"
        if low is not None and min(value, default=low) < low:
            return f"must hold numbers of {_describe_range(metric)} only"
        return ""

    return check


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


_CHECK_MAKERS: Dict[str, Callable[[Metric], Check]] = {
    "int": _make_int_check,
    "float": lambda _: lambda value: "" if is_number(value) else "must be a finite number",
    "text": _make_text_check,
    "bool": lambda _: lambda value: "" if isinstance(value, bool) else "must be true or false",
    "ints": _make_list_check,
    "floats": _make_list_check,
}
