"""Where testbeds lie, who changes one, and what is remembered of it."""

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
from treehammer.testbed.core.component import Workspace

#: Names the folder of all testbeds.
WORKSPACES_VARIABLE = "TREEHAMMER_TESTBEDS"
#: A longer one would make paths of sockets too long.
NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9-]{0,19}")
#: Bytes that the path of a testbed may have: HTCondor adds the names of its sockets.
MAX_PATH_BYTES = 60
MAX_SITES = 26
#: Of ROOT, in a testbed that is not asked for others.
DEFAULT_RELEASES = ("6.38.00", "6.40.00")
#: As root, daemons and jobs are the first of these users that exists.
ORDINARY_USERS = ("daemon", "nobody")


@dataclass(frozen=True)
class RunningDaemon:
    """A daemon that was started.

    Attributes:
        name: as the part calls it.
        pid: of its process, which started ``started`` clock ticks after boot.
        started: see there.
        since: when that was, seconds since the epoch.
        stop_signal: on which it ends in an orderly way.
    """

    name: str
    pid: int
    start_ticks: int
    started_at: float
    stop_signal: int


@dataclass(frozen=True)
class WorkspaceState:
    """What is remembered of a testbed; ``ready`` once all of it was."""

    sites: tuple[str, ...]
    second_pool: bool
    releases: tuple[str, ...] = ()
    ready: bool = False
    daemons: tuple[RunningDaemon, ...] = ()
    rucio: bool = False
    database: bool = False

    @property
    def configuration(self) -> tuple[object, ...]:
        """What cannot be changed while it is up; of a box, see :func:`shape_of`."""
        return (self.sites, self.second_pool, self.releases, self.rucio, self.database)


def configuration_of(box: Workspace) -> tuple[object, ...]:
    """What :attr:`State.shape` of this testbed is."""
    return (box.sites, box.second_pool, box.releases, box.rucio, box.database)


def workspaces_folder() -> Path:
    """The folder of all testbeds of this user, outside a home that others cannot enter.

    Raises:
        TestbedError: it belongs to somebody else.
    """
    default = f"/var/tmp/treehammer-{os.getuid()}"  # noqa: S108 - whose it is, is checked
    folder = Path(os.environ.get(WORKSPACES_VARIABLE) or default).absolute()
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return folder
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise TestbedError(
            "is not a folder of yours, and the testbed would be in somebody else's hands",
            where=str(folder),
            hint=f"Have it removed, or name another one in {WORKSPACES_VARIABLE}.",
        )
    return folder


def define_workspace(
    name: str,
    sites: int,
    settings: Settings,
    *,
    second_pool: bool = False,
    releases: Sequence[str] = DEFAULT_RELEASES,
    rucio: bool = False,
    database: bool = False,
) -> Workspace:
    """The testbed of that name; nothing is made.

    Raises:
        ConfigError: the name, the number of sites or a release of ROOT cannot be.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise ConfigError(
            f"{name!r} cannot name a testbed",
            where="--name",
            hint="Use up to 20 small letters, digits and '-', a letter or digit first.",
        )
    if not 1 <= sites <= MAX_SITES:
        raise ConfigError(f"there can be 1 to {MAX_SITES} sites, not {sites}", where="--sites")
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
            f"the path of the testbed is longer than the {MAX_PATH_BYTES} bytes that sockets leave",
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
    """The user's home, caches and results, and the code that runs."""
    package = Path(treehammer.__file__).resolve().parent
    checkout = package.parents[1]
    code = checkout if (checkout / "setup.cfg").is_file() else package
    wanted = [settings.cache_dir, settings.data_dir, code]
    if Path.home().is_dir():
        wanted.append(Path.home())
    if sys.prefix != sys.base_prefix:
        wanted.append(Path(sys.prefix))
    return tuple(path for path in dict.fromkeys(p.resolve() for p in wanted) if path != Path("/"))


@contextmanager
def lock_workspace(box: Workspace, on_wait: Callable[[], object]) -> Iterator[None]:
    """Hold a testbed while it is changed; nothing of the lock stays when its folder is gone.

    Args:
        box: the testbed.
        on_wait: is called when another process holds it, before waiting for it.
    """
    path = box.folder.with_suffix(".lock")
    with _lock_file(path, on_wait):
        try:
            yield
        finally:
            if not box.folder.exists():
                path.unlink(missing_ok=True)
                with suppress(OSError):  # other testbeds are there
                    box.folder.parent.rmdir()


@contextmanager
def _lock_file(path: Path, on_wait: Callable[[], object]) -> Iterator[None]:
    told = False
    while True:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        try:
            stream = path.open("a", encoding="utf-8")
        except FileNotFoundError:  # removed by who just took the last testbed down
            continue
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not told:
                    on_wait()
                told = True
                fcntl.flock(stream, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(stream.fileno()), path.stat()):
                    yield
                    return


def _state_path(folder: Path) -> Path:
    return folder / "state.json"


def read_state(folder: Path) -> WorkspaceState | None:
    """What is remembered of the testbed in this folder, None when there is nothing to read."""
    try:
        document = json.loads(_state_path(folder).read_text(encoding="utf-8"))
        daemons = tuple(RunningDaemon(**daemon) for daemon in document["daemons"])
        names = {key: tuple(document[key]) for key in ("sites", "releases")}
        return WorkspaceState(**{**document, **names, "daemons": daemons})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_state(folder: Path, state: WorkspaceState) -> None:
    """Remember the state of the testbed in this folder."""
    write_atomically(_state_path(folder), json.dumps(asdict(state), indent=1) + "\n")
