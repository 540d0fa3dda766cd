"""The folder catalogue: datasets on this machine, made once and verified on use.

Every dataset is a folder with its files and ``manifest.json``.  A folder appears whole or not at
all: it is filled aside, under a name that starts with a dot, and renamed.
"""

from __future__ import annotations

import errno
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from treehammer.collectors.files import locked
from treehammer.collectors.job import InputFile, SoftwareRequest
from treehammer.config import Settings
from treehammer.datasets import inspect, rootenv, spec
from treehammer.datasets.content import Content, digest
from treehammer.datasets.manifest import MANIFEST_NAME, Manifest, ManifestFile, TreeLayout
from treehammer.datasets.progress import MEGABYTE, bytes_bar
from treehammer.errors import DatasetError, did_you_mean
from treehammer.terminal import Bars, Step, silent
from treehammer.version import __version__

GENERATED, ADDED = "generated", "added"
ELSEWHERE = "Make room there, or choose another place with --cache-dir."
READ_ONLY = 0o444
READABLE = 0o755


def ensure(name: str, settings: Settings, bars: Bars = silent) -> Manifest:
    """Have a dataset ready: verify it, or make it when it is a shipped one that is absent.

    Raises:
        DatasetError: the name is unknown, or the dataset is not what its manifest says.
        SoftwareError: the ROOT that makes it cannot be had.
    """
    catalogue = FolderCatalogue(settings.datasets_dir)
    if catalogue.has(name):
        return catalogue.verify(name, bars=bars)
    plan = spec.shipped_spec(name)
    if plan is None:
        raise catalogue.unknown(name)
    return catalogue.make(plan, rootenv.prepare(plan.root, settings.software_dir, bars), bars=bars)


