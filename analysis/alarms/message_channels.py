"""Channels of messages: mail, and webhooks that receive signed JSON.

All waits of a message end at one deadline. Its repetitions are equal to it, identity included.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import smtplib
import ssl
import urllib.error
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, parseaddr
from typing import Any

from treehammer.collectors.http_requests import Deadline, connect_socket, open_reader, send_request
from treehammer.errors import DeliveryError
from treehammer.sql.core.watch_rows import AlarmMessage
from treehammer.version import __version__

#: Seconds for a message, from the connection to the answer that it is accepted.
TIMEOUT_S = 60.0
#: Maximum characters of a subject line.
MAX_SUBJECT = 150
STARTTLS, TLS = "starttls", "tls"
#: Statuses of a webhook that another attempt may change.
_TRANSIENT = (408, 425, 429)


class _MailClient(smtplib.SMTP):
    """SMTP client whose waits end at a deadline; ``context`` is for TLS from the start."""

    def __init__(
        self, host: str, port: int, deadline: Deadline, context: ssl.SSLContext | None
    ) -> None:
        self._deadline, self._context = deadline, context
        super().__init__(host, port)

    def _get_socket(self, host: str, port: int, _timeout: float) -> Any:
        connection, context = connect_socket((host, port), self._deadline), self._context
        return context.wrap_socket(connection, server_hostname=host) if context else connection

    def getreply(self) -> tuple[int, bytes]:
        """Read a reply."""
        self.file = self.file or open_reader(self.sock, self._deadline)
        return super().getreply()

    def send(self, s: Any) -> None:
        """Send bytes; the handshake of STARTTLS after them is bound by this, too."""
        if self.sock:
            self.sock.settimeout(self._deadline.seconds_left())
        super().send(s)


@dataclass(frozen=True)
class MailServer:
    """Server that accepts mail from ``sender``; ``tls`` is ``none``, ``starttls`` or ``tls``."""

    host: str
    port: int
    tls: str
    sender: str
    user: str = ""
    password: str = field(default="", repr=False)

    def send_message(self, message: AlarmMessage, link: str) -> None:
        """Send a message to its recipient."""
        mail = EmailMessage()
        mail["Subject"] = f"[treehammer] {' '.join(message.title.split())}"[:MAX_SUBJECT]
        mail["From"] = self.sender
        mail["To"] = message.recipient
        mail["Date"] = format_datetime(datetime.fromtimestamp(message.happened_us / 1e6, UTC))
        domain = parseaddr(self.sender)[1].rpartition("@")[2] or "localhost"
        mail["Message-ID"] = f"<{message.id}@{domain}>"
        mail["Auto-Submitted"] = "auto-generated"
        mail["X-Treehammer-Event"] = message.event_id
        mail["X-Treehammer-State"] = message.state
        mail.set_content(f"{message.title}\n\n{message.text}\n\nEvidence: {link}\n")
        self.send_mail(mail)

    def send_mail(self, mail: EmailMessage) -> None:
        """Send a mail to its recipient.

        Raises:
            DeliveryError: it was not accepted.
        """
        context = ssl.create_default_context()
        first = context if self.tls == TLS else None
        try:
            with closing(_MailClient(self.host, self.port, Deadline(TIMEOUT_S), first)) as client:
                if self.tls == STARTTLS:
                    client.starttls(context=context)
                if self.user:
                    client.login(self.user, self.password)
                client.send_message(mail)
                # The mail is accepted: neither a wait nor an error may repeat it.
                with suppress(OSError):
                    client.putcmd("quit")
        except OSError as error:  # as all errors of smtplib are
            problem = f"mail server {self.host}: {error}"
            raise DeliveryError(problem, permanent=_is_refused(error)) from error


def _is_refused(error: Exception) -> bool:
    """Return whether the server refuses the mail or its recipient, whenever it is sent."""
    if isinstance(error, smtplib.SMTPRecipientsRefused):
        return all(code >= 500 for code, _ in error.recipients.values())
    return isinstance(error, smtplib.SMTPDataError) and error.smtp_code >= 500


@dataclass(frozen=True)
class Webhook:
    """Address that accepts messages; ``secret`` is '' for unsigned ones."""

    url: str = field(repr=False)
    secret: str = field(default="", repr=False)

    def send_message(self, message: AlarmMessage, link: str) -> None:
        """Post a message.

        Raises:
            DeliveryError: the answer is not 2xx.
        """
        document = {"delivery": message.id, **message.to_event_document(), "link": link}
        body = json.dumps(document).encode()
        headers = {"Content-Type": "application/json", "User-Agent": f"treehammer/{__version__}"}
        headers["X-Treehammer-Delivery"] = message.id
        if self.secret:
            digest = hmac.new(self.secret.encode(), body, hashlib.sha256).hexdigest()
            headers["X-Treehammer-Signature-256"] = f"sha256={digest}"
        deadline = Deadline(TIMEOUT_S)
        try:
            # The configured server is the only one to receive messages: redirects are errors.
            send_request("POST", self.url, deadline, headers, body=body, follows=False).close()
        except urllib.error.HTTPError as error:
            error.close()
            permanent = 400 <= error.code < 500 and error.code not in _TRANSIENT
            problem = f"the webhook answered with status {error.code}"
            raise DeliveryError(problem, permanent=permanent) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise DeliveryError(f"the webhook does not answer: {reason}") from error
