"""Datasets as values: digests of files, the manifest with their layout, and replicas.

A dataset with a manifest never changes.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

from treehammer.collectors.json_documents import format_json, parse_json
from treehammer.collectors.shared_files import open_regular_file
from treehammer.errors import DatasetError
from treehammer.text_formatting import format_size, pluralize

MANIFEST_NAME = "manifest.json"
DATASET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
#: Compression algorithms and the number ROOT gives each.
ALGORITHMS = {"zlib": 1, "lzma": 2, "lz4": 4, "zstd": 5}
#: Formats of the main tree, and of files without any.
TTREE, RNTUPLE, RAW = "ttree", "rntuple", "raw"
#: Kind of a dataset that holds a recording of the XRootD client.
RECORDING = "recording"
#: Key of an added dataset's origin: branch that ROOT cannot read -> reason.
UNREADABLE_BRANCHES = "unreadable_branches"
#: Key of an added dataset's origin: trees and RNTuples of the first file beside the main one.
OTHER_TREES = "other_trees"
#: Key of an origin: RNTuples of the first file that are older than version 1.0 of the format.
OLD_NTUPLES = "old_ntuples"
#: Key of an added dataset's origin: top-level branches of the main tree that all files have.
BRANCHES = "branches"
#: Key of an origin: branch that not all files have -> the first files that lack it, and their number.
MISSING_BRANCHES = "missing_branches"
#: Key of an origin: branch with another number of entries than its tree -> both numbers.
OTHER_LENGTHS = "branches_of_other_lengths"
#: Key of an origin: friend trees that lie with the main tree, and are not read.
FRIEND_TREES = "friend_trees"
#: Items that a sentence names.
MAX_NAMED_ITEMS = 5
BLOCK = 1 << 20


@dataclass(frozen=True)
class FileDigest:
    """Size in bytes; ``adler32`` as 8 hex digits, ``sha256`` as 64."""

    size: int
    adler32: str
    sha256: str


def digest_file(
    source: Path, advance: Callable[[int], None] | None = None, *, copy_to: Path | None = None
) -> FileDigest:
    """Read a file once, and copy it to ``copy_to`` if that is given.

    Args:
        source: the file.
        advance: receives the number of bytes of each block.
        copy_to: a file to create.
    """
    opened = open_regular_file(source, follows_links=True)
    with opened as reader, copy_to.open("xb") if copy_to else nullcontext() as copy:
        return digest_blocks(iter(partial(reader.read, BLOCK), b""), advance, copy)


def digest_blocks(
    blocks: Iterable[bytes],
    advance: Callable[[int], None] | None,
    copy: BinaryIO | None,
) -> FileDigest:
    """Digest a file given as blocks, and write them to ``copy`` if that is given."""
    size, adler, sha = 0, 1, hashlib.sha256()
    for block in blocks:
        size += len(block)
        adler = zlib.adler32(block, adler)
        sha.update(block)
        if copy:
            copy.write(block)
        if advance:
            advance(len(block))
    return FileDigest(size, f"{adler:08x}", sha.hexdigest())


@dataclass(frozen=True)
class Distribution:
    """Five numbers of a distribution and how many values it has; all are 0 when it has none."""

    count: int
    minimum: float
    p25: float
    median: float
    p75: float
    maximum: float


@dataclass(frozen=True)
class TreeLayout:
    """Layout of the main tree or RNTuple in the file; sizes in bytes.

    Of an RNTuple, branches are the fields that stand for them, and baskets are pages.  Equal pages
    lie in the file once and count each time, so that a small file can be smaller than its parts.

    Attributes:
        format: :data:`TTREE` or :data:`RNTUPLE`; :data:`RAW` for a file without a tree, of which
            all other values are empty.
        branches: top-level ones.
        top2_share: share of the compressed bytes in the largest 2 % of the branches.
        embedded_bytes: of the compressed bytes, how many lie inside the tree's own record, as the
            baskets of very small trees do.  They are compressed together: a branch's, a basket's and
            a cluster's part of them is taken in proportion.
        branch_ratio: uncompressed by compressed bytes of each branch that holds any.
        embedded_baskets: number of these baskets, among all.
        spanning_baskets: baskets with entries of several clusters.
        basket_order: how the baskets of a TTree are sorted in the file, as measured: ``entry``,
            ``branch``, ``entry and branch``, ``neither``, or '' where it was not measured.
        mean_jump_bytes: mean distance in the file, forth or back, from the end of a basket to the
            next one that an event loop over all branches needs; 0 where it reads on and on.
    """

    tree: str
    format: str
    entries: int
    branches: int
    unzipped_bytes: int
    zipped_bytes: int
    embedded_bytes: int
    top2_share: float
    clusters: int
    cluster_zipped_bytes: Distribution
    basket_zipped_bytes: Distribution
    branch_ratio: Distribution
    basket_order: str = ""
    mean_jump_bytes: float = 0.0
    embedded_baskets: int = 0
    spanning_baskets: int = 0

    @property
    def ratio(self) -> float:
        """Compression ratio of the whole tree; 1 where it holds nothing."""
        return self.unzipped_bytes / self.zipped_bytes if self.zipped_bytes else 1.0


_NO_VALUES = Distribution(0, 0.0, 0.0, 0.0, 0.0, 0.0)
#: Layout of files without a tree.
RAW_LAYOUT = TreeLayout("", RAW, 0, 0, 0, 0, 0, 0.0, 0, _NO_VALUES, _NO_VALUES, _NO_VALUES)


@dataclass(frozen=True)
class ManifestFile:
    """One file: ``adler32`` as 8 hex digits, ``sha256`` as 64."""

    name: str
    size: int
    adler32: str
    sha256: str
    layout: TreeLayout


@dataclass(frozen=True)
class Manifest:
    """A named, immutable set of files and how they were made."""

    name: str
    files: tuple[ManifestFile, ...]
    origin: Mapping[str, Any]

    @cached_property
    def hash(self) -> str:
        """Identity of the dataset: names, sizes and checksums of its files."""
        content = [[f.name, f.size, f.adler32, f.sha256] for f in self.files]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def unreadable_branches(self) -> Mapping[str, str]:
        """Branches that ROOT cannot read, with the reason; those of shipped datasets all can."""
        return dict(self.origin.get(UNREADABLE_BRANCHES, {}))

    @property
    def missing_branches(self) -> Mapping[str, str]:
        """Branches that not all files have, which no test reads, with the files that lack them."""
        return dict(self.origin.get(MISSING_BRANCHES, {}))

    @property
    def other_lengths(self) -> Mapping[str, str]:
        """Branches with another number of entries than their tree, with both numbers."""
        return dict(self.origin.get(OTHER_LENGTHS, {}))

    @property
    def friend_trees(self) -> tuple[str, ...]:
        """Friend trees that lie with the main tree, and are not read."""
        return tuple(self.origin.get(FRIEND_TREES, ()))

    def describe_peculiarities(self) -> Iterator[str]:
        """Describe peculiarities that the main tree's numbers do not show."""
        if missing := self.missing_branches:
            examples = format_some([f"{name} in {files}" for name, files in missing.items()])
            yield (
                f"{pluralize(len(missing), 'branch is', 'branches are')} missing in some files and never "
                f"read ({examples}); fractions are of the "
                f"{pluralize(len(self.branches), 'common branch', 'common branches')}."
            )
        if lengths := self.other_lengths:
            examples = format_some([f"{name}: {numbers}" for name, numbers in lengths.items()])
            yield (
                f"{pluralize(len(lengths), 'branch has', 'branches have')} another number of entries "
                f"than the tree ({examples})."
            )
        if friends := self.friend_trees:
            yield f"friend trees are not read: {format_some(friends)}."

    @property
    def branches(self) -> tuple[str, ...]:
        """Top-level branches of the main tree that all files have; empty where the manifest does not list them."""
        return tuple(self.origin.get(BRANCHES, ()))

    @property
    def trees(self) -> tuple[str, ...]:
        """All trees and RNTuples of the first file; empty where the manifest does not list them."""
        other_trees = self.origin.get(OTHER_TREES)
        return () if other_trees is None else (self.tree, *other_trees)

    @property
    def old_ntuples(self) -> tuple[str, ...]:
        """RNTuples of the first file that are older than version 1.0 of the format."""
        return tuple(self.origin.get(OLD_NTUPLES, ()))

    def describe_other_trees(self) -> Iterator[str]:
        """Describe the trees and RNTuples that could have been meant, a sentence each."""
        if other_trees := [name for name in self.trees if name != self.tree]:
            yield f"Other trees: {format_some(other_trees)}; choose one with --tree."
        if self.old_ntuples:
            yield describe_old_ntuples(self.old_ntuples)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(f.size for f in self.files)

    @property
    def is_raw(self) -> bool:
        """Whether its files hold no tree."""
        return self.files[0].layout.format == RAW

    @property
    def tree(self) -> str:
        """Name of the main tree, '' for raw files."""
        return self.files[0].layout.tree

    def to_json(self) -> str:
        """Return the text of ``manifest.json``."""
        return format_json(self, indent=1, sort_keys=True)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read ``manifest.json`` of a dataset's folder.

        Raises:
            DatasetError: there is none, or it is damaged.
        """
        path = folder / MANIFEST_NAME
        try:
            return parse_json(cls, path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise DatasetError(
                f"is not a dataset: it has no {MANIFEST_NAME}",
                where=str(folder),
                hint="Remove the folder if it is not needed.",
            ) from error
        except (OSError, ValueError) as error:
            raise DatasetError(
                f"damaged manifest ({error})",
                where=str(path),
                hint="Remove the folder and make the dataset again.",
            ) from error


def format_some(items: Sequence[str]) -> str:
    """List the first items, and the number of the others."""
    more_count = len(items) - MAX_NAMED_ITEMS
    return ", ".join(items[:MAX_NAMED_ITEMS]) + (
        f", and {more_count} more" if more_count > 0 else ""
    )


def describe_old_ntuples(names: Sequence[str]) -> str:
    """Say that some RNTuples are of a format that no supported ROOT reads."""
    return f"RNTuples before version 1.0 of the format, which no ROOT since 6.34 reads: {format_some(names)}."


@dataclass(frozen=True)
class Replica:
    """One file of a dataset at one door, as a catalogue has it; the door may know better.

    Attributes:
        site: where jobs that are near it run.
        rse: Rucio's name of the storage, '' where the catalogue has no such names.
        file: as the manifest calls it.
        url: URL for ROOT to open.
        path: remainder of ``url`` after the storage's prefix, '' where unknown.
    """

    site: str
    rse: str
    file: str
    url: str
    path: str = ""

    def url_at_prefix(self, prefix: str) -> str:
        """Return its URL at a door that leads to the storage's prefix; '' if the path is unknown."""
        return f"{prefix.rstrip('/')}/{self.path}" if self.path else ""


