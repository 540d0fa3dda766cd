"""OpenID providers for tests: a certified one as a process, and one that lies."""

from __future__ import annotations

import base64
import functools
import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urljoin

import httpx
import uvicorn
from joserfc import jwt
from joserfc.jwk import RSAKey
from machine_requirements import fetch_npm_package
from service_process import serve_folder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from treehammer.testbed.network import find_free_ports

CLIENT_ID, CLIENT_SECRET = "treehammer", "s" * 32
_VERSION = "8.8.1"
_FORM = re.compile(r'<form[^>]* action="([^"]+)"')
_FIELD = re.compile(r'<input[^>]* name="([^"]+)"[^>]* value="([^"]*)"')


@contextmanager
def run_provider(callback: str) -> Iterator[str]:
    """Run the certified provider, and yield its issuer."""
    package = fetch_npm_package("oidc-provider", _VERSION)
    (port,) = find_free_ports(1)
    script = Path(__file__).with_suffix(".mjs")
    command = [str(shutil.which("node")), str(script), str(package), str(port), callback]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()


@contextmanager
def serve_with_provider(folder: Path) -> Iterator[str]:
    """Serve a folder with sign-in by the provider; the group cms-io may read; yield the address."""
    (port,) = find_free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with run_provider(f"{url}/sign-in/openid/callback") as issuer:
        (folder / "secret").write_text(CLIENT_SECRET)
        (folder / "treehammer.toml").write_text(
            f'serve_url = "{url}"\n'
            f'serve_oidc_issuer = "{issuer}"\n'
            f'serve_oidc_client_id = "{CLIENT_ID}"\n'
            'serve_oidc_client_secret_file = "secret"\n'
            'serve_oidc_scopes = "openid profile groups"\n'
            'serve_oidc_roles = "cms-io=read"\n'
        )
        with serve_folder(folder, "--port", str(port)) as address:
            yield address


def sign_in_at_provider(client: httpx.Client, address: str, person: str) -> httpx.Response:
    """Follow a sign-in through the provider's forms until it returns to the service."""
    answer = client.get(address, follow_redirects=True)
    for _ in range(2):  # who it is, and consent
        action = _FORM.search(answer.text)
        assert action, answer.text
        fields = {**dict(_FIELD.findall(answer.text)), "login": person, "password": "any"}
        target = urljoin(str(answer.url), unescape(action[1]))
        answer = client.post(target, data=fields, follow_redirects=True)
    return answer


@functools.cache
def _make_provider_key() -> RSAKey:
    """Make the key of all providers, since making one takes a tenth of a second."""
    return RSAKey.generate_key(parameters={"kid": "k"})


@dataclass
class LyingProvider:
    """A provider whose answers a test changes."""

    issuer: str
    key: RSAKey = field(default_factory=_make_provider_key)
    signing_key: Any = None
    header: dict[str, str] = field(default_factory=lambda: {"alg": "RS256", "kid": "k"})
    claims: dict[str, Any] = field(default_factory=dict)
    userinfo: Any = field(default_factory=dict)
    keys: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    token: Any = None
    requests: list[dict[str, str]] = field(default_factory=list)

    def app(self) -> Starlette:
        """Build its application."""

        async def discover(_: Request) -> JSONResponse:
            known = {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/auth",
                "token_endpoint": f"{self.issuer}/token",
                "jwks_uri": f"{self.issuer}/jwks",
                "userinfo_endpoint": f"{self.issuer}/me",
                "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
            }
            known |= self.metadata
            return JSONResponse(self.metadata.get("document", known))

        async def keys(_: Request) -> JSONResponse:
            return JSONResponse(self.keys or {"keys": [self.key.as_dict(private=False)]})

        async def exchange(request: Request) -> JSONResponse:
            self.requests.append(dict(parse_qsl((await request.body()).decode())))
            if self.token is not None:
                return JSONResponse(self.token, 400 if "error" in str(self.token) else 200)
            signed = self._sign()
            return JSONResponse(
                {
                    "access_token": "a",
                    "token_type": "Bearer",
                    "expires_in": 3600,
                    "id_token": signed,
                }
            )

        async def userinfo(_: Request) -> JSONResponse:
            return JSONResponse(self.userinfo)

        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", discover),
                Route("/jwks", keys),
                Route("/token", exchange, methods=["POST"]),
                Route("/me", userinfo),
            ]
        )

    def _sign(self) -> str:
        now = int(time.time())
        known = {"iss": self.issuer, "aud": CLIENT_ID, "sub": "4711", "iat": now, "exp": now + 60}
        claims = {k: v for k, v in {**known, **self.claims}.items() if v is not None}
        if self.header["alg"] == "none":
            parts = (json.dumps(one).encode() for one in (self.header, claims))
            return (
                ".".join(base64.urlsafe_b64encode(one).decode().rstrip("=") for one in parts) + "."
            )
        return jwt.encode(
            self.header,
            claims,
            self.signing_key or self.key,
            algorithms=[self.header["alg"]],
        )


@contextmanager
def run_lying_provider() -> Iterator[LyingProvider]:
    """Run a provider in a thread."""
    (port,) = find_free_ports(1)
    provider = LyingProvider(f"http://127.0.0.1:{port}")
    config = uvicorn.Config(provider.app(), host="127.0.0.1", port=port, log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield provider
    finally:
        server.should_exit = True
        thread.join()
