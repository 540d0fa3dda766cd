"""The command group ``db``: check, upgrade, back up, prune, copy, quarantine and audit the results database."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treehammer.collectors.record.day_numbers import current_us
from treehammer.config import Settings, mask_password
from treehammer.errors import ConfigError, NothingToDoError, StoreError
from treehammer.sql.cli import open_store, pass_store
from treehammer.tables import TableColumn, hidden_columns
from treehammer.terminal import (
    CAMPAIGN,
    CSV,
    JSON,
    TIME,
    CommandOutput,
    PathType,
    add_options,
    on_interrupt,
    output_form,
    print_hint,
    prints_rows,
    progress_bar,
)
from treehammer.text_formatting import format_size, format_time, pluralize

if TYPE_CHECKING:
    from treehammer.sql.core.rows import AuditRow
    from treehammer.sql.write.store import Store

#: Seconds between two looks for new entries.
POLL_S = 2.0
#: Entries shown before new ones when following.
SHOWN_BEFORE = 10
#: Seconds for which clocks of services and a slow transaction may delay an entry.
_LATE_US = 120_000_000
_TABLE_COLUMNS = (TableColumn("table", "table"), TableColumn("rows", "rows", is_number=True))
_PRUNE_COLUMNS = (
    TableColumn("category", "category"),
    TableColumn("before_day", "before"),
    TableColumn("measurements", "measurements", is_number=True),
    TableColumn("bytes", "bytes", is_number=True),
)
_SCOPE_COLUMNS = (
    TableColumn("campaign_id", "campaign"),
    TableColumn("site", "site"),
    TableColumn("measurements", "measurements", is_number=True),
)
_AUDIT_COLUMNS = (
    TableColumn("changed_us", "time (UTC)", format_time),
    TableColumn("action", "action"),
    TableColumn("actor", "by"),
    TableColumn("scope", "subject"),
    TableColumn("reason", "reason"),
    TableColumn("measurements", "number", is_number=True),
    *hidden_columns("id"),
)
# Days. The upper limit catches ages in other units.
_AGE_DAYS = click.IntRange(1, 36_500)


@click.group("db")
def db_group() -> None:
    """Inspect, back up, upgrade, prune and copy the results database."""


def _warn_untested_oracle(*urls: str) -> None:
    if any(url.startswith("oracle") for url in urls):
        click.echo(
            "note: Oracle support was never run on an Oracle server",
            err=True,
        )


def _list_tables(counts: Mapping[str, int]) -> list[dict[str, Any]]:
    return [{"table": table, "rows": number} for table, number in counts.items()]


@db_group.command("check")
@prints_rows(*_TABLE_COLUMNS)
@click.pass_obj
def check_command(settings: Settings) -> list[dict[str, Any]]:
    """Check that the database is intact and of this version; count its rows.

    On SQLite every page, index and reference is checked; servers do this themselves. On all backends
    tables, columns and indexes are compared with those of this version, and packed values are read.

    Example: treehammer db check
    """
    from treehammer.sql.write.maintenance import check_database

    _warn_untested_oracle(settings.database)
    return _list_tables(check_database(settings.database))


@db_group.command("upgrade")
@click.option(
    "--backed-up",
    is_flag=True,
    help="Confirm that a backup exists and no process writes. Required on Oracle, which cannot undo "
    "an upgrade.",
)
@click.pass_obj
def upgrade_command(settings: Settings, backed_up: bool) -> None:
    """Upgrade the database to this version's schema, completely or not at all.

    An SQLite file is backed up first. Back up PostgreSQL before, by pg_dump or 'db backup' of the old version.
    Oracle commits each change of a table: back up with expdp; run an interrupted upgrade again to continue it.

    Example: treehammer db upgrade
    """
    from treehammer.sql.engine import database_setup

    _warn_untested_oracle(settings.database)
    backup = database_setup.upgrade_database(settings.database, backed_up=backed_up)
    if backup:
        click.echo(f"backup: {backup}")
    elif settings.database.startswith("postgres"):
        click.echo("no backup was made: a failed upgrade changes nothing")
    click.echo(f"the database is at revision {database_setup.REVISION}")


@db_group.command("backup")
@click.argument("file", type=PathType(dir_okay=False))
@click.pass_obj
def backup_command(settings: Settings, file: Path) -> None:
    """Write the database to FILE, while services go on.

    SQLite is copied as one file, PostgreSQL by pg_dump. The backup holds everything that was
    acknowledged before it began, but not service.key, which is in the data folder.

    Example: treehammer db backup /backup/results-2026-11-28.db
    """
    from treehammer.sql.engine.database_backup import back_up_database

    back_up_database(settings.database, file)
    click.echo(f"backed up to {file} ({format_size(file.stat().st_size)})")


@db_group.command("recover")
@click.argument("file", type=PathType(dir_okay=False, exists=True))
@click.option(
    "--replace",
    is_flag=True,
    help="Replace the results in a PostgreSQL database that is not empty.",
)
@click.pass_obj
def recover_command(settings: Settings, file: Path, replace: bool) -> None:
    """Replace the content of the database by the backup FILE, completely or not at all.

    It is refused while a service or another command uses the database. A replaced SQLite database is
    kept beside it. Measurements since the backup come again with 'treehammer collect' and from jobs.

    Example: treehammer db recover /backup/results-2026-11-28.db
    """
    from treehammer.sql.engine import database_backup

    replaced = database_backup.recover_database(settings.database, file, replace=replace)
    if replaced:
        click.echo(f"the replaced database is kept in {replaced}")
    print_hint("recovered; check it: treehammer db check")


@db_group.command("restore", hidden=True, context_settings={"ignore_unknown_options": True})
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def restore_command(words: tuple[str, ...]) -> None:
    """Name the commands that have replaced this one of release 0.2.0.

    Example: treehammer db restore (is now: treehammer db unquarantine)
    """
    raise click.UsageError(
        "For measurements in quarantine: treehammer db unquarantine. For a backup: treehammer db recover FILE."
    )


@db_group.command("rebuild")
@pass_store
def rebuild_command(_settings: Settings, store: Store) -> None:
    """Recompute the roll-ups from the measurements.

    Every write of measurements does so for their days and series; this is for manual changes of tables.

    Example: treehammer db rebuild
    """
    store.rebuild_rollups()
    click.echo("the roll-ups were recomputed from the measurements")


@db_group.command("prune")
@click.option(
    "--passes-after",
    "passes",
    type=_AGE_DAYS,
    metavar="DAYS",
    help="Times of every single pass, in measurements older than this; their medians stay.",
)
@click.option(
    "--logs-after",
    "logs",
    type=_AGE_DAYS,
    metavar="DAYS",
    help="Last output of payloads, in measurements older than this.",
)
@click.option(
    "--operations-after",
    "operations",
    type=_AGE_DAYS,
    metavar="DAYS",
    help="Time steps of load tests, in measurements older than this; their totals and latencies stay.",
)
@click.option("--dry-run", is_flag=True, help="Only report the data to delete.")
@prints_rows(*_PRUNE_COLUMNS)
@click.pass_obj
@on_interrupt("deleted data stays deleted; the rest is unchanged")
def prune_command(
    settings: Settings,
    passes: int | None,
    logs: int | None,
    operations: int | None,
    dry_run: bool,
) -> CommandOutput:
    """Delete bulky columns of old measurements.

    Figures, histograms, failures, inventories, verdicts and roll-ups are kept. A pruned measurement
    that arrives again counts as a duplicate. SQLite reuses the space, but its file does not shrink.

    Example: treehammer db prune --passes-after 365 --logs-after 90 --dry-run
    """
    requested = {"passes": passes, "logs": logs, "operations": operations}
    ages = {name: days for name, days in requested.items() if days}
    if not ages:
        raise ConfigError(
            "no data to prune", hint="Give --passes-after, --logs-after or --operations-after DAYS."
        )
    from treehammer.sql.write.maintenance import first_kept_day

    with open_store(settings) as store:
        prune = store.prunable if dry_run else store.prune
        results = [prune(name, first_kept_day(days)) for name, days in ages.items()]
    return CommandOutput(
        results, remarks=["dry run: nothing was changed" if dry_run else "deleted"]
    )


@db_group.command("copy")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@prints_rows(*_TABLE_COLUMNS)
@on_interrupt("the target database is unchanged")
def copy_command(source: str, target: str) -> CommandOutput:
    """Copy all results of the database FROM into TO, and compare every row of both.

    Both are URLs, as in the setting 'database'. TO is created if missing and must be empty; if it
    holds exactly these rows already, nothing is done. Rows added to FROM meanwhile are not copied.

    Example: treehammer db copy sqlite:///results.db postgresql://me@host/results
    """
    from treehammer.sql.engine.backend import display_url
    from treehammer.sql.engine.database_engine import parse_url
    from treehammer.sql.transfer.database_copy import copy_database

    _warn_untested_oracle(source, target)
    try:
        counts, copied = copy_database(source, target, bars=progress_bar)
    except StoreError as error:  # its remedy must not act on the configured database
        url = source if error.where == display_url(parse_url(source)) else target
        option = shlex.join(["--database", mask_password(parse_url(url))])
        error.hint = error.hint.replace("treehammer db", f"treehammer {option} db")
        raise
    remark = "copied and compared every row" if copied else "all rows were present"
    return CommandOutput(_list_tables(counts), remarks=[remark])


def scope_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that select measurements; the command receives them as keywords."""
    return add_options(
        command,
        click.option(
            "--campaign", default="", type=CAMPAIGN, help="Measurements of this campaign."
        ),
        click.option("--key", default="", metavar="ID", help="Measurements sent with this key."),
        click.option(
            "--since",
            type=TIME,
            metavar="TIME",
            help="Measurements that began at TIME (UTC) or later.",
        ),
        click.option(
            "--until", type=TIME, metavar="TIME", help="Measurements that began before TIME (UTC)."
        ),
        click.option("--dry-run", is_flag=True, help="Only count the measurements."),
        prints_rows(*_SCOPE_COLUMNS),
    )


