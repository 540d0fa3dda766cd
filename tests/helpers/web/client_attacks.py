"""Attacks whose effect depends on the proxy: headers, bodies, starvation."""

from __future__ import annotations

import http.client
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import httpx
from measurement_factory import make_measurement
from proxied_service import USER_HEADER, VICTIM, ProxiedService
from service_thread import make_body

from treehammer.web.service.proxy_setup import SECRET_HEADER

SERVED = "others are served"
Attack = Callable[[ProxiedService], str]
#: Attack, as the page names it -> function that tries it and returns the result.
ATTACKS: dict[str, Attack] = {}
OPEN_SIGN_IN = (
    b"POST /sign-in HTTP/1.1\r\nHost: HOST\r\nContent-Length: 100\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\na"
)
HALF_SENT_HEADERS = b"GET / HTTP/1.1\r\nHost: HOST\r\nX: "


def attack(name: str) -> Callable[[Attack], Attack]:
    """Add an attack under its name on the page."""

    def add(function: Attack) -> Attack:
        ATTACKS[name] = function
        return function

    return add


def join_statuses(*answers: httpx.Response) -> str:
    """Return the different statuses of answers, in order of their first one."""
    return ", ".join(dict.fromkeys(str(answer.status_code) for answer in answers))


@attack("a client that claims to be a proxy")
def claim_to_be_a_proxy(service: ProxiedService) -> str:
    answer = service.get(
        "/api/v1/overview", source="127.0.0.3", X_Forwarded_For="192.0.2.66",
        X_Forwarded_Proto="http", X_Treehammer_Proxy="root",
    )  # fmt: skip
    service.wait_for_log("127.0.0.3 GET /api/v1/overview")
    assert "192.0.2.66" not in service.read_log()
    return join_statuses(answer)


@attack("a client that names itself in the header of `serve_user_header`")
def claim_to_be_a_user(service: ProxiedService) -> str:
    return join_statuses(service.get("/api/v1/overview", **{USER_HEADER: "root"}))


@attack("a user of the service's machine who claims to be the proxy, at the service itself")
def pass_by_the_proxy(service: ProxiedService) -> str:
    url = f"http://127.0.0.1:{service.settings.serve_port}/api/v1/overview"
    headers = {USER_HEADER: "root", "X-Forwarded-For": "192.0.2.67", "X-Forwarded-Proto": "https"}
    answers = [
        httpx.get(url, headers=headers | forged, timeout=60)
        for forged in ({}, {SECRET_HEADER: ""}, {SECRET_HEADER: "guess"})
    ]
    assert "192.0.2.67" not in service.read_log()
    return join_statuses(*answers)


@attack("plain HTTP after a visit over TLS; guessed content types")
def look_for_headers(service: ProxiedService) -> str:
    for path in ("/static/page.css", "/none", "/", "/api/v1/health", "/campaigns/"):
        headers = service.get(path).headers
        assert headers.get_list("Strict-Transport-Security") == ["max-age=31536000"], path
        assert headers.get_list("X-Content-Type-Options") == ["nosniff"], path
    return "HSTS and `nosniff` on every response"


@attack("a body above 16 MB")
def send_a_large_body(service: ProxiedService) -> str:
    key = service.make_key("mallory").text
    request = (
        f"POST /api/v1/measurements HTTP/1.1\r\nHost: {service.host}\r\n"
        f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        "Content-Length: 16800000\r\n\r\n"
    )
    with service.connect() as connection:
        connection.sendall(request.encode())
        with suppress(OSError):  # A client that sends on after the refusal may miss the answer.
            connection.sendall(b" " * 16_800_000)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
    service.require_service()
    return str(answer.status)


@attack("512 open `POST /sign-in` without a token, half-sent headers or silent connections")
def open_many_requests(service: ProxiedService) -> str:
    refused = 0
    for sent in (OPEN_SIGN_IN, HALF_SENT_HEADERS, b""):
        with ExitStack() as stack:
            opened = [stack.enter_context(service.connect()) for _ in range(512)]
            for connection in opened:
                connection.sendall(sent.replace(b"HOST", service.host.encode()))
            service.require_service()
            for connection in opened:
                connection.setblocking(False)
                with suppress(OSError):
                    refused += b" 429 " in connection.recv(1000)
    return f"429 to some; {SERVED}" if refused else SERVED


@attack("200,000 extras in one request")
def send_many_extras(service: ProxiedService) -> str:
    key = service.make_key("mallory").text
    document = make_body([make_measurement("extras", campaign_id="extras")])
    document["measurements"][0]["extras"] = {f"e{n}": 1.0 for n in range(200_000)}
    extras = {f"e{n}": 1.0 for n in range(256)}
    many = [
        make_measurement(position=p, campaign_id="extras", extras=extras) for p in range(1, 501)
    ]
    alone, together = service.post(document, key), service.send(key, *many)
    service.require_service()
    return f"{join_statuses(alone)} above 256, {join_statuses(together)} above 10,000 in a request"


@contextmanager
def endless_query(service: ProxiedService) -> Iterator[None]:
    """Replace the table of campaigns by a view whose rows never end."""
    with closing(sqlite3.connect(service.database.removeprefix("sqlite:///"))) as connection:
        connection.execute("PRAGMA legacy_alter_table=ON")
        connection.execute("ALTER TABLE campaign RENAME TO renamed")
        connection.execute(
            "CREATE VIEW campaign AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
            "SELECT renamed.* FROM c LEFT JOIN renamed WHERE c.x < 0"
        )
        connection.commit()
        try:
            yield
        finally:
            connection.execute("DROP VIEW campaign")
            connection.execute("ALTER TABLE renamed RENAME TO campaign")
            connection.commit()


@attack("a page whose query never ends")
def query_without_end(service: ProxiedService) -> str:
    reader = service.make_key("reader", "read").text
    with endless_query(service):
        answer = service.get("/campaigns?format=json", Authorization=f"Bearer {reader}")
    assert "took longer than 3 s" in answer.json()["error"]
    return f"{answer.status_code} after `serve_query_seconds`"


@attack("twelve readers who ask for it and leave")
def leave_queries(service: ProxiedService) -> str:
    reader = service.make_key("reader", "read").text
    request = f"GET /campaigns?format=json HTTP/1.1\r\nHost: {service.host}\r\nAuthorization: Bearer {reader}\r\n\r\n"
    with endless_query(service):
        for _ in range(12):
            with service.connect() as connection:
                connection.sendall(request.encode())
        answer = service.get("/sites?format=json", source=VICTIM, Authorization=f"Bearer {reader}")
    assert answer.status_code == 200
    return SERVED
