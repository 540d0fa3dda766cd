"""Interfaces through which long-running work reports its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from treehammer.text_formatting import MEGABYTE


class ProgressCallback(Protocol):
    """Function that moves a progress bar and sets its note."""

    def __call__(self, done: int, note: str = "") -> None:
        """Move the bar to ``done``."""
        ...


#: Opens a progress bar from a description and a total: ``treehammer.terminal.progress_bar`` or
#: :func:`no_progress`.
ProgressFactory = Callable[[str, int], AbstractContextManager[ProgressCallback]]

#: Receives the number of bytes transferred since its last call.
ByteCallback = Callable[[int], None]


@contextmanager
def no_progress(_description: str, _total: int) -> Iterator[ProgressCallback]:
    """Open a progress bar that shows nothing."""

    def ignore(done: int, note: str = "") -> None:
        pass

    yield ignore


@contextmanager
def byte_progress(bars: ProgressFactory, description: str, total: int) -> Iterator[ByteCallback]:
    """Open a bar that counts in megabytes; ``total`` is in bytes."""
    total_megabytes = -(-total // MEGABYTE)
    with bars(f"{description} (MB)", total_megabytes) as step:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            step(done // MEGABYTE if done < total else total_megabytes)

        yield advance
