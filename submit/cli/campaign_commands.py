"""Commands ``treehammer status | collect | cancel | resume | purge``."""

from __future__ import annotations

import json
import textwrap
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import click

from treehammer.analysis.status.failure_explanation import explain_results
from treehammer.collectors.job_spec import JobState
from treehammer.collectors.record.day_numbers import DAY_US
from treehammer.config import Settings
from treehammer.errors import BatchError, ConfigError, ExitCode, NothingToDoError, suggest_word
from treehammer.sql.cli.transfer_commands import complete_campaigns
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read import campaign_queries
from treehammer.sql.read.campaign_counts import CampaignCount, list_selection_notes
from treehammer.sql.read.failure_counts import PeriodCounts
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns.attempt_rows import REJECTED_FOLDER, CollectResult
from treehammer.submit.campaigns.campaign_outcome import (
    FailedExecution,
    FailureGroup,
    describe_starts,
    summarize_failures,
)
from treehammer.submit.campaigns.campaign_polling import (
    describe_campaign_state,
    follow_campaign,
    make_tracker,
    poll_campaign,
)
from treehammer.submit.campaigns.tracker import CampaignTracker, StagedSubmissions
from treehammer.submit.cli.command_options import complete_sites, credential_options, service_option
from treehammer.submit.cli.unfinished_campaigns import (
    list_progress_rows,
    live_display,
    make_progress_columns,
    summarize_progress,
)
from treehammer.submit.planning.submission_options import (
    INCLUDE_OPTION,
    JobCredentials,
    SubmissionOptions,
)
from treehammer.tables import TableColumn
from treehammer.terminal import TABLE, on_interrupt, output_options, print_hint, print_rows
from treehammer.text_formatting import format_counts, format_size, join_names, pluralize, split_list

#: Failure groups printed on a terminal.
MAX_SHOWN_FAILURES = 5
#: Sites whose failures are explained on a terminal.
MAX_EXPLAINED_SITES = 20


@click.command()
@click.argument("campaign", required=False, shell_complete=complete_campaigns)
@click.option("--follow", is_flag=True, help="Keep watching until every job has ended.")
@output_options
@click.pass_obj
def status(settings: Settings, campaign: str | None, follow: bool, form: str) -> ExitCode:
    """Show all campaigns, or the progress of one (its id, name, a prefix, or 'last').

    New measurements of that campaign are stored in the database, as with 'collect'. The exit code
    is 1 if one of its measurements failed, is implausible or was lost.

    Example: treehammer status last --follow
    """
    with Store.open(settings.database, create=False) as store:
        tracker = make_tracker(store, settings)
        if campaign is None and not follow:
            _print_campaign_table(store, tracker, form)
            return ExitCode.DONE
        row = store.campaign(campaign or "last")
        with on_interrupt(lambda: describe_campaign_state(tracker, row)):
            progress = (
                follow_on_terminal(tracker, row, form)
                if follow
                else poll_campaign(tracker, row, _print_notice)
            )
        print_progress(tracker, row, progress, form)
    return rate_progress(progress)


def rate_progress(progress: CampaignCount) -> ExitCode:
    """Return the exit code of a campaign: whether a measurement failed or was lost."""
    total = progress.total
    return ExitCode.REGRESSION if total.failed or total.lost else ExitCode.DONE


def _print_notice(line: str) -> None:
    print_hint(line, err=True)


def follow_on_terminal(
    tracker: CampaignTracker, campaign: CampaignRow, form: str = TABLE
) -> CampaignCount:
    """Show a campaign until every job has ended."""
    name, planned = f"{campaign.name} ({campaign.id})", campaign.planned_measurements
    with live_display(name, planned, to_stderr=form != TABLE) as show:
        return follow_campaign(tracker, campaign, show, _print_notice)


