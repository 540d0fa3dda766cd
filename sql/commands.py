"""The verbs of the results database: ``export`` and ``db``."""

from __future__ import annotations

import functools
from pathlib import Path

import click
from sqlalchemy.engine import make_url

from treehammer.config import Settings
from treehammer.sql import migrate
from treehammer.sql.selection import Selection
from treehammer.sql.store import Store, check_database, upgrade_database
from treehammer.terminal import Column, counted, leaving, output_options, print_rows, progress_bar


@click.command("export")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--campaign",
    "campaigns",
    multiple=True,
    metavar="ID",
    help="Only this campaign: its id, name, a prefix of either, or 'last'. Repeatable.",
)
@click.option(
    "--where",
    "wheres",
    multiple=True,
    metavar="CONDITION",
    help="Only rows that meet it: COLUMN=VALUE, or one of != < <= > >= and ~ (a pattern with "
    "* and ?). An empty value means 'not known'. Repeatable: all must hold.",
)
@click.pass_obj
@leaving("nothing half-made was written; the measurements are safe in the database")
def export_command(
    settings: Settings, file: Path, campaigns: tuple[str, ...], wheres: tuple[str, ...]
) -> None:
    """Write measurements to FILE: a TTree (.root), .csv or .parquet.

    Example: treehammer export results.root --campaign last --where plausible=true
    """
    # Arrow takes a tenth of a second to load, which no other verb needs.
    from treehammer.sql.export import export

    with Store.open(settings.database, create=False) as store:
        selection = Selection.of((store.campaign(c).id for c in campaigns), wheres)
        rows = export(
            store,
            selection,
            file,
            software_dir=settings.software_dir,
            progress=functools.partial(progress_bar, "Exporting"),
        )
    click.echo(f"{counted(rows, 'measurement')} in {file}")


@click.group("db")
def db_group() -> None:
    """The results database: its state and its schema."""


@db_group.command("check")
@output_options
@click.pass_obj
def check_command(settings: Settings, form: str) -> None:
    """Check that the database is whole and of this version; count what it holds.

    Of SQLite every page, index and reference is checked; PostgreSQL's server watches over its own.
    Of both the roll-ups are compared with the measurements.

    Example: treehammer db check
    """
    rows = [{"table": t, "rows": n} for t, n in check_database(settings.database).items()]
    print_rows(rows, [Column("table", "table"), Column("rows", "rows", right=True)], form=form)


@db_group.command("upgrade")
@click.pass_obj
def upgrade_command(settings: Settings) -> None:
    """Bring the database to this version's schema, wholly or not at all.

    An SQLite file is backed up before. Of a PostgreSQL database make a backup yourself: pg_dump.

    Example: treehammer db upgrade
    """
    backup = upgrade_database(settings.database)
    if backup:
        click.echo(f"backup: {backup}")
    elif make_url(settings.database).get_backend_name() != "sqlite":
        click.echo("no backup was made: an upgrade that fails changes nothing")
    click.echo(f"the database is at revision {migrate.REVISION}")


@db_group.command("rebuild")
@click.pass_obj
def rebuild_command(settings: Settings) -> None:
    """Make the roll-ups again from the measurements.

    They are kept up to date with every measurement; 'db check' compares them.

    Example: treehammer db rebuild
    """
    with Store.open(settings.database, create=False) as store:
        store.remake_rollups()
    click.echo("the roll-ups are made again from the measurements")


@db_group.command("copy")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@output_options
@leaving("the database to fill is as it was before")
def copy_command(source: str, target: str, form: str) -> None:
    """Copy all results of the database FROM into TO, and compare every row of both.

    Both are URLs, as in the setting 'database'. TO is made when there is none. It must be empty;
    when it holds just these rows already, that is said and nothing is done. What is written to
    FROM meanwhile is not copied.

    Example: treehammer db copy sqlite:///results.db postgresql://me@host/results
    """
    from treehammer.sql.copying import copy_database

    counts, copied = copy_database(source, target, bars=progress_bar)
    rows = [{"table": t, "rows": n} for t, n in counts.items()]
    print_rows(rows, [Column("table", "table"), Column("rows", "rows", right=True)], form=form)
    what = "copied, every row compared" if copied else "every row was there already"
    click.echo(what, err=True)
