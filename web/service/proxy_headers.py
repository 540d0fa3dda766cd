"""Trust in forwarded headers, restricted to configured proxies."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from treehammer.config import Settings

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedProxyMiddleware:
    """Trusts forwarded headers only from configured proxies, and drops the user header otherwise.

    Args:
        app: handles the requests.
        proxies: addresses or networks of trusted proxies.
        user_header: header with the user's name, '' for none.
    """

    def __init__(self, app: ASGIApp, proxies: Iterable[str], user_header: str) -> None:
        trusted = [part.strip() for part in proxies]
        self._plain = app
        # Sets scheme and client from X-Forwarded-Proto and X-Forwarded-For.
        self._proxied = ProxyHeadersMiddleware(app, trusted_hosts=trusted)  # type: ignore[arg-type]
        self._networks = [ipaddress.ip_network(part) for part in trusted]
        self._header = user_header.lower().encode()

    @classmethod
    def from_settings(cls, app: ASGIApp, settings: Settings) -> TrustedProxyMiddleware:
        """Build the middleware from the settings; without a proxy it trusts no client."""
        proxies = settings.serve_trusted_proxies.split(",") if settings.serve_behind_proxy else ()
        return cls(app, proxies, settings.serve_user_header)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection."""
        address = (scope.get("client") or ("", 0))[0]
        if scope["type"] == "http" and self._header and not self.is_proxy(address):
            scope = {**scope, "headers": [(k, v) for k, v in scope["headers"] if k != self._header]}
        if scope["type"] == "http" and self._networks:
            await self._proxied(scope, receive, send)  # type: ignore[arg-type]  # uvicorn's own types
        else:
            await self._plain(scope, receive, send)

    def is_proxy(self, address: str) -> bool:
        """Return whether an address belongs to a trusted proxy."""
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)
