"""``treehammer datasets``: the datasets that tests read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from treehammer.config import Settings
from treehammer.datasets import inspect, rootenv, spec
from treehammer.datasets.catalogue import FolderCatalogue
from treehammer.datasets.make_command import make
from treehammer.datasets.manifest import Manifest, TreeLayout
from treehammer.datasets.shown import (
    facts_of,
    flat,
    flat_layout,
    line,
    megabytes,
    print_beside,
    tell,
)
from treehammer.terminal import (
    TABLE,
    Column,
    leaving,
    output_options,
    print_rows,
    progress_bar,
)

LIST_COLUMNS = (
    Column("name", "dataset"),
    Column("state", "state"),
    Column("size", "size", megabytes, right=True),
    Column("files", "files", right=True),
    Column("tree", "tree"),
    Column("entries", "entries", right=True),
    Column("branches", "branches", right=True),
    Column("description", "description"),
)


@click.group("datasets")
def datasets() -> None:
    """What tests read: named sets of files that never change."""


@datasets.command("list")
@output_options
@click.pass_obj
def list_(settings: Settings, form: str) -> None:
    """List the datasets that are here, and the shipped ones that can be made.

    Example: treehammer datasets list
    """
    catalogue = FolderCatalogue(settings.datasets_dir)
    rows = [_row(catalogue.manifest(name)) for name in catalogue.names()]
    rows += [
        _planned_row(spec.load(path))
        for name, path in spec.shipped().items()
        if not catalogue.has(name)
    ]
    print_rows(sorted(rows, key=lambda row: str(row["name"])), LIST_COLUMNS, form=form)


@datasets.command("show")
@click.argument("name")
@click.option(
    "--beside",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Measure the main tree of this ROOT file too, and show both side by side.",
)
@output_options
@click.pass_obj
def show(settings: Settings, name: str, beside: Path | None, form: str) -> None:
    """Show how a dataset's files are laid out, and where they came from.

    Beside a merged dataset stands the file that it was made from.

    Example: treehammer datasets show nanoaod-merged --beside production.root
    """
    catalogue = FolderCatalogue(settings.datasets_dir)
    plan = spec.shipped_spec(name)
    if plan and not catalogue.has(name):
        row = _planned_row(plan)
        _print_facts(list(row.items()), [row], form)
        return
    manifest = catalogue.manifest(name)
    facts: list[tuple[str, Any]] = [
        ("name", name),
        ("folder", catalogue.folder(name)),
        ("hash", manifest.hash),
        *((key, line(value)) for key, value in manifest.origin.items() if key != "source"),
    ]
    for file in manifest.files:
        facts += [("", ""), *facts_of(file)]
    rows = [{"dataset": name, "hash": manifest.hash, **flat(file)} for file in manifest.files]
    others = _others(manifest, beside, settings)
    rows += [{"name": other, **flat_layout(layout)} for other, layout in others.items()]
    _print_facts(facts, rows, form)
    if others and form == TABLE:
        click.echo()
        print_beside({name: manifest.files[0].layout, **others})


@datasets.command("add")
@click.argument("name")
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path)
)
@click.option("--tree", default="", help="Main tree [default: of most entries times branches].")
@click.option(
    "--root",
    default=inspect.MEASURING_ROOT,
    show_default=True,
    metavar="RELEASE",
    help="ROOT to measure the files with, as on the root axis.",
)
@click.pass_obj
@leaving("nothing half-made was kept")
def add(settings: Settings, name: str, files: tuple[Path, ...], tree: str, root: str) -> None:
    """Copy existing ROOT files in as a dataset.

    Example: treehammer datasets add nanoaod ttbar.root --tree Events
    """
    catalogue = FolderCatalogue(settings.datasets_dir)
    software = rootenv.prepare(root, settings.software_dir, progress_bar)
    tell(catalogue, catalogue.add(name, files, software, tree=tree, bars=progress_bar))


def _row(manifest: Manifest) -> dict[str, Any]:
    return {
        "name": manifest.name,
        "state": str(manifest.origin["kind"]),
        "size": manifest.size,
        "files": len(manifest.files),
        "tree": manifest.tree,
        "entries": sum(file.layout.entries for file in manifest.files),
        "branches": manifest.files[0].layout.branches,
        "description": manifest.origin["description"],
    }


def _planned_row(plan: spec.AnySpec) -> dict[str, Any]:
    return {
        "name": plan.name,
        "state": "not made yet",
        "size": plan.size,
        "files": 1,
        "tree": plan.tree,
        "entries": plan.entries,
        "branches": plan.branch_count,
        "description": plan.description,
    }


def _print_facts(
    facts: list[tuple[str, Any]], rows: Sequence[Mapping[str, Any]], form: str
) -> None:
    """A two-column table for people, one row a file for programs."""
    if form == TABLE:
        pairs = [{"key": key, "value": value} for key, value in facts]
        print_rows(pairs, [Column("key", ""), Column("value", "")])
    else:
        print_rows(rows, [], form=form)


def _others(manifest: Manifest, beside: Path | None, settings: Settings) -> dict[str, TreeLayout]:
    """What stands beside a dataset: the source of a merged one, and the file that was asked for."""
    source = manifest.origin.get("source")
    found = {str(source["file"]): TreeLayout.of(source["layout"])} if source else {}
    if beside:
        software = rootenv.prepare(inspect.MEASURING_ROOT, settings.software_dir, progress_bar)
        (found[str(beside)],) = inspect.layouts([beside], software, bars=progress_bar)
    return found


datasets.add_command(make)
