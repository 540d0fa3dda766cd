"""Scripts that make and measure datasets, run under ROOT in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.record.failures import ExecutionError
from treehammer.collectors.software import providers
from treehammer.collectors.software_preparation import prepare_root
from treehammer.errors import ConfigError, DatasetError, SoftwareError
from treehammer.progress import ProgressFactory

GENERATE_SCRIPT = Path(__file__).parents[1] / "generate"
KIT_FOLDER = Path(providers.__file__).parents[1] / "kit"
#: Library of glibc with checks of the heap.
MALLOC_CHECKS = "libc_malloc_debug.so.0"
#: Lines of ROOT's output that a message quotes.
LOG_TAIL_LINES = 5


def prepare_dataset_root(root: str, software_dir: Path, bars: ProgressFactory) -> SoftwareRequest:
    """Prepare the ROOT of a ``root`` axis value on this machine, unless it is prepared.

    Raises:
        ConfigError: ``root`` names no ROOT.
        SoftwareError: it cannot be made ready.
    """
    try:
        request = providers.parse_software_request(root)
    except ValueError as error:
        raise ConfigError(str(error), where="ROOT release") from error
    if request.provider in providers.WITHOUT_ROOT:
        raise ConfigError(
            "datasets are made and measured with ROOT", where=f"ROOT release {root!r}"
        )
    return prepare_root(request, software_dir, bars)


def run_action(
    action: str,
    document: Mapping[str, Any],
    request: SoftwareRequest,
    on_done: Callable[[int], None],
    *,
    check_memory: bool = False,
) -> dict[str, Any]:
    """Run ``generate`` under a prepared ROOT and return its result.

    The process ends with this one: on an interruption it is killed, and when this process dies
    without having been able to, the broken pipe ends it.

    Args:
        action: one of the script's ``ACTIONS``.
        document: the script's request.
        request: a ROOT from :func:`prepare_dataset_root`.
        on_done: receives the progress that the script reports.
        check_memory: abort the process as soon as the C library finds a damaged heap.

    Raises:
        SoftwareError: this ROOT cannot be used, or has another version than requested.
        DatasetError: the script failed; ``where`` is the file.
    """
    try:
        setup = providers.setup_software(request, os.environ, KIT_FOLDER)
        command = [*setup.build_command("python", str(GENERATE_SCRIPT)), action]
    except ExecutionError as fault:
        raise SoftwareError(str(fault)) from fault
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**setup.env, **(_watch_heap(setup.env) if check_memory else {})},
        )
        try:
            answer = _exchange_messages(process, document, on_done)
        finally:
            process.kill()
            process.wait()
        if answer is None:
            raise SoftwareError(
                f"ended without an answer:\n{_format_log_tail(log)}",
                where=f"datasets {action} with ROOT {request.request}",
                hint="Check that this ROOT can be imported in Python and compiles C++.",
            )
        if "error" in answer:
            raise DatasetError(
                answer["error"]["message"],
                where=answer["error"]["where"],
                hint=_first_root_error(log),
            )
    result: dict[str, Any] = answer["result"]
    if request.version and result["root"] != request.version:
        raise SoftwareError(
            f"ROOT {request.version} was requested, but this is {result['root']}",
            where=request.request,
        )
    return result


def _watch_heap(env: Mapping[str, str]) -> dict[str, str]:
    """Let glibc check each block that is freed; since 2.34 this needs a library of its own."""
    libraries = [env.get("LD_PRELOAD", ""), MALLOC_CHECKS]
    return {"MALLOC_CHECK_": "3", "LD_PRELOAD": " ".join(filter(None, libraries))}


def _exchange_messages(
    process: subprocess.Popen[str], document: Mapping[str, Any], on_done: Callable[[int], None]
) -> dict[str, Any] | None:
    """Send the request, pass progress on, and return the final message, or None."""
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


def _first_root_error(log: IO[str]) -> str:
    """Find ROOT's own first error, e.g. that no space is left."""
    log.seek(0)
    errors = (line.strip() for line in log if line.startswith(("SysError in", "Error in")))
    return next((f"ROOT said: {line}" for line in errors), "")


def _format_log_tail(log: IO[str]) -> str:
    log.seek(0)
    lines = [line.rstrip() for line in log if line.strip()]
    return "\n".join(f"    {line}" for line in lines[-LOG_TAIL_LINES:])
