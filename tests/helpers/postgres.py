"""A real PostgreSQL server for tests: Debian's, in a temporary folder, reached by its socket."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import sql
from services import missing

from treehammer import config
from treehammer.errors import TestbedError
from treehammer.testbed import postgres

#: A role that needs its password, and may make no tables.
GUEST, PASSWORD = "guest", "s3cret-pa:ss/w@rd"
_SETTINGS = {"shared_buffers": "32MB", **postgres.HASTY}
_ACCESS = f"local all {GUEST} scram-sha-256\n{postgres.OPEN}"


class Server(postgres.Server):
    """One server; its databases are made and dropped by tests."""

    def __init__(self, programs: Path, folder: Path) -> None:
        try:
            super().__init__(programs, folder, _SETTINGS, _ACCESS)
        except TestbedError as error:
            missing(str(error))
        self._made = 0

    def make_database(self, encoding: str = "UTF8") -> str:
        """A new, empty database; its name."""
        self._made += 1
        name = f"results_{self._made}"
        self.create_database(name, encoding)
        return name

    def end_connections(self, database: str) -> int:
        """Cut all connections to a database; how many there were."""
        return self.execute(
            sql.SQL(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = {}"
            ).format(sql.Literal(database))
        )

    def make_guest(self) -> None:
        """The role :data:`GUEST`."""
        self.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(
                sql.Identifier(GUEST), sql.Literal(PASSWORD)
            )
        )

    def grant_reading(self, database: str) -> None:
        """Let :data:`GUEST` read all tables of a database."""
        self.execute(sql.SQL(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {GUEST}"), database)


def programs() -> Path:
    """The folder of a server's programs; skips the test where there are none."""
    try:
        return postgres.programs(config.load().cache_dir / "testbed", print)
    except TestbedError as error:
        missing(f"no PostgreSQL: {error}")


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A server of this process."""
    found = programs()
    # The path of a socket has 107 bytes: pytest's own folders can be longer.
    folder = Path(tempfile.mkdtemp(prefix="treehammer-pg-", dir="/tmp"))
    try:
        server = Server(found, folder)
        server.start()
        server.make_guest()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)
