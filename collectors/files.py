"""Files that several processes share: written whole or not at all, locked as long as one lives.

Standard library only, Python 3.9 and later: this module is packed into the worker.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import Callable, Iterator, Optional, Union

PathLike = Union[str, "os.PathLike[str]"]


def write_atomically(path: PathLike, text: str) -> None:
    """Write ``path`` so that a reader sees either nothing or the whole text, even after a crash."""
    temporary = f"{os.fspath(path)}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)


@contextmanager
def locked(path: PathLike, on_wait: Optional[Callable[[], object]] = None) -> Iterator[None]:
    """Hold an exclusive lock while the block runs; it ends with the process, however that ends.

    Args:
        path: the lock's file, which is made with its folder and stays.
        on_wait: is called when another process holds the lock, before waiting for it.
    """
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "a", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is not None:
                on_wait()
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
