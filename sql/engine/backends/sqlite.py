"""SQLite backend."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine

from treehammer.errors import StoreError
from treehammer.sql.engine import database_errors
from treehammer.sql.engine.backends.generic import ACCESS_OPTION, AccessMode, Backend
from treehammer.sql.engine.database_errors import display_url, sqlite_path

#: Memory for pages of the file, by connection.
_CACHE_KIBIBYTES = 16_384


class SQLiteBackend(Backend):
    """Backend for an SQLite file, or for a database in memory."""

    positional_driver = ("pysqlite", "qmark")
    clock_query = "SELECT (julianday('now') - 2440587.5) * 86400"

    def create_engine(self, url: URL) -> Engine:
        """Create an engine whose transactions begin by :meth:`begin` instead of implicitly."""
        engine = super().create_engine(url)
        sa.event.listen(engine, "connect", _configure_connection)
        return engine

    def begin(self, connection: Connection, access: AccessMode) -> None:
        """Acquire the write lock before the first read, so that reads stay valid until commit."""
        connection.exec_driver_sql("BEGIN" if access == "read" else "BEGIN IMMEDIATE")

    @contextmanager
    def altering(self, plain: Connection) -> Iterator[Connection]:
        """Disable foreign keys: SQLite alters a table by copying and dropping it."""
        driver: Any = plain.connection.driver_connection
        # This has no effect inside a transaction.
        driver.execute("PRAGMA foreign_keys=OFF")
        try:
            yield plain.execution_options(**{ACCESS_OPTION: "alter"})
        finally:
            driver.execute("PRAGMA foreign_keys=ON")

    def measure_bytes(self, connection: Connection) -> int | None:
        """Return the bytes of the file with its write-ahead log; None for one in memory."""
        path = sqlite_path(connection.engine.url)
        if path is None:
            return None
        files = (path, path.with_name(f"{path.name}-wal"))
        return sum(file.stat().st_size for file in files if file.exists())

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
    # Keep the driver from beginning transactions implicitly.
    connection.isolation_level = None
    for pragma in (
        f"busy_timeout={database_errors.BUSY_SECONDS * 1000:.0f}",
        "foreign_keys=ON",
        # With FULL, an acknowledged commit survives a power cut, also in WAL mode.
        "synchronous=FULL",
        # Roll-ups of a month stay in memory until the next write.
        f"cache_size={-_CACHE_KIBIBYTES}",
    ):
        connection.execute(f"PRAGMA {pragma}")
