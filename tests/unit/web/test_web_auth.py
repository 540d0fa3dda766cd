"""Tests of keys and sessions: their cache, browsers and the commands ``token``."""

from __future__ import annotations

import asyncio
import http.cookies
import json
import stat
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest
import sqlalchemy as sa
from measurement_factory import make_campaign_row, make_measurement
from repository_code import invoke_command
from service_thread import BROWSER, ServiceThread, StartService

from treehammer import config
from treehammer.errors import ConfigError, NothingToDoError, StoreError
from treehammer.sql.core.access_keys import AccessList, MasterKeys, parse_key
from treehammer.sql.core.schema import read_session
from treehammer.sql.engine.database_setup import open_engine
from treehammer.sql.write.keyring import load_master_keys
from treehammer.sql.write.store import Store
from treehammer.web.core.auth import AccessControl
from treehammer.web.service.proxy_setup import SECRET_HEADER, load_proxy_secret


@pytest.mark.parametrize("answers", [True, False])
def test_concurrent_refreshes_share_one_query(answers: bool) -> None:
    queries: list[int] = []

    def load_access() -> AccessList:
        queries.append(1)
        if not answers:
            raise StoreError("no answer")
        return AccessList({})

    async def work() -> None:
        access_control = AccessControl(load_access, MasterKeys(b"x" * 32))
        refreshes = [access_control.refresh() for _ in range(200)]
        outcomes = await asyncio.gather(*refreshes, return_exceptions=True)
        assert {str(outcome) for outcome in outcomes} == ({"None"} if answers else {"no answer"})
        assert len(queries) <= 2
        assert access_control.is_fresh is answers

    asyncio.run(asyncio.wait_for(work(), 30))


def test_refresh_after_failure_queries_again() -> None:
    away = StoreError("away")
    load_access = MagicMock(side_effect=[away, AccessList({}), away])

    async def work() -> None:
        access_control = AccessControl(load_access, MasterKeys(b"x" * 32))
        with pytest.raises(StoreError):
            await access_control.refresh()
        await access_control.refresh()
        assert access_control.is_fresh
        with pytest.raises(StoreError):
            await access_control.refresh()
        assert access_control.is_fresh, "recent keys stay valid after a failure"

    asyncio.run(asyncio.wait_for(work(), 30))


DAY_US = 86400 * 1_000_000


def sign_in(service: ServiceThread, key: str) -> str:
    """Sign in and return the value of the session cookie."""
    answer = service.client.post("/sign-in", data={"token": key})
    assert answer.status_code == 303, answer.text
    cookies = http.cookies.SimpleCookie(answer.headers["Set-Cookie"])
    return cookies["treehammer_session"].value


def can_read(service: ServiceThread, cookie: str) -> bool:
    service.client.cookies.clear()
    header = {"Cookie": f"treehammer_session={cookie}"}
    return service.client.get("/", headers=BROWSER | header).status_code == 200


token = partial(invoke_command, "token")


def test_cookie_is_opaque_and_stored_as_hash(service: ServiceThread) -> None:
    key = service.make_key("read")
    cookie = sign_in(service, key.text)
    assert key.key_id not in cookie
    assert key.secret not in cookie
    assert cookie not in "".join(map(str, dump_sessions(service)))
    assert key.secret not in "".join(map(str, dump_sessions(service)))
    assert can_read(service, cookie)
    # The session opens nothing but pages.
    answer = service.get_path("/api/v1/token", cookie)
    assert answer.status_code == 401


def dump_sessions(service: ServiceThread) -> list[tuple[object, ...]]:
    engine = open_engine(service.url, create=False)
    with engine.connect() as connection:
        rows = [tuple(row) for row in connection.execute(sa.select(read_session))]
    engine.dispose()
    return rows


def test_key_in_cookie_is_refused(service: ServiceThread) -> None:
    key = service.make_key("read").text
    assert not can_read(service, key)


