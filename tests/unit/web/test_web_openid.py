"""Sign-in by an OpenID provider: attacks by browsers, other sites and providers that lie."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc.jwk import OctKey, RSAKey
from local_servers import drip, serve_tcp
from openid_provider import CLIENT_ID, CLIENT_SECRET, LyingProvider, run_lying_provider
from service_thread import ServiceThread, run_service

from treehammer import config
from treehammer.errors import ConfigError
from treehammer.sql.engine.database_setup import open_engine
from treehammer.sql.write.keyring import SessionTable
from treehammer.web.pages import sign_in_page
from treehammer.web.pages.sign_in_page import OpenIdProvider, find_role, parse_roles

BROWSER = {"Accept": "text/html,*/*"}
PUBLIC = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def no_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load no certificate authorities, which takes longer than a sign-in without TLS."""
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)
    monkeypatch.setenv("SSL_CERT_DIR", os.devnull)


@pytest.fixture
def provider() -> Iterator[LyingProvider]:
    with run_lying_provider() as provider:
        provider.claims = {"groups": ["cms-io"], "name": "Alice"}
        yield provider


@pytest.fixture
def service(provider: LyingProvider, tmp_path: Path) -> Iterator[ServiceThread]:
    with run_service(tmp_path, settings=oidc_settings(tmp_path, provider.issuer)) as service:
        yield service


def oidc_settings(folder: Path, issuer: str, **changes: Any) -> config.Settings:
    secret = folder / "secret"
    secret.write_text(CLIENT_SECRET + "\n")
    given = {
        "serve_url": PUBLIC,
        "serve_oidc_issuer": issuer,
        "serve_oidc_client_id": CLIENT_ID,
        "serve_oidc_client_secret_file": secret,
        "serve_oidc_roles": "cms-io=read,cms-admins=admin,cms-jobs=submit",
    }
    return config.load_settings({**given, **changes}, environ={}, folder=folder)


def begin(service: ServiceThread, target: str = "/campaigns") -> dict[str, str]:
    """Begin a sign-in, and return the parameters that the provider gets."""
    answer = service.client.get("/sign-in/openid", params={"next": target})
    assert answer.status_code == 302, answer.text
    query = parse_qs(urlsplit(answer.headers["Location"]).query)
    return {name: values[0] for name, values in query.items()}


def finish(service: ServiceThread, provider: LyingProvider, sent: dict[str, str]) -> httpx.Response:
    provider.claims = {"nonce": sent["nonce"], **provider.claims}
    parameters = {"code": "c", "state": sent["state"]}
    return service.client.get("/sign-in/openid/callback", params=parameters, headers=BROWSER)


def can_read(service: ServiceThread) -> bool:
    return service.client.get("/", headers=BROWSER).status_code == 200


def test_sign_in_opens_session_of_group(service: ServiceThread, provider: LyingProvider) -> None:
    page = service.client.get("/campaigns", headers=BROWSER).text
    assert '<a href="/sign-in/openid?next=%2Fcampaigns">Sign in with 127.0.0.1</a>' in page
    sent = begin(service)
    assert sent["redirect_uri"] == f"{PUBLIC}/sign-in/openid/callback"
    assert (sent["response_type"], sent["code_challenge_method"]) == ("code", "S256")
    answer = finish(service, provider, sent)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/campaigns")
    assert can_read(service)
    (exchanged,) = provider.requests
    digest = hashlib.sha256(exchanged["code_verifier"].encode()).digest()
    assert sent["code_challenge"] == base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    (session,) = list_sessions(service)
    assert (session.name, session.role, session.key_id) == ("Alice", "read", None)
    assert session.identity == f"{provider.issuer} 4711"
    assert session.expires_us - session.created_us == 12 * 3600 * 1_000_000
    service.client.post("/sign-out")
    assert not can_read(service)
    assert list_sessions(service) == []


def list_sessions(service: ServiceThread) -> list[Any]:
    engine = open_engine(service.url, create=False)
    sessions = SessionTable(engine).list_sessions(now_us=0)
    engine.dispose()
    return list(sessions)


