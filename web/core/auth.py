"""Who is let in: keys and revocations as the database has them, never older than a few seconds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from starlette.requests import Request

from treehammer.errors import StoreError, TokenError
from treehammer.sql.auth.tokens import AccessGrant, AccessList, verify_token
from treehammer.web.core.responses import RequestRefusedError, service_unavailable

_LOG = logging.getLogger("treehammer.service")

#: Seconds between two looks at keys and revocations.
REFRESH_INTERVAL_S = 2.0
#: Seconds after which what was seen counts no more.
MAX_AGE_S = 20.0
#: The cookie in which browsers keep a token for reading.
READER_COOKIE = "treehammer_reader"
#: Seconds between two looks for keys that are not known yet.
UNKNOWN_KEY_RETRY_S = 0.2
#: Tokens whose signature is remembered as checked.
MAX_VERIFIED_TOKENS = 20_000


class AccessControl:
    """Lets requests in by their tokens.

    Args:
        look: reads keys and revocations from the database; runs in a thread.
        master: the service's master key.
        reading_open: whether everybody may read.
        reader_header: header by which a proxy in front names who reads, '' for none; what has it
            may read, so that nobody else may be able to send it.
        now_us: the time, in microseconds since 1970 UTC.
    """

    def __init__(
        self,
        look: Callable[[], AccessList],
        master: bytes,
        *,
        reading_open: bool = False,
        reader_header: str = "",
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self.reading_open = reading_open
        self._reader_header = reader_header
        self._look = look
        self._master = master
        self._now_us = now_us
        self._access = AccessList({})
        # A signature is checked once: a job shows the same token again and again.
        self._verified: dict[str, AccessGrant] = {}
        self._looked_s = -MAX_AGE_S
        self._tried_s = -MAX_AGE_S
        self._failure: StoreError | None = None
        self._looking = asyncio.Lock()

    @property
    def is_fresh(self) -> bool:
        """Whether what the doorkeeper knows is fresh enough to decide by."""
        return time.monotonic() - self._looked_s < MAX_AGE_S

    async def refresh_forever(self) -> None:
        """Look again and again, until cancelled."""
        told = ""
        while True:
            try:
                await self.refresh()
                if told:
                    _LOG.info("keys can be read again")
                told = ""
            except StoreError as error:
                if error.message != told:
                    _LOG.warning("keys cannot be read: %s", error)
                told = error.message
            except Exception:
                # Whatever it was: without looking, nobody would be let in any more.
                _LOG.exception("keys cannot be read, which is our fault")
            await asyncio.sleep(REFRESH_INTERVAL_S)

    async def refresh(self) -> None:
        """Know what holds now.

        However many ask, the database is asked five times a second at most, whether it answers or
        not; who waits for one look shares what comes of it.

        Raises:
            StoreError: the database refuses.
        """
        asked_s = time.monotonic()
        async with self._looking:
            if self._tried_s < asked_s:
                await asyncio.sleep(self._tried_s + UNKNOWN_KEY_RETRY_S - time.monotonic())
                await self._try_refresh()
            if self._failure:
                raise self._failure.with_traceback(None)

    async def _try_refresh(self) -> None:
        self._tried_s = time.monotonic()
        try:
            access = await asyncio.to_thread(self._look)
        except StoreError as error:
            self._failure = error
            return
        if access != self._access:
            self._access = access
            self._verified.clear()
        self._looked_s, self._failure = self._tried_s, None

    async def authenticate(self, request: Request) -> AccessGrant:
        """What the bearer of the request's token may do.

        Raises:
            Refusal: there is no token, it does not count, or that cannot be told now.
        """
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise _unauthorized(
                "a token is needed: Authorization: Bearer TOKEN. "
                "Who runs the service makes one: treehammer token create"
            )
        return await self.grant_for_token(token.strip())

    async def grant_for_token(self, token: str) -> AccessGrant:
        """What whoever has a token may do.

        Raises:
            Refusal: the token does not count, or that cannot be told now.
        """
        if not self.is_fresh:
            raise service_unavailable("keys cannot be checked now: the database does not answer")
        try:
            return self._verify_token(token)
        except TokenError as error:
            if not error.may_be_new:
                raise _unauthorized(error.message) from None
        try:
            await self.refresh()
            return self._verify_token(token)
        except TokenError as error:
            raise _unauthorized(error.message) from None
        except StoreError:
            raise service_unavailable(
                "keys cannot be checked now: the database does not answer"
            ) from None

    def _verify_token(self, token: str) -> AccessGrant:
        now_us = self._now_us()
        known = self._verified.get(token)
        if known is not None and (known.expires_us is None or now_us <= known.expires_us):
            return known
        grant = verify_token(token, self._access, self._master, now_us)
        if len(self._verified) >= MAX_VERIFIED_TOKENS:
            self._verified.clear()
        self._verified[token] = grant
        return grant

    async def require_submitter(self, request: Request) -> AccessGrant:
        """Who hands in measurements.

        Raises:
            Refusal: the bearer may not.
        """
        grant = await self.authenticate(request)
        if not grant.may_submit:
            raise RequestRefusedError(
                403, f"a token of the role '{grant.role}' may not hand in measurements"
            )
        return grant

    async def require_reader(self, request: Request) -> AccessGrant | None:
        """Who reads; None for anybody where reading is open, and for whom the proxy names.

        A browser that has signed in shows its token in a cookie, which counts for nothing but reading.

        Raises:
            Refusal: the bearer may not.
        """
        if self.reading_open or (self._reader_header and request.headers.get(self._reader_header)):
            return None
        if "authorization" in request.headers or READER_COOKIE not in request.cookies:
            return require_read_grant(await self.authenticate(request))
        return require_read_grant(await self.grant_for_token(request.cookies[READER_COOKIE]))


def require_read_grant(grant: AccessGrant) -> AccessGrant:
    """The grant, if it lets read.

    Raises:
        Refusal: it does not.
    """
    if not grant.may_read:
        raise RequestRefusedError(
            403,
            f"a token of the role '{grant.role}' may not read results. "
            "Who runs the service makes one that may: treehammer token create --role read",
        )
    return grant


def _unauthorized(sentence: str) -> RequestRefusedError:
    return RequestRefusedError(
        401, sentence, headers={"WWW-Authenticate": 'Bearer realm="treehammer"'}
    )
