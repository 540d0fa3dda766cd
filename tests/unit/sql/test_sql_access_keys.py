"""Keys and tokens: validity, refusals, and protection of secrets."""

from __future__ import annotations

import base64
import json
import os
import stat
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import hypothesis
import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measurement_factory import make_measurement

from treehammer import config
from treehammer.collectors.job_spec import TOKEN_VARIABLE
from treehammer.errors import ConfigError, TokenError
from treehammer.sql.core import access_keys
from treehammer.sql.core.access_keys import (
    CLOCK_SKEW_S,
    OUTLIVE_DAYS,
    AccessGrant,
    AccessList,
    MasterKeys,
    derive_key,
    fingerprint_master_key,
    load_user_key,
    mint_job_token,
    parse_key,
    verify_token,
)
from treehammer.sql.core.rows import AccessKeyRow
from treehammer.sql.write.keyring import Keyring, load_master_keys
from treehammer.sql.write.store import Store

MASTER = b"m" * 32
NOW_US = 1_800_000_000_000_000
SECOND = 1_000_000
DAY = 86400 * SECOND


def row(
    key_id: str = "0123456789ab", role: str = "submit", **changes: int | str | None
) -> AccessKeyRow:
    key = AccessKeyRow(
        key_id, role, "alice", NOW_US - DAY, None, None, fingerprint_master_key(MASTER), "cms"
    )
    return replace(key, **changes)  # type: ignore[arg-type]  # of the field's type each


def access(*rows: AccessKeyRow, **revoked: Any) -> AccessList:
    return AccessList({item.key_id: item for item in rows}, **revoked)


KEY = derive_key(MASTER, "0123456789ab")
TOKEN = mint_job_token(KEY, "c1", "j1", NOW_US + DAY)


def refused(token: str, keys: AccessList, now_us: int = NOW_US, master: bytes = MASTER) -> str:
    with pytest.raises(TokenError) as caught:
        verify_token(token, keys, MasterKeys(master), now_us)
    assert KEY.secret not in str(caught.value)
    return caught.value.message


def test_key_is_one_line_and_hides_its_secret() -> None:
    assert parse_key(f" {KEY.text}\n") == KEY
    assert KEY.secret not in repr(KEY)
    assert len(KEY.text.split(".")) == 3
    for text in ("", "th1.", TOKEN, KEY.text + "x", KEY.text.upper(), "th2" + KEY.text[3:]):
        with pytest.raises(ConfigError) as caught:
            parse_key(text)
        assert len(text) < 10 or text not in str(caught.value)


def test_job_token_is_limited_to_its_job() -> None:
    grant = verify_token(TOKEN, access(row()), MasterKeys(MASTER), NOW_US)
    assert grant == AccessGrant("submit", KEY.key_id, "alice", "cms", NOW_US + DAY, "c1", "j1")
    assert grant.may_submit
    assert not grant.may_read
    admin = verify_token(TOKEN, access(row(role="admin")), MasterKeys(MASTER), NOW_US)
    assert not admin.may_read, "a job of an administrator is a job"


@pytest.mark.parametrize(
    ("role", "may"), [("read", (True, False)), ("submit", (False, True)), ("admin", (True, True))]
)
def test_key_permissions_follow_role(role: str, may: tuple[bool, ...]) -> None:
    grant = verify_token(KEY.text, access(row(role=role)), MasterKeys(MASTER), NOW_US)
    assert (grant.may_read, grant.may_submit) == may
    assert grant.job_id is None


def test_revoked_keys_and_tokens_are_refused() -> None:
    gone = access(row(revoked_us=NOW_US))
    assert "was revoked at 2027-01-15 08:00:00 UTC" in refused(TOKEN, gone)
    assert "was revoked" in refused(KEY.text, gone)
    assert "this campaign" in refused(TOKEN, access(row(), campaigns=frozenset({"c1"})))
    assert "this job" in refused(TOKEN, access(row(), jobs=frozenset({"j1"})))
    other_subjects = access(row(), campaigns=frozenset({"c2"}), jobs=frozenset({"j2"}))
    assert verify_token(TOKEN, other_subjects, MasterKeys(MASTER), NOW_US)


