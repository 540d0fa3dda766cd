"""SQLite, in its own way."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine

from treehammer.errors import StoreError
from treehammer.sql.core import database_errors
from treehammer.sql.core.backends.generic import ACCESS_OPTION, AccessMode, Backend
from treehammer.sql.core.database_errors import display_url


class SQLiteBackend(Backend):
    """A file, or memory, of this process alone or of several."""

    def create_engine(self, url: URL) -> Engine:
        """An engine whose transactions begin by :meth:`begin` and not of the driver's own accord."""
        engine = super().create_engine(url)
        sa.event.listen(engine, "connect", _configure_connection)
        return engine

    def begin(self, connection: Connection, access: AccessMode) -> None:
        """Take the writer's lock before anything is read, so that it stays true until the commit."""
        connection.exec_driver_sql("BEGIN" if access == "read" else "BEGIN IMMEDIATE")

    @contextmanager
    def altering(self, plain: Connection) -> Iterator[Connection]:
        """Without references: a table is altered by copying and dropping it, which they forbid."""
        driver: Any = plain.connection.driver_connection
        # It has no effect inside a transaction.
        driver.execute("PRAGMA foreign_keys=OFF")
        try:
            yield plain.execution_options(**{ACCESS_OPTION: "alter"})
        finally:
            driver.execute("PRAGMA foreign_keys=ON")

    def require_integrity(self, connection: Connection) -> None:
        """Check every page, index and reference of the file."""
        problems = [
            str(row[0])
            for row in connection.exec_driver_sql("PRAGMA integrity_check(10)")
            if row[0] != "ok"
        ]
        problems += [
            f"row {row[1]} of {row[0]} refers to nothing in {row[2]}"
            for row in connection.exec_driver_sql("PRAGMA foreign_key_check")
        ]
        if problems:
            raise StoreError(
                f"the database is damaged: {'; '.join(problems[:10])}",
                where=display_url(connection.engine.url),
                hint="Put it back from a backup, or move it away and run 'treehammer collect'.",
            )


def _configure_connection(connection: sqlite3.Connection, _record: Any) -> None:
    # The driver must not begin transactions of its own accord.
    connection.isolation_level = None
    for pragma in (
        f"busy_timeout={database_errors.BUSY_SECONDS * 1000:.0f}",
        "foreign_keys=ON",
        # With FULL a commit that was answered survives a power cut, also in WAL mode.
        "synchronous=FULL",
    ):
        connection.execute(f"PRAGMA {pragma}")
