"""Addresses on this service, never built from the Host header, which any client can choose."""

from __future__ import annotations

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Match, Router
from starlette.types import Receive, Scope, Send

#: Characters of a path that need no quoting.
_SAFE_IN_PATHS = "/:@!$&'()*+,;=~"


def requested_path(request: Request) -> str:
    """Return the path of a request, quoted. ``request.url`` would start with the Host header."""
    return quote(request.scope["path"], safe=_SAFE_IN_PATHS)


def requested_address(request: Request) -> str:
    """Return the path and query of a request."""
    query = request.scope["query_string"].decode("latin-1")
    return requested_path(request) + (f"?{query}" if query else "")


def is_local_address(address: str) -> bool:
    """Return whether a browser would stay on this service."""
    return (
        address.startswith("/") and not address.startswith(("//", "/\\")) and address.isprintable()
    )


def redirect_locally(address: str) -> RedirectResponse:
    """Redirect to an address on this service, or to the overview if it is elsewhere."""
    target = address if is_local_address(address) else "/"
    return RedirectResponse(target, 303, headers={"Cache-Control": "no-store"})


class SlashRedirects:
    """Redirects addresses with a missing or surplus slash at the end; refuses other unknown ones.

    Replaces Starlette's redirects, whose target is built from the Host header.

    Args:
        router: its default becomes this object.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._refuse = router.default
        router.redirect_slashes = False
        router.default = self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for which there is no route."""
        if scope["type"] == "http" and self._has_route(_toggle_slash(scope["path"]), scope):
            request = Request({**scope, "path": _toggle_slash(scope["path"])})
            response = RedirectResponse(requested_address(request), 307)
            await response(scope, receive, send)
        else:
            await self._refuse(scope, receive, send)

    def _has_route(self, path: str, scope: Scope) -> bool:
        if not is_local_address(path):
            return False
        other = {**scope, "path": path}
        return any(route.matches(other)[0] is not Match.NONE for route in self._router.routes)


def _toggle_slash(path: str) -> str:
    return path.rstrip("/") if path.endswith("/") else f"{path}/"
