"""Attacks by Host headers, other sites' forms and guessed content types."""

from __future__ import annotations

import logging
import socket
import time

import pytest
from service_thread import ServiceThread

from treehammer.sql.auth.access_keys import mint_job_token

BROWSER = {"Accept": "text/html,*/*"}
EVIL = "evil.example"


@pytest.mark.parametrize("host", [EVIL, f"{EVIL}/x?", f"user@{EVIL}:80", "[::1", ""])
def test_redirects_never_contain_the_host(filled_service: ServiceThread, host: str) -> None:
    addresses = [
        "/campaigns/",
        "/explore/?days=7&x=%2F",
        "/compare/",
        "/sites/",
        "/sites/SITE_A/",
        "/api/v1/sites/",
    ]
    locations = []
    for address in addresses:
        answer = filled_service.client.get(address, headers=BROWSER | {"Host": host})
        locations.append(answer.headers.get("Location", ""))
    assert locations[:3] == ["/campaigns", "/explore?days=7&x=%2F", "/compare"]
    assert all(EVIL not in one and not one.startswith("//") for one in locations)


@pytest.mark.parametrize("path", ["//evil.example/", "//evil.example/campaigns/", "/\\evil/"])
def test_redirects_stay_on_the_service(filled_service: ServiceThread, path: str) -> None:
    with raw_connection(filled_service) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b"location" not in answer.lower()


def raw_connection(service: ServiceThread) -> socket.socket:
    address = service.client.base_url
    return socket.create_connection((address.host, address.port), timeout=30)


def read_all(connection: socket.socket) -> bytes:
    received = b""
    while part := connection.recv(65536):
        received += part
    return received


def test_sign_in_page_does_not_trust_the_host(shared_service: ServiceThread) -> None:
    """The path of a URL built from the Host header begins inside that header."""
    headers = BROWSER | {"Host": f"x/\\{EVIL}?"}
    page = shared_service.client.get("/campaigns?a=1", headers=headers)
    assert page.status_code == 401
    assert EVIL not in page.text
    assert 'name="next" value="/campaigns?a=1"' in page.text


@pytest.fixture(scope="module")
def reader_key(shared_service: ServiceThread) -> str:
    return shared_service.make_key("read").text


FOREIGN = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": f"https://{EVIL}"},
    {"Origin": "null"},
    {"Origin": "garbage"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://testserver"},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_forms_of_other_sites_are_refused(
    shared_service: ServiceThread, reader_key: str, headers: dict[str, str]
) -> None:
    """Attack: another site signs its visitor in with the attacker's key, or out."""
    for address, form in (("/sign-in", {"token": reader_key}), ("/sign-out", {})):
        answer = shared_service.client.post(address, data=form, headers=headers)
        assert (answer.status_code, answer.headers.get("Set-Cookie")) == (403, None)
        assert "another site" in answer.json()["error"]


def test_own_forms_are_accepted(shared_service: ServiceThread, reader_key: str) -> None:
    origin = str(shared_service.client.base_url).rstrip("/")
    for headers in ({"Sec-Fetch-Site": "same-origin"}, {"Origin": origin}, {}):
        answer = shared_service.client.post("/sign-in", data={"token": reader_key}, headers=headers)
        assert answer.status_code == 303, headers
    shared_service.client.cookies.clear()


@pytest.mark.parametrize(
    "address",
    [
        "/",
        "/none",
        "/campaigns/",
        "/static/page.css",
        "/static/none",
        "/sites?format=csv",
        "/sites/%00",
        "/api/v1/health",
        "/api/v1/live",
        "/api/v1/openapi.json",
        "/api/v1/none",
        "/explore/figure.png?format=svg",
        "/metrics",
        "/explore?kind=none",
    ],
)
def test_every_answer_forbids_guessing_types(filled_service: ServiceThread, address: str) -> None:
    for headers in ({}, BROWSER, {"If-None-Match": "*"}):
        answer = filled_service.client.get(address, headers=headers)
        assert answer.headers.get_list("X-Content-Type-Options") == ["nosniff"], answer.status_code
        assert "Strict-Transport-Security" not in answer.headers


@pytest.mark.parametrize(
    ("path", "role", "kind"),
    [
        ("/sign-in", "", "application/x-www-form-urlencoded"),
        ("/api/v1/measurements", "submit", "application/json"),
        ("/api/v1/campaigns", "submit", "application/json"),
        ("/api/v1/starts", "job", "application/json"),
    ],
)
@pytest.mark.parametrize(
    "body", ["Content-Length: 100\r\n\r\na", "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n"]
)
def test_aborted_request_is_logged_in_one_line(
    service: ServiceThread,
    caplog: pytest.LogCaptureFixture,
    path: str,
    role: str,
    kind: str,
    body: str,
) -> None:
    """Attack: the browser leaves while it signs in; each time a traceback filled the log."""
    token = ""
    if role:
        key = service.make_key("submit")
        job = mint_job_token(key, "c", "j", service.clock[0] + 60_000_000)
        token = f"Authorization: Bearer {job if role == 'job' else key.text}\r\n"
    caplog.set_level(logging.INFO, "treehammer.access")
    with raw_connection(service) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n{token}{body}"
        connection.sendall(head.encode())
        time.sleep(0.1)
    until_s = time.monotonic() + 30
    while not (lines := [one for one in caplog.records if one.name.startswith("treehammer.")]):
        assert time.monotonic() < until_s
        time.sleep(0.02)
    assert [(one.name, getattr(one, "status", 0), one.exc_info) for one in lines] == [
        ("treehammer.access", 400, None)
    ]
