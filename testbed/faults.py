"""What can go wrong with a testbed's daemons, done on purpose."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from treehammer.errors import TestbedError
from treehammer.submit.batch.processes import start_time
from treehammer.testbed import lifecycle, processes
from treehammer.testbed.parts import Box, Part
from treehammer.testbed.places import Running, State, read_state, write_state

#: Seconds for a daemon to end, and for what it serves to be ready again.
PATIENCE_S = 30.0


@contextmanager
def stopped(box: Box, parts: Sequence[Part], name: str, how: int | None = None) -> Iterator[None]:
    """Have a daemon ended while the block runs; afterwards all is ready again.

    Args:
        box: a testbed that is up.
        parts: those it was brought up with.
        name: of the daemon, as ``testbed status`` lists it, e.g. ``xrootd-SITE_B``.
        how: the signal; by default that on which it ends in an orderly way.

    Raises:
        TestbedError: there is no such daemon, or it does not come back.
    """
    state, running = _daemon(box, name)
    # What it started may outlive it for a moment.
    family = [(pid, start_time(pid)) for pid in _below(running.pid)]
    family.append((running.pid, running.started))
    os.kill(running.pid, how or running.stop_signal)
    _until(lambda: not any(processes.alive(*one) for one in family), f"{name} does not end")
    try:
        yield
    finally:
        again = next(d for part in parts for d in part.daemons() if d.name == name)
        new = lifecycle.launch(box, again)
        write_state(
            box.folder,
            replace(state, daemons=tuple(new if d == running else d for d in state.daemons)),
        )
        _until(lambda: not any(part.missing() for part in parts), f"{name} is not ready again")


@contextmanager
def hanging(box: Box, name: str) -> Iterator[None]:
    """Have a daemon accept connections and say nothing while the block runs.

    Raises:
        TestbedError: there is no such daemon.
    """
    _, running = _daemon(box, name)
    os.kill(running.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(running.pid, signal.SIGCONT)


@contextmanager
def small_disk(
    box: Box, parts: Sequence[Part], name: str, folder: Path, mebibytes: int
) -> Iterator[None]:
    """Give a daemon a small disk in place of a folder while the block runs, as root.

    Others do not see it.  The daemon is started anew afterwards, with the folder as it was.

    Raises:
        TestbedError: there is no such daemon, or this user may not mount.
    """
    _, running = _daemon(box, name)
    command = ["nsenter", "--target", str(running.pid), "--mount", "mount", "-t", "tmpfs"]
    command += ["-o", f"size={mebibytes}m,mode=777", "none", str(folder)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise TestbedError(f"no disk for {name}: {done.stderr.strip()}", hint="Try it as root.")
    try:
        yield
    finally:
        with stopped(box, parts, name):
            pass


def _below(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def _daemon(box: Box, name: str) -> tuple[State, Running]:
    state = read_state(box.folder)
    daemons = state.daemons if state else ()
    found = next((daemon for daemon in daemons if daemon.name == name), None)
    if state is None or found is None:
        known = ", ".join(daemon.name for daemon in daemons)
        raise TestbedError(f"there is no daemon {name!r}", where=box.name, hint=f"Known: {known}.")
    return state, found


def _until(true: Callable[[], bool], otherwise: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > end:
            raise TestbedError(f"{otherwise} within {PATIENCE_S:.0f} s")
        processes.reap()
        time.sleep(0.1)
