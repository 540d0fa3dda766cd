"""Middleware that counts requests for metrics, and refusals for metrics and the audit trail."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from treehammer.collectors.service_spec import (
    API_PREFIX,
    CAMPAIGNS_PATH,
    MEASUREMENTS_PATH,
    STARTS_PATH,
)
from treehammer.sql.write.audit_trail import REFUSE
from treehammer.web.api.page_operations import HEALTH_PATH, LIVE_PATH, TOKEN_PATH
from treehammer.web.core.audit_journal import AUDITED_REASONS, AuditEvent, AuditJournal
from treehammer.web.core.responses import AUDITED, KEY_ID, REFUSAL, RequestRefusedError
from treehammer.web.core.service_metrics import ServiceMetrics

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


class RequestMetrics:
    """Counts requests by method, endpoint and status, and refusals by reason.

    Args:
        app: handles the requests.
        metrics: receives the counts.
        journal: receives refused requests.
    """

    def __init__(self, app: ASGIApp, metrics: ServiceMetrics, journal: AuditJournal) -> None:
        self._app = app
        self._metrics = metrics
        self._journal = journal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0

        async def send_and_record(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        start = time.monotonic()
        with self._metrics.in_progress.track_inprogress():
            try:
                await self._app(scope, receive, send_and_record)
            finally:
                self._count(scope, status, time.monotonic() - start)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in _METHODS else "other"
        endpoint = _label_endpoint(scope["path"])
        self._metrics.requests.labels(method, endpoint, str(status)).inc()
        self._metrics.request_seconds.labels(endpoint).observe(seconds)
        state = scope.get("state", {})
        refusal: RequestRefusedError | None = state.get(REFUSAL)
        address = (scope.get("client") or ("unknown address",))[0]
        who = address, state.get(KEY_ID, "")
        if refusal:
            self._metrics.refusals.labels(refusal.reason).inc()
            if _is_audited(scope, refusal):
                request = f"{method} {endpoint}"
                self._journal.note(AuditEvent(REFUSE, *who, request, refusal.body["error"]))
        elif AUDITED in state:
            action, subject = state[AUDITED]
            self._journal.note(AuditEvent(action, *who, subject))


def _is_audited(scope: Scope, refusal: RequestRefusedError) -> bool:
    """Return whether a refusal concerns permissions, and more than a page opened before sign-in."""
    is_visit = scope["method"] in ("GET", "HEAD") and not any(
        name == b"authorization" for name, _ in scope["headers"]
    )
    return refusal.reason in AUDITED_REASONS and not is_visit


def _label_endpoint(path: str) -> str:
    return next((label for start, label in _ENDPOINTS if path.startswith(start)), "pages")
