"""``treehammer datasets``: the datasets that tests read; making, rewriting and adding them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treehammer.config import Settings
from treehammer.datasets import DEFAULT_ROOT
from treehammer.datasets.manifest import (
    BRANCHES,
    MANIFEST_NAME,
    MISSING_BRANCHES,
    OTHER_LENGTHS,
    RECORDING,
    UNREADABLE_BRANCHES,
    Manifest,
    TreeLayout,
    file_facts,
    flatten_file,
    flatten_layout,
    layout_facts,
)
from treehammer.datasets.specs.rewrite_options import FORMATS, ORDERS, RewriteOptions
from treehammer.tables import TableColumn
from treehammer.terminal import (
    DATASET,
    Block,
    CommandOutput,
    PathType,
    TextTable,
    on_interrupt,
    print_hint,
    prints_rows,
    progress_bar,
)
from treehammer.text_formatting import format_size, pluralize

if TYPE_CHECKING:
    from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
    from treehammer.datasets.specs.dataset_specs import AnySpec

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
#: Items of a list that are shown.
MAX_LISTED_ITEMS = 8


@click.group("datasets")
def datasets() -> None:
    """Datasets that tests read: named sets of files that never change."""


@datasets.command("list")
@prints_rows(*LIST_COLUMNS)
@click.pass_obj
def list_(settings: Settings) -> list[dict[str, Any]]:
    """List the datasets that are here, and the shipped ones that can be made.

    Example: treehammer datasets list
    """
    from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
    from treehammer.datasets.specs import dataset_specs

    catalogue = FolderCatalogue(settings.datasets_dir)
    rows = [_manifest_row(catalogue.manifest(name)) for name in catalogue.names()]
    rows += [
        _planned_row(dataset_specs.load_spec(path))
        for name, path in dataset_specs.list_shipped_specs().items()
        if not catalogue.has(name)
    ]
    return sorted(rows, key=lambda row: str(row["name"]))


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


def _planned_row(spec: AnySpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "state": "not made",
        "size": spec.file_count * spec.file_size,
        "files": spec.file_count,
        "tree": spec.tree,
        "entries": spec.file_count * spec.entries,
        "branches": spec.branch_count,
        "description": spec.dataset.description,
    }


@datasets.command("show")
@click.argument("name", type=DATASET)
@prints_rows(keys="name or dataset, hash, and the facts of a file and its layout")
@click.pass_obj
def show(settings: Settings, name: str) -> CommandOutput:
    """Show how a dataset's files are laid out, and where they came from.

    Beside a merged dataset stands the file that it was made from.

    Example: treehammer datasets show nanoaod-merged
    """
    from treehammer.collectors.json_documents import parse_document
    from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
    from treehammer.datasets.specs import dataset_specs

    catalogue = FolderCatalogue(settings.datasets_dir)
    plan = dataset_specs.load_shipped_spec(name)
    if plan and not catalogue.has(name):
        row = _planned_row(plan)
        return CommandOutput([row], (), above=[_make_fact_table(row.items())])
    manifest = catalogue.manifest(name)
    rows = [
        {"dataset": name, "hash": manifest.hash, **flatten_file(file)} for file in manifest.files
    ]
    # The file that a merged dataset was made from.
    source = manifest.origin.get("source")
    source_layout = {source["file"]: parse_document(TreeLayout, source["layout"])} if source else {}
    rows += [{"name": title, **flatten_layout(layout)} for title, layout in source_layout.items()]
    blocks: list[Block] = [_make_fact_table(_list_facts(catalogue, manifest))]
    if source_layout:
        layouts = {name: manifest.files[0].layout, **source_layout}
        blocks += ["", _make_comparison_table(layouts)]
    return CommandOutput(rows, (), above=blocks)


def _list_facts(catalogue: FolderCatalogue, manifest: Manifest) -> list[tuple[str, Any]]:
    facts: list[tuple[str, Any]] = [
        ("name", manifest.name),
        ("folder", catalogue.folder(manifest.name)),
        ("hash", manifest.hash),
        *(
            (key.replace("_", " "), _format_origin_value(value))
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
    for file in manifest.files[:MAX_LISTED_ITEMS]:
        facts += [("", ""), *file_facts(file)]
    if (more := len(manifest.files) - MAX_LISTED_ITEMS) > 0:
        facts.append(("", f"and {pluralize(more, 'more file')} (all with --json)"))
    return facts


def _make_fact_table(facts: Iterable[tuple[str, Any]]) -> TextTable:
    rows = [{"key": key, "value": value} for key, value in facts]
    return TextTable(rows, [TableColumn("key", ""), TableColumn("value", "")])


@datasets.command("make")
@click.argument("name", type=DATASET)
@click.option(
    "--root",
    default="",
    metavar="RELEASE",
    help="ROOT to write with, as on the root axis [default: the one that wrote the source].",
)
@click.option(
    "--compression",
    default="",
    metavar="NAME[:LEVEL]",
    help="zlib, lzma, lz4 or zstd with a level from 1 to 9, or none.",
)
@click.option(
    "--autoflush",
    default="",
    metavar="EVENTS|SIZE",
    help="Events of a cluster, or its compressed size (30MB).",
)
@click.option(
    "--basket-size", default="", metavar="SIZE", help="Size of every branch's baskets (32kB)."
)
@click.option(
    "--basket-memory",
    default="",
    metavar="SIZE",
    help="Size of all baskets together, which ROOT divides among the branches (10MB).",
)
@click.option(
    "--across-clusters",
    is_flag=True,
    help="Write baskets when they are full, so that they span clusters.",
)
@click.option(
    "--order",
    default="",
    type=click.Choice(["", *ORDERS]),
    metavar="|".join(ORDERS),
    help="How the baskets are sorted in the file.",
)
@click.option(
    "--format",
    default="",
    type=click.Choice(["", *FORMATS]),
    metavar="|".join(FORMATS),
    help="rntuple writes an RNTuple twin.",
)
@click.option(
    "--skip-unwritable",
    is_flag=True,
    help="Leave out branches that cannot be written, instead of failing.",
)
@click.option("--as", "new", default="", metavar="NEW", help="Name of the rewritten dataset.")
@click.option(
    "--source",
    metavar="PATH",
    type=PathType(),
    help="The file that a merged dataset is made from, or its folder [default: sources_dir].",
)
@click.option(
    "--replace", "replace_existing", is_flag=True, help="Replace an existing dataset of this name."
)
@click.pass_obj
@on_interrupt("nothing half-made was kept")
def make(
    settings: Settings,
    /,
    name: str,
    new: str,
    source: Path | None,
    replace_existing: bool,
    **options: Any,
) -> None:
    """Make a shipped dataset; one that is there already is verified.

    NAME may also be a file NAME.toml: a spec of your own, of random values or of raw files.

    Options for another layout, or --as, rewrite the content of any dataset as a new one: a shipped,
    an added or a rewritten dataset. --root alone makes a shipped dataset with that release.

    \b
    Example: treehammer datasets make nanoaod-merged --source ~/Downloads
             treehammer datasets make reference-small --compression zstd:5 --order branch
    """
    from treehammer.datasets.catalogues.dataset_rewriting import make_dataset
    from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue

    catalogue = FolderCatalogue(settings.datasets_dir)
    settings = replace(settings, sources_dir=source or settings.sources_dir)
    manifest = make_dataset(
        catalogue,
        settings,
        name,
        RewriteOptions(**options),
        new,
        bars=progress_bar,
        replace_existing=replace_existing,
    )
    _print_dataset(catalogue, manifest)


@datasets.command("add")
@click.argument("name")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=PathType())
@click.option("--tree", default="", help="Main tree [default: of most entries times branches].")
@click.option(
    "--root",
    default=DEFAULT_ROOT,
    show_default=True,
    metavar="RELEASE",
    help="ROOT to measure the files with, as on the root axis.",
)
@click.option(
    "--load",
    "libraries",
    multiple=True,
    metavar="LIBRARY",
    type=PathType(exists=True, dir_okay=False),
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
    from treehammer.datasets import root_process
    from treehammer.datasets.catalogues import dataset_verification, recordings
    from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue

    catalogue = FolderCatalogue(settings.datasets_dir)
    if any(path.suffix == recordings.RECORDING_SUFFIX for path in files):
        _print_dataset(catalogue, recordings.add_recording(catalogue, name, files, progress_bar))
        return
    dataset_verification.check_added_files(name, files)
    software = root_process.prepare_dataset_root(root, settings.software_dir, progress_bar)
    manifest = catalogue.add(
        name, files, software, tree=tree, libraries=libraries, bars=progress_bar
    )
    _print_dataset(catalogue, manifest)
    print_findings(manifest)


def _print_dataset(catalogue: FolderCatalogue, manifest: Manifest) -> None:
    """Print name, size and folder of a dataset."""
    kind = "raw bytes" if manifest.is_raw else f"tree {manifest.tree!r}"
    if manifest.origin.get("kind") == RECORDING:
        kind = f"a recording of {sum(manifest.origin['operations'].values())} operations"
    click.echo(
        f"{manifest.name}: {pluralize(len(manifest.files), 'file')}, {format_size(manifest.size)}, "
        f"{kind}, in {catalogue.folder(manifest.name)}"
    )


def print_findings(manifest: Manifest) -> None:
    """Print other trees that could have been meant, peculiarities, and unreadable branches."""
    sources = [Path(source).name for source in manifest.origin.get("sources", ())]
    for source, file in zip(sources, manifest.files, strict=False):
        if source != file.name:
            print_hint(
                f"{source} is stored as {file.name}: libraries take other names for patterns."
            )
    for line in manifest.describe_other_trees():
        print_hint(line)
    for note in manifest.describe_peculiarities():
        print_hint(f"{note[0].upper()}{note[1:]}")
    if manifest.unreadable_branches:
        _print_unreadable_branches(manifest)


def _print_unreadable_branches(manifest: Manifest) -> None:
    unreadable = manifest.unreadable_branches
    branches = manifest.files[0].layout.branches
    click.echo(f"ROOT cannot read {len(unreadable)} of {branches} branches:")
    for name, reason in list(unreadable.items())[:MAX_LISTED_ITEMS]:
        print_hint(f"  {name}: {reason}")
    if len(unreadable) > MAX_LISTED_ITEMS:
        print_hint(f"  and {len(unreadable) - MAX_LISTED_ITEMS} more: see treehammer datasets show")
    if re.search("TBasket|page checksum", " ".join(unreadable.values())):
        click.echo("Stored bytes are damaged, or too new for this ROOT: copy the files again.")
    if len(unreadable) < branches:
        click.echo('Read the others with branches = "readable".')
    else:
        click.echo(
            "Choose another tree with --tree, or load the library of its classes with --load."
        )


def _make_comparison_table(layouts: Mapping[str, TreeLayout]) -> TextTable:
    """Make the table of layouts side by side, with figures that do not depend on the file's size."""
    rows: dict[str, dict[str, Any]] = {}
    for name, layout in layouts.items():
        facts = [
            *layout_facts(layout),
            ("compressed, an event", f"{layout.zipped_bytes / max(1, layout.entries):,.0f} B"),
            ("events a cluster", f"{layout.entries / max(1, layout.clusters):,.0f}"),
        ]
        for key, value in facts:
            rows.setdefault(key, {"key": key})[name] = value
    columns = [TableColumn("key", ""), *(TableColumn(name, name) for name in layouts)]
    return TextTable([*rows.values()], columns)


def _format_origin_value(value: Any) -> str:
    """Format a value of a manifest's origin: a number by its kind, a text by its name."""
    if isinstance(value, dict):
        return ", ".join(
            f"{key} {item}" if isinstance(item, str) else f"{item} {key}"
            for key, item in value.items()
        )
    if not isinstance(value, list):
        return str(value)
    suffix = ""
    if len(value) > MAX_LISTED_ITEMS:
        suffix = f", and {len(value) - MAX_LISTED_ITEMS} more (all in {MANIFEST_NAME})"
    return (", ".join(value[:MAX_LISTED_ITEMS]) or "none") + suffix
