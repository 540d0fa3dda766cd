"""Time until a deleted file is gone: repeated stats until one fails."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import Optional, Tuple

from ....record.operation_steps import STAT, VANISH
from ..operation import Flight, StorageClient, WrappingClient

_Poll = Tuple[float, Flight]


class VanishPoller(WrappingClient):
    """Performs ``vanish``: a stat at once, and further ones every ``poll_s``.

    Args:
        inner: client for the stats.
        poll_s: seconds between the answer to a stat and the next one.
    """

    def __init__(self, inner: StorageClient, poll_s: float) -> None:
        super().__init__(inner)
        self._poll_s = poll_s
        self._polls: SimpleQueue[Optional[_Poll]] = SimpleQueue()
        threading.Thread(target=self._repeat, daemon=True).start()

    def start(self, flight: Flight) -> None:
        """Send an operation."""
        if flight.operation.name == VANISH:
            flight.send()
            self._ask(flight)
        else:
            self.inner.start(flight)

    def close(self) -> None:
        """End the polling and close the inner client."""
        self._polls.put(None)
        self.inner.close()

    def _ask(self, flight: Flight) -> None:
        def answered(_stat: Flight, _now_s: float, server: str, failure: str) -> None:
            if failure == "not-found":
                flight.succeed(server)
            elif failure:
                flight.fail(failure, server)
            elif flight.has_lasted(self.timeout_s):
                flight.fail("timeout", server)
            else:
                self._polls.put((time.monotonic() + self._poll_s, flight))

        self.inner.start(Flight(flight.operation._replace(name=STAT), time.monotonic, answered))

    def _repeat(self) -> None:
        while True:
            poll = self._polls.get()
            if poll is None:
                return
            due, flight = poll
            time.sleep(max(due - time.monotonic(), 0.0))
            self._ask(flight)
