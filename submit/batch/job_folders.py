"""Folders of jobs: staging of inputs, archives, and removal.

A job folder appears in a queue and vanishes by one rename, so that readers never see a partial one.
Where only plain files are transferred, it is archived.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import stat
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from treehammer.collectors.json_documents import decode_json
from treehammer.collectors.shared_files import (
    DISK_FULL_ERRNOS,
    IrregularFileError,
    open_regular_file,
    read_regular_file,
)
from treehammer.errors import BatchError
from treehammer.program_output import create_private_file, is_private

_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
#: Archive of a job's inputs.
INPUT_ARCHIVE = "inputs.tar"
#: Archive of the output folder of a job.
OUTPUT_ARCHIVE = "output.tar"
#: Largest content of an output archive in bytes; a job's outputs are records and logs.
MAX_OUTPUT_BYTES = 2_000_000_000
#: Largest number of files in an output archive.
MAX_OUTPUT_FILES = 100_000
_END_BYTES = 2 * tarfile.BLOCKSIZE
#: Size limit of a worker's report on its attempt.
_MAX_REPORT_BYTES = 16_000_000


def require_folder_name(campaign: str) -> None:
    """Check that a campaign's id can be part of a folder's name.

    Raises:
        BatchError: it cannot.
    """
    if not _FOLDER_NAME.fullmatch(campaign):
        raise BatchError(f"{campaign!r} cannot name a submission")


@contextmanager
def create_folder_atomically(folder: Path, incoming: Path, hint: str) -> Iterator[Path]:
    """Fill a hidden folder and rename it when the block ends without an error.

    Args:
        folder: the final path; its parent must exist when the block ends.
        incoming: path to fill; the block creates it, not its parents.  Leftovers of a killed process
            are removed.
        hint: remedy for the error message.

    Raises:
        BatchError: the folder cannot be written.
    """
    try:
        if incoming.exists():
            shutil.rmtree(incoming)
        incoming.parent.mkdir(parents=True, exist_ok=True)
        yield incoming
        incoming.rename(folder)
    except OSError as error:
        raise BatchError(
            f"cannot write the job files ({describe_os_error(error)})",
            where=str(folder),
            hint=f"Nothing was submitted. {hint}",
        ) from error
    finally:
        shutil.rmtree(incoming, ignore_errors=True)  # unless it was renamed


def remove_folder_atomically(folder: Path, trash: Path) -> int:
    """Rename a folder, then remove it, and return its size in bytes.

    The rename hides it at once, so a killed process leaves no visible partial folder.

    Raises:
        BatchError: the folder cannot be removed.
    """
    try:
        trash.parent.mkdir(exist_ok=True)
        if trash.exists():  # left by a killed process
            shutil.rmtree(trash)
        folder.rename(trash)
        size = _measure_own_bytes(trash)
        shutil.rmtree(trash)
    except OSError as error:
        raise BatchError(
            f"cannot be removed ({describe_os_error(error)})", where=str(folder)
        ) from error
    return size


def _measure_own_bytes(folder: Path) -> int:
    """Return the bytes of a folder, without files that have links elsewhere, too."""
    files = [path.lstat() for path in folder.rglob("*")]
    links = Counter(file.st_ino for file in files)
    own_files = {
        file.st_ino: file.st_size
        for file in files
        if stat.S_ISDIR(file.st_mode) or links[file.st_ino] == file.st_nlink
    }
    return sum(own_files.values())


def copy_input(source: Path, target: Path, copy: Callable[..., object] = shutil.copy2) -> None:
    """Copy a file or folder; symbolic links are copied, not followed."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, copy_function=copy)
    else:
        copy(source, target)


def link_input(source: Path, target: Path) -> None:
    """Repeat a staged file or folder by hard links, or as copies where there are none."""
    copy_input(source, target, _link_or_copy)


