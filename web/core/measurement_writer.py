"""The one thread that writes: it commits what many requests have brought in one transaction."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.errors import StoreError, UnstorableContentError
from treehammer.sql.write.recording import BATCH_MEASUREMENTS, AddResult

_LOG = logging.getLogger("treehammer.service")

#: Measurements that may wait to be written.
MAX_WAITING = 10 * BATCH_MEASUREMENTS
#: Seconds between two looks: for measurements that read a replica which was found bad, and in
#: trouble whether the database takes in again.
CHECK_INTERVAL_S = 5.0
#: Seconds after which one trouble of the database is told again.
REPEAT_LOG_S = 60.0


class MeasurementSink(Protocol):
    """Where measurements go: a :class:`~treehammer.sql.write.store.Store`, or what stands for one."""

    def add(self, measurements: Iterable[Measurement]) -> AddResult:
        """Write them in one transaction; when this returns they are safe."""
        ...


class WriterFullError(Exception):
    """Nothing more can be taken now."""


class WriterClosedError(WriterFullError):
    """Nothing more is taken: the service stops."""


class WriteFailedError(Exception):
    """The database refused for now; nothing of the request was written."""


class UnwritableError(Exception):
    """The database cannot hold a measurement of the request; nothing of it was written."""


@dataclass(frozen=True)
class _WriteRequest:
    measurements: Sequence[Measurement]
    ids: frozenset[str]
    result: asyncio.Future[AddResult]


class MeasurementWriter:
    """Writes what requests bring, in the order in which it came.

    Args:
        store: where to; used by the writer's thread alone.
        mark: is called now and then after something new was written; marks what read bad replicas.
        waiting: measurements that may wait to be written.
    """

    def __init__(
        self,
        store: MeasurementSink,
        *,
        mark: Callable[[], object] | None = None,
        waiting: int = MAX_WAITING,
    ) -> None:
        self._store = store
        self._mark = mark
        self._limit = waiting
        self._queue: deque[_WriteRequest] = deque()
        self._waiting = 0
        self._changed = threading.Condition()
        self._closing = False
        self._to_look = mark is not None
        self._looked_s = -CHECK_INTERVAL_S
        # Of a request that was refused.  That they can be written shows that the trouble is over, as
        # no look does; what was never acknowledged does no harm: it comes again, and is known then.
        self._refused: Sequence[Measurement] = ()
        self._told = ("", 0.0)
        # Should the process have to end without it, nobody was told that what it held is safe.
        self._thread = threading.Thread(target=self._write_forever, name="writer", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Why the last attempt to write failed, '' when it did not.
        self.trouble = ""

    def start(self) -> None:
        """Begin to write; call it from the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def close(self) -> None:
        """Write what waits, take nothing more, and end.  Harmless when done twice."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, measurements: Sequence[Measurement]) -> asyncio.Future[AddResult]:
        """Have measurements of one request written, all or none; call it from the event loop.

        Returns:
            what is done when they are safe; it fails with :class:`NotWritten` or
            :class:`Unwritable`.

        Raises:
            Full: too much waits already, or the service stops (:class:`Closed`).
        """
        answer: asyncio.Future[AddResult] = asyncio.get_running_loop().create_future()
        # A request that is answered before has nobody who asks for the outcome.
        answer.add_done_callback(_retrieve_exception)
        ids = frozenset(item.id for item in measurements)
        with self._changed:
            if self._closing:
                raise WriterClosedError
            if self._queue and self._waiting + len(measurements) > self._limit:
                raise WriterFullError
            self._queue.append(_WriteRequest(measurements, ids, answer))
            self._waiting += len(measurements)
            self._changed.notify()
        return answer

    # The thread

    def _write_forever(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    if not self._changed.wait(self._seconds_until_check()):
                        break
                requests = self._take_batch()
                closing = self._closing
            if requests:
                self._write_batch(requests)
            self._check_periodically(closing and not requests)
            if closing and not requests:
                return

    def _take_batch(self) -> list[_WriteRequest]:
        """The next requests, as many as one transaction takes.

        Of two that hold the same measurement the second waits: so each learns what became of its own.
        """
        taken: list[_WriteRequest] = []
        ids: set[str] = set()
        count = 0
        while self._queue:
            following = self._queue[0]
            count += len(following.measurements)
            if taken and (count > BATCH_MEASUREMENTS or not ids.isdisjoint(following.ids)):
                break
            ids |= following.ids
            taken.append(self._queue.popleft())
            self._waiting -= len(following.measurements)
        return taken

    def _write_batch(self, requests: Sequence[_WriteRequest]) -> None:
        try:
            added = self._store.add([m for request in requests for m in request.measurements])
        except UnstorableContentError as error:
            self._write_one_by_one(requests, error)
        except StoreError as error:
            self._refused = requests[0].measurements
            self._looked_s = time.monotonic()
            self._mark_failing(error)
            self._resolve_all(requests, WriteFailedError())
        except Exception as error:
            self._write_one_by_one(requests, error)
        else:
            self._refused = ()
            self._mark_recovered()
            self._to_look |= self._mark is not None and added.new > 0
            self._resolve([(request, _result_of(request, added)) for request in requests])

    def _write_one_by_one(self, requests: Sequence[_WriteRequest], error: Exception) -> None:
        """One request at a time: what is wrong with one must not fail the others."""
        if len(requests) > 1:
            for request in requests:
                self._write_batch([request])
        elif isinstance(error, UnstorableContentError):
            _LOG.warning("a request cannot be written: %s", error)
            self._resolve([(requests[0], UnwritableError(error.message))])
        else:
            self._resolve([(requests[0], error)])

    def _resolve_all(self, requests: Sequence[_WriteRequest], outcome: Exception) -> None:
        # Those behind would meet the same: they are told now, and come again.
        with self._changed:
            requests = [*requests, *self._queue]
            self._queue.clear()
            self._waiting = 0
        self._resolve([(request, outcome) for request in requests])

    def _resolve(self, outcomes: Sequence[tuple[_WriteRequest, AddResult | Exception]]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(_set_results, outcomes)
        except RuntimeError:
            _LOG.warning("nobody is left to be told what was written")

    def _mark_recovered(self) -> None:
        if self.trouble:
            _LOG.info("the database answers again")
        self.trouble = ""

    def _mark_failing(self, error: StoreError) -> None:
        self.trouble = error.message
        # Whoever balances load sends nothing to a service in trouble: it looks by itself.
        self._to_look = True
        what, when = self._told
        if what != error.message or time.monotonic() - when > REPEAT_LOG_S:
            _LOG.error("nothing can be written: %s", error)
            self._told = (error.message, time.monotonic())

    # Looks

    def _seconds_until_check(self) -> float | None:
        """Seconds until the next look is due; None when nothing has come since the last."""
        if not self._to_look:
            return None
        return max(0.0, self._looked_s + CHECK_INTERVAL_S - time.monotonic())

    def _check_periodically(self, at_last: bool) -> None:
        if not self._to_look or (self._seconds_until_check() and not at_last):
            return
        self._looked_s = time.monotonic()
        try:
            self._retry_refused()
            if self._mark is not None:
                self._mark()
            self._to_look = False
            self._mark_recovered()
        except StoreError as error:
            self._mark_failing(error)
        except Exception:
            _LOG.exception("what is done now and then failed, which is our fault")

    def _retry_refused(self) -> None:
        refused, self._refused = self._refused, ()
        if not refused:
            return
        try:
            self._store.add(refused)
        except UnstorableContentError:
            pass  # whoever sends them again is told
        except StoreError:
            self._refused = refused
            raise


def _result_of(request: _WriteRequest, added: AddResult) -> AddResult:
    """What became of a request's own measurements."""
    known = tuple(id_ for id_ in added.known_ids if id_ in request.ids)
    conflicting = tuple(id_ for id_ in added.conflicting if id_ in request.ids)
    new = len(request.measurements) - len(known) - len(conflicting)
    return AddResult(new, len(known), conflicting, known)


def _set_results(outcomes: Sequence[tuple[_WriteRequest, AddResult | Exception]]) -> None:
    for request, outcome in outcomes:
        if request.result.done():
            continue
        if isinstance(outcome, AddResult):
            request.result.set_result(outcome)
        else:
            request.result.set_exception(outcome)


def _retrieve_exception(answer: asyncio.Future[AddResult]) -> None:
    if not answer.cancelled():
        answer.exception()
