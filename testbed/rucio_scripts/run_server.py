"""Rucio server of a testbed: creates database, accounts and storages, then serves REST.

Run by the Python that has Rucio::

    python run_server.py SETUP.json PREPARED PORT

``SETUP.json`` lists accounts and storages; ``PREPARED`` is written once the database is filled.
The modules ``gunicorn_settings`` and ``verified_users`` are in the current folder.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from rucio.common.types import InternalAccount, InternalScope
from rucio.core import account as accounts
from rucio.core import account_limit, distance, identity, rse, scope
from rucio.db.sqla import util
from rucio.db.sqla.constants import (
    AccountType,
    DatabaseOperationType,
    IdentityType,
    RSEType,
)
from rucio.db.sqla.session import db_session, get_engine
from sqlalchemy.exc import OperationalError

TIMEOUT_S = 30.0
UNLIMITED = -1
#: Concurrent requests.
THREADS = 8


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
        for item in setup["accounts"]:
            add_account(item, ids, session)


def add_storage(storage: dict[str, Any], session: Any) -> str:
    """Add an RSE and return its id."""
    rse_id = str(rse.add_rse(storage["name"], rse_type=RSEType[storage["type"]], session=session))
    for key, value in storage["attributes"].items():
        rse.add_rse_attribute(rse_id, key, value, session=session)
    for protocol in storage["protocols"]:
        rse.add_protocol(rse_id, protocol, session=session)
    root = InternalAccount("root")
    account_limit.set_local_account_limit(root, rse_id, UNLIMITED, session=session)
    return rse_id


def add_account(entry: dict[str, Any], ids: dict[str, str], session: Any) -> None:
    """Add an account with its identities, scopes, attributes and quotas."""
    account = InternalAccount(entry["name"])
    accounts.add_account(account, AccountType[entry["type"]], entry["email"], session=session)
    for kind_name, key in entry["identities"].items():
        kind = IdentityType[kind_name]
        password = entry["password"] if kind is IdentityType.USERPASS else None
        identity.add_identity(key, kind, entry["email"], password, session=session)
        identity.add_account_identity(
            key, kind, account, entry["email"], default=True, session=session
        )
    for name in entry["scopes"]:
        scope.add_scope(InternalScope(name), account, session=session)
    for key, value in entry["attributes"].items():
        accounts.add_account_attribute(account, key, value, session=session)
    for storage, size in entry["quotas"].items():
        account_limit.set_local_account_limit(account, ids[storage], size, session=session)


def main() -> None:
    """Fill the database, then replace this process by the server."""
    setup_file, prepared, port = sys.argv[1:]
    setup = json.loads(Path(setup_file).read_text(encoding="utf-8"))
    wait_for_database()
    if not Path(prepared).exists():
        fill_database(setup)
        Path(prepared).touch()
    gunicorn = ["-m", "gunicorn", "--workers", "1", "--threads", str(THREADS)]
    gunicorn += ["--bind", f"127.0.0.1:{port}", "--no-control-socket", "--timeout", "120"]
    gunicorn += ["--config", "gunicorn_settings.py"]
    gunicorn += ["--worker-tmp-dir", str(Path(prepared).parent), "verified_users:application"]
    os.execv(sys.executable, [sys.executable, *gunicorn])  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
