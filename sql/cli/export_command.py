"""The command ``export``."""

from __future__ import annotations

from pathlib import Path

import click

from treehammer.config import Settings
from treehammer.sql.cli.campaign_names import complete_campaigns
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.store import Store
from treehammer.terminal import on_interrupt, progress_bar
from treehammer.text_formatting import pluralize


@click.command("export")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--campaign",
    "campaigns",
    shell_complete=complete_campaigns,
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
    "--partition",
    type=click.Choice(["campaign"]),
    help="Write a folder named FILE with one file per campaign.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "root", "csv"]),
    help="Format of the files in that folder [default: by the suffix of FILE, else parquet].",
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
    partition: str | None,
    form: str | None,
    cell_limit: int | None,
) -> None:
    """Write measurements to FILE: a TTree (.root), .csv or .parquet.

    An existing file is replaced once the new one is complete. TTree and Parquet files also contain
    campaigns, jobs and attempts: everything that another installation needs to import them.

    Example: treehammer export results.root --campaign last --where plausible=true

    Example: treehammer export results --partition campaign
    """
    # Arrow takes a tenth of a second to load.
    from treehammer.sql.transfer.export import export_file, export_partitions
    from treehammer.sql.transfer.file_writers import FORMATS

    if form and not partition:
        raise click.UsageError("--format requires --partition; a file's suffix decides its format.")
    default = file.suffix.lower() if file.suffix.lower() in FORMATS else ".parquet"
    suffix = f".{form}" if form else default
    if cell_limit and (suffix if partition else file.suffix.lower()) != ".csv":
        raise click.UsageError("--cell-limit is for CSV; other formats hold whole texts.")
    software = settings.software_dir
    with Store.open(settings.database, create=False) as store:
        selection = Selection.parse((store.campaign(c).id for c in campaigns), wheres)
        if not partition:
            rows = export_file(
                store,
                selection,
                file,
                software_dir=software,
                bars=progress_bar,
                cell_limit=cell_limit,
            )
            click.echo(f"{pluralize(rows, 'measurement')} in {file}")
            return
        rows, parts = export_partitions(
            store,
            selection,
            file,
            suffix,
            software_dir=software,
            bars=progress_bar,
            cell_limit=cell_limit,
        )
    click.echo(f"{pluralize(rows, 'measurement')} of {pluralize(parts, 'campaign')} in {file}")
