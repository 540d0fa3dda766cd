"""A private PostgreSQL server from unpacked Debian packages."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.engine import URL

from treehammer.errors import TestbedError
from treehammer.testbed.debian_packages import PackageTree
from treehammer.testbed.workspace import ProgressCallback

if TYPE_CHECKING:  # psycopg is imported where it is used: it takes 0.15 s to load
    from psycopg import sql


VERSION = "17"
_PROGRAMS = (f"postgresql-{VERSION}", f"postgresql-client-{VERSION}")
PACKAGES = PackageTree("postgresql", programs=_PROGRAMS)
TIMEOUT_S = 60.0
DEFAULT_PORT = 5432
#: The superuser.
DEFAULT_OWNER = "hammer"
#: Signal that ends a server without waiting for clients.
STOP_SIGNAL = signal.SIGINT
#: Settings of a server whose data need not survive a power failure.
UNSAFE_FAST_SETTINGS = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
#: Whoever can enter the folder has full access.
TRUST_LOCAL_ACCESS = "local all all trust\n"
# A linguistic sort order, which Treehammer's own ordering must not depend on.
_INITDB_OPTIONS = [
    "--locale-provider=icu",
    "--icu-locale=en",
    "--locale=C.UTF-8",
    "--encoding=UTF8",
    "--auth=trust",
    "--no-sync",
    "--no-instructions",
    "--data-checksums",
]
CONNECT_TIMEOUT_S = 2


def install_postgres(cache: Path, say: ProgressCallback) -> Path:
    """Unpack PostgreSQL into the cache; return the folder of its programs.

    Raises:
        TestbedError: the packages cannot be fetched.
    """
    return find_programs(PACKAGES.unpack(cache, say))


def find_programs(root: Path) -> Path:
    """Return the folder of the programs below unpacked packages."""
    return root / "usr/lib/postgresql" / VERSION / "bin"


class PostgresServer:
    """A private server, reached through its socket.

    Started here, it ends with the thread that started it and runs as the current user, also as root.

    Args:
        programs: folder of PostgreSQL's programs.
        folder: of data, log and socket, whose path has at most 107 bytes; existing data are used.
        settings: of the server.
        access: its ``pg_hba.conf``.
        owner: the superuser.
        port: in the socket's name, and of TCP if ``settings`` enable it.

    Attributes:
        process: the server that was started here.
    """

    def __init__(
        self,
        programs: Path,
        folder: Path,
        settings: Mapping[str, str],
        access: str = TRUST_LOCAL_ACCESS,
        *,
        owner: str = DEFAULT_OWNER,
        port: int = DEFAULT_PORT,
    ) -> None:
        self.programs = programs
        self.folder = folder
        self.access = access
        self.owner = owner
        self.port = port
        self._settings = settings
        self.process: subprocess.Popen[bytes] | None = None
        # PostgreSQL refuses to run as root; the server must end with its starter.
        user = [] if os.getuid() else ["unshare", "--user", "--map-user=65534", "--map-group=65534"]
        self._within = [*user, "setpriv", "--pdeathsig", STOP_SIGNAL.name.removeprefix("SIG")]

    @property
    def command(self) -> list[str]:
        """Command that serves in the foreground; refuses to run as root."""
        settings = {
            "listen_addresses": "",
            "port": str(self.port),
            # A killed server leaves nothing in /dev/shm.
            "dynamic_shared_memory_type": "mmap",
            # JIT needs a compiler library that is not unpacked.
            "jit": "off",
            **self._settings,
            "unix_socket_directories": str(self.folder),
        }
        return self._postgres_command(settings)

    def _postgres_command(self, settings: Mapping[str, str], *words: str) -> list[str]:
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return [str(self.programs / "postgres"), *words, "-D", str(self.folder / "data"), *options]

    def initialize(
        self,
        statements: Sequence[str] = (),
        *,
        within: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Create the data folder and execute statements.

        Args:
            statements: SQL of one line each; may contain passwords.
            within: prefix that starts a command as the server's user; by default that of :meth:`start`.
            env: complete environment of the programs; the current one by default.

        Raises:
            TestbedError: PostgreSQL does not work here, or refuses a statement.
        """
        data, within = self.folder / "data", self._within if within is None else within
        initdb = [str(self.programs / "initdb"), "-D", str(data), "-U", self.owner]
        _run_command([*within, *initdb, *_INITDB_OPTIONS], env)
        (data / "pg_hba.conf").write_text(self.access, encoding="utf-8")
        if statements:
            alone = self._postgres_command(
                {**UNSAFE_FAST_SETTINGS, "exit_on_error": "on"}, "--single"
            )
            _run_command([*within, *alone, "postgres"], env, "\n".join([*statements, ""]))

    def start(self) -> None:
        """Start the server, with new data if there are none; return when it responds.

        Raises:
            TestbedError: it does not; with its log.
        """
        import psycopg

        if not (self.folder / "data" / "PG_VERSION").exists():
            self.initialize()
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self._within, *self.command], stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self.execute(psycopg.sql.SQL("SELECT 1"))
                return
            except psycopg.OperationalError as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    log_text = (self.folder / "log").read_text()
                    raise TestbedError(f"PostgreSQL does not start: {log_text}") from error
                time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server and close all connections."""
        if self.process:
            with suppress(ProcessLookupError):
                self.process.send_signal(STOP_SIGNAL)
            self.process.wait(TIMEOUT_S)
            self.process = None

    def url(self, database: str, user: str = "", password: str | None = None) -> str:
        """Return the SQLAlchemy URL through the socket; by default for the owner."""
        port = {} if self.port == DEFAULT_PORT else {"port": str(self.port)}
        address = URL.create(
            "postgresql",
            username=user or self.owner,
            password=password,
            database=database,
            query={"host": str(self.folder), **port},
        )
        return address.render_as_string(hide_password=False)

    def create_database(self, name: str) -> None:
        """Create an empty database."""
        from psycopg import sql

        self.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def execute(self, statement: sql.SQL | sql.Composed, database: str = "postgres") -> int:
        """Execute a statement outside a transaction; return its numeric result, or 0."""
        import psycopg

        opened = psycopg.connect(
            host=str(self.folder), dbname=database, user=self.owner, autocommit=True
        )
        with opened as connection:
            cursor = connection.execute(statement)
            row = cursor.fetchone() if cursor.description else None
            return int(row[0]) if row else 0


def _run_command(command: Sequence[str], env: Mapping[str, str] | None, text: str = "") -> None:
    result = subprocess.run(
        command, env=env, input=text, cwd="/", capture_output=True, text=True, check=False
    )
    if result.returncode:
        lines = result.stderr.strip().splitlines()
        # The output repeats the statement after the reason, with its password.
        reason_lines = [line for line in lines if "FATAL:" in line] or lines
        raise TestbedError(f"PostgreSQL does not work here: {' '.join(reason_lines)}")