class FolderCatalogue:
    """The datasets below one folder.

    Args:
        root: the folder; it is created when something is put there.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, name: str) -> Path:
        """Where the dataset of that name is or would be."""
        return self.root / name

    def names(self) -> tuple[str, ...]:
        """All datasets here, sorted."""
        return tuple(sorted(path.parent.name for path in self.root.glob(f"[!.]*/{MANIFEST_NAME}")))

    def has(self, name: str) -> bool:
        """Whether there is a dataset of that name."""
        return bool(spec.NAME.fullmatch(name)) and self.folder(name).exists()

    def manifest(self, name: str) -> Manifest:
        """What the dataset is; its files are not looked at.

        Raises:
            DatasetError: there is no such dataset, or its manifest is damaged.
        """
        if not self.has(name):
            raise self.unknown(name)
        return Manifest.read(self.folder(name))

    def files(self, name: str) -> tuple[InputFile, ...]:
        """The dataset's files as a local job reads them; ``url`` is the path."""
        return tuple(
            InputFile(file.name, str(self.folder(name) / file.name), file.size, file.adler32)
            for file in self.manifest(name).files
        )

    def unknown(self, name: str) -> DatasetError:
        """The error that says what there is instead of ``name``."""
        known = sorted({*self.names(), *spec.shipped()})
        if name in spec.shipped():
            hint = f"Make it: treehammer datasets make {name}"
        else:
            hint = did_you_mean(name, known)
            hint += f"Known datasets: {', '.join(known)}. Others: treehammer datasets add"
        return DatasetError(f"there is no dataset {name!r}", where=str(self.root), hint=hint)

    def verify(self, name: str, *, content: bool = True, bars: Bars = silent) -> Manifest:
        """Check that the dataset is exactly what its manifest says.

        Args:
            name: of the dataset.
            content: read every file and compare checksums, not sizes alone.
            bars: opens progress bars.

        Raises:
            DatasetError: what differs, file by file, and how to have the dataset again.
        """
        manifest = self.manifest(name)
        folder = self.folder(name)
        problems = [*_wrong_files(manifest, folder)]
        if content and not problems:
            with bytes_bar(bars, f"Verifying {name}", manifest.size) as advance:
                for file in manifest.files:
                    problems += _wrong_content(file, folder / file.name, advance)
        generated = manifest.origin.get("kind") == GENERATED
        if generated and not problems:
            problems += _other_spec(manifest)
        if problems:
            remedy = (
                f"Make it again: treehammer datasets make {name} --again"
                if generated
                else f"Remove {folder} and add the files again: treehammer datasets add"
            )
            raise DatasetError(
                "\n  ".join([f"the dataset {name!r} has changed and is refused:", *problems]),
                where=str(folder),
                hint=remedy,
            )
        return manifest

    def make(
        self,
        plan: spec.DatasetSpec,
        software: SoftwareRequest,
        *,
        bars: Bars = silent,
        again: bool = False,
    ) -> Manifest:
        """Make a dataset from its spec, or verify the one that is there.

        Args:
            plan: from :func:`treehammer.datasets.spec.load`.
            software: the ROOT that writes it, from :func:`treehammer.datasets.rootenv.prepare`.
            bars: opens progress bars.
            again: replace the dataset that is there.

        Raises:
            DatasetError: it cannot be written, or is not what the spec has pinned.
            SoftwareError: this ROOT cannot be used.
        """
        with self._locked(plan.name, bars):
            if self.has(plan.name) and not again:
                return self.verify(plan.name, bars=bars)
            with self._aside(plan.name, plan.size) as folder:
                path = folder / plan.file_name
                with bars(f"Making {plan.name} (events)", plan.entries) as step:
                    root = self._write(plan, path, software, step)
                content = digest(path)
                _check_pin(plan, content, root)
                (layout,) = inspect.layouts([path], software, tree=plan.tree)
                origin = {
                    "kind": GENERATED,
                    "description": plan.description,
                    "spec_sha256": plan.text_hash,
                    "root_requested": software.request,
                    "root": root,
                    "treehammer": __version__,
                }
                files = (_file(plan.file_name, content, layout),)
                return self._publish(folder, Manifest(plan.name, files, origin))

    def add(
        self,
        name: str,
        paths: Sequence[Path],
        software: SoftwareRequest,
        *,
        tree: str = "",
        bars: Bars = silent,
    ) -> Manifest:
        """Copy existing ROOT files in as a dataset; the same files again are accepted.

        Args:
            name: of the new dataset.
            paths: the files, in the order they are read.
            software: the ROOT that measures them, from
                :func:`treehammer.datasets.rootenv.prepare`.
            tree: the main tree; by default the one of most entries times branches.
            bars: opens progress bars.

        Raises:
            DatasetError: the name is taken by other content or malformed, a file cannot be read or
                holds no such tree, or there is no room.
            SoftwareError: this ROOT cannot be used.
        """
        _check_addition(name, paths)
        size = sum(path.stat().st_size for path in paths)
        with self._locked(name, bars):
            if self.has(name):
                return self._same(name, paths, tree, size, bars)
            with self._aside(name, size) as folder:
                layouts = inspect.layouts(paths, software, tree=tree, bars=bars)
                with bytes_bar(bars, f"Copying {name}", size) as advance:
                    contents = [digest(p, advance, copy_to=folder / p.name) for p in paths]
                origin = {
                    "kind": ADDED,
                    "description": "",
                    "sources": [str(path.resolve()) for path in paths],
                    "measured_with": software.request,
                    "treehammer": __version__,
                }
                files = tuple(
                    _file(path.name, content, layout)
                    for path, content, layout in zip(paths, contents, layouts, strict=True)
                )
                return self._publish(folder, Manifest(name, files, origin))

    def _write(
        self, plan: spec.DatasetSpec, path: Path, software: SoftwareRequest, step: Step
    ) -> str:
        """Write the file and return the release that did."""
        try:
            return str(rootenv.run("make", _request(plan, path), software, step)["root"])
        except DatasetError as error:
            free = shutil.disk_usage(self.root).free
            raise DatasetError(
                f"{plan.file_name} {error.message}; {free / MEGABYTE:.0f} MB are free",
                where=str(self.root),
                hint=f"{error.hint}\n  {ELSEWHERE}".strip(),
            ) from error

    def _same(self, name: str, paths: Sequence[Path], tree: str, size: int, bars: Bars) -> Manifest:
        """The dataset that is there already, if it is what would be added."""
        manifest = self.verify(name, bars=bars)
        with bytes_bar(bars, "Comparing", size) as advance:
            found = [(path.name, digest(path, advance).sha256) for path in paths]
        if found == [(f.name, f.sha256) for f in manifest.files] and tree in ("", manifest.tree):
            return manifest
        raise DatasetError(
            f"there is already a dataset {name!r} of other content",
            where=str(self.folder(name)),
            hint="A dataset never changes: add these files under another name.",
        )

    @contextmanager
    def _locked(self, name: str, bars: Bars) -> Iterator[None]:
        """One process at a time makes a dataset; the lock goes with its process."""

        def wait() -> None:
            step = waiting.enter_context(bars(f"Another process makes {name}", 1))
            step(0, "waiting")

        with ExitStack() as held:
            with _disk(self.root), ExitStack() as waiting:
                held.enter_context(locked(self.root / f".{name}.lock", wait))
            yield

    @contextmanager
    def _aside(self, name: str, size: int) -> Iterator[Path]:
        """A folder to fill; it is gone afterwards unless it was published.

        What a killed process left is removed too: the caller holds the lock, so it is nobody's.
        """
        for left in self.root.glob(f".{name}.part-*"):
            shutil.rmtree(left)
        free = shutil.disk_usage(self.root).free
        if free < size:
            raise DatasetError(
                f"{name} needs {size / MEGABYTE:.0f} MB and {free / MEGABYTE:.0f} MB are free",
                where=str(self.root),
                hint=ELSEWHERE,
            )
        with _disk(self.root):
            folder = Path(tempfile.mkdtemp(prefix=f".{name}.part-", dir=self.root))
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _publish(self, folder: Path, manifest: Manifest) -> Manifest:
        """Give the filled folder its name, in place of what has it."""
        (folder / MANIFEST_NAME).write_text(manifest.to_json() + "\n", encoding="utf-8")
        for path in folder.iterdir():
            path.chmod(READ_ONLY)
        folder.chmod(READABLE)
        target = self.folder(manifest.name)
        replaced = self.root / f".{manifest.name}.part-replaced"
        if target.exists():
            target.rename(replaced)
        folder.rename(target)
        shutil.rmtree(replaced, ignore_errors=True)
        return manifest