def test_expiry_tolerates_clock_skew() -> None:
    end = NOW_US + DAY
    assert verify_token(TOKEN, access(row()), MasterKeys(MASTER), end + CLOCK_SKEW_S * SECOND)
    text = refused(TOKEN, access(row()), end + CLOCK_SKEW_S * SECOND + 1)
    assert (
        "expired at 2027-01-16 08:00:00 UTC; the service's clock is at 2027-01-16 08:02:00" in text
    )
    assert "the key expired" in refused(KEY.text, access(row(expires_us=1)))


def test_job_token_outlives_its_key_for_limited_time() -> None:
    expired = access(row(expires_us=NOW_US - DAY))
    assert verify_token(TOKEN, expired, MasterKeys(MASTER), NOW_US)
    endless = mint_job_token(KEY, "c1", "j1", NOW_US + 3650 * DAY)
    grant = verify_token(endless, expired, MasterKeys(MASTER), NOW_US)
    assert grant.expires_us == NOW_US + (OUTLIVE_DAYS - 1) * DAY
    assert "expired" in refused(endless, expired, NOW_US + OUTLIVE_DAYS * DAY)


def test_forged_tokens_are_refused() -> None:
    keys = access(row(), row("ba9876543210", role="read"))
    reader = derive_key(MASTER, "ba9876543210")
    claims = {"campaign": "c1", "job": "j1", "exp": NOW_US // SECOND + 60}
    head = {"kid": KEY.key_id}
    right = jwt.encode(claims, KEY.secret, "HS256", head)
    assert verify_token(right, keys, MasterKeys(MASTER), NOW_US)
    header, body, signature = right.split(".")
    more = base64.urlsafe_b64encode(json.dumps({**claims, "job": "j2"}).encode()).decode()
    wrong = {
        "has no such key": [
            mint_job_token(derive_key(MASTER, "f" * 12), "c1", "j1", NOW_US),
            "th1.ffffffffffff." + KEY.secret,
            jwt.encode(claims, KEY.secret, "HS256"),
            jwt.encode(claims, KEY.secret, "HS256", {"kid": ""}),
        ],
        "was not issued by": [
            jwt.encode(claims, "", "none", head),
            jwt.encode(claims, KEY.secret * 2, "HS512", head),
            jwt.encode(claims, "guess" * 9, "HS256", head),
            f"{header}.{more.rstrip('=')}.{signature}",
            f"{header}.{body}.",
            "",
            "nonsense",
            "a.b.c",
            "é.ü.\x00",
            base64.urlsafe_b64encode(b"[" * 1400).decode() + ".x.x",
            jwt.api_jws.encode(b"[]", KEY.secret, "HS256", head),
            jwt.api_jws.encode(b"\xff", KEY.secret, "HS256", head),
            jwt.api_jws.encode(b'{"exp": 1e400}', KEY.secret, "HS256", head, ) + "x",
        ],
        "did not issue this key": [f"th1.{KEY.key_id}.{reader.secret}"],
        "its role is 'read'": [jwt.encode(claims, reader.secret, "HS256", {"kid": reader.key_id})],
        "lacks campaign, job or expiry": [
            jwt.encode({**claims, name: value}, KEY.secret, "HS256", head)
            for name, value in (("exp", 1e300), ("exp", "1"), ("campaign", 7), ("job", None))
        ],
        "too long": ["x" * 2001],
    }  # fmt: skip
    for reason, tokens_ in wrong.items():
        for token in tokens_:
            assert reason in refused(token, keys)
    huge = jwt.encode({**claims, "exp": 10**30}, KEY.secret, "HS256", head)
    assert verify_token(huge, keys, MasterKeys(MASTER), NOW_US)
    old = jwt.encode({**claims, "exp": -(10**30)}, KEY.secret, "HS256", head)
    assert "beyond the calendar" in refused(old, keys)


@hypothesis.settings(max_examples=25)
@given(st.text(max_size=60), st.sampled_from(("", "th1.", f"th1.{KEY.key_id}.")))
def test_random_text_is_refused(text: str, start: str) -> None:
    with pytest.raises(TokenError):
        verify_token(start + text, access(row()), MasterKeys(MASTER), NOW_US)


def test_other_master_key_invalidates_keys() -> None:
    other = b"o" * 32
    assert "another master key" in refused(KEY.text, access(row()), master=other)
    assert "another master key" in refused(TOKEN, access(row()), master=other)


# The submitter's key


def settings(folder: Path, **environ: str) -> config.Settings:
    return config.load_settings({"data_dir": folder}, environ=environ, folder=folder)


def test_user_key_comes_from_file_or_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert load_user_key(settings(tmp_path)) is None
    monkeypatch.setenv(TOKEN_VARIABLE, KEY.text)
    assert load_user_key(settings(tmp_path)) == KEY
    other = derive_key(MASTER, "ba9876543210")
    file = tmp_path / "key"
    named = settings(tmp_path, TREEHAMMER_SERVICE_TOKEN_FILE=str(file))
    for content, problem in (
        (None, "cannot be read"),
        (b"\xff", "not UTF-8 text"),
        (b"th1.x", "not a key"),
    ):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(ConfigError, match=rf"service_token_file .*{file.name}.*{problem}"):
            load_user_key(named)
    file.write_text(other.text + "\n")
    assert load_user_key(named) == other
    monkeypatch.setenv(TOKEN_VARIABLE, "nonsense")
    with pytest.raises(ConfigError, match=TOKEN_VARIABLE) as caught:
        load_user_key(settings(tmp_path))
    assert "nonsense" not in str(caught.value)


# The service's keys


def test_master_key_is_created_once_and_private(tmp_path: Path) -> None:
    file = tmp_path / "data" / "service.key"
    with get_context("fork").Pool(2) as racing:
        made = {keys.current for keys in racing.map(load_master_keys, [file] * 2, 1)}
    assert made == {load_master_keys(file).current}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]


