"""Signals to the worker: requests to stop, and the end of a child."""

from __future__ import annotations

import ctypes
import os
import signal
from types import FrameType
from typing import Any, Dict, Optional

from ..record.failures import ExecutionError, Failure

#: Signals with which a batch system, a terminal or a user ends the worker.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies; called in a new child process."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def enter_helper_process() -> None:
    """Prepare a newly forked child that works for the worker: the worker decides when it ends."""
    die_with_parent()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Process groups receive these as well.
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class StopSignals:
    """Context that notes the first stop signal and makes ``fd`` readable at each signal.

    Nothing is interrupted: the worker checks :attr:`stopped_by` where it can stop cleanly.
    """

    def __init__(self) -> None:
        self.stopped_by = ""
        self.fd, self._write_end = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_end, False)
        self._before: Dict[int, Any] = {}
        self._fd_before = -1

    def __enter__(self) -> StopSignals:
        self._fd_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        os.close(self.fd)
        os.close(self._write_end)

    def _handle(self, number: int, frame: Optional[FrameType]) -> None:
        if number in STOP_SIGNALS and not self.stopped_by:
            self.stopped_by = signal.Signals(number).name

    def raise_if_stopped(self, phase: str) -> None:
        """Raise an error in ``phase`` once a stop signal has arrived.

        Raises:
            ExecutionError: class ``evicted``.
        """
        if self.stopped_by:
            message = f"{self.stopped_by} reached the worker in the phase '{phase}'."
            raise ExecutionError(Failure("evicted", "stopped", phase, message, transient=True))

    def drain(self) -> None:
        """Make ``fd`` unreadable until the next signal."""
        try:
            while os.read(self.fd, 4096):
                pass
        except BlockingIOError:
            pass
