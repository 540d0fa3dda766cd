"""Commands ``summary`` and ``explain``: figures of campaigns, and the causes of lost time."""

from __future__ import annotations

import shlex
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from treehammer.analysis.descriptive.efficiency_diagnosis import (
    DIAGNOSIS_COLUMNS,
    EfficiencyDiagnosis,
    Row,
    diagnose_efficiency,
    select_explained,
)
from treehammer.analysis.descriptive.time_breakdown import TimePart, sum_breakdowns
from treehammer.analysis.statistics.sample import natural_sort_key
from treehammer.collectors.record.day_numbers import day_to_number, number_to_day
from treehammer.collectors.record.metric_catalogue import METRICS_BY_NAME
from treehammer.collectors.record.operation_steps import CLIENT, QUANTILES
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError, TreehammerError
from treehammer.sql.read.operation_figures import (
    FIGURE_NAMES,
    OperationGroup,
    fetch_operations,
    list_operation_days,
)
from treehammer.sql.read.overview_queries import build_unknown_site_error, list_sites
from treehammer.sql.read.query_model import Selection
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.write.store import Store
from treehammer.tables import TableColumn
from treehammer.terminal import CAMPAIGN, SITE, CommandOutput, prints_rows
from treehammer.text_formatting import format_share, pluralize, split_list

#: Metrics shown by default.
DEFAULT_QUANTITIES = "access_rate_hz,eff_access,eff_job"
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
    # scipy takes a third of a second to load, so load it only here.
    from treehammer.analysis.descriptive.group_summary import GroupSummary, load_timed_rows

    group_names = _split_names(by)
    with Store.open(settings.database, create=False) as store:
        chosen = None if campaign == "all" else store.campaign(campaign)
        title = chosen.name if chosen else "all campaigns"
        selection = Selection.parse((chosen.id,) if chosen else (), wheres)
        if metrics is None and baseline is None and _has_operations(store, selection):
            return _summarize_operations(store, selection, group_names, title)
        quantities = _split_names(metrics or DEFAULT_QUANTITIES)
        measured = load_timed_rows(store, selection, quantities, group_names)
    summary = GroupSummary.from_rows(measured, group_names, quantities, baseline)
    rows = summary.list_rows()
    columns = summary.make_columns(rows)
    return CommandOutput(rows, columns, title, notes=[*summary.describe_notes()])


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
    from treehammer.analysis.descriptive.group_summary import (
        CONTEXT_COLUMNS,
        check_axes,
        load_timed_rows,
    )
    from treehammer.analysis.statistics.job_pairs import find_distinguishing_names

    group_columns = [name for name in by if name not in STEP_COLUMNS]
    rows = load_timed_rows(store, selection, (), group_columns)
    by = by or find_distinguishing_names(rows, CONTEXT_COLUMNS)
    check_axes(rows, group_columns)
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
    from treehammer.analysis.status.load_tests import judge_storage_days
    from treehammer.analysis.status.status_rules import load_operations_rule

    last_day = datetime.now(UTC).date()
    first_day = last_day - timedelta(days=DAYS - 1)
    rule = load_operations_rule()
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


# --- CPU efficiency

_EXPLAINED_COLUMNS = ("site", *DIAGNOSIS_COLUMNS)
_PART_COLUMNS = (
    TableColumn("part", "part of the wall time"),
    TableColumn("wall_s", "s", "{:.1f}".format, is_number=True),
    TableColumn("share", "share", format_share, is_number=True),
    TableColumn("without_cpu_s", "without CPU, s", "{:.1f}".format, is_number=True),
    TableColumn("other_sites_share", "other sites", format_share, is_number=True),
)


@click.command("explain")
@click.argument("job", required=False)
@click.option("--site", type=SITE, help="A site: its measurements of the latest days.")
@click.option(
    "--campaign",
    metavar="ID|last|all",
    help="A campaign [default: last].",
    type=CAMPAIGN,
)
@click.option(
    "--days",
    default=7,
    show_default=True,
    type=click.IntRange(1, 36_500),
    help="Days of --site without a campaign.",
)
@prints_rows(*_PART_COLUMNS)
@click.pass_obj
def explain_command(
    settings: Settings, job: str | None, site: str | None, campaign: str | None, days: int
) -> CommandOutput:
    """Explain CPU efficiency: where the wall time went, and the main cause of lost time.

    JOB is the identity of a job or its beginning. Only timed measurements without failure count;
    paired ones are left out, since they wait for each other.

    \b
    Example: treehammer explain --site SITE_A
             treehammer explain --campaign last
    """
    if job and (site or campaign):
        raise ConfigError("JOB excludes --site and --campaign", where="explain")
    query = _ExplainQuery(job, site, campaign, days)
    with Store.open(settings.database, create=False) as store:
        selection = query.build_selection(store)
        with store.snapshot() as snapshot:
            measured = select_explained(snapshot.measurements(selection, _EXPLAINED_COLUMNS))
        explained = query.select_own(measured)
        diagnosis = diagnose_efficiency(explained)
        if diagnosis is None:
            raise query.build_nothing_error(store)
    other_shares = _find_other_shares(measured, {row["site"] for row in explained})
    headline, efficiency, *evidence = diagnosis.describe(query.name_subject(explained))
    rows = diagnosis.breakdown.list_parts()
    for row in rows if other_shares else ():
        row["other_sites_share"] = other_shares[TimePart(row["part"])]
    return CommandOutput(
        rows,
        _PART_COLUMNS if other_shares else _PART_COLUMNS[:-1],
        above=[click.style(headline, bold=True), efficiency],
        below=[*evidence, f"Next: {query.format_next_command(diagnosis)}"],
    )


