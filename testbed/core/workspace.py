"""Workspaces of testbeds: folder, lock and saved state."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import re
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import treehammer
from treehammer.collectors.shared_files import write_atomically
from treehammer.collectors.software import providers
from treehammer.config import Settings
from treehammer.errors import ConfigError, TestbedError, suggest_word
from treehammer.testbed.core.component import GridOptions, Workspace

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
        document = json.loads(_state_path(folder).read_text(encoding="utf-8"))
        daemons = tuple(RunningDaemon(**daemon) for daemon in document["daemons"])
        names = {key: tuple(document[key]) for key in ("sites", "releases")}
        names["channels"] = tuple((door, suite) for door, suite in document.get("channels", ()))
        return WorkspaceState(**{**document, **names, "daemons": daemons})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_state(folder: Path, state: WorkspaceState) -> None:
    """Save the state of a testbed."""
    write_atomically(_state_path(folder), json.dumps(asdict(state), indent=1) + "\n")
