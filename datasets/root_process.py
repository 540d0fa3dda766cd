"""Process with ROOT that writes and measures the files of datasets."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired
from textwrap import indent
from typing import IO, Any

from treehammer.collectors.job_spec import SoftwareRequest
from treehammer.collectors.record.outcome import ExecutionError
from treehammer.collectors.root_releases import prepare_root
from treehammer.collectors.software import providers
from treehammer.collectors.worker.run.crash_causes import describe_crash
from treehammer.errors import ConfigError, DatasetError, SoftwareError, TreehammerError
from treehammer.text_formatting import ProgressCallback, ProgressFactory

GENERATE_SCRIPT = Path(__file__).parent / "generate"
KIT_FOLDER = Path(providers.__file__).parents[1] / "kit"
#: Library of glibc with checks of the heap.
MALLOC_CHECKS = "libc_malloc_debug.so.0"
#: Lines of ROOT's output that a message quotes.
LOG_TAIL_LINES = 5
#: Seconds in which a process without an answer ends by itself.
END_TIMEOUT_S = 10.0
#: Seconds between two reports of the object that is worked on.
NOTE_INTERVAL_S = 1.0


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
    on_done: ProgressCallback,
    *,
    check_memory: bool = False,
) -> dict[str, Any]:
    """Run ``generate`` under a prepared ROOT and return its result.

    The process ends with this one: on an interruption it is killed, and the kernel kills it when
    this process dies without having been able to.

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
    # glibc checks each block that is freed; since 2.34 this needs a library of its own.
    libraries = " ".join(filter(None, [setup.env.get("LD_PRELOAD"), MALLOC_CHECKS]))
    heap_checks = {"MALLOC_CHECK_": "3", "LD_PRELOAD": libraries} if check_memory else {}
    # Loading takes seconds, on a busy machine many.
    on_done(0, f"loading ROOT {request.request}")
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**setup.env, **heap_checks},
        )
        work = _Work()
        try:
            answer = _exchange_messages(process, document, on_done, work)
        finally:
            process.kill()
            code = process.wait()
        if answer is None:
            raise _explain_end(action, request, work, code, log)
        if "error" in answer:
            # ROOT's own first error may tell that no space is left.
            log.seek(0)
            errors = (line.strip() for line in log if line.startswith(("SysError in", "Error in")))
            raise DatasetError(
                answer["error"]["message"],
                where=answer["error"]["where"],
                hint=next((f"ROOT said: {line}" for line in errors), ""),
            )
    result: dict[str, Any] = answer["result"]
    if request.version and result["root"] != request.version:
        raise SoftwareError(
            f"ROOT {request.version} was requested, but this is {result['root']}",
            where=request.request,
        )
    return result


@dataclass
class _Work:
    """File and object that the process announced last; '' before it has opened a file."""

    file: str = ""
    object: str = ""
    done: int = 0

    def __str__(self) -> str:
        return f"{self.object} of {Path(self.file).name}" if self.object else Path(self.file).name


def _explain_end(
    action: str, request: SoftwareRequest, work: _Work, code: int, log: IO[str]
) -> TreehammerError:
    """Explain the end of a process without an answer, by its exit code and its output."""
    log.seek(0)
    text = log.read()
    tail = "\n".join(text.strip().splitlines()[-LOG_TAIL_LINES:])
    cause = describe_crash(text)
    # The binding fails to make its own error of a text that is no UTF-8.
    if work.file and re.search("UnicodeDecodeError|takes exactly 5 arguments", text):
        message = "a name in it is damaged, or no UTF-8: write or copy it again"
        return DatasetError(message, where=work.file)
    output = f". {cause}" if cause else ":\n" + indent(tail, "    ")
    if work.file and code < 0 and code != -signal.SIGKILL:
        end = signal.Signals(-code).name
        return DatasetError(
            f"ROOT {request.request} was ended by {end} at {work.object or 'this file'!r}{output}",
            where=work.file,
        )
    end, hint = f"ended without an answer{output}", ""
    if code == -signal.SIGKILL:
        end = "was killed"
        hint = "The kernel kills processes where memory is short: make room, and repeat."
    elif "'new' file not found" in text:  # the first header that ROOT's interpreter includes
        hint = "ROOT's interpreter lacks C++ headers: install a C++ compiler (Debian: g++)."
    elif not work.file:
        hint = "Check that this ROOT can be imported in Python and compiles C++."
    where = f"datasets {action} with ROOT {request.request}{work.file and f' at {work}'}"
    return SoftwareError(end, where=where, hint=hint)


def _exchange_messages(
    process: subprocess.Popen[str],
    document: Mapping[str, Any],
    on_done: ProgressCallback,
    work: _Work,
) -> dict[str, Any] | None:
    """Send the request, pass progress on, and return the final message, or None."""
    assert process.stdin is not None
    assert process.stdout is not None
    reported_s = 0.0
    with process.stdin, process.stdout:
        with suppress(BrokenPipeError):
            json.dump(document, process.stdin)
            process.stdin.close()
        for line in process.stdout:
            message: dict[str, Any] = json.loads(line)
            if "result" in message or "error" in message:
                return message
            vars(work).update(message)
            is_due = time.monotonic() - reported_s > NOTE_INTERVAL_S
            if "done" in message or (work.object and is_due):
                on_done(work.done, str(work))
                reported_s = time.monotonic()
    with suppress(TimeoutExpired):  # its own end is what an error shall name
        process.wait(timeout=END_TIMEOUT_S)
    return None
