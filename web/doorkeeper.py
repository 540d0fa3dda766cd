"""Who is let in: keys and revocations as the database has them, never older than a few seconds."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from starlette.requests import Request

from treehammer.errors import StoreError, TokenError
from treehammer.sql.tokens import Access, Grant, verify
from treehammer.web.answers import Refusal, unavailable

_LOG = logging.getLogger("treehammer.service")

#: Seconds between two looks at keys and revocations.
LOOK_EVERY_S = 2.0
#: Seconds after which what was seen counts no more.
OLD_S = 20.0
#: The cookie in which browsers keep a token for reading.
COOKIE = "treehammer_reader"
#: Seconds between two looks for keys that are not known yet.
PAUSE_S = 0.2
#: Tokens whose signature is remembered as checked.
REMEMBERED = 20_000


class Doorkeeper:
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
        look: Callable[[], Access],
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
        self._access = Access({})
        # A signature is checked once: a job shows the same token again and again.
        self._verified: dict[str, Grant] = {}
        self._looked_s = -OLD_S
        self._tried_s = -OLD_S
        self._failure: StoreError | None = None
        self._looking = asyncio.Lock()

    @property
    def knows(self) -> bool:
        """Whether what the doorkeeper knows is fresh enough to decide by."""
        return time.monotonic() - self._looked_s < OLD_S

    async def watch(self) -> None:
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
            await asyncio.sleep(LOOK_EVERY_S)

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
                await asyncio.sleep(self._tried_s + PAUSE_S - time.monotonic())
                await self._try_to_look()
            if self._failure:
                raise self._failure.with_traceback(None)

    async def _try_to_look(self) -> None:
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

    async def bearer(self, request: Request) -> Grant:
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
        return await self.grant(token.strip())

    async def grant(self, token: str) -> Grant:
        """What whoever has a token may do.

        Raises:
            Refusal: the token does not count, or that cannot be told now.
        """
        if not self.knows:
            raise unavailable("keys cannot be checked now: the database does not answer")
        try:
            return self._judged(token)
        except TokenError as error:
            if not error.may_be_new:
                raise _unauthorized(error.message) from None
        try:
            await self.refresh()
            return self._judged(token)
        except TokenError as error:
            raise _unauthorized(error.message) from None
        except StoreError:
            raise unavailable("keys cannot be checked now: the database does not answer") from None

    def _judged(self, token: str) -> Grant:
        now_us = self._now_us()
        known = self._verified.get(token)
        if known is not None and (known.expires_us is None or now_us <= known.expires_us):
            return known
        grant = verify(token, self._access, self._master, now_us)
        if len(self._verified) >= REMEMBERED:
            self._verified.clear()
        self._verified[token] = grant
        return grant

    async def submitter(self, request: Request) -> Grant:
        """Who hands in measurements.

        Raises:
            Refusal: the bearer may not.
        """
        grant = await self.bearer(request)
        if not grant.may_submit:
            raise Refusal(403, f"a token of the role '{grant.role}' may not hand in measurements")
        return grant

    async def reader(self, request: Request) -> Grant | None:
        """Who reads; None for anybody where reading is open, and for whom the proxy names.

        A browser that has signed in shows its token in a cookie, which counts for nothing but reading.

        Raises:
            Refusal: the bearer may not.
        """
        if self.reading_open or (self._reader_header and request.headers.get(self._reader_header)):
            return None
        if "authorization" in request.headers or COOKIE not in request.cookies:
            return may_read(await self.bearer(request))
        return may_read(await self.grant(request.cookies[COOKIE]))


def may_read(grant: Grant) -> Grant:
    """The grant, if it lets read.

    Raises:
        Refusal: it does not.
    """
    if not grant.may_read:
        raise Refusal(
            403,
            f"a token of the role '{grant.role}' may not read results. "
            "Who runs the service makes one that may: treehammer token create --role read",
        )
    return grant


def _unauthorized(sentence: str) -> Refusal:
    return Refusal(401, sentence, headers={"WWW-Authenticate": 'Bearer realm="treehammer"'})
