"""Commands ``treehammer status | collect | cancel | resume | purge``."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection

import click

from treehammer.collectors.job_spec import JobState
from treehammer.config import Settings
from treehammer.errors import BatchError, ConfigError, NothingToDoError, suggest_word
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns.attempt_rows import CollectResult
from treehammer.submit.campaigns.campaign_polling import (
    campaigns_older_than,
    describe_campaign_state,
    make_tracker,
    poll_campaign,
    purge_campaign,
    retention_reason,
)
from treehammer.submit.campaigns.tracker import CampaignTracker
from treehammer.submit.cli.campaign_output import (
    describe_progress,
    follow_on_terminal,
    make_display,
    print_notices,
)
from treehammer.submit.cli.command_options import credential_options, service_option
from treehammer.submit.planning.submission_options import (
    INCLUDE_OPTION,
    JobCredentials,
    SubmissionOptions,
)
from treehammer.tables import TableColumn, hidden_columns
from treehammer.terminal import CAMPAIGN, SITE, CommandOutput, on_interrupt, print_hint, prints_rows
from treehammer.text_formatting import format_counts, format_size, pluralize, split_list

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
            print_notices([*lines, *tracker.upload_campaign(row, everything=True)])


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
        print_notices(tracker.upload_campaign(row))


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
            print_notices(tracker.upload_campaign(row))
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
    print_notices(tracker.describe_unknown_batch_systems())
    if not freed:
        raise NothingToDoError("nothing to remove")
    click.echo(f"{format_size(freed)} removed; the measurements are in the database")
