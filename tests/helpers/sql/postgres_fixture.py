"""PostgreSQL server for tests: Debian's, in a temporary folder, reached by its socket."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from machine_requirements import skip_or_fail
from psycopg import sql

from treehammer import config
from treehammer.errors import TestbedError
from treehammer.sql.write.store import Store
from treehammer.testbed.components import database_server

#: Role with a password and without permission to create tables.
GUEST_ROLE, GUEST_PASSWORD = "guest", "s3cret-pa:ss/w@rd"
_SETTINGS = {
    "shared_buffers": "32MB",
    **database_server.UNSAFE_FAST_SETTINGS,
    # The background work of a server that lives for minutes would only take time from the tests.
    "autovacuum": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
#: Tables, columns, indexes, constraints, permissions and revision of a database.
_STRUCTURE = """
SELECT md5(string_agg(line, ';' ORDER BY line)) FROM (
    SELECT concat_ws(' ', relname, relkind, relacl, attname, atttypid, atttypmod, attnotnull)
    FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
    WHERE relnamespace = 'public'::regnamespace
    UNION ALL SELECT concat_ws(' ', conrelid::regclass, conname, contype) FROM pg_constraint
    UNION ALL SELECT version_num FROM alembic_version
) AS lines (line)
"""
_END_OTHERS = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
#: Empties the tables that have rows, except that of the revision.
_EMPTY_TABLES = """
DO $$
DECLARE
    name text;
    found boolean;
    filled text[] := '{}';
BEGIN
    FOR name IN SELECT quote_ident(relname) FROM pg_class
        WHERE relnamespace = 'public'::regnamespace AND relkind = 'r'
        AND relname <> 'alembic_version' LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %s)', name) INTO found;
        IF found THEN
            filled := filled || name;
        END IF;
    END LOOP;
    IF filled <> '{}' THEN
        EXECUTE format('TRUNCATE %s CASCADE', array_to_string(filled, ', '));
    END IF;
END
$$
"""
_ACCESS_RULES = f"local all {GUEST_ROLE} scram-sha-256\n{database_server.TRUST_LOCAL_ACCESS}"


class SharedPostgresServer(database_server.PostgresServer):
    """Server shared by tests, which create and drop their databases."""

    def __init__(self, programs: Path, folder: Path) -> None:
        super().__init__(programs, folder, _SETTINGS, _ACCESS_RULES)
        try:
            self.initialize()
        except TestbedError as error:
            skip_or_fail(str(error))
        self._made = 0
        self._template = ""
        self._structure: object = None
        self._empty_stores: list[str] = []

    def make_database(self, encoding: str = "UTF8") -> str:
        """Create an empty database and return its name."""
        name = self._next_name()
        statement = sql.SQL("CREATE DATABASE {} ENCODING {} TEMPLATE template0").format(
            sql.Identifier(name), sql.Literal(encoding)
        )
        if encoding != "UTF8":
            statement += sql.SQL(" LOCALE_PROVIDER libc LOCALE 'C'")
        self.execute(statement)
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, closing its connections."""
        self.execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )

    def restart_if_crashed(self) -> None:
        """Restart the server if it ended, as a supervisor does."""
        if self.process and self.process.poll() is not None:
            self.start()

    def make_store_database(self) -> str:
        """Create a database with the tables of an empty store and return its name.

        It is one that was given back, or a copy, which is several times faster than creating the tables.
        """
        if self._empty_stores:
            return self._empty_stores.pop()
        if not self._template:
            self._template = self.make_database()
            with Store.open(self.url(self._template)):
                pass
            with self._connect(self._template) as connection:
                self._structure = connection.execute(_STRUCTURE).fetchone()
        name = self._next_name()
        self.execute(
            # Copying the files takes a third of the time of writing each page to the log.
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY").format(
                sql.Identifier(name), sql.Identifier(self._template)
            )
        )
        return name

    def give_back(self, database: str) -> None:
        """Empty a database of :meth:`make_store_database` for another test.

        One with other tables, columns or permissions is dropped. Truncating the few tables that have
        rows takes a fraction of the time of copying and removing hundreds of files.
        """
        with suppress(psycopg.Error), self._connect(database) as connection:
            connection.execute(_END_OTHERS)
            if connection.execute(_STRUCTURE).fetchone() == self._structure:
                connection.execute(_EMPTY_TABLES)
                self._empty_stores.append(database)
                return
        self.drop_database(database)

    def _connect(self, database: str) -> psycopg.Connection:
        return psycopg.connect(
            host=str(self.folder), dbname=database, user=self.owner, autocommit=True
        )

    def _next_name(self) -> str:
        self._made += 1
        return f"results_{self._made}"

    def end_connections(self, database: str) -> int:
        """Terminate all connections to a database and return their number."""
        return self.execute(
            sql.SQL(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = {}"
            ).format(sql.Literal(database))
        )

    def make_guest(self) -> None:
        """Create the role :data:`GUEST_ROLE`."""
        self.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(
                sql.Identifier(GUEST_ROLE), sql.Literal(GUEST_PASSWORD)
            )
        )

    def grant_reading(self, database: str) -> None:
        """Grant :data:`GUEST_ROLE` read access to all tables of a database."""
        self.execute(
            sql.SQL(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {GUEST_ROLE}"), database
        )


def require_programs() -> Path:
    """Find the folder of PostgreSQL's programs; skip the test if they are missing."""
    try:
        return database_server.install_postgres(config.load_settings().cache_dir / "testbed", print)
    except TestbedError as error:
        skip_or_fail(f"no PostgreSQL: {error}")


@contextmanager
def _run_server() -> Iterator[SharedPostgresServer]:
    found = require_programs()
    # A socket's path may have 107 bytes; pytest's own folders can be longer.
    folder = Path(tempfile.mkdtemp(prefix="treehammer-pg-", dir="/tmp"))
    try:
        server = SharedPostgresServer(found, folder)
        server.start()
        server.make_guest()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


class _ServerLeases:
    """The server of this process, which runs while a fixture provides it."""

    def __init__(self) -> None:
        self._running = ExitStack()
        self._users = 0
        self._server: SharedPostgresServer | None = None

    @contextmanager
    def lease(self) -> Iterator[SharedPostgresServer]:
        if self._server is None:
            self._server = self._running.enter_context(_run_server())
        self._users += 1
        try:
            yield self._server
        finally:
            self._users -= 1
            if not self._users:
                self._server = None
                self._running.close()


_LEASES = _ServerLeases()


@pytest.fixture(scope="session")
def postgresql() -> Iterator[SharedPostgresServer]:
    """Provide the server of this process; all files that import this fixture share it."""
    with _LEASES.lease() as server:
        yield server
