"""Faults of a testbed's daemons, injected on purpose."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from treehammer.errors import TestbedError
from treehammer.submit.batch.local.job_processes import start_time
from treehammer.testbed.core import lifecycle, process_control
from treehammer.testbed.core.component import Component, DaemonSpec, Workspace
from treehammer.testbed.core.workspace import RunningDaemon, WorkspaceState, read_state, write_state

#: Seconds for a daemon to end, and for its service to be ready again.
TIMEOUT_S = 30.0


@contextmanager
def stop_daemon(
    box: Workspace, components: Sequence[Component], name: str, signal_number: int | None = None
) -> Iterator[None]:
    """Stop a daemon while the block runs; restart it afterwards.

    Args:
        box: a running testbed.
        components: of the testbed.
        name: of the daemon in ``testbed status``, e.g. ``xrootd-SITE_B``.
        signal_number: by default the one for an orderly end.

    Raises:
        TestbedError: the daemon is unknown, or does not come back.
    """
    running = _find_daemon(box, name)
    _end_daemon(running, signal_number or running.stop_signal)
    try:
        yield
    finally:
        restarted = next(
            d for component in components for d in component.daemons() if d.name == name
        )
        _replace_daemon(box, running, restarted)
        wait_until(
            lambda: not any(component.describe_missing() for component in components),
            f"{name} is not ready again",
        )


def restart_daemon(box: Workspace, daemon: DaemonSpec) -> None:
    """Stop a daemon in order, and start it again as described.

    Raises:
        TestbedError: the daemon is unknown, does not end, or cannot be started.
    """
    running = _find_daemon(box, daemon.name)
    _end_daemon(running, running.stop_signal)
    _replace_daemon(box, running, daemon)


def _end_daemon(running: RunningDaemon, signal_number: int) -> None:
    if not process_control.is_alive(running.pid, running.start_ticks):
        return
    # Its children may outlive it for a moment.
    processes = [(pid, start_time(pid)) for pid in _descendant_pids(running.pid)]
    processes.append((running.pid, running.start_ticks))
    os.kill(running.pid, signal_number)
    wait_until(
        lambda: not any(process_control.is_alive(*process) for process in processes),
        f"{running.name} does not end",
    )


def _replace_daemon(box: Workspace, old: RunningDaemon, spec: DaemonSpec) -> None:
    new = lifecycle.launch_daemon(box, spec)
    # Other daemons may have been replaced since this one ended.
    state = _load_state(box)
    daemons = tuple(new if daemon == old else daemon for daemon in state.daemons)
    write_state(box.folder, replace(state, daemons=daemons))


@contextmanager
def suspend_daemon(box: Workspace, name: str) -> Iterator[None]:
    """Suspend a daemon while the block runs: it accepts connections and does not respond.

    Raises:
        TestbedError: the daemon is unknown.
    """
    running = _find_daemon(box, name)
    os.kill(running.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(running.pid, signal.SIGCONT)


@contextmanager
def slow_daemon(box: Workspace, name: str, *, stopped_s: float, running_s: float) -> Iterator[None]:
    """Suspend a daemon again and again while the block runs, so that it answers slowly.

    Args:
        box: a running testbed.
        name: of the daemon in ``testbed status``.
        stopped_s: seconds for which it is suspended each time.
        running_s: seconds for which it runs in between.

    Raises:
        TestbedError: the daemon is unknown.
    """
    stop = threading.Event()

    def alternate() -> None:
        while not stop.is_set():
            with suspend_daemon(box, name):
                stop.wait(stopped_s)
            stop.wait(running_s)

    _find_daemon(box, name)
    thread = threading.Thread(target=alternate, name=f"slow {name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def mount_small_disk(
    box: Workspace, components: Sequence[Component], name: str, folder: Path, mebibytes: int
) -> Iterator[None]:
    """Replace a daemon's folder by a small disk while the block runs, as root.

    Other processes do not see it. Afterwards the daemon restarts with its folder.

    Raises:
        TestbedError: the daemon is unknown, or the user may not mount.
    """
    running = _find_daemon(box, name)
    command = ["nsenter", "--target", str(running.pid), "--mount", "mount", "-t", "tmpfs"]
    command += ["-o", f"size={mebibytes}m,mode=777", "none", str(folder)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    if result.returncode:
        raise TestbedError(f"no disk for {name}: {result.stderr.strip()}", hint="Try it as root.")
    try:
        yield
    finally:
        with stop_daemon(box, components, name):
            pass


def _descendant_pids(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def _load_state(box: Workspace) -> WorkspaceState:
    state = read_state(box.folder)
    if state is None:
        raise TestbedError("does not run", where=f"testbed {box.name}")
    return state


def _find_daemon(box: Workspace, name: str) -> RunningDaemon:
    daemons = _load_state(box).daemons
    match = next((daemon for daemon in daemons if daemon.name == name), None)
    if match is None:
        names = ", ".join(daemon.name for daemon in daemons)
        raise TestbedError(f"there is no daemon {name!r}", where=box.name, hint=f"Known: {names}.")
    return match


def wait_until(condition: Callable[[], bool], message: str) -> None:
    """Wait until something is true.

    Args:
        condition: called repeatedly.
        message: of the error while it is false.

    Raises:
        TestbedError: it stays false for :data:`TIMEOUT_S`.
    """
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > end:
            raise TestbedError(f"{message} within {TIMEOUT_S:.0f} s")
        process_control.reap_started()
        time.sleep(0.1)
