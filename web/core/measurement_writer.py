"""Queue and thread that write the measurements of many requests in shared transactions."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.errors import ForeignCampaignError, StoreError, UnstorableContentError
from treehammer.sql.write.audit_trail import Delivery, Sender, list_deliveries
from treehammer.sql.write.recording import BATCH_MEASUREMENTS, AddResult

_LOG = logging.getLogger("treehammer.service")

#: Maximum number of measurements in the queue.
MAX_WAITING = 10 * BATCH_MEASUREMENTS
#: Seconds between two periodic checks, which mark measurements of bad replicas and, after a failure,
#: try whether the database can be written to again.
CHECK_INTERVAL_S = 5.0
#: Seconds after which the same database error is logged again.
REPEAT_LOG_S = 60.0


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
    """Requests in order of arrival; those that arrive during a transaction share the next one.

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
        self._changed = threading.Condition()

    # Methods of any thread

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
            self._requests.append(request)
            self.waiting += count
            self._waiting_by_key[request.key_id] += count
            self._changed.notify()

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
            self._changed.wait_for(lambda: self.closed or self._requests, timeout_s)
            return self._take_batch()

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
            return requests


class MeasurementSink(Protocol):
    """Destination of measurements, such as :class:`~treehammer.sql.write.store.Store`."""

    def add(self, measurements: Iterable[Measurement], deliveries: Iterable[Delivery]) -> AddResult:
        """Write measurements of checked senders in one transaction; they are durable afterwards."""
        ...


class WriteFailedError(Exception):
    """The database failed; nothing of the request was written."""


class UnwritableError(Exception):
    """The database cannot store a measurement of the request; nothing of it was written."""


