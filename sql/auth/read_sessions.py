"""Read sessions of browsers: opaque tokens, their verification and storage.

A browser keeps a random token in a cookie; the database stores only its hash, so that a copy of the
database permits no sign-in. A session permits reading only, and ends with the key that opened it.

Times are microseconds since 1970 UTC.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from treehammer.errors import TokenError
from treehammer.sql.auth.access_keys import (
    AccessGrant,
    AccessList,
    MasterKeys,
    ReadSession,
    require_unexpired,
    require_valid_key,
)
from treehammer.sql.core.rows import AuditRow
from treehammer.sql.core.schema import read_session
from treehammer.sql.engine.database_engine import read_transaction, write_transaction
from treehammer.sql.write import audit_trail

_TOKEN_BYTES = 32
#: Maximum number of characters of a session token.
MAX_SESSION_TOKEN_LENGTH = 64


@dataclass(frozen=True)
class SessionHolder:
    """Person who signed in: by a key, or as an ``identity`` of an OpenID provider."""

    role: str
    name: str
    key_id: str | None = None
    identity: str | None = None


def make_session_token() -> str:
    """Create the token of a new session."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def hash_session_token(token: str) -> str:
    """Hash a token for storage. Tokens are random, so that a plain hash cannot be reversed."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def verify_session(token: str, access: AccessList, masters: MasterKeys, now_us: int) -> AccessGrant:
    """Verify the token of a session and return its permissions.

    Raises:
        TokenError: the session ended, or its key is no longer valid.
    """
    if len(token) > MAX_SESSION_TOKEN_LENGTH:
        raise TokenError("the session is invalid: sign in again")
    session = access.sessions.get(hash_session_token(token))
    if session is None:
        raise TokenError("the session has ended: sign in again", may_be_new=True)
    if now_us > session.expires_us:
        raise TokenError("the session has expired: sign in again")
    if session.key_id is None:
        return AccessGrant(session.role, "", session.name, "", session.expires_us)
    key = require_valid_key(session.key_id, access, masters)
    require_unexpired(key.expires_us, now_us, "the key")
    return AccessGrant(key.role, key.key_id, key.name, key.owner, session.expires_us)


def session_id(session: ReadSession) -> str:
    """Return the name of a session for administrators: the beginning of its hash."""
    return session.token_hash[:12]


#: Sessions of one key or identity; a further sign-in ends the oldest, since all are kept in memory.
MAX_SESSIONS_PER_HOLDER = 1000

_FIELDS = [field.name for field in fields(ReadSession)]
_COLUMNS = [read_session.c[name] for name in _FIELDS]


class SessionTable:
    """Opens, lists and ends sessions in a database of this version."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def open_session(
        self, holder: SessionHolder, *, address: str, now_us: int, expires_us: int
    ) -> str:
        """Open a session and return its token; delete expired sessions and surplus ones.

        Raises:
            StoreError: the database cannot be written.
        """
        token = make_session_token()
        session = ReadSession(
            hash_session_token(token),
            holder.role,
            holder.name,
            holder.key_id,
            holder.identity,
            address,
            now_us,
            expires_us,
        )
        table = read_session
        with write_transaction(self._engine) as connection:
            connection.execute(sa.delete(table).where(table.c.expires_us < now_us))
            connection.execute(
                sa.insert(table), [dict(zip(_FIELDS, astuple(session), strict=True))]
            )
            _end_surplus(connection, holder)
        return token

    def list_sessions(self, *, now_us: int) -> Sequence[ReadSession]:
        """List the sessions that have not expired, oldest first."""
        columns = read_session.c
        query = sa.select(*_COLUMNS).where(columns.expires_us >= now_us)
        with read_transaction(self._engine) as connection:
            rows = connection.execute(query.order_by(columns.created_us, columns.token_hash))
            return [ReadSession(*row) for row in rows]

    def end_sessions(self, token_hashes: Sequence[str], entries: Sequence[AuditRow] = ()) -> int:
        """End sessions by their hashes, add entries to the audit trail, and return their number."""
        ended = 0
        with write_transaction(self._engine) as connection:
            audit_trail.add_entries(connection, entries)
            for token_hash in token_hashes:
                matching = read_session.c.token_hash == token_hash
                ended += connection.execute(sa.delete(read_session).where(matching)).rowcount
        return ended


def load_sessions(connection: Connection) -> dict[str, ReadSession]:
    """Load all sessions by the hash of their token."""
    rows = connection.execute(sa.select(*_COLUMNS))
    return {row.token_hash: ReadSession(*row) for row in rows}


def end_sessions_of_key(connection: Connection, key_id: str) -> None:
    """End all sessions that a key opened."""
    connection.execute(sa.delete(read_session).where(read_session.c.key_id == key_id))


def _end_surplus(connection: Connection, holder: SessionHolder) -> None:
    columns = read_session.c
    of_holder = (
        columns.key_id == holder.key_id
        if holder.key_id is not None
        else columns.identity == holder.identity
    )
    newest_first = (
        sa.select(columns.token_hash)
        .where(of_holder)
        .order_by(columns.created_us.desc(), columns.token_hash)
    )
    hashes = connection.execute(newest_first).scalars().all()
    for surplus in hashes[MAX_SESSIONS_PER_HOLDER:]:
        connection.execute(sa.delete(read_session).where(columns.token_hash == surplus))
