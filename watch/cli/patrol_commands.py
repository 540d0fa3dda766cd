"""Commands ``patrol run``, ``patrol check``, ``patrol status`` and ``patrol schema``."""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from treehammer.collectors.record.day_numbers import current_us
from treehammer.config import Settings
from treehammer.errors import ConfigError, NothingToDoError, TreehammerError
from treehammer.program_output import SystemdNotifier, log_to_stderr
from treehammer.tables import TableColumn, hidden_columns
from treehammer.terminal import SITE, CommandOutput, PathType, TextTable, prints_rows
from treehammer.text_formatting import (
    format_duration,
    format_size,
    format_time,
    pluralize,
)

if TYPE_CHECKING:
    from treehammer.watch.patrol.patrol_file import PatrolFile


def _join_or_dash(words: Sequence[str]) -> str:
    return ", ".join(words) or "–"


_FILE = click.argument("file", type=PathType(dir_okay=False))
#: Starts by time that ``check`` shows for each entry.
_SHOWN_STARTS = 3
_ENTRY_COLUMNS = (
    TableColumn("entry", "entry"),
    TableColumn("last", "last start (UTC)", format_time),
    TableColumn("reason", "by", lambda text: text.partition(":")[0]),
    TableColumn("next", "next start (UTC)", format_time),
    TableColumn("in_flight", "in flight", _join_or_dash),
    TableColumn("result", "last result", lambda text: text or "–"),
    TableColumn("note", "remark"),
    *hidden_columns("test", "follows", "sites", "campaign"),
)
_START_COLUMNS = (
    TableColumn("entry", "entry"),
    TableColumn("test", "test"),
    TableColumn("follows", "follows", lambda text: text or "–"),
    TableColumn("sites", "sites", ", ".join),
    TableColumn("from", "from", _join_or_dash),
    TableColumn(
        "next", "next starts (UTC)", lambda times: "\n".join(map(format_time, times)) or "–"
    ),
)
_SITE_COLUMNS = (
    TableColumn("site", "site"),
    TableColumn("cpu_used_s", "CPU used today", format_duration, is_number=True),
    TableColumn("cpu_left_s", "left", format_duration, is_number=True),
    TableColumn("bytes_used", "read today", format_size, is_number=True),
    TableColumn("bytes_left", "left", format_size, is_number=True),
    TableColumn("use", "use"),
    TableColumn("reason", "reason"),
)


@click.group()
def patrol() -> None:
    """Run tests by themselves, as a file says: by time, commit, tag and ROOT release."""


@patrol.command()
@_FILE
@click.option("--once", is_flag=True, help="Run one round and end; campaigns continue.")
@click.option(
    "--until",
    metavar="TIME",
    help="End after this time, e.g. 8h, or at a moment (UTC), e.g. 2026-11-24T06:00.",
)
@click.pass_obj
def run(settings: Settings, file: Path, once: bool, until: str | None) -> None:
    """Start the campaigns of FILE when they are due, and collect their results.

    Of several patrols on one database one leads; the others take over when it ends. Stop it with
    Ctrl-C or SIGTERM at any time: campaigns in flight continue, and the next patrol collects them.

    Example: treehammer patrol run patrol.toml --until 8h
    """
    from treehammer.watch.cli.site_status_commands import parse_end
    from treehammer.watch.patrol.patrol_service import open_patrol, run_patrol

    content = _read_file(file, settings)
    until_s = parse_end(until, current_us()) / 1e6 if until else None

    def wait() -> None:
        if once:
            raise NothingToDoError(
                "another patrol uses this data folder",
                hint="It starts due campaigns; see treehammer patrol status.",
            )
        logging.getLogger("treehammer.watch.patrol").info(
            "another patrol uses this data folder; waiting until it ends"
        )
        if until_s is not None:
            signal.signal(signal.SIGALRM, lambda *_: click.get_current_context().exit())
            signal.setitimer(signal.ITIMER_REAL, max(until_s - time.time(), 0.001))

    log_to_stderr(line_format=settings.log_format)
    notifier = SystemdNotifier.from_environment()
    notifier.notify("READY=1", "STATUS=opens the database")
    with (
        open_patrol(settings, content, on_wait=wait) as service,
        _stop_on_signals(notifier) as stop,  # before, a signal ends the wait at once
    ):
        signal.setitimer(signal.ITIMER_REAL, 0)
        if once:
            leads = service.run_round(stop.is_set)
            if not leads:
                click.echo("another patrol leads; nothing was started", err=True)
            return
        run_patrol(
            service, stop, until_s=until_s, report=lambda text: notifier.notify(f"STATUS={text}")
        )


def _read_file(file: Path, settings: Settings) -> PatrolFile:
    """Read a patrol file; refuse budgets of sites that are not in the sites file."""
    from treehammer.submit.sites.site_registry import load_sites
    from treehammer.watch.patrol.patrol_file import read_patrol_file

    content = read_patrol_file(file)
    SITE.require(content.budget.sites, load_sites(settings), f"{file}: budget.sites")
    return content


