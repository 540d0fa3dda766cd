"""Testbed for the tests of a session, and ways to break it.

``pool`` is the HTCondor pool alone, with a second one for the grid universe; ``grid`` also has the
sites' storage; ``rucio_grid`` has Rucio and a results database as well, but no second pool;
``secure`` has the secure doors of one site, without pools.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from machine_requirements import skip_or_fail
from polling import wait_until

from treehammer import config
from treehammer.errors import TestbedError
from treehammer.submit.sites.site_model import Door
from treehammer.testbed import lifecycle, mount_namespace, workspace
from treehammer.testbed.component import Component
from treehammer.testbed.components import condor_pool, site_list
from treehammer.testbed.components.secure_storage import READ_SCOPE, SecureStorage
from treehammer.testbed.components.site_list import build_components, sites_file_path
from treehammer.testbed.components.xrootd_storage import DATASET_FOLDER, storage_folder
from treehammer.testbed.process_search import start_time
from treehammer.testbed.workspace import Workspace

SITE_COUNT = 3
WATCH = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_configure(config: pytest.Config) -> None:
    """End all that tests start with this process.

    Services inherit the mark, and those of testbeds have their own: a killed run leaves none.
    """
    mark = Path(tempfile.gettempdir(), "treehammer-tests", str(os.getpid()))
    os.environ[workspace.ENVIRONMENT_MARK] = str(mark)
    config.stash[WATCH] = workspace.watch_owner(mark, os.getpid())


class Grid:
    """A running testbed.

    Attributes:
        box: the testbed.
        parts: its components.
        pool: its HTCondor pool.
        second: the pool behind the grid universe.
        sites_file: sites file; exists if all components run.
        submit_dir: folder of the jobs' inputs and outputs.
        env: environment of a user's HTCondor commands; the Python bindings need only CONDOR_CONFIG.
    """

    def __init__(self, box: Workspace, parts: Sequence[Component] = ()) -> None:
        self.box = box
        self.parts = parts
        self.pool = condor_pool.CondorPool(box)
        self.second = condor_pool.CondorPool(box, condor_pool.SECOND_POOL)
        self.sites_file = sites_file_path(box)
        self.submit_dir = condor_pool.submit_folder(box)
        self.env = self.pool.client_env

    @property
    def grid_resource(self) -> str:
        """Grid resource of the second pool."""
        return self.second.grid_resource

    def run_condor_command(self, *command: str, **env: str) -> str:
        """Run a command of HTCondor as a user and return its output."""
        return subprocess.run(
            command,
            env={**self.env, **env},
            executable=shutil.which(command[0], path=self.env["PATH"]),
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    def run_admin_command(self, *command: str) -> str:
        """Run a command of HTCondor as an administrator of the pool."""
        tokens = str(self.pool.admin_token_folder)
        return self.run_condor_command(*command, _CONDOR_SEC_TOKEN_DIRECTORY=tokens)

    # -- sites

    def registered_sites(self) -> set[str]:
        """Return the names of the sites known to the collector."""
        return set(self.run_condor_command("condor_status", "-af", "GLIDEIN_Site").split())

    @contextmanager
    def without_site(self, site: str) -> Iterator[None]:
        """Stop a site while the block runs: its jobs are evicted at once and no job starts there."""
        self.run_admin_command("condor_off", "-fast", "-subsystem", f"STARTD_{site}")
        self.wait_until(lambda: not self._startd_processes(site), f"{site} stops")
        self.wait_until(lambda: site not in self.registered_sites(), f"{site} is forgotten")
        try:
            yield
        finally:
            self.run_admin_command("condor_on", "-subsystem", f"STARTD_{site}")
            self.wait_until(lambda: site in self.registered_sites(), f"{site} is back")

    # -- processes

    def startd_pid(self, site: str) -> int:
        """Return the pid of a site's startd."""
        (pid,) = self._startd_processes(site)
        return pid

    def starter_pids(self, site: str) -> list[int]:
        """List the pids of the starters of a site's jobs."""
        children = psutil.Process(self.startd_pid(site)).children()
        return [child.pid for child in children if child.name() == "condor_starter"]

    def _startd_processes(self, site: str) -> list[int]:
        ends = ["-local-name", site]
        return self._daemon_processes(lambda w: w[0].endswith("condor_startd") and w[-2:] == ends)

    def _daemon_processes(self, chosen: Callable[[Sequence[str]], bool]) -> list[int]:
        state = lifecycle.read_state(self.box.folder)
        assert state is not None
        (master,) = [daemon.pid for daemon in state.daemons if daemon.spec.name == self.pool.name]
        pids = []
        for process in psutil.Process(master).children():
            with suppress(psutil.Error):
                words = process.cmdline()
                if words and chosen(words):
                    pids.append(process.pid)
        return pids

    def kill_startd(self, site: str) -> None:
        """Kill a site's startd with its jobs, as when a machine fails.

        The master restarts it within seconds; see :meth:`wait_until`.
        """
        startd = psutil.Process(self.startd_pid(site))
        for victim in (startd, *startd.children(recursive=True)):
            _kill_process(victim.pid)

    def kill_schedd(self) -> None:
        """Kill the schedd; the master restarts it within seconds."""
        (pid,) = self._daemon_processes(lambda words: words[0].endswith("condor_schedd"))
        _kill_process(pid)

    wait_until = staticmethod(wait_until)


