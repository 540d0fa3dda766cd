"""Rucio server of a testbed: creates database, accounts and storages, then serves REST over https.

Run by the Python that has Rucio, in a folder with the certificate, its key and the authority::

    python run_server.py SETUP.json PREPARED PORT

``SETUP.json`` lists accounts and storages; ``PREPARED`` is written once the database is filled.
"""

from __future__ import annotations

import json
import ssl
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rucio.common.types import InternalAccount, InternalScope
from rucio.core import account as accounts
from rucio.core import account_limit, distance, identity, rse, scope
from rucio.db.sqla import util
from rucio.db.sqla.constants import AccountType, DatabaseOperationType, IdentityType, RSEType
from rucio.db.sqla.session import db_session, get_engine
from rucio.web.rest.main import application
from sqlalchemy.exc import OperationalError
from werkzeug.serving import WSGIRequestHandler, make_server

TIMEOUT_S = 30.0
UNLIMITED = -1
#: Operations of a protocol, with the priority of each.
_ALL = {"read": 1, "write": 1, "delete": 1}
_READING = {"read": 2, "write": 0, "delete": 0}
_COPIES = {"third_party_copy_read": 1, "third_party_copy_write": 1}
_SHORT_NAMES = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
}


def wait_for_database() -> None:
    """Wait until PostgreSQL accepts connections, for some seconds at most."""
    until = time.monotonic() + TIMEOUT_S
    while True:
        try:
            get_engine().connect().close()
            return
        except OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def fill_database(setup: dict[str, Any]) -> None:
    """Fill an empty database."""
    util.build_database()
    util.create_base_vo()
    util.create_root_account()
    with db_session(DatabaseOperationType.WRITE) as session:
        ids = {item["name"]: add_storage(item, session) for item in setup["storages"]}
        for source, target, far in setup["distances"]:
            distance.add_distance(ids[source], ids[target], far, session=session)
        for name, item in setup["accounts"].items():
            add_account(name, item, ids, setup["issuer"], session)


def add_storage(storage: dict[str, Any], session: Any) -> str:
    """Add an RSE and return its id."""
    rse_id = str(rse.add_rse(storage["name"], rse_type=RSEType[storage["type"]], session=session))
    for key, value in storage["attributes"].items():
        rse.add_rse_attribute(rse_id, key, value, session=session)
    prefix = storage.get("prefix", "")
    for scheme, port in storage.get("ports", {}).items():
        is_main = scheme == "root"
        protocol = {
            "scheme": scheme,
            "hostname": storage["host"],
            "port": port,
            "prefix": f"/{prefix}/" if is_main else f"{prefix}/",
            "impl": f"rucio.rse.protocols.{'xrootd' if is_main else 'webdav'}.Default",
            "domains": {"lan": _ALL, "wan": _ALL | _COPIES}
            if is_main
            else {"lan": _READING, "wan": _READING},
        }
        rse.add_protocol(rse_id, protocol, session=session)
    root = InternalAccount("root")
    account_limit.set_local_account_limit(root, rse_id, UNLIMITED, session=session)
    return rse_id


def add_account(
    name: str, entry: dict[str, Any], ids: dict[str, str], issuer: str, session: Any
) -> None:
    """Add a user with its identities, scopes, attributes, and its quota on each disk."""
    account, email = InternalAccount(name), f"{name}@localhost"
    accounts.add_account(account, AccountType.USER, email, session=session)
    for key, kind in (
        (name, IdentityType.USERPASS),
        (f"CN={name}", IdentityType.X509),
        (f"SUB={name}, ISS={issuer}", IdentityType.OIDC),
    ):
        password = entry["password"] if kind is IdentityType.USERPASS else None
        identity.add_identity(key, kind, email, password, session=session)
        identity.add_account_identity(key, kind, account, email, default=True, session=session)
    for scope_name in entry["scopes"]:
        scope.add_scope(InternalScope(scope_name), account, session=session)
    for key, value in entry["attributes"].items():
        accounts.add_account_attribute(account, key, value, session=session)
    for storage in entry["storages"]:
        account_limit.set_local_account_limit(
            account, ids[storage], entry["quota"], session=session
        )


class Handler(WSGIRequestHandler):
    """Passes the subjects of client certificates to Rucio, as Apache does in production."""

    protocol_version = "HTTP/1.1"

    def make_environ(self) -> Any:
        """Return the environment of a request."""
        environ = super().make_environ()
        certificate = self.connection.getpeercert()
        if certificate:
            environ["SSL_CLIENT_S_DN"] = format_subject(certificate["subject"])
        return environ


def format_subject(subject: Iterable[Iterable[tuple[str, str]]]) -> str:
    """Format a subject as Apache does, the most specific name first."""
    names = [pair for group in subject for pair in group]
    return ",".join(f"{_SHORT_NAMES.get(name, name)}={value}" for name, value in reversed(names))


def serve(port: int) -> None:
    """Serve until killed, and verify the certificates of users, x509 proxies included."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile="ca.pem")
    context.load_cert_chain("server.pem", "server.key")
    context.verify_mode = ssl.CERT_OPTIONAL
    context.verify_flags |= ssl.VERIFY_ALLOW_PROXY_CERTS
    server = make_server("127.0.0.1", port, application, threaded=True, request_handler=Handler)
    server.ssl_context = context
    # The handshake takes place in the connection's thread.
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    server.serve_forever()


def main() -> None:
    """Fill the database, then serve."""
    setup_file, prepared, port = sys.argv[1:]
    wait_for_database()
    if not Path(prepared).exists():
        fill_database(json.loads(Path(setup_file).read_text(encoding="utf-8")))
        Path(prepared).touch()
    serve(int(port))


if __name__ == "__main__":
    main()
