"""Database backends: one small class for the specifics of each kind of database."""

from __future__ import annotations

from sqlalchemy.engine import URL, Engine

from treehammer.sql.engine.backends.generic import Backend
from treehammer.sql.engine.backends.oracle import OracleBackend
from treehammer.sql.engine.backends.postgresql import PostgreSQLBackend
from treehammer.sql.engine.backends.sqlite import SQLiteBackend

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
