"""A real PostgreSQL server for tests: Debian's, in a temporary folder, reached by its socket."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from services import missing

from treehammer import config
from treehammer.errors import TestbedError
from treehammer.testbed import rucio_environment

PATIENCE_S = 60.0
#: A role that needs its password, and may make no tables.
GUEST, PASSWORD = "guest", "s3cret-pa:ss/w@rd"
# Sorting as people expect, not as bytes: what Treehammer promises of order must hold nevertheless.
_INITDB = ["--locale-provider=icu", "--icu-locale=en", "--locale=C.UTF-8", "--encoding=UTF8"]
_SETTINGS = {
    "listen_addresses": "",
    "dynamic_shared_memory_type": "mmap",
    "shared_buffers": "32MB",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
}
_ACCESS = f"local all {GUEST} scram-sha-256\nlocal all all trust\n"


class Server:
    """One server; its databases are made and dropped by tests."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self.folder = folder
        self._data = folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._made = 0
        command = [*self._command("initdb"), "-D", str(self._data), "-U", "hammer", *_INITDB]
        done = subprocess.run(
            [*command, "--auth=trust", "--no-sync", "--no-instructions"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            missing(f"PostgreSQL does not work here: {done.stderr.strip()}")
        (self._data / "pg_hba.conf").write_text(_ACCESS)

    def _command(self, program: str) -> list[str]:
        # It refuses to run as root; and it ends with whoever started it.
        user = [] if os.getuid() else ["unshare", "--user", "--map-user=65534", "--map-group=65534"]
        return [*user, "setpriv", "--pdeathsig", "INT", str(self._programs / program)]

    def start(self) -> None:
        """Run; returns when it answers."""
        settings = {**_SETTINGS, "unix_socket_directories": str(self.folder)}
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command("postgres"), "-D", str(self._data), *options],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._admin(sql.SQL("SELECT 1"))
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    pytest.fail(f"PostgreSQL does not start: {(self.folder / 'log').read_text()}")
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """End it and all connections, as an administrator does."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """End it at once; what it had not written is lost."""
        self._end(signal.SIGQUIT)

    def revive(self) -> None:
        """Start it where it has given up, as whoever watches over it does."""
        if self._process and self._process.poll() is not None:
            self.start()

    def _end(self, how: signal.Signals) -> None:
        if self._process:
            with suppress(ProcessLookupError):
                self._process.send_signal(how)
            self._process.wait(PATIENCE_S)
            self._process = None

    def url(self, database: str, user: str = "hammer", password: str | None = None) -> str:
        """The URL that SQLAlchemy reads."""
        from sqlalchemy.engine import URL

        address = URL.create(
            "postgresql",
            username=user,
            password=password,
            database=database,
            query={"host": str(self.folder)},
        )
        return address.render_as_string(hide_password=False)

    def make_database(self, encoding: str = "UTF8") -> str:
        """A new, empty database; its name."""
        self._made += 1
        name = f"results_{self._made}"
        how = sql.SQL("CREATE DATABASE {} ENCODING {} TEMPLATE template0").format(
            sql.Identifier(name), sql.Literal(encoding)
        )
        if encoding != "UTF8":
            how += sql.SQL(" LOCALE_PROVIDER libc LOCALE 'C'")
        self._admin(how)
        return name

    def drop_database(self, name: str) -> None:
        """Forget a database, whoever is connected."""
        self._admin(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def end_connections(self, database: str) -> int:
        """Cut all connections to a database; how many there were."""
        return self._admin(
            sql.SQL(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = {}"
            ).format(sql.Literal(database))
        )

    def make_guest(self) -> None:
        """The role :data:`GUEST`."""
        self._admin(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(
                sql.Identifier(GUEST), sql.Literal(PASSWORD)
            )
        )

    def grant_reading(self, database: str) -> None:
        """Let :data:`GUEST` read all tables of a database."""
        self._admin(sql.SQL(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {GUEST}"), database)

    def _admin(self, statement: sql.SQL | sql.Composed, database: str = "postgres") -> int:
        said = psycopg.connect(
            host=str(self.folder), dbname=database, user="hammer", autocommit=True
        )
        with said as connection:
            found = connection.execute(statement)
            row = found.fetchone() if found.description else None
            return int(row[0]) if row else 0


def programs() -> Path:
    """The folder of a server's programs; skips the test where there are none."""
    try:
        return rucio_environment.postgresql(config.load().cache_dir / "testbed", print)
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
