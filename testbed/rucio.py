"""Rucio of a testbed: a real server, its stock daemons, one RSE for each site.

Files lie on the sites' own XRootD servers and are copied from one to another by them.  FTS, which
would order these copies in production, is replaced by a small service (:mod:`.transfers`).  All that
an administrator does, storages, distances, quotas, is done here; users have ordinary accounts.
"""

from __future__ import annotations

import json
import secrets
import socket
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

from treehammer.testbed import rucio_environment, transfers
from treehammer.testbed.database import DatabasePart
from treehammer.testbed.free_ports import free_ports
from treehammer.testbed.parts import Box, Daemon, Say, View, write_secret
from treehammer.testbed.storage import WRITABLE, StoragePart, rse_of

HERE = "127.0.0.1"
ADMIN = "root"
#: RSE attribute with which all storages of a testbed can be chosen: ``treehammer=True``.
TAG = "treehammer"
#: The first site has a tape besides, which takes no test.
TAPE = "{}_TAPE"
UNLIMITED = -1
#: On which the server ends without waiting for anybody.
SIGQUIT = 3
_LOOK_S = 2.0
_SCRIPTS = ("serve.py", "daemons.py", "testbed_policy/__init__.py", "testbed_policy/permission.py")
_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class User:
    """An ordinary account.

    Attributes:
        scopes: the only ones in which it may define data.
        quota: bytes on each RSE.
        attributes: of the account.
    """

    scopes: tuple[str, ...]
    quota: int = UNLIMITED
    attributes: dict[str, str] = field(default_factory=dict)


#: Account -> what it is.  The first is who tests; the second is somebody else, with little quota.
USERS = {
    "hammer": User(("hctest", "user.hammer"), attributes={"may_declare_bad": "True"}),
    "guest": User(("user.guest",), quota=1_000_000),
}


def client_config(box: Box, account: str) -> Path:
    """What a user of that account sets RUCIO_CONFIG to; the administrator's is there too."""
    return box.folder / "client-rucio" / f"{account}.cfg"


