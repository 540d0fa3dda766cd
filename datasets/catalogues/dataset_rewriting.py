"""Datasets on request: shipped ones, a user's raw files, and the same content in another layout.

A rewritten dataset is verified by value checksums.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.config import Settings
from treehammer.datasets import DEFAULT_ROOT, root_process, tree_measurement
from treehammer.datasets.catalogues.dataset_verification import check_new_name
from treehammer.datasets.catalogues.folder_catalogue import (
    REWRITTEN,
    FolderCatalogue,
    describe_content,
    describe_file,
    ensure_dataset,
)
from treehammer.datasets.manifest import RNTUPLE, Manifest, ManifestFile, digest_file
from treehammer.datasets.specs import dataset_specs, rewrite_options
from treehammer.datasets.specs.dataset_specs import AnySpec, RawSpec
from treehammer.datasets.specs.rewrite_options import RewriteOptions
from treehammer.errors import DatasetError
from treehammer.text_formatting import ProgressFactory, byte_progress
from treehammer.version import __version__

#: Suffix of a user's spec.
SPEC_SUFFIX = ".toml"
#: Factor of the required space, since compressed sizes differ between layouts.
DISK_SPACE_MARGIN = 1.25
#: Maximum number of leaves listed in a message.
MAX_NAMED_LEAVES = 5


@dataclass(frozen=True)
class ValueChecksums:
    """Value checksums of files: of all leaves together and of each leaf."""

    checksum: str
    leaves: Mapping[str, str]
    uncovered: tuple[str, ...]


def make_dataset(
    catalogue: FolderCatalogue,
    settings: Settings,
    name: str,
    options: RewriteOptions,
    new_name: str,
    *,
    bars: ProgressFactory,
    replace_existing: bool = False,
) -> Manifest:
    """Make a dataset, or verify an existing one.

    Args:
        catalogue: of the new dataset.
        settings: all settings.
        name: of a shipped dataset, of one to rewrite, or of a file with a user's spec.
        options: layout of a rewritten one; ``root`` alone is the release of a shipped one.
        new_name: of a rewritten one; '' for one by its options.
        bars: opens progress bars.
        replace_existing: replace a dataset of that name.

    Raises:
        DatasetError: there is no such dataset, or the options do not apply to it.
        SoftwareError: the requested ROOT cannot be used.
    """
    plan = _find_spec(name, options, new_name)
    # A spec takes another release without being rewritten.
    if options.changes_layout or new_name or (options.root and not plan):
        source = ensure_dataset(name, settings, bars)
        release = options.root or source.origin.get("root_requested", DEFAULT_ROOT)
        return rewrite_dataset(
            catalogue,
            source,
            options,
            new_name or options.suggest_name(name),
            root_process.prepare_dataset_root(release, settings.software_dir, bars),
            bars=bars,
            replace_existing=replace_existing,
        )
    if isinstance(plan, RawSpec):
        return catalogue.make_raw(plan, bars=bars, replace_existing=replace_existing)
    if plan:
        software = root_process.prepare_dataset_root(
            options.root or plan.dataset.root, settings.software_dir, bars
        )
        return catalogue.make(
            plan,
            software,
            source=settings.sources_dir,
            bars=bars,
            replace_existing=replace_existing,
        )
    raise _build_name_error(catalogue, name)


def _build_name_error(catalogue: FolderCatalogue, name: str) -> DatasetError:
    """Build the error for a dataset that has no spec and is not rewritten."""
    if not catalogue.has(name):
        return catalogue.unknown_dataset_error(name)
    hint = f"Shipped: {', '.join(dataset_specs.list_shipped_specs())}. To rewrite it, give options "
    hint += "such as --compression, --order or --format."
    return DatasetError("is not a shipped dataset", where=name, hint=hint)


def _find_spec(name: str, options: RewriteOptions, new_name: str) -> AnySpec | None:
    """Load the spec of a user's file or of a shipped dataset; None for other names."""
    if name.endswith(SPEC_SUFFIX):
        return _load_own_spec(Path(name), options, new_name)
    return dataset_specs.load_shipped_spec(name)


def _load_own_spec(path: Path, options: RewriteOptions, new_name: str) -> AnySpec:
    """Load a user's spec.

    Raises:
        DatasetError: it is wrong, or has a name or options that it cannot have.
    """
    spec = dataset_specs.load_spec(path)
    if options.changes_layout or new_name or (options.root and isinstance(spec, RawSpec)):
        raise DatasetError(
            "is a spec, which has one layout",
            where=str(path),
            hint=f"Make it without these options; a tree can then be rewritten as {spec.name!r}.",
        )
    check_new_name(spec.name)
    return spec


