"""Waiting for conditions in tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POLL_S = 0.1
#: Pause after a condition that takes long to check, in units of its time. Many run a program of
#: HTCondor or XRootD; in an endless row, these would take the CPU from what the test waits for.
PAUSE_FACTOR = 4


def wait_for_server(
    find: Callable[[], Any], poll: Callable[[], int | None], log: Path, timeout_s: float = 180.0
) -> Any:
    """Return what a server shows when it is ready; fail with its log when it ended, or in time."""
    end = time.monotonic() + timeout_s
    while not (found := find()):
        assert poll() is None, log.read_text("utf-8")
        assert time.monotonic() < end, log.read_text("utf-8")
        time.sleep(0.05)
    return found


def wait_until(condition: Callable[[], object], description: str, timeout_s: float = 180.0) -> None:
    """Poll a condition until it holds, or fail with its description."""
    end = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        if condition():
            return
        now = time.monotonic()
        assert now < end, description
        time.sleep(min(2.0, max(POLL_S, PAUSE_FACTOR * (now - began))))