class MeasurementWriter:
    """Writes the measurements of requests, in order of arrival.

    Args:
        store: destination, used by the writer's thread alone.
        mark_bad_replicas: marks measurements of bad replicas; called periodically after new
            measurements were written.
        max_waiting: maximum number of measurements in the queue.
    """

    def __init__(
        self,
        store: MeasurementSink,
        *,
        mark_bad_replicas: Callable[[], object] | None = None,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._store = store
        self._mark_bad_replicas = mark_bad_replicas
        self._queue = WriteQueue(max_waiting)
        self._check_due = mark_bad_replicas is not None
        self._checked_s = -CHECK_INTERVAL_S
        # A failed request. Writing it proves that the database works again, which a query does not.
        # It was not acknowledged: the client repeats it, and finds its measurements stored.
        self._failed: WriteRequest | None = None
        self._logged = ("", 0.0)
        # A daemon, since nothing in its queue has been acknowledged yet.
        self._thread = threading.Thread(target=self._write_forever, name="writer", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        #: Reason of the last write's failure, '' after a success.
        self.failure = ""

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """The number of measurements in the queue."""
        return self._queue.waiting

    @property
    def max_waiting(self) -> int:
        """The maximum number of measurements in the queue."""
        return self._queue.max_waiting

    def start(self) -> None:
        """Start the thread; call it from the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def close(self, patience_s: float | None = None) -> None:
        """Write the queue, accept nothing more, and end the thread; may be called twice.

        Args:
            patience_s: seconds to wait for the thread; None for any time.
        """
        self._queue.close()
        if self._thread.is_alive():
            self._thread.join(patience_s)

    def submit(
        self, measurements: Sequence[Measurement], sender: Sender
    ) -> asyncio.Future[AddResult]:
        """Queue the measurements of one request, to write all or none; call it from the event loop.

        Returns:
            A future that completes when they are durable, or fails with :class:`WriteFailedError`,
            :class:`UnwritableError` or :class:`~treehammer.errors.ForeignCampaignError`.

        Raises:
            WriterFullError: the queue is full.
            KeyShareFullError: half of it is full of measurements with the sender's key.
            WriterClosedError: the service is stopping.
        """
        result: asyncio.Future[AddResult] = asyncio.get_running_loop().create_future()
        # A request that timed out leaves a future whose exception would be logged as unretrieved.
        result.add_done_callback(_retrieve_exception)
        ids = frozenset(item.id for item in measurements)
        deliveries = list_deliveries(measurements, sender)
        self._queue.put(WriteRequest(measurements, deliveries, ids, sender.key_id, result))
        return result

    # Methods of the thread

    def _write_forever(self) -> None:
        while True:
            requests = self._queue.take(self._seconds_until_check())
            if requests:
                self._write_batch(requests)
            at_last = self._queue.closed and not requests
            self._check_periodically(at_last)
            if at_last:
                return

    def _write_batch(self, requests: Sequence[WriteRequest]) -> None:
        try:
            added = self._store.add(
                [measurement for request in requests for measurement in request.measurements],
                [delivery for request in requests for delivery in request.deliveries],
            )
        except UnstorableContentError as error:
            self._write_one_by_one(requests, error)
        except StoreError as error:
            self._failed = requests[0]
            self._checked_s = time.monotonic()
            self._record_failure(error)
            self._resolve_all(requests, WriteFailedError())
        except Exception as error:
            self._write_one_by_one(requests, error)
        else:
            self._failed = None
            self._record_recovery()
            self._check_due |= self._mark_bad_replicas is not None and added.new > 0
            self._resolve([(request, _result_of(request, added)) for request in requests])

    def _write_one_by_one(self, requests: Sequence[WriteRequest], error: Exception) -> None:
        """Write each request alone, so that one bad request does not fail the others."""
        if len(requests) > 1:
            for request in requests:
                self._write_batch([request])
        elif isinstance(error, ForeignCampaignError):
            self._resolve([(requests[0], error)])
        elif isinstance(error, UnstorableContentError):
            _LOG.warning("a request cannot be written: %s", error)
            self._resolve([(requests[0], UnwritableError(error.message))])
        else:
            self._resolve([(requests[0], error)])

    def _resolve_all(self, requests: Sequence[WriteRequest], outcome: Exception) -> None:
        # Queued requests would fail the same way, and their clients repeat them.
        requests = [*requests, *self._queue.take_all()]
        self._resolve([(request, outcome) for request in requests])

    def _resolve(self, outcomes: Sequence[tuple[WriteRequest, AddResult | Exception]]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(_set_results, outcomes)
        except RuntimeError:
            _LOG.warning("the event loop ended before requests got their outcome")

    def _record_recovery(self) -> None:
        if self.failure:
            _LOG.info("the database can be written to again")
        self.failure = ""

    def _record_failure(self, error: StoreError) -> None:
        self.failure = error.message
        # A load balancer sends no requests to an unhealthy service, which therefore checks by itself.
        self._check_due = True
        message, logged_s = self._logged
        if message != error.message or time.monotonic() - logged_s > REPEAT_LOG_S:
            _LOG.error("the database cannot be written to: %s", error)
            self._logged = (error.message, time.monotonic())

    def _seconds_until_check(self) -> float | None:
        """Return the seconds until the next check; None if no check is due."""
        if not self._check_due:
            return None
        return max(0.0, self._checked_s + CHECK_INTERVAL_S - time.monotonic())

    def _check_periodically(self, at_last: bool) -> None:
        if not self._check_due or (self._seconds_until_check() and not at_last):
            return
        self._checked_s = time.monotonic()
        try:
            self._retry_failed()
            if self._mark_bad_replicas is not None:
                self._mark_bad_replicas()
            self._check_due = False
            self._record_recovery()
        except StoreError as error:
            self._record_failure(error)
        except Exception:
            _LOG.exception("a periodic check failed because of a bug")

    def _retry_failed(self) -> None:
        failed, self._failed = self._failed, None
        if failed is None:
            return
        try:
            self._store.add(failed.measurements, failed.deliveries)
        except UnstorableContentError:
            pass  # The client gets the reason when it repeats the request.
        except StoreError:
            self._failed = failed
            raise


def _result_of(request: WriteRequest, added: AddResult) -> AddResult:
    """Select the outcome of a request's own measurements."""
    known_ids = tuple(id_ for id_ in added.known_ids if id_ in request.ids)
    conflicting = tuple(id_ for id_ in added.conflicting if id_ in request.ids)
    new = len(request.measurements) - len(known_ids) - len(conflicting)
    return AddResult(new, len(known_ids), conflicting, known_ids)


def _set_results(outcomes: Sequence[tuple[WriteRequest, AddResult | Exception]]) -> None:
    for request, outcome in outcomes:
        if request.result.done():
            continue
        if isinstance(outcome, AddResult):
            request.result.set_result(outcome)
        else:
            request.result.set_exception(outcome)


def _retrieve_exception(result: asyncio.Future[AddResult]) -> None:
    if not result.cancelled():
        result.exception()
