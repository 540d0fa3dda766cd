"""Upload of a dataset's files to storage that Rucio manages, and their registration."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from treehammer.collectors.storage_access import list_aliases, normalize_url
from treehammer.datasets import doors
from treehammer.datasets.doors.observations import FAILED, MISSING, NO_RESPONSE
from treehammer.datasets.manifest import MANIFEST_NAME, Manifest, digest_file
from treehammer.datasets.rucio.rucio_client import RucioClient
from treehammer.datasets.rucio.rucio_conversions import (
    DidFile,
    Rse,
    RucioNotFoundError,
    RucioSilentError,
)
from treehammer.datasets.rucio.rucio_datasets import RucioCatalogue
from treehammer.errors import CatalogueError, DatasetError, TreehammerError
from treehammer.text_formatting import (
    MEGABYTE,
    ByteCallback,
    ProgressFactory,
    byte_progress,
    format_size,
    no_progress,
)

#: Delays in seconds between retries of a write after transient errors.
WRITE_RETRY_DELAYS_S = (2.0, 10.0)
#: Protocols of uploads, the preferred one first.
UPLOAD_PROTOCOLS = ("root", "https", "http")


def upload_dataset(
    manifest: Manifest,
    folder: Path,
    catalogue: RucioCatalogue,
    upload_rses: Sequence[Rse],
    bars: ProgressFactory = no_progress,
) -> str:
    """Register all files of a dataset, each with at least one replica.

    Args:
        manifest: Manifest of the dataset.
        folder: Folder with its files and its manifest.
        catalogue: Rucio catalogue.
        upload_rses: RSEs to try in order for writing.
        bars: Opens progress bars.

    Returns:
        Name of the RSE to which files were written; '' if none were missing.

    Raises:
        DatasetError: Rucio has a dataset or file of that name with other content.
        ConfigError: the server does not accept the names; nothing was written.
        CatalogueError: No RSE accepts the files, or Rucio does not respond.
    """
    rucio = catalogue.rucio
    did = rucio.names.dataset(manifest.name)
    attached = _list_attached_files(did, rucio)
    files = _list_expected_files(manifest, folder, catalogue, attached or {})
    unattached = [name for name in files if name not in (attached or {})]
    if attached is not None and unattached and not rucio.is_open(did):
        raise DatasetError(
            f"{rucio.scope}:{did} is closed and lacks {len(unattached)} files: {unattached[0]}, …",
            where="Rucio",
            hint="Give the dataset another name, or have an administrator open it again.",
        )
    rucio.check_names(did if attached is None else None, unattached)
    missing = _find_missing_files(files, rucio)
    used_rse = _upload_files(missing, upload_rses, rucio, bars) if missing else ""
    if attached is None:
        rucio.create_dataset(did)
    rucio.attach_files(did, unattached)
    rucio.close_dataset(did)
    return used_rse


def _list_attached_files(name: str, rucio: RucioClient) -> dict[str, DidFile] | None:
    """List the files of Rucio's dataset of that name; return None if it does not exist."""
    try:
        return {file.name: file for file in rucio.list_files(name)}
    except RucioNotFoundError:
        return None


def _list_expected_files(
    manifest: Manifest, folder: Path, catalogue: RucioCatalogue, attached: Mapping[str, DidFile]
) -> dict[str, tuple[DidFile, Path]]:
    """Map the DID of each expected file to file and path; the small manifest is first."""
    name, names = manifest.name, catalogue.rucio.names
    dids = (
        DidFile(names.file(name, file.name), file.size, file.adler32) for file in manifest.files
    )
    paths = (folder / file.name for file in manifest.files)
    files = {did.name: (did, path) for did, path in zip(dids, paths, strict=True)}
    path = folder / MANIFEST_NAME
    manifest_did = names.file(name, MANIFEST_NAME)
    content = digest_file(path)
    if manifest_did in attached:
        if catalogue.manifest(name).hash != manifest.hash:
            raise DatasetError(
                f"{catalogue.rucio.scope}:{name} has other files than the dataset here",
                where="Rucio",
                hint="A dataset never changes: give this one another name.",
            )
        # Another machine may have written it with the same files.
        return {manifest_did: (attached[manifest_did], path), **files}
    return {manifest_did: (DidFile(manifest_did, content.size, content.adler32), path), **files}


