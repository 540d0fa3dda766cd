"""What follows a submission: ``treehammer status``, ``collect``, ``cancel``, ``resume``."""

from __future__ import annotations

import textwrap
import time
from collections import Counter

import click

from treehammer.collectors.job_state import JobState
from treehammer.config import Settings
from treehammer.errors import BatchError, ConfigError, NothingToDoError, suggest_word
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.write.store import Store
from treehammer.submit.cli.live_progress import (
    format_counts,
    live_display,
    summarize_progress,
    visible_states,
)
from treehammer.submit.cli.submission_click_options import credential_options, service_option
from treehammer.submit.planning.job_credentials import JobCredentials
from treehammer.submit.planning.submission_options import SubmissionOptions
from treehammer.submit.tracking import campaign_polling, circuit_breaker
from treehammer.submit.tracking.failure_summary import FailureGroup, summarize_failures
from treehammer.submit.tracking.record_files import CollectResult
from treehammer.submit.tracking.tracker import CampaignTracker, TrackingProgress
from treehammer.terminal import TABLE, OutputColumn, on_interrupt, output_options, print_rows
from treehammer.text_formatting import pluralize

#: Kinds of trouble that are told on a terminal.
MAX_SHOWN_FAILURES = 5


@click.command()
@click.argument("campaign", required=False)
@click.option("--follow", is_flag=True, help="Go on until every job is final.")
@output_options
@click.pass_obj
def status(settings: Settings, campaign: str | None, follow: bool, form: str) -> None:
    """Show all campaigns, or how far one is (its id, name, a prefix, or 'last').

    What the jobs of that one measured so far is taken into the database, as 'collect' does.

    Example: treehammer status last --follow
    """
    with Store.open(settings.database, create=False) as store:
        tracker = campaign_polling.make_tracker(store, settings)
        if campaign is None and not follow:
            _print_campaign_table(store, tracker, form)
            return
        row = store.campaign(campaign or "last")
        with on_interrupt(lambda: campaign_polling.describe_campaign_state(tracker, row)):
            progress = (
                follow_on_terminal(tracker, row)
                if follow
                else campaign_polling.poll_campaign(tracker, row, _print_notice)
            )
        print_progress(tracker, row, progress, form)


def _print_notice(line: str) -> None:
    click.echo(line, err=True)


def follow_on_terminal(tracker: CampaignTracker, campaign: CampaignRow) -> TrackingProgress:
    """Show a campaign until every job is final."""
    with live_display(f"{campaign.name} ({campaign.id})", campaign.planned_measurements) as show:
        return campaign_polling.follow_campaign(tracker, campaign, show, _print_notice)


def _print_campaign_table(store: Store, tracker: CampaignTracker, form: str) -> None:
    rows = []
    for campaign in store.campaigns():
        try:
            jobs = tracker.refresh_jobs(campaign)
        except (BatchError, ConfigError) as error:  # the others can be shown
            _print_notice(f"{campaign.id} is shown as it was last seen: {error}")
            jobs = store.jobs(campaign.id)
        for line in tracker.upload_campaign(campaign):
            _print_notice(line)
        states = Counter(job.state for job in jobs)
        recorded = sum(row.measurements for row in store.count_measurements(campaign.id))
        rows.append(
            {
                "id": campaign.id,
                "name": campaign.name,
                "jobs": {s.value: states[s.value] for s in JobState if states[s.value]},
                "planned": campaign.planned_measurements,
                "collected": recorded,
            }
        )
    if not rows:
        raise NothingToDoError("there are no campaigns yet", hint="Start one: treehammer submit")
    columns = (
        OutputColumn("id", "campaign"),
        OutputColumn("name", "name"),
        OutputColumn("jobs", "jobs", format_counts),
        OutputColumn("planned", "planned", align_right=True),
        OutputColumn("collected", "collected", align_right=True),
    )
    print_rows(rows, columns, form=form)


def print_progress(
    tracker: CampaignTracker, campaign: CampaignRow, progress: TrackingProgress, form: str
) -> None:
    """Print how far a campaign is, what keeps it, and what went wrong."""
    rows = [
        {"site": site, **{state.value: states.get(state.value, 0) for state in JobState}}
        | {"failures": dict(progress.failures.get(site, {}))}
        for site, states in progress.states.items()
    ]
    columns = (
        OutputColumn("site", "site"),
        *(OutputColumn(state, state, align_right=True) for state in visible_states(progress)),
        OutputColumn("failures", "failed", format_counts),
    )
    if form == TABLE:
        click.echo(f"{campaign.name} ({campaign.id})")
    print_rows(rows, columns, form=form)
    if form == TABLE:
        click.echo(summarize_progress(progress))
    for note in tracker.describe_obstacles(campaign):
        click.echo(note, err=True)
    if form == TABLE:
        _print_failures(summarize_failures(tracker.store, campaign))


