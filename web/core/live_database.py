"""Long-lived access to the results database that recovers from its failures.

Queries of requests are cancelled when they take too long or the client disconnects.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio
from sqlalchemy.engine import Engine
from starlette.requests import Request

from treehammer.errors import ConfigError, NothingToDoError, StoreError, UnstorableContentError
from treehammer.sql.core.access_keys import AccessGrant, AccessList
from treehammer.sql.engine.backend import display_url, sqlite_path
from treehammer.sql.engine.database_engine import (
    QueryGroup,
    is_cancelled,
    measure_database,
    parse_url,
)
from treehammer.sql.engine.database_setup import open_engine
from treehammer.sql.read.measurement_queries import restore_operation
from treehammer.sql.read.query_model import Condition, Selection
from treehammer.sql.write.audit_trail import Sender
from treehammer.sql.write.keyring import Keyring, SessionTable, hash_session_token
from treehammer.sql.write.store import CampaignUpload, Store, UploadResult
from treehammer.web.core.responses import RequestRefusedError, service_unavailable

#: Errors caused by a request, after which the connection stays usable.
_REQUEST_ERRORS = (UnstorableContentError, ConfigError, NothingToDoError, RequestRefusedError)
Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

#: Seconds between two attempts to cancel a query.
_REPEAT_CANCEL_S = 0.2


def _call_store(
    method: Callable[Concatenate[Store, Arguments], Result],
) -> Callable[Concatenate[LiveDatabase, Arguments], Result]:
    """Make the method that calls one of the store."""

    @wraps(method)
    def call(
        database: LiveDatabase, /, *arguments: Arguments.args, **options: Arguments.kwargs
    ) -> Result:
        with database.open_store() as store:
            return method(store, *arguments, **options)

    return call


class LiveDatabase:
    """Database that is opened on demand and reopened after every failure; thread-safe.

    An SQLite file that was replaced or removed is noticed, since rows written to the old file would be
    lost. Every method raises :class:`~treehammer.errors.StoreError` if the database fails.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        parsed = parse_url(url)
        self._file = sqlite_path(parsed)
        self._where = display_url(parsed)
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._opened: tuple[int, int] | None = None

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._dispose_engine()

    def apply_upload(self, upload: CampaignUpload, sender: Sender) -> UploadResult:
        """Write an uploaded campaign, and mark measurements that read its bad replicas."""
        with self._use_engine() as engine:
            store = Store(engine)
            result = store.apply_upload(upload, sender)
            if any(not replica.good for replica in upload.replicas):
                store.mark_bad_replicas()
            return result

    def measure_size(self) -> tuple[str, int | None]:
        """Return the kind of the database and its size in bytes; None if that is unknown."""
        with self._use_engine() as engine:
            return engine.dialect.name, measure_database(engine)

    def load_access(self) -> AccessList:
        """Read keys, revocations and sessions."""
        with self._use_engine() as engine:
            return Keyring(engine).load_access()

    def open_session(
        self, grant: AccessGrant, *, address: str, now_us: int, expires_us: int
    ) -> str:
        """Open a read session and return its token."""
        with self._use_engine() as engine:
            return SessionTable(engine).open_session(
                grant, address=address, now_us=now_us, expires_us=expires_us
            )

    def end_session(self, token: str) -> None:
        """End a read session by its token."""
        with self._use_engine() as engine:
            SessionTable(engine).end_sessions([hash_session_token(token)])

    def find_measurement(self, id_: str) -> dict[str, Any] | None:
        """Read a measurement as a document of its record; None if unknown."""
        selection = Selection(conditions=(Condition("measurement_id", "=", id_),))
        with self._use_engine() as engine, Store(engine).snapshot() as snapshot:
            for row in snapshot.measurements(selection):
                document: dict[str, Any] = {
                    "values": {name: value for name, value in row.items() if value is not None},
                    "extras": {extra.name: extra.value for extra in snapshot.extras(selection)},
                }
                if operations := snapshot.operations_of([id_]).get(id_):
                    document["operations"] = [
                        restore_operation(operation) for operation in operations
                    ]
                return document
        return None

    @contextmanager
    def open_store(self) -> Iterator[Store]:
        """Yield the store for related queries; the caller must not close it."""
        with self._use_engine() as engine:
            yield Store(engine)

    add = _call_store(Store.add)
    find_owner = _call_store(Store.find_owner)
    mark_bad_replicas = _call_store(Store.mark_bad_replicas)
    write_audit = _call_store(Store.add_audit_entries)

    @contextmanager
    def _use_engine(self) -> Iterator[Engine]:
        with self._lock:
            engine = self._open_engine()
        try:
            yield engine
        except _REQUEST_ERRORS:
            raise
        except BaseException:
            if is_cancelled():
                raise  # The database is well.
            with self._lock:
                if self._engine is engine:
                    self._dispose_engine()
            raise

    def _open_engine(self) -> Engine:
        if self._engine is not None and self._opened != _file_identity(self._file):
            self._dispose_engine()
        if self._engine is None:
            opened = _file_identity(self._file)
            try:
                self._engine = open_engine(self._url, create=False)
            except NothingToDoError as error:
                raise StoreError(
                    "the database is gone",
                    where=self._where,
                    hint="Put it back, or restore a backup. "
                    "The service creates a new database when it starts.",
                ) from error
            self._opened = opened
        return self._engine

    def _dispose_engine(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
        self._engine = None


def _file_identity(file: Path | None) -> tuple[int, int] | None:
    """Return device and inode of a file; None if there is no file."""
    try:
        status = file.stat() if file else None
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if status else None


async def run_queries(work: Callable[[], Result], request: Request, seconds: float) -> Result:
    """Call a function with queries in a thread; refuse after a timeout or a disconnect."""
    group = QueryGroup()
    running = asyncio.ensure_future(anyio.to_thread.run_sync(group.run, work))
    disconnected = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait(
            {running, disconnected}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if running.done():
            return await running
        is_disconnected = disconnected.done()
    finally:
        disconnected.cancel()
        # Also after a cancellation: the slot of the query is free when its thread has ended.
        await asyncio.shield(_cancel_until_done(group, running))
    if is_disconnected:
        raise service_unavailable("the client has closed the connection", "client gone")
    raise service_unavailable(
        f"the query took longer than {seconds:.0f} s; select less", "slow query"
    )


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _cancel_until_done(group: QueryGroup, running: asyncio.Future[Result]) -> None:
    while not running.done():
        await anyio.to_thread.run_sync(group.cancel)
        await asyncio.wait({running}, timeout=_REPEAT_CANCEL_S)
    if not running.cancelled():
        running.exception()  # Its outcome does not matter any more.
