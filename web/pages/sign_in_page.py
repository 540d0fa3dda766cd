"""Signing in with a key or by an OpenID provider, signing out, and sessions with their cookies.

Authlib speaks OpenID's protocol and verifies ID tokens; this module adds checks that it leaves to its
callers: the issuer of the discovery document, the audience, and the signature algorithms.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from treehammer.collectors.record.metric_catalogue import MAX_WORD
from treehammer.config import Settings
from treehammer.errors import ConfigError, StoreError, require_package
from treehammer.program_output import read_secret_file
from treehammer.setting_parsers import is_allowed_address
from treehammer.sql.core.access_keys import ADMIN, READ, ROLES, SUBMIT
from treehammer.sql.write.audit_trail import SIGN_IN, SIGN_OUT
from treehammer.sql.write.keyring import SessionHolder
from treehammer.text_formatting import SECOND_US
from treehammer.web.addresses import requested_address
from treehammer.web.core import responses
from treehammer.web.core.auth import (
    refuse_cross_site,
    require_read_grant,
    session_cookie,
    session_token,
)
from treehammer.web.core.responses import RequestRefusedError, redirect_locally, service_unavailable
from treehammer.web.page import PageContent
from treehammer.web.page_service import PageContext
from treehammer.web.sections import Special

#: Larger forms are refused.
_MAX_FORM_BYTES = 8192
#: Days for which a session opened with a key lasts.
KEY_SESSION_DAYS = 30

_DAY_US = 86400 * SECOND_US


def routes(context: PageContext) -> list[BaseRoute]:
    """Return the routes for signing in and out."""

    async def sign_in(request: Request) -> Response:
        refuse_cross_site(request)
        form = await _read_form(request)
        target = form.get("next", "")
        try:
            holder, expires_us = await holder_of_key(
                context, form.get("token", "").strip(), KEY_SESSION_DAYS
            )
        except responses.RequestRefusedError as refusal:
            if refusal.status == 503:
                raise
            responses.note_refusal(request, refusal)
            return sign_in_view(context, request, str(refusal), refusal.headers, target)
        response = responses.redirect_locally(target)
        await open_session(context, request, response, holder, expires_us)
        return response

    async def sign_out(request: Request) -> Response:
        refuse_cross_site(request)
        response = responses.redirect_locally("/")
        await end_session(context, request, response)
        return response

    return [
        Route("/sign-in", sign_in, name="sign-in", methods=["POST"]),
        Route("/sign-out", sign_out, name="sign-out", methods=["POST"]),
        *_list_provider_routes(context),
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
        provider=urlsplit(context.resources.settings.serve_oidc_issuer).hostname or "",
        tried=request.method == "POST" or bool(session_token(request)),
    )
    title = (
        "Sign in to read results"
        if context.resources.settings.serve_oidc_issuer
        else "Reading needs a key"
    )
    response = context.render_html(PageContent(title, [form], status=401), request)
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


async def holder_of_key(context: PageContext, key: str, days: int) -> tuple[SessionHolder, int]:
    """Verify a key for reading; return its holder and the end of a session of that many days."""
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
    """Open a session, and give its token to the browser."""
    now_us = context.access_control.now_us()
    address = request.client.host[:MAX_WORD] if request.client else "-"

    open_now = partial(
        context.resources.database.open_session,
        holder,
        address=address,
        now_us=now_us,
        expires_us=expires_us,
    )
    try:
        token = await anyio.to_thread.run_sync(open_now)
    except StoreError as error:
        raise responses.service_unavailable(
            f"signing in is not possible now: {error.message}"
        ) from error
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
    """End the browser's session and delete its cookie; refused while the database fails."""
    if token := session_token(request):
        try:
            await anyio.to_thread.run_sync(context.resources.database.end_session, token)
        except StoreError as error:
            raise responses.service_unavailable(
                f"the session could not be ended: {error.message}. Sign out again"
            ) from error
        with suppress(StoreError):
            # Other processes on this database notice within seconds.
            await context.access_control.refresh()
        is_secure = request.scope["scheme"] == "https"
        cookie = session_cookie(request)
        response.delete_cookie(cookie, httponly=True, samesite="lax", secure=is_secure)
        _note_event(request, SIGN_OUT, "browser")


def _note_event(request: Request, action: str, subject: str, key_id: str = "") -> None:
    """Keep an event for the audit trail in the state of its request."""
    state = request.scope.setdefault("state", {})
    state[responses.AUDITED], state[responses.KEY_ID] = (action, subject), key_id


#: Group of all people who sign in.
EVERYBODY = "*"
#: Path to which the provider sends browsers back.
CALLBACK_PATH = "/sign-in/openid/callback"
_PACKAGES = ("authlib", "httpx2", "itsdangerous")
#: Roles, most permissive first; a person in several groups gets the first one.
_PRECEDENCE = (ADMIN, READ, SUBMIT)
_LOG = logging.getLogger("treehammer.service")

