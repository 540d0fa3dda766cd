"""PostgreSQL of a testbed: one server with a database per user.

Results are reached over TCP with TLS and a password, as on a remote server. Rucio's database is
reached through the socket by the testbed's user only.
"""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from urllib.parse import urlencode

from treehammer.testbed.core import mount_namespace
from treehammer.testbed.core.component import (
    ENVIRONMENT_MARK,
    Component,
    DaemonSpec,
    ProgressCallback,
    Workspace,
    write_secret,
)
from treehammer.testbed.install import postgres_server
from treehammer.testbed.install.certificate_authority import CertificateAuthority
from treehammer.testbed.network.free_ports import find_free_ports

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


def database_url_file(box: Workspace) -> Path:
    """Return the path of the file with the URL of the results database."""
    return box.folder / "client-database" / "url"


class DatabaseServer(Component):
    """Component for the PostgreSQL server.

    Args:
        box: the testbed.
        taken: returns ports that other components have reserved.
    """

    name = "postgresql"

    def __init__(self, box: Workspace, taken: Callable[[], Collection[int]] = tuple) -> None:
        self.box = box
        self.folder = box.folder / "postgresql"
        self._taken = taken
        self._programs = Path()
        self.port = postgres_server.DEFAULT_PORT

    # --- before it starts

    def install(self, say: ProgressCallback) -> None:
        """Unpack PostgreSQL into the cache.

        Raises:
            TestbedError: it cannot be fetched.
        """
        self._programs = postgres_server.install_postgres(self.box.cache, say)

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
            ]
            # Rucio's data need not survive a power failure; results must.
            statements.append(f"ALTER ROLE {RUCIO_DATABASE} SET synchronous_commit = off")
        if box.database:
            (self.port,) = find_free_ports(1, self._taken())
            password = secrets.token_urlsafe(24)
            statements.append(f"CREATE ROLE {RESULTS_OWNER} LOGIN PASSWORD '{password}'")
            statements.append(_create_database_statement(RESULTS_DATABASE, RESULTS_OWNER))
            self._issue_certificates()
            self._write_client_files(password)
        within = [*mount_namespace.daemon_wrapper_command(box), *self._shared_memory_wrapper()]
        self.cluster.initialize(
            statements, within=within, env={**_ENV, ENVIRONMENT_MARK: str(box.folder)}
        )

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
        return self.cluster.url(RUCIO_DATABASE, RUCIO_DATABASE).replace(
            "postgresql:", "postgresql+psycopg:", 1
        )

    @property
    def cluster(self) -> postgres_server.PostgresCluster:
        """The cluster that the server runs."""
        access, settings = postgres_server.TRUST_LOCAL_ACCESS, {"shared_buffers": "32MB"}
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
            settings |= postgres_server.UNSAFE_FAST_SETTINGS
        return postgres_server.PostgresCluster(
            self._programs,
            self.folder,
            settings,
            self.port,
            access,
            owner=ADMIN_USER,
            initdb=["--data-checksums"],
        )

    def _shared_memory_wrapper(self) -> list[str]:
        """Build the command prefix that gives a process shared memory of its own until its end."""
        uid, gid = self.box.user or (os.getuid(), os.getgid())
        map_user = shlex.join(["unshare", "--user", f"--map-user={uid}", f"--map-group={gid}"])
        script = f'mount -t tmpfs none /dev/shm && exec {map_user} -- "$@"'
        return [
            "unshare",
            "--user",
            "--map-root-user",
            "--mount",
            "--ipc",
            "sh",
            "-c",
            script,
            "sh",
        ]

    # --- while it runs

    def daemons(self) -> Sequence[DaemonSpec]:
        """Return the server."""
        command = [*self._shared_memory_wrapper(), *self.cluster.server_command]
        return [
            DaemonSpec(
                DAEMON_NAME, command, _ENV, self.folder, stop_signal=postgres_server.STOP_SIGNAL
            )
        ]

    def describe_missing(self) -> str:
        """List roles that cannot connect yet, each by its own way in."""
        import psycopg  # late: importing takes 0.15 s

        urls = []
        if self.box.rucio:
            urls.append(self.cluster.url(RUCIO_DATABASE, RUCIO_DATABASE))
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
