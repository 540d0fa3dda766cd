"""``treehammer purge``: gives back the room of campaigns whose measurements are all in the database."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click
from rich.filesize import decimal

from treehammer.collectors.job_state import JobState
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError
from treehammer.sql.core.day_numbers import DAY_US
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.write.store import Store
from treehammer.submit.tracking.campaign_polling import make_tracker
from treehammer.submit.tracking.record_files import REJECTED_FOLDER
from treehammer.submit.tracking.tracker import CampaignTracker
from treehammer.terminal import on_interrupt


@click.command()
@click.argument("campaigns", nargs=-1)
@click.option(
    "--older-than",
    "days",
    type=click.FloatRange(min=0),
    metavar="DAYS",
    help="Also all campaigns that were submitted so long ago and are over.",
)
@click.pass_obj
@on_interrupt("what was not removed yet stays whole")
def purge(settings: Settings, campaigns: tuple[str, ...], days: float | None) -> None:
    """Remove the working folders and logs of campaigns that are over.

    Before that their measurements are taken into the database, which keeps them; a campaign with
    anything that could not be taken in is left as it is.

    \b
    Example: treehammer purge last
             treehammer purge --older-than 30
    """
    if not campaigns and days is None:
        raise ConfigError("no campaign is named", hint="Name some, or give --older-than DAYS.")
    with Store.open(settings.database, create=False) as store:
        tracker = make_tracker(store, settings)
        chosen = [store.campaign(name) for name in campaigns]
        for row in chosen:
            if why := _retention_reason(tracker, row):
                raise ConfigError(f"cannot be purged: {why}", where=row.name)
        if days is not None:
            chosen += _campaigns_older_than(tracker, days)
        freed = 0
        for row in chosen:
            freed += purge_campaign(tracker, row)
    for line in tracker.describe_unknown_batch_systems():
        click.echo(line, err=True)
    if not freed:
        raise NothingToDoError("there is nothing to remove")
    click.echo(f"{decimal(freed)} removed; the measurements are in the database")


def _campaigns_older_than(tracker: CampaignTracker, days: float) -> Iterator[CampaignRow]:
    limit = time.time_ns() // 1000 - days * DAY_US
    for row in tracker.store.campaigns():
        if row.created_us <= limit and not _retention_reason(tracker, row):
            yield row


def _retention_reason(tracker: CampaignTracker, campaign: CampaignRow) -> str:
    """Why the folders of a campaign are still needed; '' when they are not.  Collects first."""
    jobs = tracker.refresh_jobs(campaign)
    collected = tracker.collect_records(campaign)
    if not all(JobState(job.state).is_final for job in jobs):
        return f"jobs are under way. Look: treehammer status {campaign.id}"
    if collected.conflicting:
        return collected.describe_rejections()[-1]
    for job in jobs:
        for sandbox in tracker.sandboxes(job).values():
            if (sandbox / REJECTED_FOLDER).is_dir():
                return f"rejected records wait for inspection in {sandbox / REJECTED_FOLDER}"
    return ""


def purge_campaign(tracker: CampaignTracker, campaign: CampaignRow) -> int:
    """Have the batch systems forget a campaign that is over; how many bytes that freed."""
    jobs = tracker.store.jobs(campaign.id)
    freed = 0
    for name in sorted({job.batch_system for job in jobs}):
        if batch := tracker.find_batch_system(name, jobs):
            freed += batch.purge(
                [job.batch_id for job in jobs if job.batch_system == name and job.batch_id]
            )
    return freed
