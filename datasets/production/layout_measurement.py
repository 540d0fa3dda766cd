"""Layout of a file's tree or RNTuple, measured through ROOT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.worker.payload.crash_report import describe_crash
from treehammer.datasets.model.manifest import TTREE, Distribution, TreeLayout
from treehammer.datasets.production import root_process
from treehammer.errors import DatasetError
from treehammer.progress import ProgressFactory, no_progress
from treehammer.text_formatting import pluralize

if TYPE_CHECKING:  # every submission imports this module, and none measures
    import numpy as np

#: Release that measures files by default.
DEFAULT_ROOT = "6.40.00"
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
        types: leaf or field -> its type; files do not differ in them.
    """

    branches: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    other_lengths: Mapping[str, str] = field(default_factory=dict)
    friends: tuple[str, ...] = ()
    other_trees: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)


def measure_layouts(
    paths: Sequence[Path],
    software: SoftwareRequest,
    *,
    tree: str = "",
    bars: ProgressFactory = no_progress,
) -> tuple[TreeLayout, ...]:
    """Measure the main tree or RNTuple of each file, as :func:`measure_files`."""
    return measure_files(paths, software, tree=tree, bars=bars)[0]


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
        software: the ROOT to do it with, from :func:`treehammer.datasets.production.root_process.prepare_dataset_root`.
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
    content = replace(compare_trees(paths, items), other_trees=tuple(answer["others"]))
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
    top_levels = {path: dict.fromkeys(item["branches"]) for path, item in filled}
    names = dict.fromkeys(name for top_level in top_levels.values() for name in top_level)
    missing = {
        name: ", ".join(lacking)
        for name in names
        if (lacking := [path.name for path in top_levels if name not in top_levels[path]])
    }
    return TreeContent(
        branches=tuple(name for name in names if name not in missing),
        missing=missing,
        other_lengths={
            name: f"{entries} of {item['entries']} entries"
            + (f" in {path.name}" if len(paths) > 1 else "")
            for path, item in filled
            for name, entries in item["lengths"].items()
        },
        friends=tuple(dict.fromkeys(friend for item in items for friend in item["friends"])),
        types=types,
    )


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


def probe_file(
    path: Path,
    layout: TreeLayout,
    software: SoftwareRequest,
    *,
    libraries: Sequence[Path] = (),
    bars: ProgressFactory = no_progress,
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


def _build_layout(item: dict[str, Any]) -> TreeLayout:
    import numpy as np

    unzipped = np.asarray(item["unzipped"], dtype=np.int64)
    zipped = np.asarray(item["zipped"], dtype=np.int64)
    embedded = np.asarray(item["embedded"], dtype=np.int64)
    # Embedded baskets are compressed with the record they lie in; nothing finer is known.
    record_share = item["record_zipped"] / item["record_unzipped"]
    embedded_zipped = embedded * record_share
    branch_zipped = zipped + embedded_zipped
    stored = branch_zipped > 0
    clusters = [
        direct + embedded_size * record_share
        for direct, embedded_size in zip(
            item["clusters"], item["embeddedClusters"] or [0] * len(item["clusters"]), strict=True
        )
    ]
    embedded_baskets = [size * record_share for size in item["embeddedBaskets"]]
    return TreeLayout(
        tree=item["tree"],
        format=item["format"],
        entries=item["entries"],
        branches=len(zipped),
        unzipped_bytes=int(unzipped.sum() + embedded.sum()),
        zipped_bytes=int(zipped.sum()) + round(float(embedded_zipped.sum())),
        embedded_bytes=round(float(embedded_zipped.sum())),
        top2_share=_share_of_largest(branch_zipped),
        clusters=len(item["clusters"]),
        cluster_zipped_bytes=summarize_values([size for size in clusters if size]),
        basket_zipped_bytes=summarize_values([*item["baskets"], *embedded_baskets]),
        branch_ratio=summarize_values(
            ((unzipped + embedded)[stored] / branch_zipped[stored]).tolist()
        ),
        embedded_baskets=len(embedded_baskets),
        basket_order=_format_basket_order(item) if item["format"] == TTREE else "",
        mean_jump_bytes=item["mean_jump"],
    )


def _format_basket_order(item: dict[str, Any]) -> str:
    return " and ".join(item["sorted"]) or "neither"


def _share_of_largest(sizes: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    import numpy as np

    count = max(1, round(TOP_BRANCH_SHARE * len(sizes)))
    total = sizes.sum()
    return float(np.sort(sizes)[-count:].sum() / total) if total else 0.0


def summarize_values(values: Sequence[float]) -> Distribution:
    """Return minimum, quartiles (linearly interpolated) and maximum."""
    import numpy as np

    if not values:
        return Distribution(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return Distribution(
        len(values), *(float(q) for q in np.percentile(values, (0, 25, 50, 75, 100)))
    )