def _request(plan: spec.DatasetSpec, path: Path) -> dict[str, Any]:
    return {
        "path": str(path),
        "file_name": plan.file_name,
        "tree": plan.tree,
        "entries": plan.entries,
        "compression": plan.compression,
        "events_per_cluster": plan.events_per_cluster,
        "collections": [asdict(collection) for collection in plan.collections],
        "branches": [asdict(branch) for branch in plan.branches],
    }


def _file(name: str, content: Content, layout: TreeLayout) -> ManifestFile:
    return ManifestFile(name, content.size, content.adler32, content.sha256, layout)


def _check_pin(plan: spec.DatasetSpec, content: Content, root: str) -> None:
    if plan.sha256 and (content.size, content.sha256) != (plan.size, plan.sha256):
        raise DatasetError(
            f"ROOT {root} made {content.size} bytes with sha256 {content.sha256}; "
            f"pinned are {plan.size} bytes with {plan.sha256}",
            where=plan.file_name,
            hint=f"Only equal files may bear the name: make it with ROOT {plan.root}.",
        )


def _wrong_files(manifest: Manifest, folder: Path) -> Iterator[str]:
    expected = {file.name: file.size for file in manifest.files}
    there = {path.name: path.stat().st_size for path in folder.iterdir() if path.exists()}
    for name, size in expected.items():
        if name not in there:
            yield f"{name} is missing"
        elif there[name] != size:
            yield f"{name} has {there[name]} bytes instead of {size}"
    for name in sorted(there.keys() - expected.keys() - {MANIFEST_NAME}):
        yield f"{name} does not belong there"


def _wrong_content(file: ManifestFile, path: Path, advance: Callable[[int], None]) -> Iterator[str]:
    try:
        content = digest(path, advance)
    except OSError as error:
        yield f"{file.name} cannot be read ({error.strerror})"
        return
    for kind in ("adler32", "sha256"):
        found, expected = getattr(content, kind), getattr(file, kind)
        if found != expected:
            yield f"{file.name} has {kind} {found} instead of {expected}"


def _other_spec(manifest: Manifest) -> Iterator[str]:
    plan = spec.shipped_spec(manifest.name)
    if plan and plan.sha256 and [f.sha256 for f in manifest.files] != [plan.sha256]:
        yield "it was made by another version of treehammer, from another spec"


def _check_addition(name: str, paths: Sequence[Path]) -> None:
    if not spec.NAME.fullmatch(name):
        raise DatasetError(
            "a dataset's name has lower-case letters, digits, '.', '_' and '-' only",
            where=name,
        )
    if name in spec.shipped():
        raise DatasetError("is the name of a shipped dataset", where=name, hint="Choose another.")
    for path in paths:
        if not path.is_file():
            raise DatasetError("there is no such file", where=str(path))
    names = [path.name for path in paths]
    if len(set(names)) < len(names) or MANIFEST_NAME in names:
        raise DatasetError(
            "the files of a dataset need names of their own", where=", ".join(sorted(names))
        )


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """Turn what a disk can do to us into words."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise DatasetError(
            "the disk is full" if full else f"{error.strerror}",
            where=str(error.filename or folder),
            hint=ELSEWHERE,
        ) from error
