"""What a testbed is made of: parts, each with daemons that the lifecycle starts and ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

#: Receives one short sentence at a time about what takes long.
ProgressCallback = Callable[[str], None]

#: In the environment of every process of a testbed: its folder.
ENVIRONMENT_MARK = "TREEHAMMER_TESTBED"


@dataclass(frozen=True)
class VisibleFolder:
    """A folder that jobs see although what lies around it is hidden from them.

    ``source`` appears at ``target``, which may be the same path; read-only unless ``writable``.
    """

    source: Path
    target: Path
    writable: bool = False


@dataclass(frozen=True)
class Workspace:
    """One testbed on this machine.

    Attributes:
        name: what the user calls it; several live side by side.
        folder: everything that ``down`` removes, and nothing else, lies here.
        cache: packages, kept between testbeds.
        sites: names of its sites, in order; the last is the distant one.
        user: (uid, gid) that daemons and jobs run as; None: as whoever runs Treehammer.
        hidden: folders that no job may read.
        second_pool: whether there is a second HTCondor pool, for the grid universe.
        releases: of ROOT, that its jobs find on CVMFS.
        software_dir: where environments of ROOT releases are cached.
        rucio: whether there is Rucio, which places files on the sites' storages.
        database: whether there is a database for results.
    """

    name: str
    folder: Path
    cache: Path
    sites: tuple[str, ...]
    user: tuple[int, int] | None = None
    hidden_folders: tuple[Path, ...] = ()
    second_pool: bool = False
    releases: tuple[str, ...] = ()
    software_dir: Path = Path()
    rucio: bool = False
    database: bool = False

    def make_folder(self, path: Path, mode: int = 0o755) -> Path:
        """Make a folder that belongs to the box's user, with its parents; the path again."""
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
        return self.change_owner(path)

    def write_file(self, path: Path, text: str, mode: int = 0o644) -> Path:
        """Write a file that belongs to the box's user; the path again."""
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
        return self.change_owner(path)

    def change_owner(self, path: Path) -> Path:
        """Give what lies at a path to the box's user; the path again."""
        if self.user is not None:
            os.chown(path, *self.user, follow_symlinks=False)
        return path


@dataclass(frozen=True)
class DaemonSpec:
    """A process that lasts until ``down``, started in a session of its own.

    Its log is ``FOLDER/logs/NAME.log``.  :data:`MARK` is added to its environment.  As root it runs
    as the box's user, where it can read the package cache even if that lies in root's home.

    Attributes:
        name: of its log, and for ``testbed status``.
        command: program and arguments; it stays in the foreground.
        env: its whole environment.
        folder: its current folder.
        privileged: whether it runs as who runs Treehammer rather than as the box's user.
        within: a command that starts it as root, before it becomes the box's user, e.g.
            ``("ip", "netns", "exec", NAME)``.
        stop_signal: on which it ends in an orderly way.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    folder: Path
    privileged: bool = False
    command_prefix: Sequence[str] = ()
    stop_signal: int = 15


class Component(Protocol):
    """One kind of service of a testbed.

    The lifecycle calls, in this order: ``install`` (all parts at once), ``configure``, ``daemons``,
    ``missing`` until it is '', ``finish``; and ``clean_up`` when all daemons have ended.
    """

    name: str

    def install(self, say: ProgressCallback) -> None:
        """Have its programs in the cache; quick when they are there.

        Raises:
            treehammer.errors.TestbedError: they cannot be had; the message says what to do.
        """
        ...

    def visible_folders(self) -> Sequence[VisibleFolder]:
        """Which folders of its own jobs see; asked before anything is configured."""
        ...

    def configure(self) -> None:
        """Write its configuration below the box's folder."""
        ...

    def daemons(self) -> Sequence[DaemonSpec]:
        """What to start, in order."""
        ...

    def describe_missing(self) -> str:
        """What is not ready yet, '' when all of it is; quick, called again and again."""
        ...

    def finish_setup(self) -> None:
        """Write what could not be known before all parts were ready, such as ports."""
        ...

    def clean_up(self) -> None:
        """Undo what lies outside the box's folder (network namespaces, devices); idempotent."""
        ...


def write_secret(path: Path, text: str) -> None:
    """Write what only who runs Treehammer may read."""
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
