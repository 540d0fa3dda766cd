"""``python -m treehammer`` in processes that fork from one with all imports.

A process of its own takes half a second of CPU to import a command, and a whole one for the
service. Starts of real processes have tests of their own, such as those of ``treehammer serve``.

Run as a program, this file forks a command for each message on the socket whose descriptor is its
argument. A message is a request in JSON, sent with the standard streams of the command and a
socket, which gets the process id and later the exit code.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

PROGRAM = "treehammer"
MAX_REQUEST_BYTES = 1_000_000


class ForkedCommand:
    """A running command; like :class:`subprocess.Popen` as far as its users need it."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers
        self.pid = int(self._receive(None))
        self.returncode: int | None = None

    def _receive(self, timeout: float | None) -> bytes:
        self._answers.settimeout(timeout)
        answer = self._answers.recv(100)
        assert answer, "the process that forks commands has ended"
        return answer

    def poll(self) -> int | None:
        """Return the exit code if the command has ended."""
        if self.returncode is None:
            with suppress(BlockingIOError):
                self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code.

        Raises:
            TimeoutError: it takes longer.
        """
        if self.returncode is None:
            self.returncode = int(self._receive(timeout))
            self._answers.close()
        return self.returncode

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


class CommandForker:
    """A process that forks commands."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(self, request: Mapping[str, object], streams: Sequence[int]) -> socket.socket:
        """Start a command; return the socket of its :class:`ForkedCommand`."""
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            message = json.dumps(request).encode()
            socket.send_fds(self._requests, [message], [*streams, theirs.fileno()])
        return answers

    def close(self) -> None:
        """End the process; commands go on."""
        self._requests.close()
        self._process.wait()


@functools.cache
def provide_forker() -> CommandForker:
    """Return the forking process of this one, and end it at exit."""
    forker = CommandForker()
    atexit.register(forker.close)
    return forker


def start_command(
    words: Sequence[str],
    log: IO[bytes],
    *,
    env: Mapping[str, str] | None = None,
    folder: Path = Path("/"),
    **options: object,
) -> ForkedCommand:
    """Start ``treehammer`` with all output in a file.

    Args:
        words: its arguments.
        log: receives standard output and standard error.
        env: its environment, this process's by default.
        folder: its working folder.
        options: ``clock``, a file with the offset of its clock in seconds; ``strict``, whether
            warnings are errors.
    """
    request = {**_build_request(words, env, folder), **options}
    with open(os.devnull, "rb") as nothing:
        streams = (nothing.fileno(), log.fileno(), log.fileno())
        return ForkedCommand(provide_forker().start(request, streams))


def run_command(
    words: Sequence[str], *, env: Mapping[str, str] | None = None, folder: Path = Path("/")
) -> subprocess.CompletedProcess[str]:
    """Run ``treehammer`` with these arguments; return exit code and output."""
    with (
        open(os.devnull, "rb") as nothing,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        request = _build_request(words, env, folder)
        streams = (nothing.fileno(), output.fileno(), errors.fileno())
        code = ForkedCommand(provide_forker().start(request, streams)).wait()
        texts = []
        for stream in (output, errors):
            stream.seek(0)
            texts.append(stream.read().decode())
    return subprocess.CompletedProcess([PROGRAM, *words], code, *texts)


def _build_request(
    words: Sequence[str], env: Mapping[str, str] | None, folder: Path
) -> dict[str, object]:
    variables = dict(os.environ if env is None else env)
    return {"words": list(words), "env": variables, "folder": str(folder)}


# The forking process


def _run_forker(requests: socket.socket) -> None:
    """Fork a command for each request until the other end closes."""
    is_ready = False
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, MAX_REQUEST_BYTES, 4)
        if not message:
            return
        request = json.loads(message)
        if not is_ready:
            _import_commands()
            gc.freeze()
            is_ready = True
        if os.fork() == 0:
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _keep_command(request, descriptors)
            return
        for descriptor in descriptors:
            os.close(descriptor)


def _import_commands() -> None:
    """Import all commands and the service."""
    importlib.import_module("treehammer.web.service.service_process")
    from treehammer import cli

    for section in cli.SECTIONS.values():
        for command in section.values():
            command.load()


def _keep_command(request: dict[str, Any], descriptors: list[int]) -> None:
    """Fork the command, and report its process id and its exit code."""
    os.setsid()
    *streams, answers = descriptors
    pid = os.fork()
    if pid == 0:
        os.close(answers)
        _run_command(request, streams)
        return
    for stream in streams:
        os.close(stream)
    with socket.socket(fileno=answers) as sender, suppress(BrokenPipeError):
        sender.send(str(pid).encode())
        _, status = os.waitpid(pid, 0)
        sender.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _run_command(request: dict[str, Any], streams: list[int]) -> None:
    """Become ``python -m treehammer``."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    if clock := request.get("clock"):
        _shift_clock(Path(clock))
    if request.get("strict"):
        warnings.simplefilter("error")
    sys.path[0] = request["folder"]
    sys.argv[1:] = request["words"]
    runpy.run_module(PROGRAM, run_name="__main__", alter_sys=True)


def _shift_clock(file: Path) -> None:
    """Shift this process's clock by the seconds in a file from now on."""

    def read_offset() -> float:
        return float(file.read_text())

    def wrapped(real: Callable[[], Any], unit: int) -> Callable[[], Any]:
        return lambda: real() + type(real())(read_offset() * unit)

    time.time_ns = wrapped(time.time_ns, 10**9)
    time.time = wrapped(time.time, 1)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as requests_of_tests:
        _run_forker(requests_of_tests)
