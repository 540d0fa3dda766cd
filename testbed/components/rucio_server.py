"""Rucio of a testbed: a real server, its stock daemons, one RSE per site.

Files are on the sites' own XRootD servers, which copy them between each other. FTS, which orders
the copies in production, is replaced by :mod:`..programs.fts_service`. The administrator's work
(storages, distances, quotas) is done here; users have ordinary accounts.

The server answers over https. Users authenticate by password, by x509 certificate or proxy, or by
a token of the testbed's issuer. Its Python environment comes from PyPI: the packages of Rucio's server
and client contain the same modules, so the server is never installed beside Treehammer.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import secrets
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from treehammer.collectors.shared_files import hold_lock
from treehammer.collectors.software.setup_commands import drop_foreign_python
from treehammer.testbed.component import Component, DaemonSpec, VisibleFolder, render_template
from treehammer.testbed.components.database_server import DatabaseServer
from treehammer.testbed.components.secure_storage import certificate_folder
from treehammer.testbed.components.xrootd_storage import (
    RUCIO_FOLDER,
    XrootdStorage,
    is_listening,
    rse_name,
)
from treehammer.testbed.credentials import CertificateAuthority, TokenIssuer
from treehammer.testbed.network import find_free_ports
from treehammer.testbed.programs import fts_service
from treehammer.testbed.workspace import ProgressCallback, Workspace, run_program, write_secret

SCRIPTS = Path(__file__).parents[1] / "rucio_scripts"
REQUIREMENTS = SCRIPTS / "requirements.txt"
LISTEN_ADDRESS = "127.0.0.1"
ADMIN_ACCOUNT = "root"
#: RSE attribute that selects all storages of a testbed: ``treehammer=True``.
RSE_ATTRIBUTE = "treehammer"
#: The first site also has a tape RSE, which no test may select.
TAPE_RSE = "{}_TAPE"
UNLIMITED = -1
#: Audience and scope of the tokens that the server accepts.
TOKEN_AUDIENCE, TOKEN_SCOPE = "rucio", "openid profile"
#: Ways to authenticate, by the suffix of the account's configuration file.
PASSWORD, CERTIFICATE, PROXY, TOKEN = "", "-x509", "-proxy", "-oidc"
_YEAR_DAYS = 366
_PROXY_LIFETIME_S = 24 * 3600.0
_SCRIPT_NAMES = (
    "run_server.py",
    "run_daemons.py",
    "testbed_policy/__init__.py",
    "testbed_policy/permission.py",
)


#: User accounts: scopes in which they may define data, bytes on each RSE, attributes. The first one
#: runs tests; the second is another user with little quota.
ACCOUNTS: dict[str, dict[str, Any]] = {
    "hammer": {
        "scopes": ["hctest", "user.hammer"],
        "quota": UNLIMITED,
        "attributes": {"may_declare_bad": "True"},
    },
    "guest": {"scopes": ["user.guest"], "quota": 1_000_000, "attributes": {}},
}


def rucio_client_config(box: Workspace, account: str, method: str = PASSWORD) -> Path:
    """Return the RUCIO_CONFIG of an account, the administrator's included.

    Users have one for each way to authenticate, such as :data:`CERTIFICATE`.
    """
    return _client_folder(box) / f"{account}{method}.cfg"


def rucio_token_file(box: Workspace, account: str) -> Path:
    """Return the file of an account's token, valid for a day after ``up``."""
    return _client_folder(box) / f"{account}.jwt"


def load_rucio_issuer(box: Workspace) -> TokenIssuer:
    """Load the token issuer of a running Rucio.

    Raises:
        TestbedError: the testbed has no Rucio.
    """
    return TokenIssuer.load(box, _issuer_folder(box), "--with-rucio")


def _client_folder(box: Workspace) -> Path:
    return box.folder / "client-rucio"


def _issuer_folder(box: Workspace) -> Path:
    return box.folder / "rucio-issuer"


def write_rucio_token(
    issuer: TokenIssuer, path: Path, account: str, lifetime_s: float, scope: str = TOKEN_SCOPE
) -> Path:
    """Write a token with which Rucio admits an account; a negative lifetime makes an expired one."""
    return issuer.write_token(path, scope, lifetime_s, subject=account, audience=TOKEN_AUDIENCE)