class RucioPart:
    """Server, daemons and copies.

    Args:
        box: the testbed.
        storage: of its sites.
        database: what the server keeps everything in.
    """

    name = "rucio"

    def __init__(self, box: Box, storage: StoragePart, database: DatabasePart) -> None:
        self.box = box
        self.storage = storage
        self.database = database
        self.folder = box.folder / "rucio"
        self.port = self.transfers_port = 0
        self._python = Path()

    @property
    def _env(self) -> dict[str, str]:
        return {
            "PATH": f"{self.storage.program('xrdfs').parent}:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "RUCIO_CONFIG": str(self.folder / "rucio.cfg"),
            # An interpreter that was brought does not find its own library by itself.
            "LD_LIBRARY_PATH": str(self._python.parents[2] / "python" / "lib"),
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONNOUSERSITE": "1",
            # A dead site is given up within seconds.
            "XRD_CONNECTIONWINDOW": "3",
            "XRD_CONNECTIONRETRY": "1",
        }

    # --- before it runs

    def install(self, say: Say) -> None:
        """Have Rucio in the cache.

        Raises:
            TestbedError: they cannot be had.
        """
        self._python = rucio_environment.python(self.box.cache, say)

    def views(self) -> Sequence[View]:
        """None: jobs know nothing of Rucio."""
        return ()

    def configure(self) -> None:
        """Say what there is to be in the database."""
        box = self.box
        self.port, self.transfers_port = free_ports(
            2, {*self.storage.all_ports, self.database.port}
        )
        for folder in (self.folder, self.folder / "testbed_policy"):
            box.own_folder(folder, 0o700)
        for script in _SCRIPTS:
            text = (rucio_environment.SCRIPTS / script).read_text(encoding="utf-8")
            box.own_file(self.folder / script, text)
        text = Path(transfers.__file__).read_text(encoding="utf-8")
        box.own_file(self.folder / "transfers.py", text)
        passwords = {account: secrets.token_urlsafe(24) for account in (ADMIN, *USERS)}
        values = {"folder": self.folder, "database": self.database.rucio_address, "port": self.port}
        for name in ("rucio.cfg", "alembic.ini"):
            text = _rendered(f"{name}.j2", **values, password=passwords[ADMIN])
            box.own_file(self.folder / name, text, 0o600)
        setup = json.dumps(self._setup(passwords), indent=1)
        box.own_file(self.folder / "setup.json", setup, 0o600)
        client_config(box, ADMIN).parent.mkdir(mode=0o700)
        for account, password in passwords.items():
            path = client_config(box, account)
            text = _rendered(
                "rucio-client.cfg.j2", path=path, port=self.port, account=account, password=password
            )
            write_secret(path, text)

    def _setup(self, passwords: dict[str, str]) -> dict[str, Any]:
        """What ``serve.py`` puts into the database."""
        sites = self.box.sites
        storages = [self._storage(site) for site in sites]
        tape = {"site": sites[0]}
        storages.append(
            {"name": TAPE.format(sites[0]), "type": "TAPE", "attributes": tape, "protocols": []}
        )
        rses = [rse_of(site) for site in sites]
        return {
            "storages": storages,
            "distances": [
                [rse_of(one), rse_of(other), self.storage.way(one) + self.storage.way(other) + 1]
                for one in sites
                for other in sites
                if one != other
            ],
            "accounts": [
                {
                    "name": name,
                    "type": "USER",
                    "email": f"{name}@localhost",
                    "password": passwords[name],
                    "scopes": list(user.scopes),
                    "attributes": user.attributes,
                    "quotas": dict.fromkeys(rses, user.quota),
                }
                for name, user in USERS.items()
            ],
        }

    def _storage(self, site: str) -> dict[str, Any]:
        host, port, http_port = self.storage.address(site)
        everything = {"read": 1, "write": 1, "delete": 1}
        copies = {"third_party_copy_read": 1, "third_party_copy_write": 1}
        protocols = [
            {
                "scheme": "root",
                "hostname": host,
                "port": port,
                "prefix": f"/{WRITABLE}/",
                "impl": "rucio.rse.protocols.xrootd.Default",
                "domains": {"lan": everything, "wan": everything | copies},
            }
        ]
        if http_port:
            reading = {"read": 2, "write": 0, "delete": 0}
            protocols.append(
                {
                    "scheme": "http",
                    "hostname": host,
                    "port": http_port,
                    "prefix": f"{WRITABLE}/",
                    "impl": "rucio.rse.protocols.webdav.Default",
                    "domains": {"lan": reading, "wan": reading},
                }
            )
        fts = f"http://{HERE}:{self.transfers_port}"
        attributes = {"site": site, "fts": fts, TAG: "True", "lfn2pfn_algorithm": "hash"}
        return {
            "name": rse_of(site),
            "type": "DISK",
            "attributes": attributes,
            "protocols": protocols,
        }

    # --- while it runs

    def daemons(self) -> Sequence[Daemon]:
        """The copies, the server, which fills the database first, and the daemons."""
        folder, prepared, python = self.folder, str(self.folder / "prepared"), str(self._python)
        xrdcp = str(self.storage.program("xrdcp"))
        copies = [python, str(folder / "transfers.py"), str(self.transfers_port), xrdcp]
        server = [python, str(folder / "serve.py"), str(folder / "setup.json"), prepared]
        return [
            Daemon("rucio-transfers", copies, self._env, folder),
            Daemon(
                "rucio-server",
                [*server, str(self.port)],
                self._env,
                folder,
                stop_signal=SIGQUIT,
            ),
            Daemon(
                "rucio-daemons", [python, str(folder / "daemons.py"), prepared], self._env, folder
            ),
        ]

    def missing(self) -> str:
        """What does not answer yet."""
        with suppress(OSError), socket.create_connection((HERE, self.transfers_port), _LOOK_S):
            with suppress(OSError, ValueError):
                ping = f"http://{HERE}:{self.port}/ping"
                with urllib.request.urlopen(ping, timeout=_LOOK_S) as answer:
                    return "" if "version" in json.load(answer) else "the server"
            return "the server"
        return "the service that copies"

    def finish(self) -> None:
        """Nothing is left to be done."""

    def clean_up(self) -> None:
        """Nothing lies outside the testbed's folder."""


def _rendered(template: str, **values: object) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - configuration, not HTML
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(values)
