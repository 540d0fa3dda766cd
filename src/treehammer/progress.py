"""How long work in this room shows where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from treehammer.terminal import ProgressFactory

MEGABYTE = 1_000_000


@contextmanager
def byte_progress(bars: ProgressFactory, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar in megabytes; yields a function that is told the bytes done since its last call."""
    with bars(f"{what} (MB)", -(-total // MEGABYTE)) as step:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            step(done // MEGABYTE if done < total else -(-total // MEGABYTE))

        yield advance
