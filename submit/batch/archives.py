"""Archives in which jobs receive and return folders where only plain files are transferred."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from treehammer.collectors.shared_files import IrregularFileError, open_regular_file
from treehammer.errors import BatchError
from treehammer.private_files import create_private_file, is_private

#: Archive of a job's inputs.
INPUT_ARCHIVE = "inputs.tar"
#: Archive of the output folder of a job.
OUTPUT_ARCHIVE = "output.tar"
#: Largest content of an output archive in bytes; a job's outputs are records and logs.
MAX_OUTPUT_BYTES = 2_000_000_000
#: Largest number of files in an output archive.
MAX_OUTPUT_FILES = 100_000
_END_BYTES = 2 * tarfile.BLOCKSIZE


def pack_inputs(inputs: Mapping[str, Path], archive: Path) -> Path:
    """Write files and folders into an archive under their names; return its path."""
    archive.unlink(missing_ok=True)
    with (
        os.fdopen(create_private_file(archive), "wb") as stream,
        tarfile.open(fileobj=stream, mode="w") as tar,
    ):
        for name, source in inputs.items():
            tar.add(source, name, filter=_without_owner)
    # It may hold a credential.
    if not any(path.is_file() and is_private(path) for path in inputs.values()):
        archive.chmod(0o644)
    return archive


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpack_output(archive: Path, folder: str) -> None:
    """Replace a folder beside an archive by the archive's; it appears by one rename.

    The archive is removed: a later one is another.

    Args:
        archive: returned by a job, whose content is not trusted.
        folder: the only folder that is unpacked.

    Raises:
        BatchError: the archive is not complete yet, damaged, too large, or holds anything but files
            and folders.
    """
    try:
        is_complete = _has_end_mark(archive)
    except IrregularFileError as error:
        raise BatchError(f"{error.strerror}", where=str(archive)) from error
    if not is_complete:
        raise BatchError("incomplete archive", where=str(archive))
    part, target = archive.with_name(f".{folder}.part"), archive.with_name(folder)
    shutil.rmtree(part, ignore_errors=True)
    try:
        with tarfile.open(archive) as tar:
            _check_members(tar, archive, folder)
            tar.extractall(part, filter="data")
        (part / folder).mkdir(exist_ok=True, parents=True)
        shutil.rmtree(target, ignore_errors=True)
        (part / folder).rename(target)
        archive.unlink()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BatchError(f"damaged archive ({error})", where=str(archive)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _has_end_mark(archive: Path) -> bool:
    """Return whether an archive ends as tar ends it, so that its transfer is complete."""
    with open_regular_file(archive) as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _END_BYTES))
        return size % tarfile.BLOCKSIZE == 0 and stream.read() == bytes(_END_BYTES)


def _check_members(tar: tarfile.TarFile, archive: Path, folder: str) -> None:
    size = 0
    for count, member in enumerate(tar, start=1):
        size += member.size
        parts = PurePosixPath(member.name).parts
        inside = parts[:1] == (folder,) and ".." not in parts
        if not inside or not (member.isreg() or member.isdir()):
            raise BatchError(f"unexpected content {member.name!r}", where=str(archive))
        if size > MAX_OUTPUT_BYTES or count > MAX_OUTPUT_FILES:
            raise BatchError(
                f"more than {MAX_OUTPUT_BYTES} bytes or {MAX_OUTPUT_FILES} files",
                where=str(archive),
            )
