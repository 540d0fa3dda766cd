"""Watchdog of a load: a process that hangs ends with a failure and its stacks."""

from __future__ import annotations

import faulthandler
import os
import sys
from threading import Timer

from ..treehammer_kit.payload_task import PayloadError, write_result

#: Seconds after the last time limit of its operations after which a load hangs.
GRACE_S = 60.0
#: Seconds for the report of a process that hangs.
REPORT_S = 10.0
_STDERR = 2


class LoadWatchdog:
    """Ends the process if a block does not end in time.

    A client library may block the thread that sends, which then obeys neither the end of the load nor a
    signal.

    Args:
        limit_s: seconds until the block must have ended.
        message: the failure of a process that hangs.
    """

    def __init__(self, limit_s: float, message: str) -> None:
        self._limit_s, self._message = limit_s, message
        self._timer = Timer(limit_s, self._end)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()
        # Not a Python thread: it also ends a process in which a library holds the interpreter.
        faulthandler.dump_traceback_later(self._limit_s + REPORT_S, exit=True, file=_STDERR)

    def __exit__(self, *_: object) -> None:
        faulthandler.cancel_dump_traceback_later()
        self._timer.cancel()

    def _end(self) -> None:
        print("treehammer_load: the load hangs; its threads:", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(file=_STDERR)
        result = os.environ.get("TREEHAMMER_RESULT")
        if result:
            text = f"{self._message}: a call of the storage's client hangs. The payload's output has the stacks of all threads."
            error = PayloadError("payload", "hang", "load", text, transient=True)
            write_result(result, {}, {}, error.document)
        os._exit(1)
