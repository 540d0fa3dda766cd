"""Checks of what a test reads, before anything is sent: contents of datasets, and software at doors."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from treehammer.collectors.kit.treehammer_kit.payload_task import (
    READABLE,
    PayloadError,
    select_branches,
)
from treehammer.collectors.software import providers
from treehammer.collectors.storage_access import FILE_CLIENT, XROOTD_CLIENT, find_limit, find_scheme
from treehammer.datasets.catalogues.folder_catalogue import GENERATED, REWRITTEN
from treehammer.datasets.manifest import TTREE, Manifest, describe_old_ntuples, format_some
from treehammer.datasets.specs.dataset_specs import GeneratedSpec, RawSpec, load_shipped_spec
from treehammer.errors import DefinitionError, suggest_word
from treehammer.hctests.definition.execution_order import expand_variants
from treehammer.hctests.definition.model import DATASET_AXIS
from treehammer.hctests.definition.test_identity import PinnedTest
from treehammer.hctests.definition.toml_models import TestDefinition
from treehammer.submit.planning.job_planner import read_payload, reads_with_uproot
from treehammer.submit.planning.job_sequence import JobSequence
from treehammer.submit.planning.site_selection import OPERATIONS, list_operations, locate_door
from treehammer.submit.sites.site_model import DoorAccess, Site
from treehammer.text_formatting import pluralize

#: Calls of the kit in a payload that need ROOT, and the clients of the load generator.
_ROOT_CALL = re.compile(r"\btreehammer_kit\.run\(|\brun_dataframe\(")
_LOAD_CALL = re.compile(r"\btreehammer_load\.run\(")


@dataclass(frozen=True)
class DatasetContents:
    """Names in a dataset; no names where they are not known.

    Attributes:
        dataset: name of the dataset.
        tree: the main tree.
        trees: all trees.
        branches: branches of the main tree.
        unreadable: those that ROOT cannot read, with the reason.
        missing: branches that not all files have, with the files that lack them.
        smallest_file: bytes of the smallest file; None where it is not known.
        old_ntuples: RNTuples that are older than version 1.0 of the format.
    """

    dataset: str
    tree: str
    trees: tuple[str, ...] = ()
    branches: tuple[str, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    smallest_file: int | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    old_ntuples: tuple[str, ...] = ()

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> DatasetContents:
        """List names from a manifest, or from the shipped spec behind it."""
        spec = _find_generated_spec(manifest)
        smallest_file = min(file.size for file in manifest.files)
        if spec and manifest.tree == spec.tree:
            shipped = cls.from_spec(spec)
            is_ttree = manifest.files[0].layout.format == TTREE
            # Fields of an RNTuple differ from the branches, as it has no counters.
            branches = shipped.branches if is_ttree else ()
            return cls(
                manifest.name, spec.tree, shipped.trees, branches, smallest_file=smallest_file
            )
        return cls(
            manifest.name,
            manifest.tree,
            manifest.trees,
            manifest.branches,
            manifest.unreadable_branches,
            smallest_file,
            manifest.missing_branches,
            manifest.old_ntuples,
        )

    @classmethod
    def from_spec(cls, spec: GeneratedSpec | RawSpec) -> DatasetContents:
        """List the names that a generated dataset has, made or not, or the size of raw files."""
        if isinstance(spec, RawSpec):
            return cls(spec.name, spec.tree, smallest_file=spec.file_size)
        return cls(spec.name, spec.tree, (spec.tree,), spec.branch_names)


def _find_generated_spec(manifest: Manifest) -> GeneratedSpec | None:
    """Find the shipped spec that all branches of a dataset were generated from."""
    kind, name = manifest.origin.get("kind"), manifest.name
    if kind == REWRITTEN:
        name = manifest.origin["from"]["name"]
    if kind not in (GENERATED, REWRITTEN):
        return None
    spec = load_shipped_spec(name)
    return spec if isinstance(spec, GeneratedSpec) else None


@dataclass(frozen=True)
class ContentProblem:
    """Key of test.toml, the problem and its remedy."""

    key: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.key}: {self.message}{self.hint and f'. {self.hint}'}"


def check_contents(
    definition: TestDefinition, manifests: Sequence[Manifest], folder: Path | None = None
) -> None:
    """Refuse a tree, branches or blocks that a dataset does not have, as far as they are known.

    Bundled datasets and twins must have the same events, since their reading is compared.

    Raises:
        DefinitionError: with the dataset and the nearest names.
    """
    if DATASET_AXIS in definition.matrix.bundle or definition.twins:
        _check_copies(definition, manifests)
    for contents in map(DatasetContents.from_manifest, manifests):
        for problem in find_content_problems(definition, contents, folder):
            where = f"{definition.test.name}: {problem.key}"
            raise DefinitionError(problem.message, where=where, hint=problem.hint)


def _check_copies(definition: TestDefinition, manifests: Sequence[Manifest]) -> None:
    for other in manifests[1:]:
        first, second = (
            [file.layout.entries for file in manifest.files] for manifest in (manifests[0], other)
        )
        if first != second:
            raise DefinitionError(
                f"datasets {manifests[0].name!r} and {other.name!r} cannot be compared: they have "
                f"{_describe_entries(first)} and {_describe_entries(second)}",
                where=definition.test.name,
                hint="Name copies of the same events, twins by -S twins.FORMAT=NAME. Without twins, "
                "remove dataset from bundle, so that each has jobs of its own.",
            )


def _describe_entries(entries: Sequence[int]) -> str:
    return f"{sum(entries)} events in {pluralize(len(entries), 'file')}"


def find_content_problems(
    definition: TestDefinition, contents: DatasetContents, folder: Path | None
) -> Iterator[ContentProblem]:
    """Find a tree, branches or blocks that a dataset does not have, as far as they are known.

    Args:
        definition: the test.
        contents: of a dataset that it reads.
        folder: the test's files, with lists of branches; None: such lists are not checked.
    """
    yield from _find_size_problems(definition, contents)
    trees = contents.trees
    if definition.test.tree and trees and definition.test.tree not in trees:
        is_old = definition.test.tree in contents.old_ntuples
        reason = f"{describe_old_ntuples(contents.old_ntuples)} " if is_old else ""
        yield ContentProblem(
            "test.tree",
            f"dataset {contents.dataset!r} has no {'readable ' if is_old else ''}tree {definition.test.tree!r}",
            f"{reason or suggest_word(definition.test.tree, trees)}It has: {', '.join(trees)} (-S tree=NAME).",
        )
    elif definition.test.tree in ("", contents.tree):
        yield from _find_branch_problems(definition, contents, folder)


def _find_size_problems(
    definition: TestDefinition, contents: DatasetContents
) -> Iterator[ContentProblem]:
    """Find blocks of load tests that are larger than the smallest file; the payload refuses them."""
    size = contents.smallest_file
    if definition.load is None or size is None:
        return
    doors = definition.axes.get("door", ("",))
    variants = [variant for door in doors for variant in expand_variants(definition, str(door))]
    points = [{**definition.settings, **dict(variant.values)} for variant in variants]
    for key, measure_read in _BLOCK_SIZES.items():
        most = max(map(measure_read, points), default=0)
        if most > size:
            table = "matrix" if key in definition.axes else "settings"
            yield ContentProblem(
                f"{table}.{key}",
                f"a read of {most} bytes is larger than the smallest file of dataset "
                f"{contents.dataset!r}, which has {size} bytes",
                f"Choose larger files (-S dataset=NAME), or reads of at most {size / 1e3:g} kB.",
            )


def _parse_number(value: Any) -> float:
    """Parse a number; 0 for other values, which the payload refuses."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


