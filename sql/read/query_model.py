"""Queries as values: selections of measurements, and figures over them.

A selection consists of campaigns and conditions on catalogue columns. Figures are counts, means and
spreads of metrics by any columns, for tables, matrices and plots. A :class:`FigureQuery` is evaluated on
the roll-ups by day and subject if these hold its columns, which reads some thousand rows instead of
millions, otherwise on the measurements.  Both give the same numbers, and the result names its source.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import sqlalchemy as sa

from treehammer.collectors.record import day_numbers
from treehammer.collectors.record.measurement_record import EXTRA_NAME
from treehammer.collectors.record.metric_catalogue import (
    INT64_LIMIT,
    LONG_TEXT_METRICS,
    METRICS_BY_NAME,
    Metric,
)
from treehammer.collectors.record.outcome import Outcome
from treehammer.collectors.record.value_checks import is_storable
from treehammer.errors import ConfigError, suggest_word
from treehammer.sql.core import measurement_sql
from treehammer.sql.core.measurement_columns import EXTRA_PREFIX, SUBJECT
from treehammer.sql.core.rows import QUARANTINED
from treehammer.sql.core.schema import ROLLUP_METRICS, measurement, quality_flag
from treehammer.sql.engine.database_engine import split_ids

Scalar = int | float | str | bool | None
_CONDITION_PATTERN = re.compile(r"\s*(\w+)\s*(!=|<=|>=|=|<|>|~)(.*)", re.DOTALL)
_BOOL_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_ORDER_OPERATORS = ("<", "<=", ">", ">=")
#: The column of the day, YYYYMMDD, and its derived groupings: YYYYMM, and the Monday as YYYYMMDD.
DAY, MONTH, WEEK = "day", "month", "week"
TIME_UNITS = (DAY, MONTH, WEEK)
#: Most measurements that a figure reads one by one, where roll-ups do not suffice.
MAX_READ = 300_000
#: Prefix of axes as columns. Those that the catalogue lacks are read from the variant.
AXIS_PREFIX, VARIANT_COLUMN = "axis_", "variant"
_AXIS_COLUMN = re.compile(rf"{AXIS_PREFIX}[a-z][a-z0-9_]*")
#: Columns of the roll-ups, which evaluate conditions and groups of these alone.
ROLLUP_GROUPINGS = frozenset((*SUBJECT.columns, *TIME_UNITS, "kind", "failure_class"))
FigureSource = Literal["roll-ups", "measurements"]


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


def is_counted() -> sa.ColumnElement[bool]:
    """Return the condition that a measurement is good, or neither repeated later nor in quarantine."""
    is_void = sa.or_(measurement_sql.is_superseded(), has_flag(QUARANTINED))
    return sa.or_(measurement_sql.has_outcome(Outcome.GOOD), sa.not_(is_void))


def has_flag(kind: str) -> sa.ColumnElement[bool]:
    """Return the condition that a measurement has a flag of a kind."""
    is_own = quality_flag.c.measurement_id == measurement.c.measurement_id
    return sa.exists().where(is_own, quality_flag.c.kind == kind).correlate(measurement)


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
        hint = "Write 1 March 2026 as 20260301." if metric.name == "day" else ""
        raise ConfigError(f"{metric.name} is {kind}, not {text!r}", where=where, hint=hint)
    return value


def _convert_text(kind: str, text: str) -> Scalar:
    if kind == "text":
        return text
    if kind == "bool":
        return _BOOL_WORDS.get(text.lower())
    try:
        number = int(text) if kind == "int" else float(text)
    except ValueError:
        return None
    is_valid = -INT64_LIMIT <= number < INT64_LIMIT if kind == "int" else math.isfinite(number)
    return number if is_valid else None


ALL_MEASUREMENTS = Selection()


@dataclass(frozen=True)
class FigureQuery:
    """A query for metrics of selected measurements, in groups.

    Means are taken over *good* measurements only: complete and plausible ones. All are counted by
    outcome: ``good``, ``implausible``, or the class of the failure. Tests that a release does not
    support are counted separately.

    Attributes:
        metrics: catalogue names of numbers, and ``extra_NAME`` for those that tests define.
        by: grouping columns: catalogue columns that are neither lists nor long texts, ``axis_NAME``
            for axes of any test, ``month`` (YYYYMM) and ``week`` (its Monday, YYYYMMDD).
        selection: the measurements.
        first_day: the first day (UTC, YYYYMMDD), if any.
        last_day: the last day, which still counts, if any.
        kind: the kind of execution; None for all kinds.
        latencies: whether the histograms of read latency are added up as well.
        from_measurements: always read the measurements, which alone have smallest and largest values.

    Raises:
        ConfigError: a column does not exist, or cannot be used like this.
    """

    metrics: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    selection: Selection = ALL_MEASUREMENTS
    first_day: int | None = None
    last_day: int | None = None
    kind: str | None = "timed"
    latencies: bool = False
    from_measurements: bool = False

    def __post_init__(self) -> None:
        for name in self.metrics:
            _require_numeric_metric(name)
        for name in self.by:
            _require_grouping_column(name)

    @property
    def source(self) -> FigureSource:
        """Source of the result."""
        by = (VARIANT_COLUMN if is_variant_axis(name) else name for name in self.by)
        used = {*by, *(where.column for where in self.selection.conditions)}
        rolled = used <= ROLLUP_GROUPINGS and set(self.metrics) <= set(ROLLUP_METRICS)
        if rolled and not self.selection.campaigns and not self.from_measurements:
            return "roll-ups"
        return "measurements"


#: Variance, relative to the squared mean, below which a difference of sums is rounding.
LEAST_VARIANCE = 1e-14


class Moments(NamedTuple):
    """A metric in a group, of the good measurements that have it.

    Attributes:
        value_count: number of these measurements.
        total: sum of their values, in the metric's unit.
        squares: sum of the squares.
        minimum: the smallest value; None without any, or from roll-ups.
        maximum: the largest.
    """

    value_count: int = 0
    total: float = 0.0
    squares: float = 0.0
    minimum: float | None = None
    maximum: float | None = None

    @property
    def mean(self) -> float | None:
        """The mean; None without values."""
        return self.total / self.value_count if self.value_count else None

    @property
    def rms(self) -> float | None:
        """The standard deviation of two values or more themselves (divided by n, not n - 1).

        It is computed from sums: values below 1e-7 of the mean are indistinguishable from 0, and are 0.
        """
        if self.value_count < 2:
            return None
        mean = self.total / self.value_count
        variance = self.squares / self.value_count - mean * mean
        return math.sqrt(variance) if variance > LEAST_VARIANCE * mean * mean else 0.0

    def __add__(self, other: Moments) -> Moments:  # type: ignore[override]
        """Return the moments of both groups together."""
        return Moments(
            self.value_count + other.value_count,
            self.total + other.total,
            self.squares + other.squares,
            min((low for low in (self.minimum, other.minimum) if low is not None), default=None),
            max((high for high in (self.maximum, other.maximum) if high is not None), default=None),
        )


class FigureGroup(NamedTuple):
    """Figures of a group of measurements: a line of a table, a cell of a matrix, a point of a plot.

    Attributes:
        by: common values of the group's measurements, by column.
        outcomes: number of measurements by outcome; outcomes that did not occur are absent.
        metrics: the requested metrics.
        reads: of good measurements, by latency: bin i is [2^i, 2^(i+1)) microseconds (bin 0 from
            0); empty unless requested.
    """

    by: Mapping[str, Scalar]
    outcomes: Mapping[str, int]
    metrics: Mapping[str, Moments]
    reads: Sequence[int] = ()

    @property
    def measurements(self) -> int:
        """Number of measurements of all outcomes."""
        return sum(self.outcomes.values())

    @property
    def good(self) -> int:
        """Number of good ones, over which means are taken."""
        return self.outcomes.get(Outcome.GOOD.value, 0)

    def latency_quantile_s(self, share: float) -> float | None:
        """Return the seconds below which ``share`` of the reads took; None without reads.

        The bin is exact; reads are assumed to spread evenly inside it, so that the result is wrong by
        less than a factor of 2.
        """
        target_reads = share * sum(self.reads)
        below = 0
        for place, count in enumerate(self.reads):
            if count and below + count >= target_reads:
                start = 2.0**place if place else 0.0
                return 1e-6 * (
                    start + (2.0 ** (place + 1) - start) * (target_reads - below) / count
                )
            below += count
        return None


@dataclass(frozen=True)
class FigureResult:
    """The groups of a figure, ordered by their values, unknown values first.

    ``source`` is where it came from.  A group without measurements does not appear.
    """

    source: FigureSource
    groups: tuple[FigureGroup, ...]


def coarsen_day(time: str, day: int) -> int | None:
    """Return the month or week of a day, or the day, all as numbers; None for an impossible day."""
    if time != WEEK:
        return {DAY: day, MONTH: day // 100}[time]
    date = day_numbers.number_to_day(day)
    return day_numbers.day_to_number(date - timedelta(days=date.weekday())) if date else None


def require_max_groups(groups: int, most: int) -> None:
    """Refuse a figure of more groups than are wanted.

    Raises:
        ConfigError: it has more.
    """
    if groups > most:
        raise ConfigError(
            f"this figure has more than {most:,} groups, and that is the limit",
            hint="Choose fewer days, one site or release, or fewer columns to group by.",
        )


def _require_numeric_metric(name: str) -> None:
    metric = METRICS_BY_NAME.get(name)
    if metric is None and not (
        name.startswith(EXTRA_PREFIX) and re.fullmatch(EXTRA_NAME, name.removeprefix(EXTRA_PREFIX))
    ):
        numbers = [
            metric.name for metric in METRICS_BY_NAME.values() if metric.type in ("int", "float")
        ]
        raise ConfigError(
            f"unknown metric {name!r}",
            hint=f"{suggest_word(name, numbers)}Numbers of the catalogue, and {EXTRA_PREFIX}NAME.",
        )
    if metric is not None and metric.type not in ("int", "float"):
        raise ConfigError(f"{name} is not a number, so it has no mean", hint="Group by it instead.")


def is_variant_axis(name: str) -> bool:
    """Return whether a grouping column is an axis that only variants hold, as of load tests."""
    return name not in METRICS_BY_NAME and bool(_AXIS_COLUMN.fullmatch(name))


@lru_cache(maxsize=4096)
def find_axis_value(variant: str, column: str) -> Scalar:
    """Return the value of an axis in a variant's JSON; None if it lacks the axis."""
    value = json.loads(variant or "{}").get(column.removeprefix(AXIS_PREFIX))
    return value if isinstance(value, str | int | float) else None


def _require_grouping_column(name: str) -> None:
    if name in TIME_UNITS or is_variant_axis(name):
        return
    metric = METRICS_BY_NAME.get(name)
    if metric is None:
        raise ConfigError(
            f"unknown column {name!r} to group by",
            hint=f"{suggest_word(name, (*METRICS_BY_NAME, *TIME_UNITS))}Columns of the catalogue, month and week.",
        )
    if metric.type in ("ints", "floats") or name in LONG_TEXT_METRICS:
        kind = "a long text" if name in LONG_TEXT_METRICS else "a list"
        raise ConfigError(f"cannot group by {name}: it is {kind}", hint="Choose another column.")
