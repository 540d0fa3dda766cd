"""Measurement of the trees in a dataset's files: their layouts, common branches and unreadable ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import quantiles
from typing import Any

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.worker.run.crash_causes import describe_crash
from treehammer.datasets import root_process
from treehammer.datasets.manifest import TTREE, Distribution, TreeLayout
from treehammer.errors import DatasetError
from treehammer.text_formatting import ProgressFactory, join_names, no_progress, pluralize

TOP_BRANCH_SHARE = 0.02


@dataclass(frozen=True)
class TreeContent:
    """Common branches of the main trees of a dataset's files, and their differences.

    Attributes:
        branches: top-level branches of all files with entries, in the order of the first of them.
        missing: branch that a file with entries lacks -> the files that lack it.
        other_lengths: branch with another number of entries than its tree -> both numbers.
        friends: friend trees that lie with the main trees; they are not read.
        other_trees: trees and RNTuples of the first file beside the main one.
        old_ntuples: RNTuples of the first file before version 1.0 of the format, which cannot be read.
        types: leaf or field -> its type; files do not differ in them.
    """

    branches: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    other_lengths: Mapping[str, str] = field(default_factory=dict)
    friends: tuple[str, ...] = ()
    other_trees: tuple[str, ...] = ()
    old_ntuples: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)


def measure_files(
    paths: Sequence[Path],
    software: SoftwareRequest,
    *,
    tree: str = "",
    bars: ProgressFactory = no_progress,
) -> tuple[tuple[TreeLayout, ...], TreeContent]:
    """Measure the main tree or RNTuple of each file, and compare the files with each other.

    Args:
        paths: ROOT files that all hold it.
        software: the ROOT to do it with, from :func:`prepare_dataset_root`.
        tree: its name; by default the tree or RNTuple of most entries times branches of the first file
            with entries.
        bars: opens progress bars.

    Raises:
        DatasetError: a file cannot be read or holds no such tree, or two files hold a branch with
            different types.
        SoftwareError: this ROOT cannot be used.
    """
    request = {"paths": [str(path) for path in paths], "tree": tree}
    with bars("Measuring files", len(paths)) as step:
        answer = root_process.run_action("measure", request, software, step)
    items = answer["layouts"]
    content = replace(
        compare_trees(paths, items),
        other_trees=tuple(answer["others"]),
        old_ntuples=tuple(answer["old_ntuples"]),
    )
    return tuple(_build_layout(item) for item in items), content


def compare_trees(paths: Sequence[Path], items: Sequence[Mapping[str, Any]]) -> TreeContent:
    """Compare the trees of a dataset's files.

    Files without entries may lack branches, as nothing is read of them.

    Args:
        paths: the files.
        items: the answers of the action ``measure``.

    Raises:
        DatasetError: two files hold a branch with different types.
    """
    types = _merge_types(paths, items)
    filled = [(path, item) for path, item in zip(paths, items, strict=True) if item["entries"]]
    names = dict.fromkeys(name for _, item in filled for name in item["branches"])
    missing = _find_missing_branches(names, filled)
    return TreeContent(
        branches=tuple(name for name in names if name not in missing),
        missing=missing,
        other_lengths=_describe_other_lengths(filled, names_files=len(paths) > 1),
        friends=tuple(dict.fromkeys(friend for item in items for friend in item["friends"])),
        types=types,
    )


def _find_missing_branches(
    names: Iterable[str], filled: Sequence[tuple[Path, Mapping[str, Any]]]
) -> dict[str, str]:
    """Map each branch that some files lack to the first of these files, of perhaps thousands."""
    top_levels = [(path.name, frozenset(item["branches"])) for path, item in filled]
    lacking = {name: [file for file, level in top_levels if name not in level] for name in names}
    return {name: join_names(files) for name, files in lacking.items() if files}


def _describe_other_lengths(
    filled: Sequence[tuple[Path, Mapping[str, Any]]], *, names_files: bool
) -> dict[str, str]:
    """Map each branch with another number of entries than its tree to both numbers."""
    return {
        name: f"{entries} of {item['entries']} entries"
        + (f" in {path.name}" if names_files else "")
        for path, item in filled
        for name, entries in item["lengths"].items()
    }


def _merge_types(paths: Sequence[Path], items: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the types of all leaves.

    Raises:
        DatasetError: two files hold a branch with different types.
    """
    types: dict[str, tuple[str, Path]] = {}
    for path, item in zip(paths, items, strict=True):
        differing = [
            name for name, kind in item["types"].items() if types.get(name, (kind, path))[0] != kind
        ]
        if differing:
            expected, first = types[differing[0]]
            more = f", and {pluralize(len(differing) - 1, 'more branch', 'more branches')} differ"
            raise DatasetError(
                f"branch {differing[0]!r} is {item['types'][differing[0]]} here and {expected} in "
                f"{first.name}{more if len(differing) > 1 else ''}",
                where=str(path),
                hint="Readers of several files take the types of the first for all. Add files of equal "
                "types as a dataset of their own.",
            )
        types.update(
            {name: (kind, path) for name, kind in item["types"].items() if name not in types}
        )
    return {name: kind for name, (kind, _) in types.items()}