def test_signing_out_ends_the_session(service: ServiceThread) -> None:
    key = service.make_key("read").text
    stolen, other = sign_in(service, key), sign_in(service, key)
    answer = service.client.post("/sign-out", headers={"Cookie": f"treehammer_session={stolen}"})
    assert answer.status_code == 303
    assert not can_read(service, stolen)
    assert can_read(service, other)


def refresh(service: ServiceThread) -> None:
    """Let the service read keys now: it does so at once for an unknown session."""
    assert not can_read(service, "unknown")


def test_session_ends_with_its_time(service: ServiceThread) -> None:
    cookie = sign_in(service, service.make_key("read").text)
    service.clock[0] += 29 * DAY_US
    assert can_read(service, cookie)
    service.clock[0] += 2 * DAY_US
    assert not can_read(service, cookie)


def test_session_ends_with_its_key(service: ServiceThread) -> None:
    key = service.make_key("read", expires_us=service.clock[0] + DAY_US)
    cookie = sign_in(service, key.text)
    service.clock[0] += 2 * DAY_US
    assert not can_read(service, cookie)


def test_commands_list_and_revoke_sessions(
    service: ServiceThread, settings: config.Settings
) -> None:
    alice, bob = service.make_key("read"), service.make_key("admin")
    cookies = [sign_in(service, key.text) for key in (alice, alice, bob)]
    lines = token(settings, "sessions").stdout.splitlines()
    assert lines[0].split()[:3] == ["session", "key", "id"]
    assert len(lines) == 4
    sessions = [line.split()[0] for line in lines if bob.key_id in line]
    assert token(settings, "revoke", "--session", sessions[0]).stdout == "1 session ended\n"
    refresh(service)
    assert [can_read(service, cookie) for cookie in cookies] == [True, True, False]
    assert "2 sessions ended" in token(settings, "revoke", "--sessions-of", alice.key_id).stdout
    refresh(service)
    assert not any(can_read(service, cookie) for cookie in cookies)
    for unknown in ("ffffffffffff", "%" * 300):
        done = token(settings, "revoke", "--session", unknown)
        assert "treehammer token sessions" in str(done.exception)


def test_expired_sessions_are_deleted(service: ServiceThread) -> None:
    key = service.make_key("read").text
    sign_in(service, key)
    service.clock[0] += 40 * DAY_US
    sign_in(service, key)
    assert len(dump_sessions(service)) == 1


def test_sessions_survive_restart(start_service: StartService) -> None:
    with start_service() as first:
        cookie = sign_in(first, first.make_key("read").text)
    with start_service() as second:
        assert can_read(second, cookie)


def test_empty_secret_of_the_proxy_has_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "proxy.key").touch(0o600)
    with pytest.raises(ConfigError, match=r"is empty, or .*\n.*Remove the file"):
        load_proxy_secret(tmp_path / "proxy.key")


def test_session_cookie_is_bound_to_host_under_tls(
    start_service: StartService, tmp_path: Path
) -> None:
    """Attack: a sibling domain sets the cookie of a session of its own over TLS."""
    secret = load_proxy_secret(tmp_path / "proxy.key")
    tls = {"X-Forwarded-Proto": "https", SECRET_HEADER: secret, **BROWSER}
    with start_service(behind_proxy=True) as service:
        key = service.make_key("read").text
        answer = service.client.post("/sign-in", data={"token": key}, headers=tls)
        name, _, rest = answer.headers["Set-Cookie"].partition("=")
        assert name == "__Host-treehammer_session"
        assert {"secure", "path=/", "httponly"} <= set(rest.lower().split("; "))
        cookie = rest.partition(";")[0]
        service.client.cookies.clear()
        for name, status in (("", 401), ("__Host-", 200)):
            header = {"Cookie": f"{name}treehammer_session={cookie}"}
            assert service.client.get("/", headers=tls | header).status_code == status