#: Axis or setting of shipped load tests -> bytes of their largest read.
_BLOCK_SIZES: Mapping[str, Callable[[Mapping[str, Any]], int]] = {
    "block_kb": lambda values: round(1e3 * _parse_number(values.get("block_kb"))),
    # The longest pieces of a range such as 10-20.
    "chunk_kb": lambda values: round(
        1e3
        * _parse_number(values.get("vector"))
        * _parse_number(str(values.get("chunk_kb", "")).rpartition("-")[2])
    ),
}


def _find_branch_problems(
    definition: TestDefinition, contents: DatasetContents, folder: Path | None
) -> Iterator[ContentProblem]:
    names = contents.branches
    for request in definition.axes.get("branches", ()):
        is_list_known = folder is not None or not str(request).startswith("@")
        if not (names and isinstance(request, str) and is_list_known):
            continue
        # Whether 'readable' leaves any depends on the unreadable ones alone.
        unreadable = tuple(contents.unreadable) if request == READABLE else ()
        try:
            select_branches(
                names, {}, request, seed=0, folder=str(folder or ""), unreadable=unreadable
            )
        except PayloadError as error:
            hint = _explain_missing_branches(request, contents)
            message = f"dataset {contents.dataset!r}: {error}"
            yield ContentProblem("matrix.branches", message, hint)


