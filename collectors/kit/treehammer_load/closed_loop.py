"""Closed loops: each client sends its next operation when its last has ended."""

from __future__ import annotations

import heapq
import threading
from collections import deque
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

from .load_driver import LoadDriver, Throttle
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
        self._throttle, self._throttling = Throttle(self._ceiling), threading.Lock()
        # Operations that the ceiling delays, by the instants at which they may be sent.
        self._delayed: List[Tuple[float, int, Operation]] = []
        self._numbers = count()
        if self._wait_until(self._start_s):
            for client in list(self._sequences):
                self._continue(client)
        while self._sequences and not timer.stopped and timer.now() < end_s:
            boundary = self._account.advance(timer.now())
            held_s = self._send_held()
            until_s = min(end_s, boundary, held_s, timer.now() + _POLL_S)
            timer.wait(max(0.0, until_s - timer.now()))
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
        clients = getattr(self._local, "clients", None)
        if clients is not None:
            clients.append(client)
            return
        clients = self._local.clients = deque([client])
        try:
            while clients:
                self._send_next(clients.popleft())
        finally:
            self._local.clients = None

    def _send_next(self, client: int) -> None:
        sequence = self._sequences.get(client)
        if sequence is None or self._timer.stopped or self._timer.now() >= self._end_s:
            return
        operation = next(sequence, None)
        if operation is None:
            del self._sequences[client]
        else:
            now = self._timer.now()
            with self._throttling:
                due_s = self._throttle.admit(operation, now)
                if due_s > now:
                    heapq.heappush(self._delayed, (due_s, next(self._numbers), operation))
                    return
            self._client.start(self._make_flight(operation._replace(due_s=now)))

    def _send_held(self) -> float:
        """Send the operations that the ceiling permits by now; return the instant of the next one."""
        while True:
            now = self._timer.now()
            with self._throttling:
                if not self._delayed or self._delayed[0][0] > now:
                    return self._delayed[0][0] if self._delayed else inf
                _, _, operation = heapq.heappop(self._delayed)
            self._client.start(self._make_flight(operation._replace(due_s=now)))
