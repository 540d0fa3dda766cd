"""Workspaces of testbeds: options, folder, lock and saved state; the interface of components.

A component installs its programs, writes its configuration (rendered from ``templates``), and names
the daemons that the lifecycle starts and stops.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import shlex
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

import treehammer
from treehammer.collectors.json_documents import format_json, parse_json
from treehammer.collectors.shared_files import write_atomically
from treehammer.collectors.software import providers
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
#: ROOT releases of a testbed by default.
DEFAULT_RELEASES = ("6.38.00", "6.40.00")
#: Users of daemons and jobs as root; the first that exists is taken.
ORDINARY_USERS = ("daemon", "nobody")


# --- workspaces


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


def define_workspace(
    name: str,
    sites: int,
    settings: Settings,
    *,
    slots: int = 1,
    second_pool: bool = False,
    releases: Sequence[str] = DEFAULT_RELEASES,
    rucio: bool = False,
    database: bool = False,
    secure_sites: int = 0,
    arc: bool = False,
    channels: Sequence[tuple[str, str]] = (),
) -> Workspace:
    """Describe the testbed of that name; creates nothing.

    Raises:
        ConfigError: the name, the number of sites or a ROOT release is invalid.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigError(
            f"invalid name of a testbed: {name!r}",
            where="--name",
            hint="Use up to 20 lower-case letters, digits and '-'; start with a letter or digit.",
        )
    if not 1 <= sites <= MAX_SITES:
        raise ConfigError(f"there can be 1 to {MAX_SITES} sites, not {sites}", where="--sites")
    if not 0 <= secure_sites <= sites:
        raise ConfigError(
            f"there can be 0 to {sites} secure sites, not {secure_sites}", where="--secure-sites"
        )
    if not 1 <= slots <= MAX_SLOTS:
        raise ConfigError(f"there can be 1 to {MAX_SLOTS} slots, not {slots}", where="--slots")
    for release in releases:
        if release not in providers.WHEELS:
            raise ConfigError(
                f"there is no wheel of ROOT {release!r}",
                where="--releases",
                hint=f"{suggest_word(release, providers.WHEELS)}Known: {', '.join(providers.WHEELS)}.",
            )
    folder = workspaces_folder() / name
    if len(os.fsencode(folder)) > MAX_PATH_BYTES:
        raise ConfigError(
            f"the path of the testbed exceeds the {MAX_PATH_BYTES} bytes that sockets allow",
            where=str(folder),
            hint=f"Choose a shorter --name, or a shorter folder in {WORKSPACES_VARIABLE}.",
        )
    return Workspace(
        name=name,
        folder=folder,
        cache=settings.cache_dir / "testbed",
        sites=tuple(f"SITE_{chr(ord('A') + number)}" for number in range(sites)),
        user=_find_ordinary_user(),
        hidden_folders=_folders_to_hide(settings),
        second_pool=second_pool,
        releases=tuple(dict.fromkeys(releases)),
        software_dir=settings.software_dir,
        rucio=rucio,
        database=database,
        slots=slots,
        secure_sites=secure_sites,
        arc=arc,
        channels=tuple(channels),
    )


def _find_ordinary_user() -> tuple[int, int] | None:
    if os.getuid() != 0:
        return None
    for name in ORDINARY_USERS:
        with suppress(KeyError):
            entry = pwd.getpwnam(name)
            return entry.pw_uid, entry.pw_gid
    raise TestbedError(
        f"there is no user {' or '.join(ORDINARY_USERS)} to run the testbed as",
        hint="Run Treehammer as an ordinary user.",
    )


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


# --- components


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


def render_template(name: str, **values: object) -> str:
    """Render a template; every value that it names must be given."""
    return _make_environment().get_template(name).render(values)


@cache
def _make_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - configuration, not HTML
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = shlex.quote
    return environment


# --- lock and state


@dataclass(frozen=True)
class RunningDaemon:
    """A started daemon.

    Attributes:
        name: given by its component.
        pid: of its process.
        start_ticks: start of the process in clock ticks after boot.
        started_at: the same in seconds since the epoch.
        stop_signal: for an orderly end.
    """

    name: str
    pid: int
    start_ticks: int
    started_at: float
    stop_signal: int


@dataclass(frozen=True, kw_only=True)
class WorkspaceState(GridOptions):
    """Saved state of a testbed; ``ready`` once all components were."""

    ready: bool = False
    daemons: tuple[RunningDaemon, ...] = ()


@contextmanager
def lock_workspace(box: Workspace, on_wait: Callable[[], object]) -> Iterator[None]:
    """Lock a testbed while it is changed; the lock leaves no file when the folder is removed.

    Args:
        box: the testbed.
        on_wait: called before waiting for another process.
    """
    path = box.folder.with_suffix(".lock")
    with _lock_file(path, on_wait):
        try:
            yield
        finally:
            if not box.folder.exists():
                path.unlink(missing_ok=True)
                with suppress(OSError):  # other testbeds exist
                    box.folder.parent.rmdir()


@contextmanager
def _lock_file(path: Path, on_wait: Callable[[], object]) -> Iterator[None]:
    announced = False
    while True:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        try:
            stream = path.open("a", encoding="utf-8")
        except FileNotFoundError:  # removed by another process with the last testbed
            continue
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not announced:
                    on_wait()
                announced = True
                fcntl.flock(stream, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(stream.fileno()), path.stat()):
                    yield
                    return


def _state_path(folder: Path) -> Path:
    return folder / "state.json"


def read_state(folder: Path) -> WorkspaceState | None:
    """Read the saved state of a testbed; None if there is none."""
    try:
        return parse_json(WorkspaceState, _state_path(folder).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_state(folder: Path, state: WorkspaceState) -> None:
    """Save the state of a testbed."""
    write_atomically(_state_path(folder), format_json(state, indent=1) + "\n")