@db_group.command("quarantine")
@click.option("--reason", required=True, help="Shown with each measurement and in the audit trail.")
@scope_options
@click.pass_obj
def quarantine_command(settings: Settings, /, reason: str, **selected: Any) -> CommandOutput:
    """Mark measurements as implausible, so that they enter no figure, until they are taken out.

    All given conditions must hold. TIME is a date, or a date and a time: 2026-03-01T12:00.

    Example: treehammer db quarantine --key 4bc07c79b8b1 --reason "wrong clock" --dry-run
    """
    if not reason.strip() or not reason.isprintable():
        raise ConfigError("must be printable text", where="--reason")
    return _change(settings, "quarantine", "put into quarantine", selected, reason.strip())


@db_group.command("unquarantine")
@scope_options
@click.pass_obj
def unquarantine_command(settings: Settings, /, **selected: Any) -> CommandOutput:
    """Take measurements out of quarantine.

    Example: treehammer db unquarantine --key 4bc07c79b8b1
    """
    return _change(settings, "unquarantine", "taken out of quarantine", selected)


@db_group.command("delete")
@click.option(
    "--checks",
    is_flag=True,
    help="Delete the checks of replicas that --key sent, and take back their marks; measurements stay.",
)
@scope_options
@click.pass_obj
def delete_command(settings: Settings, /, checks: bool, **selected: Any) -> CommandOutput:
    """Delete measurements; with --campaign alone also the campaign and its jobs.

    Deleted measurements that arrive again are stored again: revoke the key or the campaign's tokens
    first. Stored verdicts stay. Back up the database before.

    Example: treehammer db delete --campaign 3f2a90c1d4e85b76 --dry-run
    """
    if not checks:
        return _change(settings, "delete", "deleted", selected)
    options = [name for name in ("campaign", "since", "until") if selected[name]]
    if not selected["key"] or options or selected["dry_run"]:
        raise click.UsageError("--checks needs --key, and no other option.")
    return _change(settings, "delete checks", "no longer marked", selected)