def _add_embedded(
    direct: Sequence[float], embedded: Sequence[float], share: float = 1
) -> list[Any]:
    """Add a share of the embedded sizes, of which a list may be empty, to the others."""
    sizes = zip(direct, embedded or [0] * len(direct), strict=True)
    return [size + embedded_size * share for size, embedded_size in sizes]


def _build_layout(item: dict[str, Any]) -> TreeLayout:
    # Embedded baskets are compressed with the record they lie in; nothing finer is known.
    record_share = item["record_zipped"] / item["record_unzipped"]
    embedded_zipped = math.fsum(size * record_share for size in item["embedded"])
    zipped = _add_embedded(item["zipped"], item["embedded"], record_share)
    unzipped = _add_embedded(item["unzipped"], item["embedded"])
    clusters = _add_embedded(item["clusters"], item["embeddedClusters"], record_share)
    embedded_baskets = [size * record_share for size in item["embeddedBaskets"]]
    largest = max(1, round(TOP_BRANCH_SHARE * len(zipped)))
    total = math.fsum(zipped)
    return TreeLayout(
        tree=item["tree"],
        format=item["format"],
        entries=item["entries"],
        branches=len(zipped),
        unzipped_bytes=sum(unzipped),
        zipped_bytes=sum(item["zipped"]) + round(embedded_zipped),
        embedded_bytes=round(embedded_zipped),
        top2_share=math.fsum(sorted(zipped)[-largest:]) / total if total else 0.0,
        clusters=len(item["clusters"]),
        cluster_zipped_bytes=summarize_values([size for size in clusters if size]),
        basket_zipped_bytes=summarize_values([*item["baskets"], *embedded_baskets]),
        branch_ratio=summarize_values(
            [sizes[0] / sizes[1] for sizes in zip(unzipped, zipped, strict=True) if sizes[1] > 0]
        ),
        embedded_baskets=len(embedded_baskets),
        spanning_baskets=item["spanning"],
        basket_order=" and ".join(item["sorted"]) or "neither" if item["format"] == TTREE else "",
        mean_jump_bytes=item["mean_jump"],
    )


def summarize_values(values: Sequence[float]) -> Distribution:
    """Return minimum, quartiles (linearly interpolated) and maximum."""
    alone = [float(sum(values))] * 3
    p25, median, p75 = alone if len(values) < 2 else quantiles(values, n=4, method="inclusive")
    least, most = float(min(values, default=0.0)), float(max(values, default=0.0))
    return Distribution(len(values), least, p25, median, p75, most)


def probe_file(
    path: Path,
    layout: TreeLayout,
    software: SoftwareRequest,
    *,
    libraries: Sequence[Path] = (),
    bars: ProgressFactory,
) -> dict[str, str]:
    """Read all branches in processes that may crash; return those that ROOT cannot read -> reason.

    All entries are read, of trees above 100 MB the first 2000. The libraries are loaded first.

    Raises:
        DatasetError: the file cannot be read, or holds no such tree.
        SoftwareError: this ROOT cannot be used.
    """
    loaded = [str(library.absolute()) for library in libraries]
    request = {"path": str(path), "tree": layout.tree, "libraries": loaded}
    with bars("Reading branches", layout.branches) as step:
        answer = root_process.run_action("probe", request, software, step, check_memory=True)
    return {item["name"]: _describe_unreadable(item) for item in answer["unreadable"]}


def _describe_unreadable(item: Mapping[str, str]) -> str:
    cause = describe_crash(item["log"]) or (
        f"Reading it {item['end']}, without a message or C++ functions."
        if "SIG" in item["end"]
        else f"Reading it {item['end']}."
    )
    return f"{item['class']}: {cause}" if item["class"] else cause
