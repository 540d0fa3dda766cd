"""Tables of load tests, printed by ``summary``: operations, and letters of storages by site and day."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from treehammer.analysis.statistics.job_pairs import lookup_value
from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.analysis.status.day_states import judge_storage_days, load_rule
from treehammer.collectors.record.day_numbers import day_to_number, number_to_day
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.collectors.record.operation_steps import CLIENT, QUANTILES
from treehammer.errors import NothingToDoError
from treehammer.sql.read.measurement_queries import DatabaseSnapshot
from treehammer.sql.read.operation_figures import (
    FIGURE_NAMES,
    OperationGroup,
    fetch_operations,
    list_operation_days,
)
from treehammer.sql.read.query_model import Selection
from treehammer.sql.read.reader import ResultsReader
from treehammer.tables import TableColumn
from treehammer.terminal import TABLE, print_rows

#: Columns of an operation to group by, beside axes and columns of its measurement.
STEP_COLUMNS = ("step", "server")
_NOTE = (
    "Rates are over the time that the steps cover; latencies are those of successful operations, from "
    "the scheduled instant. Steps in which the load generator was the limit are left out."
)


def print_operations(
    snapshot: DatabaseSnapshot,
    selection: Selection,
    by: Sequence[str],
    *,
    title: str,
    form: str,
) -> None:
    """Print one line per operation and group.

    Args:
        snapshot: state of the database.
        selection: the measurements.
        by: axes, columns of the catalogue and :data:`STEP_COLUMNS`.
        title: of the table.
        form: ``table``, ``json`` or ``csv``.
    """
    columns = [name for name in by if name in METRICS_BY_NAME]
    groups = fetch_operations(
        snapshot, selection, columns=["variant", *columns], key=_GroupKey(by).find
    )
    groups.sort(key=_sort_key)
    lines = [_build_line(group, by) for group in groups]
    names = [TableColumn(_name_key(name), name) for name in by]
    print_rows(lines, [*names, *_OPERATION_COLUMNS], form=form, title=title)
    click.echo(_NOTE, err=form != TABLE)
    for text in _describe_limits(groups, by):
        click.echo(text, err=form != TABLE)
    if failures := _describe_failures(groups):
        click.echo(failures, err=form != TABLE)


def _describe_limits(groups: Sequence[OperationGroup], by: Sequence[str]) -> list[str]:
    """Describe each load of which only lower bounds are known."""
    texts = []
    for group in groups:
        key: Any = group.key
        values = (f"{name} {value}" for name, value in zip(by, key, strict=True))
        side = group.side if group.side != CLIENT else ""
        if limit := group.describe_limit():
            texts.append(f"{', '.join(filter(None, (*values, group.operation, side)))}: {limit}.")
    remedy = "To find more: more jobs with fewer clients each, on free nodes."
    return [*texts, remedy] if texts else []


def _describe_failures(groups: Sequence[OperationGroup]) -> str:
    """Describe the failures of each operation by class, the most frequent first."""
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for group in groups:
        totals[group.operation].update(group.failures)
    parts = [
        f"{operation}: {', '.join(f'{name} {count:,}' for name, count in counts.most_common())}"
        for operation, counts in sorted(totals.items())
        if counts
    ]
    return f"Failed operations: {'; '.join(parts)}." if parts else ""


class _GroupKey:
    """Values of the columns to group by, looked up once for each measurement."""

    def __init__(self, by: Sequence[str]) -> None:
        self._by = by
        self._measurements: dict[str, dict[str, Any]] = {}

    def find(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        axis_values = self._measurements.get(row["measurement_id"])
        if axis_values is None:
            axis_values = {name: lookup_value(row, name) for name in self._by}
            self._measurements[row["measurement_id"]] = axis_values
        return tuple(row[name] if name in STEP_COLUMNS else axis_values[name] for name in self._by)


def _sort_key(group: OperationGroup) -> tuple[Any, ...]:
    key: Any = group.key
    parts = tuple((2,) if value is None else natural_sort_key(value) for value in key)
    return (*parts, group.operation, group.side)


def _name_key(name: str) -> str:
    """Name a grouping column in a line, where an axis may have the name of a figure."""
    return f"axis_{name}" if name in FIGURE_NAMES else name


def _build_line(group: OperationGroup, by: Sequence[str]) -> dict[str, Any]:
    key: Any = group.key
    names = map(_name_key, by)
    return {**dict(zip(names, key, strict=True)), **group.list_figures()}


def _format_number(value: float) -> str:
    """Format a number with three significant digits, without an exponent."""
    decimals = next((n for n, limit in ((0, 99.95), (1, 9.995), (2, 0.9995)) if value >= limit), 3)
    return f"{value:.{decimals}f}"


def _make_column(key: str, title: str, factor: float = 1) -> TableColumn:
    def format_value(value: float) -> str:
        return _format_number(value * factor)

    return TableColumn(key, title, format_value, is_number=True)


_OPERATION_COLUMNS = (
    TableColumn("operation", "operation"),
    TableColumn("side", "side"),
    TableColumn("active_clients", "active\nclients", is_number=True),
    _make_column("attempted_hz", "attempted\n(1/s)"),
    _make_column("observed_hz", "observed\n(1/s)"),
    _make_column("failed_fraction", "failed\n(%)", 100),
    *(_make_column(name, f"{name[:-2]}\n(ms)", 1000) for name in QUANTILES),
    _make_column("bytes_per_s", "rate\n(MB/s)", 1e-6),
    TableColumn("limited_steps", "steps\nleft out", is_number=True),
)


#: Days shown, up to today (UTC).
DAYS = 14

_LETTER_COLUMNS = (
    TableColumn("storage_site", "storage site"),
    TableColumn("day", "day"),
    TableColumn("letter", ""),
    *(
        TableColumn(name, title, is_number=True)
        for name, title in (
            ("opened", "opened"),
            ("open_failed", "failed"),
            ("blocks", "read"),
            ("block_failed", "failed"),
        )
    ),
    TableColumn("block_s", "block (s)", lambda value: f"{value:.3f}", is_number=True),
    TableColumn("reason", "reason"),
)


def print_letters(store: ResultsReader, form: str) -> None:
    """Print the status of each storage and day with load tests.

    Raises:
        NothingToDoError: there was none.
    """
    last_day = datetime.now(UTC).date()
    first_day = last_day - timedelta(days=DAYS - 1)
    rule = load_rule()
    days = list_operation_days(store, day_to_number(first_day), day_to_number(last_day))
    judged = judge_storage_days(days, rule)
    if not judged:
        raise NothingToDoError(
            f"no load test ran in the last {DAYS} days",
            hint="Run one: treehammer submit open-rate --wait",
        )
    lines = [
        {"storage_site": site, "day": str(number_to_day(day)), **storage_day.as_dict()}
        for (site, day), storage_day in judged.items()
    ]
    print_rows(lines, _LETTER_COLUMNS, form=form, title=f"Storages under load, last {DAYS} days")
    click.echo(rule.describe(), err=form != TABLE)
