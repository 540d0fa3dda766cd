"""PostgreSQL server for tests: Debian's, in a temporary folder, reached by its socket."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from machine_requirements import skip_or_fail
from psycopg import sql

from treehammer import config
from treehammer.errors import TestbedError
from treehammer.sql.write.store import Store
from treehammer.testbed.install import postgres_server

#: Role with a password and without permission to create tables.
GUEST_ROLE, GUEST_PASSWORD = "guest", "s3cret-pa:ss/w@rd"
_SETTINGS = {
    "shared_buffers": "32MB",
    **postgres_server.UNSAFE_FAST_SETTINGS,
    # The background work of a server that lives for minutes would only take time from the tests.
    "autovacuum": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
_ACCESS_RULES = f"local all {GUEST_ROLE} scram-sha-256\n{postgres_server.TRUST_LOCAL_ACCESS}"


class SharedPostgresServer(postgres_server.PostgresServer):
    """Server shared by tests, which create and drop their databases."""

    def __init__(self, programs: Path, folder: Path) -> None:
        try:
            super().__init__(programs, folder, _SETTINGS, _ACCESS_RULES)
        except TestbedError as error:
            skip_or_fail(str(error))
        self._made = 0
        self._template = ""

    def make_database(self, encoding: str = "UTF8") -> str:
        """Create an empty database and return its name."""
        name = self._next_name()
        self.create_database(name, encoding)
        return name

    def make_store_database(self) -> str:
        """Create a database with the tables of an empty store and return its name.

        It is a copy, which is several times faster than creating the tables.
        """
        if not self._template:
            self._template = self.make_database()
            with Store.open(self.url(self._template)):
                pass
        name = self._next_name()
        self.execute(
            # Copying the files takes a third of the time of writing each page to the log.
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY").format(
                sql.Identifier(name), sql.Identifier(self._template)
            )
        )
        return name

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
        return postgres_server.install_postgres(config.load_settings().cache_dir / "testbed", print)
    except TestbedError as error:
        skip_or_fail(f"no PostgreSQL: {error}")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[SharedPostgresServer]:
    """Start the server of this process."""
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