def _change(
    settings: Settings, action: str, outcome: str, selected: dict[str, Any], reason: str = ""
) -> CommandOutput:
    """Change the selected measurements by an action of :mod:`.maintenance`."""
    from treehammer.sql.read.campaign_queries import resolve_campaign
    from treehammer.sql.write import maintenance
    from treehammer.sql.write.audit_trail import local_actor

    with open_store(settings) as store:
        reference = selected["campaign"]
        campaign_id = resolve_campaign(store, reference) if reference else ""
        scope = maintenance.ChangeScope(
            campaign_id, selected["key"], selected["since"], selected["until"]
        )
        title = scope.describe()
        if not title:
            raise click.UsageError("Give --campaign, --key, --since or --until.")
        counts = store.count_scope(scope)
        if not counts and action != maintenance.DELETE_CHECKS:
            raise NothingToDoError(f"no measurements match {title}")
        if selected["dry_run"]:
            return CommandOutput(counts, remarks=["dry run: nothing was changed"])
        change = maintenance.DatabaseChange(
            action, scope, local_actor(), current_us(), reason, title
        )
        changed = store.apply_change(change)
    return CommandOutput(counts, remarks=[f"{pluralize(changed, 'measurement')} {outcome}"])


@db_group.command("audit")
@click.option(
    "--action", "actions", multiple=True, help="Only entries with this action; may be repeated."
)
@click.option(
    "--since", type=TIME, metavar="TIME", default=0, help="Only entries at TIME (UTC) or later."
)
@click.option("-f", "--follow", is_flag=True, help="Print new entries as they come, until Ctrl-C.")
@prints_rows(*_AUDIT_COLUMNS)
@click.pass_obj
def audit_command(
    settings: Settings, actions: tuple[str, ...], since: int, follow: bool
) -> list[AuditRow]:
    """List changes of recorded results, keys and sign-ins, and refused requests, newest first.

    With --follow the newest come last, one line each, with --json one object each.

    Example: treehammer db audit --action refuse --since 2026-03-01
    """

    if follow and output_form() == CSV:
        raise click.UsageError("--follow prints text or, with --json, objects, but no CSV.")

    def is_selected(entry: AuditRow) -> bool:
        return not actions or entry.action in actions

    with open_store(settings) as store:
        if follow:
            for entry in filter(is_selected, _follow_entries(store, since)):
                click.echo(_format_line(entry, output_form()))
        return list(filter(is_selected, store.list_changes(since)))


def _follow_entries(store: Store, since_us: int) -> Iterator[AuditRow]:
    """Yield the last entries, oldest first, then new ones forever."""
    entries = store.list_changes(since_us)[::-1]
    yield from entries if since_us else entries[-SHOWN_BEFORE:]
    time_by_id = {entry.id: entry.changed_us for entry in entries}
    while True:
        time.sleep(POLL_S)
        newest_us = max(time_by_id.values(), default=since_us)
        for entry in reversed(store.list_changes(max(newest_us - _LATE_US, since_us))):
            if entry.id not in time_by_id:
                yield entry
                time_by_id[entry.id] = entry.changed_us


def _format_line(entry: AuditRow, form: str) -> str:
    if form == JSON:
        return json.dumps(asdict(entry))
    cells = (format_time(entry.changed_us), entry.action, entry.actor, entry.scope, entry.reason)
    return "  ".join(filter(None, (*cells, str(entry.measurements or ""))))
