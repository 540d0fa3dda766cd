"""The command group ``db``: check, upgrade, prune and copy the results database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

import click
from sqlalchemy.engine import make_url

from treehammer.config import Settings
from treehammer.errors import ConfigError
from treehammer.sql.cli.quarantine_commands import add_quarantine_commands
from treehammer.sql.setup import schema_upgrade
from treehammer.sql.setup.database_setup import upgrade_database
from treehammer.sql.write.database_check import check_database
from treehammer.sql.write.retention import first_kept_day
from treehammer.sql.write.store import Store
from treehammer.tables import TableColumn
from treehammer.terminal import on_interrupt, output_options, print_rows, progress_bar

# Days. The upper limit catches ages in other units.
_AGE_DAYS = click.IntRange(1, 36_500)


def _warn_untested_oracle(*urls: str) -> None:
    if any(url.startswith("oracle") for url in urls):
        click.echo(
            "note: Oracle support is tested with H2's Oracle mode only, never on an Oracle server",
            err=True,
        )


def _print_table_counts(counts: Mapping[str, int], form: str) -> None:
    rows = [{"table": table, "rows": number} for table, number in counts.items()]
    columns = [TableColumn("table", "table"), TableColumn("rows", "rows", is_number=True)]
    print_rows(rows, columns, form=form)


@click.group("db")
def db_group() -> None:
    """Inspect, upgrade, prune and copy the results database."""


@db_group.command("check")
@output_options
@click.pass_obj
def check_command(settings: Settings, form: str) -> None:
    """Check that the database is intact and of this version; count its rows.

    On SQLite every page, index and reference is checked; servers do this themselves. On all backends
    tables, columns and indexes are compared with those of this version, and the roll-ups with the
    measurements.

    Example: treehammer db check
    """
    _warn_untested_oracle(settings.database)
    _print_table_counts(check_database(settings.database), form)


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

    An SQLite file is backed up first. Back up PostgreSQL databases yourself: pg_dump. Oracle commits
    each change of a table: make a backup with expdp; run an interrupted upgrade again to continue it.

    Example: treehammer db upgrade
    """
    _warn_untested_oracle(settings.database)
    backup = upgrade_database(settings.database, backed_up=backed_up)
    backend = make_url(settings.database).get_backend_name()
    if backup:
        click.echo(f"backup: {backup}")
    elif backend not in ("sqlite", "oracle"):
        click.echo("no backup was made: a failed upgrade changes nothing")
    click.echo(f"the database is at revision {schema_upgrade.REVISION}")


@db_group.command("rebuild")
@click.pass_obj
def rebuild_command(settings: Settings) -> None:
    """Recompute the roll-ups from the measurements.

    Normally every new measurement updates them; 'db check' compares both.

    Example: treehammer db rebuild
    """
    with Store.open(settings.database, create=False) as store:
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
@output_options
@click.pass_obj
@on_interrupt("deleted data stays deleted; the rest is unchanged")
def prune_command(
    settings: Settings,
    passes: int | None,
    logs: int | None,
    operations: int | None,
    dry_run: bool,
    form: str,
) -> None:
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
    with Store.open(settings.database, create=False) as store:
        prune = store.prunable if dry_run else store.prune
        results = [prune(name, first_kept_day(days)) for name, days in ages.items()]
    rows = [{**asdict(result), "before_day": f"{result.before_day}"} for result in results]
    columns = [
        TableColumn("category", "category"),
        TableColumn("before_day", "before"),
        TableColumn("measurements", "measurements", is_number=True),
        TableColumn("bytes", "bytes", is_number=True),
    ]
    print_rows(rows, columns, form=form)
    click.echo("dry run: nothing was changed" if dry_run else "deleted", err=True)


@db_group.command("copy")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@output_options
@on_interrupt("the target database is unchanged")
def copy_command(source: str, target: str, form: str) -> None:
    """Copy all results of the database FROM into TO, and compare every row of both.

    Both are URLs, as in the setting 'database'. TO is created if missing and must be empty; if it
    holds exactly these rows already, nothing is done. Rows added to FROM meanwhile are not copied.

    Example: treehammer db copy sqlite:///results.db postgresql://me@host/results
    """
    from treehammer.sql.transfer.database_copy import copy_database

    _warn_untested_oracle(source, target)
    counts, copied = copy_database(source, target, bars=progress_bar)
    _print_table_counts(counts, form)
    click.echo("copied and compared every row" if copied else "all rows were present", err=True)


add_quarantine_commands(db_group)
