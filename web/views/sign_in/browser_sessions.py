"""Sessions of signed-in browsers and their cookies."""

from __future__ import annotations

from contextlib import suppress

import anyio
from starlette.requests import Request
from starlette.responses import Response

from treehammer.collectors.record.metric_catalogue import MAX_WORD
from treehammer.durations import SECOND_US
from treehammer.errors import StoreError
from treehammer.sql.auth.read_sessions import SessionHolder
from treehammer.sql.write.audit_trail import SIGN_IN, SIGN_OUT
from treehammer.web.core.auth import require_read_grant, session_cookie, session_token
from treehammer.web.core.responses import AUDITED, KEY_ID, service_unavailable
from treehammer.web.views.shared.page_context import PageContext

_DAY_US = 86400 * SECOND_US


async def holder_of_key(context: PageContext, key: str, days: int) -> tuple[SessionHolder, int]:
    """Verify a key for reading, and return its holder and the end of a session of at most ``days``.

    Raises:
        RequestRefusedError: the key may not read, or keys cannot be checked now.
    """
    grant = require_read_grant(await context.access_control.grant_for_token(key))
    expires_us = context.access_control.now_us() + days * _DAY_US
    if grant.expires_us is not None:
        expires_us = min(expires_us, grant.expires_us)
    return SessionHolder(grant.role, grant.name, key_id=grant.key_id), expires_us


async def open_session(
    context: PageContext,
    request: Request,
    response: Response,
    holder: SessionHolder,
    expires_us: int,
) -> None:
    """Open a session, and give its token to the browser.

    Raises:
        RequestRefusedError: the database cannot be written now.
    """
    now_us = context.access_control.now_us()
    address = request.client.host[:MAX_WORD] if request.client else "-"

    def open_() -> str:
        return context.database.open_session(
            holder, address=address, now_us=now_us, expires_us=expires_us
        )

    try:
        token = await anyio.to_thread.run_sync(open_)
    except StoreError as error:
        raise service_unavailable(f"signing in is not possible now: {error.message}") from error
    response.set_cookie(
        session_cookie(request),
        token,
        max_age=max(1, (expires_us - now_us) // SECOND_US),
        httponly=True,
        samesite="lax",
        secure=request.scope["scheme"] == "https",
    )
    _note_event(request, SIGN_IN, holder.identity or holder.name, holder.key_id or "")


async def end_session(context: PageContext, request: Request, response: Response) -> None:
    """End the browser's session, and delete its cookie.

    Raises:
        RequestRefusedError: the database cannot be written now, so that the session goes on.
    """
    if token := session_token(request):
        try:
            await anyio.to_thread.run_sync(context.database.end_session, token)
        except StoreError as error:
            raise service_unavailable(
                f"the session could not be ended: {error.message}. Sign out again"
            ) from error
        with suppress(StoreError):
            # Other processes on this database notice within seconds.
            await context.access_control.refresh()
        _delete_cookie(request, response, session_cookie(request))
        _note_event(request, SIGN_OUT, "browser")


def _note_event(request: Request, action: str, subject: str, key_id: str = "") -> None:
    """Keep an event for the audit trail in the state of its request."""
    state = request.scope.setdefault("state", {})
    state[AUDITED], state[KEY_ID] = (action, subject), key_id


def _delete_cookie(request: Request, response: Response, name: str) -> None:
    response.delete_cookie(
        name, httponly=True, samesite="lax", secure=request.scope["scheme"] == "https"
    )
