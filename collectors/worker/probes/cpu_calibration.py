"""Speed of the core: CPU time of a fixed amount of work.

The loop is plain Python (integers, branches, almost no memory), so that its time follows the clock
rate and the load of neighbors.  Values compare only between equal ``worker_python``.
"""

from __future__ import annotations

import time

#: The reported time is that of this many rounds, about 0.3 s of CPU on a core of 2024.  Changing it
#: changes the instrument.
REPORTED_ROUNDS = 2_500_000
#: Rounds that are run.  The loop runs before and after each execution, and all of
#: :data:`REPORTED_ROUNDS` took a tenth of the CPU of short payloads.
TIMED_ROUNDS = 500_000


def measure_calibration() -> float:
    """Measure the CPU seconds that this thread needs for :data:`REPORTED_ROUNDS`."""
    start = time.thread_time()
    state = 1
    for _ in range(TIMED_ROUNDS):
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        if state & 0x10000:
            state ^= 0x5A5A5A5A
    return (time.thread_time() - start) * (REPORTED_ROUNDS / TIMED_ROUNDS)
