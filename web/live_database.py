"""The results database as a service holds it: for months, through whatever happens to it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy.engine import Engine

from treehammer.collectors.record import Measurement
from treehammer.errors import ConfigError, ContentError, NothingToDo, StoreError
from treehammer.sql.database import parse_url
from treehammer.sql.handed_in import HandedIn, Taken
from treehammer.sql.keyring import Keyring
from treehammer.sql.recording import Added
from treehammer.sql.selection import Selection, Where
from treehammer.sql.store import Store, open_engine
from treehammer.sql.tokens import Access
from treehammer.sql.troubles import shown, sqlite_file
from treehammer.web.answers import Refusal

#: Errors of what was asked: the database itself is well.
_OTHERS = (ContentError, ConfigError, NothingToDo, Refusal)


class LiveDatabase:
    """Opens the database when it is needed, and anew after every trouble; for any thread.

    A file that was put in the place of an SQLite database, or taken away, is noticed: what is written
    to the old one would be lost.  Every method raises :class:`~treehammer.errors.StoreError` when the
    database refuses.

    Args:
        url: of a database that exists.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        parsed = parse_url(url)
        self._file = sqlite_file(parsed)
        self._where = shown(parsed)
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._opened: tuple[int, int] | None = None

    def close(self) -> None:
        """Let go of every connection."""
        with self._lock:
            self._drop()

    def add(self, measurements: Iterable[Measurement]) -> Added:
        """Write measurements; see :meth:`Store.add <treehammer.sql.store.Store.add>`."""
        with self._used() as engine:
            return Store(engine).add(measurements)

    def hand_in(self, handed: HandedIn) -> Taken:
        """Write what is told of a campaign, and mark what read a replica that is told to be bad."""
        with self._used() as engine:
            store = Store(engine)
            taken = store.hand_in(handed)
            if any(not finding.good for finding in handed.replicas):
                store.mark_bad_replicas()
            return taken

    def mark_bad_replicas(self) -> int:
        """Mark what read bad replicas; see :meth:`~treehammer.sql.store.Store.mark_bad_replicas`."""
        with self._used() as engine:
            return Store(engine).mark_bad_replicas()

    def access(self) -> Access:
        """Keys and revocations."""
        with self._used() as engine:
            return Keyring(engine).access()

    def measurement(self, id_: str) -> dict[str, Any] | None:
        """What is known of one measurement, as a record's ``values`` and ``extras``; None if nothing."""
        selection = Selection(wheres=(Where("measurement_id", "=", id_),))
        with self._used() as engine, Store(engine).snapshot() as snapshot:
            for row in snapshot.measurements(selection):
                return {
                    "values": {name: value for name, value in row.items() if value is not None},
                    "extras": {extra.name: extra.value for extra in snapshot.extras(selection)},
                }
        return None

    @contextmanager
    def store(self) -> Iterator[Store]:
        """The store, for questions that belong together; it is not to be closed."""
        with self._used() as engine:
            yield Store(engine)

    @contextmanager
    def _used(self) -> Iterator[Engine]:
        with self._lock:
            engine = self._ready()
        try:
            yield engine
        except _OTHERS:
            raise
        except BaseException:
            with self._lock:
                if self._engine is engine:
                    self._drop()
            raise

    def _ready(self) -> Engine:
        if self._engine is not None and self._opened != _identity(self._file):
            self._drop()
        if self._engine is None:
            opened = _identity(self._file)
            try:
                self._engine = open_engine(self._url, create=False)
            except NothingToDo as error:
                raise StoreError(
                    "the database is gone",
                    where=self._where,
                    hint="Put it back, from a backup if need be; "
                    "a new one is laid when the service starts.",
                ) from error
            self._opened = opened
        return self._engine

    def _drop(self) -> None:
        if self._engine is not None:
            self._engine.dispose()
        self._engine = None


def _identity(file: Path | None) -> tuple[int, int] | None:
    """What tells a file from another of the same name; None when there is none."""
    try:
        found = file.stat() if file else None
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found else None
