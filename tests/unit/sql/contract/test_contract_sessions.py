"""Read sessions in every database."""

from __future__ import annotations

import pytest

from treehammer.errors import TokenError
from treehammer.sql.auth import keyring
from treehammer.sql.auth.access_keys import MasterKeys
from treehammer.sql.auth.keyring import (
    Keyring,
    SessionHolder,
    SessionTable,
    session_id,
    verify_session,
)
from treehammer.sql.write.store import Store

MASTER = b"m" * 32
PERSON = SessionHolder("read", "Älice", identity="https://issuer.example 4711")


def test_session_is_kept_until_it_ends(store: Store) -> None:
    table, keyring = SessionTable(store._engine), Keyring(store._engine)
    token = table.open_session(PERSON, address="::1", now_us=10, expires_us=20)
    (row,) = table.list_sessions(now_us=20)
    assert (row.name, row.identity, row.key_id) == ("Älice", PERSON.identity, None)
    assert token not in repr(row)
    assert len(session_id(row)) == 12
    grant = verify_session(token, keyring.load_access(), MasterKeys(MASTER), 20)
    assert (grant.may_read, grant.may_submit, grant.name) == (True, False, "Älice")
    with pytest.raises(TokenError, match="expired"):
        verify_session(token, keyring.load_access(), MasterKeys(MASTER), 21)
    assert table.list_sessions(now_us=21) == []
    assert table.end_sessions([row.token_hash, row.token_hash]) == 1
    with pytest.raises(TokenError, match="ended"):
        verify_session(token, keyring.load_access(), MasterKeys(MASTER), 20)


def test_revoked_key_has_no_sessions(store: Store) -> None:
    table, keyring = SessionTable(store._engine), Keyring(store._engine)
    key, other = (keyring.create_key(MASTER, "read", "a", now_us=1) for _ in range(2))
    tokens = [
        table.open_session(
            SessionHolder("read", "a", key_id=one.key_id), address="-", now_us=1, expires_us=9
        )
        for one in (key, other)
    ]
    before = keyring.load_access()
    keyring.revoke_key(key.key_id, now_us=2)
    access = keyring.load_access()
    assert [one.key_id for one in access.sessions.values()] == [other.key_id]
    assert verify_session(tokens[1], access, MasterKeys(MASTER), 3).key_id == other.key_id
    # A session that another process still knows ends by its key.
    mixed = type(before)(access.keys, sessions=before.sessions)
    with pytest.raises(TokenError, match="revoked"):
        verify_session(tokens[0], mixed, MasterKeys(MASTER), 3)


def test_oldest_sessions_of_a_holder_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring, "MAX_SESSIONS_PER_HOLDER", 2)
    table = SessionTable(store._engine)
    key = Keyring(store._engine).create_key(MASTER, "read", "a", now_us=1)
    for holder in (SessionHolder("read", "a", key_id=key.key_id), PERSON):
        for now_us in (1, 2, 3):
            table.open_session(holder, address="-", now_us=now_us, expires_us=9)
    rows = table.list_sessions(now_us=3)
    assert [(one.created_us, one.name) for one in rows].count((1, "a")) == 0
    assert sorted(one.created_us for one in rows) == [2, 2, 3, 3]
