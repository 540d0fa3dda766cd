"""Commands ``treehammer status | collect | cancel | resume | purge``."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from treehammer.config import Settings
from treehammer.errors import BatchError, ConfigError, NothingToDoError, suggest_word
from treehammer.sql.cli import open_store, pass_store
from treehammer.submit.cli.command_options import credential_options, include_option, service_option
from treehammer.tables import TableColumn, hidden_columns
from treehammer.terminal import (
    CAMPAIGN,
    SITE,
    CommandOutput,
    NumberRange,
    on_interrupt,
    print_hint,
    print_remarks,
    prints_rows,
)
from treehammer.text_formatting import format_counts, format_size, pluralize, split_list

if TYPE_CHECKING:
    from treehammer.sql.core.rows import CampaignRow
    from treehammer.sql.write.store import Store
    from treehammer.submit.campaigns.attempt_rows import CollectResult
    from treehammer.submit.campaigns.tracker import CampaignTracker
    from treehammer.submit.planning.submission_options import JobCredentials

_CAMPAIGN_COLUMNS = (
    TableColumn("id", "campaign"),
    TableColumn("name", "name"),
    TableColumn("jobs", "jobs", format_counts),
    TableColumn("planned", "planned", is_number=True),
    TableColumn("collected", "collected", is_number=True),
    *hidden_columns("failed", "implausible"),
)
_PROGRESS_KEYS = "with CAMPAIGN site, planned, measured, failures, missing and the states of jobs"


def pass_tracker(function: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the settings and the tracker of the campaigns in the results database to a command."""

    @functools.wraps(function)
    def wrapper(settings: Settings, store: Store, /, **arguments: Any) -> Any:
        from treehammer.submit.campaigns.campaign_polling import make_tracker

        return function(settings, make_tracker(store, settings), **arguments)

    return pass_store(wrapper)


@click.command()
@click.argument("campaign", required=False, type=CAMPAIGN)
@click.option("--follow", is_flag=True, help="Keep watching until every job has ended.")
@prints_rows(*_CAMPAIGN_COLUMNS, keys=_PROGRESS_KEYS)
@pass_tracker
def status(
    _settings: Settings, tracker: CampaignTracker, /, campaign: str | None, follow: bool
) -> CommandOutput:
    """Show all campaigns, or the progress of one (its id, name, a prefix, or 'last').

    New measurements are stored in the database, as with 'collect'. With a campaign the exit code
    is 1 if one of its measurements failed, is implausible or was lost.

    Example: treehammer status last --follow
    """
    from treehammer.submit.campaigns import campaign_polling

    if campaign is None and not follow:
        rows, remarks = campaign_polling.list_campaigns(tracker)
        if not rows:
            raise NothingToDoError("no campaigns yet", hint="Start one with treehammer submit.")
        return CommandOutput(rows, _CAMPAIGN_COLUMNS, remarks=remarks)
    from treehammer.submit.cli import campaign_output

    row = tracker.store.campaign(campaign or "last")
    with on_interrupt(lambda: campaign_polling.describe_campaign_state(tracker, row)):
        progress = (
            campaign_output.follow_on_terminal(tracker, row)
            if follow
            else campaign_polling.poll_campaign(tracker, row, campaign_output.make_display().notify)
        )
    return campaign_output.describe_progress(tracker, row, progress)


@click.command()
@click.argument("campaign", default="last", type=CAMPAIGN)
@pass_tracker
def collect(_settings: Settings, tracker: CampaignTracker, /, campaign: str) -> None:
    """Store the measurements of a campaign in the database. Repeating this is harmless.

    Example: treehammer collect last
    """
    row = tracker.store.campaign(campaign)
    with on_interrupt("measurements stored so far are kept; the next collect stores the rest"):
        _print_collected(row, tracker.collect_records(row))
        lines = [*tracker.describe_unread_jobs(), *tracker.act_on_excluded_sites(row)]
        print_remarks([*lines, *tracker.upload_campaign(row, everything=True)])


