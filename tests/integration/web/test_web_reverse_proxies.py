"""The service behind nginx and Caddy, attacked through them."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from monitoring_servers import CADDY, NGINX, run_proxy
from service_process import ATTACKER, PATIENCE_S, VICTIM, AttackedService, run_attacked_service
from service_thread import make_body, make_sent_measurement

from treehammer.testbed.credentials import CertificateAuthority

pytestmark = pytest.mark.xdist_group("reverse-proxies")

HEALTH = "/api/v1/health"
OPEN_SIGN_IN = b"POST /sign-in HTTP/1.1\r\nHost: HOST\r\nContent-Length: 100\r\n\r\na"
HALF_SENT_HEADERS = b"GET / HTTP/1.1\r\nHost: HOST\r\nX: "


class ProxiedService:
    """A service and the proxy in front of it."""

    def __init__(self, service: AttackedService, port: int, authority: CertificateAuthority):
        self.service = service
        self._port = port
        # Caddy answers requests to other hosts itself.
        self.host = f"127.0.0.1:{port}".encode()
        self._context = ssl.create_default_context(cafile=str(authority.ca))

    def connect(self, source: str) -> ssl.SSLSocket:
        """Open a TLS connection from an address."""
        plain = socket.create_connection(
            ("127.0.0.1", self._port), timeout=PATIENCE_S, source_address=(source, 0)
        )
        return self._context.wrap_socket(plain, server_hostname="127.0.0.1")

    def request(
        self, method: str, path: str, body: bytes | None = None, source: str = VICTIM, **more: str
    ) -> tuple[int, Any]:
        """Send a request through the proxy; return status and document."""
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self._port, timeout=PATIENCE_S, source_address=(source, 0),
            context=self._context,
        )  # fmt: skip
        try:
            connection.request(
                method, path, body, {k.replace("_", "-"): v for k, v in more.items()}
            )
            answer = connection.getresponse()
            text = answer.read()
            is_json = "json" in (answer.getheader("content-type") or "")
            return answer.status, json.loads(text) if is_json else text
        finally:
            connection.close()


@pytest.fixture(scope="module", params=[NGINX, CADDY])
def proxied(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxiedService]:
    folder = tmp_path_factory.mktemp(request.param)
    authority = CertificateAuthority(folder / "authority")
    with (
        run_attacked_service(folder, "--behind-proxy", serve_requests_per_second=3) as service,
        run_proxy(request.param, folder / "proxy", service.port, authority) as port,
    ):
        yield ProxiedService(service, port, authority)


def test_proxy_passes_uploads_and_addresses_on(proxied: ProxiedService) -> None:
    key = proxied.service.make_key("alice").text
    body = json.dumps(make_body([make_sent_measurement(position=p) for p in range(1, 101)]))
    status, document = proxied.request(
        "POST", "/api/v1/measurements", body.encode(), Authorization=f"Bearer {key}",
        Content_Type="application/json", X_Forwarded_For="192.0.2.66", source="127.0.0.3",
    )  # fmt: skip
    assert (status, document["new"]) == (200, 100)
    proxied.service.wait_for_log("127.0.0.3 POST /api/v1/measurements 200")
    assert "192.0.2.66" not in proxied.service.log.read_text(), (
        "the address is not the client's to choose"
    )


def test_proxy_refuses_large_bodies(proxied: ProxiedService) -> None:
    key = proxied.service.make_key("bob").text
    # A client that sends on after the refusal may miss the response.
    with suppress(OSError, http.client.HTTPException):
        status, _ = proxied.request(
            "POST", "/api/v1/measurements", b" " * 16_800_000, Authorization=f"Bearer {key}",
            Content_Type="application/json",
        )  # fmt: skip
        assert status == 413
    assert proxied.request("GET", HEALTH)[0] == 200


@pytest.mark.parametrize("sent", [OPEN_SIGN_IN, HALF_SENT_HEADERS], ids=["body", "head"])
def test_proxy_serves_others_during_attack(proxied: ProxiedService, sent: bytes) -> None:
    with ExitStack() as stack:
        waiting = [stack.enter_context(proxied.connect(ATTACKER)) for _ in range(300)]
        for one in waiting:
            one.sendall(sent.replace(b"HOST", proxied.host))
        for _ in range(3):
            assert proxied.request("GET", HEALTH)[0] == 200
        first = waiting[0]
        while first.recv(10_000):  # It is closed within its timeout.
            pass


def test_limits_apply_to_forwarded_address(proxied: ProxiedService) -> None:
    with ExitStack() as stack:
        one = stack.enter_context(proxied.connect("127.0.0.4"))
        get = f"GET {HEALTH} HTTP/1.1\r\nHost: {proxied.host.decode()}\r\n\r\n".encode()
        statuses = []
        for _ in range(600):
            one.sendall(get)
            answer = http.client.HTTPResponse(one)
            answer.begin()
            answer.read()
            statuses.append(answer.status)
            if 429 in statuses:
                break
    assert statuses[-1] == 429
    assert proxied.request("GET", HEALTH, source="127.0.0.5")[0] == 200
