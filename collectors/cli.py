"""Commands ``treehammer releases`` and ``treehammer worker …``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from treehammer.collectors import worker_zipapp
from treehammer.collectors.record.measurement_record import build_record_schema
from treehammer.collectors.root_releases import (
    ListedRelease,
    describe_releases,
    list_cached_releases,
    list_root_releases,
)
from treehammer.config import Settings
from treehammer.errors import SoftwareError
from treehammer.tables import TableColumn
from treehammer.terminal import PathType, prints_rows

SCHEMA_FILE = Path(__file__).resolve().with_name("record.schema.json")

_COLUMNS = (
    TableColumn("release", "release"),
    TableColumn("cycle", "cycle", lambda text: text or "unknown"),
    TableColumn("is_newest", "newest of its cycle", lambda value: "yes" if value else ""),
    TableColumn("is_cached", "state", lambda value: "cached" if value else "can be installed"),
    TableColumn("wheel", "package", lambda version: f"ROOT {version}"),
)


@click.command("releases")
@prints_rows(*_COLUMNS)
@click.pass_obj
def releases_command(settings: Settings) -> list[ListedRelease]:
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
        click.echo(f"Only cached releases are listed: {error}", err=True)
    return describe_releases(offered, cached)


def render_record_schema() -> str:
    """Render the JSON Schema of a record, the content of ``record.schema.json``."""
    return json.dumps(build_record_schema(), indent=1, ensure_ascii=False) + "\n"


@click.group()
def worker() -> None:
    """Pack the worker that runs on nodes, for manual runs."""


@worker.command("pack")
@click.argument("target", type=PathType(dir_okay=False), default="worker.pyz")
def pack_worker(target: Path) -> None:
    """Write the worker as a single file for Python 3.9 and later.

    \b
    Example:
      treehammer worker pack worker.pyz && python3 worker.pyz run job.json
    """
    click.echo(worker_zipapp.build_worker(target))


@worker.command("schema")
def show_schema() -> None:
    """Print the JSON Schema of a measurement record.

    \b
    Example:
      treehammer worker schema > record.schema.json
    """
    click.echo(render_record_schema(), nl=False)
