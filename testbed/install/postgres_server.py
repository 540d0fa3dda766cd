"""PostgreSQL from Debian packages: data, server process and statements.

A testbed runs it as a daemon (:mod:`~treehammer.testbed.components.database_server`); tests and
benchmarks use :class:`PostgresServer`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy.engine import URL

from treehammer.errors import TestbedError
from treehammer.testbed.core.component import ProgressCallback
from treehammer.testbed.install import debian_packages

if TYPE_CHECKING:
    from psycopg import sql

# psycopg is imported where it is used: it takes 0.15 s to load, which most testbed commands
# do not need.

SUITE, VERSION = "trixie", "17"
#: Libraries that its programs load.
LIBRARIES = (
    "libgssapi-krb5-2",
    "libicu76",
    "libldap2",
    "liblz4-1",
    "libnuma1",
    "libpam0g",
    "libpq5",
    "libselinux1",
    "libssl3t64",
    "libstdc++6",
    "libsystemd0",
    "libuuid1",
    "libxml2",
    "libxslt1.1",
    "libzstd1",
    "zlib1g",
)
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
]
_INITDB_OPTIONS += ["--auth=trust", "--no-sync", "--no-instructions"]


def install_postgres(cache: Path, say: ProgressCallback) -> Path:
    """Unpack PostgreSQL into the cache; return the folder of its programs.

    Raises:
        TestbedError: the packages cannot be fetched.
    """
    packages = (f"postgresql-{VERSION}", f"postgresql-client-{VERSION}")
    root = debian_packages.unpack_packages(
        "postgresql", LIBRARIES, SUITE, cache, say, alone=packages
    )
    return root / "usr/lib/postgresql" / VERSION / "bin"


@dataclass(frozen=True)
class PostgresCluster:
    """Data and commands of one server.

    Attributes:
        programs: folder of PostgreSQL's programs.
        folder: of data and socket; a socket's path has at most 107 bytes.
        settings: of the server.
        port: in the socket's name, and of TCP if ``settings`` enable it.
        access: its ``pg_hba.conf``.
        owner: the superuser.
        initdb: further options of ``initdb``.
    """

    programs: Path
    folder: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    port: int = DEFAULT_PORT
    access: str = TRUST_LOCAL_ACCESS
    owner: str = DEFAULT_OWNER
    initdb: Sequence[str] = ()

    @property
    def data_folder(self) -> Path:
        """The data folder."""
        return self.folder / "data"

    @property
    def server_command(self) -> list[str]:
        """Command that serves in the foreground; refuses to run as root."""
        settings = {
            "listen_addresses": "",
            "port": str(self.port),
            # A killed server leaves nothing in /dev/shm.
            "dynamic_shared_memory_type": "mmap",
            # JIT needs a compiler library that is not unpacked.
            "jit": "off",
            **self.settings,
            "unix_socket_directories": str(self.folder),
        }
        return self._postgres_command(settings)

    def initialize(
        self,
        statements: Sequence[str] = (),
        *,
        within: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Create the data folder and execute statements.

        Args:
            statements: SQL of one line each; may contain passwords.
            within: prefix that starts a command as the server's user.
            env: complete environment of the programs; the current one by default.

        Raises:
            TestbedError: PostgreSQL does not work here, or refuses a statement.
        """
        initdb = [str(self.programs / "initdb"), "-D", str(self.data_folder), "-U", self.owner]
        _run_command([*within, *initdb, *_INITDB_OPTIONS, *self.initdb], env)
        (self.data_folder / "pg_hba.conf").write_text(self.access, encoding="utf-8")
        if statements:
            alone = self._postgres_command(
                {**UNSAFE_FAST_SETTINGS, "exit_on_error": "on"}, "--single"
            )
            _run_command([*within, *alone, "postgres"], env, "\n".join([*statements, ""]))

    def _postgres_command(self, settings: Mapping[str, str], *words: str) -> list[str]:
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return [str(self.programs / "postgres"), *words, "-D", str(self.data_folder), *options]

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


