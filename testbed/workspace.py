"""Workspaces of testbeds: options, folder, lock and owner."""

from __future__ import annotations

import errno
import itertools
import os
import pwd
import re
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import treehammer
from treehammer.collectors.software import providers
from treehammer.collectors.software.wheels import find_wheel
from treehammer.config import Settings
from treehammer.errors import ConfigError, TestbedError, suggest_word

#: Receives one short sentence at a time about slow steps.
ProgressCallback = Callable[[str], None]
#: Environment variable of each testbed process: the testbed's folder.
ENVIRONMENT_MARK = "TREEHAMMER_TESTBED"
#: Python of the nodes; the user's caches, with their Python, are hidden from jobs.
NODE_PYTHON = "/usr/bin/python3"
#: Environment variable with the folder of all testbeds.
WORKSPACES_VARIABLE = "TREEHAMMER_TESTBEDS"
#: Longest name; paths of sockets are limited.
NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,19}")
#: Bytes of a testbed's path, to which HTCondor adds the names of its sockets.
MAX_PATH_BYTES = 60
MAX_SITES = 26
#: The most jobs of a site at once: all share the cores of this machine.
MAX_SLOTS = 64
OWNER_WATCH = "treehammer.testbed.owner_watch"
#: Lines of a failed program's output that a message repeats.
OUTPUT_LINES = 5
#: Seconds between attempts to lock a testbed.
LOCK_POLL_S = 0.05
#: ROOT releases of a testbed by default.
DEFAULT_RELEASES = ("6.38.00", "6.40.00")
#: User of daemons and jobs of root, on every Linux system.
ORDINARY_USER = "daemon"


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
    releases: tuple[str, ...] = DEFAULT_RELEASES
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
        """Create a folder and missing parents for the testbed's user; return the path."""
        if not path.parent.exists():
            self.make_folder(path.parent)
        path.mkdir(exist_ok=True)
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


def workspaces_folder() -> Path:
    """Return the folder of this user's testbeds, outside a private home.

    Raises:
        TestbedError: it belongs to another user.
    """
    default = f"/var/tmp/treehammer-{os.getuid()}"  # noqa: S108 - its owner is checked
    folder = Path(os.environ.get(WORKSPACES_VARIABLE) or default).absolute()
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return folder
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise TestbedError(
            "belongs to another user, who could control the testbed",
            where=str(folder),
            hint=f"Have it removed, or name another folder in {WORKSPACES_VARIABLE}.",
        )
    return folder


def define_workspace(name: str, sites: int, settings: Settings, **options: Any) -> Workspace:
    """Describe the testbed of that name; creates nothing.

    Args:
        name: of the testbed.
        sites: number of its sites.
        settings: with the folders of the user.
        options: further fields of :class:`GridOptions`.

    Raises:
        ConfigError: the name, the number of sites or a ROOT release is invalid.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigError(
            f"invalid name of a testbed: {name!r}",
            where="--name",
            hint="Use up to 20 lower-case letters, digits and '-'; start with a letter or digit.",
        )
    folder = workspaces_folder() / name
    user = pwd.getpwnam(ORDINARY_USER) if os.getuid() == 0 else None
    box = Workspace(
        name=name,
        folder=folder,
        cache=settings.cache_dir / "testbed",
        sites=tuple(f"SITE_{chr(ord('A') + number)}" for number in range(sites)),
        user=(user.pw_uid, user.pw_gid) if user else None,
        hidden_folders=_folders_to_hide(settings),
        software_dir=settings.software_dir,
        **options,
    )
    if box.secure_sites > sites:
        raise ConfigError(f"exceeds the number of sites, {sites}", where="--secure-sites")
    for release in box.releases:
        if not find_wheel(release):
            raise ConfigError(
                f"there is no wheel of ROOT {release!r}",
                where="--releases",
                hint=f"{suggest_word(release, providers.WHEELS)}Known: {', '.join(providers.WHEELS)}.",
            )
    if len(os.fsencode(folder)) > MAX_PATH_BYTES:
        raise ConfigError(
            f"the path of the testbed exceeds the {MAX_PATH_BYTES} bytes that sockets allow",
            where=str(folder),
            hint=f"Choose a shorter --name, or a shorter folder in {WORKSPACES_VARIABLE}.",
        )
    return box


def _folders_to_hide(settings: Settings) -> tuple[Path, ...]:
    """Return the user's home, caches and results, and the running code."""
    package = Path(treehammer.__file__).resolve().parent
    checkout = package.parents[1]
    code = checkout if (checkout / "setup.cfg").is_file() else package
    candidates = [settings.cache_dir, settings.data_dir, code]
    if Path.home().is_dir():
        candidates.append(Path.home())
    if sys.prefix != sys.base_prefix:
        candidates.append(Path(sys.prefix))
    return tuple(
        path for path in dict.fromkeys(p.resolve() for p in candidates) if path != Path("/")
    )


@contextmanager
def lock_workspace(box: Workspace, on_wait: Callable[[], object]) -> Iterator[None]:
    """Lock a testbed while it is changed, by a name that ends with the process and leaves no file.

    Args:
        box: the testbed.
        on_wait: called before waiting for another process.
    """
    with socket.socket(socket.AF_UNIX) as lock:
        for attempt in itertools.count():
            try:
                lock.bind(f"\0treehammer {box.folder}")
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            if attempt == 0:
                on_wait()
            time.sleep(LOCK_POLL_S)
        yield


def watch_owner(folder: Path, owner: int) -> subprocess.Popen[bytes]:
    """Have a testbed, and whatever has its mark, end with a process, however that dies.

    Returns:
        The watch, which is a process of the testbed.

    Raises:
        TestbedError: there is no such process.
    """
    try:
        owner_fd = os.pidfd_open(owner)
    except OSError as error:
        raise TestbedError(
            f"cannot own a testbed ({error.strerror})", where=f"process {owner}"
        ) from error
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", OWNER_WATCH, str(folder), str(owner_fd)],
            env={**os.environ, ENVIRONMENT_MARK: str(folder)},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[owner_fd],
            start_new_session=True,
        )
    finally:
        os.close(owner_fd)


def run_program(
    command: Sequence[str],
    *,
    where: str = "",
    hint: str = "",
    env: Mapping[str, str] | None = None,
    folder: Path = Path("/"),
) -> str:
    """Run a program without input; return its output.

    Args:
        command: program and arguments.
        where: of the error, by default the program.
        hint: remedy in the error.
        env: complete environment; the current one by default.
        folder: working folder.

    Raises:
        TestbedError: it failed; with the end of its output.
    """
    result = subprocess.run(
        command, env=env, cwd=folder, input="", capture_output=True, text=True, check=False
    )
    if result.returncode:
        lines = (result.stderr.strip() or result.stdout.strip()).splitlines()[-OUTPUT_LINES:]
        where = where or Path(command[0]).name
        raise TestbedError("\n  ".join(["failed:", *lines]), where=where, hint=hint)
    return result.stdout


def write_secret(path: Path, text: str) -> None:
    """Write a file that only the current user can read."""
    path.touch(mode=0o600)
    path.chmod(0o600)  # independent of the umask and of the mode of an older file
    path.write_text(text, encoding="utf-8")
