"""Files shared by several processes: atomic writes, and locks bound to a process's lifetime.

Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager, suppress
from typing import Callable, Iterator, Optional, Union
from urllib.parse import unquote, urlsplit

#: ``errno`` values for a full disk or an exceeded quota.
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)

PathLike = Union[str, "os.PathLike[str]"]


def local_path(url: str) -> Optional[str]:
    """Return the path in a URL without scheme or with ``file:``, None for a remote URL."""
    parts = urlsplit(url)
    if not parts.scheme:
        return url
    return unquote(parts.path) if parts.scheme == "file" else None


def write_atomically(path: PathLike, text: str) -> None:
    """Write ``path`` so that readers see the old content or the whole text, even after a crash.

    Raises:
        OSError: the file cannot be written; its old content remains.
    """
    temporary = f"{os.fspath(path)}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        # On a full disk it would occupy space that the next attempt may need.
        with suppress(OSError):
            os.unlink(temporary)
        raise


def is_locked(path: PathLike) -> bool:
    """Return whether a process holds the lock of this file; False for a missing file."""
    try:
        with open(path, encoding="utf-8") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


@contextmanager
def hold_lock(path: PathLike, on_wait: Optional[Callable[[], object]] = None) -> Iterator[int]:
    """Hold an exclusive lock while the block runs; the end of the process releases it as well.

    Yields the lock's file descriptor: a child that inherits it holds the lock until it ends.

    Args:
        path: the lock's file, created with its folder and never removed.
        on_wait: called before waiting for another process that holds the lock.
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "a", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is not None:
                on_wait()
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream.fileno()
