"""Upload of a dataset's files to storage that Rucio manages, and their registration."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from treehammer.collectors.storage_access import list_aliases, normalize_url
from treehammer.datasets import doors
from treehammer.datasets.doors.observations import FAILED, MISSING, NO_RESPONSE
from treehammer.datasets.manifest import MANIFEST_NAME, Manifest, digest_file
from treehammer.datasets.rucio.rucio_client import RucioClient
from treehammer.datasets.rucio.rucio_conversions import (
    DidFile,
    Rse,
    RucioDeniedError,
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
#: Small files that are written before they are registered together; their names fit into one URL.
MAX_BATCH = 20


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
    attached: dict[str, DidFile] | None = None
    with suppress(RucioNotFoundError):
        attached = rucio.list_files(did)
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
    try:
        rucio.attach_files(did, unattached)
    except RucioDeniedError:  # another process may have attached them, and closed it
        if not rucio.list_files(did).keys() >= files.keys():
            raise
    rucio.close_dataset(did)
    return used_rse


def _list_expected_files(
    manifest: Manifest, folder: Path, catalogue: RucioCatalogue, attached: Mapping[str, DidFile]
) -> dict[str, tuple[DidFile, Path]]:
    """Map the DID of each expected file to file and path; the small manifest is first."""
    name, names = manifest.name, catalogue.rucio.names
    files = {}
    for file in manifest.files:
        did = DidFile(names.file(name, file.name), file.size, file.adler32)
        files[did.name] = (did, folder / file.name)
    path = folder / MANIFEST_NAME
    manifest_did = names.file(name, MANIFEST_NAME)
    content = digest_file(path)
    manifest_file = DidFile(manifest_did, content.size, content.adler32)
    # Another machine may have written it with the same files.
    registered = attached.get(manifest_did, manifest_file)
    if registered != manifest_file and catalogue.manifest(name).hash != manifest.hash:
        raise DatasetError(
            f"{catalogue.rucio.scope}:{name} has other files than the dataset here",
            where="Rucio",
            hint="A dataset never changes: give this one another name.",
        )
    return {manifest_did: (registered, path), **files}


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
            count, title = len(remaining), f"Writing to {rse.name}"
            counts_files = total < MEGABYTE * count
            bar: AbstractContextManager[ByteCallback] = byte_progress(bars, title, total)
            if counts_files:
                bar = bars(f"{title} (files)", count)
            with bar as step:
                while remaining:
                    advance, batch = (None, MAX_BATCH) if counts_files else (step, 1)
                    _upload_batch(remaining, batch, rse.name, rucio, advance)
                    if counts_files:
                        step(count - len(remaining))
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


def _upload_batch(
    remaining: list[tuple[DidFile, Path]],
    size: int,
    rse: str,
    rucio: RucioClient,
    advance: ByteCallback | None,
) -> None:
    """Write the next files to an RSE, and register them together; take them off the list."""
    batch = remaining[:size]
    names = [file.name for file, _ in batch]
    schemes = [name for protocol in UPLOAD_PROTOCOLS for name in list_aliases(protocol)]
    requests = (rucio.find_upload_urls(rse, names, scheme) for scheme in schemes)
    urls: list[str] = []
    for urls in ([*map(normalize_url, offer)] for offer in requests if offer):
        if doors.stat_file(urls[0]).failure != NO_RESPONSE:
            break
    if not urls:
        raise CatalogueError(f"cannot be written to by {', '.join(schemes)}")
    files, written = [], []
    try:
        for (file, path), url in zip(batch, urls, strict=True):
            written += [url] if _write_file(file, path, url, advance) else []
            files.append(file)
    finally:  # also those before a failure or an interrupt
        if files:
            _register_files(files, written, rse, rucio)
            del remaining[: len(files)]


def _register_files(
    files: Sequence[DidFile], written: Sequence[str], rse: str, rucio: RucioClient
) -> None:
    """Register files; remove those that were written if Rucio refuses."""
    try:
        rucio.register_replicas(rse, files)
    except RucioSilentError:
        raise  # they may be registered; the same command finds out later
    except TreehammerError as error:
        error.message += "".join(map(_discard_file, written))
        raise


def _write_file(file: DidFile, path: Path, url: str, advance: ByteCallback | None) -> bool:
    """Write a file unless it exists, and verify it; return whether it was written."""
    for pause in (*WRITE_RETRY_DELAYS_S, None):
        if not _find_difference(file, url):  # another process may have written it meanwhile
            break
        observation = doors.write_file(path, url, advance)
        problem = observation.explanation if observation.failure else _find_difference(file, url)
        if not problem:
            return True
        if observation.failure not in ("", NO_RESPONSE, FAILED) or pause is None:
            raise CatalogueError(f"{url}: {problem}{_discard_file(url)}")
        time.sleep(pause)
    if advance:
        advance(file.size)
    return False


def _discard_file(url: str) -> str:
    """Remove a file that will not be registered; return a clause on the failure, '' for none."""
    removed = doors.remove_file(url)
    if not removed.failure or removed.failure == MISSING:
        return ""
    return f"; {url} could not be removed again ({removed.message}): remove it"


def _find_difference(file: DidFile, url: str) -> str:
    """Find out why the storage does not have a file; '' if it has it."""
    observation = doors.stat_file(url)
    if observation.size == file.size and not observation.adler32:
        observation = doors.read_file(url, file.size)
    if (observation.size, observation.adler32) == (file.size, file.adler32):
        return ""
    return observation.explanation or "the storage has other bytes than it was given"
