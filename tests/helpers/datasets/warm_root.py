"""ROOT releases in processes that fork for each script."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

SERVER = Path(__file__).with_name("warm_root_server.py")


class WarmScript:
    """A running script; like :class:`subprocess.Popen` as far as its users need it."""

    def __init__(
        self, answers: socket.socket, stdin: IO[Any] | None, stdout: IO[Any] | None
    ) -> None:
        self.stdin, self.stdout = stdin, stdout
        self._answers = answers
        self.pid = int(_read_answer(answers))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code if the script has ended."""
        return self._receive(socket.MSG_DONTWAIT)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code."""
        self._answers.settimeout(timeout)
        code = self._receive()
        assert code is not None
        return code

    def kill(self) -> None:
        """Kill the script unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _receive(self, flags: int = 0) -> int | None:
        if self.returncode is None:
            try:
                self.returncode = int(_read_answer(self._answers, flags))
            except BlockingIOError:
                return None
        return self.returncode


def _read_answer(answers: socket.socket, flags: int = 0) -> bytes:
    answer = answers.recv(100, flags)
    assert answer, "the process with ROOT has ended"
    return answer


class WarmRoot:
    """A process with a release's ROOT.

    Args:
        python: the release's Python.
        env: the release's environment.
        warm_for: ``loops``, ``frames`` (loops and analyses with RDataFrame), ``uproot`` (no ROOT), or
            the folder of the scripts that write and measure datasets.
    """

    def __init__(self, python: str, env: Mapping[str, str], warm_for: str) -> None:
        self._socket, server_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [python, "-W", "ignore", str(SERVER), str(server_end.fileno())]
        with server_end:
            self._process = subprocess.Popen(
                [*words, warm_for],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                pass_fds=[server_end.fileno()],
            )

    def start(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        folder: Path,
        streams: Sequence[int],
    ) -> None:
        """Start a script or ``-m module``; ``streams`` become its standard streams."""
        request = {"arguments": list(arguments), "env": dict(env), "folder": str(folder)}
        socket.send_fds(self._socket, [json.dumps(request).encode()], list(streams))

    def run(self, *command: object, env: Mapping[str, str], folder: Path) -> tuple[int, str]:
        """Run a script or ``-m module`` with its arguments; return exit code and output."""
        log = folder / "output.log"
        with log.open("wb") as output, open(os.devnull, "rb") as null:
            streams = [null.fileno(), output.fileno(), output.fileno()]
            self.start([*map(str, command)], env=env, folder=folder, streams=streams)
        code = WarmScript(self._socket, None, None).wait()
        return code, log.read_text(errors="replace")

    def popen(
        self, arguments: Sequence[str], env: Mapping[str, str], stderr: IO[Any]
    ) -> WarmScript:
        """Start a script with pipes of text for its input and output."""
        with ExitStack() as server_ends:
            source, stdin_end = os.pipe()
            stdout_end, sink = os.pipe()
            for end in (source, sink):
                server_ends.callback(os.close, end)
            self.start(arguments, env, Path.cwd(), [source, sink, stderr.fileno()])
        stdin, stdout = (
            os.fdopen(end, mode, encoding="utf-8")
            for end, mode in ((stdin_end, "w"), (stdout_end, "r"))
        )
        return WarmScript(self._socket, stdin, stdout)

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.wait(timeout=60)


class WarmDatasetRoots:
    """Stands in for :mod:`subprocess` where datasets are made: its processes are forks.

    Each has its own memory, as a new process has, but ROOT is loaded and compiled already.
    """

    PIPE = subprocess.PIPE

    def __init__(self, scripts: Path) -> None:
        self._scripts = str(scripts)
        self._running: dict[str, WarmRoot] = {}

    def Popen(  # noqa: N802 - the name in subprocess
        self, command: Sequence[str], *, env: Mapping[str, str], stderr: IO[Any], **_pipes: Any
    ) -> WarmScript:
        """Start an action: Python, its options, the folder of scripts, the action."""
        where = list(command).index(self._scripts)
        return self.provide(command[0], env).popen(command[where:], env, stderr)

    def provide(self, python: str, env: Mapping[str, str]) -> WarmRoot:
        """Return the process of a release's Python, started when it is first needed."""
        if python not in self._running:
            self._running[python] = WarmRoot(python, env, self._scripts)
        return self._running[python]

    def close(self) -> None:
        """End all processes."""
        for root in self._running.values():
            root.close()
