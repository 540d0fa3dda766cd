"""Commands ``treehammer worker …``: pack the worker, print the schema of its records."""

from __future__ import annotations

import json
from pathlib import Path

import click

from treehammer.collectors import worker_zipapp
from treehammer.collectors.record.measurement_record import build_record_schema

SCHEMA_FILE = Path(__file__).resolve().parents[1] / "record.schema.json"


def render_record_schema() -> str:
    """Render the JSON Schema of a record, the content of ``record.schema.json``."""
    return json.dumps(build_record_schema(), indent=1, ensure_ascii=False) + "\n"


@click.group()
def worker() -> None:
    """Pack the worker that runs on nodes, for manual runs."""


@worker.command("pack")
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path), default="worker.pyz")
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
