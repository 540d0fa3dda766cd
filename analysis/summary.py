"""Executions summed up: groups of those that agree in some axes and columns, and their figures.

Only what is usable enters a figure; what failed, cannot be true or is not supported is counted beside.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from treehammer.analysis.pairs import last_attempts
from treehammer.analysis.samples import known_hosts, natural_order, read_variant, varying_axes
from treehammer.analysis.statistics import one_sample, welch
from treehammer.collectors.failures import NOT_SUPPORTED
from treehammer.collectors.job import TIMED
from treehammer.hctests.definition import Scalar

Row = Mapping[str, Any]
Key = tuple[Scalar | None, ...]

#: What may become of a timed execution.
FATES = USABLE, FAILED, IMPLAUSIBLE, UNSUPPORTED = (
    "usable",
    "failed",
    "implausible",
    "not supported",
)


@dataclass(frozen=True)
class Spread:
    """Mean of repeated executions and their RMS deviation from it, in the metric's unit."""

    n: int
    mean: float
    rms: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Sum up at least one value; the RMS divides by n, as study S0's error bars do."""
        mean = math.fsum(values) / len(values)
        square = math.fsum((value - mean) ** 2 for value in values) / len(values)
        return cls(len(values), mean, math.sqrt(square))


@dataclass(frozen=True)
class Figure:
    """A mean over jobs with its 95 % t interval, in the metric's unit.

    A job counts by the median of its executions.  ``low`` and ``high`` are None where fewer than two
    jobs, or jobs without any spread, say nothing of certainty.
    """

    jobs: int
    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Sum:
    """Timed executions that agree in their key.

    ``rows`` are the usable ones, ``fates`` counts all by what became of them.
    """

    key: Key
    rows: tuple[Row, ...]
    fates: Mapping[str, int]

    @property
    def jobs(self) -> int:
        """How many jobs the usable executions belong to."""
        return len({row["job_id"] for row in self.rows})

    @property
    def hosts(self) -> int:
        """How many known hosts they ran on."""
        return len(known_hosts(row["host"] for row in self.rows))

    def spread(self, metric: str) -> Spread | None:
        """Over executions; None where none recorded the metric."""
        values = [row[metric] for row in self.rows if row[metric] is not None]
        return Spread.of(values) if values else None

    def figure(self, metric: str) -> Figure | None:
        """Over jobs; None where none recorded the metric."""
        values = self.of_jobs(metric)
        if not values:
            return None
        estimate = one_sample(values)
        if estimate is None:
            return Figure(len(values), math.fsum(values) / len(values))
        return Figure(len(values), estimate.mean, *estimate.interval())

    def ratio(self, other: Sum, metric: str) -> Figure | None:
        """How many times as much as in another group, the geometric mean over jobs.

        Unpaired (Welch's t on the logarithms); None where either has no positive values, without an
        interval where either has fewer than two jobs.
        """
        here, there = self.of_jobs(metric), other.of_jobs(metric)
        if not here or not there or min(*here, *there) <= 0:
            return None
        jobs = len(here)
        estimate = welch(there, here)
        if estimate is None:
            return Figure(jobs, math.exp(_mean_log(here) - _mean_log(there)))
        return Figure(jobs, math.exp(estimate.mean), *map(math.exp, estimate.interval()))

    def of_jobs(self, metric: str) -> list[float]:
        """One value a job: the median over its executions in its last attempt that has one."""
        known = (row for row in self.rows if row[metric] is not None)
        jobs = last_attempts(known, lambda row: (row["job_id"], row["attempt"]))
        return [float(median(row[metric] for row in found)) for found in jobs.values()]


def fate(row: Row) -> str:
    """What became of a timed execution: one of :data:`FATES`."""
    if row["failure_kind"] == NOT_SUPPORTED:
        return UNSUPPORTED
    if row["failure_class"]:
        return FAILED
    return USABLE if row["plausible"] else IMPLAUSIBLE


def is_usable(row: Row) -> bool:
    """Whether a row may be averaged: timed, not failed and plausible."""
    return row["kind"] == TIMED and fate(row) == USABLE


def sum_up(rows: Iterable[Row], key: Callable[[Row], Key]) -> list[Sum]:
    """Group the timed executions by a key, in natural order of its parts."""
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        if row["kind"] == TIMED:
            groups[key(row)].append(row)
    return [_sum(key_, groups[key_]) for key_ in sorted(groups, key=_order)]


def _sum(key: Key, rows: Sequence[Row]) -> Sum:
    fates = [fate(row) for row in rows]
    usable = tuple(row for row, what in zip(rows, fates, strict=True) if what == USABLE)
    return Sum(key, usable, Counter(fates))


def axes_of(rows: Iterable[Row]) -> tuple[str, ...]:
    """The axes of the rows' variants."""
    names = (name for row in rows for name, _ in read_variant(row["variant"]).values)
    return tuple(dict.fromkeys(names))


def value_of(row: Row, name: str) -> Scalar | None:
    """What a row holds under the name of an axis of its variant, or of a column."""
    found = dict(read_variant(row["variant"]).values)
    value: Scalar | None = found[name] if name in found else row.get(name)
    return value


def telling(rows: Iterable[Row], beside: Collection[str] = ("site", "door")) -> tuple[str, ...]:
    """The names that tell groups apart which hold no mixture: varying axes, and these columns."""
    timed = [row for row in rows if row["kind"] == TIMED]
    varying = varying_axes(read_variant(row["variant"]) for row in timed)
    columns = [name for name in beside if len({row[name] for row in timed}) > 1]
    return (*columns, *varying)


def _order(key: Key) -> tuple[Any, ...]:
    return tuple((2,) if value is None else natural_order(value) for value in key)


def _mean_log(values: Sequence[float]) -> float:
    return math.fsum(map(math.log, values)) / len(values)
