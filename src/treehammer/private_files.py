"""Files that only their owner can read."""

from __future__ import annotations

import os
from pathlib import Path

from treehammer.errors import ConfigError

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
