"""One request to the results service, and what its answer means.

The token is shown to the service's own host alone: redirections are not followed.  Proxies are those
of the environment (``https_proxy``, ``no_proxy``); through one a TLS connection goes untouched.
"""

from __future__ import annotations

import email.utils
import gzip
import http.client
import json
import re
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Sequence
from urllib.parse import urlsplit

from ...service_spec import MEASUREMENTS_PATH

#: The most bytes of an answer that are looked at.
_MAX_RESPONSE_BYTES = 1_000_000
#: Characters of an answer's own words that are repeated.
_MAX_REASON_LENGTH = 300
#: What a header can hold: a token of any kind, in one word.
_TOKEN_PATTERN = re.compile(r"[A-Za-z0-9._~+/=-]{1,8192}")


class ServiceConfigError(Exception):
    """Nothing can be sent: the token or the authorities' file cannot be used; nothing is repeated of either."""


@dataclass(frozen=True)
class ServiceResponse:
    """What came of a request.

    Attributes:
        status: of HTTP; 0 when no answer came.
        said: one sentence on what is wrong, '' when all is well.
        document: the answer, empty where it is no JSON object.
        retry_after_s: seconds that the service asks to be left alone.
        final: whether the same request would only fail in the same way.
    """

    status: int
    reason: str = ""
    document: Dict[str, Any] = field(default_factory=dict)
    retry_after_s: float = 0.0
    permanent: bool = False

    @property
    def stored(self) -> bool:
        """Whether the service says that it has stored what it was sent."""
        return self.status == 200 and not self.reason

    @property
    def conflicting_ids(self) -> List[str]:
        """Identities that the service has with other content."""
        return [str(item) for item in self.document.get("conflicting", [])]

    def find_refused(self, sent: int) -> Dict[int, str]:
        """Of ``sent`` records those that the service will never take, by index, with its reasons."""
        found: Dict[int, str] = {}
        errors = self.document.get("errors") if self.status == 422 else None
        for error in errors if isinstance(errors, list) else ():
            index = error.get("index") if isinstance(error, dict) else None
            if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < sent:
                reasons = error.get("reasons")
                texts = reasons if isinstance(reasons, list) else [reasons]
                found[index] = "; ".join(map(str, texts))[:_MAX_REASON_LENGTH]
        return found


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves a redirection to be told of as what it is."""

    def redirect_request(self, *_: Any) -> None:
        return None


class ServiceEndpoint:
    """Where a service takes measurements in.

    Args:
        url: of the service.
        token: shown to it.
        ca: file with the authorities that vouch for it; '' for those that the node knows.

    Raises:
        ServiceConfigError: the token is none, or ``ca`` cannot be read.
    """

    def __init__(self, url: str, token: str, ca: str = "") -> None:
        if not _TOKEN_PATTERN.fullmatch(token):
            raise ServiceConfigError("there is no token to show to the service")
        self.url = url.rstrip("/")
        self._token = token
        self._handlers: List[urllib.request.BaseHandler] = [_NoRedirect()]
        if urlsplit(url).scheme == "https":
            self._handlers.append(urllib.request.HTTPSHandler(context=_build_tls_context(ca)))

    def __repr__(self) -> str:
        return f"ServiceEndpoint({self.url!r})"

    def post(self, records: Sequence[str], timeout_s: float) -> ServiceResponse:
        """Send records, each the text of a JSON object; ``timeout_s`` bounds each wait for the network."""
        body = '{"measurements": [' + ", ".join(records) + "]}"
        return self.send(MEASUREMENTS_PATH, body, len(records), timeout_s)

    def send(self, path: str, body: str, items: int, timeout_s: float) -> ServiceResponse:
        """Send a JSON object to an address of the service, whose answer accounts for so many items."""
        request = urllib.request.Request(
            self.url + path,
            gzip.compress(body.encode(), 6, mtime=0),
            {"Content-Type": "application/json", "Content-Encoding": "gzip"},
            method="POST",
        )
        request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            with self._send_request(request, timeout_s) as reply:
                return _parse_response(
                    reply.code, reply.headers, reply.read(_MAX_RESPONSE_BYTES), items
                )
        except urllib.error.URLError as error:
            reason = error.reason
            final = isinstance(reason, ssl.SSLCertVerificationError)
            return ServiceResponse(
                0, f"it cannot be reached: {_describe_network_error(reason)}", permanent=final
            )
        except (OSError, http.client.HTTPException, ValueError) as error:
            return ServiceResponse(0, f"it does not answer: {_describe_network_error(error)}")

    def _send_request(self, request: urllib.request.Request, timeout_s: float) -> Any:
        """The reply, whatever its status."""
        opener = urllib.request.build_opener(*self._handlers)  # looks for proxies just now
        try:
            return opener.open(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            return error


def _build_tls_context(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca or None)
    except (OSError, ValueError) as error:
        plain = isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
        reason = getattr(error, "strerror", "") if plain else "it holds no certificates"
        raise ServiceConfigError(
            f"{ca}: cannot be used to verify the service ({reason})"
        ) from error


def _describe_network_error(reason: Any) -> str:
    if isinstance(reason, TimeoutError):
        return "it took too long"
    text = getattr(reason, "verify_message", None) or getattr(reason, "strerror", None)
    return " ".join(str(text or reason or type(reason).__name__).split())[:_MAX_REASON_LENGTH]


def _parse_response(status: int, headers: Any, body: bytes, sent: int) -> ServiceResponse:
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        document = {}
    if status == 200:
        # Anything between us and the service may say 200.
        if _covers_all_items(document, sent):
            return ServiceResponse(status, "", document)
        return ServiceResponse(
            status, "what answers is no results service of Treehammer", permanent=True
        )
    said = " ".join(str(document.get("error") or "").split())[:_MAX_REASON_LENGTH]
    if 300 <= status < 400:
        target = urlsplit(headers.get("Location") or "").netloc
        said = f"it redirects{f' to {target}' if target else ''}, which is not followed"
    return ServiceResponse(
        status,
        f"{said} ({status})"
        if said
        else f"it answers {status} {_describe_status(status)}".rstrip(),
        document,
        _parse_retry_after(headers.get("Retry-After")),
        300 <= status < 500 and status not in (408, 425, 429),
    )


def _covers_all_items(document: Dict[str, Any], sent: int) -> bool:
    """Whether an answer accounts for all that was sent."""
    counts = [document.get("new"), document.get("known"), document.get("changed", 0)]
    conflicting = document.get("conflicting", [])
    if not all(isinstance(count, int) for count in counts) or not isinstance(conflicting, list):
        return False
    return bool(sum(count for count in counts if count) + len(conflicting) >= sent)


def _describe_status(status: int) -> str:
    return http.client.responses.get(status, "")


def _parse_retry_after(text: Optional[str]) -> float:
    """Seconds that a ``Retry-After`` asks for; 0 for none that can be read."""
    if not text:
        return 0.0
    if text.strip().isdigit():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return 0.0
