"""Access control by tokens, and protection against forms that other sites make a browser send.

Keys and revocations are refreshed every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from starlette.requests import Request

from treehammer.collectors.record.day_numbers import current_us
from treehammer.collectors.record.metric_catalogue import MAX_WORD
from treehammer.errors import ConfigError, StoreError, TokenError
from treehammer.sql.core.access_keys import ADMIN, AccessGrant, AccessList, MasterKeys, verify_token
from treehammer.sql.write.audit_trail import Sender
from treehammer.sql.write.keyring import verify_session
from treehammer.web.core.responses import KEY_ID, RequestRefusedError, service_unavailable

_LOG = logging.getLogger("treehammer.service")

#: Seconds between two refreshes of keys and revocations.
REFRESH_INTERVAL_S = 2.0
#: Seconds after which keys and revocations are too old to decide by.
MAX_AGE_S = 20.0
#: Cookie in which browsers keep the token of their session. Under TLS its prefix makes browsers refuse
#: it from other hosts of the domain, which could otherwise sign a visitor in as somebody else.
SESSION_COOKIE = "treehammer_session"
SECURE_SESSION_COOKIE = f"__Host-{SESSION_COOKIE}"
#: Minimum seconds between two refreshes requested for unknown keys.
UNKNOWN_KEY_RETRY_S = 0.2
#: Values of Sec-Fetch-Site for a form of this service, and for one that no page has sent.
_OWN_SITES = ("same-origin", "none")


class AccessControl:
    """Authorizes requests by their tokens.

    Args:
        load_access: reads keys and revocations from the database; called in a thread.
        user_header: header with the user's name, set by a trusted proxy, '' for none. A request with
            it may read; clients must not be able to send it themselves.
        load_masters: reads the master keys again; called in a thread.
    """

    def __init__(
        self,
        load_access: Callable[[], AccessList],
        masters: MasterKeys,
        *,
        reading_open: bool = False,
        user_header: str = "",
        load_masters: Callable[[], MasterKeys] | None = None,
        now_us: Callable[[], int] = current_us,
    ) -> None:
        self.reading_open = reading_open
        self._user_header = user_header
        self._load_access = load_access
        self._masters = masters
        self._load_masters = load_masters
        self._now_us = now_us
        self._access = AccessList({})
        self._refreshed_s = -MAX_AGE_S
        self._tried_s = -MAX_AGE_S
        self._failure: StoreError | None = None
        self._masters_failure = ""
        self._refreshing = asyncio.Lock()

    def now_us(self) -> int:
        """Return the time in microseconds since 1970 UTC."""
        return self._now_us()

    @property
    def is_fresh(self) -> bool:
        """Whether keys and revocations are recent enough to decide by."""
        return time.monotonic() - self._refreshed_s < MAX_AGE_S

    async def refresh_forever(self) -> None:
        """Refresh keys and revocations periodically until cancelled."""
        logged = ""
        while True:
            try:
                await self.refresh()
                if logged:
                    _LOG.info("keys can be read again")
                logged = ""
            except StoreError as error:
                if error.message != logged:
                    _LOG.warning("keys cannot be read: %s", error)
                logged = error.message
            except Exception:
                # The loop must survive any bug: without refreshes every token would be refused.
                _LOG.exception("keys cannot be read because of a bug")
            await asyncio.sleep(REFRESH_INTERVAL_S)

    async def refresh(self) -> None:
        """Read keys and revocations.

        Concurrent calls share one query and its outcome; the database gets at most five queries per
        second, whether or not it answers.

        Raises:
            StoreError: the database cannot be read.
        """
        called_s = time.monotonic()
        async with self._refreshing:
            if self._tried_s < called_s:
                await asyncio.sleep(self._tried_s + UNKNOWN_KEY_RETRY_S - time.monotonic())
                await self._try_refresh()
            if self._failure:
                raise self._failure.with_traceback(None)

    async def _try_refresh(self) -> None:
        self._tried_s = time.monotonic()
        try:
            access = await asyncio.to_thread(self._load_access)
        except StoreError as error:
            self._failure = error
            return
        self._masters = await asyncio.to_thread(self._reload_masters)
        self._access = access
        self._refreshed_s, self._failure = self._tried_s, None

    def _reload_masters(self) -> MasterKeys:
        """Read the master keys again, so that a rotation needs no restart."""
        try:
            masters = self._load_masters() if self._load_masters else self._masters
            failure = ""
        except ConfigError as error:
            masters, failure = self._masters, str(error)
        if failure != self._masters_failure:
            _LOG.warning("keeping the master key in use: %s", failure or "it can be read again")
        self._masters_failure = failure
        return masters

    async def authenticate(
        self, request: Request, *, accept_stale_keys: bool = False
    ) -> AccessGrant:
        """Verify the request's token.

        Args:
            accept_stale_keys: decide by the keys last read if they cannot be read now.

        Raises:
            RequestRefusedError: the token is missing or invalid, or keys cannot be read now.
        """
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise _unauthorized(
                "a token is required: Authorization: Bearer TOKEN. "
                "Its operator creates one: treehammer token create --role ROLE --name NAME"
            )
        if accept_stale_keys and not self.is_fresh:
            try:
                return self._verify_token(token.strip())
            except TokenError as error:
                raise _unauthorized(error.message) from None
        grant = await self.grant_for_token(token.strip())
        request.scope.setdefault("state", {})[KEY_ID] = grant.key_id
        return grant

    async def grant_for_token(self, token: str) -> AccessGrant:
        """Verify a token, after a refresh if its key is unknown; an invalid one is refused."""
        return await self._verify_refreshing(lambda: self._verify_token(token))

    async def grant_for_session(self, token: str) -> AccessGrant:
        """Verify the token of a session, after a refresh if it is unknown."""
        return await self._verify_refreshing(
            lambda: verify_session(token, self._access, self._masters, self._now_us())
        )

    async def _verify_refreshing(self, verify: Callable[[], AccessGrant]) -> AccessGrant:
        unavailable = "keys cannot be checked now: the database does not answer"
        if not self.is_fresh:
            raise service_unavailable(unavailable)
        try:
            return verify()
        except TokenError as error:
            if not error.may_be_new:
                raise _unauthorized(error.message) from None
        try:
            await self.refresh()
            return verify()
        except TokenError as error:
            raise _unauthorized(error.message) from None
        except StoreError:
            raise service_unavailable(unavailable) from None

    def _verify_token(self, token: str) -> AccessGrant:
        return verify_token(token, self._access, self._masters, self._now_us())

    async def require_submitter(self, request: Request) -> AccessGrant:
        """Require a token that permits uploads; others are refused."""
        grant = await self.authenticate(request)
        if not grant.may_submit:
            raise RequestRefusedError(403, f"a token of the role '{grant.role}' may not upload")
        return grant

    async def require_reader(self, request: Request) -> AccessGrant | None:
        """Require a reader; return None where reading needs no token.

        A signed-in browser sends the token of its session in a cookie, which permits nothing but reading.
        """
        if self.reading_open or (self._user_header and request.headers.get(self._user_header)):
            return None
        session = session_token(request)
        if "authorization" in request.headers or not session:
            return require_read_grant(await self.authenticate(request))
        return require_read_grant(await self.grant_for_session(session))


def session_cookie(request: Request) -> str:
    """Return the name of the session cookie: under TLS the one that belongs to this host alone."""
    return SECURE_SESSION_COOKIE if request.scope["scheme"] == "https" else SESSION_COOKIE


def session_token(request: Request) -> str:
    """Return the token of the browser's session; '' without one."""
    return request.cookies.get(session_cookie(request), "")