def _print_collected(campaign: CampaignRow, collected: CollectResult) -> None:
    print_hint(
        f"{campaign.name}: {pluralize(collected.new, 'new measurement')}, {collected.existing} known"
    )
    for remark in collected.describe_rejections():
        print_hint(f"  {remark}", err=True)


@click.command()
@click.argument("campaign", type=CAMPAIGN)
@pass_tracker
def cancel(_settings: Settings, tracker: CampaignTracker, /, campaign: str) -> None:
    """Cancel the jobs of a campaign. Their measurements so far are kept.

    Example: treehammer cancel last
    """
    row = tracker.store.campaign(campaign)
    is_under_way = tracker.under_way(row.id)
    with on_interrupt(f"jobs may still be ending; see treehammer status {row.id}"):
        count = tracker.cancel(row)
    if is_under_way:
        message = f"{pluralize(count, 'job')} cancelled, and others are still being submitted"
        raise BatchError(message, where=row.name, hint="Repeat the command afterwards.")
    if not count:
        raise NothingToDoError("all jobs have ended already", where=row.name)
    print_hint(f"{row.name}: {pluralize(count, 'job')} cancelled")
    _print_collected(row, tracker.collect_records(row))
    print_remarks(tracker.upload_campaign(row))


@click.command()
@click.argument("campaign", type=CAMPAIGN)
@click.option("--sites", default="", help="Only at these sites, comma separated.", type=SITE)
@click.option("--failed", is_flag=True, help="Also jobs whose payload failed.")
@include_option("Also jobs at these sites although their state excludes them; or all.")
@credential_options
@service_option
@pass_tracker
def resume(
    settings: Settings,
    tracker: CampaignTracker,
    /,
    campaign: str,
    sites: str,
    failed: bool,
    include: tuple[str, ...],
    credentials: JobCredentials,
    service: bool,
) -> None:
    """Release held jobs, and queue jobs that were interrupted, cancelled, removed, lost or never queued.

    Existing measurements are kept; a job has at most nine attempts.  --proxy and --token-file replace
    the credentials sent earlier.

    Example: treehammer resume last --sites SITE_A
    """
    from treehammer.submit.campaigns import job_reporting, submission
    from treehammer.submit.planning.submission_options import SubmissionOptions

    names = split_list(sites)
    row = tracker.store.campaign(campaign)
    job_sites = sorted({job.site for job in tracker.store.jobs(row.id)})
    for name in names:
        if name not in job_sites:
            raise ConfigError(
                f"the campaign has no jobs at {name!r}",
                where="--sites",
                hint=f"{suggest_word(name, job_sites)}It has: {', '.join(job_sites)}.",
            )
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
            include_excluded=include,
        )
        print_remarks(tracker.upload_campaign(tracker.store.campaign(row.id)))
    print_remarks(result.describe_left_out())
    if not result.released and not result.requeued:
        problem = result.exhausted or result.unqueued or result.excluded
        raise NothingToDoError(
            "no job can be queued" if problem else "no job is held or was interrupted",
            where=row.name,
            hint="To queue jobs of excluded sites nevertheless: --include-excluded all"
            if result.excluded
            else "",
        )
    print_hint(
        f"{row.name}: {pluralize(result.released, 'job')} released, {result.requeued} requeued"
    )
    print_hint(f"  treehammer status {row.id} --follow")


@click.command()
@click.argument("campaigns", nargs=-1)
@click.option(
    "--older-than",
    "days",
    type=NumberRange(min=0),
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
    from treehammer.submit.campaigns import campaign_polling

    with open_store(settings) as store:
        tracker = campaign_polling.make_tracker(store, settings)
        rows = [store.campaign(name) for name in campaigns]
        for row in rows:
            if reason := campaign_polling.retention_reason(tracker, row):
                raise ConfigError(f"cannot be purged: {reason}", where=row.name)
        if days is not None:
            rows += campaign_polling.campaigns_older_than(tracker, settings, days)
        freed = sum(campaign_polling.purge_campaign(tracker, row, settings) for row in rows)
    print_remarks(tracker.describe_unread_jobs())
    if not freed:
        raise NothingToDoError("nothing to remove")
    click.echo(f"{format_size(freed)} removed; the measurements are in the database")
