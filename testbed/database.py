"""PostgreSQL of a testbed: one server, and a database for each who needs one.

Results are reached over TCP, with TLS and a password, as those of a server far away.  Rucio's are
reached by the socket, by nobody but the box's user.
"""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from urllib.parse import urlencode

from treehammer.testbed import curtain, postgres
from treehammer.testbed.certificates import Authority
from treehammer.testbed.free_ports import free_ports
from treehammer.testbed.parts import MARK, Box, Daemon, Say, View, write_secret

HOST = "127.0.0.1"
#: Databases, and the roles that own them.
RESULTS, HAMMER = "results", "hammer"
RUCIO = "rucio"
#: The role that may do everything; by the socket alone.
ADMIN = "postgres"
DAEMON = "postgresql"
#: Of the certificates; a testbed does not outlive a reboot.
_DAYS = 3650
_LOOK_S = 2
_ENV = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8", "TZ": "UTC"}


def url_file(box: Box) -> Path:
    """What holds the URL of the results database, in a testbed that has one."""
    return box.folder / "client-database" / "url"


class DatabasePart:
    """The server.

    Args:
        box: the testbed.
        taken: gives ports that others have chosen but do not listen on yet.
    """

    name = "postgresql"

    def __init__(self, box: Box, taken: Callable[[], Collection[int]] = tuple) -> None:
        self.box = box
        self.folder = box.folder / "postgresql"
        self._taken = taken
        self._programs = Path()
        self.port = postgres.PORT

    # --- before it runs

    def install(self, say: Say) -> None:
        """Have PostgreSQL in the cache.

        Raises:
            TestbedError: it cannot be had.
        """
        self._programs = postgres.programs(self.box.cache, say)

    def views(self) -> Sequence[View]:
        """None: jobs know nothing of it."""
        return ()

    def configure(self) -> None:
        """Lay out the databases, with certificates and a password of their own.

        Raises:
            TestbedError: PostgreSQL does not work here.
        """
        box = self.box
        box.own_folder(self.folder, 0o700)
        statements = []
        if box.rucio:
            statements += [f"CREATE ROLE {RUCIO} LOGIN", _make(RUCIO, RUCIO)]
            # It need not outlive the machine, unlike results.
            statements.append(f"ALTER ROLE {RUCIO} SET synchronous_commit = off")
        if box.database:
            (self.port,) = free_ports(1, self._taken())
            password = secrets.token_urlsafe(24)
            statements.append(f"CREATE ROLE {HAMMER} LOGIN PASSWORD '{password}'")
            statements.append(_make(RESULTS, HAMMER))
            self._certify()
            self._tell(password)
        within = [*curtain.outer(box), *self._apart()]
        self.cluster.make(statements, within=within, env={**_ENV, MARK: str(box.folder)})

    def _certify(self) -> None:
        authority = Authority(self.folder, f"Treehammer's {self.box.name}", _DAYS)
        for path in authority.server(HOST):
            self.box.own(path)

    def _tell(self, password: str) -> None:
        """Write what users need, for whoever runs Treehammer alone."""
        folder = url_file(self.box).parent
        folder.mkdir(mode=0o700)
        ca, passwords = folder / "ca.pem", folder / "passwords"
        ca.write_bytes((self.folder / "ca.pem").read_bytes())
        write_secret(passwords, f"{HOST}:{self.port}:{RESULTS}:{HAMMER}:{password}\n")
        how = {"sslmode": "verify-full", "sslrootcert": ca, "passfile": passwords}
        address = f"postgresql://{HAMMER}@{HOST}:{self.port}/{RESULTS}"
        write_secret(url_file(self.box), f"{address}?{urlencode(how, safe='/')}\n")

    @property
    def rucio_address(self) -> str:
        """Of Rucio's database, as its SQLAlchemy wants it."""
        return self.cluster.url(RUCIO, RUCIO).replace("postgresql:", "postgresql+psycopg:", 1)

    @property
    def cluster(self) -> postgres.Cluster:
        """What the server serves."""
        access, settings = postgres.OPEN, {"shared_buffers": "32MB"}
        if self.box.database:
            access += f"hostssl {RESULTS} {HAMMER} {HOST}/32 scram-sha-256\n"
            settings |= {
                "listen_addresses": HOST,
                "ssl": "on",
                "ssl_cert_file": str(self.folder / f"{HOST}.pem"),
                "ssl_key_file": str(self.folder / f"{HOST}.key"),
            }
        else:
            settings |= postgres.HASTY
        return postgres.Cluster(
            self._programs,
            self.folder,
            settings,
            self.port,
            access,
            owner=ADMIN,
            initdb=["--data-checksums"],
        )

    def _apart(self) -> list[str]:
        """In front of a command: with shared memory of its own, of which nothing is ever left."""
        uid, gid = self.box.user or (os.getuid(), os.getgid())
        again = shlex.join(["unshare", "--user", f"--map-user={uid}", f"--map-group={gid}"])
        then = f'mount -t tmpfs none /dev/shm && exec {again} -- "$@"'
        return ["unshare", "--user", "--map-root-user", "--mount", "--ipc", "sh", "-c", then, "sh"]

    # --- while it runs

    def daemons(self) -> Sequence[Daemon]:
        """The server."""
        command = [*self._apart(), *self.cluster.command]
        return [Daemon(DAEMON, command, _ENV, self.folder, stop_signal=postgres.STOP)]

    def missing(self) -> str:
        """Who is not let in yet, in the way in which they will come."""
        import psycopg  # late, since it takes a sixth of a second to load

        urls = []
        if self.box.rucio:
            urls.append(self.cluster.url(RUCIO, RUCIO))
        if self.box.database:
            urls.append(url_file(self.box).read_text(encoding="utf-8").strip())
        for url in urls:
            try:
                psycopg.connect(url, connect_timeout=_LOOK_S).close()
            except psycopg.OperationalError as error:
                return " ".join(str(error).split())
        return ""

    def finish(self) -> None:
        """Nothing is left to be done."""

    def clean_up(self) -> None:
        """Nothing lies outside the testbed's folder."""


def _make(database: str, owner: str) -> str:
    return f"CREATE DATABASE {database} OWNER {owner} ENCODING 'UTF8' TEMPLATE template0"
