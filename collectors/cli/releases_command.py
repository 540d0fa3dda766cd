"""Command ``treehammer releases``."""

from __future__ import annotations

from dataclasses import asdict

import click

from treehammer.collectors.package_index import (
    describe_releases,
    list_cached_releases,
    list_root_releases,
)
from treehammer.config import Settings
from treehammer.errors import SoftwareError
from treehammer.tables import TableColumn
from treehammer.terminal import output_options, print_rows

_COLUMNS = (
    TableColumn("release", "release"),
    TableColumn("cycle", "cycle", lambda text: text or "unknown"),
    TableColumn("is_newest", "newest of its cycle", lambda value: "yes" if value else ""),
    TableColumn("is_cached", "state", lambda value: "cached" if value else "can be installed"),
    TableColumn("wheel", "package", lambda version: f"ROOT {version}"),
)


@click.command("releases")
@output_options
@click.pass_obj
def releases_command(settings: Settings, form: str) -> None:
    """List the ROOT releases of the package index, and those that are cached.

    A wheel whose release is not known yet is named by the version of its package. Without network
    the cached releases are listed.

    Example: treehammer releases
    """
    cached = list_cached_releases(settings.software_dir)
    offered: list[str] | None = None
    try:
        offered = list_root_releases()
    except SoftwareError as error:
        click.echo(f"Only cached releases are listed: {error.message}", err=True)
    releases = describe_releases(offered, cached)
    print_rows([asdict(release) for release in releases], _COLUMNS, form=form)
