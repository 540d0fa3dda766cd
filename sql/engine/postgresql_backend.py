"""PostgreSQL backend."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import URL, Connection

from treehammer.errors import ConfigError, StoreError
from treehammer.sql.engine import backend
from treehammer.sql.engine.backend import (
    CONNECT_TIMEOUT_S,
    AccessMode,
    Backend,
    display_url,
)

#: Oldest supported server; docs/databases.md lists the tested versions.
MINIMUM_VERSION = (13,)
#: URL parameter ``prepare_threshold=none``: for a connection pooler that does not track which
#: connection owns a prepared statement.
PREPARE_OPTION, NEVER_PREPARE = "prepare_threshold", "none"
#: Advisory lock held by the active writer; an arbitrary number unlikely to be used elsewhere.
_WRITER_LOCK_ID = int.from_bytes(b"treehamm", "big")
# Make commits survive a server crash even where the server disables synchronous commits.
_REQUIRE_DURABLE_COMMIT = (
    "SELECT set_config('synchronous_commit', 'on', true) "
    "WHERE current_setting('synchronous_commit') = 'off'"
)

_IDENTITY_QUERY = (
    "SELECT pg_postmaster_start_time(), current_database(), to_regclass('measurement')::oid"
)


class PostgreSQLBackend(Backend):
    """Backend for a PostgreSQL server, through psycopg."""

    reading_options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    # Under a stricter level a writer would see the state from before it waited for the lock.
    writing_options = {"isolation_level": "READ COMMITTED"}
    clock_query = "SELECT EXTRACT(EPOCH FROM clock_timestamp())"

    def with_driver(self, url: URL) -> URL:
        """Return the URL with psycopg as its default driver."""
        if url.query.get(PREPARE_OPTION, NEVER_PREPARE) != NEVER_PREPARE:
            raise ConfigError(
                f"{PREPARE_OPTION} can be {NEVER_PREPARE!r} or left out", where="database"
            )
        lacks_driver = url.drivername in ("postgres", "postgresql")
        return url.set(drivername="postgresql+psycopg") if lacks_driver else url

    def engine_options(self, url: URL) -> dict[str, Any]:
        """Return options that replace connections cut by a restart of the server."""
        # These override the URL's options.
        connect_args = libpq_options(url) | (
            {PREPARE_OPTION: None} if PREPARE_OPTION in url.query else {}
        )
        return {"connect_args": connect_args, "pool_pre_ping": True}

    def begin(self, connection: Connection, access: AccessMode) -> None:
        """Admit one writer at a time, as on SQLite; it sees everything committed before."""
        if access != "read":
            # Sent together to save round trips, which take about as long as a commit.
            connection.exec_driver_sql(
                f"SET LOCAL lock_timeout = {backend.BUSY_SECONDS * 1000:.0f}; {_REQUIRE_DURABLE_COMMIT}; "
                f"SELECT pg_advisory_xact_lock({_WRITER_LOCK_ID})"
            )

    def identity(self, connection: Connection) -> tuple[Any, ...]:
        """Return the server's start time (µs), the database and its measurement table."""
        return ("postgresql", *connection.exec_driver_sql(_IDENTITY_QUERY).one())

    def measure_bytes(self, connection: Connection) -> int | None:
        """Return the bytes of all tables and indexes of the database, whosever they are."""
        query = "SELECT pg_database_size(current_database())"
        return int(connection.exec_driver_sql(query).scalar_one())

    def require_usable_server(self, connection: Connection) -> None:
        """Refuse a server that is too old, or a database that cannot hold every text."""
        version = connection.dialect.server_version_info or ()
        encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
        if version < MINIMUM_VERSION:
            raise StoreError(
                f"the server is PostgreSQL {'.'.join(map(str, version))}; "
                f"{MINIMUM_VERSION[0]} or later is needed",
                where=display_url(connection.engine.url),
                hint="Use a newer server; pg_upgrade keeps what an old one holds.",
            )
        if encoding != "UTF8":
            raise StoreError(
                f"the database's encoding is {encoding}, which cannot hold every text",
                where=display_url(connection.engine.url),
                hint="Make another: CREATE DATABASE NAME ENCODING 'UTF8' TEMPLATE template0.",
            )


def libpq_options(url: URL) -> dict[str, Any]:
    """Return default parameters of libpq that the URL does not set."""
    ours = {
        "application_name": "treehammer",
        "client_encoding": "utf8",
        "connect_timeout": CONNECT_TIMEOUT_S,
        # Without keepalives, a client waits for hours when the server's machine disappears.
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,
    }
    return {name: value for name, value in ours.items() if name not in url.query}
