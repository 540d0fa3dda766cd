"""Signing in with a key, and signing out."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from treehammer.web.core.auth import session_token
from treehammer.web.core.cross_site_requests import refuse_cross_site
from treehammer.web.core.local_addresses import redirect_locally, requested_address
from treehammer.web.core.responses import RequestRefusedError, note_refusal
from treehammer.web.views.shared.page_context import PageContext, PageView
from treehammer.web.views.sign_in import browser_sessions

#: Larger forms are refused.
_MAX_FORM_BYTES = 8192
#: Days for which a session opened with a key lasts.
KEY_SESSION_DAYS = 30


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the routes for signing in and out."""

    async def sign_in(request: Request) -> Response:
        refuse_cross_site(request)
        form = await _read_form(request)
        target = form.get("next", "")
        try:
            holder, expires_us = await browser_sessions.holder_of_key(
                context, form.get("token", "").strip(), KEY_SESSION_DAYS
            )
        except RequestRefusedError as refusal:
            if refusal.status == 503:
                raise
            note_refusal(request, refusal)
            return sign_in_view(context, request, str(refusal), refusal.headers, target)
        response = redirect_locally(target)
        await browser_sessions.open_session(context, request, response, holder, expires_us)
        return response

    async def sign_out(request: Request) -> Response:
        refuse_cross_site(request)
        response = redirect_locally("/")
        await browser_sessions.end_session(context, request, response)
        return response

    return [
        Route("/sign-in", sign_in, name="sign-in", methods=["POST"]),
        Route("/sign-out", sign_out, name="sign-out", methods=["POST"]),
    ]


def sign_in_view(
    context: PageContext,
    request: Request,
    sentence: str,
    headers: Mapping[str, str],
    target: str = "",
) -> Response:
    """Ask for a key.

    Args:
        context: renders the page.
        request: refused, since it lacks the permission to read.
        sentence: the reason.
        headers: of the response.
        target: address to show afterwards, by default that of the request.
    """
    values = {
        "sentence": sentence,
        "target": target or requested_address(request),
        "provider": urlsplit(context.provider_name).hostname or "",
        "tried": request.method == "POST" or bool(session_token(request)),
    }
    title = "Sign in to read results" if context.provider_name else "Reading needs a key"
    view = PageView("sign_in.html.j2", title, values, status=401)
    response = context.render_html(view, request)
    response.headers.update(headers)
    return response


async def _read_form(request: Request) -> dict[str, str]:
    """Read a small URL-encoded form.

    Raises:
        RequestRefusedError: the form is too long or malformed.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_FORM_BYTES:
            raise RequestRefusedError(413, "the form is too long")
    try:
        fields = parse_qs(body.decode("ascii"), errors="strict", max_num_fields=10)
    except ValueError:
        raise RequestRefusedError(400, "the form cannot be read") from None
    return {name: values[0] for name, values in fields.items()}
