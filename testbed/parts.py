"""What a testbed is made of: parts, each with daemons that the lifecycle starts and ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

#: Receives one short sentence at a time about what takes long.
Say = Callable[[str], None]


@dataclass(frozen=True)
class Box:
    """One testbed on this machine.

    Attributes:
        name: what the user calls it; several live side by side.
        folder: everything that ``down`` removes, and nothing else, lies here.
        cache: packages, kept between testbeds.
        sites: names of its sites, in order; the last is the distant one.
        user: (uid, gid) that daemons and jobs run as; None: as whoever runs Treehammer.
    """

    name: str
    folder: Path
    cache: Path
    sites: tuple[str, ...]
    user: tuple[int, int] | None = None


@dataclass(frozen=True)
class Daemon:
    """A process that lasts until ``down``, started in a session of its own.

    Attributes:
        name: of its log, ``logs/NAME.log``, and for ``testbed status``.
        command: program and arguments; it stays in the foreground.
        env: its whole environment.
        folder: its current folder.
        privileged: whether it runs as who runs Treehammer rather than as the box's user.
        stop_signal: on which it ends in an orderly way.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    folder: Path
    privileged: bool = False
    stop_signal: int = 15
    after: Sequence[str] = field(default=())


class Part(Protocol):
    """One kind of service of a testbed."""

    name: str

    def install(self, say: Say) -> None:
        """Have its programs in the cache; quick when they are there.

        Raises:
            treehammer.errors.TestbedError: they cannot be had; the message says what to do.
        """
        ...

    def configure(self) -> None:
        """Write its configuration below the box's folder."""
        ...

    def daemons(self) -> Sequence[Daemon]:
        """What to start, in order."""
        ...

    def missing(self) -> str:
        """What is not ready yet, '' when all of it is; quick, called again and again."""
        ...

    def clean_up(self) -> None:
        """Undo what lies outside the box's folder (network namespaces, devices); idempotent."""
        ...
