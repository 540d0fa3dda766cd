"""Output about campaigns: progress, obstacles and failures."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from treehammer.analysis.status.failure_explanation import explain_results
from treehammer.collectors.job_spec import JobState
from treehammer.errors import BatchError, ConfigError, ExitCode
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.campaign_counts import CampaignCount, list_selection_notes
from treehammer.sql.read.failure_counts import PeriodCounts
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns.campaign_outcome import (
    FailedExecution,
    FailureGroup,
    describe_starts,
    summarize_failures,
)
from treehammer.submit.campaigns.campaign_polling import (
    CampaignDisplay,
    ShowProgress,
    follow_campaign,
)
from treehammer.submit.campaigns.tracker import CampaignTracker
from treehammer.tables import TableColumn
from treehammer.terminal import (
    TABLE,
    build_grid,
    make_console,
    print_hint,
    print_rows,
)
from treehammer.text_formatting import (
    format_counts,
    format_duration,
    join_names,
    pluralize,
)

if TYPE_CHECKING:
    pass


#: Seconds; an earlier end is shown without its date.
_SAME_DAY_S = 20 * 3600
#: Seconds after which a line is repeated although nothing changed.
QUIET_S = 60.0


def summarize_progress(progress: CampaignCount, now_s: float | None = None) -> str:
    """Summarize the progress in one line, with the expected end.

    Args:
        progress: progress of the campaign.
        now_s: seconds since 1970; now by default.
    """
    text = progress.total.describe()
    if progress.remaining_s is None:
        return text
    end = time.localtime((time.time() if now_s is None else now_s) + progress.remaining_s)
    clock = time.strftime("%H:%M" if progress.remaining_s < _SAME_DAY_S else "%Y-%m-%d %H:%M", end)
    return f"{text}, about {format_duration(progress.remaining_s)} left, until {clock}"


def visible_states(progress: CampaignCount) -> list[str]:
    """List the states to show: held only if a job is held."""
    held = progress.total.jobs[JobState.HELD.value]
    return [state.value for state in JobState if held or state is not JobState.HELD]


def list_progress_rows(progress: CampaignCount) -> list[dict[str, Any]]:
    """List the jobs of each site by state, and its failed and missing measurements by class."""
    return [
        {
            "site": site,
            **{state.value: count.jobs[state.value] for state in JobState},
            "planned": count.planned,
            "measured": count.measured,
            "failures": count.failures,
            "missing": dict(count.missing),
        }
        for site, count in progress.sites.items()
    ]


def make_progress_columns(progress: CampaignCount) -> list[TableColumn]:
    """Make the columns of :func:`list_progress_rows`."""
    return [
        TableColumn("site", "site"),
        *(TableColumn(state, state, is_number=True) for state in visible_states(progress)),
        TableColumn("failures", "failed", format_counts),
        *([TableColumn("missing", "missing", format_counts)] * bool(progress.total.missing)),
    ]


def _progress_table(name: str, progress: CampaignCount) -> Group:
    table = build_grid(list_progress_rows(progress), make_progress_columns(progress))
    return Group(Text(name), table, Text(summarize_progress(progress)))


class ProgressLines:
    """Prints progress as lines: one for each change, and one after :data:`QUIET_S` without any.

    Args:
        name: name of the campaign.
        to_stderr: whether standard output is kept for the result.
    """

    def __init__(self, name: str, *, to_stderr: bool = False) -> None:
        self._name, self._to_stderr = name, to_stderr
        self._shown: tuple[int, str] | None = None
        self._shown_s = 0.0

    def show(self, progress: CampaignCount) -> None:
        """Print a line if something changed, or nothing was printed for a while."""
        now_s = time.monotonic()
        state = progress.total.outstanding, progress.total.describe_jobs()
        if state == self._shown and now_s - self._shown_s < QUIET_S:
            return
        if self._shown is None:
            self._print(self._name)
        self._shown, self._shown_s = state, now_s
        clock = time.strftime("%H:%M:%S")
        self._print(f"{clock} {state[1]}: {summarize_progress(progress)}")

    def _print(self, line: str) -> None:
        click.echo(line, err=self._to_stderr)  # flushes every line


@contextmanager
def live_display(name: str, planned: int, *, to_stderr: bool = False) -> Iterator[ShowProgress]:
    """Show a campaign while the block runs.

    Updates a table on a terminal; files and pipes receive lines, see :class:`ProgressLines`.

    Args:
        name: name of the campaign.
        planned: number of measurements.
        to_stderr: whether the lines go to standard error, because a program reads the result.
    """
    console = make_console()
    if not console.is_terminal:
        yield ProgressLines(name, to_stderr=to_stderr).show
        return
    placeholder = Text(f"{name}: {pluralize(planned, 'measurement')} planned")
    with Live(placeholder, console=console, transient=True, auto_refresh=False) as live:
        yield lambda progress: live.update(_progress_table(name, progress), refresh=True)


#: Failure groups printed on a terminal.
MAX_SHOWN_FAILURES = 5


#: Sites whose failures are explained on a terminal.
MAX_EXPLAINED_SITES = 20


def rate_progress(progress: CampaignCount) -> ExitCode:
    """Return the exit code of a campaign: whether a measurement failed or was lost."""
    total = progress.total
    return ExitCode.REGRESSION if total.failed or total.lost else ExitCode.DONE


def print_notices(lines: Iterable[str]) -> None:
    """Print lines on standard error."""
    for line in lines:
        print_hint(line, err=True)


def make_display(form: str) -> CampaignDisplay:
    """Make the display of a command that follows a campaign and prints its result in a form."""
    return CampaignDisplay(
        lambda campaign: live_display(
            f"{campaign.name} ({campaign.id})",
            campaign.planned_measurements,
            to_stderr=form != TABLE,
        ),
        lambda line: print_notices([line]),
    )


def follow_on_terminal(
    tracker: CampaignTracker, campaign: CampaignRow, form: str = TABLE
) -> CampaignCount:
    """Show a campaign until every job has ended."""
    display = make_display(form)
    with display.open(campaign) as show:
        return follow_campaign(tracker, campaign, show, display.notify)


def print_progress(
    tracker: CampaignTracker, campaign: CampaignRow, progress: CampaignCount, form: str
) -> None:
    """Print a campaign's progress, its obstacles and its failures."""
    if form == TABLE:
        click.echo(f"{campaign.name} ({campaign.id})")
    print_rows(list_progress_rows(progress), make_progress_columns(progress), form=form)
    if form == TABLE:
        click.echo(summarize_progress(progress))
    print_notices(tracker.describe_obstacles(campaign))
    if form == TABLE:
        for line in list_selection_notes(json.loads(campaign.plan)):
            click.echo(line)
        for line in describe_starts(tracker.store, campaign):
            click.echo(line)
        groups = summarize_failures(tracker.store, campaign)
        _print_failures(tracker, groups)
        _print_explanations(tracker.store, campaign, groups)


