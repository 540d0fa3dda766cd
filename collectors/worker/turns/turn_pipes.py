"""Named pipes to a live payload that takes turns."""

from __future__ import annotations

import os
import select
from typing import Callable, Tuple

from ..stop_signals import StopSignals
from .turn_conductor import TurnError, parse_answer

#: Variable with the prefix of both pipes' paths, as the kit's turn_server has it.
TURNS_VARIABLE = "TREEHAMMER_TURNS"

_MAX_ANSWER = 4096


class PayloadEndedError(Exception):
    """A payload of the launch has ended, or a signal stopped the worker."""


class TurnPipes:
    """The pipes of one side.

    Args:
        prefix: path of the pipes without their suffixes; they must not exist.
        ended_fds: returns descriptors that become readable when a payload of the launch ends.
        signals: interrupt the wait for an answer.

    Raises:
        OSError: this file system has no named pipes.
    """

    def __init__(
        self, prefix: str, ended_fds: Callable[[], Tuple[int, ...]], signals: StopSignals
    ) -> None:
        self._ended_fds = ended_fds
        self._signals = signals
        self._buffer = b""
        names = [f"{prefix}.commands", f"{prefix}.answers"]
        for name in names:
            os.mkfifo(name, 0o600)
        # Opened for both directions, neither end waits for the payload, nor sees an end of file.
        self._commands, self._answers = (os.open(name, os.O_RDWR | os.O_CLOEXEC) for name in names)

    def wait_until_ready(self) -> None:
        """Wait until the payload is ready to take turns.

        Raises:
            PayloadEndedError: it ended without taking turns.
            TurnError: its answer is another one.
        """
        text = self._read_answer()
        if text != "ready":
            raise TurnError(f"invalid first answer {text[:80]!r}, expected 'ready'")

    def ask(self, command: str) -> Tuple[int, ...]:
        """Send a command and wait for its answer.

        Raises:
            PayloadEndedError: a payload ended, or a signal stopped the worker.
            TurnError: the answer is invalid.
        """
        self.send(command)
        return parse_answer(command, self._read_answer())

    def send(self, command: str) -> None:
        """Send a command without an answer."""
        os.write(self._commands, f"{command}\n".encode("ascii"))

    def close(self) -> None:
        """Close the pipes; the payload sees an end of file."""
        os.close(self._commands)
        os.close(self._answers)

    def _read_answer(self) -> str:
        while b"\n" not in self._buffer:
            ended = self._ended_fds()
            ready, _, _ = select.select([self._answers, self._signals.fd, *ended], [], [])
            if self._signals.fd in ready:
                self._signals.drain()
            if self._signals.stopped_by:
                raise PayloadEndedError(self._signals.stopped_by)
            if self._answers in ready:
                self._buffer += os.read(self._answers, _MAX_ANSWER)
            elif any(fd in ready for fd in ended):
                raise PayloadEndedError
            if len(self._buffer) > _MAX_ANSWER:
                raise TurnError("an answer is longer than a line")
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("ascii", "replace").strip()
