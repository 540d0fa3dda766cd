"""Settings of a server, applied by a command of the test before each execution."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from typing import Callable, Dict, Mapping

from ...job_spec import CHECKSUM, ExecutionSpec, Scalar, ServerCommand
from ...record.failures import ExecutionError, Failure
from .job_context import JobContext

#: Kind of the failure of a command, in the class of the set-up.
SERVER_SETTING = "server-setting"

_POLL_INTERVAL_S = 0.2
_MAX_OUTPUT = 500


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
        context,
        before,
        spec.variant,
        name,
        lambda: context.signals.raise_if_stopped("setup"),
    )


def restore_settings(context: JobContext) -> str:
    """Apply the settings that the test leaves behind, also after a stop; return what failed, or ''."""
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
    start = time.monotonic()
    with open(log, "wb") as stream:
        process = subprocess.Popen(
            [os.path.join(context.payload_folder, before.command)],
            cwd=context.payload_folder,
            env={**context.base_env, **_list_variables(context, variant)},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            ended = _wait_for_end(process, start + before.timeout_s, check_stop)
        finally:
            # Whatever it left behind must not change the server during the execution.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not ended:
        _raise_failure(before, f"did not end within {before.timeout_s:g} s", log)
    if process.returncode:
        _raise_failure(before, f"ended with {process.returncode}", log)


def _wait_for_end(
    process: "subprocess.Popen[bytes]", deadline: float, check_stop: Callable[[], None]
) -> bool:
    while True:
        check_stop()
        try:
            process.wait(_POLL_INTERVAL_S)
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                return False
        else:
            return True


def _list_variables(context: JobContext, variant: Mapping[str, Scalar]) -> Dict[str, str]:
    axes = {
        f"TREEHAMMER_AXIS_{axis.upper()}": value if isinstance(value, str) else json.dumps(value)
        for axis, value in variant.items()
    }
    return {**axes, "TREEHAMMER_DOOR_URL": context.job.door_url}


def _raise_failure(before: ServerCommand, problem: str, log: str) -> None:
    with open(log, encoding="utf-8", errors="replace") as stream:
        tail = stream.read().strip()[-_MAX_OUTPUT:]
    applied = ", ".join(before.settings)
    message = f"{before.command}, which applies {applied}, {problem}: {tail or 'no output'}"
    raise ExecutionError(Failure("software-setup", SERVER_SETTING, "setup", message))