def _link_or_copy(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def link_equal_files(folder: Path, earlier: Path) -> None:
    """Replace files by hard links to equal files at the same place in an earlier folder.

    Files stay copies where the file system has no links, or no more of them.
    """
    for path in folder.rglob("*"):
        twin = earlier / path.relative_to(folder)
        with suppress(OSError):  # there is no twin, or no link
            mode = path.lstat().st_mode
            # Files with other permissions, such as credentials, keep their own.
            is_alike = stat.S_ISREG(mode) and mode == twin.lstat().st_mode
            if is_alike and filecmp.cmp(path, twin, shallow=False):
                link = path.with_name(f".{path.name}.link")
                link.hardlink_to(twin)
                link.replace(path)


def describe_os_error(error: OSError) -> str:
    """Describe an error in one line; for a folder copy, its first error."""
    if isinstance(error, shutil.Error) and error.args and error.args[0]:
        first = error.args[0][0]
        return str(first[-1]) if isinstance(first, tuple) else str(first)
    return f"{error.strerror}: {error.filename}" if error.filename else str(error)


def is_disk_full(error: OSError) -> bool:
    """Return whether a disk or quota was full; shutil reports the reason as text only."""
    copy_failed = isinstance(error, shutil.Error) and any(
        os.strerror(no) in str(error) for no in DISK_FULL_ERRNOS
    )
    return copy_failed or error.errno in DISK_FULL_ERRNOS


def pack_inputs(inputs: Mapping[str, Path], archive: Path) -> None:
    """Write files and folders into an archive under their names."""
    archive.unlink(missing_ok=True)
    with (
        os.fdopen(create_private_file(archive), "wb") as stream,
        tarfile.open(fileobj=stream, mode="w") as tar,
    ):
        for name, source in inputs.items():
            tar.add(source, name, filter=_reset_rights)
    # It may hold a credential.
    if not any(path.is_file() and is_private(path) for path in inputs.values()):
        archive.chmod(0o644)


def _reset_rights(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode &= 0o777
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
        with open_regular_file(archive) as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - _END_BYTES))
            # It ends as tar ends it.
            is_complete = size % tarfile.BLOCKSIZE == 0 and stream.read() == bytes(_END_BYTES)
    except IrregularFileError as error:
        raise BatchError(f"{error.strerror}", where=str(archive)) from error
    if not is_complete or size > 2 * MAX_OUTPUT_BYTES:
        raise BatchError("incomplete archive, or too large", where=str(archive))
    part, target = archive.with_name(f".{folder}.part"), archive.with_name(folder)
    shutil.rmtree(part, ignore_errors=True)
    try:
        with tarfile.open(archive, "r:") as tar:  # not compressed: it could unpack to any size
            _check_members(tar, archive, folder)
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
            tar.extractall(part, map(_reset_rights, tar))  # noqa: S202 - they are checked
        (part / folder).mkdir(exist_ok=True, parents=True)
        shutil.rmtree(target, ignore_errors=True)
        (part / folder).rename(target)
        archive.unlink()
    # Wrong times, names and sizes raise errors of several kinds.
    except (tarfile.TarError, OSError, ValueError, ArithmeticError, RecursionError) as error:
        raise BatchError(f"damaged archive ({error})", where=str(archive)) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _check_members(tar: tarfile.TarFile, archive: Path, folder: str) -> None:
    size = 0
    for count, member in enumerate(tar, start=1):
        size += member.size
        parts = PurePosixPath(member.name).parts
        inside = parts[:1] == (folder,) and ".." not in parts
        if not inside or not (member.isreg() or member.isdir()):
            raise BatchError(f"unexpected content {member.name!r}", where=str(archive))
        if size > MAX_OUTPUT_BYTES or count > MAX_OUTPUT_FILES:
            raise BatchError("too many bytes or files", where=str(archive))


def read_report(sandbox: Path) -> Mapping[str, Any]:
    """Read the worker's attempt.json, which it creates at its start; empty without a whole one."""
    with suppress(OSError, ValueError):
        report = decode_json(read_regular_file(sandbox / "attempt.json", _MAX_REPORT_BYTES))
        return report if isinstance(report, dict) else {}
    return {}
