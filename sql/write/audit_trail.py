"""Audit trail: changes by administrators, keys, sign-ins and refused requests."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from treehammer.collectors.record.metric_catalogue import MAX_TEXT
from treehammer.sql.core.rows import AuditRow
from treehammer.sql.core.schema import audit_entry
from treehammer.sql.engine.database_engine import read_transaction, write_transaction
from treehammer.sql.engine.row_mapping import fetch_rows, insert_missing_rows

CREATE_KEY, REVOKE_KEY, REVOKE_TOKENS = "create key", "revoke key", "revoke tokens"
ROTATE = "rotate master key"
SIGN_IN, SIGN_OUT, END_SESSIONS = "sign in", "sign out", "end sessions"
REFUSE = "refuse"
#: Maximum characters of a text, each of which may take several bytes.
MAX_TEXT_CHARS = MAX_TEXT // 8


def make_entry(
    action: str, actor: str, scope: str, *, now_us: int, reason: str = "", count: int = 0
) -> AuditRow:
    """Make an entry; texts of clients may contain any character.

    Args:
        action: a few words from a fixed list.
        actor: who did it.
        scope: what was changed or refused.
        now_us: time in microseconds since 1970 UTC.
        reason: for people; '' for none.
        count: number of changed measurements or of refused requests.
    """
    actor, scope, reason = map(_make_printable, (actor, scope, reason))
    return AuditRow(secrets.token_hex(12), now_us, action, actor, scope, reason, count)


def add_entries(connection: Connection, entries: Iterable[AuditRow]) -> None:
    """Add entries in a write transaction."""
    insert_missing_rows(connection, audit_entry, entries)


def write_entries(engine: Engine, entries: Sequence[AuditRow]) -> None:
    """Write entries in a transaction of their own."""
    with write_transaction(engine) as connection:
        add_entries(connection, entries)


def list_entries(engine: Engine, since_us: int = 0) -> list[AuditRow]:
    """List the entries since a time, newest first."""
    query = sa.select(audit_entry).where(audit_entry.c.changed_us >= since_us)
    order = (audit_entry.c.changed_us.desc(), audit_entry.c.id)
    with read_transaction(engine) as connection:
        return fetch_rows(connection, AuditRow, query.order_by(*order))


def local_actor() -> str:
    """Return the user of this process and the host, as the actor of a command."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # A container may have a user without a name.
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _make_printable(text: str) -> str:
    printable = "".join(
        char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text
    )
    return printable[:MAX_TEXT_CHARS]