#: Names of formats as people write them.
FORMAT_TITLES = {TTREE: "TTree", RNTUPLE: "RNTuple"}


def file_facts(file: ManifestFile) -> list[tuple[str, str]]:
    """Return all facts of a file by name, for people."""
    layout = file.layout
    return [
        ("file", file.name),
        ("size", format_size(file.size)),
        ("adler32", file.adler32),
        ("sha256", file.sha256),
        *([] if layout.format == RAW else layout_facts(layout)),
    ]


def layout_facts(layout: TreeLayout) -> list[tuple[str, str]]:
    """Return the facts of a layout by name, for people."""
    sizes = [
        ("tree", f"{layout.tree} ({FORMAT_TITLES.get(layout.format, layout.format)})"),
        ("entries", f"{layout.entries:,}"),
        ("branches", f"{layout.branches:,}"),
        ("uncompressed", format_size(layout.unzipped_bytes)),
        ("compressed", f"{format_size(layout.zipped_bytes)}, ratio {layout.ratio:.2f}"),
    ]
    parts = [
        ("largest 2 % of branches", f"{100 * layout.top2_share:.1f} % of the compressed bytes"),
        ("clusters", _format_clusters(layout)),
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
        ("baskets", _format_baskets(layout)),
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


def _format_clusters(layout: TreeLayout) -> str:
    if not layout.spanning_baskets:
        return _format_distribution(layout.cluster_zipped_bytes, "B")
    events = layout.entries / max(1, layout.clusters)
    return f"{layout.clusters} of {events:,.0f} events; baskets do not end with them"


def _format_baskets(layout: TreeLayout) -> str:
    sizes = _format_distribution(layout.basket_zipped_bytes, "B")
    spanning = layout.spanning_baskets
    return f"{sizes}; {spanning} of them span several clusters" if spanning else sizes


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
