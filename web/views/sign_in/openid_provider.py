"""Sign-in by an OpenID provider: authorization code with PKCE, state and nonce.

Authlib speaks the protocol and verifies ID tokens; this module adds checks that it leaves to its
callers: the issuer of the discovery document, the audience, and the signature algorithms.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response

from treehammer.web.core.responses import RequestRefusedError, service_unavailable
from treehammer.web.views.sign_in.openid_settings import OpenIdSettings
from treehammer.web_addresses import is_allowed_address

_LOG = logging.getLogger("treehammer.service")

#: Seconds for each wait for the provider, and for all requests of one step of a sign-in.
TIMEOUT_S, TOTAL_TIMEOUT_S = 10.0, 30.0
#: Sign-ins that wait for the provider at the same time.
MAX_CONCURRENT_SIGN_INS = 16
#: Signatures by a private key of the provider. Others are forgeable by its clients, or by everybody.
_ALGORITHMS = frozenset(
    f"{kind}{bits}" for kind in ("RS", "PS", "ES") for bits in (256, 384, 512)
) | {"EdDSA", "Ed25519"}
_ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri", "userinfo_endpoint")
_MAX_CLAIM_CHARS = 1000


@dataclass(frozen=True)
class Person:
    """Person who signed in at the provider."""

    identity: str
    name: str
    groups: frozenset[str]


class OpenIdProvider:
    """A provider, discovered at the first sign-in.

    Args:
        settings: of the provider and of this client.
    """

    def __init__(self, settings: OpenIdSettings) -> None:
        self._settings = settings
        self._limiter = anyio.CapacityLimiter(MAX_CONCURRENT_SIGN_INS)
        self._client: Any = None

    async def redirect(self, request: Request) -> Response:
        """Redirect a browser to the provider; its session cookie keeps state, nonce and verifier.

        Raises:
            RequestRefusedError: the provider does not answer, or cannot be used.
        """
        client = await self._load_client()
        response: Response = await client.authorize_redirect(request, self._settings.callback_url)
        response.headers["Cache-Control"] = "no-store"
        return response

    async def identify(self, request: Request) -> Person:
        """Exchange the code of a callback for an ID token, and verify it.

        Raises:
            RequestRefusedError: the sign-in was not begun by this browser, the provider refused it, or
                its answer is invalid.
        """
        try:
            self._limiter.acquire_on_behalf_of_nowait(request)
        except anyio.WouldBlock:
            raise service_unavailable("too many people are signing in now") from None
        try:
            return await self._identify(request)
        finally:
            self._limiter.release_on_behalf_of(request)

    async def _identify(self, request: Request) -> Person:
        from authlib.common.errors import AuthlibBaseError
        from httpx2 import HTTPError
        from joserfc.errors import JoseError

        client = await self._load_client()
        settings = self._settings
        options = {
            "iss": {"essential": True, "values": [client.server_metadata["issuer"]]},
            "aud": {"essential": True, "values": [settings.client_id]},
        }
        try:
            with anyio.fail_after(TOTAL_TIMEOUT_S):
                token = await client.authorize_access_token(request, claims_options=options)
                claims = dict(token.get("userinfo") or {})
                if not claims:
                    raise _refuse("the provider sent no ID token")
                if (
                    settings.group_claim not in claims
                    and "userinfo_endpoint" in client.server_metadata
                ):
                    claims = _merge_claims(claims, await client.userinfo(token=token))
        except AuthlibBaseError as error:
            raise _refuse(_describe_error(error.error), error) from error
        except (JoseError, ValueError, TypeError, LookupError, AttributeError) as error:
            # Authlib uses the provider's answers before it checks their types.
            raise _refuse("the provider's answer is invalid", error) from error
        except (HTTPError, TimeoutError) as error:
            raise self._unavailable(error) from error
        return self._read_person(claims)

    def _read_person(self, claims: Mapping[str, Any]) -> Person:
        subject = claims.get("sub")
        if not isinstance(subject, str) or not _is_plain(subject):
            raise _refuse("the provider's answer is invalid: it lacks the person's identity")
        names = (claims.get(name) for name in ("preferred_username", "name", "email"))
        name = next(
            (
                candidate
                for candidate in names
                if isinstance(candidate, str) and _is_plain(candidate)
            ),
            subject,
        )
        groups = _list_texts(claims.get(self._settings.group_claim))
        return Person(f"{self._settings.issuer} {subject}", name, frozenset(groups))

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

        settings = self._settings
        file = settings.ca_file
        return OAuth().register(
            "treehammer",
            client_id=settings.client_id,
            client_secret=settings.client_secret,
            server_metadata_url=f"{settings.issuer}/.well-known/openid-configuration",
            client_kwargs={
                "scope": settings.scopes,
                "code_challenge_method": "S256",
                "timeout": TIMEOUT_S,
                "verify": ssl.create_default_context(cafile=str(file) if file else None),
                "token_endpoint_auth_method": "client_secret_basic"
                if settings.client_secret
                else "none",
            },
        )

    def _check_metadata(self, metadata: dict[str, Any]) -> None:
        """Check a discovery document, and limit it to signatures that only the provider can make.

        Raises:
            ValueError: it is of another provider, or incomplete.
        """
        issuer = metadata.get("issuer")
        if not isinstance(issuer, str) or issuer.rstrip("/") != self._settings.issuer:
            raise ValueError(f"it is of the issuer {issuer!r}")
        for name in _ENDPOINTS:
            address = metadata.get(name)
            optional = name == "userinfo_endpoint" and address is None
            if not optional and not is_allowed_address(address):
                raise ValueError(f"its {name} is {address!r}")
        offered = metadata.get("id_token_signing_alg_values_supported") or ["RS256"]
        metadata["id_token_signing_alg_values_supported"] = sorted(_ALGORITHMS & set(offered))

    def _unavailable(self, error: Exception) -> RequestRefusedError:
        _LOG.warning("the OpenID provider %s cannot be used: %r", self._settings.issuer, error)
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


def _describe_error(code: str) -> str:
    """Describe an error of the protocol by its code; its text may come from anybody."""
    if code == "mismatching_state":
        return "this browser has not begun it, or more than ten minutes ago"
    if code == "missing_code":
        return "it was not completed at the provider"
    if code == "access_denied":
        return "it was denied or cancelled at the provider"
    return "the provider refused it"


def _refuse(reason: str, error: Exception | None = None) -> RequestRefusedError:
    _LOG.info("sign-in failed: %s%s", reason, f" ({error!r:.300})" if error else "")
    return RequestRefusedError(403, f"the sign-in failed: {reason}. Start again from the overview")
