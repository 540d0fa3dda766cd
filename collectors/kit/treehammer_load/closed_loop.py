"""Closed loops: each client sends its next operation when its last has ended."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Dict, Iterator, Optional, Sequence

from .load_driver import LoadDriver
from .operation import Flight, Operation

_POLL_S = 0.02


@dataclass(frozen=True)
class ClosedLoop:
    """Sequences of operations, one for each client.

    The instants of the operations do not matter: each is due when it is sent.

    Attributes:
        sequences: operations of client 0, 1, …
        moves_files: whether whole files are moved, mostly outside the interpreter.
        calls: operations of which each is summarized by itself; none for the main one only.
    """

    sequences: Sequence[Iterator[Operation]]
    moves_files: bool = False
    calls: Sequence[str] = ()


class ClosedLoopDriver(LoadDriver):
    """Sends the operations of closed loops, from the threads in which the earlier ones end.

    Attributes:
        is_complete: whether all sequences have come to their ends.
    """

    is_complete = False

    def run_loop(self, load: ClosedLoop, end_s: float, patience_s: Optional[float] = None) -> float:
        """Send all sequences until their ends or that of the load; return when the last answer came.

        Args:
            load: the sequences.
            end_s: no operation is sent later.
            patience_s: time to end for operations that are then on their way; None for the client's
                time limit.
        """
        timer = self._timer
        self._end_s, self._last_end_s = end_s, self._start_s
        self._local = threading.local()
        self._sequences: Dict[int, Iterator[Operation]] = dict(enumerate(load.sequences))
        if self._wait_until(self._start_s):
            for client in list(self._sequences):
                self._continue(client)
        while self._sequences and not timer.stopped and timer.now() < end_s:
            boundary = self._account.advance(timer.now())
            timer.wait(max(0.0, min(end_s, boundary, timer.now() + _POLL_S) - timer.now()))
        self.is_complete = not self._sequences
        patience_s = self._client.timeout_s if patience_s is None else patience_s
        self._end_flights(end_s + patience_s)
        self._account.close(timer.now())
        return self._last_end_s

    def _finish(self, flight: Flight, now_s: float, server: str, failure: str) -> None:
        super()._finish(flight, now_s, server, failure)
        self._last_end_s = max(self._last_end_s, now_s)
        if not flight.operation.follows:
            self._continue(flight.operation.client)

    def _continue(self, client: int) -> None:
        """Send a client's next operation; one after the other where operations end at once."""
        waiting = getattr(self._local, "waiting", None)
        if waiting is not None:
            waiting.append(client)
            return
        waiting = self._local.waiting = deque([client])
        try:
            while waiting:
                self._send_next(waiting.popleft())
        finally:
            self._local.waiting = None

    def _send_next(self, client: int) -> None:
        sequence = self._sequences.get(client)
        if sequence is None or self._timer.stopped or self._timer.now() >= self._end_s:
            return
        operation = next(sequence, None)
        if operation is None:
            del self._sequences[client]
        else:
            due = operation._replace(due_s=self._timer.now())
            self._client.start(self._make_flight(due))
