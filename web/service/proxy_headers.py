"""What a proxy in front tells of a request, and nobody else may."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from treehammer.config import Settings

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class TrustedProxyMiddleware:
    """Believes headers that only a proxy may set when they come from one, and drops them otherwise.

    Args:
        app: that handles requests.
        proxies: addresses or networks of proxies.
        reader_header: header that names who reads, '' for none.
    """

    def __init__(self, app: ASGIApp, proxies: Iterable[str], reader_header: str) -> None:
        known = [part.strip() for part in proxies]
        self._plain = app
        # It sets scheme and client by X-Forwarded-Proto and -For.
        self._proxied = ProxyHeadersMiddleware(app, trusted_hosts=known)  # type: ignore[arg-type]
        self._networks = [ipaddress.ip_network(part) for part in known]
        self._header = reader_header.lower().encode()

    @classmethod
    def from_settings(cls, app: ASGIApp, settings: Settings) -> TrustedProxyMiddleware:
        """As the settings say: without a proxy in front nobody is believed."""
        proxies = settings.serve_trusted_proxies.split(",") if settings.serve_behind_proxy else ()
        return cls(app, proxies, settings.serve_user_header)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection."""
        if scope["type"] == "http" and self._header and not self._is_proxy(scope):
            scope = {**scope, "headers": [(k, v) for k, v in scope["headers"] if k != self._header]}
        if scope["type"] == "http" and self._networks:
            await self._proxied(scope, receive, send)  # type: ignore[arg-type]  # uvicorn's own types
        else:
            await self._plain(scope, receive, send)

    def _is_proxy(self, scope: Scope) -> bool:
        try:
            address = ipaddress.ip_address((scope.get("client") or ("", 0))[0])
        except ValueError:
            return False
        return any(address in network for network in self._networks)
