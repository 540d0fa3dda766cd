"""Output of datasets: sizes, and the facts of a file's layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.manifest import (
    MANIFEST_NAME,
    OTHER_TREES,
    RAW,
    RECORDING,
    RNTUPLE,
    TTREE,
    Distribution,
    Manifest,
    ManifestFile,
    TreeLayout,
)
from treehammer.tables import TableColumn
from treehammer.terminal import print_hint, print_rows
from treehammer.text_formatting import format_size, pluralize

#: Names of formats as people write them.
FORMAT_TITLES = {TTREE: "TTree", RNTUPLE: "RNTuple"}

#: Items of a list that are shown.
MAX_LISTED_ITEMS = 8


def print_dataset(catalogue: FolderCatalogue, manifest: Manifest) -> None:
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
            click.echo(
                f"{source} is stored as {file.name}: libraries take other names for patterns."
            )
    other_trees = manifest.origin.get(OTHER_TREES, [])
    if other_trees:
        click.echo(f"Other trees: {format_origin_value(other_trees)}; choose one with --tree.")
    for note in manifest.describe_peculiarities():
        click.echo(f"{note[0].upper()}{note[1:]}")
    unreadable = manifest.unreadable_branches
    if not unreadable:
        return
    branches = manifest.files[0].layout.branches
    click.echo(f"ROOT cannot read {len(unreadable)} of {branches} branches:")
    for name, reason in list(unreadable.items())[:MAX_LISTED_ITEMS]:
        click.echo(f"  {name}: {reason}")
    if len(unreadable) > MAX_LISTED_ITEMS:
        print_hint(f"  and {len(unreadable) - MAX_LISTED_ITEMS} more: see treehammer datasets show")
    if len(unreadable) < branches:
        click.echo('Read the others with branches = "readable".')
    else:
        click.echo(
            "Choose another tree with --tree, or load the library of its classes with --load."
        )


def print_layout_comparison(layouts: Mapping[str, TreeLayout]) -> None:
    """Print layouts side by side, with figures that do not depend on the file's size."""
    rows: dict[str, dict[str, Any]] = {}
    for name, layout in layouts.items():
        facts = [
            *_layout_facts(layout),
            ("compressed, an event", f"{layout.zipped_bytes / max(1, layout.entries):,.0f} B"),
            ("events a cluster", f"{layout.entries / max(1, layout.clusters):,.0f}"),
        ]
        for key, value in facts:
            rows.setdefault(key, {"key": key})[name] = value
    print_rows(list(rows.values()), [TableColumn("key", ""), *(TableColumn(n, n) for n in layouts)])


def format_origin_value(value: Any) -> str:
    """Format a value of a manifest's origin: a number by its kind, a text by its name."""
    if isinstance(value, dict):
        return ", ".join(
            f"{key} {item}" if isinstance(item, str) else f"{item} {key}"
            for key, item in value.items()
        )
    if not isinstance(value, list):
        return str(value)
    suffix = f", and {len(value) - MAX_LISTED_ITEMS} more (all in {MANIFEST_NAME})" * (
        len(value) > MAX_LISTED_ITEMS
    )
    return (", ".join(value[:MAX_LISTED_ITEMS]) or "none") + suffix


def file_facts(file: ManifestFile) -> list[tuple[str, str]]:
    """Return all facts of a file by name."""
    layout = file.layout
    return [
        ("file", file.name),
        ("size", format_size(file.size)),
        ("adler32", file.adler32),
        ("sha256", file.sha256),
        *([] if layout.format == RAW else _layout_facts(layout)),
    ]


def _layout_facts(layout: TreeLayout) -> list[tuple[str, str]]:
    sizes = [
        ("tree", f"{layout.tree} ({FORMAT_TITLES.get(layout.format, layout.format)})"),
        ("entries", str(layout.entries)),
        ("branches", str(layout.branches)),
        ("uncompressed", format_size(layout.unzipped_bytes)),
        ("compressed", f"{format_size(layout.zipped_bytes)}, ratio {layout.ratio:.2f}"),
    ]
    parts = [
        ("largest 2 % of branches", f"{100 * layout.top2_share:.1f} % of the compressed bytes"),
        ("clusters", _format_distribution(layout.cluster_zipped_bytes, "B")),
    ]
    ratio = ("ratio by branch", _format_distribution(layout.branch_ratio, ""))
    if layout.format == RNTUPLE:
        return [
            *sizes,
            *parts,
            ("pages", _format_distribution(layout.basket_zipped_bytes, "B")),
            ratio,
        ]
    return [
        *sizes,
        ("inside the tree's record", _format_embedded(layout)),
        *parts,
        ("baskets", _format_distribution(layout.basket_zipped_bytes, "B")),
        ("baskets are sorted by", _format_basket_order(layout)),
        ratio,
    ]


def _format_embedded(layout: TreeLayout) -> str:
    if not layout.embedded_baskets:
        return format_size(layout.embedded_bytes)
    return (
        f"{format_size(layout.embedded_bytes)}, {pluralize(layout.embedded_baskets, 'basket')}; "
        "compressed together, so that their sizes and ratios are shares"
    )


def _format_basket_order(layout: TreeLayout) -> str:
    if not layout.basket_order:
        return "not measured"
    jump = f"{layout.mean_jump_bytes:,.0f} B from one to the next that an event loop needs"
    return f"{layout.basket_order}; {jump}"


def _format_distribution(values: Distribution, unit: str) -> str:
    if not values.count:
        return "none"
    low, median, high = (
        f"{value:,.0f} {unit}" if unit else f"{value:.2f}"
        for value in (values.minimum, values.median, values.maximum)
    )
    return f"{values.count}: {low} to {high}, median {median}"


def flatten_file(file: ManifestFile) -> dict[str, Any]:
    """Flatten a file to one level of keys: ``basket_zipped_bytes_median`` and so on."""
    columns = {key: value for key, value in asdict(file).items() if key != "layout"}
    return columns | flatten_layout(file.layout)


def flatten_layout(layout: TreeLayout) -> dict[str, Any]:
    """Flatten a layout to one level of keys."""
    flat: dict[str, Any] = {}
    for key, value in asdict(layout).items():
        if isinstance(value, dict):
            flat |= {f"{key}_{part}": number for part, number in value.items()}
        else:
            flat[key] = value
    return flat
