"""Command ``treehammer sites import cric``."""

from __future__ import annotations

from pathlib import Path

import click

from treehammer.errors import ConfigError, NothingToDoError
from treehammer.program_output import explain_write_errors
from treehammer.terminal import PathType, print_remarks
from treehammer.text_formatting import pluralize


@click.group("import")
def import_sites() -> None:
    """Create a sites file from public catalogs."""


@import_sites.command("cric")
@click.argument("files", nargs=-1, required=True, type=PathType())
@click.option("--pool", default="grid", show_default=True, help="HTCondor pool for the jobs.")
@click.option(
    "--requirements",
    default="",
    metavar="CLASSAD",
    help="Selects a site's machines in the pool; {site} stands for its name. By default compute "
    "elements from a pandaqueue document become grid resources.",
)
@click.option(
    "--storage-type",
    type=click.UNPROCESSED,  # '' has a meaning
    default="DATADISK",
    show_default=True,
    help="Type of the storage areas that become doors; '' for any on disk.",
)
@click.option("--path-prefix", default="", help="Folder of datasets within each storage area.")
@click.option("-o", "--output", type=PathType(), help="Write a new sites file.")
def import_cric(
    files: tuple[Path, ...],
    pool: str,
    requirements: str,
    storage_type: str,
    path_prefix: str,
    output: Path | None,
) -> None:
    """Create sites from JSON documents of CRIC, the experiments' site catalog.

    FILES are the JSON documents of ddmendpoint, pandaqueue, site and core/service (?json). Entries that
    cannot be imported are listed.

    Example: treehammer sites import cric ddmendpoint.json site.json -o sites.toml
    """
    from treehammer.cric import cric_import
    from treehammer.submit.batch.htcondor.pool import HTCondorPool
    from treehammer.submit.sites import sites_file

    if output is not None and output.exists():
        raise ConfigError("exists already", where=str(output), hint="Name a new file.")
    options = cric_import.CricOptions(pool, requirements, storage_type, path_prefix)
    imported = cric_import.CricImport(files, options)
    print_remarks(f"skipped: {line}" for line in imported.skipped)
    if not imported.sites:
        raise NothingToDoError("no site in these documents has a door that ROOT can open")
    pools = [HTCondorPool(name=pool)]
    if output is None:
        click.echo(
            sites_file.format_sites_file(imported.sites, pools, Path("sites.toml")), nl=False
        )
        return
    with explain_write_errors(output):
        sites_file.write_sites_file(imported.sites, pools, output)
    click.echo(f"{pluralize(len(imported.sites), 'site')} in {output}")