def assert_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Require one line on a failed sign-in, without a traceback."""
    lines = [record for record in caplog.records if record.name == "treehammer.service"]
    assert [record.exc_info for record in lines] == [None] * min(len(lines), 1)


def assert_refused(service: ServiceThread, answer: httpx.Response, status: int = 403) -> None:
    assert answer.status_code == status, answer.text
    assert "treehammer_session" not in answer.headers.get("Set-Cookie", "")
    assert list_sessions(service) == []
    assert not can_read(service)


LIES: dict[str, dict[str, Any]] = {
    "nonce of another sign-in": {"claims": {"nonce": "other"}},
    "no nonce": {"claims": {"nonce": None}},
    "token for another client": {"claims": {"aud": "other"}},
    "token for another client, authorized": {"claims": {"aud": "other", "azp": CLIENT_ID}},
    "token of another issuer": {"claims": {"iss": "https://other.example"}},
    "expired": {"claims": {"exp": 1_000_000_000}},
    "no expiry": {"claims": {"exp": None}},
    "nobody": {"claims": {"sub": None}},
    "odd subject": {"claims": {"sub": "a\nb"}},
    "number as subject": {"claims": {"sub": 5}},
    "signed by another key": {"signing_key": partial(RSAKey.generate_key, parameters={"kid": "k"})},
    "signed with the client's secret": {
        "signing_key": OctKey.import_key(CLIENT_SECRET),
        "header": {"alg": "HS256"},
    },
    "not signed": {"header": {"alg": "none"}},
    "no ID token": {"token": {"access_token": "a", "token_type": "Bearer"}},
    "garbage": {"token": {"access_token": "a", "token_type": "Bearer", "id_token": "x.y.z"}},
    "refused code": {"token": {"error": "invalid_grant", "error_description": "<b>no</b>"}},
    "list as token": {"token": ["x"]},
    "text as token": {"token": "x"},
    "number as token": {"token": 5},
    "null in token": {"token": {"access_token": None, "id_token": None}},
    "numbers in token": {"token": {"access_token": 5, "id_token": 5, "expires_in": "soon"}},
    "lists in token": {"token": {"access_token": [], "id_token": [], "expires_in": []}},
    "odd error": {"token": {"error": ["x"], "error_description": 5}},
    "list as keys": {"keys": ["x"]},
    "odd keys": {"keys": {"keys": 5}},
    "key of an odd type": {"keys": {"keys": [{"kty": ["x"], "kid": "k"}]}},
    "list as user": {"claims": {"groups": None}, "userinfo": ["x"]},
    "number as user": {"claims": {"groups": None}, "userinfo": 5},
    "text as expiry": {"claims": {"exp": "later"}},
    "list as issuer": {"claims": {"iss": ["x"]}},
    "object as audience": {"claims": {"aud": {"x": 1}}},
    "another person's groups": {
        "claims": {"groups": None},
        "userinfo": {"sub": "admin", "groups": ["cms-io"]},
    },
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_lying_provider_signs_nobody_in(
    service: ServiceThread,
    provider: LyingProvider,
    lie: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider.claims |= lie.get("claims", {})
    for name in lie.keys() - {"claims"}:
        value = lie[name]
        setattr(provider, name, value() if callable(value) else value)
    answer = finish(service, provider, begin(service))
    assert "<b>no</b>" not in answer.text
    assert_refused(service, answer)
    assert_one_line(caplog)


@pytest.mark.parametrize(
    "groups", [[], None, ["cms"], "other", ["cms-jobs"], {"cms-io": 1}, [["cms-io"]], 5]
)
def test_people_without_role_are_refused(
    service: ServiceThread, provider: LyingProvider, groups: Any
) -> None:
    provider.claims["groups"] = groups
    provider.userinfo = {"sub": "4711"}
    answer = finish(service, provider, begin(service))
    assert "Alice may not read results here" in answer.text
    assert_refused(service, answer)


def test_groups_come_from_userinfo_if_the_token_lacks_them(
    service: ServiceThread, provider: LyingProvider
) -> None:
    provider.claims["groups"] = None
    provider.userinfo = {"sub": "4711", "groups": ["cms-admins"], "nonce": "x"}
    assert finish(service, provider, begin(service)).status_code == 303
    assert [one.role for one in list_sessions(service)] == ["admin"]


def test_callback_requires_the_browser_that_began(
    service: ServiceThread, provider: LyingProvider
) -> None:
    """Attack: the attacker's own callback, opened in the victim's browser."""
    sent = begin(service)
    service.client.cookies.clear()
    assert_refused(service, finish(service, provider, sent))
    begin(service)
    assert_refused(service, finish(service, provider, sent))
    assert provider.requests == []


def test_callback_cannot_be_repeated(service: ServiceThread, provider: LyingProvider) -> None:
    sent = begin(service)
    assert finish(service, provider, sent).status_code == 303
    service.client.post("/sign-out")
    assert_refused(service, finish(service, provider, sent))


def test_forged_state_cookie_is_refused(service: ServiceThread, provider: LyingProvider) -> None:
    sent = begin(service)
    name = "treehammer_sign_in"
    value = service.client.cookies[name].strip('"')
    payload, _, signature = value.partition(".")
    service.client.cookies.clear()
    service.client.cookies.set(name, f"{payload}.{signature[::-1]}")
    assert_refused(service, finish(service, provider, sent))


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example/", "/\\evil.example"])
def test_sign_in_returns_to_this_service(
    service: ServiceThread, provider: LyingProvider, target: str
) -> None:
    answer = finish(service, provider, begin(service, target))
    assert answer.headers["Location"] == "/"


@pytest.mark.parametrize(
    "query",
    [
        "", "?code=c", "?state=x", "?error=access_denied&state=x", "?error=x&error=y",
        "?state=a&state=b&code=", "?code[]=c&state[]=x", f"?state={'x' * 3000}",
    ],
)  # fmt: skip
def test_incomplete_callback_is_refused(
    service: ServiceThread, query: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = service.client.get(f"/sign-in/openid/callback{query}", headers=BROWSER)
    assert_refused(service, answer)
    assert "Start again" in answer.text
    assert_one_line(caplog)


def test_sign_in_without_a_code_is_refused(
    service: ServiceThread, provider: LyingProvider, caplog: pytest.LogCaptureFixture
) -> None:
    for ending in ("", "&code=", "&error=access_denied", "&code=c&iss=https://other.example"):
        sent = begin(service)
        provider.token = {"error": "invalid_grant"}
        caplog.clear()
        address = f"/sign-in/openid/callback?state={sent['state']}{ending}"
        assert_refused(service, service.client.get(address, headers=BROWSER))
        assert_one_line(caplog)


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://other.example"},
        {"token_endpoint": "http://evil.example/token"},
        {"jwks_uri": None},
        {"document": ["x"]},
        {"document": "x"},
        {"document": None},
        {"issuer": 5},
        {"id_token_signing_alg_values_supported": 5},
        {"id_token_signing_alg_values_supported": [["RS256"]]},
        {"authorization_endpoint": ["x"]},
    ],
)
def test_wrong_discovery_document_is_refused(
    service: ServiceThread, provider: LyingProvider, metadata: dict[str, Any]
) -> None:
    provider.metadata = metadata
    answer = service.client.get("/sign-in/openid", headers=BROWSER)
    assert_refused(service, answer, 503)
    provider.metadata = {}
    assert begin(service)["client_id"] == CLIENT_ID


def test_stopped_provider_is_reported(tmp_path: Path) -> None:
    settings = oidc_settings(tmp_path, "http://127.0.0.1:1")
    with run_service(tmp_path, settings=settings) as service:
        answer = service.client.get("/sign-in/openid", headers=BROWSER)
        assert_refused(service, answer, 503)
        assert "cannot be used now" in answer.text


def test_dripping_provider_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_in_page, "TOTAL_TIMEOUT_S", 0.5)
    with serve_tcp(drip) as port:
        settings = oidc_settings(tmp_path, f"http://127.0.0.1:{port}")
        with run_service(tmp_path, settings=settings) as service:
            answer = service.client.get("/sign-in/openid", headers=BROWSER, timeout=20)
            assert_refused(service, answer, 503)


def test_roles_follow_groups() -> None:
    roles = parse_roles("/cms/io=read, a=b=admin,*=submit")
    assert find_role(roles, ["/cms/io"]) == "read"
    assert find_role(roles, ["/cms/io", "a=b"]) == "admin"
    assert find_role(roles, []) == "submit"


@pytest.mark.parametrize("text", ["cms-io", "=read", "cms-io=", "cms-io=root", "a=read,"])
def test_wrong_roles_are_named(text: str) -> None:
    with pytest.raises(ConfigError, match="GROUP=ROLE"):
        parse_roles(text)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"serve_url": ""}, "serve_url"),
        ({"serve_oidc_client_id": ""}, "serve_oidc_client_id"),
        ({"serve_oidc_roles": ""}, "serve_oidc_roles"),
        ({"serve_oidc_client_secret_file": Path("/none")}, "serve_oidc_client_secret_file"),
        ({"serve_oidc_client_secret_file": Path("/dev/null")}, "is empty"),
    ],
)
def test_missing_settings_are_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        OpenIdProvider(oidc_settings(tmp_path, "https://i.example", **changes))
