"""Starting and stopping a testbed and its processes, also after a crash."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from treehammer.collectors.json_documents import format_json, parse_json
from treehammer.collectors.shared_files import write_atomically
from treehammer.errors import TestbedError
from treehammer.testbed import mount_namespace, process_search
from treehammer.testbed.component import Component, DaemonSpec
from treehammer.testbed.workspace import (
    ENVIRONMENT_MARK,
    GridOptions,
    ProgressCallback,
    Workspace,
    lock_workspace,
    watch_owner,
)

#: Time limit in seconds for all components to be ready.
READY_TIMEOUT_S = 120.0
POLL_S = 0.1
LOG_LINES = 15
#: Seconds in which processes that had no mark yet when others were killed may end.
REMOVAL_TIMEOUT_S = 10.0
#: Rounds of looking for processes that were forked while others were killed.
KILL_ROUNDS = 50
#: Daemons started by this process, which reaps them; those of others are children of init.
STARTED_DAEMONS: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class RunningDaemon:
    """A started daemon.

    Attributes:
        spec: given by its component.
        pid: of its process.
        start_ticks: start of the process in clock ticks after boot.
        started_at: the same in seconds since the epoch.
    """

    spec: DaemonSpec
    pid: int
    start_ticks: int
    started_at: float

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return process_search.is_alive(self.pid, self.start_ticks)


@dataclass(frozen=True, kw_only=True)
class WorkspaceState(GridOptions):
    """Saved state of a testbed; ``ready`` once all components were."""

    ready: bool = False
    daemons: tuple[RunningDaemon, ...] = ()


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


def bring_up(
    box: Workspace,
    components: Sequence[Component],
    say: ProgressCallback,
    *,
    keep: bool = False,
    owner: int | None = None,
) -> bool:
    """Start the testbed if it does not run; return whether it was started.

    Leftovers of a crash are removed first. If this fails or is killed, nothing is left.

    Args:
        box: the testbed.
        components: of the testbed.
        say: receives progress.
        keep: keep a failed testbed for inspection.
        owner: pid of the process with which the testbed ends, however that dies; None for none.

    Raises:
        TestbedError: a component fails, the testbed runs with other options, or there is no such owner.
    """
    with lock_workspace(box, lambda: say("waiting for another process that changes this testbed")):
        if check_running(box, say):
            return False
        mount_namespace.check_mount_namespaces(box)
        with ThreadPoolExecutor(len(components)) as pool:
            for installation in [pool.submit(part.install, say) for part in components]:
                installation.result()
        _remove_workspace(box)
        with _watch_start(box):
            try:
                if owner is not None:
                    STARTED_DAEMONS.append(watch_owner(box.folder, owner))
                _start_components(box, components, say)
            except BaseException:
                if not keep:
                    _remove_workspace(box)
                raise
        return True


@contextmanager
def _watch_start(box: Workspace) -> Iterator[None]:
    """Have the testbed end with this process while the block runs."""
    watch = watch_owner(box.folder, os.getpid())
    try:
        yield
    finally:
        watch.kill()
        watch.wait()


def take_down(box: Workspace, say: ProgressCallback) -> bool:
    """Stop the testbed and remove its files; return whether there was anything."""
    with lock_workspace(box, lambda: say("waiting for another process that changes this testbed")):
        return _remove_workspace(box)


@contextmanager
def run_testbed(
    box: Workspace, components: Sequence[Component], say: ProgressCallback
) -> Iterator[None]:
    """Run a testbed within a block; it ends with this process, however that dies.

    Raises:
        TestbedError: see :func:`bring_up`.
    """
    bring_up(box, components, say, owner=os.getpid())
    try:
        yield
    finally:
        take_down(box, say)


def check_running(box: Workspace, say: ProgressCallback) -> bool:
    """Return whether the whole testbed runs; removes nothing.

    Raises:
        TestbedError: it runs with other options.
    """
    state = read_state(box.folder)
    if state is None or not state.ready:
        return False
    dead = [daemon.spec.name for daemon in state.daemons if not daemon.is_alive]
    if dead:
        say(f"restarting: {', '.join(dead)} had ended")
        return False
    if state.options != box.options:
        differences = [name for name, value in state.options.items() if value != box.options[name]]
        raise TestbedError(
            f"is up already, with other {', '.join(differences)}",
            where=f"testbed {box.name}",
            hint=f"Take it down first (treehammer testbed down --name {box.name}), "
            "or give the new one another --name.",
        )
    return True


def _start_components(
    box: Workspace, components: Sequence[Component], say: ProgressCallback
) -> None:
    state = WorkspaceState(**box.options)
    while not box.folder.exists():
        with suppress(FileNotFoundError):  # another process removed the folder of all testbeds
            box.folder.mkdir(mode=0o755, parents=True)
    for path in (box.folder / "logs", *box.hidden_folders):
        path.mkdir(parents=True, exist_ok=True)
    for path in (box.folder, box.folder / "logs"):
        path.chmod(0o755)
    write_state(box.folder, state)
    job_views = [view for component in components for view in component.visible_folders()]
    mount_namespace.write_daemon_wrapper(box, job_views)
    for component in components:
        component.job_views = job_views
        component.configure()
        # Its daemons start while the next components are configured.
        for daemon in component.daemons():
            state = replace(state, daemons=(*state.daemons, launch_daemon(box, daemon)))
            write_state(box.folder, state)
    _wait_until_ready(box, components, state, say)
    for component in components:
        component.finish_setup()
    write_state(box.folder, replace(state, ready=True))


def launch_daemon(box: Workspace, daemon: DaemonSpec) -> RunningDaemon:
    """Start a daemon of a testbed; the caller records it in the state.

    Raises:
        TestbedError: it cannot be started.
    """
    command = [
        *daemon.command_prefix,
        *([] if daemon.privileged else mount_namespace.daemon_wrapper_command(box)),
        *daemon.command,
    ]
    # A server that was killed leaves a lock file with its process id, which must be free by now.
    _reap_daemons()
    with daemon_log_path(box, daemon.name).open("ab") as log:
        try:
            child = subprocess.Popen(
                command,
                cwd=daemon.folder,
                env={**daemon.env, ENVIRONMENT_MARK: str(box.folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=0o022,
            )
        except OSError as error:
            raise TestbedError(f"cannot be started: {error}", where=daemon.name) from error
    STARTED_DAEMONS.append(child)
    return RunningDaemon(daemon, child.pid, process_search.start_time(child.pid), time.time())


def _reap_daemons() -> None:
    STARTED_DAEMONS[:] = [child for child in STARTED_DAEMONS if child.poll() is None]


def _wait_until_ready(
    box: Workspace, components: Sequence[Component], state: WorkspaceState, say: ProgressCallback
) -> None:
    until = time.monotonic() + READY_TIMEOUT_S
    pending = list(components)
    while pending:
        lacking = {component.name: component.describe_missing() for component in pending}
        for component in [component for component in pending if not lacking[component.name]]:
            say(f"{component.name} is ready")
            pending.remove(component)
        _require_running(box, state.daemons)
        if pending and time.monotonic() > until:
            texts = "; ".join(
                f"{component.name}: {lacking[component.name]}" for component in pending
            )
            raise TestbedError(
                f"not ready after {READY_TIMEOUT_S:.0f} s: {texts}",
                where=f"testbed {box.name}",
                hint="Repeat with --keep and read treehammer testbed logs.",
            )
        time.sleep(POLL_S if pending else 0)


def _require_running(box: Workspace, daemons: Sequence[RunningDaemon]) -> None:
    for daemon in daemons:
        if not daemon.is_alive:
            # Its log is removed with the testbed.
            lines = read_last_lines(daemon_log_path(box, daemon.spec.name), LOG_LINES)
            raise TestbedError(
                "\n  ".join(["ended while the testbed was starting", *lines]),
                where=f"{box.name}: {daemon.spec.name}",
            )


def _remove_workspace(box: Workspace) -> bool:
    is_left = existed = box.folder.exists() or bool(process_search.find_processes(box.folder))
    until = time.monotonic() + REMOVAL_TIMEOUT_S
    while is_left:
        # All data are removed, so that an orderly end of the daemons would only take time.
        kill_processes(box.folder)
        try:
            _remove_folder(box.folder)
        except OSError:
            # A process whose program only began when its parent was killed had no mark, and writes.
            if time.monotonic() > until:
                raise
            time.sleep(POLL_S)
        is_left = box.folder.exists() or bool(process_search.find_processes(box.folder))
    with suppress(OSError):  # there are other testbeds, or none
        box.folder.parent.rmdir()
    return existed


def _remove_folder(folder: Path) -> None:
    """Remove a folder, with subfolders of jobs that their owner cannot write to."""
    for path, names, _ in os.walk(folder):
        for subfolder in (Path(path, name) for name in names):
            if not subfolder.is_symlink():
                subfolder.chmod(0o700)
    if folder.exists():
        shutil.rmtree(folder)


def list_daemons(state: WorkspaceState) -> list[dict[str, Any]]:
    """List name, pid, state, start (UTC) and listening TCP ports of each daemon.

    The processes that it started follow it.
    """
    rows: list[dict[str, Any]] = []
    for daemon in state.daemons:
        name, pid = daemon.spec.name, daemon.pid
        # Another process may have the pid of one that ended.
        children = process_search.list_children(pid) if daemon.is_alive else []
        processes = [("", pid, daemon.started_at), *children]
        rows += [
            {
                "daemon": f"{name}/{child}" if child else name,
                "pid": pid,
                "state": "running" if daemon.is_alive else "ended",
                "since": datetime.fromtimestamp(since, UTC).isoformat(" ", "seconds"),
                "ports": process_search.listening_ports(pid) if daemon.is_alive else [],
            }
            for child, pid, since in processes
        ]
    return rows


def find_logs(box: Workspace) -> dict[str, Path]:
    """Map names to the logs of a testbed, including those in ``log`` folders of services."""
    logs = {path.stem: path for path in sorted((box.folder / "logs").glob("*.log"))}
    for pattern in ("*/log/*Log", "*/sites/*/log/*Log"):
        for path in sorted(box.folder.glob(pattern)):
            folders = path.relative_to(box.folder).parts[:-2]
            logs["-".join([*(f for f in folders if f != "sites"), path.name])] = path
    return logs


def daemon_log_path(box: Workspace, daemon: str) -> Path:
    """Return the path of a daemon's output."""
    return box.folder / "logs" / f"{daemon}.log"


def read_last_lines(path: Path, lines: int) -> list[str]:
    """Return the last lines of a file; none if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
    except OSError:
        return []


def kill_processes(folder: Path) -> None:
    """Kill all processes of the testbed in this folder."""
    initial = {
        (pid, process_search.start_time(pid)) for pid in process_search.find_processes(folder)
    }
    for _ in range(KILL_ROUNDS):
        # A process that lost its mark meanwhile was found earlier.
        remaining = {pid for pid, started in initial if process_search.is_alive(pid, started)}
        remaining |= process_search.find_processes(folder)
        if not remaining:
            break
        for pid in remaining:
            process_search.send_signal(pid, signal.SIGKILL)
        time.sleep(0.02)
        _reap_daemons()
