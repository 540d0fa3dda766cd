"""Read sessions of browsers: opaque tokens and their verification.

A browser keeps a random token in a cookie; the database stores only its hash, so that a copy of the
database permits no sign-in. A session permits reading only, and ends with the key that opened it.

Times are microseconds since 1970 UTC.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from treehammer.errors import TokenError
from treehammer.sql.auth.access_keys import MasterKeys
from treehammer.sql.auth.tokens import (
    AccessGrant,
    AccessList,
    ReadSession,
    require_unexpired,
    require_valid_key,
)

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
