"""Read sessions: opaque cookies that end on sign-out, by command, by time and with their key."""

from __future__ import annotations

import http.cookies
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from cli_verbs import find_command
from click.testing import CliRunner, Result
from service_thread import ServiceThread, StartService

from treehammer import config
from treehammer.sql.core.schema import read_session
from treehammer.sql.engine.database_setup import open_engine

BROWSER = {"Accept": "text/html,*/*"}
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


def invoke_token(service: ServiceThread, *words: str) -> Result:
    """Run a command of the service's administrator."""
    settings = config.load_settings({"database": service.url}, environ={})
    return CliRunner().invoke(find_command("token"), words, obj=settings)


def run_token(service: ServiceThread, *words: str) -> str:
    done = invoke_token(service, *words)
    assert done.exit_code == 0, done
    return done.stdout


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


def test_revoking_the_key_ends_its_sessions(service: ServiceThread) -> None:
    revoked, kept = service.make_key("read"), service.make_key("admin")
    ended, other = sign_in(service, revoked.text), sign_in(service, kept.text)
    run_token(service, "revoke", revoked.key_id)
    refresh(service)
    assert not can_read(service, ended)
    assert can_read(service, other)
    assert len(dump_sessions(service)) == 1


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


def test_commands_list_and_revoke_sessions(service: ServiceThread) -> None:
    alice, bob = service.make_key("read"), service.make_key("admin")
    cookies = [sign_in(service, key.text) for key in (alice, alice, bob)]
    lines = run_token(service, "sessions").splitlines()
    assert lines[0].split()[:3] == ["session", "key", "id"]
    assert len(lines) == 4
    mine = [line.split()[0] for line in lines if bob.key_id in line]
    assert run_token(service, "revoke", "--session", mine[0]) == "1 session ended\n"
    refresh(service)
    assert [can_read(service, cookie) for cookie in cookies] == [True, True, False]
    assert "2 sessions ended" in run_token(service, "revoke", "--sessions-of", alice.key_id)
    refresh(service)
    assert not any(can_read(service, cookie) for cookie in cookies)


@pytest.mark.parametrize("session", ["", "ffffffffffff", "%", "x" * 300])
def test_unknown_session_is_named(service: ServiceThread, session: str) -> None:
    done = invoke_token(service, "revoke", "--session", session)
    assert "treehammer token sessions" in str(done.exception)


def test_holder_has_limited_number_of_sessions(
    service: ServiceThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treehammer.sql.auth.keyring.MAX_SESSIONS_PER_HOLDER", 2)
    key, other = service.make_key("read").text, service.make_key("read").text
    kept = sign_in(service, other)
    cookies = []
    for _ in range(3):
        service.clock[0] += 1
        cookies.append(sign_in(service, key))
    assert [can_read(service, cookie) for cookie in cookies] == [False, True, True]
    assert can_read(service, kept)


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


def test_session_cookie_is_bound_to_host_under_tls(start_service: StartService) -> None:
    """Attack: a sibling domain sets the cookie of a session of its own over TLS."""
    tls = {"X-Forwarded-Proto": "https", **BROWSER}
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
