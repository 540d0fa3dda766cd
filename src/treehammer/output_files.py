"""Files that are private to their owner or replaced only when complete, and binary standard output."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from treehammer.errors import ConfigError, StoreError

_MODE = 0o600


def create_private_file(path: Path) -> int:
    """Create a file with mode 0600, and return its descriptor for writing.

    A umask could only take permissions from the mode, also those of the owner: it is set again.

    Raises:
        FileExistsError: the file exists.
        OSError: it cannot be created.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
    try:
        os.fchmod(descriptor, _MODE)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_private(path: Path) -> bool:
    """Return whether only the owner of a file can read it."""
    return not path.stat().st_mode & 0o077


def read_secret_file(setting: str, path: Path | None) -> str:
    """Read the secret in the file of a setting; '' without a file.

    Raises:
        ConfigError: it cannot be read, or is empty.
    """
    if path is None:
        return ""
    where = f"{setting} {path}"
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read ({error})", where=where) from error
    if not secret:
        raise ConfigError("is empty", where=where)
    return secret


@contextmanager
def replace_file(target: Path) -> Iterator[Path]:
    """Yield a temporary path whose file replaces ``target`` on success and is deleted otherwise.

    Raises:
        StoreError: the file cannot be written.
    """
    file = _sibling(target, "tmp")
    try:
        with _translate_write_errors(target):
            yield file
            file.replace(target)
    finally:
        file.unlink(missing_ok=True)


@contextmanager
def replace_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder that replaces ``target`` on success and is deleted otherwise.

    Raises:
        StoreError: a file in it cannot be written.
    """
    staged, previous = _sibling(target, "tmp"), _sibling(target, "old")
    try:
        with _translate_write_errors(target):
            staged.mkdir()
            yield staged
            if target.exists():
                target.rename(previous)
            try:
                staged.rename(target)
            except OSError:
                if previous.exists():
                    previous.rename(target)
                raise
    finally:
        for folder in (staged, previous):
            shutil.rmtree(folder, ignore_errors=True)


def _sibling(target: Path, suffix: str) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.{suffix}")


@contextmanager
def _translate_write_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot be written ({error.strerror or error})",
            where=str(target),
            hint="Check permissions and free space; the measurements are safe in the database.",
        ) from error


@contextmanager
def open_binary_stdout() -> Iterator[BinaryIO]:
    """Open standard output for bytes without losing any.

    ``sys.stdout.buffer`` is no buffer where ``PYTHONUNBUFFERED`` is set, as in many images of
    containers.  When a process is paused in the middle of a write (Ctrl-Z, a freezer), the system
    then writes only a part, which the caller does not notice.

    Raises:
        BrokenPipeError: the reader has closed the pipe.
    """
    sys.stdout.flush()
    with open(sys.stdout.fileno(), "wb", closefd=False) as stream:
        yield stream
