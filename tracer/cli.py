"""``treehammer run``: any command measured from outside, alone or against another one."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import click

from treehammer.analysis.cli.result_commands import verbose_option
from treehammer.config import Settings
from treehammer.errors import ConfigError, ExitCode
from treehammer.sql.cli import open_store
from treehammer.submit.cli.comparison_commands import (
    measure_until_decided,
    sequential_options,
)
from treehammer.tables import TableColumn
from treehammer.terminal import (
    NAMES,
    TABLE,
    Block,
    CommandOutput,
    TextTable,
    on_interrupt,
    output_form,
    print_early,
    print_remarks,
    prints_rows,
    progress_bar,
)
from treehammer.text_formatting import format_significant, format_size
from treehammer.tracer.trace_summary import FILE_COLUMNS

if TYPE_CHECKING:
    from treehammer.sql.core.campaign_plan import SequentialPlan
    from treehammer.submit.planning.plan import Plan
    from treehammer.tables import Row
    from treehammer.tracer.command_test import CommandRequest

_VARIABLE = re.compile(r"[A-Za-z_]\w*")
#: Files of a table on the terminal; ``--json`` has all that are recorded.
_SHOWN_FILES = 12
#: Characters of a command, or of two, which are settings of their test.
_MAX_COMMAND = 99_000
#: Longer commands are cut in sentences.
_NAME_LENGTH = 40

_SIDE_COLUMNS = (
    TableColumn("side", "side"),
    TableColumn("peak_bytes", "memory", format_size, is_number=True),
    TableColumn("threads_idle", "idle threads", format_significant, is_number=True),
    TableColumn("files_read", "files", is_number=True),
    TableColumn("read_calls", "reads", "{:,}".format, is_number=True),
    TableColumn("bytes_read", "read", format_size, is_number=True),
    TableColumn("bytes_touched", "of these distinct", format_size, is_number=True),
)


@click.command("run")
@click.argument("command", nargs=-1, metavar="[--] [COMMAND]...")
@click.option("--a", "a", default="", metavar="COMMAND", help="Command to compare with.")
@click.option("--b", "b", default="", metavar="COMMAND", help="Command that is compared.")
@click.option(
    "--root",
    "releases",
    type=NAMES,
    default="",
    metavar="A,B",
    help="ROOT releases to run COMMAND with, as on the axis root [default: your environment].",
)
@click.option(
    "--env-a", multiple=True, metavar="NAME=VALUE", help="Variable of side A; repeatable."
)
@click.option(
    "--env-b", multiple=True, metavar="NAME=VALUE", help="Variable of side B; repeatable."
)
@click.option(
    "--prepare", default="", metavar="COMMAND", help="Run before each run, which is not measured."
)
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="CPUs that COMMAND uses; with 1, both sides of a comparison run on one core.",
)
@click.option(
    "--runs",
    type=click.IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="Counted runs of a single command; the first of several is recorded and not counted.",
)
@click.option("--name", default="", help="Display name of the campaign.")
@sequential_options
@verbose_option
@prints_rows(*FILE_COLUMNS, keys="those of 'treehammer compare' in a comparison")
@click.pass_obj
def run_command(
    settings: Settings,
    command: tuple[str, ...],
    a: str,
    b: str,
    releases: tuple[str, ...],
    env_a: tuple[str, ...],
    env_b: tuple[str, ...],
    prepare: str,
    threads: int,
    runs: int,
    name: str,
    max_launches: int,
    delta: float,
    verbose: bool,
) -> CommandOutput | int:
    """Measure any command from outside, or compare two by turns until it is decided.

    Records CPU, memory and threads of its processes, and which bytes of which files they read, in
    which order and how often; of ROOT files also the branches. The command is not changed, but its
    standard input is empty; it needs no test.toml. A comparison is of two commands (--a, --b), of
    COMMAND with two ROOT releases, or in two environments; a run counts as one event. Exits with 1 if
    a command fails, whatever its own code, or if B is slower than A by more than --delta.

    \b
    Example: treehammer run -- python analysis.py
             treehammer run --a 'hadd -f out.root a.root' --b 'hadd -f -j 2 out.root a.root'
             treehammer run --root 6.38.00,6.40.00 -- python analysis.py
             treehammer run --env-a OMP_NUM_THREADS=1 --env-b OMP_NUM_THREADS=4 -- ./reader
    """
    from treehammer.submit.campaigns.campaign_request import plan_request
    from treehammer.submit.planning.submission_options import CampaignRequest, SubmissionOptions
    from treehammer.submit.tools.local_comparison import parse_sequential_plan
    from treehammer.tracer.command_test import NO_ROOT, CommandRequest, written_test

    _check_releases(releases)
    request = CommandRequest(
        _choose_commands(command, a, b),
        releases or (NO_ROOT,),
        _parse_environments(env_a, env_b),
        Path.cwd(),
        prepare,
        threads,
        runs,
    )
    if request.compared_axis and runs > 1:
        raise ConfigError("a comparison runs until it is decided", where="--runs")
    sequential = parse_sequential_plan(max_launches, delta)
    on_wait = partial(print_remarks, ["Waiting for another run of this command."])
    with written_test(request, settings.data_dir / "commands", on_wait=on_wait) as folder:
        options = SubmissionOptions(use_service=False)
        with on_interrupt("nothing was submitted"):
            campaign = CampaignRequest(str(folder), name=name, options=options)
            plan = plan_request(campaign, settings, bars=progress_bar)
        if request.compared_axis:
            return _compare(plan, request, sequential, settings, verbose=verbose)
        return _measure(plan, settings)


def _choose_commands(command: Sequence[str], a: str, b: str) -> tuple[str, ...]:
    if bool(a.strip()) != bool(b.strip()):
        raise ConfigError("a comparison of commands needs both", where="--a, --b")
    if a and command:
        raise ConfigError("the commands are those of --a and --b", where=shlex.join(command))
    if not a.strip() and not "".join(command).strip():
        raise ConfigError(
            "there is no command", hint="Write it after --: treehammer run -- python analysis.py"
        )
    # A single word that names no program may be a line for a shell.
    is_line = len(command) == 1 and not shutil.which(command[0])
    commands = (a, b) if a else (command[0] if is_line else shlex.join(command),)
    length = sum(map(len, commands))
    if length > _MAX_COMMAND:
        raise ConfigError(
            f"the {'commands have' if a else 'command has'} {length:,} characters "
            f"(expected at most {_MAX_COMMAND:,})",
            hint="Let a shell expand its names, as in 'hadd out.root *.root', or write a script.",
        )
    return commands


def _check_releases(releases: Sequence[str]) -> None:
    from treehammer.collectors.software.providers import parse_software_request

    for release in releases:
        try:
            parse_software_request(release)
        except ValueError as error:
            raise ConfigError(str(error), where="--root") from error


def _parse_environments(*sides: Sequence[str]) -> tuple[Mapping[str, str], ...]:
    if not any(sides):
        return ()
    for text in (text for side in sides for text in side):
        name, equal, _ = text.partition("=")
        if not equal or not _VARIABLE.fullmatch(name):
            raise ConfigError("expected NAME=VALUE", where=f"--env-a, --env-b: {text}")
    return tuple(dict(text.split("=", 1) for text in side) for side in sides)


def _measure(plan: Plan, settings: Settings) -> CommandOutput:
    """Run a single command; return its files, with sentences on its processes."""
    from treehammer.submit.campaigns.campaign_outcome import describe_groups, summarize_failures
    from treehammer.submit.campaigns.campaign_polling import make_tracker, wait_for_campaign
    from treehammer.submit.campaigns.submission import submit_plan
    from treehammer.submit.cli.campaign_output import rate_progress
    from treehammer.submit.tools.read_session import cancel_on_interrupt
    from treehammer.tracer.trace_summary import describe_run, list_files, parse_trace

    with on_interrupt("the command was ended"), cancel_on_interrupt(settings, plan.campaign_id):
        campaign = submit_plan(plan, settings)
        progress = wait_for_campaign(campaign, settings, progress_bar)
    with open_store(settings) as store:
        rows = _load_rows(store, campaign.id)
        groups = summarize_failures(store, campaign)
        failures = [*describe_groups(make_tracker(store, settings), groups)]
    files = [file for row in rows for file in list_files(parse_trace(row))]
    sentences = [text for row in rows for text in describe_run(row, parse_trace(row))]
    times = [
        f"{row['passes_counted']} runs: {format_significant(row['cpu_per_event_s'])} s of CPU and "
        f"{format_significant(row['wall_per_event_s'])} s each, in the median."
        for row in rows
        if (row["passes_counted"] or 0) > 1
    ]
    return CommandOutput(
        files if output_form() != TABLE else files[:_SHOWN_FILES],
        None if files else (),
        below=[*times, *sentences],
        notes=[*failures, f"Kept: treehammer summary --campaign {campaign.id}"],
        exit_code=rate_progress(progress),
    )


def _load_rows(store: Any, campaign_id: str) -> list[Row]:
    """Load the timed executions of a campaign with what was recorded of them."""
    from treehammer.collectors.job_spec import TIMED
    from treehammer.sql.read.query_model import Selection
    from treehammer.tracer.trace_summary import TRACE_COLUMNS

    columns = (*TRACE_COLUMNS, "variant", "cpu_per_event_s", "wall_per_event_s", "passes_counted")
    return [*store.measurements(Selection.parse([campaign_id], [f"kind={TIMED}"]), columns)]


def _compare(
    plan: Plan,
    request: CommandRequest,
    sequential: SequentialPlan,
    settings: Settings,
    *,
    verbose: bool,
) -> ExitCode:
    """Compare two sides until it is decided; print the verdict and what each side did."""
    from treehammer.tracer.command_test import SIDES
    from treehammer.tracer.kit.treehammer_tracer.command_payload import COMMAND_AXIS

    names = {
        side: f"{side} ({shorten(command, _NAME_LENGTH, placeholder=' …')})"
        for side, command in zip(SIDES, request.commands, strict=False)
        if request.compared_axis == COMMAND_AXIS
    }
    code = measure_until_decided(plan, sequential, settings, names, verbose=verbose)
    with open_store(settings) as store:
        rows = _load_rows(store, plan.campaign_id)
    print_early(*describe_sides(rows, request.compared_axis))
    return code


def describe_sides(rows: Sequence[Row], axis: str) -> Sequence[Block]:
    """Describe the sides of a comparison: one recorded run of each, and its gaps."""
    from treehammer.hctests.definition.model import parse_axes
    from treehammer.tracer.trace_summary import parse_trace

    rows_by_side: dict[str, Row] = {}
    for row in rows:
        if row["cpu_per_event_s"] is not None:
            rows_by_side.setdefault(str(parse_axes(str(row["variant"]))[axis]), row)
    sides = [
        {**row, "side": name, "peak_bytes": parse_trace(row).get("peak_bytes")}
        for name, row in sorted(rows_by_side.items())
    ]
    gaps = [
        f"Not known of {side['side']}: {side['file_reads_missing']}."
        for side in sides
        if side["file_reads_missing"]
    ]
    return ["", TextTable(sides, _SIDE_COLUMNS), *gaps] if sides else []