def _find_missing_files(
    files: dict[str, tuple[DidFile, Path]], rucio: RucioClient
) -> list[tuple[DidFile, Path]]:
    """Find the files without replica; refuse other content under the same name."""
    registered_files = rucio.find_files(files)
    for name, registered in registered_files.items():
        file, path = files[name]
        if not registered.verify_content(path, file.size, file.adler32):
            checksum = (
                f"adler32 {registered.adler32}" if registered.adler32 else f"md5 {registered.md5}"
            )
            raise DatasetError(
                f"{rucio.scope}:{name} is another file: {registered.size} bytes with {checksum}, and "
                f"{file.size} with adler32 {file.adler32} here",
                where="Rucio",
                hint="A file never changes in Rucio: give the dataset another name.",
            )
    present = {location.file for location in rucio.list_locations(registered_files)}
    return [files[name] for name in files if name not in present]


def _upload_files(
    missing: Sequence[tuple[DidFile, Path]],
    upload_rses: Sequence[Rse],
    rucio: RucioClient,
    bars: ProgressFactory,
) -> str:
    """Write files to RSEs in order until all are written; return the last one used."""
    refusals = []
    quotas = rucio.list_quotas()
    remaining = list(missing)
    for rse in upload_rses:
        if not rse.writable:
            refusals.append(f"{rse.name}: accepts no files now")
            continue
        total = sum(file.size for file, _ in remaining)
        if rse.name in quotas and quotas[rse.name].free < total:
            size = format_size(total)
            refusals.append(f"{rse.name}: the account's quota has no room for {size} more")
            continue
        try:
            counts_files, title = total < MEGABYTE * len(remaining), f"Writing to {rse.name}"
            bar: AbstractContextManager[ByteCallback] = byte_progress(bars, title, total)
            if counts_files:
                bar = bars(f"{title} (files)", len(remaining))
            with bar as step:
                for done in range(1, len(remaining) + 1):
                    _upload_file(*remaining[0], rse.name, rucio, None if counts_files else step)
                    del remaining[0]
                    if counts_files:
                        step(done)
            return rse.name
        except RucioSilentError:
            raise  # another RSE would get a file that may be registered here
        except CatalogueError as error:
            refusals.append(f"{rse.name}: {error.message}")
    raise CatalogueError(
        "\n  ".join(["no storage takes the files:", *refusals]),
        where="Rucio",
        hint="Name an RSE where your account may add files, e.g. a scratch disk: --upload-to RSE",
    )


def _upload_file(
    file: DidFile, path: Path, rse: str, rucio: RucioClient, advance: ByteCallback | None
) -> None:
    schemes = [name for protocol in UPLOAD_PROTOCOLS for name in list_aliases(protocol)]
    urls = (rucio.find_upload_url(rse, file.name, scheme) for scheme in schemes)
    url = normalize_url(next(filter(None, urls), ""))
    if not url:
        raise CatalogueError(f"cannot be written to by {', '.join(schemes)}")
    written = _write_file(file, path, url, advance)
    try:
        rucio.register_replica(rse, file)
    except RucioSilentError:
        raise  # it may be registered; the same command finds out later
    except TreehammerError as error:
        problem = _discard_file(url) if written else ""
        raise CatalogueError(f"{error.message}{problem}") from error


def _write_file(file: DidFile, path: Path, url: str, advance: ByteCallback | None) -> bool:
    """Write a file unless it exists, and verify it; return whether it was written."""
    if _has_expected_content(file, url):
        if advance:
            advance(file.size)
        return False
    for pause in (*WRITE_RETRY_DELAYS_S, None):
        observation = doors.write_file(path, url, advance)
        if not observation.failure:
            break
        if observation.failure not in (NO_RESPONSE, FAILED) or pause is None:
            raise CatalogueError(f"{url}: {observation.explanation}{_discard_file(url)}")
        time.sleep(pause)
    if not _has_expected_content(file, url):
        problem = _discard_file(url)
        raise CatalogueError(f"{url}: the storage has other bytes than it was given{problem}")
    return True


def _discard_file(url: str) -> str:
    """Remove a file that will not be registered; return a clause on the failure, '' for none."""
    removed = doors.remove_file(url)
    if not removed.failure or removed.failure == MISSING:
        return ""
    return f"; {url} could not be removed again ({removed.message}): remove it"


def _has_expected_content(file: DidFile, url: str) -> bool:
    observation = doors.stat_file(url)
    if observation.size == file.size and not observation.adler32:
        observation = doors.read_file(url, file.size)
    return (observation.size, observation.adler32) == (file.size, file.adler32)
