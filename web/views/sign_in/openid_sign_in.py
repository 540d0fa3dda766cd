"""Routes of sign-in by an OpenID provider."""

from __future__ import annotations

import logging

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from treehammer.sql.auth.access_keys import ADMIN, READ
from treehammer.sql.auth.read_sessions import SessionHolder
from treehammer.web.core.local_addresses import redirect_locally
from treehammer.web.core.responses import RequestRefusedError
from treehammer.web.views.shared.page_context import PageContext
from treehammer.web.views.sign_in import browser_sessions
from treehammer.web.views.sign_in.openid_provider import OpenIdProvider, Person
from treehammer.web.views.sign_in.openid_settings import CALLBACK_PATH, OpenIdSettings

_LOG = logging.getLogger("treehammer.service")

#: Hours for which a session lasts. A provider does not say when a person leaves a group.
SESSION_HOURS = 12
#: Seconds between the start of a sign-in and its end.
SIGN_IN_TIMEOUT_S = 600
_HOUR_US = 3600 * 1_000_000
_TARGET = "next"


def routes(context: PageContext, settings: OpenIdSettings | None) -> list[BaseRoute]:
    """Return the routes for signing in at the provider; none without one."""
    if settings is None:
        return []
    # Imported here, as it needs a package of the extra.
    from starlette.middleware.sessions import SessionMiddleware

    provider = OpenIdProvider(settings)

    async def start(request: Request) -> Response:
        request.session[_TARGET] = request.query_params.get(_TARGET, "/")[:2000]
        return await provider.redirect(request)

    async def finish(request: Request) -> Response:
        person = await provider.identify(request)
        holder = SessionHolder(
            _require_reading_role(settings, person), person.name, identity=person.identity
        )
        response = redirect_locally(request.session.pop(_TARGET, "/"))
        expires_us = context.access_control.now_us() + SESSION_HOURS * _HOUR_US
        await browser_sessions.open_session(context, request, response, holder, expires_us)
        return response

    # State, nonce and verifier of the sign-in, signed; browsers send it to this host only.
    cookie = Middleware(
        SessionMiddleware,
        secret_key=context.access_control.derive_secret("sign-in"),
        session_cookie=f"{'__Host-' if settings.is_secure else ''}treehammer_sign_in",
        max_age=SIGN_IN_TIMEOUT_S,
        same_site="lax",
        https_only=settings.is_secure,
    )
    return [
        Route("/sign-in/openid", start, name="openid", methods=["GET"], middleware=[cookie]),
        Route(CALLBACK_PATH, finish, name="openid-callback", methods=["GET"], middleware=[cookie]),
    ]


def _require_reading_role(settings: OpenIdSettings, person: Person) -> str:
    role = settings.role_of(person.groups)
    if role in (READ, ADMIN):
        return role
    groups = ", ".join(map(repr, sorted(person.groups)))
    _LOG.info("sign-in refused: %s is in the groups %.1000s", person.identity, groups or "(none)")
    reason = f"the role '{role}' does not permit it" if role else "none of their groups has a role"
    raise RequestRefusedError(
        403,
        f"{person.name} may not read results here: {reason}. "
        "The operator of this service gives roles to groups (serve_oidc_roles)",
    )
