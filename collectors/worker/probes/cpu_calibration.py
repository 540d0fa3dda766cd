"""Speed of the core: CPU time of a fixed amount of work.

The loop is plain Python (integers, branches, almost no memory), so that its time follows the clock
rate and the load of neighbors.  Values compare only between equal ``worker_python``.
"""

from __future__ import annotations

import time

#: About 0.3 s of CPU on a core of 2024.  Changing it changes the instrument.
LOOP_ROUNDS = 2_500_000


def measure_calibration() -> float:
    """Measure the CPU seconds that this thread needs for the fixed loop."""
    start = time.thread_time()
    state = 1
    for _ in range(LOOP_ROUNDS):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        if state & 0x10000:
            state ^= 0x5A5A5A5A
    return time.thread_time() - start
