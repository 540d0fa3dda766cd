"""Commands ``export`` and ``import``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treehammer.config import Settings
from treehammer.errors import ExitCode, MeasurementFileError, NothingToDoError
from treehammer.sql.cli import open_store
from treehammer.tables import TableColumn
from treehammer.terminal import (
    CAMPAIGN,
    CommandOutput,
    PathType,
    on_interrupt,
    print_output,
    prints_rows,
    progress_bar,
)
from treehammer.text_formatting import pluralize
from treehammer.verticals import import_parts

if TYPE_CHECKING:
    from treehammer.sql.transfer.importer import ImportResult
    from treehammer.sql.write.store import Store

_COUNTS = ("new", "duplicates", "conflicts", "invalid", "campaigns")
_COLUMNS = (
    TableColumn("file", "file"),
    *(TableColumn(name, name, is_number=True) for name in _COUNTS),
)


@click.command("export")
@click.argument("file", type=PathType())
@click.option(
    "--campaign",
    "campaigns",
    type=CAMPAIGN,
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
    "* and ?). An empty value means 'unknown'. Repeatable: all must hold.",
)
@click.option(
    "--cell-limit",
    type=click.IntRange(min=2),
    metavar="CHARACTERS",
    help="CSV: shorten longer texts, e.g. the ends of logs, for spreadsheets [default: none].",
)
@click.pass_obj
@on_interrupt("no partial file was left; the measurements are safe in the database")
def export_command(
    settings: Settings,
    file: Path,
    campaigns: tuple[str, ...],
    wheres: tuple[str, ...],
    cell_limit: int | None,
) -> None:
    """Write measurements to FILE: a TTree (.root), .csv or .parquet.

    An existing file is replaced once the new one is complete. TTree and Parquet files also contain
    campaigns, jobs and attempts. Another installation imports Parquet files.

    Example: treehammer export results.root --campaign last --where plausible=true
    """
    from treehammer.sql.read.query_model import Selection
    from treehammer.sql.transfer.export import export_file

    if cell_limit and file.suffix.lower() != ".csv":
        raise click.UsageError("--cell-limit is for CSV; other formats hold whole texts.")
    options: dict[str, Any] = {
        "software_dir": settings.software_dir,
        "bars": progress_bar,
        "cell_limit": cell_limit,
    }
    with open_store(settings) as store:
        selection = Selection.parse((store.campaign(c).id for c in campaigns), wheres)
        rows = export_file(store, selection, file, **options)
    click.echo(f"{pluralize(rows, 'measurement')} in {file}")


@click.command("import")
@click.argument("files", metavar="FILE...", type=PathType(), nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Only count the measurements to import.")
@click.option(
    "--ignore-unknown",
    is_flag=True,
    help="Skip columns that this version does not know instead of refusing the file.",
)
@click.option(
    "--group",
    metavar="NAME",
    default="",
    help="Group whose keys may send more of these campaigns; by default only administrators may.",
)
@prints_rows(*_COLUMNS)
@click.pass_obj
@on_interrupt("imported measurements are kept; import again to continue")
def import_command(
    settings: Settings,
    /,
    files: tuple[Path, ...],
    dry_run: bool,
    ignore_unknown: bool,
    group: str,
    **options: Any,
) -> ExitCode:
    """Import measurements of another installation or tool; repeating it is harmless.

    FILE is Parquet, or a folder of such files, as 'treehammer export' writes them, with campaigns, jobs
    and attempts; or the results of hyperfine, pytest-benchmark, asv, Google Benchmark or Darshan.

    Example: treehammer import theirs.parquet --dry-run
    """
    from treehammer.sql.core.rows import LOCAL_OWNER
    from treehammer.sql.transfer.importer import import_files, is_readable, list_files

    sources = list_files(files)
    readers = [part.make_reader(**options) for part in import_parts("imports")]
    # Without a readable file no database is created either.
    create = not dry_run and any(is_readable(source, readers) for source in sources)
    with _open_store(settings, create=create) as store:
        results = import_files(
            store,
            sources,
            ignore_unknown=ignore_unknown,
            dry_run=dry_run,
            bars=progress_bar,
            group=group.strip() or LOCAL_OWNER,
            readers=readers,
        )
    _print_counts(results)
    if problems := tuple(problem for result in results for problem in result.problems):
        raise MeasurementFileError(
            "not everything could be imported",
            where=str(files[0]) if len(files) == 1 else "",
            problems=problems,
        )
    return ExitCode.DONE


def _print_counts(results: Sequence[ImportResult]) -> None:
    """Print the counts and remarks of each file."""
    rows = [
        {"file": str(result.file), **{name: getattr(result, name) for name in _COUNTS}}
        for result in results
    ]
    remarks = [remark for result in results for remark in result.describe_remarks()]
    print_output(CommandOutput(rows, remarks=remarks), _COLUMNS)


for _part in import_parts("imports"):
    for _option in _part.OPTIONS:
        _option(import_command)


@contextmanager
def _open_store(settings: Settings, *, create: bool) -> Iterator[Store]:
    """Open the store, or a temporary empty one if it does not exist and must not be created."""
    from treehammer.sql.write.store import Store

    try:
        store = open_store(settings, create=create)
    except NothingToDoError:
        with (
            tempfile.TemporaryDirectory() as folder,
            Store.open(f"sqlite:///{folder}/empty.db") as empty,
        ):
            yield empty
        return
    with store:
        yield store
