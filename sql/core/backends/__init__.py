"""The kinds of databases: one small class for each, with all that it does in its own way."""

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
    """What a database does in its own way; of an unknown kind, nothing."""
    name = database.get_backend_name() if isinstance(database, URL) else database.dialect.name
    return _BACKENDS.get(name, _GENERIC)
