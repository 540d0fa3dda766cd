"""Count of the loop's instructions under callgrind, requested with valgrind's own header."""

from __future__ import annotations

from typing import Any

from .payload_task import CountingTask, PayloadError

_REQUESTS = """
#include "{header}"
namespace treehammer {{
inline void StartCounting() {{ CALLGRIND_START_INSTRUMENTATION; }}
inline void StopCounting() {{ CALLGRIND_STOP_INSTRUMENTATION; }}
inline bool RunsUnderValgrind() {{ return RUNNING_ON_VALGRIND > 0; }}
inline void CountLoop() {{ TheLoopHooks() = {{StartCounting, StopCounting}}; }}
}}
"""


def compile_requests(root: Any, counting: CountingTask) -> None:
    """Compile the requests that start and stop the count.

    Raises:
        PayloadError: this ROOT cannot compile them, or the process does not run under valgrind.
    """
    if not root.gInterpreter.Declare(_REQUESTS.format(header=counting.header)):
        raise PayloadError(
            "payload", "compile", "compile", f"this ROOT cannot compile {counting.header}"
        )
    if not root.treehammer.RunsUnderValgrind():
        raise PayloadError(
            "payload", "no-valgrind", "compile", "instructions are counted only under valgrind"
        )


def count_next_pass(root: Any) -> None:
    """Count from the next loop on; earlier loops have loaded libraries and filled caches."""
    root.treehammer.CountLoop()
