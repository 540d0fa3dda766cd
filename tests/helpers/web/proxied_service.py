"""The results service as a process behind nginx or Caddy, with the shipped configuration."""

from __future__ import annotations

import json
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from certificate_authority import CertificateAuthority, find_free_port
from command_forker import ForkedCommand, start_command
from monitoring_servers import CADDY, NGINX, run_proxy
from polling import wait_for_server
from service_thread import make_body

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.config import load_settings
from treehammer.sql.core.access_keys import AccessKey
from treehammer.sql.engine.database_setup import open_engine
from treehammer.sql.write.keyring import Keyring, load_master_keys

PATIENCE_S = 90.0
#: Addresses of this machine: attackers and victims must differ.
ATTACKER, VICTIM = "127.0.0.1", "127.0.0.2"
#: Header of the authenticated user; not the one of the documentation.
USER_HEADER = "X-Forwarded-User"


class ProxiedService:
    """A service behind a proxy.

    Args:
        folder: of its database, keys and log.
        proxy: name of the proxy.
        ports: of the service and of the proxy.
        authority: of the proxy's certificate.
    """

    def __init__(
        self,
        folder: Path,
        proxy: str,
        ports: tuple[int, int],
        authority: CertificateAuthority,
    ) -> None:
        self.proxy = proxy
        self.settings = load_settings(
            {
                "data_dir": folder,
                "serve_behind_proxy": True,
                "serve_url": f"https://127.0.0.1:{ports[1]}",
                "serve_port": ports[0],
                "serve_user_header": USER_HEADER,
                "service_ca_file": authority.ca,
            },
            environ={},
        )
        self.database = f"sqlite:///{folder / 'results.db'}"
        self.url = f"https://127.0.0.1:{ports[1]}"
        self.host = f"127.0.0.1:{ports[1]}"
        self._folder, self._ports = folder, ports
        self._log = folder / "serve.log"
        self._process: ForkedCommand | None = None
        self.ca = authority.ca
        self._context = ssl.create_default_context(cafile=str(authority.ca))

    def start(self) -> None:
        """Start the service and wait until it serves."""
        settings = {
            "serve_url": self.url,
            "serve_user_header": USER_HEADER,
            "serve_query_seconds": 3,
        }
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TREEHAMMER_")}
        environment |= {f"TREEHAMMER_{name.upper()}": str(v) for name, v in settings.items()}
        words = ["--data-dir", str(self._folder), "serve", "--behind-proxy"]
        with self._log.open("wb") as log:
            self._process = start_command(
                [*words, "--port", str(self._ports[0])], log, env=environment, folder=self._folder
            )
        self.wait_for_log("uploads require a token")

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def read_log(self) -> str:
        """Read the log of the service."""
        return self._log.read_text()

    def wait_for_log(self, text: str) -> None:
        """Wait until the log holds a text; a line may follow the response that it is about."""
        assert self._process is not None
        wait_for_server(lambda: text in self.read_log(), self._process.poll, self._log, PATIENCE_S)

    # Clients

    def open_socket(self, source: str) -> socket.socket:
        """Connect to the proxy from an address, without a handshake."""
        return socket.create_connection(
            ("127.0.0.1", self._ports[1]), timeout=PATIENCE_S, source_address=(source, 0)
        )

    def connect(self, source: str = ATTACKER) -> ssl.SSLSocket:
        """Open a TLS connection to the proxy from an address."""
        return self._context.wrap_socket(self.open_socket(source), server_hostname="127.0.0.1")

    def make_client(self, source: str = ATTACKER) -> httpx.Client:
        """Make a client of the proxy that keeps cookies."""
        transport = httpx.HTTPTransport(verify=self._context, local_address=source)
        return httpx.Client(base_url=self.url, transport=transport, timeout=PATIENCE_S)

    def get(self, path: str, *, source: str = ATTACKER, **headers: str) -> httpx.Response:
        """Get a path through the proxy."""
        with self.make_client(source) as client:
            return client.get(path, headers=_name_headers(headers))

    def post(
        self,
        content: Any,
        token: str,
        path: str = "/api/v1/measurements",
        *,
        source: str = ATTACKER,
        **headers: str,
    ) -> httpx.Response:
        """Post a body through the proxy: bytes as they are, anything else as JSON."""
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        given = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        with self.make_client(source) as client:
            return client.post(path, content=data, headers=given | _name_headers(headers))

    def send(self, token: str, *measurements: Measurement) -> httpx.Response:
        """Upload measurements."""
        return self.post(make_body(measurements), token)

    def make_key(self, owner: str, role: str = "submit") -> AccessKey:
        """Create a key of a group."""
        engine = open_engine(self.database, create=True)
        master = load_master_keys(self._folder / "service.key").current
        key = Keyring(engine).create_key(master, role, owner, now_us=1, owner=owner)
        engine.dispose()
        return key

    def require_service(self) -> None:
        """Check that a client from another address is served."""
        for _ in range(3):
            answer = self.get("/api/v1/health", source=VICTIM)
            assert (answer.status_code, answer.json()["status"]) == (200, "ok"), self.read_log()


def _name_headers(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@contextmanager
def run_proxied_service(
    folder: Path, proxy: str, **proxy_settings: Any
) -> Iterator[ProxiedService]:
    """Run a service behind a proxy, which is configured for the same settings except the given ones."""
    authority = CertificateAuthority(folder / "authority")
    port, public = find_free_port(), find_free_port()
    service = ProxiedService(folder, proxy, (port, public), authority)
    with run_proxy(proxy, folder / "proxy", replace(service.settings, **proxy_settings), authority):
        service.start()
        try:
            yield service
        finally:
            service.kill()


@contextmanager
def run_both_proxies(make_folder: Callable[[str], Path]) -> Iterator[list[ProxiedService]]:
    """Run a service behind each proxy, in a folder of the proxy's name."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(run_proxied_service(make_folder(proxy), proxy))
            for proxy in (NGINX, CADDY)
        ]
