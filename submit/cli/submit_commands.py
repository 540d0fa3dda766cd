"""Commands ``treehammer submit`` and ``treehammer render``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treehammer.analysis.cli.result_commands import verbose_option
from treehammer.collectors.record.day_numbers import current_us
from treehammer.config import Settings
from treehammer.errors import ConfigError, ExitCode, StoreError
from treehammer.hctests.cli import definition_options
from treehammer.sql.cli import open_store
from treehammer.submit.cli.command_options import submission_click_options
from treehammer.submit.cli.comparison_commands import (
    print_local_verdict,
    print_planned_verdict,
    sequential_options,
)
from treehammer.tables import TableColumn, hidden_columns
from treehammer.terminal import (
    NAMES,
    SITE,
    TABLE,
    TEST,
    CommandOutput,
    PathType,
    on_interrupt,
    option_group,
    output_form,
    print_early,
    print_output,
    print_remarks,
    prints_rows,
    progress_bar,
)
from treehammer.text_formatting import format_duration, format_size, pluralize, split_list

if TYPE_CHECKING:
    from treehammer.sql.core.campaign_plan import SequentialPlan
    from treehammer.sql.core.rows import CampaignRow
    from treehammer.sql.write.store import Store
    from treehammer.submit.planning.plan import Plan
    from treehammer.submit.planning.submission_options import CampaignRequest, SubmissionOptions

_PLAN_COLUMNS = (
    TableColumn("site", "site"),
    TableColumn("storage_site", "storage"),
    TableColumn("jobs", "jobs", is_number=True),
    TableColumn("measurements", "measurements", is_number=True),
    TableColumn("read_bytes", "reads", format_size, is_number=True),
    TableColumn("wall_s", "wall time in one slot", format_duration, is_number=True),
    TableColumn("cpu_s", "CPU time", format_duration, is_number=True),
    TableColumn("reserved_s", "reserved", format_duration, is_number=True),
    TableColumn("basis", "times are"),
    *hidden_columns("campaign", "name"),
)


def _make_request(
    spec: str,
    sites: str,
    from_: tuple[str, ...],
    watches: tuple[str, ...],
    watch_at: tuple[str, ...],
    name: str,
    axes: Mapping[str, tuple[str, ...]],
    overrides: Mapping[str, str],
    options: SubmissionOptions,
) -> CampaignRequest:
    from treehammer.submit.planning.submission_options import CampaignRequest

    names = split_list(sites)
    if not names:
        raise ConfigError("no site given", where="--sites", hint="Try --sites local.")
    return CampaignRequest(spec, axes, overrides, names, from_, name, options, watches, watch_at)


#: Adds the arguments that describe a campaign; the command receives ``request``.
request_options = option_group(
    "request",
    _make_request,
    click.argument("spec", type=TEST),
    click.option(
        "--sites",
        type=SITE,
        default="local",
        show_default=True,
        help="Sites to test, comma separated: names, label:WORD or all.",
    ),
    click.option(
        "--from",
        "from_",
        type=NAMES,
        default="",
        metavar="SITES",
        help="Sites that run the jobs; each reads the storage of every site of --sites "
        "[default: each site reads its own].",
    ),
    click.option(
        "--watch",
        "watches",
        multiple=True,
        metavar="TEST",
        type=TEST,
        help="Test that watches servers during a load, e.g. server-watch or log-parse; repeatable. "
        "-S watch.KEY=VALUE sets its [settings].",
    ),
    click.option(
        "--watch-at",
        type=NAMES,
        default="",
        metavar="SITES",
        help="Sites whose jobs run on these servers.",
    ),
    click.option("--name", default="", help="Display name of the campaign."),
    definition_options,
    submission_click_options,
)


@click.command()
@request_options
@click.option(
    "--dry-run", is_flag=True, help="Print the plan only; fetch, store and submit nothing."
)
@click.option("--wait", is_flag=True, help="Wait for the jobs and collect their measurements.")
@click.option(
    "--until",
    type=click.Choice(["decided", "planned"]),
    help="End a comparison on this machine as soon as it is decided, or run every planned job "
    "[default: decided with --wait in paired mode, unless -S sets repeats or rounds].",
)
@sequential_options
@verbose_option
@prints_rows(*_PLAN_COLUMNS)
@click.pass_obj
def submit(
    settings: Settings,
    request: CampaignRequest,
    dry_run: bool,
    wait: bool,
    until: str | None,
    max_launches: int,
    delta: float,
    verbose: bool,
) -> int:
    """Run a test: plan its jobs, prepare their inputs, and submit them.

    With --wait a comparison in turns ends with its verdict, on this machine as soon as it is decided.
    The exit code is 1 if a measurement failed, is implausible or was lost, or if a limit in [[expect]]
    of test.toml is missed, and 3 if a limit could not be judged.

    \b
    Example: treehammer submit ttree-read -P cache_mb=0,30 --wait
             treehammer submit ttree-read -S mode=paired -P branches=1 -P cache_mb=30 --wait
    """
    from treehammer.submit.campaigns import campaign_request, job_reporting, submission
    from treehammer.submit.campaigns.campaign_polling import make_tracker
    from treehammer.submit.planning.cost_estimate import find_review
    from treehammer.submit.tools import local_comparison

    sequential = local_comparison.parse_sequential_plan(max_launches, delta)
    if until == "decided" and not wait:
        raise ConfigError("needs --wait", where="--until decided")
    with on_interrupt("nothing was submitted"):
        # Check first: jobs that cannot report need no downloads.
        print_remarks(job_reporting.check_service(settings, request.options))
        plan = campaign_request.plan_request(
            request, settings, bars=None if dry_run else progress_bar
        )
        ends_early = wait and local_comparison.ends_when_decided(plan, request, until)
        if ends_early:
            plan = plan.until_decided(sequential)
            plan = replace(plan, review=find_review(plan, settings))
        _print_plan(plan, settings)
        if ends_early:
            print_early(local_comparison.describe_looks(sequential))
        if dry_run:
            submission.try_submission(plan, settings)
            return ExitCode.DONE
    with (
        on_interrupt(lambda: submission.describe_interrupted_submission(plan, settings)),
        _naming_campaign(plan.campaign_id),
    ):
        if ends_early:
            return _run_until_decided(plan, sequential, settings, verbose=verbose)
        campaign = submission.submit_plan(plan, settings)
        print_early(f"Submitted as {campaign.id} ({campaign.name})")
        if wait:
            return _wait_for_results(plan, campaign, delta, settings, verbose=verbose)
        with open_store(settings, create=True) as store:
            print_remarks(make_tracker(store, settings).upload_campaign(campaign))
    print_early(
        f"  treehammer status {campaign.id} --follow", f"  treehammer collect {campaign.id}"
    )
    return ExitCode.DONE


@contextmanager
def _naming_campaign(campaign_id: str) -> Iterator[None]:
    """Name the campaign where the database refuses something: to repeat the command could double it."""
    try:
        yield
    except StoreError as error:
        hint = f"If it was submitted, it continues: treehammer status {campaign_id} --follow. Else: {error.hint}"
        raise StoreError(error.message, where=error.where, hint=hint) from error


def _wait_for_results(
    plan: Plan, campaign: CampaignRow, delta: float, settings: Settings, *, verbose: bool
) -> int:
    """Wait until all jobs have ended and print the results; return the exit code.

    Args:
        plan: plan of the campaign.
        campaign: the submitted campaign.
        delta: smallest relevant effect of a verdict.
        settings: all settings.
        verbose: whether to say how the verdict was reached.
    """
    from treehammer.submit.campaigns.campaign_polling import make_tracker
    from treehammer.submit.cli import campaign_output

    with open_store(settings, create=True) as store:
        tracker = make_tracker(store, settings)
        progress = campaign_output.follow_on_terminal(tracker, campaign)
        output = campaign_output.describe_progress(tracker, campaign, progress)
        print_planned_verdict(store, campaign, plan, delta, verbose=verbose)
        if output_form() == TABLE:
            print_output(output)
        limits_code = _check_limits(store, campaign)
    return output.exit_code or limits_code


def _run_until_decided(
    plan: Plan, sequential: SequentialPlan, settings: Settings, *, verbose: bool
) -> int:
    """Submit a comparison look by look, and print its verdict; return the exit code."""
    from treehammer.submit.cli import campaign_output
    from treehammer.submit.tools.local_comparison import run_until_decided

    display = campaign_output.make_display(to_stderr=True)
    verdict = run_until_decided(plan, sequential, settings, display)
    print_local_verdict(verdict, sequential, settings, verbose=verbose)
    with open_store(settings, create=True) as store:
        limits_code = _check_limits(store, verdict.campaign)
    return campaign_output.rate_progress(verdict.progress) or limits_code


def _check_limits(store: Store, campaign: CampaignRow) -> ExitCode:
    """Judge and print the limits that the test states; return the exit code."""
    if not campaign.plan.definition.expect:
        return ExitCode.DONE
    from treehammer.analysis.cli.comparison_output import print_limits
    from treehammer.analysis.comparison.limit_outcomes import judge_limits

    report = judge_limits(store, campaign, current_us())
    if output_form() == TABLE:
        click.echo()
        print_limits(report)
    return report.exit_code


def _print_plan(plan: Plan, settings: Settings) -> None:
    from treehammer.submit.planning.cost_estimate import find_review
    from treehammer.submit.planning.plan import sum_costs

    costs = find_review(plan, settings).costs
    unused = {
        "storage_site": all(cost.storage_site == cost.site for cost in costs),
        "reserved_s": all(cost.reserved_s == cost.wall_s for cost in costs),
    }
    rows = [{"campaign": plan.campaign_id, "name": plan.campaign_name} | asdict(c) for c in costs]
    if output_form() == TABLE and len(rows) > 1:
        rows.append(sum_costs(costs))
    load = plan.pinned_test.definition.load
    print_output(
        CommandOutput(
            rows,
            [column for column in _PLAN_COLUMNS if not unused.get(column.key)],
            above=[plan.campaign_name, *([f"load: {load.describe()}"] if load else [])],
            remarks=plan.notes,
        )
    )


@click.command()
@request_options
@click.option("--full", is_flag=True, help="Also print the job.json of each job.")
@click.option(
    "-o",
    "--output",
    type=PathType(file_okay=False),
    help="Write each job with all its inputs into a new folder instead.",
)
@prints_rows(*hidden_columns("batch", "jobs", "text"))
@click.pass_obj
def render(
    settings: Settings, request: CampaignRequest, full: bool, output: Path | None
) -> CommandOutput:
    """Show the files exactly as they would be sent to the batch system.

    In a folder made with -o each local job runs by itself:
    cd FOLDER/1/inputs && python worker.pyz run job.json; for an HTCondor pool use condor_submit with
    FOLDER/POOL/CAMPAIGN/*/submit.txt

    Example: treehammer render ttree-read -o rendered
    """
    from treehammer.submit.campaigns import job_rendering
    from treehammer.submit.campaigns.campaign_request import plan_request
    from treehammer.submit.campaigns.job_reporting import reporting_for_preview
    from treehammer.submit.planning.cost_estimate import find_review

    plan = plan_request(request, settings, bars=None)
    broken_rules = find_review(plan, settings).broken_rules
    print_remarks([*plan.notes, *(line for rule in broken_rules for line in rule.lines)])
    with tempfile.TemporaryDirectory(prefix="treehammer-") as folder:
        service = reporting_for_preview(settings, plan.options)
        descriptions = job_rendering.render_jobs(
            plan, Path(folder), service=service, slots=settings.local_slots
        )
        if output is not None:
            number = job_rendering.write_preview(plan, descriptions, settings, output)
            return CommandOutput(columns=(), notes=[f"{pluralize(number, 'job')} in {output}"])
        texts = job_rendering.render_preview(plan, descriptions, settings, full=full)
        if output_form() != TABLE:
            return CommandOutput(list(texts))
        for preview in texts:
            click.echo(preview.text)
    return CommandOutput(columns=())
