"""Replicas of datasets at the sites of a testbed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from treehammer.collectors.shared_files import DISK_FULL_ERRNOS
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.manifest import ManifestFile, digest_file
from treehammer.errors import ConfigError, DatasetError, TestbedError, suggest_word
from treehammer.testbed.components.xrootd_storage import DATASET_FOLDER, storage_folder
from treehammer.testbed.workspace import Workspace
from treehammer.text_formatting import ProgressFactory, byte_progress, no_progress


def place_dataset(
    dataset: str,
    catalogue: FolderCatalogue,
    box: Workspace,
    sites: Sequence[str] = (),
    bars: ProgressFactory = no_progress,
) -> dict[str, int]:
    """Copy a dataset to the storages of sites; correct replicas stay.

    Args:
        dataset: its name in the catalogue.
        catalogue: source of the files.
        box: a running testbed.
        sites: names; all if empty.
        bars: opens progress bars.

    Returns:
        Site -> number of copied files.

    Raises:
        ConfigError: the testbed has no such site.
        DatasetError: the dataset is unknown, or its files differ from its manifest.
        TestbedError: a storage is full or broken, or stored other bytes.
    """
    for site in sites:
        if site not in box.sites:
            hint = f"{suggest_word(site, box.sites)}It has: {', '.join(box.sites)}."
            raise ConfigError(f"there is no site {site!r}", where=f"testbed {box.name}", hint=hint)
    manifest = catalogue.verify(dataset, content=False)
    names = list(dict.fromkeys(sites or box.sites))
    copied = {}
    with byte_progress(bars, f"Putting {dataset}", manifest.size * len(names)) as advance:
        for site in names:
            copied[site] = 0
            for file in manifest.files:
                target = replica_path(box, site, dataset, file.name)
                if _matches_manifest(target, file):
                    advance(file.size)
                    continue
                _copy_file(catalogue.folder(dataset) / file.name, target, file, box, advance)
                copied[site] += 1
    return copied


def replica_path(box: Workspace, site: str, dataset: str, file: str) -> Path:
    """Return the path of a dataset's file on a site's disk."""
    return storage_folder(box, site) / DATASET_FOLDER.lstrip("/") / dataset / file


def _matches_manifest(path: Path, file: ManifestFile) -> bool:
    """Return whether a replica has the manifest's size and adler32."""
    try:
        if path.stat().st_size != file.size:
            return False
        content = digest_file(path)
        with path.open("rb") as stream:  # so that the first reader reads the disk
            os.fdatasync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        return False
    return (content.size, content.adler32) == (file.size, file.adler32)


def _copy_file(
    source: Path, target: Path, file: ManifestFile, box: Workspace, advance: Callable[[int], None]
) -> None:
    """Copy to a temporary name, verify the bytes on disk, and rename."""
    part = target.with_name(f".{target.name}.part")
    try:
        box.make_folder(target.parent)
        part.unlink(missing_ok=True)
        digest_file(source, advance, copy_to=part)
        if not _matches_manifest(part, file):
            raise DatasetError(
                f"has changed, or {target.parent} stores other bytes: its copy differs from the manifest",
                where=str(source),
                hint="See: treehammer datasets verify",
            )
        part.chmod(0o644)
        box.change_owner(part)
        part.rename(target)
    except OSError as error:
        full = error.errno in DISK_FULL_ERRNOS
        raise TestbedError(
            "the disk is full" if full else str(error.strerror),
            where=str(target.parent),
            hint="Free space, use fewer sites (--site), or keep testbeds "
            "elsewhere: TREEHAMMER_TESTBEDS",
        ) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
