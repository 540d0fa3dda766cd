"""Queue folders that appear and vanish by one rename, so that readers never see partial ones."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from treehammer.collectors.shared_files import DISK_FULL_ERRNOS
from treehammer.errors import BatchError

_FOLDER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


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
        incoming: path to fill; the block creates it.  Leftovers of a killed process are removed.
        hint: remedy for the error message.

    Raises:
        BatchError: the folder cannot be written.
    """
    try:
        if incoming.exists():
            shutil.rmtree(incoming)
        yield incoming
        incoming.rename(folder)
    except OSError as error:
        shutil.rmtree(incoming, ignore_errors=True)
        raise BatchError(
            f"cannot write the job files ({describe_os_error(error)})",
            where=str(folder),
            hint=f"Nothing was submitted. {hint}",
        ) from error
    except BaseException:
        shutil.rmtree(incoming, ignore_errors=True)
        raise


def remove_folder_atomically(folder: Path, trash: Path) -> int:
    """Rename a folder, then remove it, and return its size in bytes.

    The rename hides it at once, so a killed process leaves no visible partial folder.

    Raises:
        BatchError: the folder cannot be removed.
    """
    size = sum(file.lstat().st_size for file in folder.rglob("*"))
    try:
        trash.parent.mkdir(exist_ok=True)
        if trash.exists():  # left by a killed process
            shutil.rmtree(trash)
        folder.rename(trash)
        shutil.rmtree(trash)
    except OSError as error:
        raise BatchError(
            f"cannot be removed ({describe_os_error(error)})", where=str(folder)
        ) from error
    return size


def copy_input(source: Path, target: Path) -> None:
    """Copy a file or folder; symbolic links are copied, not followed."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)


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
