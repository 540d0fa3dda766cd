"""Command ``summary``: means by group, operations of load tests, and status of storages under load."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.statistics.sample import matches_value, natural_sort_key
from treehammer.collectors.record.day_numbers import day_to_number, number_to_day
from treehammer.collectors.record.metric_catalogue import LONG_TEXT_METRICS, METRICS_BY_NAME
from treehammer.collectors.record.operation_steps import CLIENT, QUANTILES
from treehammer.collectors.record.outcome import Outcome
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError, suggest_word
from treehammer.hctests.definition.model import Scalar
from treehammer.sql.core.rows import ExtraRow
from treehammer.sql.read.operation_figures import (
    FIGURE_NAMES,
    OperationGroup,
    fetch_operations,
    list_operation_days,
)
from treehammer.sql.read.query_model import Selection
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.write.store import Store
from treehammer.tables import TableColumn
from treehammer.terminal import CAMPAIGN, CommandOutput, prints_rows
from treehammer.text_formatting import split_list

if TYPE_CHECKING:
    from treehammer.analysis.statistics.job_pairs import ExecutionGroup, MeanWithInterval, Row


#: Metrics shown by default.
DEFAULT_QUANTITIES = "access_rate_hz,eff_access,eff_job"
#: Own metric of the shipped load tests.
_LIMITED_STEPS = "limited_steps"
#: Differences between series apart from their variants.
_CONTEXT_COLUMNS = (
    "campaign_id",
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
    *_CONTEXT_COLUMNS,
    "measurement_id",
    "kind",
    "job_id",
    "attempt",
    "round",
    "position",
    "host",
    "machine",
    "variant",
    "failure_class",
    "failure_kind",
    "plausible",
)

#: Columns of an operation to group by, beside axes and columns of its measurement.
STEP_COLUMNS = ("step", "server")
_OPERATIONS_NOTE = (
    "Rates are over the time that the steps cover; latencies are those of successful operations, from "
    "the scheduled instant. Steps in which the load generator was the limit are left out."
)


@click.command("summary")
@click.option(
    "--campaign",
    type=CAMPAIGN,
    default="last",
    show_default=True,
    metavar="ID|last|all",
    help="Campaign to summarize.",
)
@click.option(
    "--where", "wheres", multiple=True, metavar="COLUMN=VALUE", help="Only these measurements."
)
@click.option(
    "--by",
    default="",
    metavar="NAMES",
    help="Axes or columns to group by [default: all that vary].",
)
@click.option(
    "--metrics",
    metavar="NAMES",
    help=f"Metrics to show [default: {DEFAULT_QUANTITIES}; of load tests, their operations].",
)
@click.option(
    "--baseline", metavar="NAME=VALUE", help="Ratio to the group that differs in this alone."
)
@click.option(
    "--letters", is_flag=True, help="Status of each storage and day by its load tests (study S1)."
)
@prints_rows(
    keys="columns of --by, jobs, hosts, counts of measurements by outcome, and of each metric its mean "
    "(NAME, NAME_low, NAME_high) and ratio (NAME_ratio, NAME_ratio_low, NAME_ratio_high); of load "
    f"tests {', '.join(FIGURE_NAMES)}"
)
@click.pass_obj
def summary_command(
    settings: Settings,
    campaign: str,
    wheres: tuple[str, ...],
    by: str,
    metrics: str | None,
    baseline: str | None,
    letters: bool,
) -> CommandOutput:
    """Summarize a campaign: mean values over jobs with 95 % intervals, by group.

    Of a load test the rates, failures and latencies of its operations are shown, in total over jobs
    that ran at the same time.

    NAMES are separated by commas: axes of the test or columns of the catalogue for --by, of load
    tests also step and server; quantities of the catalogue or of the test's own [metrics] for
    --metrics.

    --letters covers the load tests of all campaigns in the last 14 days.

    \b
    Example: treehammer summary --by site,door,access,cache_mb
             treehammer summary --metrics event_rate_hz,eff_job --baseline access=direct
             treehammer summary --campaign open-rate --by rate_hz,step
             treehammer summary --letters
    """
    if letters:
        if any((campaign != "last", wheres, by, metrics, baseline)):
            raise click.UsageError("--letters has no other options than --json and --csv.")
        with Store.open(settings.database, create=False) as store:
            return _list_letters(store)
    group_names = _split_names(by)
    with Store.open(settings.database, create=False) as store:
        chosen = None if campaign == "all" else store.campaign(campaign)
        title = chosen.name if chosen else "all campaigns"
        selection = Selection.parse((chosen.id,) if chosen else (), wheres)
        if metrics is None and baseline is None and _has_operations(store, selection):
            return _summarize_operations(store, selection, group_names, title)
        quantities = _split_names(metrics or DEFAULT_QUANTITIES)
        rows = _load_rows(store, selection, quantities, group_names)
    table, groups = _group_rows(rows, group_names, quantities, baseline)
    lines = [table.build_row(group, groups) for group in groups]
    return CommandOutput(lines, table.columns(lines), title, notes=[*_summary_notes(groups, table)])


def _group_rows(
    rows: Sequence[Row], group_names: Sequence[str], quantities: Sequence[str], baseline: str | None
) -> tuple[_SummaryTable, list[ExecutionGroup]]:
    """Group rows by the wanted names, by default by all that vary."""
    # scipy takes a third of a second to load, so load it only here.
    from treehammer.analysis.statistics.job_pairs import (
        find_distinguishing_names,
        group_executions,
        lookup_value,
    )

    group_names = group_names or find_distinguishing_names(rows, _CONTEXT_COLUMNS)
    _check_axes(rows, group_names)
    groups = group_executions(
        rows, lambda row: tuple(lookup_value(row, name) for name in group_names)
    )
    base = _RatioBase.parse(baseline, group_names, groups) if baseline else None
    return _SummaryTable(group_names, quantities, base), groups


def _has_operations(store: Store, selection: Selection) -> bool:
    with store.snapshot() as snapshot:
        return snapshot.has_operations(selection)


def _summarize_operations(
    store: Store, selection: Selection, by: Sequence[str], title: str
) -> CommandOutput:
    """Summarize load tests: one row per operation and group.

    Args:
        store: the store.
        selection: the measurements.
        by: axes, columns of the catalogue and :data:`STEP_COLUMNS`; () for all that vary.
        title: of the table.
    """
    from treehammer.analysis.statistics.job_pairs import find_distinguishing_names

    group_columns = [name for name in by if name not in STEP_COLUMNS]
    rows = _load_rows(store, selection, (), group_columns)
    by = by or find_distinguishing_names(rows, _CONTEXT_COLUMNS)
    _check_axes(rows, group_columns)
    with store.snapshot() as snapshot:
        columns = ["variant", *(name for name in by if name in METRICS_BY_NAME)]
        groups = fetch_operations(snapshot, selection, columns=columns, key=_GroupKey(by).find)
    groups.sort(key=_sort_key)
    failures = _describe_failures(groups)
    return CommandOutput(
        [_build_operation_row(group, by) for group in groups],
        [*(TableColumn(_name_key(name), name) for name in by), *_OPERATION_COLUMNS],
        title,
        notes=[_OPERATIONS_NOTE, *_describe_limits(groups, by), *([failures] if failures else [])],
    )


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(split_list(text)))


def _load_rows(
    store: Store, selection: Selection, quantities: Sequence[str], by: Sequence[str]
) -> list[dict[str, Any]]:
    """Load the selected timed measurements, including metrics that tests define."""
    columns = [name for name in (*_REQUIRED_COLUMNS, *quantities, *by) if name in METRICS_BY_NAME]
    with store.snapshot() as snapshot:
        measurements = snapshot.measurements(selection, tuple(dict.fromkeys(columns)))
        rows: list[dict[str, Any]] = [row for row in measurements if row["kind"] == "timed"]
        if not rows:
            raise NothingToDoError("no timed measurement is selected", where=str(selection))
        reported: dict[str, float] = {}
        if own_metrics := [name for name in quantities if name not in METRICS_BY_NAME]:
            extras = list(snapshot.extras(selection))
            rows = _add_own_metrics(rows, own_metrics, extras)
            for extra in extras:
                reported[extra.name] = max(extra.value, reported.get(extra.name, extra.value))
    for name in quantities:
        _check_quantity(name, rows, reported)
    return rows


def _add_own_metrics(
    rows: Iterable[Row], names: Sequence[str], extras: Iterable[ExtraRow]
) -> list[dict[str, Any]]:
    """Add metrics that tests define; None where a measurement lacks one."""
    by_id = {row["measurement_id"]: {**row, **dict.fromkeys(names)} for row in rows}
    for extra in extras:
        if extra.name in names and extra.measurement_id in by_id:
            by_id[extra.measurement_id][extra.name] = extra.value
    return list(by_id.values())


def _check_quantity(name: str, rows: Sequence[Row], reported: Mapping[str, float]) -> None:
    metric = METRICS_BY_NAME.get(name)
    if metric and metric.type not in ("int", "float"):
        raise ConfigError(f"{name} is not a number", where="--metrics")
    if not metric and all(row[name] is None for row in rows):
        numbers = [m.name for m in METRICS_BY_NAME.values() if m.type in ("int", "float")]
        listed = f"Reported: {', '.join(sorted(reported))}. " * bool(reported)
        limited = (
            "In some steps the load generator was the limit; without others there are no rates and "
            "latencies. "
        ) * bool(reported.get(_LIMITED_STEPS))
        raise ConfigError(
            f"there is no quantity {name!r} in the catalogue, nor did the test report one",
            where="--metrics",
            hint=f"{limited}{listed}{suggest_word(name, [*numbers, *reported])}"
            "The page 'What is recorded' of the documentation lists them.",
        )


def _check_axes(rows: Sequence[Row], names: Sequence[str]) -> None:
    from treehammer.analysis.statistics.job_pairs import list_axes

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
                f"{name!r} is not a column of --by", where="--baseline", hint=", ".join(by)
            )
        index = by.index(name)
        values = {group.key[index]: None for group in groups if group.key[index] is not None}
        for value in values:
            if value is not None and matches_value(typed, value):
                return cls(index, value, text)
        raise ConfigError(
            f"no group has {text}",
            where="--baseline",
            hint=f"It has: {', '.join(str(value) for value in values)}.",
        )

    def find_base_group(
        self, group: ExecutionGroup, groups: Sequence[ExecutionGroup]
    ) -> ExecutionGroup | None:
        """Find the baseline of a group; None for a baseline itself, and where none exists."""
        key = (*group.key[: self.key_index], self.value, *group.key[self.key_index + 1 :])
        return next(
            (candidate for candidate in groups if candidate.key == key and candidate is not group),
            None,
        )


@dataclass(frozen=True)
class _SummaryTable:
    """Printed columns of groups."""

    by: Sequence[str]
    quantities: Sequence[str]
    base: _RatioBase | None

    def build_row(self, group: ExecutionGroup, groups: Sequence[ExecutionGroup]) -> dict[str, Any]:
        """Build the row of a group: its key, its size and its figures."""
        row: dict[str, Any] = {
            **dict(zip(self.by, group.key, strict=True)),
            "jobs": group.jobs,
            "hosts": group.hosts,
            **{outcome.key: group.outcomes.get(outcome, 0) for outcome in Outcome},
        }
        base = self.base.find_base_group(group, groups) if self.base else None
        for name in self.quantities:
            row |= _flatten_mean(name, group.mean_over_jobs(name))
            if self.base:
                ratio = group.ratio_over_jobs(base, name) if base else None
                row |= _flatten_mean(f"{name}_ratio", ratio)
        return row

    def columns(self, lines: Sequence[Mapping[str, Any]]) -> list[TableColumn]:
        """Build the columns of the table; counts of excluded measurements only if there are any."""
        columns = [TableColumn(name, name) for name in self.by]
        columns += [TableColumn(name, name, is_number=True) for name in ("jobs", "hosts")]
        for name in self.quantities:
            columns.append(_make_mean_column(name, _column_title(name), verdict_text.format_mean))
            if self.base:
                title = f"times that of\n{self.base.text}"
                columns.append(_make_mean_column(f"{name}_ratio", title, verdict_text.format_ratio))
        for outcome in Outcome:
            if outcome is not Outcome.GOOD and any(line[outcome.key] for line in lines):
                columns.append(TableColumn(outcome.key, outcome.value, is_number=True))
        return columns


def _column_title(name: str) -> str:
    unit = METRICS_BY_NAME[name].unit if name in METRICS_BY_NAME else ""
    return f"{name}\n({unit})" if unit not in ("", "1") else name


def _flatten_mean(key: str, mean: MeanWithInterval | None) -> dict[str, float | None]:
    """Flatten a mean to three values."""
    values = (mean.mean, mean.low, mean.high) if mean else (None, None, None)
    return dict(zip((key, f"{key}_low", f"{key}_high"), values, strict=True))


def _make_mean_column(
    key: str, title: str, format_mean: Callable[[float, float | None, float | None], str]
) -> TableColumn:
    def format_row(row: Mapping[str, Any]) -> str:
        if row[key] is None:
            return "–"
        return format_mean(row[key], row[f"{key}_low"], row[f"{key}_high"])

    return TableColumn(key, title, format_row=format_row, is_number=True)


def _summary_notes(groups: Sequence[ExecutionGroup], table: _SummaryTable) -> Iterator[str]:
    from treehammer.analysis.statistics.job_pairs import find_distinguishing_names
    from treehammer.analysis.statistics.sample import count_hosts

    yield (
        "Means over jobs ± half of their 95 % t intervals; a job counts by the median of its "
        "executions (of its last attempt)."
    )
    if table.base:
        yield (
            "Ratios, with 95 % intervals, are of geometric means over jobs that were not paired (Welch's "
            "t on ln): other times and other nodes are part of them."
        )
    mixed = {
        name for group in groups for name in find_distinguishing_names(group.rows, _CONTEXT_COLUMNS)
    } - {*table.by}
    if mixed:
        yield (
            f"Mixed in one group: {', '.join(sorted(mixed))}. A mean over a mixture depends on what "
            "is in it: name these in --by, or choose with --where."
        )
    if count_hosts(row for group in groups for row in group.rows) == 1:
        yield "One host: the intervals tell how its jobs scattered, not what other hosts would give."


# --- Load tests


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
        # scipy takes a third of a second to load, so load it only here.
        from treehammer.analysis.statistics.job_pairs import lookup_value

        self._by, self._lookup_value = by, lookup_value
        self._measurements: dict[str, dict[str, Any]] = {}

    def find(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        axis_values = self._measurements.get(row["measurement_id"])
        if axis_values is None:
            axis_values = {name: self._lookup_value(row, name) for name in self._by}
            self._measurements[row["measurement_id"]] = axis_values
        return tuple(row[name] if name in STEP_COLUMNS else axis_values[name] for name in self._by)


def _sort_key(group: OperationGroup) -> tuple[Any, ...]:
    key: Any = group.key
    parts = tuple((2,) if value is None else natural_sort_key(value) for value in key)
    return (*parts, group.operation, group.side)


def _name_key(name: str) -> str:
    """Name a grouping column in a line, where an axis may have the name of a figure."""
    return f"axis_{name}" if name in FIGURE_NAMES else name


def _build_operation_row(group: OperationGroup, by: Sequence[str]) -> dict[str, Any]:
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
    TableColumn("opened", "opened", is_number=True),
    TableColumn("open_failed", "failed", is_number=True),
    TableColumn("blocks", "read", is_number=True),
    TableColumn("block_failed", "failed", is_number=True),
    TableColumn("block_s", "block (s)", lambda value: f"{value:.3f}", is_number=True),
    TableColumn("reason", "reason"),
)


def _list_letters(store: ResultsReader) -> CommandOutput:
    """List the status of each storage and day with load tests.

    Raises:
        NothingToDoError: there was none.
    """
    from treehammer.analysis.status.day_states import judge_storage_days, load_rule

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
    rows = [
        {"storage_site": site, "day": str(number_to_day(day)), **storage_day.as_dict()}
        for (site, day), storage_day in judged.items()
    ]
    title = f"Storages under load, last {DAYS} days"
    return CommandOutput(rows, _LETTER_COLUMNS, title, notes=[rule.describe()])