def _kill_process(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _print_progress(text: str) -> None:
    print(f"testbed: {text}", flush=True)


@contextmanager
def run_components(box: Workspace, parts: Sequence[Component]) -> Iterator[None]:
    """Run components of a testbed; skips the test if the machine does not support them."""
    try:
        mount_namespace.check_mount_namespaces(box)
        for part in parts:
            part.install(_print_progress)
    except TestbedError as error:
        skip_or_fail(f"no testbed: {error}")
    with lifecycle.run_testbed(box, parts, _print_progress):
        yield


@contextmanager
def run_testbed(
    name: str, choose: Callable[[Workspace], list[Component]], sites: int, **options: Any
) -> Iterator[Grid]:
    """Run a testbed for this process; ``options`` are those of its workspace."""
    settings = config.load_settings()
    for folder in workspace.workspaces_folder().glob("t[0-9]*-*"):  # of killed sessions
        pid = folder.stem[1:].partition("-")[0]
        if pid.isdigit() and not start_time(int(pid)):
            lifecycle.take_down(
                workspace.define_workspace(folder.stem, 1, settings), _print_progress
            )
    box = workspace.define_workspace(f"t{os.getpid()}-{name}", sites, settings, **options)
    parts = choose(box)
    with run_components(box, parts):
        yield Grid(box, parts)


@pytest.fixture(scope="session")
def pool() -> Iterator[Grid]:
    """HTCondor only: three sites and a second pool."""
    with run_testbed("pool", site_list.build_pools, SITE_COUNT, second_pool=True) as grid:
        yield grid


@pytest.fixture(scope="session")
def grid() -> Iterator[Grid]:
    """Full testbed: three sites with their storage, and a second pool."""
    with run_testbed("grid", build_components, SITE_COUNT, second_pool=True) as grid:
        yield grid


@pytest.fixture(scope="session")
def rucio_grid() -> Iterator[Grid]:
    """Full testbed with Rucio and a results database: three sites, the last of them distant."""
    with run_testbed("rucio", build_components, SITE_COUNT, rucio=True, database=True) as grid:
        yield grid


SITE = "SITE_A"


@dataclass(frozen=True)
class SecureDoors:
    """The running doors of :data:`SITE`.

    Attributes:
        part: their component.
    """

    part: SecureStorage

    @property
    def doors(self) -> dict[str, Door]:
        """Doors by name."""
        return {door.name: door for door in self.part.doors(SITE)}

    def put_file(self, name: str, content: bytes) -> None:
        """Put a file into the storage."""
        folder = storage_folder(self.part.box, SITE) / DATASET_FOLDER.lstrip("/")
        path = folder / name
        self.part.box.make_folder(path.parent)
        path.write_bytes(content)
        self.part.box.change_owner(path)

    def write_token(self, path: Path, scope: str = READ_SCOPE, lifetime_s: float = 900.0) -> Path:
        """Write a token of the testbed's issuer."""
        return self.part.issuer.write_token(path, scope, lifetime_s)

    def write_voms_proxy(self, path: Path, *attributes: str, expired: bool = False) -> Path:
        """Write a proxy with VOMS attributes, which alone may have expired."""
        return self.part.vo.write_proxy(path, attributes, expired=expired)

    def environment(self, token: Path | None = None) -> dict[str, str]:
        """Return the variables of a user with these authorities and a token."""
        variables = {"X509_CERT_DIR": str(self.part.certificates)}
        return variables if token is None else {**variables, "BEARER_TOKEN_FILE": str(token)}


@pytest.fixture(scope="session")
def secure() -> Iterator[SecureDoors]:
    """Secure doors of one site."""
    box = workspace.define_workspace(f"t{os.getpid()}-secure", 1, config.load_settings())
    part = SecureStorage(box, [SITE])
    with run_components(box, [part]):
        yield SecureDoors(part)