def _explain_missing_branches(request: str, contents: DatasetContents) -> str:
    """Name the branches of a request that not all files have; '' for none."""
    patterns = [part.strip().lstrip("!") for part in request.split(",")]
    missing = [
        f"{name!r} is missing in {files}"
        for name, files in contents.missing.items()
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    ]
    return f"Branches must be in all files: {format_some(missing)}." if missing else ""


def list_content_notes(definition: TestDefinition, manifests: Iterable[Manifest]) -> list[str]:
    """List peculiarities of the main trees that a test reads: omitted and short branches."""
    return [
        f"Dataset {manifest.name}: {note}"
        for manifest in manifests
        if definition.test.tree in ("", manifest.tree)
        for note in manifest.describe_peculiarities()
    ]


def check_readers(jobs: JobSequence, *, has_credential: bool) -> list[str]:
    """List each door that a ROOT is known not to read: its measurements end as not supported.

    Raises:
        DefinitionError: a payload of the kit calls ROOT, or reads remote doors in a load, with software
            that no node has by itself.
    """
    pinned = jobs.planner.pinned
    operations = list_operations(pinned.definition)
    notes: dict[str, None] = {}
    for access, variant, software in jobs.list_reads():
        if software.provider in providers.WITHOUT_ROOT:
            _refuse_missing_software(pinned, access, str(variant["root"]))
        operation = OPERATIONS.get(str(variant["access"]), "")
        if operation not in operations:
            continue
        address = locate_door(access.door)
        if limit := find_limit(operation, address, software, has_credential=has_credential):
            notes[f"Door {access.door.name} of site {access.storage.name}: {limit}"] = None
    return [*notes]


def _refuse_missing_software(pinned: PinnedTest, access: DoorAccess, value: str) -> None:
    """Refuse a value of the axis root without ROOT that lacks what a payload calls at a door."""
    where, text = f"{pinned.definition.test.name}: axis root", read_payload(pinned)
    needs_root = _ROOT_CALL.search(text) and not reads_with_uproot(pinned, value)
    if needs_root and not _has_module(access.site, "ROOT"):
        raise DefinitionError(
            f"root = {value!r} has no ROOT, which the loop of this payload needs",
            where=where,
            hint="Name a release: -P root=6.40.00.",
        )
    scheme = find_scheme(locate_door(access.door))
    if not _LOAD_CALL.search(text) or scheme is None or scheme.client == FILE_CLIENT:
        return
    module = "XRootD" if scheme.client == XROOTD_CLIENT else "aiohttp"
    if value == "none" and not _has_module(access.site, module):
        raise DefinitionError(
            f"root = 'none' has no client of {scheme.name}:// (door {access.door.name} of "
            f"site {access.storage.name})",
            where=where,
            hint="Set -P root=xrootd:6.2.1; 'none' is enough for doors that are a path.",
        )


def _has_module(site: Site, name: str) -> bool:
    """Return whether jobs find a module without being sent one: known of this machine alone."""
    return site.is_local and find_spec(name) is not None
