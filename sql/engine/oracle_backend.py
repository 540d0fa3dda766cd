"""Oracle backend, through python-oracledb's thin mode.

Tests compile its statements, and no server executes them; see docs/databases.md.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import DatabaseError, IntegrityError

from treehammer.errors import StoreError
from treehammer.sql.engine import backend
from treehammer.sql.engine.backend import (
    ACCESS_OPTION,
    CONNECT_TIMEOUT_S,
    AccessMode,
    Backend,
    display_url,
)

#: Oldest supported server.
MINIMUM_VERSION = (19,)
#: Required character set: the only one that holds every text and sorts by code points.
CHARACTER_SET = "AL32UTF8"
#: Table with one row, which the active writer locks; that needs fewer privileges than LOCK TABLE.
LOCK_TABLE = "writer_lock"
_CREATE_LOCK_TABLE = (
    "CREATE TABLE writer_lock (id NUMBER(1) NOT NULL, CONSTRAINT pk_writer_lock PRIMARY KEY (id))"
)
_INSERT_LOCK_ROW = "INSERT INTO writer_lock (id) VALUES (1)"
_SELECT_LOCK_ROW = "SELECT id FROM writer_lock"
_ACQUIRE_LOCK = "SELECT id FROM writer_lock WHERE id = 1 FOR UPDATE WAIT"

# Compare and sort text by its bytes and write numbers with a point, regardless of the territory
# configured at the server.
_SESSION_SETTINGS = (
    "ALTER SESSION SET NLS_SORT = BINARY NLS_COMP = BINARY NLS_NUMERIC_CHARACTERS = '.,'"
)
# Reserved words missing from SQLAlchemy's list; as parameter names they need quotes, too.
_EXTRA_RESERVED_WORDS = """
    access add audit column column_value file immediate increment initial maxextents mlslabel modify
    nested_table_id noaudit offline online row rowid rownum rows session successful sysdate validate
    whenever
"""
# In whole seconds, which is enough for leases.
_CLOCK_QUERY = (
    "SELECT (CAST(SYS_EXTRACT_UTC(SYSTIMESTAMP) AS DATE) - DATE '1970-01-01') * 86400 FROM dual"
)
_NAME_IS_TAKEN = "ORA-00955"


class OracleBackend(Backend):
    """Backend for servers of 19c or later; uses the SQL of 19c for all of them."""

    auxiliary_tables = frozenset({LOCK_TABLE})
    transactional_ddl = False
    clock_query = _CLOCK_QUERY

    def with_driver(self, url: URL) -> URL:
        """Return the URL with python-oracledb as its default driver."""
        return url.set(drivername="oracle+oracledb") if url.drivername == "oracle" else url

    def create_engine(self, url: URL) -> Engine:
        """Create an engine that sends the same SQL to every version of the server."""
        engine = super().create_engine(url)
        preparer: Any = engine.dialect.identifier_preparer
        preparer.reserved_words = preparer.reserved_words | {*_EXTRA_RESERVED_WORDS.split()}
        # Runs before other queries but after SQLAlchemy has detected the server's version.
        sa.event.listen(engine, "connect", _configure_session, insert=True)
        sa.event.listen(engine, "connect", functools.partial(_restrict_to_19c, engine.dialect))
        return engine

    def engine_options(self, url: URL) -> dict[str, Any]:
        """Return options that replace connections cut by a restart of the server."""
        defaults = {"tcp_connect_timeout": CONNECT_TIMEOUT_S, "program": "treehammer"}
        connect_args = {name: value for name, value in defaults.items() if name not in url.query}
        return {"connect_args": connect_args, "pool_pre_ping": True}

    def begin(self, connection: Connection, access: AccessMode) -> None:
        """Give readers one consistent state and admit one writer at a time, as on SQLite."""
        if access == "read":
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")
        if access == "write":
            take = f"{_ACQUIRE_LOCK} {backend.BUSY_SECONDS:.0f}"
            if not connection.exec_driver_sql(take).all():
                raise StoreError(
                    f"the table {LOCK_TABLE} has lost its row, which writers take in turn",
                    where=display_url(connection.engine.url),
                    hint=f"Put it back: {_INSERT_LOCK_ROW}; COMMIT;",
                )

    def require_usable_server(self, connection: Connection) -> None:
        """Refuse a server that is too old, or a database that cannot hold every text."""
        version = connection.dialect.server_version_info or ()
        if version < MINIMUM_VERSION:
            raise StoreError(
                f"the server is Oracle {'.'.join(map(str, version))}; {MINIMUM_VERSION[0]}c or later is needed",
                where=display_url(connection.engine.url),
                hint="Use a newer server.",
            )
        encoding = connection.exec_driver_sql(
            "SELECT value FROM nls_database_parameters WHERE parameter = 'NLS_CHARACTERSET'"
        ).scalar()
        if encoding != CHARACTER_SET:
            raise StoreError(
                f"the database's character set is {encoding}, which cannot hold every text",
                where=display_url(connection.engine.url),
                hint=f"Use a database whose character set is {CHARACTER_SET}, the usual one.",
            )

    @contextmanager
    def altering(self, plain: Connection) -> Iterator[Connection]:
        """Exclude writers by a second connection.

        Oracle commits on every change of a table, which would release a lock of the first one.
        """
        _create_lock_table(plain)
        with plain.engine.connect() as guard:
            guarding = guard.execution_options(**{ACCESS_OPTION: "write"})
            with guarding.begin():
                yield plain.execution_options(**{ACCESS_OPTION: "alter"})


def _configure_session(connection: Any, _record: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_SESSION_SETTINGS)


def _restrict_to_19c(dialect: Any, _connection: Any, _record: Any) -> None:
    # After a server upgrade to 23ai SQLAlchemy would use BOOLEAN, but existing tables hold numbers.
    dialect.server_version_info = min(dialect.server_version_info, MINIMUM_VERSION)
    dialect.supports_native_boolean = False


def _create_lock_table(plain: Connection) -> None:
    """Create the lock table and its row; harmless if another process does so concurrently."""
    connection = plain.execution_options(**{ACCESS_OPTION: "alter"})
    with connection.begin():
        if not sa.inspect(connection).has_table(LOCK_TABLE):
            try:
                connection.exec_driver_sql(_CREATE_LOCK_TABLE)
            except DatabaseError as error:
                if _NAME_IS_TAKEN not in str(error.orig):
                    raise
    with connection.begin():
        filled = connection.exec_driver_sql(_SELECT_LOCK_ROW).all()
    if not filled:
        try:
            with connection.begin():
                connection.exec_driver_sql(_INSERT_LOCK_ROW)
        except IntegrityError:
            pass  # another process has inserted the row


#: Statement -> server error if the change already exists.
_ALREADY_APPLIED = (
    ("CREATE ", ("ORA-00955", "ORA-01408")),
    ("DROP ", ("ORA-00942", "ORA-01418")),
    (" ADD ", ("ORA-01430", "ORA-02260", "ORA-02261", "ORA-02264", "ORA-02275")),
    (" DROP ", ("ORA-00904", "ORA-02443")),
    (" MODIFY ", ("ORA-01442", "ORA-01451")),
)


def is_already_applied(statement: str, message: str) -> bool:
    """Check for a schema change refused because an interrupted upgrade has already made it."""
    for verb, codes in _ALREADY_APPLIED:
        first = statement.lstrip().startswith(verb)
        if first or (verb[0] == " " and verb in statement):
            return any(code in message for code in codes)
    return False
