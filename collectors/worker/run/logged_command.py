"""A command of the test with a log and a limit of time, run outside of the payload."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import Callable, Mapping, Optional, Sequence

from ...shared_files import read_file_end
from ..payload.crash_report import find_compiler_error

_POLL_INTERVAL_S = 0.2
_MAX_OUTPUT = 500
#: Bytes at the end of a log that are searched for an error.
_MAX_LOG_BYTES = 16_000_000


def run_logged_command(
    command: Sequence[str],
    folder: str,
    env: Mapping[str, str],
    log: str,
    timeout_s: float,
    check_stop: Callable[[], None],
) -> Optional[int]:
    """Run a command with its whole process group; return its exit code, or None after the timeout.

    Args:
        command: program and arguments.
        folder: its working folder.
        env: its complete environment.
        log: file for its output.
        timeout_s: seconds after which it is killed.
        check_stop: raises to stop it.

    Raises:
        OSError: the node cannot start it.
    """
    deadline = time.monotonic() + timeout_s
    with open(log, "wb") as stream:
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return _wait_for_end(process, deadline, check_stop)
        finally:
            # Its leftovers must not change the execution.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for_end(
    process: "subprocess.Popen[bytes]", deadline: float, check_stop: Callable[[], None]
) -> Optional[int]:
    while True:
        check_stop()
        try:
            return process.wait(_POLL_INTERVAL_S)
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                return None


def describe_failure(code: Optional[int], timeout_s: float, log: str) -> str:
    """Describe an exit code other than 0 or a timeout (None), with its reason in the log.

    The reason is the first error of a compiler, else the end of the output.
    """
    problem = f"ended with {code}" if code is not None else f"did not end within {timeout_s:g} s"
    try:
        output = read_file_end(log, _MAX_LOG_BYTES)
        reason = find_compiler_error(output) or output.strip()[-_MAX_OUTPUT:]
    except OSError as error:
        reason = f"its log cannot be read: {error.strerror}"
    return (
        f"{problem}: {reason or 'no output'} (log: {os.path.join('logs', os.path.basename(log))})"
    )
