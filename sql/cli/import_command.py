"""The command ``import``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from treehammer.config import Settings
from treehammer.errors import MeasurementFileError, NothingToDoError
from treehammer.sql.write.ownership import LOCAL_OWNER
from treehammer.sql.write.store import Store
from treehammer.tables import TableColumn
from treehammer.terminal import on_interrupt, output_options, print_rows, progress_bar

_COUNTS = ("new", "duplicates", "conflicts", "invalid", "campaigns")
_COLUMNS = [
    TableColumn("file", "file"),
    *(TableColumn(name, name, is_number=True) for name in _COUNTS),
]


@click.command("import")
@click.argument(
    "files", metavar="FILE...", type=click.Path(path_type=Path), nargs=-1, required=True
)
@click.option("--dry-run", is_flag=True, help="Only count the measurements to import.")
@click.option(
    "--ignore-unknown",
    is_flag=True,
    help="Skip columns that this version does not know instead of refusing the file.",
)
@click.option(
    "--group",
    metavar="NAME",
    default=LOCAL_OWNER,
    help="Group whose keys may send more of these campaigns; by default only administrators may.",
)
@output_options
@click.pass_obj
@on_interrupt("imported measurements are kept; import again to continue")
def import_command(
    settings: Settings,
    files: tuple[Path, ...],
    dry_run: bool,
    ignore_unknown: bool,
    group: str,
    form: str,
) -> None:
    """Import measurements that another installation exported; repeating it is harmless.

    FILE is a TTree (.root), Parquet, or a folder of either, as 'treehammer export' writes them, with
    their campaigns, jobs and attempts. Existing measurements are never changed.

    Example: treehammer import theirs.root --dry-run
    """
    from treehammer.sql.transfer.importer import collect_files, import_files, is_readable

    sources = collect_files(files)
    # Without a readable file no database is created either.
    create = not dry_run and any(map(is_readable, sources))
    with _open_store(settings, create=create) as store:
        results = import_files(
            store,
            sources,
            ignore_unknown=ignore_unknown,
            dry_run=dry_run,
            bars=progress_bar,
            group=group.strip() or LOCAL_OWNER,
        )
    rows = [
        {"file": str(result.file), **{name: getattr(result, name) for name in _COUNTS}}
        for result in results
    ]
    print_rows(rows, _COLUMNS, form=form)
    for result in results:
        for remark in result.describe_remarks():
            click.echo(remark, err=True)
    if problems := tuple(problem for result in results for problem in result.problems):
        raise MeasurementFileError(
            "not everything could be imported",
            where=str(files[0]) if len(files) == 1 else "",
            problems=problems,
        )


@contextmanager
def _open_store(settings: Settings, *, create: bool) -> Iterator[Store]:
    """Open the store, or a temporary empty one if it does not exist and must not be created."""
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