def make_sender(request: Request, grant: AccessGrant) -> Sender:
    """Identify the sender of a request; administrators act for all groups."""
    address = request.client.host if request.client else ""
    return Sender(
        key_id=grant.key_id,
        owner=grant.owner,
        address=address[:MAX_WORD] or "-",
        received_us=current_us(),
        acts_for_all=grant.role == ADMIN,
        is_job=grant.job_id is not None,
    )


def require_read_grant(grant: AccessGrant) -> AccessGrant:
    """Return a grant that permits reading; others are refused."""
    if not grant.may_read:
        raise RequestRefusedError(
            403,
            f"a token of the role '{grant.role}' may not read results. "
            "The service's operator creates one: treehammer token create --role read --name NAME",
        )
    return grant


def _unauthorized(sentence: str) -> RequestRefusedError:
    return RequestRefusedError(
        401, sentence, headers={"WWW-Authenticate": 'Bearer realm="treehammer"'}
    )


def refuse_cross_site(request: Request) -> None:
    """Refuse a request that a page of another site or host has sent.

    Browsers state that in ``Sec-Fetch-Site``, older ones and those without TLS in ``Origin``; pages
    cannot change either. A request without both comes from a program, which has no cookies to abuse.
    """
    fetch_site = request.headers.get("sec-fetch-site")
    if fetch_site is not None:
        is_own = fetch_site in _OWN_SITES
    else:
        origin, host = (request.headers.get(name, "").lower() for name in ("origin", "host"))
        is_own = origin in ("", f"http://{host}", f"https://{host}")
    if not is_own:
        raise RequestRefusedError(
            403,
            "this form was sent by another site. Sign in and out on the pages of this service. "
            "If these are behind a proxy, it must pass the header Host on",
        )
