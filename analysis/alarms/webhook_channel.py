"""Messages by webhook: a JSON object, signed with a shared secret."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import urllib.error
from dataclasses import asdict, dataclass
from typing import Any

from treehammer.collectors.http_requests import Deadline, send_request
from treehammer.errors import DeliveryError
from treehammer.sql.core.watch_rows import AlarmEvent, AlarmMessage
from treehammer.version import __version__

#: Total time of a delivery.
TIMEOUT_S = 30.0
#: Headers with the identity of the message and with its signature.
IDENTITY_HEADER = "X-Treehammer-Delivery"
SIGNATURE_HEADER = "X-Treehammer-Signature-256"
#: Statuses that another attempt may change.
_TRANSIENT = (408, 425, 429)


@dataclass(frozen=True)
class Webhook:
    """Address that accepts messages; ``secret`` is '' for unsigned ones."""

    url: str
    secret: str = ""

    def __repr__(self) -> str:
        return "Webhook(…)"

    def send_message(self, message: AlarmMessage, event: AlarmEvent, link: str) -> None:
        """Send a message.

        Raises:
            DeliveryError: the answer is not 2xx.
        """
        body = json.dumps(build_payload(message, event, link)).encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"treehammer/{__version__}",
            IDENTITY_HEADER: message.id,
        }
        if self.secret:
            headers[SIGNATURE_HEADER] = sign_body(self.secret, body)
        try:
            # The configured server is the only one to receive messages: redirects are errors.
            send_request(
                "POST", self.url, Deadline(TIMEOUT_S), headers, body=body, follows=False
            ).close()
        except urllib.error.HTTPError as error:
            error.close()
            permanent = 400 <= error.code < 500 and error.code not in _TRANSIENT
            raise DeliveryError(
                f"the webhook answered with status {error.code}", permanent=permanent
            ) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise DeliveryError(f"the webhook does not answer: {reason}") from error


def build_payload(message: AlarmMessage, event: AlarmEvent, link: str) -> dict[str, Any]:
    """Build the JSON object; it is equal in every attempt."""
    return {"delivery": message.id, **asdict(event), "link": link}


def sign_body(secret: str, body: bytes) -> str:
    """Return the HMAC-SHA-256 of a body as a header carries it: ``sha256=`` and hexadecimal digits."""
    return f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"
