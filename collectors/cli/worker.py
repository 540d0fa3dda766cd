"""Verbs of the collectors' room: the worker as one file, and the schema of what it records."""

from __future__ import annotations

import json
from pathlib import Path

import click

from treehammer.collectors import worker_zipapp
from treehammer.collectors.record.measurement_record import build_record_schema

SCHEMA_FILE = Path(__file__).resolve().parents[1] / "record.schema.json"


def render_record_schema() -> str:
    """The published JSON Schema of a record, as ``record.schema.json`` holds it."""
    return json.dumps(build_record_schema(), indent=1, ensure_ascii=False) + "\n"


@click.group()
def worker() -> None:
    """The part that runs on a node, for those who run it by hand."""


@worker.command("pack")
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path), default="worker.pyz")
def pack_worker(target: Path) -> None:
    """Write the worker as one file that any Python from 3.9 on runs.

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
