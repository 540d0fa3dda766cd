"""Folders of a queue that appear and vanish by one rename, so that no reader sees half of one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from treehammer.collectors.shared_files import DISK_FULL_ERRNOS
from treehammer.errors import BatchError


@contextmanager
def create_folder_atomically(folder: Path, incoming: Path, hint: str) -> Iterator[Path]:
    """Fill a folder out of sight; it appears when the block ends, and not at all if that fails.

    Args:
        folder: how it is called then; it is not there yet, but its parent is when the block ends.
        incoming: what to fill; the block makes it.  What a killed process left there is removed.
        hint: what to do when it cannot be written.

    Raises:
        BatchError: it cannot be written.
    """
    try:
        if incoming.exists():
            shutil.rmtree(incoming)
        yield incoming
        incoming.rename(folder)
    except OSError as error:
        shutil.rmtree(incoming, ignore_errors=True)
        raise BatchError(
            f"cannot write what the jobs need ({describe_os_error(error)})",
            where=str(folder),
            hint=f"Nothing was submitted. {hint}",
        ) from error
    except BaseException:
        shutil.rmtree(incoming, ignore_errors=True)
        raise


def remove_folder_atomically(folder: Path, away: Path) -> int:
    """Remove a folder by way of another name, and return its bytes.

    It is out of sight at once: should we be killed, no reader finds half of it.

    Raises:
        BatchError: it cannot be removed.
    """
    size = sum(file.lstat().st_size for file in folder.rglob("*"))
    try:
        away.parent.mkdir(exist_ok=True)
        if away.exists():  # left by a killed process
            shutil.rmtree(away)
        folder.rename(away)
        shutil.rmtree(away)
    except OSError as error:
        raise BatchError(
            f"cannot be removed ({describe_os_error(error)})", where=str(folder)
        ) from error
    return size


def copy_input(source: Path, target: Path) -> None:
    """Copy a file or folder as it is: links stay links and nothing outside is followed."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)


def describe_os_error(error: OSError) -> str:
    """What an error says, in one line; of a folder that could not be copied, the first reason."""
    if isinstance(error, shutil.Error) and error.args and error.args[0]:
        first = error.args[0][0]
        return str(first[-1]) if isinstance(first, tuple) else str(first)
    return f"{error.strerror}: {error.filename}" if error.filename else str(error)


def is_disk_full(error: OSError) -> bool:
    """Whether a disk or quota was full; shutil tells of it only in words."""
    said = isinstance(error, shutil.Error) and any(
        os.strerror(no) in str(error) for no in DISK_FULL_ERRNOS
    )
    return said or error.errno in DISK_FULL_ERRNOS
