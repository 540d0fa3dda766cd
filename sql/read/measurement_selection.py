"""Selections of measurements: campaigns and conditions on catalogue columns."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from treehammer.collectors.record.metric_catalogue import (
    INT64_LIMIT,
    LONG_TEXT_METRICS,
    METRICS_BY_NAME,
    Metric,
)
from treehammer.collectors.record.value_checks import is_storable
from treehammer.errors import ConfigError, suggest_word
from treehammer.sql.core import measurement_sql
from treehammer.sql.core.schema import measurement
from treehammer.sql.engine.row_mapping import split_ids

Scalar = int | float | str | bool | None

_CONDITION_PATTERN = re.compile(r"\s*(\w+)\s*(!=|<=|>=|=|<|>|~)(.*)", re.DOTALL)
_BOOL_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_ORDER_OPERATORS = ("<", "<=", ">", ">=")


@dataclass(frozen=True)
class Condition:
    """One condition: a column, one of ``= != < <= > >= ~``, and a value of the column's type.

    The value None means "not known".  ``!=`` also selects rows in which the column is not known.
    ``~`` matches text with a pattern in which ``*`` stands for any text and ``?`` for one character.
    With several values, any of them must match (with ``!=`` none of them).
    """

    column: str
    operator: str
    value: Scalar | tuple[Scalar, ...]

    @classmethod
    def parse(cls, text: str) -> Condition:
        """Parse ``COLUMN=VALUE`` or another operator; an empty value means "not known".

        Raises:
            ConfigError: the form, the column, or the value is wrong.
        """
        match = _CONDITION_PATTERN.fullmatch(text)
        if match is None:
            raise ConfigError(
                f"{text!r} is not a condition",
                where="--where",
                hint="Write COLUMN=VALUE, or one of != < <= > >= ~ instead of =.",
            )
        name, operator, value = match[1], match[2], match[3].strip()
        if not is_storable(value):
            # PostgreSQL rejects NUL in a query, and Python cannot encode the other.
            raise ConfigError(
                "a value contains NUL or is not valid UTF-8, unlike any stored text",
                where="--where",
            )
        return cls(name, operator, _parse_value(_find_metric(name), operator, value))

    @property
    def values(self) -> tuple[Scalar, ...]:
        """All values; a single one as a tuple."""
        return self.value if isinstance(self.value, tuple) else (self.value,)

    @property
    def texts(self) -> list[str]:
        """A text for each value, as :meth:`parse` reads it."""
        return [str(replace(self, value=value)) for value in self.values]

    def __str__(self) -> str:
        return f"{self.column}{self.operator}{' or '.join('' if v is None else str(v) for v in self.values)}"


def parse_alternatives(texts: Iterable[str]) -> tuple[Condition, ...]:
    """Parse conditions and combine them as pages do: several ``=`` on one column are alternatives.

    Raises:
        ConfigError: a condition is invalid.
    """
    wheres = map(Condition.parse, texts)
    return _merge_equalities(wheres, lambda first, second: [*dict.fromkeys((*first, *second))])


def intersect_conditions(wheres: Iterable[Condition]) -> tuple[Condition, ...]:
    """Merge the ``=`` conditions on a column into one with their common values.

    Of two without a common value, the later one is kept.
    """
    return _merge_equalities(
        wheres, lambda first, second: [v for v in first if v in second] or [*second]
    )


def _merge_equalities(
    wheres: Iterable[Condition],
    combine: Callable[[Sequence[Scalar], Sequence[Scalar]], Sequence[Scalar]],
) -> tuple[Condition, ...]:
    """Merge ``=`` conditions per column; ``combine`` combines the values of two."""
    merged: dict[Condition | str, Condition] = {}
    for where in wheres:
        key = where.column if where.operator == "=" else where
        if key in merged:
            values = combine(merged[key].values, where.values)
            merged[key] = replace(where, value=values[0] if len(values) == 1 else tuple(values))
        else:
            merged[key] = where
    return tuple(merged.values())


@dataclass(frozen=True)
class Selection:
    """Measurements of some campaigns (identities; empty for all) that meet all conditions."""

    campaigns: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()

    @classmethod
    def parse(cls, campaigns: Iterable[str] = (), wheres: Iterable[str] = ()) -> Selection:
        """Make a selection from campaign identities and conditions as text.

        Raises:
            ConfigError: a condition is wrong.
        """
        return cls(tuple(campaigns), tuple(Condition.parse(text) for text in wheres))

    def __str__(self) -> str:
        campaigns = [f"campaign_id={' or '.join(self.campaigns)}"] if self.campaigns else []
        return " and ".join([*campaigns, *map(str, self.conditions)]) or "all measurements"


def compile_selection(selection: Selection, dialect: str) -> list[sa.ColumnElement[bool]]:
    """Compile the selection to SQL conditions of a dialect (``sqlite``, ``postgresql``, …)."""
    conditions: list[sa.ColumnElement[bool]] = []
    if selection.campaigns:
        conditions.append(measurement.c.campaign_id.in_(selection.campaigns))
    conditions += [
        measurement_sql.measurements_where(
            w.column, compile_condition(w, measurement_sql.catalogue_column(w.column), dialect)
        )
        for w in selection.conditions
    ]
    return conditions


def compile_condition(
    where: Condition, column: sa.ColumnElement[Any], dialect: str
) -> sa.ColumnElement[bool]:
    """Build a condition as SQL for a dialect, on ``column``."""
    value = where.value
    if isinstance(value, tuple):
        return _compile_alternatives(where, value, column, dialect)
    if where.operator == "~":
        return match_pattern(column, str(value), dialect)
    if value is None:
        return column.is_(None) if where.operator == "=" else column.is_not(None)
    if dialect == "oracle" and where.column in LONG_TEXT_METRICS:
        # A CLOB can be compared by LIKE alone.
        is_equal = _build_like(column, str(value))
        return sa.or_(sa.not_(is_equal), column.is_(None)) if where.operator == "!=" else is_equal
    if where.operator == "!=":
        return sa.or_(column != value, column.is_(None))
    return column.op(where.operator, is_comparison=True)(value)


def _compile_alternatives(
    where: Condition, values: tuple[Scalar, ...], column: sa.ColumnElement[Any], dialect: str
) -> sa.ColumnElement[bool]:
    """Build a condition with several values, as lists where databases can compare with them."""
    is_long_text = where.column in LONG_TEXT_METRICS
    if where.operator == "=" and None not in values and not is_long_text and len(values) > 1:
        return sa.or_(*map(column.in_, split_ids(values)))
    conditions = [
        compile_condition(replace(where, value=alternative), column, dialect)
        for alternative in values
    ]
    if where.operator == "!=":
        return sa.and_(sa.true(), *conditions)
    return sa.or_(sa.false(), *conditions)


def match_pattern(
    column: sa.ColumnElement[str], pattern: str, dialect: str
) -> sa.ColumnElement[bool]:
    """Match text with a case-sensitive pattern in which ``*`` and ``?`` are wildcards."""
    # SQLite's LIKE ignores case, the others' does not; its GLOB does not either.
    if dialect == "sqlite":
        return column.op("GLOB", is_comparison=True)(pattern.replace("[", "[[]"))
    return _build_like(column, pattern, {"*": "%", "?": "_"})


def _build_like(
    column: sa.ColumnElement[str], text: str, wildcards: Mapping[str, str] = MappingProxyType({})
) -> sa.ColumnElement[bool]:
    escaped = re.sub(r"([\\%_])", r"\\\1", text)
    for wildcard, sql_wildcard in wildcards.items():
        escaped = escaped.replace(wildcard, sql_wildcard)
    # As plain text: for a column of long texts Oracle would be sent another type.
    return column.like(sa.literal(escaped, sa.String), escape="\\")


def _find_metric(name: str) -> Metric:
    metric = METRICS_BY_NAME.get(name)
    if metric is None:
        raise ConfigError(
            f"unknown column {name!r}",
            where="--where",
            hint=f"{suggest_word(name, METRICS_BY_NAME)}The page 'What is recorded' of the documentation "
            "lists all columns.",
        )
    return metric


def _parse_value(metric: Metric, operator: str, text: str) -> Scalar:
    where = f"--where {metric.name}{operator}{text}"
    if metric.type in ("ints", "floats"):
        raise ConfigError(
            f"{metric.name} holds a list, which no condition can compare", where=where
        )
    if operator == "~":
        if metric.type != "text":
            raise ConfigError(f"{metric.name} is not text; '~' compares text only", where=where)
        return text
    if operator in _ORDER_OPERATORS and metric.type in ("text", "bool"):
        # As text 6.9 would come after 6.40.
        raise ConfigError(
            f"{metric.name} is not a number; '{operator}' compares numbers", where=where
        )
    if not text:
        if operator in _ORDER_OPERATORS:
            raise ConfigError("a number is missing", where=where)
        return None
    value = _convert_text(metric.type, text)
    if value is None:
        kind = {"int": "a whole number", "float": "a number", "bool": "true or false"}[metric.type]
        raise ConfigError(f"{metric.name} is {kind}, not {text!r}", where=where)
    return value


def _convert_text(kind: str, text: str) -> Scalar:
    if kind == "text":
        return text
    if kind == "bool":
        return _BOOL_WORDS.get(text.lower())
    try:
        if kind == "int":
            whole = int(text)
            return whole if -INT64_LIMIT <= whole < INT64_LIMIT else None
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
