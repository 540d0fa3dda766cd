"""Queue of requests between the event loop and the writer, which takes them in batches."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.sql.write.ownership import Delivery
from treehammer.sql.write.recording import BATCH_MEASUREMENTS, AddResult

#: Maximum seconds for which a request waits for others that the event loop is reading.
GATHER_S = 0.02


class WriterFullError(Exception):
    """The queue is full."""


class KeyShareFullError(WriterFullError):
    """The share of a key in the queue is full."""


class WriterClosedError(WriterFullError):
    """The service is stopping."""


@dataclass(frozen=True)
class WriteRequest:
    """Measurements of one request, and the future for its outcome."""

    measurements: Sequence[Measurement]
    deliveries: Sequence[Delivery]
    ids: frozenset[str]
    key_id: str
    result: asyncio.Future[AddResult]


class WriteQueue:
    """Requests in order of arrival.

    A transaction costs as much as some twenty measurements in it. So the writer gets requests only
    when no further one is being parsed or can be read at once, or after :data:`GATHER_S`. A request
    that comes alone waits for one turn of the event loop.

    Args:
        max_waiting: maximum number of measurements.
    """

    def __init__(self, max_waiting: int) -> None:
        self.max_waiting = max_waiting
        #: Number of measurements in the queue.
        self.waiting = 0
        self._waiting_by_key: Counter[str] = Counter()
        self.closed = False
        self._requests: deque[WriteRequest] = deque()
        self._announced = 0
        # Whether the writer may take requests, and the call that permits it at the latest.
        self._ready = False
        self._release_call: asyncio.TimerHandle | None = None
        self._changed = threading.Condition()

    # Methods of the event loop

    def put(self, request: WriteRequest) -> None:
        """Append a request.

        Raises:
            WriterFullError: the queue is full.
            KeyShareFullError: the request's key has half of the queue.
            WriterClosedError: the queue is closed.
        """
        count = len(request.measurements)
        with self._changed:
            if self.closed:
                raise WriterClosedError
            if self._requests and self.waiting + count > self.max_waiting:
                raise WriterFullError
            key_count = self._waiting_by_key[request.key_id]
            if key_count and key_count + count > self.max_waiting // 2:
                raise KeyShareFullError
            is_first = not self._requests
            self._requests.append(request)
            self.waiting += count
            self._waiting_by_key[request.key_id] += count
        if is_first:
            loop = request.result.get_loop()
            self._release_call = loop.call_later(GATHER_S, self._release)
            loop.call_soon(self._gather, self.waiting, loop)

    @contextmanager
    def announce(self) -> Iterator[None]:
        """Let others wait for a request that is being parsed."""
        self._announced += 1
        try:
            yield
        finally:
            self._announced -= 1
            if self._requests and not self._ready:
                loop = asyncio.get_running_loop()
                loop.call_soon(self._gather, self.waiting, loop)

    def _gather(self, before: int, loop: asyncio.AbstractEventLoop) -> None:
        """Permit taking unless more came during the last turn of the loop or is announced."""
        now = self.waiting
        if now >= BATCH_MEASUREMENTS:
            self._release()
        elif now > before:
            loop.call_soon(self._gather, now, loop)
        elif not self._announced:
            self._release()

    def _release(self) -> None:
        if self._release_call:
            self._release_call.cancel()
        with self._changed:
            self._ready = bool(self._requests)
            self._changed.notify()

    # Methods of any thread

    def close(self) -> None:
        """Accept no further requests; queued ones can still be taken."""
        with self._changed:
            self.closed = True
            self._changed.notify()

    # Methods of the writer

    def take(self, timeout_s: float | None) -> list[WriteRequest]:
        """Take the next requests, as many as fit into one transaction.

        A request waits if the batch has one of its measurements, so that each gets its own outcome.

        Args:
            timeout_s: seconds to wait for requests; None for any time.

        Returns:
            nothing after the timeout, or if the queue is closed and empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self._ready, timeout_s)
            if not (self.closed or self._ready):
                return []
            batch = self._take_batch()
            self._ready = bool(self._requests)
            return batch

    def _take_batch(self) -> list[WriteRequest]:
        batch: list[WriteRequest] = []
        ids: set[str] = set()
        count = 0
        while self._requests:
            following = self._requests[0]
            count += len(following.measurements)
            if batch and (count > BATCH_MEASUREMENTS or not ids.isdisjoint(following.ids)):
                break
            ids |= following.ids
            batch.append(self._requests.popleft())
            self.waiting -= len(following.measurements)
            self._waiting_by_key[following.key_id] -= len(following.measurements)
            if not self._waiting_by_key[following.key_id]:
                del self._waiting_by_key[following.key_id]
        return batch

    def take_all(self) -> list[WriteRequest]:
        """Take every request."""
        with self._changed:
            requests = [*self._requests]
            self._requests.clear()
            self.waiting = 0
            self._waiting_by_key.clear()
            self._ready = False
            return requests