#: Seconds for each wait for the provider, and for all requests of one step of a sign-in.
TIMEOUT_S, TOTAL_TIMEOUT_S = 10.0, 30.0
#: Signatures by a private key of the provider. Others are forgeable by its clients, or by everybody.
_ALGORITHMS = frozenset(
    f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512)
) | {"EdDSA", "Ed25519"}
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint")
#: Error of the protocol -> reason for people.
_PROTOCOL_ERRORS = {
    "mismatching_state": "this browser has not begun it, or more than ten minutes ago",
    "missing_code": "it was not completed at the provider",
    "access_denied": "it was denied or cancelled at the provider",
}
_MAX_CLAIM_CHARS = 1000
#: Hours for which a session lasts. A provider does not say when a person leaves a group.
SESSION_HOURS = 12
#: Seconds between the start of a sign-in and its end.
SIGN_IN_TIMEOUT_S = 600
_HOUR_US = 3600 * 1_000_000
_TARGET = "next"


def parse_roles(text: str) -> dict[str, str]:
    """Parse ``GROUP=ROLE,GROUP=ROLE``."""
    roles = {}
    for part in text.split(","):
        group, separator, role = (word.strip() for word in part.rpartition("="))
        if not separator or not group or role not in ROLES:
            raise ConfigError(
                f"expected GROUP=ROLE, not {part.strip()!r}",
                where="serve_oidc_roles",
                hint=f"Roles are {', '.join(ROLES)}; the group * is everybody: cms-io=read",
            )
        roles[group] = role
    return roles


def find_role(roles: Mapping[str, str], groups: Collection[str]) -> str:
    """Return the most permissive role of a person in these groups; '' for none."""
    granted = {role for group, role in roles.items() if group in {*groups, EVERYBODY}}
    return next((role for role in _PRECEDENCE if role in granted), "")


class OpenIdProvider:
    """A provider, discovered at the first sign-in; incomplete settings are refused."""

    def __init__(self, settings: Settings) -> None:
        for name in ("serve_url", "serve_oidc_client_id", "serve_oidc_roles"):
            if not getattr(settings, name):
                raise ConfigError("is missing: serve_oidc_issuer needs it", where=name)
        for package in _PACKAGES:
            require_package(package)
        self._settings = settings
        self._roles = parse_roles(settings.serve_oidc_roles)
        self._secret = read_secret_file(
            "serve_oidc_client_secret_file", settings.serve_oidc_client_secret_file
        )
        self._client: Any = None

    async def redirect(self, request: Request) -> Response:
        """Redirect a browser to the provider; its session cookie keeps state, nonce and verifier."""
        client = await self._load_client()
        # Never built from the Host header.
        callback = self._settings.serve_url + CALLBACK_PATH
        response: Response = await client.authorize_redirect(request, callback)
        response.headers["Cache-Control"] = "no-store"
        return response

    async def identify(self, request: Request) -> SessionHolder:
        """Exchange the code of a callback for an ID token, and verify it and the person's role."""
        from authlib.common.errors import AuthlibBaseError
        from httpx2 import HTTPError
        from joserfc.errors import JoseError

        client = await self._load_client()
        settings = self._settings
        options = {
            "iss": {"essential": True, "values": [client.server_metadata["issuer"]]},
            "aud": {"essential": True, "values": [settings.serve_oidc_client_id]},
        }
        try:
            with anyio.fail_after(TOTAL_TIMEOUT_S):
                token = await client.authorize_access_token(request, claims_options=options)
                claims = dict(token.get("userinfo") or {})
                if not claims:
                    raise _refuse("the provider sent no ID token")
                has_groups = settings.serve_oidc_group_claim in claims
                if not has_groups and "userinfo_endpoint" in client.server_metadata:
                    claims = _merge_claims(claims, await client.userinfo(token=token))
        except AuthlibBaseError as error:
            # Its text may come from anybody.
            reason = _PROTOCOL_ERRORS.get(str(error.error), "the provider refused it")
            raise _refuse(reason, error) from error
        except (JoseError, ValueError, TypeError, LookupError, AttributeError) as error:
            # Authlib uses the provider's answers before it checks their types.
            raise _refuse("the provider's answer is invalid", error) from error
        except (HTTPError, TimeoutError) as error:
            raise self._unavailable(error) from error
        return self._identify_person(claims)

    def _identify_person(self, claims: Mapping[str, Any]) -> SessionHolder:
        subject = claims.get("sub")
        if not isinstance(subject, str) or not _is_plain(subject):
            raise _refuse("the provider's answer is invalid: it lacks the person's identity")
        names = (claims.get(name) for name in ("preferred_username", "name", "email"))
        plain = (name for name in names if isinstance(name, str) and _is_plain(name))
        name = next(plain, subject)
        identity = f"{self._settings.serve_oidc_issuer} {subject}"
        groups = _list_texts(claims.get(self._settings.serve_oidc_group_claim))
        role = find_role(self._roles, groups)
        if role in (READ, ADMIN):
            return SessionHolder(role, name, identity=identity)
        sent = ", ".join(map(repr, sorted(set(groups)))) or "(none)"
        _LOG.info("sign-in refused: %s is in the groups %.1000s", identity, sent)
        reason = (
            f"the role '{role}' does not permit it" if role else "none of their groups has a role"
        )
        raise RequestRefusedError(
            403,
            f"{name} may not read results here: {reason}. "
            "The operator of this service gives roles to groups (serve_oidc_roles)",
        )

    async def _load_client(self) -> Any:
        from httpx2 import HTTPError

        if self._client is None:
            client = self._build_client()
            try:
                with anyio.fail_after(TOTAL_TIMEOUT_S):
                    metadata = await client.load_server_metadata()
                self._check_metadata(metadata)
            except (HTTPError, TimeoutError, ValueError, TypeError) as error:
                raise self._unavailable(error) from error
            self._client = client
        return self._client

    def _build_client(self) -> Any:
        from authlib.integrations.starlette_client import OAuth

        settings, secret = self._settings, self._secret
        file = settings.serve_oidc_ca_file
        return OAuth().register(
            "treehammer",
            client_id=settings.serve_oidc_client_id,
            client_secret=secret,
            server_metadata_url=f"{settings.serve_oidc_issuer}/.well-known/openid-configuration",
            client_kwargs={
                "scope": settings.serve_oidc_scopes,
                "code_challenge_method": "S256",
                "timeout": TIMEOUT_S,
                "verify": ssl.create_default_context(cafile=str(file) if file else None),
                "token_endpoint_auth_method": "client_secret_basic" if secret else "none",
            },
        )

    def _check_metadata(self, metadata: dict[str, Any]) -> None:
        """Check a discovery document, and limit it to signatures that only the provider can make."""
        issuer = metadata.get("issuer")
        if not isinstance(issuer, str) or issuer.rstrip("/") != self._settings.serve_oidc_issuer:
            raise ValueError(f"it is of the issuer {issuer!r}")
        for name in _ENDPOINTS:
            address = metadata.get(name)
            optional = name == "userinfo_endpoint" and address is None
            if not optional and not is_allowed_address(address):
                raise ValueError(f"its {name} is {address!r}")
        offered = metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
        metadata["id_token_signing_alg_values_supported"] = sorted(_ALGORITHMS & set(offered))

    def _unavailable(self, error: Exception) -> RequestRefusedError:
        issuer = self._settings.serve_oidc_issuer
        _LOG.warning("the OpenID provider %s cannot be used: %r", issuer, error)
        return service_unavailable("the sign-in service of your organization cannot be used now")