@dataclass(frozen=True)
class _ExplainQuery:
    """Measurements to explain: those of a job, or of a site or a campaign."""

    job: str | None
    site: str | None
    campaign: str | None
    days: int

    def build_selection(self, store: Store) -> Selection:
        """Select all sites, since the others are compared."""
        if self.job:
            return Selection.parse((), [f"job_id~{self.job}*"])
        if self.site and not self.campaign:
            first_day = datetime.now(UTC) - timedelta(days=self.days - 1)
            return Selection.parse((), [f"day>={first_day:%Y%m%d}"])
        if self.campaign == "all":
            return Selection.parse((), [])
        return Selection.parse((store.campaign(self.campaign or "last").id,), [])

    def select_own(self, rows: Iterable[Row]) -> list[Row]:
        """Select the rows to explain among those of all sites.

        Raises:
            ConfigError: they belong to several jobs with this beginning.
        """
        selected = [row for row in rows if self.site in (None, row["site"])]
        jobs = _list_jobs(selected)
        if self.job and len(jobs) > 1:
            raise ConfigError(
                f"{self.job!r} is the beginning of {len(jobs)} jobs",
                where="JOB",
                hint=", ".join(jobs[:10]),
            )
        return selected

    def build_nothing_error(self, store: Store) -> TreehammerError:
        """Build the error of a query without measurements: a mistyped name, or nothing to explain."""
        if self.site and self.site not in list_sites(store):
            return build_unknown_site_error(store, self.site)
        if self.job and not self._has_job(store):
            return self._build_unknown_job_error(store)
        return NothingToDoError(
            "no timed measurement to explain: none succeeded, or all were paired",
            where=self._describe_scope(),
            hint='Runs with mode = "solo" measure CPU efficiency. See also --campaign and --days.',
        )

    def _describe_scope(self) -> str:
        scope = [f"job {self.job}"] if self.job else [f"site {self.site}"] if self.site else []
        if not self.campaign and self.site:
            scope.append(f"last {pluralize(self.days, 'day')}")
        elif not self.job:
            scope.append(f"campaign {self.campaign or 'last'}")
        return ", ".join(scope)

    def _has_job(self, store: Store) -> bool:
        selection = self.build_selection(store)
        return next(iter(store.measurements(selection, ("job_id",))), None) is not None

    def _build_unknown_job_error(self, store: Store) -> TreehammerError:
        problem = f"no measurement is of a job {self.job!r}"
        try:
            campaign = store.campaign(str(self.job))
        except TreehammerError:
            return NothingToDoError(
                problem, hint="Jobs are listed by: treehammer summary --by job_id"
            )
        return ConfigError(
            f"{self.job!r} is a campaign, not a job",
            hint=f"treehammer explain --campaign {campaign.id[:8]}",
        )

    def name_subject(self, rows: Sequence[Row]) -> str:
        """Name the site, the job, or all sites of the rows."""
        sites = ", ".join(sorted({row["site"] for row in rows}))
        return self.site or (f"Job {_list_jobs(rows)[0]}" if self.job else sites)

    def format_next_command(self, diagnosis: EfficiencyDiagnosis) -> str:
        """Return the command that shows the same measurements in detail."""
        words = ["treehammer summary"]
        if self.job or (self.site and not self.campaign):
            words.append("--campaign all")
        elif self.campaign and self.campaign != "last":
            words.append(f"--campaign {shlex.quote(self.campaign)}")
        if self.job:
            words.append(f"--where 'job_id~{self.job}*'")
        by = ("site", *diagnosis.next_by)
        return f"{' '.join(words)} --by {','.join(by)} --metrics {','.join(diagnosis.next_metrics)}"


def _list_jobs(rows: Iterable[Row]) -> list[str]:
    return sorted({row["job_id"] for row in rows})


def _find_other_shares(rows: Sequence[Row], excluded_sites: set[str]) -> dict[TimePart, float]:
    """Return the median over the other sites of each part's share; empty without any."""
    by_site: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["site"] not in excluded_sites:
            by_site[row["site"]].append(row)
    breakdowns = [
        breakdown for breakdown in map(sum_breakdowns, by_site.values()) if breakdown.wall_s
    ]
    if not breakdowns:
        return {}
    return {
        part: statistics.median(breakdown.share(part) for breakdown in breakdowns)
        for part in TimePart
    }
