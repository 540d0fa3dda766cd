"""A fixed piece of work, timed: how fast was this core just now?

The loop is plain Python (integers, branches, no memory to speak of), so that it follows clock and
neighbours; figures compare only between equal ``worker_python``.  Work is fixed, time is measured.
"""

from __future__ import annotations

import time

#: About 0.3 s of CPU on a core of 2024.  Changing it changes the instrument.
LOOP_ROUNDS = 2_500_000


def measure_calibration() -> float:
    """CPU seconds this thread needed for the fixed loop."""
    start = time.thread_time()
    state = 1
    for _ in range(LOOP_ROUNDS):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        if state & 0x10000:
            state ^= 0x5A5A5A5A
    return time.thread_time() - start