def _run_command(command: Sequence[str], env: Mapping[str, str] | None, text: str = "") -> None:
    done = subprocess.run(
        command, env=env, input=text, cwd="/", capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        # The output repeats the statement after the reason, with its password.
        reason_lines = [line for line in lines if "FATAL:" in line] or lines
        raise TestbedError(f"PostgreSQL does not work here: {' '.join(reason_lines)}")


class PostgresServer:
    """A private server, reached through its socket.

    It ends with the thread that started it and runs as the current user, also as root.

    Args:
        programs: folder of PostgreSQL's programs.
        folder: of data, log and socket, see :class:`PostgresCluster`; existing data are used.
        settings: of the server.
        access: its ``pg_hba.conf``.

    Raises:
        TestbedError: it does not work here.
    """

    def __init__(
        self,
        programs: Path,
        folder: Path,
        settings: Mapping[str, str],
        access: str = TRUST_LOCAL_ACCESS,
    ) -> None:
        self.cluster = PostgresCluster(programs, folder, settings, access=access)
        self._process: subprocess.Popen[bytes] | None = None
        # PostgreSQL refuses to run as root; the server must end with its starter.
        user = [] if os.getuid() else ["unshare", "--user", "--map-user=65534", "--map-group=65534"]
        self._within = [*user, "setpriv", "--pdeathsig", STOP_SIGNAL.name.removeprefix("SIG")]
        if not (self.cluster.data_folder / "PG_VERSION").exists():
            self.cluster.initialize(within=self._within)

    @property
    def folder(self) -> Path:
        """Folder of the socket."""
        return self.cluster.folder

    def start(self) -> None:
        """Start the server; return when it responds.

        Raises:
            TestbedError: it does not; with its log.
        """
        import psycopg

        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._within, *self.cluster.server_command],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self.execute(psycopg.sql.SQL("SELECT 1"))
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log_text = (self.folder / "log").read_text()
                    raise TestbedError(f"PostgreSQL does not start: {log_text}") from error
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """Stop the server and close all connections."""
        self._end_process(STOP_SIGNAL)

    def crash(self) -> None:
        """Kill the server; unwritten data are lost."""
        self._end_process(signal.SIGQUIT)

    def restart_if_crashed(self) -> None:
        """Restart the server if it ended, as a supervisor does."""
        if self._process and self._process.poll() is not None:
            self.start()

    def _end_process(self, stop_signal: signal.Signals) -> None:
        if self._process:
            with suppress(ProcessLookupError):
                self._process.send_signal(stop_signal)
            self._process.wait(TIMEOUT_S)
            self._process = None

    def url(self, database: str, user: str = DEFAULT_OWNER, password: str | None = None) -> str:
        """Return the SQLAlchemy URL."""
        return self.cluster.url(database, user, password)

    def create_database(self, name: str, encoding: str = "UTF8") -> None:
        """Create an empty database."""
        from psycopg import sql

        statement = sql.SQL("CREATE DATABASE {} ENCODING {} TEMPLATE template0").format(
            sql.Identifier(name), sql.Literal(encoding)
        )
        if encoding != "UTF8":
            statement += sql.SQL(" LOCALE_PROVIDER libc LOCALE 'C'")
        self.execute(statement)

    def drop_database(self, name: str) -> None:
        """Drop a database, closing its connections."""
        from psycopg import sql

        self.execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )

    def execute(self, statement: sql.SQL | sql.Composed, database: str = "postgres") -> int:
        """Execute a statement outside a transaction; return its numeric result, or 0."""
        import psycopg

        opened = psycopg.connect(
            host=str(self.folder), dbname=database, user=self.cluster.owner, autocommit=True
        )
        with opened as connection:
            cursor = connection.execute(statement)
            row = cursor.fetchone() if cursor.description else None
            return int(row[0]) if row else 0
