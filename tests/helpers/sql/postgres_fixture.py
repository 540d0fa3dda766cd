"""PostgreSQL server for tests: Debian's, in a temporary folder, reached by its socket."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from machine_requirements import skip_or_fail
from psycopg import sql

from treehammer import config
from treehammer.errors import TestbedError
from treehammer.sql.write.store import Store
from treehammer.testbed.components import postgres_server

#: Role with a password and without permission to create tables.
GUEST_ROLE, GUEST_PASSWORD = "guest", "s3cret-pa:ss/w@rd"
#: Free memory from which on servers keep their data there.
MIN_MEMORY_BYTES = 4_000_000_000
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

    process: subprocess.Popen[bytes] | None

    def __init__(self, programs: Path, folder: Path) -> None:
        super().__init__(programs, folder, _SETTINGS, _ACCESS_RULES)
        try:
            self.initialize()
        except TestbedError as error:
            skip_or_fail(str(error))
        self._made = 0
        self._template = ""

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

        It is a copy of a first one, which is several times faster than creating the tables.
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

    def crash(self) -> None:
        """Kill the server; unwritten data are lost."""
        if self.process:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGQUIT)
            self.process.wait(postgres_server.TIMEOUT_S)
            self.process = None

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

    def guest_url(self, database: str) -> str:
        """Return the URL of a database for :data:`GUEST_ROLE`."""
        return self.url(database, GUEST_ROLE, GUEST_PASSWORD)

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


def _choose_folder() -> str:
    """Choose where servers keep their data: in memory if there is much of it, else in /tmp.

    Each database has 300 files. Creating and deleting them soon costs ext4 a third of a second of
    CPU, since it searches for an inode that was not in use a moment ago. A socket's path may have 107
    bytes; pytest's own folders can be longer.
    """
    memory = "/dev/shm"
    usable = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > MIN_MEMORY_BYTES
    return memory if usable else "/tmp"


#: Removes a folder when the process that started it has ended; a server may still write its last files.
_REMOVAL = 'cat; rm -rf "$0" || { sleep 5; rm -rf "$0"; }'


@contextmanager
def run_server() -> Iterator[SharedPostgresServer]:
    """Run a server in a temporary folder, which is removed also if this process is killed."""
    programs = require_programs()
    folder = Path(tempfile.mkdtemp(prefix="treehammer-pg-", dir=_choose_folder()))
    with subprocess.Popen(["sh", "-c", _REMOVAL, folder], stdin=subprocess.PIPE, process_group=0):
        server = SharedPostgresServer(programs, folder)
        server.start()
        server.make_guest()
        try:
            yield server
        finally:
            server.stop()
