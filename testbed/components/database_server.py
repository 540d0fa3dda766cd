"""PostgreSQL from Debian packages: a server for tests, and the component of a testbed.

Tests and benchmarks use :class:`PostgresServer`.  A testbed runs one server as a daemon, with a
database per user: results are reached over TCP with TLS and a password, as on a remote server;
Rucio's database through the socket, by the testbed's user only.
"""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from sqlalchemy.engine import URL

from treehammer.errors import TestbedError
from treehammer.testbed import mount_namespace
from treehammer.testbed.component import Component, DaemonSpec
from treehammer.testbed.credentials import CertificateAuthority
from treehammer.testbed.debian_packages import PackageTree
from treehammer.testbed.network import find_free_ports
from treehammer.testbed.workspace import ENVIRONMENT_MARK, ProgressCallback, Workspace, write_secret

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
LISTEN_ADDRESS = "127.0.0.1"
#: Databases, and the roles that own them.
RESULTS_DATABASE, RESULTS_OWNER = "results", "hammer"
RUCIO_DATABASE = "rucio"
#: The superuser, through the socket only.
ADMIN_USER = "postgres"
DAEMON_NAME = "postgresql"
#: Validity of the certificates in days; a testbed does not survive a reboot.
_CERTIFICATE_DAYS = 3650
_CONNECT_TIMEOUT_S = 2
_ENV = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8", "TZ": "UTC"}


# --- PostgreSQL


def install_postgres(cache: Path, say: ProgressCallback) -> Path:
    """Unpack PostgreSQL into the cache; return the folder of its programs.

    Raises:
        TestbedError: the packages cannot be fetched.
    """
    return _programs_below(PACKAGES.unpack(cache, say))


def _programs_below(root: Path) -> Path:
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


# --- component of a testbed


def database_url_file(box: Workspace) -> Path:
    """Return the path of the file with the URL of the results database."""
    return box.folder / "client-database" / "url"


class DatabaseServer(Component):
    """Component for the PostgreSQL server."""

    name = "postgresql"
    packages = (PACKAGES,)

    def __init__(self, box: Workspace) -> None:
        super().__init__(box)
        self.folder = box.folder / "postgresql"
        self.port = DEFAULT_PORT

    # --- before it starts

    def configure(self) -> None:
        """Create the databases, their certificates and passwords.

        Raises:
            TestbedError: PostgreSQL does not work on this machine.
        """
        box = self.box
        box.make_folder(self.folder, 0o700)
        statements = []
        if box.rucio:
            statements += [
                f"CREATE ROLE {RUCIO_DATABASE} LOGIN",
                _create_database_statement(RUCIO_DATABASE, RUCIO_DATABASE),
                # Rucio's data need not survive a power failure; results must.
                f"ALTER ROLE {RUCIO_DATABASE} SET synchronous_commit = off",
            ]
        if box.database:
            (self.port,) = find_free_ports(1)
            password = secrets.token_urlsafe(24)
            statements += [
                f"CREATE ROLE {RESULTS_OWNER} LOGIN PASSWORD '{password}'",
                _create_database_statement(RESULTS_DATABASE, RESULTS_OWNER),
            ]
            self._issue_certificates()
            self._write_client_files(password)
        within = [*mount_namespace.daemon_wrapper_command(box), *self._shared_memory_wrapper()]
        environment = {**_ENV, ENVIRONMENT_MARK: str(box.folder)}
        self.server.initialize(statements, within=within, env=environment)

    def _issue_certificates(self) -> None:
        authority = CertificateAuthority(
            self.folder, f"Treehammer's {self.box.name}", _CERTIFICATE_DAYS
        )
        for path in authority.issue_server_certificate(LISTEN_ADDRESS):
            self.box.change_owner(path)

    def _write_client_files(self, password: str) -> None:
        """Write the users' private files."""
        folder = database_url_file(self.box).parent
        folder.mkdir(mode=0o700)
        ca, passwords = folder / "ca.pem", folder / "passwords"
        ca.write_bytes((self.folder / "ca.pem").read_bytes())
        write_secret(
            passwords,
            f"{LISTEN_ADDRESS}:{self.port}:{RESULTS_DATABASE}:{RESULTS_OWNER}:{password}\n",
        )
        options = {"sslmode": "verify-full", "sslrootcert": ca, "passfile": passwords}
        address = f"postgresql://{RESULTS_OWNER}@{LISTEN_ADDRESS}:{self.port}/{RESULTS_DATABASE}"
        write_secret(database_url_file(self.box), f"{address}?{urlencode(options, safe='/')}\n")

    @property
    def rucio_database_url(self) -> str:
        """URL of Rucio's database for SQLAlchemy."""
        url = self.server.url(RUCIO_DATABASE, RUCIO_DATABASE)
        return url.replace("postgresql:", "postgresql+psycopg:", 1)

    @property
    def server(self) -> PostgresServer:
        """The server of this testbed."""
        access, settings = TRUST_LOCAL_ACCESS, {"shared_buffers": "32MB"}
        if self.box.database:
            access += (
                f"hostssl {RESULTS_DATABASE} {RESULTS_OWNER} {LISTEN_ADDRESS}/32 scram-sha-256\n"
            )
            settings |= {
                "listen_addresses": LISTEN_ADDRESS,
                "ssl": "on",
                "ssl_cert_file": str(self.folder / f"{LISTEN_ADDRESS}.pem"),
                "ssl_key_file": str(self.folder / f"{LISTEN_ADDRESS}.key"),
            }
        else:
            settings |= UNSAFE_FAST_SETTINGS
        programs = _programs_below(PACKAGES.root(self.box.cache))
        return PostgresServer(
            programs, self.folder, settings, access, owner=ADMIN_USER, port=self.port
        )

    def _shared_memory_wrapper(self) -> list[str]:
        """Build the command prefix that gives a process shared memory of its own until its end."""
        uid, gid = self.box.user or (os.getuid(), os.getgid())
        map_user = shlex.join(["unshare", "--user", f"--map-user={uid}", f"--map-group={gid}"])
        script = f'mount -t tmpfs none /dev/shm && exec {map_user} -- "$@"'
        namespaces = ["unshare", "--user", "--map-root-user", "--mount", "--ipc"]
        return [*namespaces, "sh", "-c", script, "sh"]

    # --- while it runs

    def daemons(self) -> Sequence[DaemonSpec]:
        """Return the server."""
        command = [*self._shared_memory_wrapper(), *self.server.command]
        return [DaemonSpec(DAEMON_NAME, command, _ENV, self.folder, stop_signal=STOP_SIGNAL)]

    def describe_missing(self) -> str:
        """List roles that cannot connect yet, each by its own way in."""
        import psycopg  # late: importing takes 0.15 s

        urls = []
        if self.box.rucio:
            urls.append(self.server.url(RUCIO_DATABASE, RUCIO_DATABASE))
        if self.box.database:
            urls.append(database_url_file(self.box).read_text(encoding="utf-8").strip())
        for url in urls:
            try:
                psycopg.connect(url, connect_timeout=_CONNECT_TIMEOUT_S).close()
            except psycopg.OperationalError as error:
                return " ".join(str(error).split())
        return ""


def _create_database_statement(database: str, owner: str) -> str:
    return f"CREATE DATABASE {database} OWNER {owner} ENCODING 'UTF8' TEMPLATE template0"
