"""Unfinished campaigns: collection before commands that answer from results, and live progress."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from treehammer.collectors.job_spec import FINAL_JOB_STATES, JobState
from treehammer.config import Settings
from treehammer.errors import TreehammerError
from treehammer.sql.read.campaign_counts import CampaignCount
from treehammer.tables import TableColumn
from treehammer.terminal import build_grid, make_console, on_interrupt, print_hint
from treehammer.text_formatting import format_counts, format_duration, join_lines, pluralize

if TYPE_CHECKING:
    from treehammer.sql.core.rows import CampaignRow
    from treehammer.sql.write.store import Store


#: Campaigns that are named, at most.
MAX_NAMED = 5
#: Receives the progress of a campaign.
ShowProgress = Callable[[CampaignCount], None]
#: Seconds; an earlier end is shown without its date.
_SAME_DAY_S = 20 * 3600
#: Seconds after which a line is repeated although nothing changed.
QUIET_S = 60.0


def collect_before(command: click.Command) -> click.Command:
    """Return a copy of a command that collects first, and has ``--no-collect``.

    Campaigns with missing measurements are named on standard error, which programs do not read, and
    after the answer: some monitoring systems take the first line of both streams for the state.
    """
    answer: Callable[..., Any] = command.callback  # type: ignore[assignment]  # it has one

    def collect_and_answer(*arguments: Any, no_collect: bool, **values: Any) -> Any:
        settings = click.get_current_context().find_object(Settings)
        lines: list[str] = []
        if settings is not None and _reads_database(values):
            with on_interrupt("measurements stored so far are kept"):
                lines = report_waiting(settings, _find_references(values), collect=not no_collect)
        try:
            return answer(*arguments, **values)
        finally:
            for line in lines:
                print_hint(line, err=True)

    option = click.Option(
        ["--no-collect"], is_flag=True, help="Only say what waits; collect nothing first."
    )
    collecting = copy.copy(command)
    collecting.params = [*command.params, option]
    collecting.callback = collect_and_answer
    return collecting


def _reads_database(values: Mapping[str, Any]) -> bool:
    """Return whether a command answers from the database, not from a results service."""
    return not any("://" in str(values.get(name)) for name in ("url", "service"))


def _find_references(values: Mapping[str, Any]) -> Collection[str]:
    """Find the campaigns that a command's values name; none means all."""
    if values.get("campaign") not in (None, "all"):
        return (str(values["campaign"]),)
    if "site" in values and values.get("site") is None and values.get("job", "") is None:
        return ("last",)  # explain without a subject
    return tuple(values.get("campaigns") or ())


@dataclass(frozen=True)
class WaitingCampaign:
    """A campaign of which planned measurements are not in the database.

    Attributes:
        row: the campaign.
        missing: planned measurements that are not there.
        jobs: jobs that lack measurements, by state.
        is_here: whether this installation submitted it and has its jobs' output.
    """

    row: CampaignRow
    missing: int
    jobs: Mapping[str, int]
    is_here: bool

    def describe(self, *, collected: bool) -> str:
        """Describe the number of missing measurements, the reason and the remedy."""
        row = self.row
        jobs = ", ".join(f"{count} {state}" for state, count in self.jobs.items())
        text = f"{row.name} ({row.id}): {self.missing} of {row.planned_measurements} measurements"
        is_open = not FINAL_JOB_STATES.issuperset(self.jobs)
        if not self.is_here:
            return f"{text} are not in this database (jobs: {jobs}); their submitter collects them"
        if not collected:
            return (
                f"{text} wait or are not collected (jobs: {jobs}). "
                f"Collect them: treehammer collect {row.id}"
            )
        follow = " --follow" if is_open else ""
        state = "still wait" if is_open else "did not arrive, and all jobs have ended"
        return f"{text} {state} (jobs: {jobs}). See: treehammer status {row.id}{follow}"


def report_waiting(
    settings: Settings, references: Collection[str] = (), *, collect: bool = True
) -> list[str]:
    """Collect arrived results; return a line for each campaign with missing measurements.

    Args:
        settings: all settings.
        references: campaigns by identity, name or ``last``; all if there are none.
        collect: collect first.
    """
    from treehammer.sql.write.store import Store

    try:
        with Store.open(settings.database, create=False) as store:
            before = _list_waiting(store, settings, references)
            notes = list(_collect_campaigns(store, settings, before)) if collect else []
            after = _list_waiting(store, settings, references) if collect and before else before
    except TreehammerError:
        return []  # the command itself names the problem
    lines = [campaign.describe(collected=collect) for campaign in after[:MAX_NAMED]]
    if len(after) > MAX_NAMED:
        lines.append(f"and {len(after) - MAX_NAMED} more campaigns. See: treehammer status")
    return [*notes, *lines]


def _collect_campaigns(
    store: Store, settings: Settings, campaigns: Iterable[WaitingCampaign]
) -> Iterable[str]:
    """Collect the measurements of campaigns of this installation; yield problems."""
    from treehammer.submit.campaigns.campaign_polling import make_tracker

    tracker = make_tracker(store, settings)
    for campaign in campaigns:
        if campaign.is_here:
            try:
                tracker.update(campaign.row)
            except TreehammerError as error:
                yield f"{campaign.row.name}: not collected: {join_lines(str(error))}"


def _list_waiting(
    store: Store, settings: Settings, references: Collection[str]
) -> list[WaitingCampaign]:
    """List the campaigns that lack measurements, newest first.

    Without references, campaigns with open jobs and those with output on this machine are examined.
    """
    from treehammer.sql.read.campaign_queries import list_incomplete_campaigns

    own_ids = _list_own_campaigns(settings)
    if references:
        rows = list({row.id: row for row in map(store.campaign, references)}.values())
    else:
        rows = list_incomplete_campaigns(store, own_ids)
    examined = (_examine_campaign(store, row, row.id in own_ids) for row in rows)
    return [campaign for campaign in examined if campaign.missing]


def _examine_campaign(store: Store, row: CampaignRow, is_here: bool) -> WaitingCampaign:
    recorded: Counter[str] = Counter()
    for (job_id, _), count in store.count_by_attempt(row.id).items():
        recorded[job_id] = max(recorded[job_id], count)
    missing = 0
    jobs: Counter[str] = Counter()
    for job in store.jobs(row.id):
        lacking = max(0, job.planned_measurements - recorded[job.id])
        missing += lacking
        jobs[job.state] += bool(lacking)
    return WaitingCampaign(row, missing, +jobs, is_here)


def _list_own_campaigns(settings: Settings) -> frozenset[str]:
    """List the campaigns whose jobs have their output on this machine."""
    local = (path.name.partition("-")[2] for path in settings.spool_dir.glob("jobs/*-*"))
    pools = (
        path.parent.parent.name for path in settings.htcondor_dir.glob("*/*/*/submission.json")
    )
    return frozenset((*local, *pools))


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
