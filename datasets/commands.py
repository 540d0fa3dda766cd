"""``treehammer datasets``: the datasets that tests read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from treehammer.config import Settings
from treehammer.datasets import inspect, rootenv, spec
from treehammer.datasets.catalogue import FolderCatalogue
from treehammer.datasets.manifest import Distribution, Manifest, ManifestFile, TreeLayout
from treehammer.datasets.progress import MEGABYTE
from treehammer.errors import DatasetError, ExitCode
from treehammer.terminal import (
    TABLE,
    Column,
    counted,
    leaving,
    output_options,
    print_rows,
    progress_bar,
)

MEASURING_ROOT = "6.40.00"


def _megabytes(size: float) -> str:
    return f"{size / MEGABYTE:.2f} MB" if size >= MEGABYTE / 100 else f"{size:.0f} B"


LIST_COLUMNS = (
    Column("name", "dataset"),
    Column("state", "state"),
    Column("size", "size", _megabytes, right=True),
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
        *((key, _line(value)) for key, value in manifest.origin.items() if key != "source"),
    ]
    for file in manifest.files:
        facts += [("", ""), *_facts(file)]
    rows = [{"dataset": name, "hash": manifest.hash, **_flat(file)} for file in manifest.files]
    others = _others(manifest, beside, settings)
    rows += [{"name": other, **_flat_layout(layout)} for other, layout in others.items()]
    _print_facts(facts, rows, form)
    if others and form == TABLE:
        click.echo()
        _print_beside({name: manifest.files[0].layout, **others})


@datasets.command("make")
@click.argument("name")
@click.option(
    "--root",
    metavar="RELEASE",
    help="ROOT to write it with, as on the root axis [default: the one of the spec].",
)
@click.option(
    "--from",
    "source",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="The file that a merged dataset is made from, or its folder [default: sources_dir].",
)
@click.option("--again", is_flag=True, help="Replace the dataset that is there.")
@click.pass_obj
@leaving("nothing half-made was kept")
def make(settings: Settings, name: str, root: str | None, source: Path | None, again: bool) -> None:
    """Make a shipped dataset; one that is there already is verified.

    Example: treehammer datasets make nanoaod-merged --from ~/Downloads
    """
    catalogue = FolderCatalogue(settings.datasets_dir)
    plan = spec.shipped_spec(name)
    if plan is None:
        raise DatasetError(
            "is not a shipped dataset", where=name, hint=f"Shipped: {', '.join(spec.shipped())}."
        )
    software = rootenv.prepare(root or plan.root, settings.software_dir, progress_bar)
    given = source or settings.sources_dir
    manifest = catalogue.make(plan, software, source=given, bars=progress_bar, again=again)
    _told(catalogue, manifest)


@datasets.command("verify")
@click.argument("names", nargs=-1, metavar="NAME...")
@output_options
@click.pass_context
def verify(context: click.Context, names: tuple[str, ...], form: str) -> None:
    """Compare every byte with the manifests; by default of all datasets that are here.

    Leaves with 1 when one is not what its manifest says.

    Example: treehammer datasets verify reference-small
    """
    catalogue = FolderCatalogue(context.obj.datasets_dir)
    unknown = [name for name in names if not catalogue.has(name)]
    if unknown:
        raise catalogue.unknown(unknown[0])
    rows = []
    for name in names or catalogue.names():
        try:
            catalogue.verify(name, bars=progress_bar)
            rows.append({"name": name, "state": "unchanged", "message": ""})
        except DatasetError as error:
            rows.append({"name": name, "state": "refused", "message": str(error)})
    columns = [Column("name", "dataset"), Column("state", "state"), Column("message", "")]
    print_rows(rows, columns, form=form)
    if any(row["state"] == "refused" for row in rows):
        context.exit(ExitCode.REGRESSION)


@datasets.command("add")
@click.argument("name")
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path)
)
@click.option("--tree", default="", help="Main tree [default: of most entries times branches].")
@click.option(
    "--root",
    default=MEASURING_ROOT,
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
    _told(catalogue, catalogue.add(name, files, software, tree=tree, bars=progress_bar))


def _told(catalogue: FolderCatalogue, manifest: Manifest) -> None:
    click.echo(
        f"{manifest.name}: {counted(len(manifest.files), 'file')}, {_megabytes(manifest.size)}, "
        f"tree {manifest.tree!r}, in {catalogue.folder(manifest.name)}"
    )


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
        software = rootenv.prepare(MEASURING_ROOT, settings.software_dir, progress_bar)
        (found[str(beside)],) = inspect.layouts([beside], software, bars=progress_bar)
    return found


def _print_beside(layouts: Mapping[str, TreeLayout]) -> None:
    """One column a file, with what does not depend on its size."""
    rows: dict[str, dict[str, Any]] = {}
    for name, layout in layouts.items():
        own = [
            *_layout_facts(layout),
            ("compressed, an event", f"{layout.zipped_bytes / layout.entries:,.0f} B"),
            ("events a cluster", f"{layout.entries / layout.clusters:,.0f}"),
        ]
        for key, value in own:
            rows.setdefault(key, {"key": key})[name] = value
    print_rows(list(rows.values()), [Column("key", ""), *(Column(n, n) for n in layouts)])


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{number} {key}" for key, number in value.items())
    return (", ".join(value) or "none") if isinstance(value, list) else str(value)


def _facts(file: ManifestFile) -> list[tuple[str, str]]:
    layout = file.layout
    return [
        ("file", file.name),
        ("size", _megabytes(file.size)),
        ("adler32", file.adler32),
        ("sha256", file.sha256),
        *_layout_facts(layout),
    ]


def _layout_facts(layout: TreeLayout) -> list[tuple[str, str]]:
    return [
        ("tree", f"{layout.tree} ({layout.format})"),
        ("entries", str(layout.entries)),
        ("branches", str(layout.branches)),
        ("uncompressed", _megabytes(layout.unzipped_bytes)),
        ("compressed", f"{_megabytes(layout.zipped_bytes)}, ratio {layout.ratio:.2f}"),
        ("inside the tree's record", _megabytes(layout.embedded_bytes)),
        ("largest 2 % of branches", f"{100 * layout.top2_share:.1f} % of the compressed bytes"),
        ("clusters", _spread(layout.cluster_zipped_bytes, "B")),
        ("baskets", _spread(layout.basket_zipped_bytes, "B")),
        ("ratio by branch", _spread(layout.branch_ratio, "")),
    ]


def _spread(values: Distribution, unit: str) -> str:
    if not values.count:
        return "none"
    low, median, high = (
        f"{value:,.0f} {unit}" if unit else f"{value:.2f}"
        for value in (values.minimum, values.median, values.maximum)
    )
    return f"{values.count}: {low} to {high}, median {median}"


def _flat(file: ManifestFile) -> dict[str, Any]:
    """One level of keys: ``basket_zipped_bytes_median`` and so on."""
    own = {key: value for key, value in asdict(file).items() if key != "layout"}
    return own | _flat_layout(file.layout)


def _flat_layout(layout: TreeLayout) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in asdict(layout).items():
        if isinstance(value, dict):
            flat |= {f"{key}_{part}": number for part, number in value.items()}
        else:
            flat[key] = value
    return flat
