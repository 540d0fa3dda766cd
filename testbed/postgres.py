"""A PostgreSQL server of one's own for as long as it is wanted: Debian's, in a folder, reached by its socket.

For tests and benchmarks: whoever can reach the folder may do everything.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psycopg
from psycopg import sql
from sqlalchemy.engine import URL

from treehammer.errors import TestbedError

PATIENCE_S = 60.0
#: Who owns everything.
OWNER = "hammer"
# Sorting as people expect, not as bytes: what Treehammer promises of order must hold nevertheless.
_INITDB = ["--locale-provider=icu", "--icu-locale=en", "--locale=C.UTF-8", "--encoding=UTF8"]
_SETTINGS = {
    "listen_addresses": "",
    "dynamic_shared_memory_type": "mmap",
    # Its compiler's library is not among what was unpacked.
    "jit": "off",
}


class Server:
    """One server.

    Args:
        programs: of PostgreSQL.
        folder: where its data, its log and its socket are; a socket's path has 107 bytes at most.
        settings: of the server, in place of its own.

    Raises:
        TestbedError: it does not work here.
    """

    def __init__(self, programs: Path, folder: Path, settings: Mapping[str, str]) -> None:
        self._programs = programs
        self.folder = folder
        self.data = folder / "data"
        self._settings = {**_SETTINGS, **settings, "unix_socket_directories": str(folder)}
        self._process: subprocess.Popen[bytes] | None = None
        if (self.data / "PG_VERSION").exists():
            return
        command = [*self._command("initdb"), "-D", str(self.data), "-U", OWNER, *_INITDB]
        done = subprocess.run(
            [*command, "--auth=trust", "--no-sync", "--no-instructions"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise TestbedError(f"PostgreSQL does not work here: {done.stderr.strip()}")

    def _command(self, program: str) -> list[str]:
        # It refuses to run as root; and it ends with whoever started it.
        user = [] if os.getuid() else ["unshare", "--user", "--map-user=65534", "--map-group=65534"]
        return [*user, "setpriv", "--pdeathsig", "INT", str(self._programs / program)]

    def start(self) -> None:
        """Run; returns when it answers.

        Raises:
            TestbedError: it does not; the message has its log.
        """
        options = [
            word for key, value in self._settings.items() for word in ("-c", f"{key}={value}")
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command("postgres"), "-D", str(self.data), *options],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.execute(sql.SQL("SELECT 1"))
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    said = (self.folder / "log").read_text()
                    raise TestbedError(f"PostgreSQL does not start: {said}") from error
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

    def url(self, database: str, user: str = OWNER, password: str | None = None) -> str:
        """The URL that SQLAlchemy reads."""
        address = URL.create(
            "postgresql",
            username=user,
            password=password,
            database=database,
            query={"host": str(self.folder)},
        )
        return address.render_as_string(hide_password=False)

    def create_database(self, name: str, encoding: str = "UTF8") -> None:
        """Make a new, empty database."""
        how = sql.SQL("CREATE DATABASE {} ENCODING {} TEMPLATE template0").format(
            sql.Identifier(name), sql.Literal(encoding)
        )
        if encoding != "UTF8":
            how += sql.SQL(" LOCALE_PROVIDER libc LOCALE 'C'")
        self.execute(how)

    def drop_database(self, name: str) -> None:
        """Forget a database, whoever is connected."""
        self.execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )

    def execute(self, statement: sql.SQL | sql.Composed, database: str = "postgres") -> int:
        """Execute a statement outside any transaction; the number that it answers, or 0."""
        said = psycopg.connect(host=str(self.folder), dbname=database, user=OWNER, autocommit=True)
        with said as connection:
            found = connection.execute(statement)
            row = found.fetchone() if found.description else None
            return int(row[0]) if row else 0
