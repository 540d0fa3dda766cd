"""Atomic output: a new file or folder replaces an old one only when it is complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from treehammer.errors import StoreError


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
