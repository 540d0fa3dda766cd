"""Translation of database errors into messages with remedies."""

from __future__ import annotations

import socket
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.engine import URL
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, SQLAlchemyError

from treehammer.config import mask_password
from treehammer.errors import StoreError, UnstorableContentError
from treehammer.sql.core.measurement_columns import DamagedValueError
from treehammer.sql.engine import error_hints

#: Seconds that a writer waits for another writer before it fails.
BUSY_SECONDS = error_hints.BUSY_SECONDS
# URL parameters that describe the connection rather than the location of the database.
_CONNECTION_OPTIONS = (
    "connect_timeout",
    "passfile",
    "prepare_threshold",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
)


_DATABASE_ERRORS = (SQLAlchemyError, sqlite3.Error, socket.gaierror, DamagedValueError)


@contextmanager
def translate_errors(url: URL) -> Iterator[None]:
    """Convert database errors into errors with a remedy.

    Raises:
        StoreError: in place of errors of SQLAlchemy and the driver, and :class:`DamagedValueError`.
        KeyboardInterrupt: in place of errors raised while it left the block.
    """
    handled = sys.exception()
    try:
        yield
    except Exception as error:
        # SQLAlchemy closes a connection that Ctrl-C interrupts; cleaning up then fails.
        if interrupt := _find_interrupt(error, handled):
            raise interrupt from None
        if not isinstance(error, _DATABASE_ERRORS):
            raise
        message = str(error.orig) if isinstance(error, DBAPIError) else str(error)
        raise build_store_error(url, message, _classify_error(error, message)) from error


def _find_interrupt(error: Exception, handled: BaseException | None) -> KeyboardInterrupt | None:
    """Find a KeyboardInterrupt during which the error was raised; ``handled`` is older than both."""
    context = error.__context__
    while context and context is not handled and not isinstance(context, KeyboardInterrupt):
        context = context.__context__
    return context if isinstance(context, KeyboardInterrupt) and context is not handled else None


def _classify_error(error: Exception, message: str) -> type[StoreError]:
    """Select the error class: unstorable content or a fault of the database."""
    content = (
        isinstance(error, DataError | IntegrityError) or error_hints.INDEX_ROW_TOO_LONG in message
    )
    return UnstorableContentError if content else StoreError


def build_store_error(url: URL, message: str, kind: type[StoreError] = StoreError) -> StoreError:
    """Build the error for a message of a database or its driver."""
    message = " ".join(message.split())
    for sign, meaning, hint in error_hints.ERROR_HINTS.get(url.get_backend_name(), ()):
        if sign in message.lower():
            return kind(f"{meaning} ({message})", where=display_url(url), hint=hint)
    return kind(f"the database refused: {message}", where=display_url(url))


def sqlite_path(url: URL) -> Path | None:
    """Return the file of an SQLite URL; None for other databases and for one in memory."""
    if url.get_backend_name() != "sqlite" or url.database in (None, "", ":memory:"):
        return None
    return Path(str(url.database))


def display_url(url: URL) -> str:
    """Format a database for display: a path, or its URL without secrets and connection options."""
    file = sqlite_path(url)
    where = url.set(drivername=url.get_backend_name()).difference_update_query(_CONNECTION_OPTIONS)
    return str(file) if file else mask_password(where)
