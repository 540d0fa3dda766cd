"""Campaigns on the terminal: their progress while they run, their obstacles and failures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.text import Text

from treehammer.collectors.job_spec import JobState
from treehammer.errors import ExitCode
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.campaign_counts import CampaignCount, list_selection_notes
from treehammer.submit.campaigns.campaign_outcome import (
    describe_compilers,
    describe_failures,
    describe_parts,
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
    CommandOutput,
    build_grid,
    make_console,
    output_form,
    print_hint,
)
from treehammer.text_formatting import format_counts, format_duration, pluralize

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
    is_near = progress.remaining_s < _SAME_DAY_S
    clock = time.strftime("%H:%M %Z" if is_near else "%Y-%m-%d %H:%M %Z", end)
    return f"{text}, about {format_duration(progress.remaining_s)} left, until {clock}"


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
    """Make the columns of :func:`list_progress_rows`; that of held jobs only if a job is held."""
    hidden = None if progress.total.jobs[JobState.HELD.value] else JobState.HELD
    states = [state.value for state in JobState if state is not hidden]
    columns = [
        TableColumn("site", "site"),
        *(TableColumn(state, state, is_number=True) for state in states),
        TableColumn("failures", "failed", format_counts),
    ]
    missing = TableColumn("missing", "missing", format_counts)
    return [*columns, missing] if progress.total.missing else columns


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
        print_hint(line, err=self._to_stderr)  # flushes every line


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


def make_display(*, to_stderr: bool | None = None) -> CampaignDisplay:
    """Make the display of a running command that follows a campaign.

    Args:
        to_stderr: whether lines go to standard error; with JSON and CSV by default.
    """
    return CampaignDisplay(
        lambda campaign: live_display(
            f"{campaign.name} ({campaign.id})",
            campaign.planned_measurements,
            to_stderr=output_form() != TABLE if to_stderr is None else to_stderr,
        ),
        lambda line: print_hint(line, err=True),
        print_phase,
    )


def print_phase(phase: str) -> None:
    """Print a phase of a running command with its time, on standard error."""
    print_hint(f"{time.strftime('%H:%M:%S')} {phase}", err=True)


def follow_on_terminal(tracker: CampaignTracker, campaign: CampaignRow) -> CampaignCount:
    """Show a campaign until every job has ended."""
    display = make_display()
    with display.open(campaign) as show:
        return follow_campaign(tracker, campaign, show, display.notify)


def describe_progress(
    tracker: CampaignTracker, campaign: CampaignRow, progress: CampaignCount
) -> CommandOutput:
    """Describe a campaign's progress, its obstacles and its failures."""
    lines: list[str] = []
    if output_form() == TABLE:
        lines = [
            summarize_progress(progress),
            *list_selection_notes(campaign.plan.excluded, campaign.plan.included),
            *describe_parts(tracker.store, campaign),
            *describe_compilers(tracker.store, campaign),
            *describe_failures(tracker, campaign),
        ]
    return CommandOutput(
        list_progress_rows(progress),
        make_progress_columns(progress),
        above=[f"{campaign.name} ({campaign.id})"],
        below=lines,
        remarks=[*tracker.describe_obstacles(campaign)],
        exit_code=rate_progress(progress),
    )


def rate_progress(progress: CampaignCount) -> ExitCode:
    """Return the exit code of a campaign: whether a measurement failed or was lost."""
    total = progress.total
    return ExitCode.REGRESSION if total.bad or total.lost else ExitCode.DONE
