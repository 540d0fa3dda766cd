"""Oracle through python-oracledb's thin mode, in its own way.

It has never met an Oracle server: docs/databases.md says what stands in for one.
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
from treehammer.sql import troubles
from treehammer.sql.backends.plain import ACCESS, CONNECT_SECONDS, Access, Backend, Layout
from treehammer.sql.troubles import shown

#: The oldest server that is accepted.
OLDEST = (19,)
#: The only character set that holds every text and sorts by code points.
CHARACTER_SET = "AL32UTF8"
#: A table with one row, which whoever writes has locked.  A row and not the table itself: that
#: needs fewer rights, and H2, which the tests run, has no LOCK TABLE.
LOCK = "writer_lock"
_LAY_LOCK = (
    "CREATE TABLE writer_lock (id NUMBER(1) NOT NULL, CONSTRAINT pk_writer_lock PRIMARY KEY (id))"
)
_FILL_LOCK = "INSERT INTO writer_lock (id) VALUES (1)"
_SEE_LOCK = "SELECT id FROM writer_lock"
_TAKE_LOCK = "SELECT id FROM writer_lock WHERE id = 1 FOR UPDATE WAIT"

# Text is compared and sorted by its bytes, and numbers have a point, whatever country the server
# thinks that its users are in.
_SESSION = "ALTER SESSION SET NLS_SORT = BINARY NLS_COMP = BINARY NLS_NUMERIC_CHARACTERS = '.,'"
_COLUMNS = "SELECT table_name, column_name FROM user_tab_columns"
_INDEXES = (
    "SELECT table_name, index_name, column_name FROM user_ind_columns "
    "ORDER BY table_name, index_name, column_position"
)
_KEYS = (
    "SELECT table_name, constraint_name, column_name FROM user_cons_columns "
    "WHERE constraint_name IN (SELECT constraint_name FROM user_constraints "
    "WHERE constraint_type = 'P') ORDER BY table_name, constraint_name, position"
)
# Reserved words that SQLAlchemy does not know as such; as names of parameters they need quotes, too.
_RESERVED_TOO = frozenset(
    (
        "access",
        "add",
        "audit",
        "column",
        "column_value",
        "file",
        "immediate",
        "increment",
        "initial",
        "maxextents",
        "mlslabel",
        "modify",
        "nested_table_id",
        "noaudit",
        "offline",
        "online",
        "row",
        "rowid",
        "rownum",
        "rows",
        "session",
        "successful",
        "sysdate",
        "validate",
        "whenever",
    )
)
_NAME_IS_TAKEN = "ORA-00955"


class Oracle(Backend):
    """A server of 19c or later; all of them are spoken to in the words of 19c."""

    helping_tables = frozenset({LOCK})
    undoes_changes = False

    def named(self, url: URL) -> URL:
        """The URL with python-oracledb as its driver where it names none."""
        return url.set(drivername="oracle+oracledb") if url.drivername == "oracle" else url

    def engine(self, url: URL) -> Engine:
        """An engine that speaks alike to every version of the server."""
        engine = super().engine(url)
        preparer: Any = engine.dialect.identifier_preparer
        preparer.reserved_words = preparer.reserved_words | _RESERVED_TOO
        # Before anything else is asked; and after SQLAlchemy has looked at the server's version.
        sa.event.listen(engine, "connect", _prepare, insert=True)
        sa.event.listen(engine, "connect", functools.partial(_keep_to_19c, engine.dialect))
        return engine

    def engine_options(self, url: URL) -> dict[str, Any]:
        """A connection that a restart of the server has cut is made anew."""
        ours = {"tcp_connect_timeout": CONNECT_SECONDS, "program": "treehammer"}
        given = {name: value for name, value in ours.items() if name not in url.query}
        return {"connect_args": given, "pool_pre_ping": True}

    def begin(self, connection: Connection, access: Access) -> None:
        """Have readers see one state throughout, and one writer at a time, as on SQLite."""
        if access == "read":
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")
        if access == "write":
            take = f"{_TAKE_LOCK} {troubles.BUSY_SECONDS:.0f}"
            if not connection.exec_driver_sql(take).all():
                raise StoreError(
                    f"the table {LOCK} has lost its row, which writers take in turn",
                    where=shown(connection.engine.url),
                    hint=f"Put it back: {_FILL_LOCK}; COMMIT;",
                )

    def require_usable(self, connection: Connection) -> None:
        """Refuse a server that is too old, or a database that cannot hold every text."""
        version = connection.dialect.server_version_info or ()
        if version < OLDEST:
            raise StoreError(
                f"the server is Oracle {'.'.join(map(str, version))}; {OLDEST[0]}c or later is needed",
                where=shown(connection.engine.url),
                hint="Use a newer server.",
            )
        encoding = connection.exec_driver_sql(
            "SELECT value FROM nls_database_parameters WHERE parameter = 'NLS_CHARACTERSET'"
        ).scalar()
        if encoding != CHARACTER_SET:
            raise StoreError(
                f"the database's character set is {encoding}, which cannot hold every text",
                where=shown(connection.engine.url),
                hint=f"Use a database whose character set is {CHARACTER_SET}, the usual one.",
            )

    def layout(self, connection: Connection) -> Layout:
        """The user's own tables, asked for in few words: SQLAlchemy's questions are long."""
        columns: dict[str, set[str]] = {}
        for table, column in connection.exec_driver_sql(_COLUMNS):
            columns.setdefault(table.lower(), set()).add(column.lower())
        indexes: dict[str, set[tuple[str | None, ...]]] = {}
        for (table, _), names in _in_order(connection, _INDEXES).items():
            indexes.setdefault(table, set()).add(names)
        keys = {table: names for (table, _), names in _in_order(connection, _KEYS).items()}
        return Layout(columns, keys, indexes)

    @contextmanager
    def altering(self, plain: Connection) -> Iterator[Connection]:
        """Keep writers out by a second connection.

        Every change of a table commits, which would give up a lock of the first one.
        """
        _lay_lock(plain)
        with plain.engine.connect() as guard:
            guarding = guard.execution_options(**{ACCESS: "write"})
            with guarding.begin():
                yield plain.execution_options(**{ACCESS: "alter"})


def _in_order(connection: Connection, question: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """Table and name -> the columns of an index or a constraint."""
    found: dict[tuple[str, str], tuple[str, ...]] = {}
    for table, name, column in connection.exec_driver_sql(question):
        place = (table.lower(), name)
        found[place] = (*found.get(place, ()), column.lower())
    return found


def _prepare(connection: Any, _record: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_SESSION)


def _keep_to_19c(dialect: Any, _connection: Any, _record: Any) -> None:
    # A server that is upgraded to 23ai would else be asked for BOOLEAN where its tables have numbers.
    dialect.server_version_info = min(dialect.server_version_info, OLDEST)
    dialect.supports_native_boolean = False


def _lay_lock(plain: Connection) -> None:
    """Make the table of the lock and its row; harmless when another process just does the same."""
    connection = plain.execution_options(**{ACCESS: "alter"})
    with connection.begin():
        if not sa.inspect(connection).has_table(LOCK):
            try:
                connection.exec_driver_sql(_LAY_LOCK)
            except DatabaseError as error:
                if _NAME_IS_TAKEN not in str(error.orig):
                    raise
    with connection.begin():
        filled = connection.exec_driver_sql(_SEE_LOCK).all()
    if not filled:
        try:
            with connection.begin():
                connection.exec_driver_sql(_FILL_LOCK)
        except IntegrityError:
            pass  # the other one's row has come first


#: Statement -> what the server says of it where it was done before.
_DONE_BEFORE = (
    ("CREATE ", ("ORA-00955", "ORA-01408")),
    ("DROP ", ("ORA-00942", "ORA-01418")),
    (" ADD ", ("ORA-01430", "ORA-02260", "ORA-02261", "ORA-02264", "ORA-02275")),
    (" DROP ", ("ORA-00904", "ORA-02443")),
    (" MODIFY ", ("ORA-01442", "ORA-01451")),
)


def was_done_before(statement: str, said: str) -> bool:
    """Whether a change of tables was refused because an upgrade that was cut has made it."""
    for verb, codes in _DONE_BEFORE:
        first = statement.lstrip().startswith(verb)
        if first or (verb[0] == " " and verb in statement):
            return any(code in said for code in codes)
    return False
