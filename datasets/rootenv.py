"""The ROOT that datasets are made and measured with, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from treehammer.collectors import software
from treehammer.collectors.failures import Fault
from treehammer.collectors.job import SoftwareRequest
from treehammer.collectors.preparing import ready
from treehammer.errors import ConfigError, DatasetError, SoftwareError
from treehammer.terminal import Bars

GENERATE = Path(__file__).parent / "generate"
KIT = Path(software.__file__).parent / "kit"
#: Lines of what ROOT printed that go into a message.
TAIL = 5


def prepare(root: str, software_dir: Path, bars: Bars) -> SoftwareRequest:
    """The ROOT named as on the ``root`` axis, made ready on this machine when it is not.

    Raises:
        ConfigError: ``root`` names no ROOT.
        SoftwareError: it cannot be made ready.
    """
    try:
        request = software.parse(root)
    except ValueError as error:
        raise ConfigError(str(error), where="ROOT release") from error
    if request.provider == "none":
        raise ConfigError("datasets are made and measured with ROOT", where="ROOT release 'none'")
    return ready(request, software_dir, bars)


def run(
    action: str,
    document: Mapping[str, Any],
    request: SoftwareRequest,
    on_done: Callable[[int], None],
) -> dict[str, Any]:
    """Run ``generate`` under a prepared ROOT and return its result.

    The process ends with this one: on an interruption it is killed, and when this process dies
    without having been able to, the broken pipe ends it.

    Args:
        action: one of the script's ``ACTIONS``.
        document: the script's request.
        request: a ROOT from :func:`prepare`.
        on_done: is told the progress that the script reports.

    Raises:
        SoftwareError: this ROOT cannot be used, or is of another version than was asked for.
        DatasetError: the script could not do what was asked; ``where`` is the file.
    """
    try:
        setup = software.setup(request, os.environ, KIT)
        command = [*setup.command("python", str(GENERATE)), action]
    except Fault as fault:
        raise SoftwareError(str(fault)) from fault
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=dict(setup.env),
        )
        try:
            answer = _converse(process, document, on_done)
        finally:
            process.kill()
            process.wait()
        if answer is None:
            raise SoftwareError(
                f"ended without an answer:\n{_tail(log)}",
                where=f"datasets {action} with ROOT {request.request}",
                hint="Check that this ROOT can be imported in Python and compiles C++.",
            )
        if "error" in answer:
            raise DatasetError(
                answer["error"]["message"], where=answer["error"]["where"], hint=_complaint(log)
            )
    result: dict[str, Any] = answer["result"]
    if request.version and result["root"] != request.version:
        raise SoftwareError(
            f"asked for ROOT {request.version}, got {result['root']}", where=request.request
        )
    return result


def _converse(
    process: subprocess.Popen[str], document: Mapping[str, Any], on_done: Callable[[int], None]
) -> dict[str, Any] | None:
    """Send the request, pass progress on, and return the last word or None."""
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        try:
            json.dump(document, process.stdin)
            process.stdin.close()
        except BrokenPipeError:
            return None
        for line in process.stdout:
            message: dict[str, Any] = json.loads(line)
            if "done" not in message:
                return message
            on_done(message["done"])
    return None


def _complaint(log: IO[str]) -> str:
    """What ROOT itself gave as the first reason, e.g. that there is no space left."""
    log.seek(0)
    errors = (line.strip() for line in log if line.startswith(("SysError in", "Error in")))
    return next((f"ROOT said: {line}" for line in errors), "")


def _tail(log: IO[str]) -> str:
    log.seek(0)
    lines = [line.rstrip() for line in log if line.strip()]
    return "\n".join(f"    {line}" for line in lines[-TAIL:])
