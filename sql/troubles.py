"""What a database's errors mean, and what to do about them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from treehammer.config import masked
from treehammer.errors import StoreError

#: Seconds that a writer waits for another before it gives up.
BUSY_SECONDS = 30.0

_AGAIN = "Nothing was written. Run the command again when the other one has ended."
_KEPT = "what was committed before is intact."

# What SQLite says -> what it means and what to do.
_SQLITE = (
    (
        "locked",
        f"another process held the database for more than {BUSY_SECONDS:.0f} s",
        _AGAIN,
    ),
    (
        "full",
        "there is no room left to write",
        "Free space where the database lies and run the command again; "
        "what was recorded before is intact.",
    ),
    (
        "disk i/o",
        "the disk refused to write or read",
        "Check space, quota and health of the disk, then run the command again; "
        "what was committed before is intact.",
    ),
    (
        "readonly",
        "the database may not be written",
        "Check the permissions of the file and its folder.",
    ),
    (
        "unable to open",
        "the database cannot be opened",
        "Check that its folder exists and is yours to write, or give another with --database.",
    ),
    (
        "malformed",
        "the database is damaged",
        "Put it back from a backup, or move it away and run 'treehammer collect': "
        "the records of jobs stay in the spool.",
    ),
    (
        "not a database",
        "this file is not an SQLite database",
        "Check the path given with --database.",
    ),
)

# The same of PostgreSQL's server and of the library that talks to it; the first that fits counts.
_POSTGRESQL = (
    (
        "lock timeout",
        f"another process held the database for more than {BUSY_SECONDS:.0f} s",
        _AGAIN,
    ),
    (
        "password authentication failed",
        "the server refuses the password",
        "Put the right one into ~/.pgpass or PGPASSWORD (or into the URL, where others may read "
        "it); the user's name stands in the URL.",
    ),
    (
        "no password supplied",
        "the server wants a password",
        "Put it into ~/.pgpass or PGPASSWORD (or into the URL, where others may read it).",
    ),
    (
        "authentication failed",
        "the server does not let this user in",
        "Check the user in the URL; the server's pg_hba.conf says who may enter, and how.",
    ),
    (
        "no pg_hba.conf entry",
        "the server lets nobody in from here under this name",
        "Check user, host and sslmode in the URL, or have a line added to the server's pg_hba.conf.",
    ),
    (
        'role "',
        "the server does not know this user",
        "Check the user in the URL, or have one made: CREATE ROLE NAME LOGIN.",
    ),
    (
        'database "',
        "the server has no such database",
        "Have one made that is yours: CREATE DATABASE NAME OWNER USER ENCODING 'UTF8'.",
    ),
    (
        "permission denied for schema",
        "this user may not make tables here",
        "Have the right given: GRANT CREATE ON SCHEMA public TO USER, or use a database that the "
        "user owns.",
    ),
    (
        "permission denied",
        "this user lacks a right in the database",
        "Have it given by the owner of the tables: GRANT SELECT to read, INSERT, UPDATE and DELETE "
        "to write.",
    ),
    (
        "read-only transaction",
        "the database may not be written",
        "Give the primary server's address: this is a copy of it, or writing was switched off.",
    ),
    (
        "too many",
        "the server has no connection left",
        "Try again later, or have max_connections raised.",
    ),
    (
        "remaining connection slots",
        "the server has no connection left",
        "Try again later, or have max_connections raised.",
    ),
    (
        "no space left",
        "there is no room left to write on the server",
        f"Have space made there and run the command again; {_KEPT}",
    ),
    (
        "index row",
        "a name is longer than PostgreSQL can index (2700 bytes)",
        "Shorten the names of sites, tests and axes.",
    ),
    *(
        (
            sign,
            "the connection to the server was lost",
            f"Run the command again when the server is back; {_KEPT}",
        )
        for sign in (
            "server closed the connection",
            "terminating connection",
            "connection is lost",
            "connection is closed",
            "consuming input failed",
            "no connection to the server",
            "could not receive data",
            "could not send data",
        )
    ),
    *(
        (sign, "the server does not answer", "Check that it runs, and host and port in the URL.")
        for sign in (
            "connection refused",
            "no such file or directory",
            "timeout expired",
            "connection timeout",
            "could not translate host name",
            "failed to resolve host",
            "no route to host",
            "network is unreachable",
            "starting up",
            "shutting down",
        )
    ),
)
_MEANINGS = {"sqlite": _SQLITE, "postgresql": _POSTGRESQL}


@contextmanager
def explained(url: URL) -> Iterator[None]:
    """Turn errors of the database into one that says what to do.

    Raises:
        StoreError: instead of anything SQLAlchemy or the driver raises.
    """
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        said = str(error.orig) if isinstance(error, DBAPIError) else str(error)
        raise refused(url, said) from error


def refused(url: URL, said: str) -> StoreError:
    """The error for what a database or its driver said."""
    said = " ".join(said.split())
    for sign, message, hint in _MEANINGS.get(url.get_backend_name(), ()):
        if sign in said.lower():
            return StoreError(f"{message} ({said})", where=shown(url), hint=hint)
    return StoreError(f"the database refused: {said}", where=shown(url))


def sqlite_file(url: URL) -> Path | None:
    """The file of an SQLite URL; ``None`` for other databases and for one in memory."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return Path(str(url.database))


def shown(url: URL) -> str:
    """The database for people: a path, or the URL without its password."""
    file = sqlite_file(url)
    return str(file) if file else masked(url)