class RucioServer(Component):
    """Component for Rucio's server, daemons and transfers.

    Args:
        box: the testbed.
        storage: of its sites.
        database: PostgreSQL for the server.
    """

    name = "rucio"

    def __init__(self, box: Workspace, storage: XrootdStorage, database: DatabaseServer) -> None:
        super().__init__(box)
        self.storage = storage
        self.database = database
        self.folder = box.folder / "rucio"
        self._python = Path()

    @property
    def _daemon_env(self) -> dict[str, str]:
        return {
            "PATH": f"{self.storage.programs}:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "RUCIO_CONFIG": str(self.folder / "rucio.cfg"),
            # Rucio reads the issuer's keys with Python's requests.
            "REQUESTS_CA_BUNDLE": str(self.folder / "ca.pem"),
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONNOUSERSITE": "1",
            # Give up a dead site within seconds.
            "XRD_CONNECTIONWINDOW": "3",
            "XRD_CONNECTIONRETRY": "1",
        }

    def install(self, say: ProgressCallback) -> None:
        """Install Rucio and its Python environment into the cache.

        Raises:
            TestbedError: a package cannot be fetched.
        """
        self._python = install_rucio(self.box.cache, say)

    def visible_folders(self) -> Sequence[VisibleFolder]:
        """Return the Python that Rucio's environment links to."""
        base = Path(sys.base_prefix).resolve()
        return [VisibleFolder(base, base)]

    def configure(self) -> None:
        """Write the configuration and the initial content of the database."""
        box = self.box
        self.port, self.transfers_port = find_free_ports(2)
        for folder in (self.folder, self.folder / "testbed_policy"):
            box.make_folder(folder, 0o700)
        scripts = {name: SCRIPTS / name for name in _SCRIPT_NAMES}
        scripts["fts_service.py"] = Path(fts_service.__file__)
        for name, path in scripts.items():
            box.write_file(self.folder / name, path.read_text(encoding="utf-8"))
        self._configure_authority()
        self._configure_issuer()
        passwords = {account: secrets.token_urlsafe(24) for account in (ADMIN_ACCOUNT, *ACCOUNTS)}
        values = {
            "folder": self.folder,
            "database": self.database.rucio_database_url,
            "port": self.port,
            "audience": TOKEN_AUDIENCE,
            "scope": TOKEN_SCOPE,
        }
        for name in ("rucio.cfg", "alembic.ini"):
            text = render_template(f"{name}.j2", **values, password=passwords[ADMIN_ACCOUNT])
            box.write_file(self.folder / name, text, 0o600)
        setup = json.dumps(self._database_setup(passwords), indent=1)
        box.write_file(self.folder / "setup.json", setup, 0o600)
        for account, password in passwords.items():
            self._write_client(account, PASSWORD, "userpass", username=account, password=password)
        for account in ACCOUNTS:
            self._write_credentials(account)

    def _configure_authority(self) -> None:
        """Make the authority of server, issuer and users."""
        self.authority = CertificateAuthority(
            self.folder / "authority", "Treehammer testbed's Rucio", _YEAR_DAYS
        )
        certificate, key = self.authority.issue_server_certificate(LISTEN_ADDRESS)
        files = {"ca.pem": self.authority.ca, "server.pem": certificate, "server.key": key}
        for name, path in files.items():
            self.box.write_file(self.folder / name, path.read_text(encoding="ascii"), 0o600)
        folder = _client_folder(self.box)
        folder.mkdir(mode=0o700)
        self._authority_file = folder / "ca.pem"
        self._authority_file.write_bytes(self.authority.ca.read_bytes())
        if self.box.secure_sites:
            # Rucio's client prefers the folder that users of secure doors name.
            self.authority.publish(self.box.make_folder(certificate_folder(self.box)))

    def _configure_issuer(self) -> None:
        """Make the issuer, and register Rucio there as a client."""
        self.issuer = TokenIssuer.create(self.box, _issuer_folder(self.box), LISTEN_ADDRESS)
        client = {
            "client_id": "rucio",
            "client_secret": secrets.token_urlsafe(24),
            "issuer": self.issuer.url,
            "redirect_uris": [f"https://{LISTEN_ADDRESS}:{self.port}/auth/oidc_code"],
        }
        registered = {"testbed": {**client, "SCIM": client}}
        self.box.write_file(self.folder / "idpsecrets.json", json.dumps(registered), 0o600)

    def _write_credentials(self, account: str) -> None:
        """Write an account's certificate, proxy and token, and the configurations for each."""
        folder = _client_folder(self.box)
        certificate, key = folder / f"{account}-cert.pem", folder / f"{account}-key.pem"
        user = self.authority.issue_user_certificate(account)
        user.write(certificate, key)
        files = {"client_cert": certificate, "client_key": key}
        self._write_client(account, CERTIFICATE, "x509", **files)
        proxy = user.write_proxy(folder / f"{account}-proxy.pem", _PROXY_LIFETIME_S)
        self._write_client(account, PROXY, "x509_proxy", client_x509_proxy=proxy)
        token = rucio_token_file(self.box, account)
        write_rucio_token(self.issuer, token, account, _PROXY_LIFETIME_S)
        self._write_client(account, TOKEN, "oidc")

    def _write_client(self, account: str, method: str, auth_type: str, **options: object) -> None:
        path = rucio_client_config(self.box, account, method)
        text = render_template(
            "rucio-client.cfg.j2",
            path=path,
            address=f"{LISTEN_ADDRESS}:{self.port}",
            authority=self._authority_file,
            account=account,
            login={"type": auth_type, "options": options},
        )
        write_secret(path, text)

    def _database_setup(self, passwords: dict[str, str]) -> dict[str, Any]:
        """Build the document from which ``run_server.py`` fills the database."""
        sites = self.box.sites
        tape = {"name": TAPE_RSE.format(sites[0]), "type": "TAPE", "attributes": {"site": sites[0]}}
        rses = [rse_name(site) for site in sites]
        round_trips_ms = {
            rse_name(site): int(profile.distance.rtt_ms) if profile.distance else 0
            for site, profile in self.storage.profiles.items()
        }
        return {
            "storages": [*map(self._storage_setup, sites), tape],
            "distances": [
                [source, target, round_trips_ms[source] + round_trips_ms[target] + 1]
                for source, target in itertools.permutations(rses, 2)
            ],
            "issuer": self.issuer.url,
            "accounts": {
                name: {**account, "password": passwords[name], "storages": rses}
                for name, account in ACCOUNTS.items()
            },
        }

    def _storage_setup(self, site: str) -> dict[str, Any]:
        host, port, http_port = self.storage.storage_address(site)
        return {
            "name": rse_name(site),
            "type": "DISK",
            "host": host,
            "prefix": RUCIO_FOLDER,
            "ports": {"root": port, **({"http": http_port} if http_port else {})},
            "attributes": {
                "site": site,
                "fts": f"http://{LISTEN_ADDRESS}:{self.transfers_port}",
                RSE_ATTRIBUTE: "True",
                "lfn2pfn_algorithm": "hash",
            },
        }

    def daemons(self) -> Sequence[DaemonSpec]:
        """Return issuer, transfers, the server (which fills the database first) and the daemons."""
        prepared, xrdcp = str(self.folder / "prepared"), str(self.storage.programs / "xrdcp")
        certificate, key = (self.folder / name for name in ("server.pem", "server.key"))
        return [
            self.issuer.daemon(self.box, "rucio-issuer", certificate, key),
            self._daemon_spec("rucio-transfers", "fts_service.py", str(self.transfers_port), xrdcp),
            self._daemon_spec(
                "rucio-server", "run_server.py", "setup.json", prepared, str(self.port)
            ),
            self._daemon_spec("rucio-daemons", "run_daemons.py", prepared),
        ]

    def _daemon_spec(self, name: str, *words: str) -> DaemonSpec:
        return DaemonSpec(name, [str(self._python), *words], self._daemon_env, self.folder)

    def describe_missing(self) -> str:
        """Name the service that does not listen yet; the server fills the database before."""
        services = {"the transfer service": self.transfers_port, "the server": self.port}
        addresses = {name: f"https://{LISTEN_ADDRESS}:{port}" for name, port in services.items()}
        return next((name for name, url in addresses.items() if not is_listening(url)), "")


