"""Settings of a server, applied by a command of the test before each execution."""

from __future__ import annotations

import json
import os
from typing import Callable, Dict, Mapping

from ...job_spec import CHECKSUM, ExecutionSpec, Scalar, ServerCommand
from ...record.failures import ExecutionError, Failure
from .job_context import JobContext
from .logged_command import describe_failure, run_logged_command

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
        context,
        before,
        spec.variant,
        name,
        lambda: context.signals.raise_if_stopped("setup"),
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
        {**context.base_env, **_list_variables(context, variant)},
        log,
        before.timeout_s,
        check_stop,
    )
    if code != 0:
        applied = ", ".join(before.settings)
        problem = describe_failure(code, before.timeout_s, log)
        message = f"{before.command}, which applies {applied}, {problem}"
        raise ExecutionError(Failure("software-setup", SERVER_SETTING, "setup", message))


def _list_variables(context: JobContext, variant: Mapping[str, Scalar]) -> Dict[str, str]:
    axes = {
        f"TREEHAMMER_AXIS_{axis.upper()}": value if isinstance(value, str) else json.dumps(value)
        for axis, value in variant.items()
    }
    return {**axes, "TREEHAMMER_DOOR_URL": context.job.door_url}
