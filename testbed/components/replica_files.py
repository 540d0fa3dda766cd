"""Files of datasets on the storages of a testbed's sites.

Copies files from the folder catalogue to the storages' disks in place of Rucio, and damages
replicas for tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from treehammer.collectors.shared_files import DISK_FULL_ERRNOS
from treehammer.datasets.catalogues.folder_catalogue import FolderCatalogue
from treehammer.datasets.model.file_digest import digest_file
from treehammer.datasets.model.manifest import ManifestFile
from treehammer.errors import ConfigError, DatasetError, TestbedError, suggest_word
from treehammer.progress import ProgressFactory, byte_progress, no_progress
from treehammer.testbed.components.xrootd_storage import DATASET_FOLDER, storage_folder
from treehammer.testbed.core.component import Workspace

#: Bytes in the middle of a file that :func:`corrupt_file` changes.
DAMAGED_BYTES = 4096


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
    chosen = list(dict.fromkeys(sites or box.sites))
    copied = {}
    with byte_progress(bars, f"Putting {dataset}", manifest.size * len(chosen)) as advance:
        for site in chosen:
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
        _drop_from_page_cache(path)
    except OSError:
        return False
    return (content.size, content.adler32) == (file.size, file.adler32)


def _drop_from_page_cache(path: Path) -> None:
    """Drop a file from the page cache, so that the first reader reads the disk."""
    with path.open("rb") as stream:
        os.fdatasync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _copy_file(
    source: Path, target: Path, file: ManifestFile, box: Workspace, advance: Callable[[int], None]
) -> None:
    """Copy to a temporary name, verify the bytes on disk, and rename."""
    part = target.with_name(f".{target.name}.part")
    try:
        box.make_folder(target.parent)
        part.unlink(missing_ok=True)
        digest = digest_file(source, advance, copy_to=part)
        if (digest.size, digest.adler32) != (file.size, file.adler32):
            raise DatasetError(
                f"has changed: {digest.size} bytes with adler32 {digest.adler32} instead of "
                f"{file.size} with {file.adler32}",
                where=str(source),
                hint="See: treehammer datasets verify",
            )
        if not _matches_manifest(part, file):
            raise TestbedError("the disk stored other bytes than were written", where=str(part))
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


def path_behind_url(box: Workspace, site: str, url: str) -> Path:
    """Return the path on a site's disk of a URL, such as a PFN from Rucio."""
    path = url.split("://", 1)[1].partition("/")[2]
    return storage_folder(box, site) / path.lstrip("/")


def corrupt_file(path: Path) -> None:
    """Change bytes in the middle of a replica; keep size and modification time."""
    before = path.stat()
    with path.open("r+b") as stream:
        stream.seek(max(0, before.st_size // 2 - DAMAGED_BYTES // 2))
        offset = stream.tell()
        content = stream.read(DAMAGED_BYTES)
        stream.seek(offset)
        stream.write(bytes(byte ^ 0xFF for byte in content))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
