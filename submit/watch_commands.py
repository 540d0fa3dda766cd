"""What follows a submission: ``treehammer status``, ``collect``, ``cancel``, ``resume``."""

from __future__ import annotations

import textwrap
import time
from collections import Counter

import click

from treehammer.config import Settings
from treehammer.errors import BatchError, ConfigError, NothingToDo, did_you_mean
from treehammer.sql.rows import CampaignRow
from treehammer.sql.store import Store
from treehammer.submit import breaker, following
from treehammer.submit.batch.base import JobState
from treehammer.submit.credentials import Credentials
from treehammer.submit.live import counts, shown_states, summary, watching
from treehammer.submit.sandboxes import Collected
from treehammer.submit.terms import Terms
from treehammer.submit.terms_options import credential_options, service_option
from treehammer.submit.tracking import Progress, Tracker
from treehammer.submit.troubles import Trouble, troubles
from treehammer.terminal import TABLE, Column, counted, leaving, output_options, print_rows

#: Kinds of trouble that are told on a terminal.
TROUBLES = 5


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
        tracker = following.tracker_for(store, settings)
        if campaign is None and not follow:
            _print_campaigns(store, tracker, form)
            return
        row = store.campaign(campaign or "last")
        with leaving(lambda: following.how_it_stands(tracker, row)):
            progress = follow_live(tracker, row) if follow else following.look(tracker, row, _tell)
        print_progress(tracker, row, progress, form)


def _tell(line: str) -> None:
    click.echo(line, err=True)


def follow_live(tracker: Tracker, campaign: CampaignRow) -> Progress:
    """Show a campaign until every job is final."""
    with watching(f"{campaign.name} ({campaign.id})", campaign.planned_measurements) as show:
        return following.follow(tracker, campaign, show, _tell)


def _print_campaigns(store: Store, tracker: Tracker, form: str) -> None:
    rows = []
    for campaign in store.campaigns():
        try:
            jobs = tracker.refresh(campaign)
        except (BatchError, ConfigError) as error:  # the others can be shown
            _tell(f"{campaign.id} is shown as it was last seen: {error}")
            jobs = store.jobs(campaign.id)
        for line in tracker.hand_in(campaign):
            _tell(line)
        states = Counter(job.state for job in jobs)
        recorded = sum(row.measurements for row in store.counts(campaign.id))
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
        raise NothingToDo("there are no campaigns yet", hint="Start one: treehammer submit")
    columns = (
        Column("id", "campaign"),
        Column("name", "name"),
        Column("jobs", "jobs", counts),
        Column("planned", "planned", right=True),
        Column("collected", "collected", right=True),
    )
    print_rows(rows, columns, form=form)


def print_progress(tracker: Tracker, campaign: CampaignRow, progress: Progress, form: str) -> None:
    """Print how far a campaign is, what keeps it, and what went wrong."""
    rows = [
        {"site": site, **{state.value: states.get(state.value, 0) for state in JobState}}
        | {"failures": dict(progress.failures.get(site, {}))}
        for site, states in progress.states.items()
    ]
    columns = (
        Column("site", "site"),
        *(Column(state, state, right=True) for state in shown_states(progress)),
        Column("failures", "failed", counts),
    )
    if form == TABLE:
        click.echo(f"{campaign.name} ({campaign.id})")
    print_rows(rows, columns, form=form)
    if form == TABLE:
        click.echo(summary(progress))
    for note in tracker.notes(campaign):
        click.echo(note, err=True)
    if form == TABLE:
        _print_troubles(troubles(tracker.store, campaign))


def _print_troubles(found: list[Trouble]) -> None:
    """What went wrong, each kind of trouble once, with the end of one of its logs."""
    for trouble in found[:TROUBLES]:
        click.echo(f"\n{trouble.count} × {trouble.failure} at {trouble.site}: {trouble.message}")
        if trouble.log:
            click.echo(textwrap.indent(trouble.log.rstrip(), "  | "))
    if len(found) > TROUBLES:
        click.echo(f"\nand {len(found) - TROUBLES} more kinds of trouble: see failure_message,")
        click.echo("implausible_why and log_excerpt in what 'treehammer export' writes")


