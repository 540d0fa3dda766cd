"""Waiting for conditions in tests."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], description: str, timeout_s: float = 180.0) -> None:
    """Poll a condition until it holds, or fail with its description."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, description
        time.sleep(0.1)
