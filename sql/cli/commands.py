"""The verbs of the results database: ``export``, ``import`` and ``db``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from sqlalchemy.engine import make_url

from treehammer.config import Settings
from treehammer.errors import ConfigError, MeasurementFileError, NothingToDoError
from treehammer.sql.core import schema_upgrade
from treehammer.sql.core.database_setup import upgrade_database
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.database_check import check_database
from treehammer.sql.write.retention import first_kept_day
from treehammer.sql.write.store import Store
from treehammer.terminal import OutputColumn, on_interrupt, output_options, print_rows, progress_bar
from treehammer.text_formatting import pluralize

if TYPE_CHECKING:
    from treehammer.sql.transfer.importer import ImportResult

PASSES_HELP = (
    "The seconds of every single pass, of measurements older than this; their medians stay."
)
LOGS_HELP = "What payloads printed last, of measurements older than this."

#: Days; in a hundred years whoever means more can be told.
AGE_DAYS = click.IntRange(1, 36_500)


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
@click.option(
    "--partition",
    type=click.Choice(["campaign"]),
    help="FILE is a folder to make, with one file for each campaign.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "root", "csv"]),
    help="Of the files in that folder [default: what its name ends in, else parquet].",
)
@click.pass_obj
@on_interrupt("nothing half-made was written; the measurements are safe in the database")
def export_command(
    settings: Settings,
    file: Path,
    campaigns: tuple[str, ...],
    wheres: tuple[str, ...],
    partition: str | None,
    form: str | None,
) -> None:
    """Write measurements to FILE: a TTree (.root), .csv or .parquet.

    What was there of that name is replaced when everything is written. A TTree and Parquet also
    hold campaigns, jobs and attempts: all that another installation needs to import them.

    Example: treehammer export results.root --campaign last --where plausible=true

    Example: treehammer export results --partition campaign
    """
    # Arrow takes a tenth of a second to load, which no other verb needs.
    from treehammer.sql.transfer.export import export_file, export_partitions
    from treehammer.sql.transfer.file_writers import FORMATS

    if form and not partition:
        raise click.UsageError("--format is for --partition; the ending of a file's name tells it.")
    software = settings.software_dir
    with Store.open(settings.database, create=False) as store:
        selection = Selection.parse((store.campaign(c).id for c in campaigns), wheres)
        if not partition:
            rows = export_file(store, selection, file, software_dir=software, bars=progress_bar)
            click.echo(f"{pluralize(rows, 'measurement')} in {file}")
            return
        named = file.suffix.lower() if file.suffix.lower() in FORMATS else ".parquet"
        suffix = f".{form}" if form else named
        rows, parts = export_partitions(
            store, selection, file, suffix, software_dir=software, bars=progress_bar
        )
    click.echo(f"{pluralize(rows, 'measurement')} of {pluralize(parts, 'campaign')} in {file}")


@click.command("import")
@click.argument(
    "files", metavar="FILE...", type=click.Path(path_type=Path), nargs=-1, required=True
)
@click.option("--dry-run", is_flag=True, help="Only count what would be taken in.")
@click.option(
    "--ignore-unknown",
    is_flag=True,
    help="Leave out columns that this version does not know, instead of the file.",
)
@output_options
@click.pass_obj
@on_interrupt("what was taken in stays, and importing again takes in the rest")
def import_command(
    settings: Settings, files: tuple[Path, ...], dry_run: bool, ignore_unknown: bool, form: str
) -> None:
    """Take in measurements that another installation has exported; again and again is harmless.

    FILE is a TTree (.root), Parquet, or a folder of either, as 'treehammer export' writes them, with
    their campaigns, jobs and attempts. A measurement that is here already stays as it is.

    Example: treehammer import theirs.root --dry-run
    """
    from treehammer.sql.transfer.importer import collect_files, import_files, is_readable

    to_read = collect_files(files)
    # Where there is nothing to take in, no database is made either.
    with _open_import_store(
        settings, create=not dry_run and any(map(is_readable, to_read))
    ) as store:
        found = import_files(
            store, to_read, ignore_unknown=ignore_unknown, dry_run=dry_run, bars=progress_bar
        )
    print_rows([_import_row(each) for each in found], _IMPORT_COLUMNS, form=form)
    for each in found:
        for remark in each.describe_remarks():
            click.echo(remark, err=True)
    problems = tuple(problem for each in found for problem in each.problems)
    if problems:
        raise MeasurementFileError(
            "not everything could be taken in",
            where=str(files[0]) if len(files) == 1 else "",
            problems=problems,
        )


_IMPORT_COLUMNS = [
    OutputColumn("file", "file"),
    *(
        OutputColumn(name, name, align_right=True)
        for name in ("new", "known", "conflicting", "invalid", "campaigns")
    ),
]


def _import_row(done: ImportResult) -> dict[str, Any]:
    return {
        "file": str(done.file),
        "new": done.new,
        "known": done.known,
        "conflicting": done.conflicts,
        "invalid": done.invalid,
        "campaigns": done.campaigns,
    }


@contextmanager
def _open_import_store(settings: Settings, *, create: bool) -> Iterator[Store]:
    """The store; where none is to be made, and there is none yet, an empty one that goes."""
    try:
        store = Store.open(settings.database, create=create)
    except NothingToDoError:
        with (
            tempfile.TemporaryDirectory() as folder,
            Store.open(f"sqlite:///{folder}/empty.db") as empty,
        ):
            yield empty
        return
    with store:
        yield store


def _warn_untested_oracle(*urls: str) -> None:
    if any(url.startswith("oracle") for url in urls):
        click.echo(
            "note: Treehammer's developers have run this in H2's Oracle mode, and never on an Oracle "
            "server",
            err=True,
        )


@click.group("db")
def db_group() -> None:
    """The results database: its state and its schema."""


@db_group.command("check")
@output_options
@click.pass_obj
def check_command(settings: Settings, form: str) -> None:
    """Check that the database is whole and of this version; count what it holds.

    Of SQLite every page, index and reference is checked; servers watch over their own.
    Of all of them tables, columns and indexes are compared with those of this version, and the
    roll-ups with the measurements.

    Example: treehammer db check
    """
    _warn_untested_oracle(settings.database)
    rows = [{"table": t, "rows": n} for t, n in check_database(settings.database).items()]
    print_rows(
        rows,
        [OutputColumn("table", "table"), OutputColumn("rows", "rows", align_right=True)],
        form=form,
    )


@db_group.command("upgrade")
@click.option(
    "--backed-up",
    is_flag=True,
    help="There is a backup and nobody writes: Oracle, which cannot undo what an upgrade has "
    "changed, wants to hear that.",
)
@click.pass_obj
def upgrade_command(settings: Settings, backed_up: bool) -> None:
    """Bring the database to this version's schema, wholly or not at all.

    An SQLite file is backed up before. Of a PostgreSQL database make a backup yourself: pg_dump.
    Oracle commits every change of a table: make a backup by expdp; what was cut goes on when it is
    run again.

    Example: treehammer db upgrade
    """
    _warn_untested_oracle(settings.database)
    backup = upgrade_database(settings.database, backed_up=backed_up)
    name = make_url(settings.database).get_backend_name()
    if backup:
        click.echo(f"backup: {backup}")
    elif name not in ("sqlite", "oracle"):
        click.echo("no backup was made: an upgrade that fails changes nothing")
    click.echo(f"the database is at revision {schema_upgrade.REVISION}")


@db_group.command("rebuild")
@click.pass_obj
def rebuild_command(settings: Settings) -> None:
    """Make the roll-ups again from the measurements.

    They are kept up to date with every measurement; 'db check' compares them.

    Example: treehammer db rebuild
    """
    with Store.open(settings.database, create=False) as store:
        store.rebuild_rollups()
    click.echo("the roll-ups are made again from the measurements")


@db_group.command("prune")
@click.option("--passes-after", "passes", type=AGE_DAYS, metavar="DAYS", help=PASSES_HELP)
@click.option("--logs-after", "logs", type=AGE_DAYS, metavar="DAYS", help=LOGS_HELP)
@click.option("--dry-run", is_flag=True, help="Only tell what would go.")
@output_options
@click.pass_obj
@on_interrupt("what has gone so far stays gone, the rest is untouched")
def prune_command(
    settings: Settings, passes: int | None, logs: int | None, dry_run: bool, form: str
) -> None:
    """Take from old measurements what is large and soon of no use.

    Figures, histograms, failures, inventories, verdicts and roll-ups stay for good. A measurement
    that comes home once more is known as before. SQLite uses the room again; its file does not
    shrink.

    Example: treehammer db prune --passes-after 365 --logs-after 90 --dry-run
    """
    ages = {what: days for what, days in (("passes", passes), ("logs", logs)) if days}
    if not ages:
        raise ConfigError(
            "nothing to prune was named", hint="Give --passes-after DAYS or --logs-after DAYS."
        )
    with Store.open(settings.database, create=False) as store:
        act = store.prunable if dry_run else store.prune
        found = [act(what, first_kept_day(days)) for what, days in ages.items()]
    rows = [{**asdict(one), "before": f"{one.before}"} for one in found]
    columns = [
        OutputColumn("what", "what"),
        OutputColumn("before", "of days before"),
        OutputColumn("measurements", "measurements", align_right=True),
        OutputColumn("bytes", "bytes", align_right=True),
    ]
    print_rows(rows, columns, form=form)
    click.echo("nothing was changed: a dry run" if dry_run else "gone", err=True)


@db_group.command("copy")
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@output_options
@on_interrupt("the database to fill is as it was before")
def copy_command(source: str, target: str, form: str) -> None:
    """Copy all results of the database FROM into TO, and compare every row of both.

    Both are URLs, as in the setting 'database'. TO is made when there is none. It must be empty;
    when it holds just these rows already, that is said and nothing is done. What is written to
    FROM meanwhile is not copied.

    Example: treehammer db copy sqlite:///results.db postgresql://me@host/results
    """
    from treehammer.sql.transfer.database_copy import copy_database

    _warn_untested_oracle(source, target)
    counts, copied = copy_database(source, target, bars=progress_bar)
    rows = [{"table": t, "rows": n} for t, n in counts.items()]
    print_rows(
        rows,
        [OutputColumn("table", "table"), OutputColumn("rows", "rows", align_right=True)],
        form=form,
    )
    what = "copied, every row compared" if copied else "every row was there already"
    click.echo(what, err=True)
