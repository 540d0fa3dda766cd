"""Database backends: one small class for the specifics of each kind of database."""

from __future__ import annotations

from sqlalchemy.engine import URL, Engine

from treehammer.sql.core.backends.generic import Backend
from treehammer.sql.core.backends.oracle import OracleBackend
from treehammer.sql.core.backends.postgresql import PostgreSQLBackend
from treehammer.sql.core.backends.sqlite import SQLiteBackend

_BACKENDS: dict[str, Backend] = {
    "sqlite": SQLiteBackend(),
    "postgresql": PostgreSQLBackend(),
    "oracle": OracleBackend(),
}
_GENERIC = Backend()


def backend_of(database: URL | Engine) -> Backend:
    """Return the backend of a database; the generic one if its kind is unknown."""
    name = database.get_backend_name() if isinstance(database, URL) else database.dialect.name
    return _BACKENDS.get(name, _GENERIC)