def _print_failures(found: list[FailureGroup]) -> None:
    """What went wrong, each kind of trouble once, with the end of one of its logs."""
    for trouble in found[:MAX_SHOWN_FAILURES]:
        click.echo(f"\n{trouble.count} × {trouble.failure} at {trouble.site}: {trouble.message}")
        if trouble.log:
            click.echo(textwrap.indent(trouble.log.rstrip(), "  | "))
    if len(found) > MAX_SHOWN_FAILURES:
        click.echo(
            f"\nand {len(found) - MAX_SHOWN_FAILURES} more kinds of trouble: see failure_message,"
        )
        click.echo("implausible_reasons and log_excerpt in what 'treehammer export' writes")


@click.command()
@click.argument("campaign", default="last")
@click.pass_obj
def collect(settings: Settings, campaign: str) -> None:
    """Bring the measurements of a campaign into the database; again and again is harmless.

    Example: treehammer collect last
    """
    with Store.open(settings.database, create=False) as store:
        tracker = campaign_polling.make_tracker(store, settings)
        row = store.campaign(campaign)
        with on_interrupt("what was taken in stays, and the next collect takes in the rest"):
            tracker.refresh_jobs(row)
            _print_collected(row, tracker.collect_records(row))
            lines = [
                *tracker.describe_unknown_batch_systems(),
                *circuit_breaker.stop_failing_sites(tracker, row),
            ]
            for line in (*lines, *tracker.upload_campaign(row, everything=True)):
                _print_notice(line)


def _print_collected(campaign: CampaignRow, collected: CollectResult) -> None:
    click.echo(
        f"{campaign.name}: {pluralize(collected.new, 'new measurement')}, {collected.known} known"
    )
    for remark in collected.describe_rejections():
        click.echo(f"  {remark}", err=True)


@click.command()
@click.argument("campaign")
@click.pass_obj
def cancel(settings: Settings, campaign: str) -> None:
    """End the jobs of a campaign; what they measured so far is kept.

    Example: treehammer cancel last
    """
    with Store.open(settings.database, create=False) as store:
        tracker = campaign_polling.make_tracker(store, settings)
        row = store.campaign(campaign)
        with on_interrupt(f"jobs may still be ending. Look: treehammer status {row.id}"):
            count = tracker.cancel(row)
        if not count:
            raise NothingToDoError("every job is final already", where=row.name)
        click.echo(f"{row.name}: {pluralize(count, 'job')} cancelled")
        _print_collected(row, tracker.collect_records(row))
        for line in tracker.upload_campaign(row):
            _print_notice(line)


@click.command()
@click.argument("campaign")
@click.option("--sites", default="", help="Only at these sites, comma separated.")
@click.option("--failed", is_flag=True, help="Also jobs whose payload failed.")
@credential_options
@service_option
@click.pass_obj
def resume(
    settings: Settings,
    campaign: str,
    sites: str,
    failed: bool,
    credentials: JobCredentials,
    service: bool,
) -> None:
    """Let held jobs go on, and queue those anew that were cut off, cancelled or lost.

    What was measured is kept; each job has nine attempts at most.  With --proxy or --token-file the
    jobs are given these in place of what was sent before.

    Example: treehammer resume last --sites SITE_A
    """
    # They bring along all that plans, which looking does not need.
    from treehammer.submit.lifecycle import campaign_resume as resuming
    from treehammer.submit.reporting import job_reporting

    names = tuple(part.strip() for part in sites.split(",") if part.strip())
    with Store.open(settings.database, create=False) as store:
        tracker = campaign_polling.make_tracker(store, settings)
        row = store.campaign(campaign)
        there = {job.site for job in store.jobs(row.id)}
        for name in names:
            if name not in there:
                raise ConfigError(
                    f"the campaign has no jobs at {name!r}",
                    where="--sites",
                    hint=f"{suggest_word(name, there)}It has: {', '.join(sorted(there))}.",
                )
        credentials.check_validity(time.time(), None)
        reported = job_reporting.reporting_for_submission(
            settings, SubmissionOptions(use_service=service)
        )
        with on_interrupt(
            f"type it again: nothing is queued twice. Look: treehammer status {row.id}"
        ):
            done = resuming.resume_campaign(
                tracker,
                row,
                settings,
                sites=names,
                failed=failed,
                inputs=credentials.sandbox_inputs(),
                service=reported,
            )
            for line in tracker.upload_campaign(row):
                _print_notice(line)
    if done.exhausted:
        click.echo(
            f"{pluralize(done.exhausted, 'job')} had {resuming.MAX_ATTEMPTS_IN_ALL} attempts",
            err=True,
        )
    if done.unqueued:
        click.echo(
            f"{pluralize(done.unqueued, 'job')} cannot be queued anew: submit again", err=True
        )
    if not done.released and not done.requeued:
        raise NothingToDoError("no job is held or was cut off", where=row.name)
    click.echo(
        f"{row.name}: {pluralize(done.released, 'job')} released, {done.requeued} queued anew"
    )
    click.echo(f"  treehammer status {row.id} --follow")
