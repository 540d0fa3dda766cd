"""Components of a testbed, with daemons that the lifecycle starts and stops."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

#: Receives one short sentence at a time about slow steps.
ProgressCallback = Callable[[str], None]

#: Environment variable of each testbed process: the testbed's folder.
ENVIRONMENT_MARK = "TREEHAMMER_TESTBED"

#: Python of the nodes; the user's caches, with their Python, are hidden from jobs.
NODE_PYTHON = "/usr/bin/python3"


@dataclass(frozen=True)
class VisibleFolder:
    """A folder that jobs see although its surroundings are hidden.

    ``source`` appears at ``target``, which may be the same path; read-only unless ``writable``.
    """

    source: Path
    target: Path
    writable: bool = False


@dataclass(frozen=True, kw_only=True)
class GridOptions:
    """Options of a testbed, which cannot change while it runs.

    Attributes:
        sites: names of its sites, in order; the last one is distant.
        slots: jobs that each site runs at once.
        second_pool: whether there is a second HTCondor pool for the grid universe.
        releases: ROOT releases that jobs find on CVMFS.
        rucio: whether Rucio runs.
        database: whether a results database runs.
        secure_sites: number of sites, the first ones, whose doors require TLS and credentials.
        arc: whether an ARC computing element runs.
        channels: further XRootD doors of each site: name, and the suite of Debian that they follow.
    """

    sites: tuple[str, ...]
    slots: int = 1
    second_pool: bool = False
    releases: tuple[str, ...] = ()
    rucio: bool = False
    database: bool = False
    secure_sites: int = 0
    arc: bool = False
    channels: tuple[tuple[str, str], ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """The options by name."""
        return {field.name: getattr(self, field.name) for field in fields(GridOptions)}


@dataclass(frozen=True)
class Workspace(GridOptions):
    """One testbed on this machine.

    Attributes:
        name: chosen by the user; several testbeds can run.
        folder: holds exactly the files that ``down`` removes.
        cache: packages, kept between testbeds.
        user: (uid, gid) of daemons and jobs; None for the current user.
        hidden_folders: folders that no job may read.
        software_dir: cached environments of ROOT releases.
    """

    name: str
    folder: Path
    cache: Path
    user: tuple[int, int] | None = None
    hidden_folders: tuple[Path, ...] = ()
    software_dir: Path = Path()

    def make_folder(self, path: Path, mode: int = 0o755) -> Path:
        """Create a folder and its parents for the testbed's user; return the path."""
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
        return self.change_owner(path)

    def write_file(self, path: Path, text: str, mode: int = 0o644) -> Path:
        """Write a file for the testbed's user; return the path."""
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
        return self.change_owner(path)

    def change_owner(self, path: Path) -> Path:
        """Give a path to the testbed's user; return the path."""
        if self.user is not None:
            os.chown(path, *self.user, follow_symlinks=False)
        return path


@dataclass(frozen=True)
class DaemonSpec:
    """A process that runs until ``down``, in its own session.

    Its log is ``FOLDER/logs/NAME.log``, and :data:`ENVIRONMENT_MARK` is added to its environment.
    As root, it runs as the testbed's user, who can read the package cache even below root's home.

    Attributes:
        name: of its log and in ``testbed status``.
        command: program and arguments; stays in the foreground.
        env: its complete environment.
        folder: its working folder.
        privileged: whether it runs as the current user instead of the testbed's user.
        command_prefix: prefix that starts it as root before it changes to the testbed's user, e.g.
            ``("ip", "netns", "exec", NAME)``.
        stop_signal: for an orderly end.
    """

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    folder: Path
    privileged: bool = False
    command_prefix: Sequence[str] = ()
    stop_signal: int = 15


class Component(ABC):
    """One service of a testbed; a method without an effect for most components does nothing here.

    The lifecycle calls ``install`` (all components at once), ``configure``, ``daemons``,
    ``describe_missing`` until it is '', ``finish_setup``, and ``clean_up`` after all daemons ended.
    """

    name: str

    @abstractmethod
    def install(self, say: ProgressCallback) -> None:
        """Install its programs into the cache; fast if they exist.

        Raises:
            treehammer.errors.TestbedError: they cannot be fetched; with a remedy.
        """

    def visible_folders(self) -> Sequence[VisibleFolder]:
        """Return its folders that jobs see; called before any configuration."""
        return ()

    def configure(self) -> None:  # noqa: B027
        """Write its configuration below the testbed's folder."""

    def daemons(self) -> Sequence[DaemonSpec]:
        """Return the daemons to start, in order."""
        return ()

    def describe_missing(self) -> str:
        """Describe parts that are not ready, '' if all are; fast, called repeatedly."""
        return ""

    def finish_setup(self) -> None:  # noqa: B027
        """Write values that are known only when all components are ready, such as ports."""

    def clean_up(self) -> None:  # noqa: B027
        """Undo changes outside the testbed's folder (namespaces, devices); idempotent."""


def write_secret(path: Path, text: str) -> None:
    """Write a file that only the current user can read."""
    path.touch(mode=0o600)
    path.chmod(0o600)  # independent of the umask and of the mode of an older file
    path.write_text(text, encoding="utf-8")
