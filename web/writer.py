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

from treehammer.collectors.record import Measurement
from treehammer.errors import ContentError, StoreError
from treehammer.sql.recording import BATCH, Added

_LOG = logging.getLogger("treehammer.service")

#: Measurements that may wait to be written.
WAITING = 10 * BATCH
#: Seconds between two looks: for measurements that read a replica which was found bad, and in
#: trouble whether the database takes in again.
LOOK_EVERY_S = 5.0
#: Seconds after which one trouble of the database is told again.
TELL_AGAIN_S = 60.0


class AddsMeasurements(Protocol):
    """Where measurements go: a :class:`~treehammer.sql.store.Store`, or what stands for one."""

    def add(self, measurements: Iterable[Measurement]) -> Added:
        """Write them in one transaction; when this returns they are safe."""
        ...


class Full(Exception):
    """Nothing more can be taken now."""


class Closed(Full):
    """Nothing more is taken: the service stops."""


class NotWritten(Exception):
    """The database refused for now; nothing of the request was written."""


class Unwritable(Exception):
    """The database cannot hold a measurement of the request; nothing of it was written."""


@dataclass(frozen=True)
class _Request:
    measurements: Sequence[Measurement]
    ids: frozenset[str]
    answer: asyncio.Future[Added]


class Writer:
    """Writes what requests bring, in the order in which it came.

    Args:
        store: where to; used by the writer's thread alone.
        mark: is called now and then after something new was written; marks what read bad replicas.
        waiting: measurements that may wait to be written.
    """

    def __init__(
        self,
        store: AddsMeasurements,
        *,
        mark: Callable[[], object] | None = None,
        waiting: int = WAITING,
    ) -> None:
        self._store = store
        self._mark = mark
        self._limit = waiting
        self._queue: deque[_Request] = deque()
        self._waiting = 0
        self._changed = threading.Condition()
        self._closing = False
        self._to_look = mark is not None
        self._looked_s = -LOOK_EVERY_S
        # Of a request that was refused.  That they can be written shows that the trouble is over, as
        # no look does; what was never acknowledged does no harm: it comes again, and is known then.
        self._refused: Sequence[Measurement] = ()
        self._told = ("", 0.0)
        # Should the process have to end without it, nobody was told that what it held is safe.
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
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

    def put(self, measurements: Sequence[Measurement]) -> asyncio.Future[Added]:
        """Have measurements of one request written, all or none; call it from the event loop.

        Returns:
            what is done when they are safe; it fails with :class:`NotWritten` or
            :class:`Unwritable`.

        Raises:
            Full: too much waits already, or the service stops (:class:`Closed`).
        """
        answer: asyncio.Future[Added] = asyncio.get_running_loop().create_future()
        # A request that is answered before has nobody who asks for the outcome.
        answer.add_done_callback(_looked_at)
        ids = frozenset(item.id for item in measurements)
        with self._changed:
            if self._closing:
                raise Closed
            if self._queue and self._waiting + len(measurements) > self._limit:
                raise Full
            self._queue.append(_Request(measurements, ids, answer))
            self._waiting += len(measurements)
            self._changed.notify()
        return answer

    # The thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    if not self._changed.wait(self._until_look()):
                        break
                requests = self._take()
                closing = self._closing
            if requests:
                self._write(requests)
            self._look_sometimes(closing and not requests)
            if closing and not requests:
                return

    def _take(self) -> list[_Request]:
        """The next requests, as many as one transaction takes.

        Of two that hold the same measurement the second waits: so each learns what became of its own.
        """
        taken: list[_Request] = []
        ids: set[str] = set()
        count = 0
        while self._queue:
            following = self._queue[0]
            count += len(following.measurements)
            if taken and (count > BATCH or not ids.isdisjoint(following.ids)):
                break
            ids |= following.ids
            taken.append(self._queue.popleft())
            self._waiting -= len(following.measurements)
        return taken

    def _write(self, requests: Sequence[_Request]) -> None:
        try:
            added = self._store.add([m for request in requests for m in request.measurements])
        except ContentError as error:
            self._write_apart(requests, error)
        except StoreError as error:
            self._refused = requests[0].measurements
            self._looked_s = time.monotonic()
            self._in_trouble(error)
            self._answer_all(requests, NotWritten())
        except Exception as error:
            self._write_apart(requests, error)
        else:
            self._refused = ()
            self._well()
            self._to_look |= self._mark is not None and added.new > 0
            self._answer([(request, _share(request, added)) for request in requests])

    def _write_apart(self, requests: Sequence[_Request], error: Exception) -> None:
        """One request at a time: what is wrong with one must not fail the others."""
        if len(requests) > 1:
            for request in requests:
                self._write([request])
        elif isinstance(error, ContentError):
            _LOG.warning("a request cannot be written: %s", error)
            self._answer([(requests[0], Unwritable(error.message))])
        else:
            self._answer([(requests[0], error)])

    def _answer_all(self, requests: Sequence[_Request], outcome: Exception) -> None:
        # Those behind would meet the same: they are told now, and come again.
        with self._changed:
            requests = [*requests, *self._queue]
            self._queue.clear()
            self._waiting = 0
        self._answer([(request, outcome) for request in requests])

    def _answer(self, outcomes: Sequence[tuple[_Request, Added | Exception]]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(_tell, outcomes)
        except RuntimeError:
            _LOG.warning("nobody is left to be told what was written")

    def _well(self) -> None:
        if self.trouble:
            _LOG.info("the database answers again")
        self.trouble = ""

    def _in_trouble(self, error: StoreError) -> None:
        self.trouble = error.message
        # Whoever balances load sends nothing to a service in trouble: it looks by itself.
        self._to_look = True
        what, when = self._told
        if what != error.message or time.monotonic() - when > TELL_AGAIN_S:
            _LOG.error("nothing can be written: %s", error)
            self._told = (error.message, time.monotonic())

    # Looks

    def _until_look(self) -> float | None:
        """Seconds until the next look is due; None when nothing has come since the last."""
        if not self._to_look:
            return None
        return max(0.0, self._looked_s + LOOK_EVERY_S - time.monotonic())

    def _look_sometimes(self, at_last: bool) -> None:
        if not self._to_look or (self._until_look() and not at_last):
            return
        self._looked_s = time.monotonic()
        try:
            self._write_refused()
            if self._mark is not None:
                self._mark()
            self._to_look = False
            self._well()
        except StoreError as error:
            self._in_trouble(error)
        except Exception:
            _LOG.exception("what is done now and then failed, which is our fault")

    def _write_refused(self) -> None:
        refused, self._refused = self._refused, ()
        if not refused:
            return
        try:
            self._store.add(refused)
        except ContentError:
            pass  # whoever sends them again is told
        except StoreError:
            self._refused = refused
            raise


def _share(request: _Request, added: Added) -> Added:
    """What became of a request's own measurements."""
    known = tuple(id_ for id_ in added.known_ids if id_ in request.ids)
    conflicting = tuple(id_ for id_ in added.conflicting if id_ in request.ids)
    new = len(request.measurements) - len(known) - len(conflicting)
    return Added(new, len(known), conflicting, known)


def _tell(outcomes: Sequence[tuple[_Request, Added | Exception]]) -> None:
    for request, outcome in outcomes:
        if request.answer.done():
            continue
        if isinstance(outcome, Added):
            request.answer.set_result(outcome)
        else:
            request.answer.set_exception(outcome)


def _looked_at(answer: asyncio.Future[Added]) -> None:
    if not answer.cancelled():
        answer.exception()
