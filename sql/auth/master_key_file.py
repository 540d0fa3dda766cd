"""File with the service's master key, and its rotation.

The first line is the current master key. During a rotation, further lines are the previous ones, whose
keys stay valid.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from treehammer.errors import ConfigError
from treehammer.private_files import create_private_file
from treehammer.sql.auth.access_keys import MasterKeys

_MASTER_BYTES = 32
#: Maximum number of previous master keys.
MAX_PREVIOUS = 3


def load_master_keys(path: Path, *, create: bool = True) -> MasterKeys:
    """Load the service's master keys; create one if the file does not exist and ``create`` is set.

    Raises:
        ConfigError: they cannot be read or created, other users can read them, or the file is invalid.
    """
    where = f"service_key_file {path}"
    try:
        if create and not path.exists():
            _create_master_key(path)
        with path.open(encoding="ascii") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            lines = stream.read(1000).split()
    except OSError as error:
        raise ConfigError(f"cannot be read or created ({error.strerror})", where=where) from error
    except UnicodeDecodeError:
        lines = []
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigError(
            "other users can read the master key", where=where, hint=f"Run: chmod 600 {path}"
        )
    masters = [_parse_master_key(line) for line in lines]
    if not 1 <= len(masters) <= 1 + MAX_PREVIOUS or not all(masters):
        raise ConfigError(
            "this is not a master key",
            where=where,
            hint="Restore it from a backup; a new one would invalidate every key.",
        )
    return MasterKeys(masters[0], masters[1:])


def rotate_master_key(path: Path) -> MasterKeys:
    """Put a new master key before the present ones, and return them.

    Raises:
        ConfigError: the file cannot be read or written, or there are too many previous ones.
    """
    masters = load_master_keys(path, create=False)
    if len(masters.previous) >= MAX_PREVIOUS:
        raise ConfigError(
            f"{len(masters.previous)} previous master keys are still in use",
            where=f"service_key_file {path}",
            hint="End their rotation first: treehammer token rotate-master --finish",
        )
    rotated = MasterKeys(secrets.token_bytes(_MASTER_BYTES), [masters.current, *masters.previous])
    _replace_master_keys(path, rotated)
    return rotated


def forget_previous_master_keys(path: Path) -> None:
    """Keep only the current master key in the file.

    Raises:
        ConfigError: the file cannot be read or written.
    """
    _replace_master_keys(path, MasterKeys(load_master_keys(path, create=False).current))


def _parse_master_key(line: str) -> bytes:
    """Return a master key; b'' if the line holds none."""
    try:
        master = bytes.fromhex(line)
    except ValueError:
        return b""
    return master if len(master) == _MASTER_BYTES else b""


def _create_master_key(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Linking a complete file is atomic: if two processes do this, one wins and both read its key.
    temporary = _write_beside(path, [secrets.token_bytes(_MASTER_BYTES)])
    try:
        with suppress(FileExistsError):
            path.hardlink_to(temporary)
    finally:
        temporary.unlink(missing_ok=True)


def _replace_master_keys(path: Path, masters: MasterKeys) -> None:
    try:
        _write_beside(path, [masters.current, *masters.previous]).replace(path)
    except OSError as error:
        raise ConfigError(
            f"cannot be written ({error.strerror})", where=f"service_key_file {path}"
        ) from error


def _write_beside(path: Path, masters: Sequence[bytes]) -> Path:
    """Write master keys durably to a private file in the same folder, and return it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with os.fdopen(create_private_file(temporary), "w", encoding="ascii") as stream:
            stream.writelines(f"{master.hex()}\n" for master in masters)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary
