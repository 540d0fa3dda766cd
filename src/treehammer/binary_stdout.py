"""Binary standard output."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO


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
