"""``python -m treehammer`` in processes that fork from one with all imports.

A process of its own takes half a second of CPU to import a command, and a whole one for the
service. Starts of real processes have tests of their own, such as those of ``treehammer serve``.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import IO, Any

from treehammer.cli import COMMANDS

PROGRAM = "treehammer"


class ForkedCommand:
    """A running command; like :class:`subprocess.Popen` as far as its users need it."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        assert process.pid
        self.pid = process.pid

    def poll(self) -> int | None:
        """Return the exit code if the command has ended."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code.

        Raises:
            TimeoutError: it takes longer.
        """
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise TimeoutError
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal unless the command has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """End the command with SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the command with SIGKILL."""
        self.send_signal(signal.SIGKILL)


@dataclass(frozen=True)
class CommandRequest:
    """A command and its surroundings.

    Attributes:
        words: its arguments.
        output: file to which standard output is appended.
        errors: file to which standard error is appended.
        env: its environment.
        folder: its working folder.
        clock: file with the offset of its clock in seconds.
        strict: whether warnings are errors.
    """

    words: Sequence[str]
    output: str
    errors: str
    env: Mapping[str, str]
    folder: Path
    clock: str = ""
    strict: bool = False


@functools.cache
def provide_context() -> ForkServerContext:
    """Return the context of processes that fork from one with all commands and the service."""
    context = multiprocessing.get_context("forkserver")
    modules = {f"{PROGRAM}.{command.target.partition(':')[0]}" for command in COMMANDS.values()}
    context.set_forkserver_preload([*modules, "treehammer.web.service.service_process"])
    return context


def fork_command(request: CommandRequest) -> ForkedCommand:
    process = provide_context().Process(target=_run_command, args=(request,), daemon=True)
    process.start()
    return ForkedCommand(process)


def start_command(
    words: Sequence[str],
    log: IO[bytes],
    *,
    env: Mapping[str, str] | None = None,
    folder: Path = Path("/"),
    clock: str = "",
    strict: bool = False,
) -> ForkedCommand:
    """Start ``treehammer`` with all output in a file, and this process's environment by default."""
    variables = dict(os.environ if env is None else env)
    request = CommandRequest(words, log.name, log.name, variables, folder, clock, strict)
    return fork_command(request)


def run_command(
    words: Sequence[str], *, env: Mapping[str, str] | None = None, folder: Path = Path("/")
) -> subprocess.CompletedProcess[str]:
    """Run ``treehammer`` with these arguments; return exit code and output."""
    variables = dict(os.environ if env is None else env)
    with tempfile.NamedTemporaryFile() as output, tempfile.NamedTemporaryFile() as errors:
        request = CommandRequest(words, output.name, errors.name, variables, folder)
        code = fork_command(request).wait()
        texts = [stream.read().decode() for stream in (output, errors)]
    return subprocess.CompletedProcess([PROGRAM, *words], code, *texts)


def _run_command(request: CommandRequest) -> None:
    """Become ``python -m treehammer``."""
    os.setsid()
    multiprocessing.current_process().daemon = False  # it may have processes of its own
    for number, name in enumerate((os.devnull, request.output, request.errors)):
        with open(name, "ab" if number else "rb") as stream:
            os.dup2(stream.fileno(), number)
    os.environ.clear()
    os.environ.update(request.env)
    os.chdir(request.folder)
    if request.clock:
        _shift_clock(Path(request.clock))
    if request.strict:
        warnings.simplefilter("error")
    sys.path.insert(0, str(request.folder))
    sys.argv[1:] = request.words
    runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)


def _shift_clock(file: Path) -> None:
    """Shift this process's clock by the seconds in a file from now on."""

    def read_offset() -> float:
        return float(file.read_text())

    def wrapped(real: Callable[[], Any], unit: int) -> Callable[[], Any]:
        return lambda: real() + type(real())(read_offset() * unit)

    time.time_ns = wrapped(time.time_ns, 10**9)
    time.time = wrapped(time.time, 1)