def _merge_claims(claims: Mapping[str, Any], userinfo: Mapping[str, Any]) -> dict[str, Any]:
    """Add claims of the userinfo endpoint, which is not signed: it must be of the same person."""
    if userinfo.get("sub") != claims.get("sub"):
        raise _refuse("the provider's answer is invalid: it is of two people")
    return {**userinfo, **claims}


def _list_texts(claim: object) -> list[str]:
    """List the texts of a claim, which is a text or a list; of any other type there are none."""
    values = claim if isinstance(claim, list) else [claim]
    return [value for value in values if isinstance(value, str)]


def _is_plain(text: str) -> bool:
    return 0 < len(text) <= _MAX_CLAIM_CHARS and text.isprintable()


def _refuse(reason: str, error: Exception | None = None) -> RequestRefusedError:
    _LOG.info("sign-in failed: %s%s", reason, f" ({error!r:.300})" if error else "")
    return RequestRefusedError(403, f"the sign-in failed: {reason}. Start again from the overview")


def _list_provider_routes(context: PageContext) -> list[BaseRoute]:
    """Return the routes for signing in at the provider; none without one."""
    settings = context.resources.settings
    if not settings.serve_oidc_issuer:
        return []
    # Imported here, as it needs a package of the extra.
    from starlette.middleware.sessions import SessionMiddleware

    provider = OpenIdProvider(settings)
    is_secure = settings.serve_url.startswith("https://")

    async def start(request: Request) -> Response:
        request.session[_TARGET] = request.query_params.get(_TARGET, "/")[:2000]
        return await provider.redirect(request)

    async def finish(request: Request) -> Response:
        holder = await provider.identify(request)
        response = redirect_locally(request.session.pop(_TARGET, "/"))
        expires_us = context.access_control.now_us() + SESSION_HOURS * _HOUR_US
        await open_session(context, request, response, holder, expires_us)
        return response

    # State, nonce and verifier of the sign-in, signed; browsers send it to this host only.
    cookie = Middleware(
        SessionMiddleware,
        secret_key=context.access_control.derive_secret("sign-in"),
        session_cookie=f"{'__Host-' if is_secure else ''}treehammer_sign_in",
        max_age=SIGN_IN_TIMEOUT_S,
        same_site="lax",
        https_only=is_secure,
    )
    return [
        Route("/sign-in/openid", start, name="openid", methods=["GET"], middleware=[cookie]),
        Route(CALLBACK_PATH, finish, name="openid-callback", methods=["GET"], middleware=[cookie]),
    ]
