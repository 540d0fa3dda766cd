"""The kinds of databases: one small class for each, with all that it does in its own way."""

from __future__ import annotations

from sqlalchemy.engine import URL, Engine

from treehammer.sql.backends.oracle import Oracle
from treehammer.sql.backends.plain import Backend
from treehammer.sql.backends.postgresql import PostgreSQL
from treehammer.sql.backends.sqlite import SQLite

_BACKENDS: dict[str, Backend] = {
    "sqlite": SQLite(),
    "postgresql": PostgreSQL(),
    "oracle": Oracle(),
}
_PLAIN = Backend()


def backend_of(database: URL | Engine) -> Backend:
    """What a database does in its own way; of an unknown kind, nothing."""
    name = database.get_backend_name() if isinstance(database, URL) else database.dialect.name
    return _BACKENDS.get(name, _PLAIN)