def test_database_failure_while_signing_out_is_reported(
    start_service: StartService, tmp_path: Path
) -> None:
    """A session that could not be ended must not look ended."""
    with start_service() as service:
        cookie = sign_in(service, service.make_key("read").text)
        (tmp_path / "results.db").rename(tmp_path / "away.db")
        answer: httpx.Response = service.client.post(
            "/sign-out", headers={"Cookie": f"treehammer_session={cookie}"}
        )
        assert answer.status_code == 503
        (tmp_path / "away.db").rename(tmp_path / "results.db")


def listed(settings: config.Settings) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(token(settings, "list", "--json").stdout)
    return rows


def test_token_create_shows_key_once(settings: config.Settings) -> None:
    with pytest.raises(NothingToDoError):
        raise token(settings, "list").exception or AssertionError
    created = token(settings, "create", "--role", "submit", "--name", "alice", "--expires", "90d")
    key = parse_key(created.stdout)
    assert "role submit, valid until 20" in created.stderr
    assert key.secret not in created.stderr
    repeated = token(settings, "list")
    assert key.key_id in repeated.stdout
    assert key.secret not in repeated.stdout
    (row,) = listed(settings)
    assert row["expires_us"] - row["created_us"] == 90 * 86400 * 1_000_000
    assert row["state"] == "active"


def test_token_create_writes_private_file(settings: config.Settings, tmp_path: Path) -> None:
    file = tmp_path / "alice.key"
    created = token(settings, "create", "--role", "read", "--name", "alice", "-o", str(file))
    assert created.stdout == ""
    assert parse_key(file.read_text()).key_id in created.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    repeated = token(settings, "create", "--role", "read", "--name", "alice", "-o", str(file))
    assert "exists already" in str(repeated.exception)
    nowhere = token(settings, "create", "--role", "read", "--name", "a", "-o", "/dev/null/x")
    assert "token revoke" in str(nowhere.exception)
    assert [row["name"] for row in listed(settings)] == ["alice", "a"]


def test_token_revoke_changes_state_of_keys(settings: config.Settings) -> None:
    keys = [
        parse_key(token(settings, "create", "--role", "admin", "--name", name).stdout)
        for name in ("a", "b", "c")
    ]
    assert "revoked\n" in token(settings, "revoke", keys[0].key_id).stdout
    assert "already revoked" in token(settings, "revoke", keys[0].key_id).stdout
    result = token(settings, "revoke", keys[1].text)
    assert keys[1].key_id in result.stdout
    assert keys[1].secret not in result.output
    states = [row["state"] for row in listed(settings)]
    assert [state.split()[0] for state in states] == ["revoked", "revoked", "active"]
    settings.master_key_file.unlink()
    load_master_keys(settings.master_key_file)
    assert listed(settings)[2]["state"] == "other master key"


def test_token_revoke_accepts_campaigns_and_jobs(settings: config.Settings, store: Store) -> None:
    campaign, job = "3f2a" * 4, "7" * 24
    store.add_campaign(make_campaign_row(campaign, name="nightly"), [])
    store.add([make_measurement("odd job", campaign_id="elsewhere")])
    for arguments, output in (
        (("--campaign", "3f2a"), f"tokens of campaign {campaign} revoked\n"),
        (("--campaign", "nightly"), f"tokens of campaign {campaign} already revoked\n"),
        (("--campaign", "elsewhere"), "tokens of campaign elsewhere revoked\n"),
        (("--job", "odd job"), "tokens of job odd job revoked\n"),
    ):
        done = token(settings, "revoke", *arguments)
        assert (done.stdout, done.stderr) == (output, "")
    unknown = token(settings, "revoke", "--job", job)
    assert unknown.stdout == f"tokens of job {job} revoked\n"
    assert f"job {job} is not in this database yet" in unknown.stderr
    revoked = json.loads(token(settings, "list", "--revoked", "--json").stdout)
    assert {(row["scope"], row["subject"]) for row in revoked} == {
        ("campaign", campaign),
        ("campaign", "elsewhere"),
        ("job", "odd job"),
        ("job", job),
    }
    assert (
        "other revocations: 4 (treehammer token list --revoked)" in token(settings, "list").stderr
    )
    for arguments, output in (
        (("--campaign", "3f2b"), f"{campaign}  nightly"),
        (("--campaign", "3f2b"), "16 hexadecimal digits"),
        (("--job", "7" * 23), "24 hexadecimal digits, part of the address of its page"),
    ):
        error = token(settings, "revoke", *arguments).exception
        assert isinstance(error, ConfigError)
        assert output in str(error)
    assert len(json.loads(token(settings, "list", "--revoked", "--json").stdout)) == 4


