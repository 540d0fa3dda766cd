"""Folder catalogue: datasets on this machine, made once and verified on use.

Every dataset is a folder with its files and ``manifest.json``.  Folders appear atomically: a
dataset is written to a folder whose name starts with a dot, which is renamed when complete.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from treehammer.collectors.job_spec import InputFile, SoftwareRequest
from treehammer.collectors.shared_files import hold_lock
from treehammer.config import Settings
from treehammer.datasets import production, root_process, tree_measurement
from treehammer.datasets.catalogues import dataset_verification
from treehammer.datasets.manifest import (
    BRANCHES,
    DATASET_NAME,
    FRIEND_TREES,
    MANIFEST_NAME,
    MISSING_BRANCHES,
    OLD_NTUPLES,
    OTHER_LENGTHS,
    OTHER_TREES,
    RAW_LAYOUT,
    RNTUPLE,
    UNREADABLE_BRANCHES,
    FileDigest,
    Manifest,
    ManifestFile,
    TreeLayout,
    digest_file,
)
from treehammer.datasets.specs import dataset_specs, rewrite_options
from treehammer.errors import DatasetError, make_cache_error, suggest_word
from treehammer.text_formatting import MEGABYTE, ProgressFactory, byte_progress, no_progress
from treehammer.version import __version__

GENERATED, MERGED, ADDED, REWRITTEN = "generated", "merged", "added", "rewritten"
RAW_KIND = "raw"
#: Kinds of datasets that are made from a spec.
MADE_KINDS = (GENERATED, MERGED, RAW_KIND)
CACHE_DIR_HINT = "Make room there, or choose another place with --cache-dir."
FILE_MODE = 0o444
FOLDER_MODE = 0o755


def list_dataset_names(settings: Settings) -> list[str]:
    """List the datasets on this machine, and shipped ones that can be made."""
    present = FolderCatalogue(settings.datasets_dir).names()
    return sorted({*present, *dataset_specs.list_shipped_specs()})


def ensure_dataset(name: str, settings: Settings, bars: ProgressFactory = no_progress) -> Manifest:
    """Verify a dataset, or make it if it is shipped and absent.

    Raises:
        DatasetError: The name is unknown, the dataset differs from its manifest, or its source
            file is missing.
        SoftwareError: The required ROOT is not available.
    """
    catalogue = FolderCatalogue(settings.datasets_dir)
    if catalogue.has(name):
        return catalogue.verify(name, bars=bars)
    plan = dataset_specs.load_shipped_spec(name)
    if plan is None:
        raise catalogue.unknown_dataset_error(name)
    if isinstance(plan, dataset_specs.RawSpec):
        return catalogue.make_raw(plan, bars=bars)
    software = root_process.prepare_dataset_root(plan.dataset.root, settings.software_dir, bars)
    return catalogue.make(plan, software, source=settings.sources_dir, bars=bars)


class FolderCatalogue:
    """Catalogue of the datasets below one folder.

    Args:
        root: Folder, created when the first dataset is added.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, name: str) -> Path:
        """Return the folder of a dataset, which need not exist."""
        return self.root / name

    def names(self) -> tuple[str, ...]:
        """List the names of all datasets, sorted."""
        return tuple(sorted(path.parent.name for path in self.root.glob(f"[!.]*/{MANIFEST_NAME}")))

    def has(self, name: str) -> bool:
        """Return whether a dataset of that name exists."""
        return bool(DATASET_NAME.fullmatch(name)) and self.folder(name).exists()

    def manifest(self, name: str) -> Manifest:
        """Read a dataset's manifest without checking its files.

        Raises:
            DatasetError: The dataset does not exist, or its manifest is damaged.
        """
        if not self.has(name):
            raise self.unknown_dataset_error(name)
        return Manifest.read(self.folder(name))

    def files(self, name: str) -> tuple[InputFile, ...]:
        """List a dataset's files for a local job; ``url`` is the path."""
        return tuple(
            InputFile(file.name, str(self.folder(name) / file.name), file.size, file.adler32)
            for file in self.manifest(name).files
        )

    def unknown_dataset_error(self, name: str) -> DatasetError:
        """Build the error for an unknown name, with a list of known names."""
        known_names = sorted({*self.names(), *dataset_specs.list_shipped_specs()})
        sources = {f"{source}-{RNTUPLE}": source for source in known_names}
        if name in dataset_specs.list_shipped_specs():
            hint = f"Make it: treehammer datasets make {name}"
        elif name in sources:
            hint = f"Make it: treehammer datasets make {sources[name]} --format {RNTUPLE}"
        else:
            hint = suggest_word(name, known_names)
            hint += f"Known datasets: {', '.join(known_names)}. Others: treehammer datasets add"
        return DatasetError(f"there is no dataset {name!r}", where=str(self.root), hint=hint)

    def verify(
        self, name: str, *, content: bool = True, bars: ProgressFactory = no_progress
    ) -> Manifest:
        """Check that the dataset agrees with its manifest.

        Args:
            name: Name of the dataset.
            content: Read every file and compare checksums, instead of sizes alone.
            bars: Opens progress bars.

        Raises:
            DatasetError: Files differ; the message lists them with the remedy.
        """
        manifest = self.manifest(name)
        folder = self.folder(name)
        problems = [*dataset_verification.find_file_mismatches(manifest, folder)]
        if content and not problems:
            with byte_progress(bars, f"Verifying {name}", manifest.size) as advance:
                for file in manifest.files:
                    problems += dataset_verification.find_checksum_mismatches(
                        file, folder / file.name, advance
                    )
        is_made = manifest.origin.get("kind") in MADE_KINDS
        if is_made and not problems:
            problems += dataset_verification.find_spec_mismatch(manifest)
        if problems:
            raise DatasetError(
                "\n  ".join([f"the dataset {name!r} has changed and is refused:", *problems]),
                where=str(folder),
                hint=self._recreate_hint(manifest),
            )
        return manifest

    def _recreate_hint(self, manifest: Manifest) -> str:
        """Build the remedy for a dataset that has changed."""
        name, origin = manifest.name, manifest.origin
        if origin.get("kind") in MADE_KINDS:
            is_shipped = name in dataset_specs.list_shipped_specs()
            spec = name if is_shipped else f"{name}.toml"
            return f"Make it again: treehammer datasets make {spec} --replace"
        if origin.get("kind") == REWRITTEN:
            command = rewrite_options.parse_rewrite_options(origin["options"]).to_command(
                origin["from"]["name"], name
            )
            return f"Make it again: {command} --replace"
        return f"Remove {self.folder(name)} and add the files again: treehammer datasets add"

    def make(
        self,
        plan: dataset_specs.RootSpec,
        software: SoftwareRequest,
        *,
        source: Path | None = None,
        bars: ProgressFactory = no_progress,
        replace_existing: bool = False,
    ) -> Manifest:
        """Make a dataset from its spec, or verify an existing one.

        Args:
            plan: Spec from :func:`treehammer.datasets.specs.dataset_specs.load_spec`.
            software: ROOT that writes it, from
                :func:`treehammer.datasets.root_process.prepare_dataset_root`.
            source: Source file of a merged dataset, or its folder.
            bars: Opens progress bars.
            replace_existing: Replace a dataset of that name.

        Raises:
            DatasetError: It cannot be written, differs from the pinned checksum, or ``source`` is
                not the file named in the spec.
            SoftwareError: This ROOT cannot be used.
        """
        with self._lock_dataset(plan.name, bars):
            if self.has(plan.name) and not replace_existing:
                return self.verify(plan.name, bars=bars)
            if isinstance(plan, dataset_specs.MergedSpec):
                origin_file = production.find_source(plan, source)
                write = partial(production.write_merged_file, plan, origin_file, software)
            else:
                write = partial(production.write_generated_file, plan, software)
            with self._staging_folder(plan.name, plan.file_size * plan.file_count) as folder:
                path = folder / plan.file_names[0]
                with bars(f"Making {plan.name} (events)", plan.entries) as step:
                    writer_facts = self.run_writer(path, partial(write, path, step))
                with byte_progress(bars, f"Checking {plan.name}", path.stat().st_size) as advance:
                    content = digest_file(path, advance)
                dataset_verification.check_pinned_checksum(plan, content, writer_facts)
                (layout,), _ = tree_measurement.measure_files([path], software, tree=plan.tree)
                origin = {
                    "kind": MERGED if isinstance(plan, dataset_specs.MergedSpec) else GENERATED,
                    "description": plan.dataset.description,
                    "spec_sha256": plan.text_hash,
                    "root_requested": software.request,
                    **writer_facts,
                    "treehammer": __version__,
                }
                for name in plan.file_names[1:]:
                    shutil.copyfile(path, folder / name)
                files = tuple(describe_file(name, content, layout) for name in plan.file_names)
                return self._publish(folder, Manifest(plan.name, files, origin))

    def make_raw(
        self,
        spec: dataset_specs.RawSpec,
        *,
        bars: ProgressFactory = no_progress,
        replace_existing: bool = False,
    ) -> Manifest:
        """Make a dataset of raw files, or verify an existing one; needs no ROOT.

        Raises:
            DatasetError: It cannot be written, or differs from the pinned identity.
        """
        with self._lock_dataset(spec.name, bars):
            if self.has(spec.name) and not replace_existing:
                return self.verify(spec.name, bars=bars)
            size = spec.file_size * spec.file_count
            with self._staging_folder(spec.name, size) as folder:
                with byte_progress(bars, f"Making {spec.name}", size) as advance:
                    files = tuple(
                        describe_file(
                            spec.file_name(index),
                            production.write_raw_file(
                                spec, index, folder / spec.file_name(index), advance
                            ),
                            RAW_LAYOUT,
                        )
                        for index in range(spec.file_count)
                    )
                origin = {
                    "kind": RAW_KIND,
                    "description": spec.dataset.description,
                    "spec_sha256": spec.text_hash,
                    "seed": spec.dataset.seed,
                    "treehammer": __version__,
                }
                manifest = Manifest(spec.name, files, origin)
                dataset_verification.check_pinned_hash(spec, manifest)
                return self._publish(folder, manifest)

    def add(
        self,
        name: str,
        paths: Sequence[Path],
        software: SoftwareRequest,
        *,
        tree: str = "",
        libraries: Sequence[Path] = (),
        bars: ProgressFactory = no_progress,
    ) -> Manifest:
        """Add a dataset by copying ROOT files; adding the same files again is accepted.

        Args:
            name: Name of the new dataset.
            paths: Files, in reading order.
            software: ROOT that measures them, from
                :func:`treehammer.datasets.root_process.prepare_dataset_root`.
            tree: Main tree; by default the one with most entries times branches.
            libraries: Libraries with dictionaries, loaded before the branches are read.
            bars: Opens progress bars.

        Raises:
            DatasetError: The name is malformed or used for other content, a file cannot be read or
                has no such tree, or the disk is full.
            SoftwareError: This ROOT cannot be used.
        """
        dataset_verification.check_added_files(name, paths)
        names = dataset_verification.choose_file_names(paths)
        size = sum(path.stat().st_size for path in paths)
        with self._lock_dataset(name, bars):
            if self.has(name):
                return self._verify_same_files(name, paths, tree, size, bars)
            with self._staging_folder(name, size) as folder:
                layouts, content = tree_measurement.measure_files(
                    paths, software, tree=tree, bars=bars
                )
                with byte_progress(bars, f"Copying {name}", size) as advance:
                    digests = [
                        digest_file(path, advance, copy_to=folder / file_name)
                        for path, file_name in zip(paths, names, strict=True)
                    ]
                first = next(index for index, layout in enumerate(layouts) if layout.entries)
                unreadable = tree_measurement.probe_file(
                    paths[first], layouts[first], software, libraries=libraries, bars=bars
                )
                files = tuple(
                    describe_file(file_name, digest, layout)
                    for file_name, digest, layout in zip(names, digests, layouts, strict=True)
                )
                origin = {
                    **describe_added_origin(map(str, map(Path.resolve, paths)), software, content),
                    UNREADABLE_BRANCHES: unreadable,
                    **({"libraries": [library.name for library in libraries]} if libraries else {}),
                }
                return self._publish(folder, Manifest(name, files, origin))

    def create(
        self,
        name: str,
        size: int,
        fill: Callable[[Path], Manifest],
        *,
        find_existing: Callable[[], Manifest | None],
        bars: ProgressFactory = no_progress,
    ) -> Manifest:
        """Fill a dataset's folder and publish it when complete.

        Args:
            name: Name of the dataset.
            size: Required free space in bytes.
            fill: Writes the files into a folder and returns their manifest.
            find_existing: Returns a usable existing dataset; called under the lock.
            bars: Opens progress bars.

        Raises:
            DatasetError: The disk has too little space, or ``fill`` or ``find_existing`` failed.
        """
        dataset_verification.check_new_name(name)
        with self._lock_dataset(name, bars):
            existing = find_existing()
            if existing:
                return existing
            with self._staging_folder(name, size) as folder:
                return self._publish(folder, fill(folder))

    def run_writer(self, path: Path, write: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Write a file and return its facts for the manifest.

        Raises:
            DatasetError: It cannot be written; the message gives the free space.
        """
        try:
            return write()
        except DatasetError as error:
            if error.where != str(path):  # the input is wrong, not the output
                raise
            free = shutil.disk_usage(self.root).free
            raise DatasetError(
                f"{path.name} {error.message}; {free / MEGABYTE:.0f} MB are free",
                where=str(self.root),
                hint=f"{error.hint}\n  {CACHE_DIR_HINT}".strip(),
            ) from error

    def _verify_same_files(
        self, name: str, paths: Sequence[Path], tree: str, size: int, bars: ProgressFactory
    ) -> Manifest:
        """Return the existing dataset if it holds the same files."""
        manifest = self.verify(name, bars=bars)
        with byte_progress(bars, "Comparing", size) as advance:
            names = dataset_verification.choose_file_names(paths)
            checksums = [
                (file_name, digest_file(path, advance).sha256)
                for path, file_name in zip(paths, names, strict=True)
            ]
        if checksums == [(f.name, f.sha256) for f in manifest.files] and tree in (
            "",
            manifest.tree,
        ):
            return manifest
        raise DatasetError(
            f"there is already a dataset {name!r} of other content",
            where=str(self.folder(name)),
            hint="A dataset never changes: add these files under another name.",
        )

    @contextmanager
    def _lock_dataset(self, name: str, bars: ProgressFactory) -> Iterator[None]:
        """Lock a dataset against other processes; the lock ends with this process."""

        def wait() -> None:
            step = wait_stack.enter_context(bars(f"Another process makes {name}", 1))
            step(0, "waiting")

        with ExitStack() as lock_stack:
            with _report_disk_errors(self.root), ExitStack() as wait_stack:
                lock_stack.enter_context(hold_lock(self.root / f".{name}.lock", wait))
            yield

    @contextmanager
    def _staging_folder(self, name: str, size: int) -> Iterator[Path]:
        """Create a folder to fill, and remove it afterwards unless it was published.

        Remains of killed processes are removed too, since the caller holds the lock.
        """
        for leftover in self.root.glob(f".{name}.part-*"):
            shutil.rmtree(leftover)
        free = shutil.disk_usage(self.root).free
        if free < size:
            raise DatasetError(
                f"{name} needs {size / MEGABYTE:.0f} MB and {free / MEGABYTE:.0f} MB are free",
                where=str(self.root),
                hint=CACHE_DIR_HINT,
            )
        with _report_disk_errors(self.root):
            folder = Path(tempfile.mkdtemp(prefix=f".{name}.part-", dir=self.root))
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _publish(self, folder: Path, manifest: Manifest) -> Manifest:
        """Rename the filled folder to its final name, replacing an existing one."""
        (folder / MANIFEST_NAME).write_text(manifest.to_json() + "\n", encoding="utf-8")
        for path in folder.iterdir():
            path.chmod(FILE_MODE)
        folder.chmod(FOLDER_MODE)
        target = self.folder(manifest.name)
        replaced = self.root / f".{manifest.name}.part-replaced"
        if target.exists():
            target.rename(replaced)
        folder.rename(target)
        shutil.rmtree(replaced, ignore_errors=True)
        return manifest


def describe_added_origin(
    sources: Iterable[str], software: SoftwareRequest, content: tree_measurement.TreeContent
) -> dict[str, Any]:
    """Describe the origin of files that somebody else made.

    Args:
        sources: paths or URLs that they were taken from.
        software: ROOT that measured them.
        content: their common branches and differences.
    """
    return {
        "kind": ADDED,
        "description": "",
        "sources": list(sources),
        "measured_with": software.request,
        OTHER_TREES: list(content.other_trees),
        **describe_content(content),
        "treehammer": __version__,
    }


def describe_content(content: tree_measurement.TreeContent) -> dict[str, Any]:
    """Describe branches and peculiarities of a dataset's files for the origin of its manifest."""
    peculiarities = {
        MISSING_BRANCHES: dict(content.missing),
        OTHER_LENGTHS: dict(content.other_lengths),
        FRIEND_TREES: list(content.friends),
        OLD_NTUPLES: list(content.old_ntuples),
    }
    return {
        BRANCHES: list(content.branches),
        **{key: value for key, value in peculiarities.items() if value},
    }


def describe_file(name: str, content: FileDigest, layout: TreeLayout) -> ManifestFile:
    """Build a file's entry in the manifest."""
    return ManifestFile(name, content.size, content.adler32, content.sha256, layout)


@contextmanager
def _report_disk_errors(folder: Path) -> Iterator[None]:
    """Convert disk errors to dataset errors."""
    try:
        yield
    except OSError as error:
        raise make_cache_error(DatasetError, error, folder) from error
