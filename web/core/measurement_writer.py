"""Queue of measurements, which writes those of many requests in shared transactions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

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


class WriteFailedError(Exception):
    """The database failed; nothing of the request was written."""


class UnwritableError(Exception):
    """The database cannot store a measurement of the request; nothing of it was written."""


#: Writes measurements of checked senders in one transaction; they are durable afterwards.
WriteMeasurements = Callable[[Sequence[Measurement], Sequence[Delivery]], AddResult]


@dataclass(frozen=True)
class _WriteRequest:
    measurements: Sequence[Measurement]
    deliveries: Sequence[Delivery]
    ids: frozenset[str]
    key_id: str
    result: asyncio.Future[AddResult]

    def resolve(self, outcome: AddResult | Exception) -> None:
        """Answer the request unless it was cancelled."""
        if self.result.done():
            return
        if isinstance(outcome, Exception):
            self.result.set_exception(outcome)
        else:
            self.result.set_result(outcome)

    def select_result(self, result: AddResult) -> AddResult:
        """Select the outcome of the request's own measurements."""
        duplicate_ids = tuple(id_ for id_ in result.duplicate_ids if id_ in self.ids)
        conflicting = tuple(id_ for id_ in result.conflicting if id_ in self.ids)
        new = len(self.measurements) - len(duplicate_ids) - len(conflicting)
        return AddResult(new, len(duplicate_ids), conflicting, duplicate_ids)


class MeasurementWriter:
    """Writes the measurements of requests in order of arrival, used by the event loop alone.

    Requests that arrive during a transaction, which runs in a thread, share the next one.

    Args:
        write: called by one thread at a time.
        mark_bad_replicas: marks measurements of bad replicas; called periodically after new
            measurements were written.
        max_waiting: maximum number of measurements in the queue.
    """

    def __init__(
        self,
        write: WriteMeasurements,
        *,
        mark_bad_replicas: Callable[[], object] = lambda: None,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self.max_waiting = max_waiting
        #: Reason of the last write's failure, '' after a success.
        self.failure = ""
        self._write = write
        self._mark_bad_replicas = mark_bad_replicas
        self._requests: deque[_WriteRequest] = deque()
        self._waiting_by_key: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._is_closed = False
        self._check_due = True
        self._checked_s = -CHECK_INTERVAL_S
        # A failed request. Writing it proves that the database works again, which a query does not.
        # It was not acknowledged: the client repeats it, and finds its measurements stored.
        self._failed: _WriteRequest | None = None
        self._logged = ("", 0.0)
        self._task: asyncio.Task[None] | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the writer runs."""
        return self._task is not None and not self._task.done()

    @property
    def waiting(self) -> int:
        """The number of measurements in the queue."""
        return self._waiting_by_key.total()

    def start(self) -> None:
        """Start to write."""
        self._task = asyncio.create_task(self._write_forever())

    async def close(self, patience_s: float | None = None) -> None:
        """Accept nothing more and write the queue; wait at most so many seconds, None for any time."""
        self._is_closed = True
        self._changed.set()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=patience_s)

    def submit(
        self, measurements: Sequence[Measurement], sender: Sender
    ) -> asyncio.Future[AddResult]:
        """Queue the measurements of one request, to write all or none.

        Returns:
            A future that completes when they are durable, or fails with :class:`WriteFailedError`,
            :class:`UnwritableError` or :class:`~treehammer.errors.ForeignCampaignError`.

        Raises:
            WriterFullError: the queue is full.
            KeyShareFullError: half of it is full of measurements with the sender's key.
            WriterClosedError: the service is stopping.
        """
        count, key_id = len(measurements), sender.key_id
        if self._is_closed:
            raise WriterClosedError
        if self._requests and self.waiting + count > self.max_waiting:
            raise WriterFullError
        key_count = self._waiting_by_key[key_id]
        if key_count and key_count + count > self.max_waiting // 2:
            raise KeyShareFullError
        result: asyncio.Future[AddResult] = asyncio.get_running_loop().create_future()
        # A request that timed out leaves a future whose exception would be logged as unretrieved.
        result.add_done_callback(_retrieve_exception)
        ids = frozenset(item.id for item in measurements)
        deliveries = list_deliveries(measurements, sender)
        self._requests.append(_WriteRequest(measurements, deliveries, ids, key_id, result))
        self._waiting_by_key[key_id] += count
        self._changed.set()
        return result

    async def _write_forever(self) -> None:
        while self._requests or not self._is_closed:
            if requests := self._take_batch():
                await self._write_batch(requests)
            else:
                self._changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), self._seconds_until_check())
            if self._seconds_until_check() == 0.0:
                await self._check()
        if self._check_due:
            await self._check()

    def _take_batch(self) -> list[_WriteRequest]:
        """Take the next requests, as many as fit into one transaction.

        A request waits if the batch has one of its measurements, so that each gets its own outcome.
        """
        batch: list[_WriteRequest] = []
        ids: set[str] = set()
        count = 0
        while self._requests:
            following = self._requests[0]
            count += len(following.measurements)
            if batch and (count > BATCH_MEASUREMENTS or not ids.isdisjoint(following.ids)):
                break
            ids |= following.ids
            batch.append(self._requests.popleft())
            self._waiting_by_key[following.key_id] -= len(following.measurements)
        self._waiting_by_key = +self._waiting_by_key
        return batch

    async def _add(self, requests: Sequence[_WriteRequest]) -> AddResult:
        return await asyncio.to_thread(
            self._write,
            [measurement for request in requests for measurement in request.measurements],
            [delivery for request in requests for delivery in request.deliveries],
        )

    async def _write_batch(self, requests: Sequence[_WriteRequest]) -> None:
        try:
            result = await self._add(requests)
        except UnstorableContentError as error:
            await self._write_one_by_one(requests, error)
        except StoreError as error:
            self._failed = requests[0]
            self._checked_s = time.monotonic()
            self._record_failure(error)
            # Queued requests would fail the same way, and their clients repeat them.
            for request in (*requests, *self._requests):
                request.resolve(WriteFailedError())
            self._requests.clear()
            self._waiting_by_key.clear()
        except Exception as error:
            await self._write_one_by_one(requests, error)
        else:
            self._failed = None
            self._record_recovery()
            self._check_due |= result.new > 0
            for request in requests:
                request.resolve(request.select_result(result))

    async def _write_one_by_one(self, requests: Sequence[_WriteRequest], error: Exception) -> None:
        """Write each request alone, so that one bad request does not fail the others."""
        if len(requests) > 1:
            for request in requests:
                await self._write_batch([request])
            return
        if isinstance(error, UnstorableContentError) and not isinstance(
            error, ForeignCampaignError
        ):
            _LOG.warning("a request cannot be written: %s", error)
            error = UnwritableError(error.message)
        requests[0].resolve(error)

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

    async def _check(self) -> None:
        try:
            await self._retry_failed()
            await asyncio.to_thread(self._mark_bad_replicas)
            self._check_due = False
            self._record_recovery()
        except StoreError as error:
            self._record_failure(error)
        except Exception:
            _LOG.exception("a periodic check failed because of a bug")
        self._checked_s = time.monotonic()

    async def _retry_failed(self) -> None:
        failed, self._failed = self._failed, None
        if failed is None:
            return
        try:
            await self._add([failed])
        except UnstorableContentError:
            pass  # The client gets the reason when it repeats the request.
        except StoreError:
            self._failed = failed
            raise


def _retrieve_exception(result: asyncio.Future[AddResult]) -> None:
    if not result.cancelled():
        result.exception()