def test_bad_master_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "service.key"
    load_master_keys(file)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=r"other users can read(.|\n)*chmod 600"):
        load_master_keys(file)
    file.chmod(0o600)
    for content in (b"", b"ab\n", b"\xff\xfe", b"zz" * 32):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=r"not a master key(.|\n)*backup"):
            load_master_keys(file)
    with pytest.raises(ConfigError, match="cannot be read or created"):
        load_master_keys(Path(os.devnull) / "service.key")


def test_keyring_stores_keys_and_revocations(url: str) -> None:
    with Store.open(url) as store:
        ring = Keyring(store._engine)
        key = ring.create_key(MASTER, "submit", "alice", now_us=NOW_US, expires_us=NOW_US + DAY)
        second = ring.create_key(MASTER, "read", "böb", now_us=NOW_US + 1)
        assert [item.name for item in ring.list_keys()] == ["alice", "böb"]
        assert (
            verify_token(key.text, ring.load_access(), MasterKeys(MASTER), NOW_US).name == "alice"
        )
        token = mint_job_token(key, "c", "j", NOW_US + DAY)
        assert verify_token(token, ring.load_access(), MasterKeys(MASTER), NOW_US).job_id == "j"
        assert ring.revoke_tokens(access_keys.JOB, "j", now_us=NOW_US)
        assert not ring.revoke_tokens(access_keys.JOB, "j", now_us=NOW_US + 5)
        assert ring.revoke_tokens(access_keys.CAMPAIGN, "j", now_us=NOW_US)
        assert ring.load_access().jobs == ring.load_access().campaigns == frozenset({"j"})
        assert [(entry.scope, entry.revoked_us) for entry in ring.list_revocations()] == [
            (access_keys.CAMPAIGN, NOW_US),
            (access_keys.JOB, NOW_US),
        ]
        store.add([make_measurement("j", 1, 1)])
        assert ring.has_subject(access_keys.JOB, "j")
        assert ring.has_subject(access_keys.CAMPAIGN, "campaign")
        assert not ring.has_subject(access_keys.CAMPAIGN, "j")
        assert ring.revoke_key(second.key_id, now_us=NOW_US + 7)
        assert not ring.revoke_key(second.key_id, now_us=NOW_US + 9)
        assert ring.list_keys()[1].revoked_us == NOW_US + 7
        with pytest.raises(ConfigError, match="unknown key"):
            ring.revoke_key("nope", now_us=1)
        with pytest.raises(ValueError, match="root"):
            ring.create_key(MASTER, "root", "eve", now_us=1)


def test_database_contains_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "results.db"
    with Store.open(f"sqlite:///{file}") as store:
        key = Keyring(store._engine).create_key(MASTER, "submit", "alice", now_us=NOW_US)
    everything = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert key.key_id.encode() in everything
    assert key.secret.encode() not in everything
