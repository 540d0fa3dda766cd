"""Protection against forms that other sites make a visitor's browser send."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request

from treehammer.web.core.responses import RequestRefusedError

#: Values of Sec-Fetch-Site for a form of this service, and for one that no page has sent.
_OWN_SITES = ("same-origin", "none")


def refuse_cross_site(request: Request) -> None:
    """Refuse a request that a page of another site has sent.

    Browsers state that in ``Sec-Fetch-Site``, older ones and those without TLS in ``Origin``; pages
    cannot change either. A request without both comes from a program, which has no cookies to abuse.

    Raises:
        RequestRefusedError: another site, or another host of this site, has sent it.
    """
    fetch_site = request.headers.get("sec-fetch-site")
    if fetch_site is not None:
        is_own = fetch_site in _OWN_SITES
    else:
        origin = request.headers.get("origin")
        is_own = origin is None or _host_of(origin) == request.headers.get("host", "").lower()
    if not is_own:
        raise RequestRefusedError(
            403,
            "this form was sent by another site. Sign in and out on the pages of this service. "
            "If these are behind a proxy, it must pass the header Host on",
        )


def _host_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower() or origin
    except ValueError:
        return origin
