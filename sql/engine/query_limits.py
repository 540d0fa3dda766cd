"""Cancellation of the queries of one request by another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from treehammer.errors import StoreError

Result = TypeVar("Result")

_KEY = "treehammer_query_group"
#: Seconds for a server to accept a cancellation.
_CANCEL_TIMEOUT_S = 2.0


class QueryGroup:
    """The queries of one request, which run in one thread and are cancelled together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: list[Any] = []
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """Whether the group was cancelled."""
        return self._cancelled

    def run(self, work: Callable[[], Result]) -> Result:
        """Call a function whose queries belong to this group."""
        token = _CURRENT.set(self)
        try:
            return work()
        finally:
            _CURRENT.reset(token)

    def cancel(self) -> None:
        """Cancel the running query and refuse any other; repeat it until the thread has ended.

        A query that begins at the same moment is not noticed by its database.
        """
        # The lock keeps connections from being returned to the pool and used by others meanwhile.
        with self._lock:
            self._cancelled = True
            for connection in self._connections:
                with suppress(Exception):  # It may have ended by itself.
                    _cancel_query(connection)

    def add(self, connection: Any) -> None:
        """Add a connection of the database's driver."""
        with self._lock:
            self._connections.append(connection)

    def remove(self, connection: Any) -> None:
        """Remove a connection, which is returned to the pool."""
        with self._lock:
            self._connections = [
                open_connection
                for open_connection in self._connections
                if open_connection is not connection
            ]


_CURRENT: ContextVar[QueryGroup | None] = ContextVar("query_group", default=None)


def is_cancelled() -> bool:
    """Return whether the queries of the current request were cancelled."""
    group = _CURRENT.get()
    return group is not None and group.cancelled


def make_cancellable(engine: Engine) -> None:
    """Let groups cancel the queries of an engine."""
    sa.event.listen(engine, "checkout", _join_group)
    sa.event.listen(engine, "checkin", _leave_group)
    sa.event.listen(engine, "before_cursor_execute", _require_uncancelled)


def _join_group(connection: Any, record: Any, _proxy: Any) -> None:
    if (group := _CURRENT.get()) is not None:
        record.info[_KEY] = group
        group.add(connection)


def _leave_group(connection: Any, record: Any) -> None:
    if (group := record.info.pop(_KEY, None)) is not None:
        group.remove(connection)


def _require_uncancelled(*_: Any) -> None:
    if is_cancelled():
        raise StoreError("the query was cancelled")


def _cancel_query(connection: Any) -> None:
    """Cancel the query of a driver's connection: SQLite, PostgreSQL or Oracle."""
    if hasattr(connection, "interrupt"):
        connection.interrupt()
    elif hasattr(connection, "cancel_safe"):
        connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
    else:
        connection.cancel()
