"""Attacks on sessions, headers and requests whose effect depends on the proxy."""

from __future__ import annotations

import http.client
import re
import ssl
import warnings
from collections.abc import Callable
from contextlib import suppress

import httpx
from proxied_service import USER_HEADER, ProxiedService

from treehammer.web.service.proxy_setup import SECRET_HEADER

Attack = Callable[[ProxiedService], str]
#: Attack, as the page names it -> function that tries it and returns the result.
ATTACKS: dict[str, Attack] = {}
BROWSER = {"Accept": "text/html,*/*"}
OPEN_SIGN_IN = (
    b"POST /sign-in HTTP/1.1\r\nHost: HOST\r\nContent-Length: 100\r\n"
    b"Content-Type: application/x-www-form-urlencoded\r\n\r\na"
)


def fill_host(service: ProxiedService, sent: bytes) -> bytes:
    # Caddy answers requests to other hosts itself.
    return sent.replace(b"HOST", service.host.encode())


def attack(name: str) -> Callable[[Attack], Attack]:
    """Add an attack under its name on the page."""

    def add(function: Attack) -> Attack:
        ATTACKS[name] = function
        return function

    return add


def join_statuses(*answers: httpx.Response) -> str:
    """Return the different statuses of answers, in order of their first one."""
    return ", ".join(dict.fromkeys(str(answer.status_code) for answer in answers))


# --- sessions and headers


@attack("a form of another site that signs a visitor in or out")
def send_form_of_another_site(service: ProxiedService) -> str:
    key = service.make_key("reader", "read").text
    with service.make_client() as browser:
        answers = [
            browser.post(path, data=form, headers=headers)
            for path, form in (("/sign-in", {"token": key}), ("/sign-out", {}))
            for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"})
        ]
        same_origin = browser.post("/sign-in", data={"token": key}, headers={"Origin": service.url})
    assert same_origin.status_code == 303, "the proxy passes Host on"
    return join_statuses(*answers)


@attack("a Host header that names another site")
def name_another_host(service: ProxiedService) -> str:
    answer = service.get("/campaigns/", Host="evil.example", **BROWSER)
    assert "evil" not in f"{answer.headers} {answer.text}"
    if answer.status_code == 307:
        return f"redirected to `{answer.headers['Location']}`"
    return f"answered by the proxy: {answer.status_code}, {len(answer.content)} bytes"


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


@attack("TLS 1.0 or 1.1")
def speak_old_tls(service: ProxiedService) -> str:
    agreed = []
    for version in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        # Otherwise the security level of this OpenSSL would refuse them as well.
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings(action="ignore"):
            context.minimum_version = context.maximum_version = version
        with suppress(OSError), context.wrap_socket(service.open_socket()) as connection:
            agreed.append(connection.version())
    assert "TLSv1.2" in agreed
    return "no handshake" if agreed == ["TLSv1.2"] else f"{agreed}"


# --- hostile input


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


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: HOST\r\n\r\n"


@attack("two requests in one (request smuggling)")
def smuggle(service: ProxiedService) -> str:
    answers: dict[str, None] = {}
    for headers in (
        b"Content-Length: 47\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 47\r\n\r\n0\r\n\r\n",
        b"Content-Length: 0\r\nContent-Length: 42\r\n\r\n",
        b"Transfer-Encoding: xchunked\r\n\r\n",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"Content-Length: +0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n+0\r\n\r\n",
    ):
        with service.connect() as connection:
            head = b"POST /sign-out HTTP/1.1\r\nHost: HOST\r\n" + headers
            connection.sendall(fill_host(service, head + SMUGGLED))
            received = b""
            with suppress(OSError):
                connection.settimeout(2)
                while part := connection.recv(10_000):
                    received += part
        first, *later_statuses = re.findall(rb"^HTTP/1.1 (\d+)", received, re.MULTILINE)
        remark = (
            ", the second request answered as one of its own" if later_statuses == [b"404"] else ""
        )
        assert remark or not later_statuses or {first, *later_statuses} == {b"400"}, received
        answers[f"{first.decode()}{remark}"] = None
    return "; ".join(sorted(answers))
