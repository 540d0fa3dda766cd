"""PostgreSQL, in its own way."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import URL, Connection

from treehammer.errors import ConfigError, StoreError
from treehammer.sql.core import database_errors
from treehammer.sql.core.backends.generic import CONNECT_TIMEOUT_S, AccessMode, Backend
from treehammer.sql.core.database_errors import display_url

#: The oldest server that is accepted; what has been run stands in docs/databases.md.
MINIMUM_VERSION = (13,)
#: In a URL, ``prepare_threshold=none``: for a pooler that hands a connection from one to another but
#: does not know whose prepared statements are whose.
PREPARE_OPTION, NEVER_PREPARE = "prepare_threshold", "none"
#: Held by whoever writes to a database; any number that nobody else uses.
_WRITER_LOCK_ID = int.from_bytes(b"treehamm", "big")
# What is committed survives a crash of the server, also where it is told not to wait for its disk.
_REQUIRE_DURABLE_COMMIT = (
    "SELECT set_config('synchronous_commit', 'on', true) "
    "WHERE current_setting('synchronous_commit') = 'off'"
)

_IDENTITY_QUERY = (
    "SELECT pg_postmaster_start_time(), current_database(), to_regclass('measurement')::oid"
)


class PostgreSQLBackend(Backend):
    """A server, reached by psycopg."""

    reading_options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    # A stricter one would see the state from before it had waited for others.
    writing_options = {"isolation_level": "READ COMMITTED"}

    def with_driver(self, url: URL) -> URL:
        """The URL with psycopg as its driver where it names none."""
        if url.query.get(PREPARE_OPTION, NEVER_PREPARE) != NEVER_PREPARE:
            raise ConfigError(
                f"{PREPARE_OPTION} can be {NEVER_PREPARE!r} or left out", where="database"
            )
        bare = url.drivername in ("postgres", "postgresql")
        return url.set(drivername="postgresql+psycopg") if bare else url

    def engine_options(self, url: URL) -> dict[str, Any]:
        """A connection that a restart of the server has cut is made anew."""
        # These win over the URL's.
        given = libpq_options(url) | ({PREPARE_OPTION: None} if PREPARE_OPTION in url.query else {})
        return {"connect_args": given, "pool_pre_ping": True}

    def begin(self, connection: Connection, access: AccessMode) -> None:
        """Have one writer at a time, as on SQLite, who sees all that those before have written."""
        if access != "read":
            # Sent together: a commit takes hardly longer than one more round trip.
            connection.exec_driver_sql(
                f"SET LOCAL lock_timeout = {database_errors.BUSY_SECONDS * 1000:.0f}; {_REQUIRE_DURABLE_COMMIT}; "
                f"SELECT pg_advisory_xact_lock({_WRITER_LOCK_ID})"
            )

    def identity(self, connection: Connection) -> tuple[Any, ...]:
        """When its server was started, to the microsecond, and which table of it has measurements."""
        return ("postgresql", *connection.exec_driver_sql(_IDENTITY_QUERY).one())

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
    """Parameters of PostgreSQL's C library that the URL leaves to us."""
    ours = {
        "application_name": "treehammer",
        "client_encoding": "utf8",
        "connect_timeout": CONNECT_TIMEOUT_S,
        # A server whose machine is gone says nothing: without these it would be waited for for hours.
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,
    }
    return {name: value for name, value in ours.items() if name not in url.query}


def libpq_connection_string(url: URL) -> str:
    """A PostgreSQL URL as the connection string of its C library; it may hold a password."""
    # psycopg takes a sixth of a second to load, which SQLite's users need not pay.
    from psycopg.conninfo import make_conninfo

    _, named = url.get_dialect()().create_connect_args(url)
    named.pop(PREPARE_OPTION, None)
    return make_conninfo("", **named, **libpq_options(url))