def rewrite_dataset(
    catalogue: FolderCatalogue,
    source: Manifest,
    options: RewriteOptions,
    name: str,
    software: SoftwareRequest,
    *,
    bars: ProgressFactory,
    replace_existing: bool = False,
) -> Manifest:
    """Make a dataset with the content of another, or verify an existing one.

    Args:
        catalogue: Catalogue of the source and the new dataset.
        source: Dataset of TTrees.
        options: Layout options.
        name: Name of the new dataset.
        software: ROOT that writes and reads it, from
            :func:`treehammer.datasets.root_process.prepare_dataset_root`.
        bars: Opens progress bars.
        replace_existing: Replace a dataset of that name.

    Raises:
        DatasetError: The source has RNTuples, a branch cannot be written, the result has other
            values or another order than requested, or ``name`` is in use.
        SoftwareError: This ROOT cannot be used.
    """
    if source.is_raw:
        raise DatasetError("holds raw files, which have no tree to rewrite", where=source.name)
    if source.files[0].layout.format == RNTUPLE:
        origin = source.origin.get("from", {}).get("name")
        raise DatasetError(
            "holds RNTuples; only TTrees can be rewritten",
            where=source.name,
            hint=f"It was made from {origin}: rewrite that dataset." if origin else "",
        )
    if name == source.name:
        raise DatasetError(
            "is the dataset itself", where=f"--as {name}", hint="Choose another name."
        )

    def find_existing() -> Manifest | None:
        if replace_existing or not catalogue.has(name):
            return None
        return _check_same_rewrite(catalogue.verify(name, bars=bars), source, options, name)

    def fill(folder: Path) -> Manifest:
        return _DatasetRewriter(catalogue, source, options, folder, software, bars).rewrite(name)

    return catalogue.create(
        name, estimate_disk_space(source, options), fill, find_existing=find_existing, bars=bars
    )


def estimate_disk_space(source: Manifest, options: RewriteOptions) -> int:
    """Estimate the required disk space in bytes from the source."""
    size = sum(file.layout.unzipped_bytes for file in source.files)
    if options.compression_setting != 0:
        size = source.size
    unsorted = [file.size for file in source.files if _needs_sorting_pass(file, options)]
    return round(DISK_SPACE_MARGIN * (size + max(unsorted, default=0)))


def _needs_sorting_pass(file: ManifestFile, options: RewriteOptions) -> bool:
    """Return whether baskets must be sorted in a second pass after writing the events."""
    # Baskets embedded in the tree's record cannot be sorted.
    is_written = options.rewrites_events or bool(file.layout.embedded_bytes)
    return is_written and options.order in ("entry", "branch")


def _check_same_rewrite(
    manifest: Manifest, source: Manifest, options: RewriteOptions, name: str
) -> Manifest:
    """Return the existing dataset if it is the requested one."""
    origin = manifest.origin
    source_identity = {"name": source.name, "hash": source.hash}
    if (origin["kind"], origin.get("from"), origin.get("options")) == (
        REWRITTEN,
        source_identity,
        options.to_mapping(),
    ):
        return manifest
    raise DatasetError(
        f"there is already a dataset {name!r} made with other options",
        hint="Name the new one with --as NEW, or replace the old one with --replace.",
    )


