"""Signing in with a key, signing out, and sessions with their cookies."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from urllib.parse import parse_qs

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from treehammer.collectors.record.metric_catalogue import MAX_WORD
from treehammer.errors import StoreError
from treehammer.sql.write.audit_trail import SIGN_IN, SIGN_OUT
from treehammer.text_formatting import SECOND_US
from treehammer.web.addresses import requested_address
from treehammer.web.core import responses
from treehammer.web.core.auth import (
    refuse_cross_site,
    require_read_grant,
    session_cookie,
    session_token,
)
from treehammer.web.page import PageContent
from treehammer.web.page_service import PageContext
from treehammer.web.sections import Special

#: Larger forms are refused.
_MAX_FORM_BYTES = 8192
#: Days for which a session opened with a key lasts.
KEY_SESSION_DAYS = 30


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the routes for signing in and out."""
    access_control, database = context.access_control, context.resources.database

    async def sign_in(request: Request) -> Response:
        """Open a session for the holder of a key, and give its token to the browser."""
        refuse_cross_site(request)
        form = await _read_form(request)
        target = form.get("next", "")
        try:
            grant = await access_control.grant_for_token(form.get("token", "").strip())
            require_read_grant(grant)
        except responses.RequestRefusedError as refusal:
            if refusal.status == 503:
                raise
            responses.note_refusal(request, refusal)
            return sign_in_view(context, request, str(refusal), refusal.headers, target)
        now_us = access_control.now_us()
        expires_us = now_us + KEY_SESSION_DAYS * 86400 * SECOND_US
        if grant.expires_us is not None:
            expires_us = min(expires_us, grant.expires_us)
        address = request.client.host[:MAX_WORD] if request.client else "-"
        times = {"now_us": now_us, "expires_us": expires_us}
        open_now = partial(database.open_session, grant, address=address, **times)
        try:
            token = await anyio.to_thread.run_sync(open_now)
        except StoreError as error:
            text = f"signing in is not possible now: {error.message}"
            raise responses.service_unavailable(text) from error
        response = responses.redirect_locally(target)
        response.set_cookie(
            session_cookie(request),
            token,
            max_age=max(1, (expires_us - now_us) // SECOND_US),
            httponly=True,
            samesite="lax",
            secure=request.scope["scheme"] == "https",
        )
        _note_event(request, SIGN_IN, grant.name, grant.key_id)
        return response

    async def sign_out(request: Request) -> Response:
        """End the browser's session and delete its cookie; refused while the database fails."""
        refuse_cross_site(request)
        response = responses.redirect_locally("/")
        if token := session_token(request):
            try:
                await anyio.to_thread.run_sync(database.end_session, token)
            except StoreError as error:
                text = f"the session could not be ended: {error.message}. Sign out again"
                raise responses.service_unavailable(text) from error
            with suppress(StoreError):
                # Other processes on this database notice within seconds.
                await access_control.refresh()
            cookie, is_secure = session_cookie(request), request.scope["scheme"] == "https"
            response.delete_cookie(cookie, httponly=True, samesite="lax", secure=is_secure)
            _note_event(request, SIGN_OUT, "browser")
        return response

    return [
        Route("/sign-in", sign_in, name="sign-in", methods=["POST"]),
        Route("/sign-in", responses.redirect_locally("/"), methods=["GET"]),
        Route("/sign-out", sign_out, name="sign-out", methods=["POST"]),
    ]


def sign_in_view(
    context: PageContext,
    request: Request,
    sentence: str,
    headers: Mapping[str, str],
    target: str = "",
) -> Response:
    """Ask for a key; the target is shown afterwards, by default the refused request itself."""
    form = Special(
        "sign_in.html.j2",
        sentence=sentence,
        target=target or requested_address(request),
        tried=request.method == "POST" or bool(session_token(request)),
    )
    response = context.render_html(PageContent("Reading needs a key", [form], status=401), request)
    response.headers.update(headers)
    return response


async def _read_form(request: Request) -> dict[str, str]:
    """Read a small URL-encoded form; a long or malformed one is refused."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > _MAX_FORM_BYTES:
            raise responses.RequestRefusedError(413, "the form is too long")
    try:
        fields = parse_qs(body.decode("ascii"), errors="strict", max_num_fields=10)
    except ValueError:
        raise responses.RequestRefusedError(400, "the form cannot be read") from None
    return {name: values[0] for name, values in fields.items()}


def _note_event(request: Request, action: str, subject: str, key_id: str = "") -> None:
    """Keep an event for the audit trail in the state of its request."""
    state = request.scope.setdefault("state", {})
    state[responses.AUDITED], state[responses.KEY_ID] = (action, subject), key_id
