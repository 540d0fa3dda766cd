"""Component for the PostgreSQL server of a testbed, which has a database per user.

Results are reached over TCP with TLS and a password, as on a remote server; Rucio's database through
the socket, by the testbed's user only.
"""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

from treehammer.testbed import mount_namespace
from treehammer.testbed.component import Component, DaemonSpec
from treehammer.testbed.components import postgres_server
from treehammer.testbed.credentials import CertificateAuthority
from treehammer.testbed.network import find_free_ports
from treehammer.testbed.workspace import ENVIRONMENT_MARK, Workspace, write_secret

LISTEN_ADDRESS = "127.0.0.1"
#: Databases, and the roles that own them.
RESULTS_DATABASE, RESULTS_OWNER = "results", "hammer"
RUCIO_DATABASE = "rucio"
#: The superuser, through the socket only.
ADMIN_USER = "postgres"
DAEMON_NAME = "postgresql"
#: Validity of the certificates in days; a testbed does not survive a reboot.
_CERTIFICATE_DAYS = 3650
_ENV = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8", "TZ": "UTC"}


def database_url_file(box: Workspace) -> Path:
    """Return the path of the file with the URL of the results database."""
    return box.folder / "client-database" / "url"


class DatabaseServer(Component):
    """Component for the PostgreSQL server."""

    name = "postgresql"
    packages = (postgres_server.PACKAGES,)

    def __init__(self, box: Workspace) -> None:
        super().__init__(box)
        self.folder = box.folder / "postgresql"
        self.port = postgres_server.DEFAULT_PORT

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
            authority = CertificateAuthority(
                self.folder, f"Treehammer's {box.name}", _CERTIFICATE_DAYS
            )
            for path in authority.issue_server_certificate(LISTEN_ADDRESS):
                box.change_owner(path)
            self._write_client_files(password)
        within = [*mount_namespace.daemon_wrapper_command(box), *self._shared_memory_wrapper()]
        environment = {**_ENV, ENVIRONMENT_MARK: str(box.folder)}
        self.server.initialize(statements, within=within, env=environment)

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
    def server(self) -> postgres_server.PostgresServer:
        """The server of this testbed."""
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
        programs = postgres_server.find_programs(postgres_server.PACKAGES.root(self.box.cache))
        return postgres_server.PostgresServer(
            programs, self.folder, settings, access, owner=ADMIN_USER, port=self.port
        )

    def _shared_memory_wrapper(self) -> list[str]:
        """Build the command prefix that gives a process shared memory of its own until its end."""
        uid, gid = self.box.user or (os.getuid(), os.getgid())
        map_user = shlex.join(["unshare", "--user", f"--map-user={uid}", f"--map-group={gid}"])
        script = f'mount -t tmpfs none /dev/shm && exec {map_user} -- "$@"'
        namespaces = ["unshare", "--user", "--map-root-user", "--mount", "--ipc"]
        return [*namespaces, "sh", "-c", script, "sh"]

    def daemons(self) -> Sequence[DaemonSpec]:
        """Return the server."""
        command = [*self._shared_memory_wrapper(), *self.server.command]
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
            urls.append(self.server.url(RUCIO_DATABASE, RUCIO_DATABASE))
        if self.box.database:
            urls.append(database_url_file(self.box).read_text(encoding="utf-8").strip())
        for url in urls:
            try:
                psycopg.connect(url, connect_timeout=postgres_server.CONNECT_TIMEOUT_S).close()
            except psycopg.OperationalError as error:
                return " ".join(str(error).split())
        return ""


def _create_database_statement(database: str, owner: str) -> str:
    return f"CREATE DATABASE {database} OWNER {owner} ENCODING 'UTF8' TEMPLATE template0"