class _DatasetRewriter:
    """Rewriter of one dataset into its folder."""

    def __init__(
        self,
        catalogue: FolderCatalogue,
        source: Manifest,
        options: RewriteOptions,
        folder: Path,
        software: SoftwareRequest,
        bars: ProgressFactory,
    ) -> None:
        self._catalogue, self._source, self._options = catalogue, source, options
        self._home = catalogue.folder(source.name)
        self._folder, self._software, self._bars = folder, software, bars
        # A cycle that the name of the source's tree may end in does not exist in the new files.
        self._new_tree = re.sub(r";\d+$", "", source.tree)

    def rewrite(self, name: str) -> Manifest:
        """Write, measure and verify all files."""
        facts = [self._rewrite_file(file) for file in self._source.files]
        left_out = {key: reason for fact in facts for key, reason in fact["left_out"].items()}
        files, content = self._measure_files()
        before = self._hash_values(
            "Reading the values of the source", self._home, self._source.files
        )
        after = self._hash_values("Reading the values again", self._folder, files)
        _check_same_values(before, after, left_out)
        objects = 0 if self._options.writes_rntuple else self._compare_objects(after)
        origin = {
            "kind": REWRITTEN,
            "description": f"{self._source.name}, rewritten",
            "from": {"name": self._source.name, "hash": self._source.hash},
            "options": self._options.to_mapping(),
            "root_requested": self._software.request,
            "root": facts[0]["root"],
            "zlib": facts[0]["zlib"],
            "value_checksum": after.checksum,
            "value_checksum_of_source": before.checksum,
            "leaves_covered": len(after.leaves),
            "leaves_uncovered": list(after.uncovered),
            "objects_compared": objects,
            "branches_left_out": [f"{key}: {reason}" for key, reason in sorted(left_out.items())],
            "objects_left_out": facts[0]["others"],
            **content,
            "treehammer": __version__,
        }
        return Manifest(name, files, origin)

    def _hash_values(
        self, title: str, folder: Path, files: tuple[ManifestFile, ...]
    ) -> ValueChecksums:
        request = {
            "paths": [str(folder / file.name) for file in files],
            "adler32s": [file.adler32 for file in files],
            "tree": files[0].layout.tree,
        }
        events = sum(file.layout.entries for file in files)
        with self._bars(f"{title} (events)", events) as step:
            result = root_process.run_action("hashes", request, self._software, step)
        return ValueChecksums(
            result["checksum"],
            dict(line.rsplit(" ", 1) for line in result["lines"]),
            tuple(result["uncovered"]),
        )

    def _compare_objects(self, after: ValueChecksums) -> int:
        """Compare branches that value checksums do not cover; return their number.

        Raises:
            DatasetError: A branch differs.
        """
        if not after.uncovered:
            return 0
        covered = [leaf.rpartition(" ")[0] for leaf in after.leaves]
        compared = 0
        for file in self._source.files:
            paths = [str(folder / file.name) for folder in (self._home, self._folder)]
            trees = [file.layout.tree, self._new_tree]
            request = {"paths": paths, "trees": trees, "covered": covered}
            with self._bars(f"Comparing {file.name} (events)", file.layout.entries) as step:
                result = root_process.run_action("compare", request, self._software, step)
            _reject_differences(result["differing"], "branches")
            compared = result["compared"]
        return compared

    def _rewrite_file(self, file: ManifestFile) -> dict[str, Any]:
        options, path = self._options, self._folder / file.name
        common = {
            "tree": file.layout.tree,
            "file_name": file.name,
            "skip_unwritable": options.skip_unwritable,
            "compression": options.compression_setting,
        }
        common_request = {"source": str(self._home / file.name), "path": str(path), **common}
        if options.writes_rntuple:
            return self._run_action(
                "twin", {**common_request, "clusterBytes": -options.auto_flush}, file
            )
        layout = {
            "autoFlush": options.auto_flush,
            "basketSize": options.basket_bytes,
            "basketMemory": options.memory_bytes,
            "acrossClusters": options.across_clusters,
        }
        sort = {"method": rewrite_options.ORDERS.get(options.order, "")}
        if not _needs_sorting_pass(file, options):
            action, extra_options = (
                ("rewrite", layout) if options.rewrites_events else ("order", sort)
            )
            return self._run_action(action, {**common_request, **extra_options}, file)
        unsorted = path.with_name(f".{file.name}.unsorted")
        facts = self._run_action(
            "rewrite", {**common_request, **layout, "path": str(unsorted)}, file
        )
        self._run_action("order", {**common_request, **sort, "source": str(unsorted)}, file)
        unsorted.unlink()
        return facts

    def _run_action(
        self, action: str, request: Mapping[str, Any], file: ManifestFile
    ) -> dict[str, Any]:
        doing = "Ordering" if action == "order" else "Writing"
        with self._bars(f"{doing} {file.name} (events)", file.layout.entries) as step:
            run = partial(root_process.run_action, action, request, self._software, step)
            try:
                return self._catalogue.run_writer(Path(request["path"]), run)
            except DatasetError as error:
                if "cannot be written:" not in error.message:
                    raise
                raise DatasetError(
                    error.message, where=error.where, hint="Leave them out with --skip-unwritable."
                ) from error

    def _measure_files(self) -> tuple[tuple[ManifestFile, ...], dict[str, Any]]:
        """Measure the new files; return their entries in the manifest, and their peculiarities."""
        paths = [self._folder / file.name for file in self._source.files]
        layouts, content = tree_measurement.measure_files(
            paths, self._software, tree=self._new_tree, bars=self._bars
        )
        size = sum(path.stat().st_size for path in paths)
        with byte_progress(self._bars, "Checksumming", size) as advance:
            contents = [digest_file(path, advance) for path in paths]
        files = tuple(
            describe_file(path.name, content, layout)
            for path, content, layout in zip(paths, contents, layouts, strict=True)
        )
        for file in files:
            order, measured = self._options.order, file.layout.basket_order
            if order in ("entry", "branch") and order not in measured.split():
                raise DatasetError(
                    f"its baskets should lie by {order} and do not (measured: {measured})",
                    where=file.name,
                )
        return files, describe_content(content)


def _check_same_values(
    before: ValueChecksums, after: ValueChecksums, left_out: Mapping[str, str]
) -> None:
    """Refuse a result whose values differ from those of the source."""
    # Where branches are left out, leaves may exist in the source alone.
    leaves = after.leaves if left_out else {*before.leaves, *after.leaves}
    wrong = [leaf for leaf in sorted(leaves) if after.leaves.get(leaf) != before.leaves.get(leaf)]
    if not left_out and not wrong and before.checksum != after.checksum:
        wrong = ["the checksum of all"]
    _reject_differences(wrong, "leaves")


def _reject_differences(wrong: Sequence[str], noun: str) -> None:
    if wrong:
        leaves = ", ".join(wrong[:MAX_NAMED_LEAVES]) + (
            ", …" if len(wrong) > MAX_NAMED_LEAVES else ""
        )
        raise DatasetError(
            "the result does not hold the values of its source and is refused; "
            f"of {len(wrong)} {noun} they differ: {leaves}",
            hint="Try another ROOT release with --root.",
        )
