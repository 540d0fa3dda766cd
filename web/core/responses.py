"""Responses: JSON bodies by models, refusals with their reason, static files, local redirects.

Each model builds and describes one body. Static files are versioned by content so that browsers cache
them forever. Parts of a route's path, such as names of sites, may be any text.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match
from starlette.staticfiles import PathLike, StaticFiles
from starlette.types import Scope

from treehammer.sql.core.access_keys import ROLES

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
    409: "conflict",
    413: "too large",
    415: "media type",
    422: "invalid",
    429: "rate limit",
    500: "bug",
    503: "unavailable",
}

_STATUS_MESSAGES = {
    404: "there is nothing at this address",
    405: "this address does not support the method",
}
Count = Annotated[int, Field(ge=0)]
_CACHE_FOREVER = "public, max-age=31536000, immutable"


class AsciiJSONResponse(Response):
    """JSON in ASCII, since repeated input may contain any character."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Serialize the body."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


class RequestRefusedError(Exception):
    """A refused request.

    Args:
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


def handle_error(render: RefusalRenderer, request: Request, error: Exception) -> Response:
    """Respond to a refused request, to Starlette's own refusals, or to a client that left early."""
    if isinstance(error, HTTPException):
        sentence = _STATUS_MESSAGES.get(error.status_code, error.detail)
        error = RequestRefusedError(error.status_code, sentence, headers=error.headers)
        # A path may have a route for each method, and the first one names its own only.
        matches = ((route, route.matches(request.scope)[0]) for route in request.app.routes)
        routes = [route for route, match in matches if match is Match.PARTIAL]
        if routes:
            methods = {method for route in routes for method in route.methods}
            error.headers["Allow"] = ", ".join(sorted(methods))
    elif isinstance(error, ClientDisconnect):
        error = RequestRefusedError(400, "the connection closed before the body was complete")
    assert isinstance(error, RequestRefusedError)
    return render(request, error)


class ApiModel(BaseModel):
    """Base of all response bodies: no members beyond the declared ones."""

    model_config = ConfigDict(extra="forbid")


class Error(ApiModel):
    """A refused request."""

    error: str = Field(description="One sentence.")


class InvalidMeasurement(ApiModel):
    """Validation errors of one measurement."""

    index: Count = Field(description="Position in the request, from 0.")
    reasons: list[str]


class InvalidMeasurements(Error):
    """A refused upload of measurements."""

    errors: list[InvalidMeasurement]


class InvalidCampaign(Error):
    """A refused upload of a campaign."""

    reasons: list[str]


class MeasurementsStored(ApiModel):
    """Outcome of an upload of measurements."""

    new: Count
    known: Count = Field(description="Stored before with the same content.")
    conflicting: list[str] = Field(description="Identities stored before with other content.")


class CampaignStored(ApiModel):
    """Outcome of an upload of a campaign, in rows."""

    new: Count
    changed: Count
    known: Count


class StartRequest(BaseModel):
    """A job that wants to start together with others of its campaign."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    barrier: str = Field(min_length=1, max_length=64, description="Name within the campaign.")
    jobs: int = Field(ge=1, le=100_000, description="Expected jobs.")
    wait_s: float = Field(ge=0, le=86_400, description="Longest wait for missing jobs.")
    lead_s: float = Field(ge=0, le=300, description="Time that a job needs before its start.")
    waited_s: float = Field(ge=0, description="Time for which this job has waited.")
    absent: bool = Field(False, description="This job will not come: do not wait for it.")
    start_us: Annotated[int, Field(ge=0, le=2**62)] | None = Field(
        None, description="The common start, once the job knows it."
    )
    present: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        None, description="Jobs that were present when it was set, once the job knows it."
    )


class StartAnswer(ApiModel):
    """The common start of jobs."""

    time_us: Count = Field(description="The service's clock, in microseconds since 1970 UTC.")
    start_us: Count | None = Field(description="The common start; null while jobs are missing.")
    present: Count = Field(description="Present jobs; once the start is set, those present then.")
    jobs: Count = Field(description="Expected jobs.")
    poll_s: float = Field(description="Seconds until the next request.")


class Token(ApiModel):
    """Permissions of a token."""

    role: Literal[ROLES]  # type: ignore[valid-type]
    key_id: str = Field(description="Identity of the key that signed the token.")
    name: str = Field(description="Holder of the key.")
    expires_us: int | None = Field(description="Microseconds since 1970 UTC; null for never.")
    campaign_id: str | None = Field(description="Set for the token of a job.")
    job_id: str | None = Field(description="Set for the token of a job.")


class Health(ApiModel):
    """State of the service."""

    status: Literal["ok", "unavailable"]
    version: str
    time_us: Count = Field(description="The service's clock, in microseconds since 1970 UTC.")


class PageData(ApiModel):
    """Content of a page."""

    title: str = Field(description="Title of the page.")
    tables: dict[str, list[dict[str, Any]]] = Field(description="Rows by name of the table.")
    about: dict[str, Any] = Field(description="Values of the page outside its tables.")


#: Models that the OpenAPI description refers to by name, as responses.
RESPONSE_MODELS: tuple[tuple[type[BaseModel], Literal["serialization"]], ...] = tuple(
    (model, "serialization")
    for model in (
        Error,
        InvalidMeasurements,
        InvalidCampaign,
        MeasurementsStored,
        CampaignStored,
        StartAnswer,
        Token,
        Health,
    )
)


class VersionedFiles(StaticFiles):
    """Static files that browsers keep forever at an address with the version of all of them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(directory=folder)
        content = (path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
        self.version = hashlib.sha256(b"".join(content)).hexdigest()[:12]

    def file_response(
        self, full_path: PathLike, stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        """Answer a request for a file; 304 if the browser has it."""
        response = super().file_response(full_path, stat_result, scope, status_code)
        is_current = scope["query_string"] == f"v={self.version}".encode()
        response.headers["Cache-Control"] = _CACHE_FOREVER if is_current else "no-cache"
        return response


def is_local_address(address: str) -> bool:
    """Return whether a browser would stay on this service."""
    return (
        address.startswith("/") and not address.startswith(("//", "/\\")) and address.isprintable()
    )


def redirect_locally(address: str) -> RedirectResponse:
    """Redirect to an address on this service, or to the overview if it is elsewhere."""
    target = address if is_local_address(address) else "/"
    return RedirectResponse(target, 303, headers={"Cache-Control": "no-store"})


class TextConvertor(PathConvertor):
    """Any text with slashes and line breaks, at which Starlette's own convertors stop."""

    regex = "(?s:.*)"


class NonEmptyTextConvertor(TextConvertor):
    """Any text of at least one character."""

    regex = "(?s:.+)"


register_url_convertor("text", TextConvertor())
register_url_convertor("some", NonEmptyTextConvertor())


def allow_any_text(path: str) -> str:
    """Return a path for a route in which every part in braces may be any text."""
    return re.sub(r"\{(\w+)\}", r"{\1:text}", path)
