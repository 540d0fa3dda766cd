"""What the service answers: JSON, and for whatever is refused one sentence why."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

#: Seconds after which a refused client may try again: between these, so that not all come at once.
RETRY_AFTER_S = (5, 15)

_STATUS_MESSAGES = {
    404: "there is nothing at this address",
    405: "this address knows no such method",
}


class AsciiJSONResponse(Response):
    """JSON in ASCII: what was sent to us and is repeated may hold any character."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The body."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


class RequestRefusedError(Exception):
    """A request that is not done.

    Args:
        status: of HTTP.
        sentence: why.
        headers: of the answer.
        beside: more members of its body.
    """

    def __init__(
        self,
        status: int,
        sentence: str,
        *,
        headers: Mapping[str, str] | None = None,
        **beside: Any,
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = dict(headers or {})
        self.body = {"error": sentence, **beside}


def service_unavailable(sentence: str) -> RequestRefusedError:
    """Cannot be done now: the client is to try again."""
    # Spread, so that thousands of jobs do not come back in the same second; not for secrets.
    seconds = random.randint(*RETRY_AFTER_S)  # noqa: S311
    return RequestRefusedError(503, sentence, headers={"Retry-After": str(seconds)})


#: Answers a request that is not done.
RefusalRenderer = Callable[[Request, RequestRefusedError], Response]


def handle_refusal(say: RefusalRenderer, request: Request, error: Exception) -> Response:
    """The answer to a :class:`Refusal`."""
    assert isinstance(error, RequestRefusedError)
    return say(request, error)


def handle_http_error(say: RefusalRenderer, request: Request, error: Exception) -> Response:
    """The answer to what Starlette refuses: unknown addresses and methods."""
    assert isinstance(error, HTTPException)
    sentence = _STATUS_MESSAGES.get(error.status_code, error.detail)
    return say(request, RequestRefusedError(error.status_code, sentence, headers=error.headers))
