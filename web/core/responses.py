"""JSON responses, and refusals that give the reason in one sentence."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

#: Range of the seconds after which a refused client may try again, random to spread the load.
RETRY_AFTER_S = (5, 15)

#: Names in the state of a request: its refusal, the identity of its verified key, and its action and
#: subject for the audit trail.
REFUSAL, KEY_ID, AUDITED = "refusal", "key_id", "audited"
#: Reason of a refusal by its status, for metrics.
_REASONS = {
    400: "malformed",
    401: "unauthenticated",
    403: "forbidden",
    404: "not found",
    405: "method",
    408: "slow body",
    409: "conflict",
    413: "too large",
    415: "media type",
    422: "invalid",
    429: "rate limit",
    431: "headers too large",
    500: "bug",
    503: "unavailable",
}

_STATUS_MESSAGES = {
    404: "there is nothing at this address",
    405: "this address does not support the method",
}


class AsciiJSONResponse(Response):
    """JSON in ASCII, since repeated input may contain any character."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Serialize the body."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


class RequestRefusedError(Exception):
    """A refused request.

    Args:
        status: HTTP status of the response.
        sentence: the reason.
        headers: of the response.
        reason: one of a few words for metrics; by default that of the status.
        details: further members of its body.
    """

    def __init__(
        self,
        status: int,
        sentence: str,
        *,
        headers: Mapping[str, str] | None = None,
        reason: str = "",
        **details: Any,
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = dict(headers or {})
        self.reason = reason or _REASONS.get(status, "other")
        self.body = {"error": sentence, **details}


def service_unavailable(sentence: str, reason: str = "") -> RequestRefusedError:
    """Build a refusal that asks the client to try again later; see :class:`RequestRefusedError`."""
    # Random, so that thousands of jobs do not return in the same second.
    seconds = random.randint(*RETRY_AFTER_S)  # noqa: S311
    headers = {"Retry-After": str(seconds)}
    return RequestRefusedError(503, sentence, headers=headers, reason=reason)


def note_refusal(request: Request, refusal: RequestRefusedError) -> None:
    """Keep a refusal in the state of its request, for metrics and the audit trail."""
    request.scope.setdefault("state", {})[REFUSAL] = refusal


#: Builds the response to a refused request.
RefusalRenderer = Callable[[Request, RequestRefusedError], Response]


def handle_refusal(render: RefusalRenderer, request: Request, error: Exception) -> Response:
    """Respond to a refused request; an exception handler for Starlette."""
    assert isinstance(error, RequestRefusedError)
    return render(request, error)


def handle_http_error(render: RefusalRenderer, request: Request, error: Exception) -> Response:
    """Respond to Starlette's own refusals: unknown addresses and methods."""
    assert isinstance(error, HTTPException)
    sentence = _STATUS_MESSAGES.get(error.status_code, error.detail)
    return render(request, RequestRefusedError(error.status_code, sentence, headers=error.headers))


def handle_disconnect(render: RefusalRenderer, request: Request, _error: Exception) -> Response:
    """Record a request whose client left before its body was complete."""
    return render(
        request, RequestRefusedError(400, "the connection closed before the body was complete")
    )
