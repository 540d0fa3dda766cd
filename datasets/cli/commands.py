"""``treehammer datasets``: the datasets that tests read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from treehammer.config import Settings
from treehammer.datasets.catalogues import recordings
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.cli.dataset_names import complete_datasets
from treehammer.datasets.cli.dataset_output import (
    file_facts,
    flatten_file,
    flatten_layout,
    format_origin_value,
    print_dataset,
    print_findings,
    print_layout_comparison,
)
from treehammer.datasets.cli.make_command import make
from treehammer.datasets.model.manifest import (
    BRANCHES,
    MISSING_BRANCHES,
    OTHER_LENGTHS,
    UNREADABLE_BRANCHES,
    Manifest,
    TreeLayout,
)
from treehammer.datasets.production import layout_measurement, root_process
from treehammer.datasets.specs import generated_spec
from treehammer.datasets.specs.raw_spec import RawSpec
from treehammer.errors import DatasetError
from treehammer.tables import TableColumn
from treehammer.terminal import TABLE, on_interrupt, output_options, print_rows, progress_bar
from treehammer.text_formatting import format_size

LIST_COLUMNS = (
    TableColumn("name", "dataset"),
    TableColumn("state", "state"),
    TableColumn("size", "size", format_size, is_number=True),
    TableColumn("files", "files", is_number=True),
    TableColumn("tree", "tree"),
    TableColumn("entries", "entries", is_number=True),
    TableColumn("branches", "branches", is_number=True),
    TableColumn("description", "description"),
)


@click.group("datasets")
def datasets() -> None:
    """Datasets that tests read: named sets of files that never change."""


@datasets.command("list")
@output_options
@click.pass_obj
def list_(settings: Settings, form: str) -> None:
    """List the datasets that are here, and the shipped ones that can be made.

    Example: treehammer datasets list
    """
    catalogue = FolderCatalogue(settings.datasets_dir)
    rows = [_manifest_row(catalogue.manifest(name)) for name in catalogue.names()]
    rows += [
        _planned_row(generated_spec.load_spec(path))
        for name, path in generated_spec.list_shipped_specs().items()
        if not catalogue.has(name)
    ]
    print_rows(sorted(rows, key=lambda row: str(row["name"])), LIST_COLUMNS, form=form)


@datasets.command("show")
@click.argument("name", shell_complete=complete_datasets)
@click.option(
    "--compare",
    "compared",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Measure the main tree of this ROOT file too, and show both side by side.",
)
@output_options
@click.pass_obj
def show(settings: Settings, name: str, compared: Path | None, form: str) -> None:
    """Show how a dataset's files are laid out, and where they came from.

    Beside a merged dataset stands the file that it was made from.

    Example: treehammer datasets show nanoaod-merged --compare production.root
    """
    catalogue = FolderCatalogue(settings.datasets_dir)
    plan = generated_spec.load_shipped_spec(name)
    if plan and not catalogue.has(name):
        row = _planned_row(plan)
        _print_facts(list(row.items()), [row], form)
        return
    manifest = catalogue.manifest(name)
    facts: list[tuple[str, Any]] = [
        ("name", name),
        ("folder", catalogue.folder(name)),
        ("hash", manifest.hash),
        *(
            (key, format_origin_value(value))
            for key, value in manifest.origin.items()
            # Names of branches are for programs; a reason is as long as a line.
            if key not in ("source", BRANCHES, UNREADABLE_BRANCHES, MISSING_BRANCHES, OTHER_LENGTHS)
        ),
    ]
    facts += [(f"unreadable: {name}", text) for name, text in manifest.unreadable_branches.items()]
    facts += [
        (f"missing: {name}", f"in {files}") for name, files in manifest.missing_branches.items()
    ]
    facts += [(f"other length: {name}", text) for name, text in manifest.other_lengths.items()]
    for file in manifest.files:
        facts += [("", ""), *file_facts(file)]
    rows = [
        {"dataset": name, "hash": manifest.hash, **flatten_file(file)} for file in manifest.files
    ]
    compared_layouts = _layouts_to_compare(manifest, compared, settings)
    rows += [
        {"name": title, **flatten_layout(layout)} for title, layout in compared_layouts.items()
    ]
    _print_facts(facts, rows, form)
    if compared_layouts and form == TABLE:
        click.echo()
        print_layout_comparison({name: manifest.files[0].layout, **compared_layouts})


@datasets.command("add")
@click.argument("name")
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path)
)
@click.option("--tree", default="", help="Main tree [default: of most entries times branches].")
@click.option(
    "--root",
    default=layout_measurement.DEFAULT_ROOT,
    show_default=True,
    metavar="RELEASE",
    help="ROOT to measure the files with, as on the root axis.",
)
@click.option(
    "--load",
    "libraries",
    multiple=True,
    metavar="LIBRARY",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Library with dictionaries to load before the branches are read, as [test] load.",
)
@click.pass_obj
@on_interrupt("nothing half-made was kept")
def add(
    settings: Settings,
    name: str,
    files: tuple[Path, ...],
    tree: str,
    root: str,
    libraries: tuple[Path, ...],
) -> None:
    """Add existing ROOT files, or a recording, as a dataset.

    A file .csv is a recording of the XRootD client, as jobs with record = true leave it.

    Each branch is read once in a process of its own: those that ROOT cannot read are listed, and
    left out by tests with branches = "readable".

    \b
    Example: treehammer datasets add nanoaod ttbar.root --tree Events
             treehammer datasets add analysis recordings/1-1.csv
    """
    catalogue = FolderCatalogue(settings.datasets_dir)
    if any(path.suffix == recordings.RECORDING_SUFFIX for path in files):
        print_dataset(catalogue, recordings.add_recording(catalogue, name, files, progress_bar))
        return
    software = root_process.prepare_dataset_root(root, settings.software_dir, progress_bar)
    manifest = catalogue.add(
        name, files, software, tree=tree, libraries=libraries, bars=progress_bar
    )
    print_dataset(catalogue, manifest)
    print_findings(manifest)


def _manifest_row(manifest: Manifest) -> dict[str, Any]:
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


def _planned_row(plan: generated_spec.AnySpec) -> dict[str, Any]:
    return {
        "name": plan.name,
        "state": "not made",
        "size": plan.size,
        "files": plan.file_count if isinstance(plan, RawSpec) else 1,
        "tree": plan.tree,
        "entries": plan.entries,
        "branches": plan.branch_count,
        "description": plan.description,
    }


def _print_facts(
    facts: list[tuple[str, Any]], rows: Sequence[Mapping[str, Any]], form: str
) -> None:
    """Print a two-column table for people, one row per file for programs."""
    if form == TABLE:
        pairs = [{"key": key, "value": value} for key, value in facts]
        print_rows(pairs, [TableColumn("key", ""), TableColumn("value", "")])
    else:
        print_rows(rows, [], form=form)


def _layouts_to_compare(
    manifest: Manifest, compared: Path | None, settings: Settings
) -> dict[str, TreeLayout]:
    """Return the layouts to compare with a dataset: a merged one's source, and the file given.

    Raises:
        DatasetError: the dataset holds no tree.
    """
    if compared and manifest.is_raw:
        raise DatasetError(
            "holds raw files, which have no tree to compare",
            where=manifest.name,
            hint="Leave out --compare.",
        )
    source = manifest.origin.get("source")
    layouts = {str(source["file"]): TreeLayout.from_document(source["layout"])} if source else {}
    if compared:
        software = root_process.prepare_dataset_root(
            layout_measurement.DEFAULT_ROOT, settings.software_dir, progress_bar
        )
        (layouts[str(compared)],) = layout_measurement.measure_layouts(
            [compared], software, bars=progress_bar
        )
    return layouts


datasets.add_command(make)