def _print_campaign_table(store: Store, tracker: CampaignTracker, form: str) -> None:
    rows = []
    for campaign in store.campaigns():
        try:
            jobs = tracker.refresh_jobs(campaign)
        except (BatchError, ConfigError) as error:  # show the other campaigns
            _print_notice(f"{campaign.id} may have changed since the last status: {error}")
            jobs = store.jobs(campaign.id)
        for line in tracker.upload_campaign(campaign):
            _print_notice(line)
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
    columns = (
        TableColumn("id", "campaign"),
        TableColumn("name", "name"),
        TableColumn("jobs", "jobs", format_counts),
        TableColumn("planned", "planned", is_number=True),
        TableColumn("collected", "collected", is_number=True),
    )
    print_rows(rows, columns, form=form)


def print_progress(
    tracker: CampaignTracker, campaign: CampaignRow, progress: CampaignCount, form: str
) -> None:
    """Print a campaign's progress, its obstacles and its failures."""
    if form == TABLE:
        click.echo(f"{campaign.name} ({campaign.id})")
    print_rows(list_progress_rows(progress), make_progress_columns(progress), form=form)
    if form == TABLE:
        click.echo(summarize_progress(progress))
    for note in tracker.describe_obstacles(campaign):
        _print_notice(note)
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


@click.command()
@click.argument("campaign", default="last", shell_complete=complete_campaigns)
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
            for line in (*lines, *tracker.upload_campaign(row, everything=True)):
                _print_notice(line)


def _print_collected(campaign: CampaignRow, collected: CollectResult) -> None:
    click.echo(
        f"{campaign.name}: {pluralize(collected.new, 'new measurement')}, {collected.existing} known"
    )
    for remark in collected.describe_rejections():
        click.echo(f"  {remark}", err=True)


@click.command()
@click.argument("campaign", shell_complete=complete_campaigns)
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
        for line in tracker.upload_campaign(row):
            _print_notice(line)


@click.command()
@click.argument("campaign", shell_complete=complete_campaigns)
@click.option(
    "--sites",
    default="",
    help="Only at these sites, comma separated.",
    shell_complete=complete_sites,
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
            for line in tracker.upload_campaign(row):
                _print_notice(line)
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


def campaigns_older_than(tracker: CampaignTracker, days: float) -> Iterator[CampaignRow]:
    """Yield campaigns of that age whose folders are no longer needed."""
    limit = time.time_ns() // 1000 - days * DAY_US
    for row in tracker.store.campaigns():
        if row.created_us <= limit and not retention_reason(tracker, row):
            yield row


def retention_reason(tracker: CampaignTracker, campaign: CampaignRow) -> str:
    """Collect the campaign, then explain why its folders are still needed; '' if they are not."""
    jobs = tracker.refresh_jobs(campaign)
    collected = tracker.collect_records(campaign)
    if not all(JobState(job.state).is_final for job in jobs):
        return f"jobs have not ended yet; see treehammer status {campaign.id}"
    if collected.conflicting:
        return collected.describe_rejections()[-1]
    for job in jobs:
        for sandbox in tracker.sandboxes(job).values():
            if (sandbox / REJECTED_FOLDER).is_dir():
                return f"rejected records wait for inspection in {sandbox / REJECTED_FOLDER}"
    return ""


def purge_campaign(tracker: CampaignTracker, campaign: CampaignRow, settings: Settings) -> int:
    """Remove an ended campaign from the batch systems and return the freed bytes.

    Jobs that an interrupted submission left cannot be queued afterwards.
    """
    StagedSubmissions(settings.submissions_dir).remove(campaign.id)
    jobs = tracker.store.jobs(campaign.id)
    freed = 0
    for name in sorted({job.batch_system for job in jobs}):
        if batch := tracker.find_batch_system(name, jobs):
            freed += batch.purge(
                [job.batch_id for job in jobs if job.batch_system == name and job.batch_id]
            )
    return freed


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
    for line in tracker.describe_unknown_batch_systems():
        print_hint(line, err=True)
    if not freed:
        raise NothingToDoError("nothing to remove")
    click.echo(f"{format_size(freed)} removed; the measurements are in the database")
