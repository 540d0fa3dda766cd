"""Faults of a running testbed's daemons; ``name`` is the daemon's in ``testbed status``."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from treehammer.testbed.component import Component
from treehammer.testbed.faults import end_daemon, start_again, wait_until
from treehammer.testbed.lifecycle import RunningDaemon, read_state
from treehammer.testbed.workspace import Workspace


@contextmanager
def stop_daemon(
    box: Workspace, components: Sequence[Component], name: str, signal_number: int | None = None
) -> Iterator[None]:
    """Stop a daemon while the block runs, by default orderly; restart it afterwards."""
    daemon = _find_daemon(box, name)
    end_daemon(daemon, signal_number or daemon.spec.stop_signal)
    try:
        yield
    finally:
        start_again(box, daemon)
        wait_until(
            lambda: not any(component.describe_missing() for component in components),
            f"{name} is not ready again",
        )


@contextmanager
def suspend_daemon(box: Workspace, name: str) -> Iterator[None]:
    """Suspend a daemon while the block runs: it accepts connections and does not respond."""
    daemon = _find_daemon(box, name)
    os.kill(daemon.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(daemon.pid, signal.SIGCONT)


def _find_daemon(box: Workspace, name: str) -> RunningDaemon:
    state = read_state(box.folder)
    assert state is not None
    return next(daemon for daemon in state.daemons if daemon.spec.name == name)
