"""Middleware that checks addresses, identifies clients and records requests.

Addresses with a missing or surplus slash are redirected, those with NUL refused. The access log has one
line per request with client, path, status and duration, never a token; unhandled exceptions are answered
with status 500 and logged with their traceback. Sign-ins and refusals for the audit trail are counted by
client so that no attack fills the database.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Match, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treehammer.collectors.job_spec import (
    API_PREFIX,
    CAMPAIGNS_PATH,
    MEASUREMENTS_PATH,
    STARTS_PATH,
)
from treehammer.collectors.record.day_numbers import current_us
from treehammer.errors import StoreError
from treehammer.sql.core.rows import AuditRow
from treehammer.sql.write.audit_trail import REFUSE, make_entry
from treehammer.web.addresses import requested_address
from treehammer.web.api.page_data import HEALTH_PATH, LIVE_PATH, TOKEN_PATH
from treehammer.web.api.prometheus_metrics import ServiceMetrics
from treehammer.web.core import responses
from treehammer.web.service.proxy_setup import SECRET_HEADER

_ACCESS = logging.getLogger("treehammer.access")
_LOG = logging.getLogger("treehammer.service")

#: Maximum number of logged characters of a path.
_MAX_PATH_CHARS = 200
#: Seconds between two writes to the audit trail.
FLUSH_INTERVAL_S = 60.0
#: Maximum number of entries per write; further clients are counted together.
MAX_ENTRIES = 50
#: Reasons of refusals that concern permissions; others are in the metrics only.
AUDITED_REASONS = frozenset({"unauthenticated", "forbidden", "rate limit", "cross-site"})
#: Methods with a label of their own, so that clients cannot create any number of labels.
_METHODS = frozenset({"GET", "HEAD", "POST"})
#: Label of an endpoint by the beginning of its path, the first that matches.
_ENDPOINTS = (
    (MEASUREMENTS_PATH, "measurements"),
    (CAMPAIGNS_PATH, "campaigns"),
    (STARTS_PATH, "starts"),
    (HEALTH_PATH, "health"),
    (LIVE_PATH, "health"),
    (TOKEN_PATH, "token"),
    (f"{API_PREFIX}/", "api"),
    ("/static/", "static"),
    ("/metrics", "metrics"),
    ("/sign-", "sign-in"),
)


class SlashRedirects:
    """Redirects addresses with a missing or surplus slash at the end; refuses other unknown ones.

    Replaces Starlette's redirects, whose target is built from the Host header.
    """

    def __init__(self, router: Router) -> None:
        self._router = router
        self._refuse = router.default
        router.redirect_slashes = False
        router.default = self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for which there is no route."""
        if scope["type"] == "http":
            path = scope["path"]
            other = {**scope, "path": path.rstrip("/") if path.endswith("/") else f"{path}/"}
            if responses.is_local_address(other["path"]) and any(
                route.matches(other)[0] is not Match.NONE for route in self._router.routes
            ):
                response = RedirectResponse(requested_address(Request(other)), 307)
                await response(scope, receive, send)
                return
        await self._refuse(scope, receive, send)


_SECRET_NAME = SECRET_HEADER.lower().encode()


