"""The verb ``summary``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from treehammer.analysis.comparison import verdict_text
from treehammer.analysis.statistics.sample import matches_value
from treehammer.collectors.record.metric_catalogue import LONG_TEXT_METRICS, METRICS_BY_NAME
from treehammer.collectors.record.outcome import Outcome
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError, suggest_word
from treehammer.hctests.definition.model import Scalar
from treehammer.sql.cli.transfer_commands import complete_campaigns
from treehammer.sql.core.rows import ExtraRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.store import Store
from treehammer.tables import TableColumn
from treehammer.terminal import TABLE, output_options, print_rows
from treehammer.text_formatting import split_list

if TYPE_CHECKING:
    from treehammer.analysis.statistics.job_pairs import ExecutionGroup, MeanWithInterval, Row


#: Metrics shown by default.
DEFAULT_QUANTITIES = "access_rate_hz,eff_access,eff_job"
#: Columns by which executions are distinguished, selected and counted.
_REQUIRED_COLUMNS = (
    "measurement_id",
    "kind",
    "job_id",
    "attempt",
    "round",
    "position",
    "host",
    "machine",
    "site",
    "storage_site",
    "door",
    "campaign_id",
    "test_hash",
    "dataset",
    "dataset_hash",
    "instrument_version",
    "variant",
    "failure_class",
    "failure_kind",
    "plausible",
)
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


@click.command("summary")
@click.option(
    "--campaign",
    shell_complete=complete_campaigns,
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
@output_options
@click.pass_obj
def summary_command(
    settings: Settings,
    campaign: str,
    wheres: tuple[str, ...],
    by: str,
    metrics: str | None,
    baseline: str | None,
    letters: bool,
    form: str,
) -> None:
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
        _print_letters(settings, (campaign != "last", wheres, by, metrics, baseline), form)
        return
    group_names = _split_names(by)
    with Store.open(settings.database, create=False) as store:
        chosen = None if campaign == "all" else store.campaign(campaign)
        title = chosen.name if chosen else "all campaigns"
        selection = Selection.parse((chosen.id,) if chosen else (), wheres)
        if metrics is None and baseline is None and _has_operations(store, selection):
            _summarize_operations(store, selection, group_names, title, form)
            return
        quantities = _split_names(metrics or DEFAULT_QUANTITIES)
        rows = _load_rows(store, selection, quantities, group_names)
    table, groups = _group_rows(rows, group_names, quantities, baseline)
    _print_summary(table, groups, title, form)


def _print_letters(settings: Settings, other_options: Iterable[object], form: str) -> None:
    from treehammer.analysis.cli.load_summary import print_letters

    if any(other_options):
        raise click.UsageError("--letters has no other options than --json and --csv.")
    with Store.open(settings.database, create=False) as store:
        print_letters(store, form)


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


def _print_summary(
    table: _SummaryTable, groups: Sequence[ExecutionGroup], title: str, form: str
) -> None:
    lines = [table.line(group, groups) for group in groups]
    if form == TABLE:
        print_rows(lines, table.columns(lines), title=title)
    else:
        print_rows(list(map(_flatten_line, lines)), (), form=form)
    for note in _summary_notes(groups, table):
        click.echo(note, err=form != TABLE)


def _has_operations(store: Store, selection: Selection) -> bool:
    with store.snapshot() as snapshot:
        return snapshot.has_operations(selection)


def _summarize_operations(
    store: Store, selection: Selection, group_names: Sequence[str], title: str, form: str
) -> None:
    from treehammer.analysis.cli.load_summary import STEP_COLUMNS, print_operations
    from treehammer.analysis.statistics.job_pairs import find_distinguishing_names

    group_columns = [name for name in group_names if name not in STEP_COLUMNS]
    rows = _load_rows(store, selection, (), group_columns)
    group_names = group_names or find_distinguishing_names(rows, _CONTEXT_COLUMNS)
    _check_axes(rows, group_columns)
    with store.snapshot() as snapshot:
        print_operations(snapshot, selection, group_names, title=title, form=form)


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
        numbers = [
            metric_.name for metric_ in METRICS_BY_NAME.values() if metric_.type in ("int", "float")
        ]
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

    def line(self, group: ExecutionGroup, groups: Sequence[ExecutionGroup]) -> dict[str, Any]:
        """Build the line of a group: its key, its size and its figures."""
        counted = {outcome.key: group.outcomes.get(outcome, 0) for outcome in Outcome}
        line: dict[str, Any] = {
            **dict(zip(self.by, group.key, strict=True)),
            "jobs": group.jobs,
            "hosts": group.hosts,
            **counted,
        }
        base = self.base.find_base_group(group, groups) if self.base else None
        for name in self.quantities:
            line[f"figure of {name}"] = group.mean_over_jobs(name)
            if self.base:
                line[f"ratio of {name}"] = group.ratio_over_jobs(base, name) if base else None
        return line

    def columns(self, lines: Sequence[Mapping[str, Any]]) -> list[TableColumn]:
        """Build the columns of the table; counts of excluded measurements only if there are any."""
        columns = [TableColumn(name, name) for name in self.by]
        columns += [
            TableColumn("jobs", "jobs", is_number=True),
            TableColumn("hosts", "hosts", is_number=True),
        ]
        for name in self.quantities:
            columns.append(
                TableColumn(f"figure of {name}", _column_title(name), _format_mean, is_number=True)
            )
            if self.base:
                title = f"times that of\n{self.base.text}"
                columns.append(
                    TableColumn(f"ratio of {name}", title, _format_ratio, is_number=True)
                )
        for outcome in Outcome:
            if outcome is not Outcome.GOOD and any(line[outcome.key] for line in lines):
                columns.append(TableColumn(outcome.key, outcome.value, is_number=True))
        return columns


def _column_title(name: str) -> str:
    unit = METRICS_BY_NAME[name].unit if name in METRICS_BY_NAME else ""
    return f"{name}\n({unit})" if unit not in ("", "1") else name


def _format_mean(figure: MeanWithInterval) -> str:
    return verdict_text.format_mean(figure.mean, figure.low, figure.high)


def _format_ratio(figure: MeanWithInterval) -> str:
    return verdict_text.format_ratio(figure.mean, figure.low, figure.high)


def _flatten_line(line: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a line for programs: every figure becomes three plain values."""
    flat: dict[str, Any] = {}
    for key, value in line.items():
        quantity, _, name = key.partition(" of ")
        if not name:
            flat[key] = value
            continue
        name = name if quantity == "figure" else f"{name}_ratio"
        flat[name] = value.mean if value else None
        flat[f"{name}_low"], flat[f"{name}_high"] = (
            (value.low, value.high) if value else (None, None)
        )
    return flat


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