def _print_failures(tracker: CampaignTracker, groups: list[FailureGroup]) -> None:
    """Print the most frequent failures, each with a part of one log and its path."""
    for group in groups[:MAX_SHOWN_FAILURES]:
        print_hint(f"\n{group.count} × {group.failure} at {group.site}: {group.message}")
        if group.log:
            click.echo(textwrap.indent(group.log.rstrip(), "  | "))
        if (path := _find_log(tracker, group.execution)) is not None:
            click.echo(f"  log: {path}")
    if len(groups) > MAX_SHOWN_FAILURES:
        click.echo(f"\nand {len(groups) - MAX_SHOWN_FAILURES} more failures: see failure_message,")
        print_hint("implausible_reasons and log_excerpt in the output of 'treehammer export'")


def _print_explanations(
    store: Store, campaign: CampaignRow, groups: Sequence[FailureGroup]
) -> None:
    """Print the attribution and the cause of each site's failures."""
    counts = PeriodCounts(store)
    ends_us: dict[str, int] = {}
    for group in groups:
        ends_us[group.site] = max(ends_us.get(group.site, 0), group.last_us)
    sites_of: dict[str, list[str]] = {}
    for site, end_us in [*ends_us.items()][:MAX_EXPLAINED_SITES]:
        if explanation := explain_results(store, site, end_us, campaign.test_name, counts):
            sites_of.setdefault(str(explanation), []).append(site)
    for text, sites in sites_of.items():
        print_hint(f"\n{join_names(sites)}: {text}")
    if len(ends_us) > MAX_EXPLAINED_SITES:
        click.echo(f"\nand {len(ends_us) - MAX_EXPLAINED_SITES} more sites: see their pages")


def _find_log(tracker: CampaignTracker, execution: FailedExecution | None) -> Path | None:
    """Find the log of an execution on this machine; None without one."""
    if execution is None:
        return None
    try:
        job = campaign_queries.fetch_job(tracker.store, execution.job_id)
        return execution.find_log(tracker.sandboxes(job))
    except (BatchError, ConfigError):  # another installation's job, or a silent batch system
        return None
