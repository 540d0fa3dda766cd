"""Groups of executions with equal values of some axes and columns, and their figures.

Only good executions enter a figure; failed, implausible and unsupported ones are counted.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from treehammer.analysis.statistics.estimates import estimate_mean, estimate_unpaired
from treehammer.analysis.statistics.job_pairs import select_last_attempts
from treehammer.analysis.statistics.sample import (
    count_hosts,
    find_varying_axes,
    natural_sort_key,
    parse_variant,
)
from treehammer.collectors.job_spec import TIMED
from treehammer.collectors.record.outcome import Outcome, classify_outcome
from treehammer.hctests.definition.model import Scalar
from treehammer.sql.read.campaign_counts import select_counted

Row = Mapping[str, Any]
Key = tuple[Scalar | None, ...]


@dataclass(frozen=True)
class MeanAndRms:
    """Mean of repeated executions and their RMS deviation from it, in the metric's unit."""

    n: int
    mean: float
    rms: float

    @classmethod
    def from_values(cls, values: Sequence[float]) -> MeanAndRms:
        """Sum up at least one value; the RMS divides by n, as study S0's error bars do."""
        mean = math.fsum(values) / len(values)
        square = math.fsum((value - mean) ** 2 for value in values) / len(values)
        return cls(len(values), mean, math.sqrt(square))


@dataclass(frozen=True)
class MeanWithInterval:
    """A mean over jobs with its 95 % t interval, in the metric's unit.

    A job counts by the median of its executions.  ``low`` and ``high`` are None where fewer than two
    jobs, or jobs without any spread, say nothing of certainty.
    """

    jobs: int
    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class ExecutionGroup:
    """Timed executions that agree in their key.

    ``rows`` are the usable ones; ``outcomes`` counts all, but those that a later attempt repeated.
    """

    key: Key
    rows: tuple[Row, ...]
    outcomes: Mapping[Outcome, int]

    @property
    def jobs(self) -> int:
        """Number of jobs that the usable executions belong to."""
        return len({row["job_id"] for row in self.rows})

    @property
    def hosts(self) -> int:
        """Number of known hosts on which they ran."""
        return count_hosts(self.rows)

    def mean_and_rms(self, metric: str) -> MeanAndRms | None:
        """Summarize over executions; None where none recorded the metric."""
        values = [row[metric] for row in self.rows if row[metric] is not None]
        return MeanAndRms.from_values(values) if values else None

    def mean_over_jobs(self, metric: str) -> MeanWithInterval | None:
        """Summarize over jobs; None where none recorded the metric."""
        values = self.job_values(metric)
        if not values:
            return None
        estimate = estimate_mean(values)
        if estimate is None:
            return MeanWithInterval(len(values), math.fsum(values) / len(values))
        return MeanWithInterval(len(values), estimate.mean, *estimate.interval())

    def ratio_over_jobs(self, other: ExecutionGroup, metric: str) -> MeanWithInterval | None:
        """Compute the ratio to another group, as a geometric mean over jobs.

        Unpaired (Welch's t on the logarithms); None where either has no positive values, without an
        interval where either has fewer than two jobs.
        """
        values, other_values = self.job_values(metric), other.job_values(metric)
        if not values or not other_values or min(*values, *other_values) <= 0:
            return None
        jobs = len(values)
        estimate = estimate_unpaired(other_values, values)
        if estimate is None:
            return MeanWithInterval(
                jobs, math.exp(_mean_of_logs(values) - _mean_of_logs(other_values))
            )
        return MeanWithInterval(jobs, math.exp(estimate.mean), *map(math.exp, estimate.interval()))

    def job_values(self, metric: str) -> list[float]:
        """Return one value per job: the median over the executions of its last attempt that has one."""
        measured = (row for row in self.rows if row[metric] is not None)
        jobs = select_last_attempts(measured, lambda row: (row["job_id"], row["attempt"]))
        return [float(median(row[metric] for row in rows)) for rows in jobs.values()]


def is_usable(row: Row) -> bool:
    """Return whether a row may be averaged: timed, not failed and plausible."""
    return row["kind"] == TIMED and classify_outcome(row) is Outcome.GOOD


def group_executions(rows: Iterable[Row], key: Callable[[Row], Key]) -> list[ExecutionGroup]:
    """Group the timed executions by a key, in natural order of its parts."""
    groups: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        if row["kind"] == TIMED:
            groups[key(row)].append(row)
    return [_make_group(key_, groups[key_]) for key_ in sorted(groups, key=_group_sort_key)]


def _make_group(key: Key, rows: Sequence[Row]) -> ExecutionGroup:
    usable = tuple(row for row in rows if classify_outcome(row) is Outcome.GOOD)
    return ExecutionGroup(key, usable, Counter(map(classify_outcome, select_counted(rows))))


def list_axes(rows: Iterable[Row]) -> tuple[str, ...]:
    """List the axes of the rows' variants."""
    names = (name for row in rows for name, _ in parse_variant(row["variant"]).values)
    return tuple(dict.fromkeys(names))


def lookup_value(row: Row, name: str) -> Scalar | None:
    """Get a row's value for an axis of its variant or for a column."""
    axis_values = dict(parse_variant(row["variant"]).values)
    value: Scalar | None = axis_values[name] if name in axis_values else row.get(name)
    return value


def find_distinguishing_names(
    rows: Iterable[Row], beside: Collection[str] = ("site", "door")
) -> tuple[str, ...]:
    """Find the names that distinguish groups: varying axes, and these columns."""
    timed = [row for row in rows if row["kind"] == TIMED]
    varying = find_varying_axes(parse_variant(row["variant"]) for row in timed)
    implied = set(_find_implied_columns(timed))
    columns = [
        name for name in beside if name not in implied and len({row[name] for row in timed}) > 1
    ]
    return (*columns, *varying)


def _find_implied_columns(rows: Sequence[Row]) -> Iterator[str]:
    """Find columns that say no more than another one."""
    if all(row.get("storage_site") == row.get("site") for row in rows):
        yield "storage_site"
    contents = {(row.get("dataset"), row.get("dataset_hash")) for row in rows}
    if len({name for name, _ in contents}) == len(contents):
        yield "dataset_hash"


def _group_sort_key(key: Key) -> tuple[Any, ...]:
    return tuple((2,) if value is None else natural_sort_key(value) for value in key)


def _mean_of_logs(values: Sequence[float]) -> float:
    return math.fsum(map(math.log, values)) / len(values)
