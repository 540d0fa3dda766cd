"""Commands on the node outside of the payload, each with a log and a time limit.

One of them applies the settings of a server before each execution.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import Callable, Dict, Mapping, Optional, Sequence

from ...job_spec import CHECKSUM, ExecutionSpec, Scalar, ServerCommand
from ...record.outcome import ExecutionError, Failure
from ...shared_files import read_file_end
from .crash_causes import find_compiler_error
from .job_context import JobContext

_POLL_INTERVAL_S = 0.2
MAX_OUTPUT = 500
#: Bytes at the end of a log that are searched for an error.
MAX_LOG_BYTES = 16_000_000


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
            while True:
                check_stop()
                try:
                    return process.wait(_POLL_INTERVAL_S)
                except subprocess.TimeoutExpired:
                    if time.monotonic() >= deadline:
                        return None
        finally:
            # Its leftovers must not change the execution.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def describe_failure(code: Optional[int], timeout_s: float, log: str) -> str:
    """Describe an exit code other than 0 or a timeout (None), with its reason in the log.

    The reason is the first error of a compiler, else the end of the output.
    """
    problem = f"ended with {code}" if code is not None else f"did not end within {timeout_s:g} s"
    try:
        output = read_file_end(log, MAX_LOG_BYTES)
        reason = find_compiler_error(output) or output.strip()[-MAX_OUTPUT:]
    except OSError as error:
        reason = f"its log cannot be read: {error.strerror}"
    return (
        f"{problem}: {reason or 'no output'} (log: {os.path.join('logs', os.path.basename(log))})"
    )


#: Kind of the failure of a command, in the class of the set-up.
SERVER_SETTING = "server-setting"


def apply_settings(context: JobContext, spec: ExecutionSpec, name: str) -> None:
    """Apply the settings of an execution's variant, if the test has a command for it.

    Raises:
        ExecutionError: the command failed, class ``software-setup``, kind ``server-setting``.
        OSError: the node cannot start it.
    """
    before = context.job.payload.before
    if before is None or spec.kind == CHECKSUM:
        return
    _run_command(
        context, before, spec.variant, name, lambda: context.signals.raise_if_stopped("setup")
    )


def restore_settings(context: JobContext) -> str:
    """Apply the settings that the test leaves behind, also after a stop; return a failure, or ''."""
    before = context.job.payload.before
    timed = [spec for spec in context.job.executions if spec.kind != CHECKSUM]
    if before is None or not timed:
        return ""
    variant = {**timed[0].variant, **before.settings}
    try:
        _run_command(context, before, variant, "end", lambda: None)
    except ExecutionError as error:
        return error.failure.message
    except OSError as error:
        return f"{before.command} cannot be run: {error}"
    return ""


def _run_command(
    context: JobContext,
    before: ServerCommand,
    variant: Mapping[str, Scalar],
    name: str,
    check_stop: Callable[[], None],
) -> None:
    """Run the command; its output is kept in ``logs/NAME.before``."""
    log = os.path.join(context.output, "logs", f"{name}.before")
    code = run_logged_command(
        [os.path.join(context.locate_payload(), before.command)],
        context.locate_payload(),
        {
            **context.base_env,
            **list_axis_variables(variant),
            "TREEHAMMER_DOOR_URL": context.job.door_url,
        },
        log,
        before.timeout_s,
        check_stop,
    )
    if code != 0:
        applied = ", ".join(before.settings)
        problem = describe_failure(code, before.timeout_s, log)
        message = f"{before.command}, which applies {applied}, {problem}"
        raise ExecutionError(Failure("software-setup", SERVER_SETTING, "setup", message))


def format_axes(variant: Mapping[str, Scalar]) -> Dict[str, str]:
    """Format the values of axes as text, as environment variables have them."""
    return {
        axis: value if isinstance(value, str) else json.dumps(value)
        for axis, value in variant.items()
    }


def list_axis_variables(variant: Mapping[str, Scalar]) -> Dict[str, str]:
    """List the environment variables with the values of axes."""
    axes = format_axes(variant).items()
    return {f"TREEHAMMER_AXIS_{axis.upper()}": text for axis, text in axes}