class ProxyHeaders:
    """Trusts headers about client, scheme and user from requests with the proxy's secret only.

    The client is the last address of ``X-Forwarded-For``, which the proxy itself added.

    Args:
        secret: of the proxy.
        user_header: '' for none.
    """

    def __init__(self, app: ASGIApp, secret: str, user_header: str) -> None:
        self._app = app
        self._secret = secret.encode()
        self._user_header = user_header.lower().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection."""
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            is_trusted = hmac.compare_digest(headers.get(_SECRET_NAME, b""), self._secret)
            hidden = {_SECRET_NAME} if is_trusted else {_SECRET_NAME, self._user_header}
            scope = {
                **scope,
                "headers": [pair for pair in scope["headers"] if pair[0] not in hidden],
            }
            if is_trusted:
                scope |= _read_forwarded(headers, scope)
        await self._app(scope, receive, send)


def _read_forwarded(headers: Mapping[bytes, bytes], scope: Scope) -> dict[str, Any]:
    """Read scheme and client of a request from the headers of its proxy."""
    address = headers.get(b"x-forwarded-for", b"").decode("latin-1").rpartition(",")[2].strip()
    scheme = headers.get(b"x-forwarded-proto", b"").decode("latin-1")
    return {
        "client": (address, 0) if address else scope.get("client"),
        "scheme": scheme if scheme in ("http", "https") else scope["scheme"],
    }


class RequestLog:
    """Logs requests without their query at the level INFO, counts refusals, and sets ``Server-Timing``.

    Addresses with NUL are refused. ``Server-Timing`` holds the milliseconds until the first byte of the
    response, which browsers show.
    """

    def __init__(
        self,
        app: ASGIApp,
        render: responses.RefusalRenderer,
        metrics: ServiceMetrics,
        journal: AuditJournal,
    ) -> None:
        self._app = app
        self._render = render
        self._metrics = metrics
        self._journal = journal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, app = time.monotonic(), self._app
        status = 0
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            # Databases fail in different ways for it.
            text = "an address cannot contain NUL (%00)"
            app = self._render(Request(scope), responses.RequestRefusedError(400, text))

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                duration = f"total;dur={1000 * (time.monotonic() - start):.1f}"
                MutableHeaders(scope=message)["Server-Timing"] = duration
            await send(message)

        try:
            await app(scope, receive, send_and_record)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError):
                # Uvicorn cancels requests that take too long when the service stops.
                text = "the service is stopping; repeat the request"
                refusal = responses.service_unavailable(text)
            else:
                _LOG.error("a request failed because of a bug", exc_info=error)
                text = "internal error; see the log of the service"
                refusal = responses.RequestRefusedError(500, text)
            if not status:
                await self._render(Request(scope), refusal)(scope, receive, send_and_record)
        if _ACCESS.isEnabledFor(logging.INFO):
            _log_request(scope, status, time.monotonic() - start)
        self._record(scope)

    def _record(self, scope: Scope) -> None:
        """Count a refusal, and note what belongs into the audit trail."""
        state = scope.get("state", {})
        refusal: responses.RequestRefusedError | None = state.get(responses.REFUSAL)
        address = (scope.get("client") or ("unknown address",))[0]
        client = address, state.get(responses.KEY_ID, "")
        if refusal:
            self._metrics.refusals.labels(refusal.reason).inc()
            if _is_audited(scope, refusal):
                method = scope["method"] if scope["method"] in _METHODS else "other"
                labels = (label for start, label in _ENDPOINTS if scope["path"].startswith(start))
                request = f"{method} {next(labels, 'pages')}"
                self._journal.note(AuditEvent(REFUSE, *client, request, refusal.body["error"]))
        elif responses.AUDITED in state:
            action, subject = state[responses.AUDITED]
            self._journal.note(AuditEvent(action, *client, subject))


def _log_request(scope: Scope, status: int, seconds: float) -> None:
    path = scope.get("raw_path", b"?")[:_MAX_PATH_CHARS].decode("ascii", "replace")
    fields = {
        "client": (scope.get("client") or ("-", 0))[0],
        "method": scope["method"],
        "path": path if path.isprintable() else ascii(path),
        "status": status,
        "milliseconds": round(1000 * seconds, 1),
    }
    note = scope.get("state", {}).get("note", "")
    note = f" ({note})" if note else ""
    _ACCESS.info("%s %s %s %d %.1f ms%s", *fields.values(), note, extra=fields)


@dataclass(frozen=True)
class AuditEvent:
    """A request that belongs into the audit trail; equal ones are counted together.

    Attributes:
        action: such as :data:`~treehammer.sql.write.audit_trail.REFUSE`.
        key_id: key of the client; '' if it is unknown.
    """

    action: str
    address: str
    key_id: str
    subject: str
    reason: str = ""

    def make_entry(self, count: int, now_us: int) -> AuditRow:
        """Make the entry of the audit trail."""
        actor = f"key {self.key_id} from {self.address}" if self.key_id else self.address
        return make_entry(
            self.action, actor, self.subject, now_us=now_us, reason=self.reason, count=count
        )


_OTHERS = AuditEvent("various", "other addresses", "", "further requests of this minute")


class AuditJournal:
    """Counts events and writes them to the audit trail from time to time."""

    def __init__(self, write: Callable[[Sequence[AuditRow]], None]) -> None:
        self._write = write
        self._counts: Counter[AuditEvent] = Counter()

    def note(self, event: AuditEvent, count: int = 1) -> None:
        """Count an event, which happened so often."""
        is_known = event in self._counts or len(self._counts) < MAX_ENTRIES
        self._counts[event if is_known else _OTHERS] += count

    async def flush_forever(self) -> None:
        """Write the counts periodically until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            await self.flush()

    async def flush(self) -> None:
        """Write the counts; keep them if the database fails."""
        if not self._counts:
            return
        counts, self._counts = self._counts, Counter()
        now_us = current_us()
        try:
            entries = [event.make_entry(count, now_us) for event, count in counts.items()]
            await asyncio.to_thread(self._write, entries)
        except StoreError as error:
            _LOG.warning("sign-ins and refusals cannot be written to the audit trail: %s", error)
            for event, count in counts.items():
                self.note(event, count)


def _is_audited(scope: Scope, refusal: responses.RequestRefusedError) -> bool:
    """Return whether a refusal concerns permissions, and more than a page opened before sign-in."""
    is_visit = scope["method"] in ("GET", "HEAD") and not any(
        name == b"authorization" for name, _ in scope["headers"]
    )
    return refusal.reason in AUDITED_REASONS and not is_visit