def install_rucio(cache: Path, say: ProgressCallback) -> Path:
    """Install Rucio; return its Python. Fast if complete; an incomplete one is rebuilt.

    Raises:
        TestbedError: the packages cannot be fetched, or the disk is full.
    """
    base = Path(sys.base_prefix).resolve()
    requirements = f"{base} {sys.version} {REQUIREMENTS.read_text(encoding='utf-8')}"
    folder = cache / "rucio" / hashlib.sha256(requirements.encode()).hexdigest()[:12]
    python, completed = folder / "env" / "bin" / "python", folder / "complete"
    if completed.exists():
        return python
    with hold_lock(cache / "rucio.lock", lambda: say("waiting for another download of Rucio")):
        if not completed.exists():
            say("fetching Rucio and its libraries (once)")
            shutil.rmtree(folder, ignore_errors=True)
            # In place, because an environment is bound to its path.
            pip = ["pip", "--python", str(python), "install", "--quiet", "--no-input"]
            pip += ["--disable-pip-version-check", "--no-deps", "--requirement", str(REQUIREMENTS)]
            for words in (["venv", "--without-pip", str(python.parents[1])], pip):
                run_program(
                    [sys.executable, "-m", *words],
                    where="Rucio",
                    hint="Check the network, the disk (400 MB) and pip's configuration, then repeat.",
                    env=drop_foreign_python(os.environ),
                )
            completed.touch()
    return python
