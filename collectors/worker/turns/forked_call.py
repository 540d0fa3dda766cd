"""A function that runs in a forked child process and returns its result to this one."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from typing import Any, Callable

from ..stop_signals import die_with_parent


class ForkedCall:
    """Call in a child process, so that its process tree is accounted apart from others.

    The child is killed with its parent.  ``fd`` becomes readable when the call has ended.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.fd, write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _run_child(function, write_end)
        os.close(write_end)

    def stop(self) -> None:
        """Ask the child to stop, as a batch system would; it still returns its result."""
        os.kill(self.pid, signal.SIGTERM)

    def result(self) -> Any:
        """Wait for the end of the call and return its result.

        Raises:
            OSError: the call failed with it, or the child was killed.
        """
        with os.fdopen(self.fd, "rb") as stream:
            content = stream.read()
        os.waitpid(self.pid, 0)
        if not content:
            raise ChildProcessError("the process that supervised the payload was killed")
        succeeded, value = pickle.loads(content)
        if not succeeded:
            raise value
        return value


def _run_child(function: Callable[[], Any], write_end: int) -> None:
    die_with_parent()
    try:
        try:
            content = pickle.dumps((True, function()))
        except OSError as error:
            content = pickle.dumps((False, error))
        with os.fdopen(write_end, "wb") as stream:
            stream.write(content)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
