"""Means over jobs of a campaign's measurements by group, with ratios to a baseline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.statistics.headline_rows import add_extras
from treehammer.analysis.statistics.job_pairs import (
    ExecutionGroup,
    MeanWithInterval,
    Row,
    find_distinguishing_names,
    group_executions,
    list_axes,
    lookup_value,
)
from treehammer.analysis.statistics.metric_units import (
    PLAIN_UNIT,
    DisplayUnit,
    find_display_unit,
    format_metric,
    head_unit,
)
from treehammer.analysis.statistics.sample import matches_value
from treehammer.analysis.statistics.verdict import MIN_HOSTS
from treehammer.collectors.job_spec import CLING
from treehammer.collectors.record.metric_catalogue import LONG_TEXT_METRICS, METRICS_BY_NAME
from treehammer.collectors.record.outcome import Outcome
from treehammer.errors import ConfigError, NothingToDoError, suggest_word
from treehammer.hctests.definition.judged_metrics import is_hash
from treehammer.hctests.definition.model import Scalar
from treehammer.sql.read.query_model import Selection
from treehammer.sql.read.reader import ResultsReader
from treehammer.tables import TableColumn

#: Own metric of the shipped load tests.
_LIMITED_STEPS = "limited_steps"
#: Differences between series apart from their variants.
CONTEXT_COLUMNS = (
    "campaign_id",
    "test_name",
    "test_hash",
    "dataset",
    "dataset_hash",
    "instrument_version",
    "site",
    "storage_site",
    "door",
)
#: Columns by which executions are distinguished, selected and counted.
_REQUIRED_COLUMNS = (
    *CONTEXT_COLUMNS,
    "measurement_id",
    "kind",
    "job_id",
    "attempt",
    "round",
    "position",
    "host",
    "machine",
    "start_planned_us",
    "variant",
    "failure_class",
    "failure_kind",
    "plausible",
    "loop_compiler",
    "loop_fallback",
)


def load_timed_rows(
    store: ResultsReader, selection: Selection, quantities: Sequence[str], by: Sequence[str]
) -> list[dict[str, Any]]:
    """Load the selected timed measurements, including metrics that tests define.

    Raises:
        NothingToDoError: no timed measurement is selected.
        ConfigError: a quantity does not exist, or is not a number.
    """
    columns = dict.fromkeys((*_REQUIRED_COLUMNS, *quantities, *by))
    with store.snapshot() as snapshot:
        measurements = snapshot.measurements(
            selection, tuple(filter(METRICS_BY_NAME.__contains__, columns))
        )
        rows: list[dict[str, Any]] = [row for row in measurements if row["kind"] == "timed"]
        if not rows:
            raise NothingToDoError("no timed measurement is selected", where=str(selection))
        reported: dict[str, float] = {}
        if own_metrics := [name for name in quantities if name not in METRICS_BY_NAME]:
            extras = list(snapshot.extras(selection))
            for row in rows:
                row.update(dict.fromkeys(own_metrics))
            add_extras(rows, own_metrics, extras)
            for extra in extras:
                reported[extra.name] = max(extra.value, reported.get(extra.name, extra.value))
    for name in quantities:
        _check_quantity(name, rows, reported)
    return rows


def _check_quantity(name: str, rows: Sequence[Row], reported: Mapping[str, float]) -> None:
    metric = METRICS_BY_NAME.get(name)
    if metric and metric.type not in ("int", "float"):
        raise ConfigError(f"{name} is not a number", where="--metrics")
    if not metric and all(row[name] is None for row in rows):
        numbers = [m.name for m in METRICS_BY_NAME.values() if m.type in ("int", "float")]
        remark = f"Reported: {', '.join(sorted(reported))}. " if reported else ""
        limited = ""
        if reported.get(_LIMITED_STEPS):
            limited = (
                "In some steps the load generator was the limit; without others there are no rates "
                "and latencies. "
            )
        raise ConfigError(
            f"there is no quantity {name!r} in the catalogue, nor did the test report one",
            where="--metrics",
            hint=f"{limited}{remark}{suggest_word(name, [*numbers, *reported])}"
            "The page 'What is recorded' of the documentation lists them.",
        )


def check_axes(rows: Sequence[Row], names: Sequence[str]) -> None:
    """Check that rows can be grouped by all names.

    Raises:
        ConfigError: a name is neither an axis nor a suitable column.
    """
    axes = list_axes(rows)
    for name in names:
        metric = METRICS_BY_NAME.get(name)
        is_groupable = metric and metric.type in ("int", "float", "text", "bool")
        if name not in axes and (not is_groupable or name in LONG_TEXT_METRICS):
            raise ConfigError(
                f"{name!r} is neither an axis of these measurements nor a column to group by",
                where="--by",
                hint=f"{suggest_word(name, (*axes, *METRICS_BY_NAME))}Axes: {', '.join(axes)}.",
            )


@dataclass(frozen=True)
class _RatioBase:
    """Baseline of ratios: the groups that have ``value`` at ``place`` of their keys."""

    key_index: int
    value: Scalar
    text: str

    @classmethod
    def parse(cls, text: str, by: Sequence[str], groups: Sequence[ExecutionGroup]) -> _RatioBase:
        name, _, typed = text.partition("=")
        if name not in by:
            raise ConfigError(
                f"{name!r} is not a column of --by",
                where="--baseline",
                hint=f"{suggest_word(name, by)}Columns: {', '.join(by) or 'none, so name it with --by'}.",
            )
        index = by.index(name)
        values = [*dict.fromkeys(key for group in groups if (key := group.key[index]) is not None)]
        for value in values:
            if matches_value(typed, value):
                return cls(index, value, text)
        near = suggest_word(typed, [value for value in values if isinstance(value, str)])
        raise ConfigError(
            f"no group has {text}",
            where="--baseline",
            hint=f"{near}Write {name}=VALUE, with one of: {', '.join(map(str, values))}.",
        )

    def find_base_group(
        self, group: ExecutionGroup, groups: Sequence[ExecutionGroup]
    ) -> ExecutionGroup | None:
        """Find the baseline of a group; None for a baseline itself, and where none exists."""
        key = (*group.key[: self.key_index], self.value, *group.key[self.key_index + 1 :])
        others = (other for other in groups if other.key == key and other is not group)
        return next(others, None)


class Summary(Protocol):
    """Figures of measurements by group; verticals have some of their own."""

    def list_rows(self) -> list[dict[str, Any]]:
        """List the row of each group."""

    def make_columns(self, rows: Sequence[Mapping[str, Any]], /) -> list[TableColumn]:
        """Make the columns of the table."""

    def describe_notes(self) -> Iterator[str]:
        """Describe how the figures were computed."""


@dataclass(frozen=True)
class GroupSummary:
    """Means over jobs of quantities, by group.

    Attributes:
        by: axes or columns of the groups.
        quantities: the metrics.
        groups: executions of each group.
        base: baseline of ratios.
        work: what times are per: an event, or a run of a command.
    """

    by: Sequence[str]
    quantities: Sequence[str]
    groups: Sequence[ExecutionGroup]
    base: _RatioBase | None
    work: str

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Row],
        by: Sequence[str],
        quantities: Sequence[str],
        baseline: str | None,
        work: str,
    ) -> GroupSummary:
        """Group rows, by default by all that vary.

        Raises:
            ConfigError: they cannot be grouped so, or no group is the baseline.
        """
        by = by or find_distinguishing_names(rows, CONTEXT_COLUMNS)
        check_axes(rows, by)
        groups = group_executions(rows, lambda row: tuple(lookup_value(row, name) for name in by))
        base = _RatioBase.parse(baseline, by, groups) if baseline else None
        return cls(by, quantities, groups, base, work)

    def list_rows(self) -> list[dict[str, Any]]:
        """List the row of each group: its key, its size and its figures."""
        return [self._build_row(group) for group in self.groups]

    def _build_row(self, group: ExecutionGroup) -> dict[str, Any]:
        row: dict[str, Any] = {
            **dict(zip(self.by, group.key, strict=True)),
            "jobs": group.jobs,
            "hosts": group.hosts,
            **{outcome.key: group.outcomes.get(outcome, 0) for outcome in Outcome},
        }
        base = self.base.find_base_group(group, self.groups) if self.base else None
        for name in self.quantities:
            row |= _flatten_mean(name, group.mean_over_jobs(name))
            if self.base:
                has_ratio = not is_hash(name)
                ratio = group.ratio_over_jobs(base, name) if base and has_ratio else None
                row |= _flatten_mean(f"{name}_ratio", ratio)
        return row

    def make_columns(self, rows: Sequence[Mapping[str, Any]]) -> list[TableColumn]:
        """Make the columns of the table; counts of excluded measurements only if there are any."""
        columns = [TableColumn(name, name, partial(format_metric, name)) for name in self.by]
        columns += [TableColumn(name, name, is_number=True) for name in ("jobs", "hosts")]
        for name in self.quantities:
            unit = find_display_unit(name)
            title = f"{name}\n({head})" if (head := head_unit(name, work=self.work)) else name
            columns.append(_make_mean_column(name, title, verdict_text.format_mean, unit))
            if self.base:
                title = f"times that of\n{self.base.text}"
                columns.append(
                    _make_mean_column(f"{name}_ratio", title, verdict_text.format_ratio, PLAIN_UNIT)
                )
        for outcome in Outcome:
            if outcome is not Outcome.GOOD and any(row[outcome.key] for row in rows):
                columns.append(TableColumn(outcome.key, outcome.value, is_number=True))
        return columns

    def describe_notes(self) -> Iterator[str]:
        """Describe how the figures were computed, and what is mixed in a group."""
        yield (
            "Means over jobs ± half of their 95 % t intervals (over hosts from three on, over the starts of "
            "jobs that load together); a job counts by the mean of its executions (of its last attempt)."
        )
        if self.base:
            yield (
                "Ratios, with 95 % intervals, are of geometric means over jobs that were not paired (Welch's "
                "t on ln): other times and other nodes are part of them."
            )
        if mixed := set().union(*map(_find_mixed_columns, self.groups)) - {*self.by}:
            yield (
                f"Mixed in one group: {', '.join(sorted(mixed))}. A mean over a mixture depends on what "
                "is in it: name these in --by, or choose with --where."
            )
        yield from describe_interpreted_loops(row for group in self.groups for row in group.rows)
        if any(group.hosts < MIN_HOSTS for group in self.groups):
            yield "Intervals of one or two hosts tell how their jobs scattered, not what others would give."


def _find_mixed_columns(group: ExecutionGroup) -> set[str]:
    """Find the columns in which a group's executions differ, so that its mean depends on the mixture."""
    names = {*find_distinguishing_names(group.rows, CONTEXT_COLUMNS)}
    compilers = {row["loop_compiler"] for row in group.rows} - {None, ""}
    return names | {"loop_compiler"} if CLING in compilers and len(compilers) > 1 else names


