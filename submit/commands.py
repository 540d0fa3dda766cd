"""``treehammer submit`` and what follows it: ``status``, ``collect``, ``cancel``; ``render``."""

from __future__ import annotations

import functools
import shutil
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.filesize import decimal

from treehammer.config import Settings
from treehammer.errors import ConfigError, ExitCode, NothingToDo
from treehammer.hctests.options import definition_options
from treehammer.sql.rows import CampaignRow
from treehammer.sql.store import Store
from treehammer.submit import campaign as campaigns
from treehammer.submit.batch.base import Description, JobState
from treehammer.submit.batch.spool import stage
from treehammer.submit.plan import Plan
from treehammer.submit.purge import purge
from treehammer.submit.render import JOB_NAME, describe
from treehammer.submit.site_commands import sites
from treehammer.submit.tracking import Collected, Progress, Tracker
from treehammer.submit.troubles import Trouble, troubles
from treehammer.terminal import (
    TABLE,
    Column,
    counted,
    leaving,
    output_options,
    print_rows,
    progress_bar,
)

#: Kinds of trouble that are told on a terminal.
TROUBLES = 5


def request_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The argument and options that say what to run; the verb receives ``request``."""

    @click.argument("spec")
    @click.option("--sites", default="local", show_default=True, help="Sites, comma separated.")
    @click.option("--name", default="", help="Display name of the campaign.")
    @definition_options
    @functools.wraps(function)
    def wrapper(
        *args: Any,
        spec: str,
        sites: str,
        name: str,
        axes: Mapping[str, tuple[str, ...]],
        overrides: Mapping[str, str],
        **kwargs: Any,
    ) -> Any:
        names = tuple(part.strip() for part in sites.split(",") if part.strip())
        if not names:
            raise ConfigError("no site is named", where="--sites", hint="Try --sites local.")
        request = campaigns.Request(spec, axes, overrides, names, name)
        return function(*args, request=request, **kwargs)

    return wrapper


def _duration(value: float) -> str:
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def _counts(value: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in value.items()) or "–"


@click.command()
@request_options
@click.option("--dry-run", is_flag=True, help="Print the plan; fetch, store and submit nothing.")
@click.option("--wait", is_flag=True, help="Wait for the jobs and collect their measurements.")
@output_options
@click.pass_obj
def submit(
    settings: Settings, request: campaigns.Request, dry_run: bool, wait: bool, form: str
) -> ExitCode:
    """Run a test: plan its jobs, prepare what they need, and submit them.

    With --wait, leaves with 1 when anything failed or cannot be true.

    Example: treehammer submit ttree-read -P cache_mb=0,30 --wait
    """
    with leaving("nothing was submitted"):
        plan = campaigns.plan_request(request, settings, fetch=not dry_run, bars=progress_bar)
        _print_plan(plan, settings, form)
        if dry_run:
            return ExitCode.DONE
    with leaving(lambda: campaigns.after_interrupt(plan, settings)):
        campaign = campaigns.submit_plan(plan, settings)
        if form == TABLE:
            click.echo(f"Submitted as {campaign.id} ({campaign.name})")
        if not wait:
            if form == TABLE:
                click.echo(f"  treehammer status {campaign.id} --follow")
                click.echo(f"  treehammer collect {campaign.id}")
            return ExitCode.DONE
        progress = campaigns.wait(campaign, settings, progress_bar)
        if form == TABLE:
            _print_progress(campaign, progress, form)
            with Store.open(settings.database) as store:
                _print_troubles(troubles(store, campaign))
    return ExitCode.REGRESSION if any(progress.failures.values()) else ExitCode.DONE


def _print_plan(plan: Plan, settings: Settings, form: str) -> None:
    costs = campaigns.costs_of(plan, settings)
    rows = [{"campaign": plan.campaign_id, "name": plan.campaign_name} | asdict(c) for c in costs]
    columns = (
        Column("site", "site"),
        Column("jobs", "jobs", right=True),
        Column("measurements", "measurements", right=True),
        Column("read_bytes", "reads", decimal, right=True),
        Column("wall_s", "wall time in one slot", _duration, right=True),
        Column("cpu_s", "CPU time", _duration, right=True),
        Column("basis", "times are"),
    )
    if form == TABLE:
        click.echo(plan.campaign_name)
    print_rows(rows, columns, form=form)
    for note in plan.notes:
        click.echo(note, err=True)


@click.command()
@request_options
@click.option("--full", is_flag=True, help="Print the job.json of each job too.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write each job into a new folder instead, with all that would be sent.",
)
@click.pass_obj
def render(settings: Settings, request: campaigns.Request, full: bool, output: Path | None) -> None:
    """Show exactly what would be sent to the batch system.

    In a folder made with -o each job runs by itself:
    cd FOLDER/1/inputs && python worker.pyz run job.json

    Example: treehammer render ttree-read -o rendered
    """
    plan = campaigns.plan_request(request, settings, fetch=False, bars=progress_bar)
    for note in plan.notes:
        click.echo(note, err=True)
    with tempfile.TemporaryDirectory(prefix="treehammer-") as folder:
        descriptions = describe(plan, Path(folder))
        if output is not None:
            _write_rendered(descriptions, output)
            return
        for description in descriptions:
            click.echo(description.text)
            if full:
                click.echo(description.inputs[JOB_NAME].read_text(encoding="utf-8"))
            description.inputs[JOB_NAME].unlink()


def _write_rendered(descriptions: Iterable[Description], output: Path) -> None:
    try:
        output.mkdir(parents=True)
    except FileExistsError as error:
        raise ConfigError("exists already", where=str(output), hint="Name a new folder.") from error
    except OSError as error:
        raise ConfigError(f"cannot be written ({error.strerror})", where=str(output)) from error
    try:
        number = 0
        for number, description in enumerate(descriptions, start=1):
            stage(description, output / str(number))
            description.inputs[JOB_NAME].unlink()
    except BaseException as error:
        shutil.rmtree(output, ignore_errors=True)
        if isinstance(error, OSError):
            raise ConfigError(f"cannot be written ({error.strerror})", where=str(output)) from error
        raise
    click.echo(f"{counted(number, 'job')} in {output}")


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
        tracker = campaigns.tracker_for(store, settings)
        if campaign is None and not follow:
            _print_campaigns(store, tracker, form)
            return
        row = store.campaign(campaign or "last")
        with leaving(lambda: campaigns.how_it_stands(tracker, row)):
            if follow:
                with progress_bar("Measuring", row.planned_measurements) as step:
                    progress = campaigns.follow(tracker, row, step)
            else:
                progress = tracker.look(row)
        _print_progress(row, progress, form)
        for note in tracker.notes(row):
            click.echo(note, err=True)
        if form == TABLE:
            _print_troubles(troubles(store, row))


def _print_campaigns(store: Store, tracker: Tracker, form: str) -> None:
    rows = []
    for campaign in store.campaigns():
        jobs = tracker.refresh(campaign)
        counts = Counter(job.state for job in jobs)
        recorded = sum(row.measurements for row in store.counts(campaign.id))
        rows.append(
            {
                "id": campaign.id,
                "name": campaign.name,
                "jobs": {s.value: counts[s.value] for s in JobState if counts[s.value]},
                "planned": campaign.planned_measurements,
                "collected": recorded,
            }
        )
    if not rows:
        raise NothingToDo("there are no campaigns yet", hint="Start one: treehammer submit")
    columns = (
        Column("id", "campaign"),
        Column("name", "name"),
        Column("jobs", "jobs", _counts),
        Column("planned", "planned", right=True),
        Column("collected", "collected", right=True),
    )
    print_rows(rows, columns, form=form)


def _print_progress(campaign: CampaignRow, progress: Progress, form: str) -> None:
    rows = [
        {"site": site, **{state.value: states.get(state.value, 0) for state in JobState}}
        | {"failures": dict(progress.failures.get(site, {}))}
        for site, states in progress.states.items()
    ]
    shown = [s.value for s in JobState if s is not JobState.HELD or any(r["held"] for r in rows)]
    columns = (
        Column("site", "site"),
        *(Column(state, state, right=True) for state in shown),
        Column("failures", "failed", _counts),
    )
    if form != TABLE:
        print_rows(rows, columns, form=form)
        return
    click.echo(f"{campaign.name} ({campaign.id})")
    print_rows(rows, columns)
    left = progress.remaining_s
    end = "" if left is None else f", about {_duration(left)} to go at the pace so far"
    click.echo(f"{progress.done} of {progress.planned} measurements are over{end}")


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
        tracker = campaigns.tracker_for(store, settings)
        row = store.campaign(campaign)
        with leaving("what was taken in stays, and the next collect takes in the rest"):
            tracker.refresh(row)
            _print_collected(row, tracker.collect(row))


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
        tracker = campaigns.tracker_for(store, settings)
        row = store.campaign(campaign)
        with leaving(f"jobs may still be ending. Look: treehammer status {row.id}"):
            count = tracker.cancel(row)
        if not count:
            raise NothingToDo("every job is final already", where=row.name)
        click.echo(f"{row.name}: {counted(count, 'job')} cancelled")
        _print_collected(row, tracker.collect(row))


COMMANDS = (submit, status, collect, cancel, purge, render, sites)