def test_token_list_creates_no_master_key(settings: config.Settings) -> None:
    token(settings, "create", "--role", "read", "--name", "a")
    settings.master_key_file.unlink()
    result = token(settings, "list")
    assert f"warning: {settings.master_key_file} is missing" in result.stderr
    assert [row["state"] for row in listed(settings)] == ["master key missing"]
    assert not settings.master_key_file.exists()


def test_token_create_warns_of_other_master_key(settings: config.Settings) -> None:
    make = ("create", "--role", "read", "--name", "a")
    assert "warning" not in token(settings, *make).stderr
    settings.master_key_file.unlink()
    created = token(settings, *make)
    assert "warning: 1 key in this database created with another master key" in created.stderr
    assert parse_key(created.stdout)
    old = next(row["key_id"] for row in listed(settings) if row["state"] == "other master key")
    token(settings, "revoke", old)
    assert "warning" not in token(settings, *make).stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("create", "--role", "read", "--name", " "), "--name"),
        (("create", "--role", "read", "--name", "a\nb"), "printable"),
        (("create", "--role", "read", "--name", "x" * 201), "200"),
        (("create", "--role", "read", "--name", "a", "--expires", "soon"), "not a duration"),
        (("revoke", "nope"), "treehammer token list"),
        (("revoke", "\udcff"), "treehammer token list"),
        (("revoke", "--campaign", "\udcff"), "unknown campaign"),
        (("revoke", "--job", "\udcff"), "unknown job"),
        (("revoke", "th1.x"), "not a key"),
        (("revoke", "--campaign", "a\x00"), "unknown campaign"),
        (("revoke", "--campaign", "last"), "16 hexadecimal digits"),
    ],
)
def test_token_invalid_arguments_are_named(
    settings: config.Settings, arguments: tuple[str, ...], message: str
) -> None:
    error = token(settings, *arguments).exception
    assert isinstance(error, ConfigError)
    assert message in str(error)


@pytest.mark.parametrize(
    "arguments",
    [("revoke",), ("revoke", "k", "--job", "j"), ("create", "--role", "root", "--name", "a")],
)
def test_token_wrong_usage_exits_with_2(
    settings: config.Settings, arguments: tuple[str, ...]
) -> None:
    assert token(settings, *arguments).exit_code == 2


def test_token_rotate_master_keeps_keys_until_finished(settings: config.Settings) -> None:
    token(settings, "create", "--role", "read", "--name", "a")
    file = settings.master_key_file
    assert "no rotation is in progress" in str(
        token(settings, "rotate-master", "--finish").exception
    )
    for _ in range(3):
        assert token(settings, "rotate-master").exit_code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not list(file.parent.glob("*.tmp"))
    assert "rotate-master --finish" in str(token(settings, "rotate-master").exception)
    created = token(settings, "create", "--role", "read", "--name", "b")
    assert "warning" not in created.stderr
    assert [row["state"] for row in listed(settings)] == ["active, previous master key", "active"]
    done = token(settings, "rotate-master", "--finish")
    assert done.stdout == "1 key revoked; 3 previous master keys removed\n"
    assert [row["state"].split()[0] for row in listed(settings)] == ["revoked", "active"]
    assert len(file.read_text().split()) == 1