@contextmanager
def _stop_on_signals(notifier: SystemdNotifier) -> Iterator[threading.Event]:
    """Stop after the present step on SIGTERM or Ctrl-C; at once on a second Ctrl-C."""
    stop = threading.Event()

    def handle(number: int, _frame: FrameType | None) -> None:
        notifier.notify("STOPPING=1")
        if stop.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stop.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@patrol.command()
@_FILE
@prints_rows(*_START_COLUMNS)
@click.pass_obj
def check(settings: Settings, file: Path) -> CommandOutput:
    """Check FILE with its tests and sites, and show the next starts. Nothing is started.

    Example: treehammer patrol check patrol.toml
    """
    from treehammer.sql.write.store import Store
    from treehammer.watch.patrol.campaign_starts import list_next_starts
    from treehammer.watch.patrol.occasions import OccasionFinder

    content = _read_file(file, settings)
    finder = OccasionFinder(settings, content)
    rows, problems = [], []
    with ExitStack() as opened:
        store = None
        with suppress(NothingToDoError):  # no database yet
            store = opened.enter_context(Store.open(settings.database, create=False))
        for entry in content.entries.values():
            try:
                starts = list_next_starts(entry, content, finder, store, settings, _SHOWN_STARTS)
                rows.append(starts)
            except TreehammerError as error:
                problems.append(f"{entry.name}: {error}")
    if problems:
        raise ConfigError(
            pluralize(len(problems), "entry", "entries") + " cannot start",
            where=str(file),
            hint="\n  ".join(problems),
        )
    has_from = any(row["from"] for row in rows)
    columns = [column for column in _START_COLUMNS if has_from or column.key != "from"]
    return CommandOutput(rows, columns, below=[_describe_budget(content)])


def _describe_budget(content: PatrolFile) -> str:
    limits = content.budget.limit_uses()
    hours = (limits.cpu_s or 0.0) / 3600
    parts = [
        f"{hours:g} CPU hour{'s' if hours != 1 else ''}" if limits.cpu_s is not None else "",
        format_size(limits.bytes) if limits.bytes is not None else "",
    ]
    text = " and ".join(filter(None, parts)) or "unlimited"
    more = f"; own budgets: {', '.join(content.budget.sites)}" if content.budget.sites else ""
    return f"budget per site and day: {text}{more}"


@patrol.command()
@prints_rows(*_ENTRY_COLUMNS)
@click.pass_obj
def status(settings: Settings) -> CommandOutput:
    """Show leader, entries, campaigns in flight, and the budget used and left today (UTC).

    Example: treehammer patrol status
    """
    from treehammer.sql.read.reader import ResultsReader
    from treehammer.watch.states.site_status import list_uses
    from treehammer.watch.store.patrol_report import load_report

    with ResultsReader.open(settings.database) as reader:
        report, uses = load_report(reader), list_uses(reader)
    lease = report.lease
    if lease is None:
        raise NothingToDoError(
            "no patrol has run on this database", hint="Start one: treehammer patrol run FILE"
        )
    entries = [
        {
            "entry": entry.entry.name,
            "test": entry.entry.test,
            "follows": entry.entry.follows,
            "sites": entry.entry.sites,
            "last": entry.last.claimed_us if entry.last else None,
            "reason": entry.last.occasion if entry.last else None,
            "campaign": entry.last.campaign_id if entry.last else None,
            "next": entry.entry.next_us,
            "in_flight": list(entry.open_campaigns),
            "result": entry.result,
            "note": entry.entry.note,
        }
        for entry in report.entries
    ]
    sites = [
        {
            "site": site.site.site,
            "cpu_used_s": site.use.cpu_s,
            "cpu_left_s": site.cpu_left_s,
            "bytes_used": site.use.bytes,
            "bytes_left": site.bytes_left,
            "use": uses.summarize(site.site.site).value,
            "reason": uses.describe_restrictions(site.site.site),
        }
        for site in report.sites
    ]
    leader = f"no patrol is running; the last one was {lease.holder}"
    if report.has_leader:
        left_s = (lease.expires_us - report.now_us) / 1e6
        leader = f"leader: {lease.holder}, lease for {left_s:.0f} s"
    return CommandOutput(
        entries,
        above=[leader],
        below=["", TextTable(sites, _SITE_COLUMNS)],
        document=[
            {
                "leader": lease.holder if report.has_leader else None,
                "entries": entries,
                "sites": sites,
            }
        ],
    )


@patrol.command()
def schema() -> None:
    """Print the JSON Schema of patrol.toml, for editors.

    Example: treehammer patrol schema > patrol.schema.json
    """
    from treehammer.watch.patrol.patrol_file import build_patrol_schema

    click.echo(json.dumps(build_patrol_schema(), indent=1, sort_keys=True))