@click.command()
@click.argument("campaign", default="last")
@click.pass_obj
def collect(settings: Settings, campaign: str) -> None:
    """Bring the measurements of a campaign into the database; again and again is harmless.

    Example: treehammer collect last
    """
    with Store.open(settings.database, create=False) as store:
        tracker = following.tracker_for(store, settings)
        row = store.campaign(campaign)
        with leaving("what was taken in stays, and the next collect takes in the rest"):
            tracker.refresh(row)
            _print_collected(row, tracker.collect(row))
            lines = [*tracker.elsewhere(), *breaker.apply(tracker, row)]
            for line in (*lines, *tracker.hand_in(row, everything=True)):
                _tell(line)


def _print_collected(campaign: CampaignRow, collected: Collected) -> None:
    click.echo(
        f"{campaign.name}: {counted(collected.new, 'new measurement')}, {collected.known} known"
    )
    for remark in collected.remarks():
        click.echo(f"  {remark}", err=True)


@click.command()
@click.argument("campaign")
@click.pass_obj
def cancel(settings: Settings, campaign: str) -> None:
    """End the jobs of a campaign; what they measured so far is kept.

    Example: treehammer cancel last
    """
    with Store.open(settings.database, create=False) as store:
        tracker = following.tracker_for(store, settings)
        row = store.campaign(campaign)
        with leaving(f"jobs may still be ending. Look: treehammer status {row.id}"):
            count = tracker.cancel(row)
        if not count:
            raise NothingToDo("every job is final already", where=row.name)
        click.echo(f"{row.name}: {counted(count, 'job')} cancelled")
        _print_collected(row, tracker.collect(row))
        for line in tracker.hand_in(row):
            _tell(line)


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
    credentials: Credentials,
    service: bool,
) -> None:
    """Let held jobs go on, and queue those anew that were cut off, cancelled or lost.

    What was measured is kept; each job has nine attempts at most.  With --proxy or --token-file the
    jobs are given these in place of what was sent before.

    Example: treehammer resume last --sites SITE_A
    """
    # They bring along all that plans, which looking does not need.
    from treehammer.submit import reporting
    from treehammer.submit import resume as resuming

    names = tuple(part.strip() for part in sites.split(",") if part.strip())
    with Store.open(settings.database, create=False) as store:
        tracker = following.tracker_for(store, settings)
        row = store.campaign(campaign)
        there = {job.site for job in store.jobs(row.id)}
        for name in names:
            if name not in there:
                raise ConfigError(
                    f"the campaign has no jobs at {name!r}",
                    where="--sites",
                    hint=f"{did_you_mean(name, there)}It has: {', '.join(sorted(there))}.",
                )
        credentials.require(time.time(), None)
        reported = reporting.of(settings, Terms(service=service))
        with leaving(f"type it again: nothing is queued twice. Look: treehammer status {row.id}"):
            done = resuming.resume(
                tracker,
                row,
                settings,
                sites=names,
                failed=failed,
                inputs=credentials.inputs(),
                service=reported,
            )
            for line in tracker.hand_in(row):
                _tell(line)
    if done.spent:
        click.echo(f"{counted(done.spent, 'job')} had {resuming.MOST_ATTEMPTS} attempts", err=True)
    if done.unqueued:
        click.echo(f"{counted(done.unqueued, 'job')} cannot be queued anew: submit again", err=True)
    if not done.released and not done.again:
        raise NothingToDo("no job is held or was cut off", where=row.name)
    click.echo(f"{row.name}: {counted(done.released, 'job')} released, {done.again} queued anew")
    click.echo(f"  treehammer status {row.id} --follow")
