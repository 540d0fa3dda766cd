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
from functools import partial
from pathlib import Path
from typing import Any

from treehammer.collectors.files import locked
from treehammer.collectors.job import InputFile, SoftwareRequest
from treehammer.config import Settings
from treehammer.datasets import checks, fields, inspect, merged, rootenv, spec, wish
from treehammer.datasets.catalogues import Replica
from treehammer.datasets.content import Content, digest
from treehammer.datasets.manifest import MANIFEST_NAME, Manifest, ManifestFile, TreeLayout
from treehammer.datasets.progress import MEGABYTE, bytes_bar
from treehammer.errors import DatasetError, did_you_mean
from treehammer.terminal import Bars, Step, silent
from treehammer.version import __version__

GENERATED, MERGED, ADDED, REWRITTEN = "generated", "merged", "added", "rewritten"
#: The site that is this machine.
LOCAL = "local"
ELSEWHERE = "Make room there, or choose another place with --cache-dir."
READ_ONLY = 0o444
READABLE = 0o755


def ensure(name: str, settings: Settings, bars: Bars = silent) -> Manifest:
    """Have a dataset ready: verify it, or make it when it is a shipped one that is absent.

    Raises:
        DatasetError: the name is unknown, the dataset is not what its manifest says, or the file
            that it is made from is not there.
        SoftwareError: the ROOT that makes it cannot be had.
    """
    catalogue = FolderCatalogue(settings.datasets_dir)
    if catalogue.has(name):
        return catalogue.verify(name, bars=bars)
    plan = spec.shipped_spec(name)
    if plan is None:
        raise catalogue.unknown(name)
    software = rootenv.prepare(plan.root, settings.software_dir, bars)
    return catalogue.make(plan, software, source=settings.sources_dir, bars=bars)


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
        return bool(fields.NAME.fullmatch(name)) and self.folder(name).exists()

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

    def replicas(self, name: str, protocol: str, sites: Sequence[str] = ()) -> tuple[Replica, ...]:
        """The dataset's files in this folder, for jobs of this machine.

        Args:
            name: of the dataset.
            protocol: ``file``; there are none for others.
            sites: names; none for all.
        """
        if protocol != "file" or (sites and LOCAL not in sites):
            return ()
        return tuple(
            Replica(LOCAL, "", file.name, file.url, file.size, file.adler32)
            for file in self.files(name)
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
        problems = [*checks.wrong_files(manifest, folder)]
        if content and not problems:
            with bytes_bar(bars, f"Verifying {name}", manifest.size) as advance:
                for file in manifest.files:
                    problems += checks.wrong_content(file, folder / file.name, advance)
        made = manifest.origin.get("kind") in (GENERATED, MERGED)
        if made and not problems:
            problems += checks.other_spec(manifest)
        if problems:
            raise DatasetError(
                "\n  ".join([f"the dataset {name!r} has changed and is refused:", *problems]),
                where=str(folder),
                hint=self._remedy(manifest),
            )
        return manifest

    def _remedy(self, manifest: Manifest) -> str:
        """How to have a dataset again that has changed."""
        name, origin = manifest.name, manifest.origin
        if origin.get("kind") in (GENERATED, MERGED):
            return f"Make it again: treehammer datasets make {name} --again"
        if origin.get("kind") == REWRITTEN:
            command = wish.of(origin["options"]).command(origin["from"]["name"], name)
            return f"Make it again: {command} --again"
        return f"Remove {self.folder(name)} and add the files again: treehammer datasets add"

    def make(
        self,
        plan: spec.AnySpec,
        software: SoftwareRequest,
        *,
        source: Path | None = None,
        bars: Bars = silent,
        again: bool = False,
    ) -> Manifest:
        """Make a dataset from its spec, or verify the one that is there.

        Args:
            plan: from :func:`treehammer.datasets.spec.load`.
            software: the ROOT that writes it, from :func:`treehammer.datasets.rootenv.prepare`.
            source: of a merged dataset, the file whose events are rewritten, or its folder.
            bars: opens progress bars.
            again: replace the dataset that is there.

        Raises:
            DatasetError: it cannot be written, is not what the spec has pinned, or ``source`` is
                not the file that the spec names.
            SoftwareError: this ROOT cannot be used.
        """
        with self._locked(plan.name, bars):
            if self.has(plan.name) and not again:
                return self.verify(plan.name, bars=bars)
            write = _writer(plan, software, source)
            with self._aside(plan.name, plan.size) as folder:
                path = folder / plan.file_name
                with bars(f"Making {plan.name} (events)", plan.entries) as step:
                    made = self.write(path, partial(write, path, step))
                with bytes_bar(bars, f"Checking {plan.name}", path.stat().st_size) as advance:
                    content = digest(path, advance)
                checks.pin(plan, content, made)
                (layout,) = inspect.layouts([path], software, tree=plan.tree)
                origin = {
                    "kind": MERGED if isinstance(plan, merged.MergedSpec) else GENERATED,
                    "description": plan.description,
                    "spec_sha256": plan.text_hash,
                    "root_requested": software.request,
                    **made,
                    "treehammer": __version__,
                }
                files = (manifest_file(plan.file_name, content, layout),)
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
        checks.addition(name, paths)
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
                    manifest_file(path.name, content, layout)
                    for path, content, layout in zip(paths, contents, layouts, strict=True)
                )
                return self._publish(folder, Manifest(name, files, origin))

    def fill(
        self,
        name: str,
        size: int,
        fill: Callable[[Path], Manifest],
        *,
        there: Callable[[], Manifest | None],
        bars: Bars = silent,
    ) -> Manifest:
        """Have a dataset's folder filled aside; it appears when it is whole.

        Args:
            name: of the dataset.
            size: bytes that must be free.
            fill: writes the files into a folder and says what they are.
            there: while nobody else makes the dataset, the one that is there and will do.
            bars: opens progress bars.

        Raises:
            DatasetError: there is no room, or what ``fill`` and ``there`` raise.
        """
        checks.name(name)
        with self._locked(name, bars):
            found = there()
            if found:
                return found
            with self._aside(name, size) as folder:
                return self._publish(folder, fill(folder))

    def write(self, path: Path, write: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Have a file written and return what the manifest tells about its making.

        Raises:
            DatasetError: it cannot be written, with the room that there is.
        """
        try:
            return write()
        except DatasetError as error:
            if error.where != str(path):  # what is read is wrong, not what is written
                raise
            free = shutil.disk_usage(self.root).free
            raise DatasetError(
                f"{path.name} {error.message}; {free / MEGABYTE:.0f} MB are free",
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


def _writer(
    plan: spec.AnySpec, software: SoftwareRequest, source: Path | None
) -> Callable[[Path, Step], dict[str, Any]]:
    """What writes the file of this spec; all that it needs is there."""
    if isinstance(plan, merged.MergedSpec):
        return partial(merged.write, plan, merged.find_source(plan, source), software)
    return partial(spec.write, plan, software)


def manifest_file(name: str, content: Content, layout: TreeLayout) -> ManifestFile:
    """What the manifest says of a file."""
    return ManifestFile(name, content.size, content.adler32, content.sha256, layout)


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
