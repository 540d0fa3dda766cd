"""Commands ``treehammer status | collect | cancel | resume | purge``, and progress of campaigns."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from treehammer.collectors.job_spec import JobState
from treehammer.config import Settings
from treehammer.errors import BatchError, ConfigError, ExitCode, NothingToDoError, suggest_word
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.campaign_counts import CampaignCount, list_selection_notes
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns.attempt_rows import CollectResult
from treehammer.submit.campaigns.campaign_outcome import (
    describe_starts,
)
from treehammer.submit.campaigns.campaign_polling import (
    CampaignDisplay,
    ShowProgress,
    campaigns_older_than,
    describe_campaign_state,
    describe_failures,
    follow_campaign,
    make_tracker,
    poll_campaign,
    purge_campaign,
    retention_reason,
)
from treehammer.submit.campaigns.tracker import CampaignTracker
from treehammer.submit.cli.command_options import credential_options, service_option
from treehammer.submit.planning.submission_options import (
    INCLUDE_OPTION,
    JobCredentials,
    SubmissionOptions,
)
from treehammer.tables import TableColumn, hidden_columns
from treehammer.terminal import (
    CAMPAIGN,
    SITE,
    TABLE,
    CommandOutput,
    build_grid,
    make_console,
    on_interrupt,
    output_form,
    print_hint,
    print_remarks,
    prints_rows,
)
from treehammer.text_formatting import (
    format_counts,
    format_duration,
    format_size,
    pluralize,
    split_list,
)

_CAMPAIGN_COLUMNS = (
    TableColumn("id", "campaign"),
    TableColumn("name", "name"),
    TableColumn("jobs", "jobs", format_counts),
    TableColumn("planned", "planned", is_number=True),
    TableColumn("collected", "collected", is_number=True),
    *hidden_columns("failed"),
)
_PROGRESS_KEYS = "with CAMPAIGN site, planned, measured, failures, missing and the states of jobs"


@click.command()
@click.argument("campaign", required=False, type=CAMPAIGN)
@click.option("--follow", is_flag=True, help="Keep watching until every job has ended.")
@prints_rows(*_CAMPAIGN_COLUMNS, keys=_PROGRESS_KEYS)
@click.pass_obj
def status(settings: Settings, campaign: str | None, follow: bool) -> CommandOutput:
    """Show all campaigns, or the progress of one (its id, name, a prefix, or 'last').

    New measurements of that campaign are stored in the database, as with 'collect'. The exit code
    is 1 if one of its measurements failed, is implausible or was lost.

    Example: treehammer status last --follow
    """
    with Store.open(settings.database, create=False) as store:
        tracker = make_tracker(store, settings)
        if campaign is None and not follow:
            return _list_campaigns(store, tracker)
        row = store.campaign(campaign or "last")
        with on_interrupt(lambda: describe_campaign_state(tracker, row)):
            progress = (
                follow_on_terminal(tracker, row)
                if follow
                else poll_campaign(tracker, row, make_display().notify)
            )
        return describe_progress(tracker, row, progress)


def _list_campaigns(store: Store, tracker: CampaignTracker) -> CommandOutput:
    rows, remarks = [], []
    for campaign in store.campaigns():
        try:
            jobs = tracker.refresh_jobs(campaign)
        except (BatchError, ConfigError) as error:  # show the other campaigns
            remarks.append(f"{campaign.id} may have changed since the last status: {error}")
            jobs = store.jobs(campaign.id)
        remarks += tracker.upload_campaign(campaign)
        states = Counter(job.state for job in jobs)
        total = tracker.compute_progress(campaign).total
        rows.append(
            {
                "id": campaign.id,
                "name": campaign.name,
                "jobs": {s.value: states[s.value] for s in JobState if states[s.value]},
                "planned": campaign.planned_measurements,
                "collected": total.measured,
                "failed": total.failed,
            }
        )
    if not rows:
        raise NothingToDoError("no campaigns yet", hint="Start one with treehammer submit.")
    return CommandOutput(rows, _CAMPAIGN_COLUMNS, remarks=remarks)


@click.command()
@click.argument("campaign", default="last", type=CAMPAIGN)
@click.pass_obj
def collect(settings: Settings, campaign: str) -> None:
    """Store the measurements of a campaign in the database. Repeating this is harmless.

    Example: treehammer collect last
    """
    with Store.open(settings.database, create=False) as store:
        tracker = make_tracker(store, settings)
        row = store.campaign(campaign)
        with on_interrupt("measurements stored so far are kept; the next collect stores the rest"):
            tracker.refresh_jobs(row)
            _print_collected(row, tracker.collect_records(row))
            lines = [
                *tracker.describe_unknown_batch_systems(),
                *tracker.act_on_excluded_sites(row),
            ]
            print_remarks([*lines, *tracker.upload_campaign(row, everything=True)])


def _print_collected(campaign: CampaignRow, collected: CollectResult) -> None:
    click.echo(
        f"{campaign.name}: {pluralize(collected.new, 'new measurement')}, {collected.existing} known"
    )
    for remark in collected.describe_rejections():
        click.echo(f"  {remark}", err=True)


@click.command()
@click.argument("campaign", type=CAMPAIGN)
@click.pass_obj
def cancel(settings: Settings, campaign: str) -> None:
    """Cancel the jobs of a campaign. Their measurements so far are kept.

    Example: treehammer cancel last
    """
    with Store.open(settings.database, create=False) as store:
        tracker = make_tracker(store, settings)
        row = store.campaign(campaign)
        with on_interrupt(f"jobs may still be ending; see treehammer status {row.id}"):
            count = tracker.cancel(row)
        if not count:
            raise NothingToDoError("all jobs have ended already", where=row.name)
        click.echo(f"{row.name}: {pluralize(count, 'job')} cancelled")
        _print_collected(row, tracker.collect_records(row))
        print_remarks(tracker.upload_campaign(row))


@click.command()
@click.argument("campaign", type=CAMPAIGN)
@click.option(
    "--sites",
    default="",
    help="Only at these sites, comma separated.",
    type=SITE,
)
@click.option("--failed", is_flag=True, help="Also jobs whose payload failed.")
@click.option(
    INCLUDE_OPTION,
    "include",
    default="",
    metavar="SITES",
    help="Also jobs at these sites although their state excludes them; or all.",
)
@credential_options
@service_option
@click.pass_obj
def resume(
    settings: Settings,
    campaign: str,
    sites: str,
    failed: bool,
    include: str,
    credentials: JobCredentials,
    service: bool,
) -> None:
    """Release held jobs, and queue jobs that were interrupted, cancelled, removed, lost or never queued.

    Existing measurements are kept; a job has at most nine attempts.  --proxy and --token-file replace
    the credentials sent earlier.

    Example: treehammer resume last --sites SITE_A
    """
    # Imported here: the planning modules are slow to load and the other commands do not need them.
    from treehammer.submit.campaigns import job_reporting, submission

    names = split_list(sites)
    with Store.open(settings.database, create=False) as store:
        tracker = make_tracker(store, settings)
        row = store.campaign(campaign)
        _check_sites(names, {job.site for job in store.jobs(row.id)})
        credentials.check_validity(time.time(), None)
        reporting = job_reporting.reporting_for_submission(
            settings, SubmissionOptions(use_service=service)
        )
        with on_interrupt(
            f"repeat the command, nothing is queued twice; see treehammer status {row.id}"
        ):
            result = submission.resume_campaign(
                tracker,
                row,
                settings,
                sites=names,
                failed=failed,
                inputs=credentials.sandbox_inputs(),
                service=reporting,
                include_excluded=split_list(include),
            )
            print_remarks(tracker.upload_campaign(row))
    for site, reason in result.excluded.items():
        click.echo(f"Site {site} is left out: {reason}.", err=True)
    if result.exhausted:
        click.echo(
            f"{pluralize(result.exhausted, 'job')} had {submission.MAX_ATTEMPTS_IN_ALL} attempts",
            err=True,
        )
    if result.unqueued:
        click.echo(
            f"{pluralize(result.unqueued, 'job')} cannot be queued, because their inputs are not on "
            "this machine or were purged; submit again",
            err=True,
        )
    if not result.released and not result.requeued:
        problem = result.exhausted or result.unqueued or result.excluded
        raise NothingToDoError(
            "no job can be queued" if problem else "no job is held or was interrupted",
            where=row.name,
            hint="To queue jobs of excluded sites nevertheless: --include-excluded all"
            if result.excluded
            else "",
        )
    click.echo(
        f"{row.name}: {pluralize(result.released, 'job')} released, {result.requeued} requeued"
    )
    print_hint(f"  treehammer status {row.id} --follow")


def _check_sites(names: Collection[str], job_sites: Collection[str]) -> None:
    for name in names:
        if name not in job_sites:
            raise ConfigError(
                f"the campaign has no jobs at {name!r}",
                where="--sites",
                hint=f"{suggest_word(name, job_sites)}It has: {', '.join(sorted(job_sites))}.",
            )


@click.command()
@click.argument("campaigns", nargs=-1)
@click.option(
    "--older-than",
    "days",
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="Also purge all ended campaigns that were submitted at least so long ago.",
)
@click.pass_obj
@on_interrupt("campaigns that are not purged yet are complete")
def purge(settings: Settings, campaigns: tuple[str, ...], days: float | None) -> None:
    """Remove the working folders and logs of ended campaigns.

    The measurements are stored in the database first; a campaign with records that the database
    rejects is kept.

    \b
    Example: treehammer purge last
             treehammer purge --older-than 30
    """
    if not campaigns and days is None:
        raise ConfigError("no campaign given", hint="Name campaigns, or use --older-than DAYS.")
    with Store.open(settings.database, create=False) as store:
        tracker = make_tracker(store, settings)
        chosen = [store.campaign(name) for name in campaigns]
        for row in chosen:
            if reason := retention_reason(tracker, row):
                raise ConfigError(f"cannot be purged: {reason}", where=row.name)
        if days is not None:
            chosen += campaigns_older_than(tracker, days)
        freed = 0
        for row in chosen:
            freed += purge_campaign(tracker, row, settings)
    print_remarks(tracker.describe_unknown_batch_systems())
    if not freed:
        raise NothingToDoError("nothing to remove")
    click.echo(f"{format_size(freed)} removed; the measurements are in the database")


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
    )


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
            *list_selection_notes(json.loads(campaign.plan)),
            *describe_starts(tracker.store, campaign),
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
    return ExitCode.REGRESSION if total.failed or total.lost else ExitCode.DONE
