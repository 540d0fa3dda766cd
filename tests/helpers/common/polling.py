"""Waiting for conditions in tests."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_S = 0.1
#: Pause after a condition that takes long to check, in units of its time. Many run a program of
#: HTCondor or XRootD; in an endless row, these would take the CPU from what the test waits for.
PAUSE_FACTOR = 4


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