def describe_interpreted_loops(rows: Iterable[Row]) -> Iterator[str]:
    """Describe each site whose nodes compile no loops, from rows with ``loop_fallback``."""
    reasons: dict[str, set[str]] = {}
    for row in rows:
        if row["loop_fallback"]:
            reasons.setdefault(str(row["site"] or ""), set()).add(str(row["loop_fallback"]))
    for site, texts in sorted(reasons.items()):
        yield (
            f"Nodes of {site} measure by {CLING} because {' and because '.join(sorted(texts))}. "
            "Comparisons keep these measurements apart from those with compiled loops."
        )


def _flatten_mean(key: str, mean: MeanWithInterval | None) -> dict[str, float | None]:
    """Flatten a mean to three values."""
    values = (mean.mean, mean.low, mean.high) if mean else (None, None, None)
    return dict(zip((key, f"{key}_low", f"{key}_high"), values, strict=True))


def _make_mean_column(
    key: str,
    title: str,
    format_mean: Callable[[float, float | None, float | None], str],
    unit: DisplayUnit,
) -> TableColumn:
    def format_row(row: Mapping[str, Any]) -> str:
        if row[key] is None:
            return "–"
        low, high = (
            None if end is None else unit.convert(end)
            for end in (row[f"{key}_low"], row[f"{key}_high"])
        )
        return format_mean(unit.convert(row[key]), low, high)

    return TableColumn(key, title, format_row=format_row, is_number=True)
