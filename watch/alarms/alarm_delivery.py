"""Delivery of messages from the outbox by mail, and to webhooks that receive signed JSON.

A message is claimed before it is sent and marked afterwards. If the process is killed in between,
the message is sent again with the same identity when its lease ends, and receivers drop the copy.
All waits of a message end at one deadline.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import signal
import smtplib
import socket
import ssl
import threading
import urllib.error
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, parseaddr
from typing import TYPE_CHECKING, Any

from treehammer.collectors.http_requests import Deadline, connect_socket, open_reader, send_request
from treehammer.config import Settings
from treehammer.errors import ConfigError, DeliveryError
from treehammer.program_output import read_secret_file
from treehammer.setting_parsers import split_recipients
from treehammer.sql.core.watch_rows import AlarmMessage
from treehammer.text_formatting import SECOND_US
from treehammer.version import __version__
from treehammer.watch.alarms.subject_state import AlarmKind
from treehammer.watch.store.alarms import NO_SEVERITY, AlarmOutbox

if TYPE_CHECKING:
    from treehammer.watch.changes.weekly_digest import WeeklyDigest

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
        subject = f"[treehammer] {' '.join(message.title.split())}"[:MAX_SUBJECT]
        happened = datetime.fromtimestamp(message.happened_us / 1e6, UTC)
        mail = self._make_mail(message.recipient, subject, happened)
        domain = parseaddr(self.sender)[1].rpartition("@")[2] or "localhost"
        mail["Message-ID"] = f"<{message.id}@{domain}>"
        mail["X-Treehammer-Event"] = message.event_id
        mail["X-Treehammer-State"] = message.state
        mail.set_content(f"{message.title}\n\n{message.text}\n\nEvidence: {link}\n")
        self.send_mail(mail)

    def send_digest(self, digest: WeeklyDigest, recipient: str, base_url: str) -> None:
        """Send a digest as text and as HTML."""
        mail = self._make_mail(recipient, digest.title, datetime.now(UTC))
        mail.set_content(digest.to_markdown(base_url))
        mail.add_alternative(digest.to_html(base_url), subtype="html")
        self.send_mail(mail)

    def _make_mail(self, recipient: str, subject: str, date: datetime) -> EmailMessage:
        mail = EmailMessage()
        mail["Subject"] = subject
        mail["From"] = self.sender
        mail["To"] = recipient
        mail["Date"] = format_datetime(date)
        mail["Auto-Submitted"] = "auto-generated"
        return mail

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


MAIL, WEBHOOK = "mail", "webhook"
#: Severities of events, in order.
SEVERITIES = (NO_SEVERITY, "warning", "critical")
#: Time for which a message is claimed by the process that sends it, longer than all its waits.
LEASE_US = 300 * SECOND_US
#: Time after which a round ends, such as at a server that does not answer.
MAX_ROUND_US = 60 * SECOND_US
#: Times between attempts; after the last one the message is given up.
RETRY_US = tuple(s * SECOND_US for s in (60, 300, 900, 3600, *[4 * 3600] * 12))


@dataclass(frozen=True)
class AlarmChannels:
    """Destinations of messages.

    Attributes:
        minimum: least severity of events.
        webhook: None for none.
        mail: None for none.
        addresses: site, or '' for all events, with the address.
        base_url: address of the service's pages; '' if it is not set.
    """

    minimum: str
    webhook: Webhook | None = None
    mail: MailServer | None = None
    addresses: Sequence[tuple[str, str]] = ()
    base_url: str = ""

    @classmethod
    def from_settings(cls, settings: Settings) -> AlarmChannels:
        """Build the channels that the settings name.

        Raises:
            ConfigError: a file with a secret cannot be read.
        """
        webhook, mail = None, None
        if settings.alarm_webhook_url:
            webhook = Webhook(
                settings.alarm_webhook_url,
                read_secret_file("alarm_webhook_secret_file", settings.alarm_webhook_secret_file),
            )
        addresses = split_recipients(settings.alarm_recipients)
        if addresses:
            host, _, port = settings.alarm_smtp_server.rpartition(":")
            mail = MailServer(
                host.strip("[]"),
                int(port),
                settings.alarm_smtp_tls,
                settings.alarm_sender or f"treehammer@{socket.getfqdn()}",
                settings.alarm_smtp_user,
                read_secret_file("alarm_smtp_password_file", settings.alarm_smtp_password_file),
            )
        return cls(settings.alarm_minimum, webhook, mail, addresses, settings.serve_url)

    def send_digest(self, digest: WeeklyDigest) -> int:
        """Send a digest to the recipients of all sites' alarms; return their number.

        Raises:
            ConfigError: there are none.
        """
        addresses = [address for site, address in self.addresses if not site]
        if self.mail is None or not addresses:
            raise ConfigError(
                "no recipients",
                where="digest --mail",
                hint="Set alarm_recipients in treehammer.toml.",
            )
        for address in addresses:
            self.mail.send_digest(digest, address, self.base_url)
        return len(addresses)

    def list_recipients(self, event: AlarmMessage) -> Iterator[tuple[str, str]]:
        """List channel and address of an event's recipients; none below the least severity."""
        if SEVERITIES.index(event.severity) < SEVERITIES.index(self.minimum):
            return
        if self.webhook:
            yield WEBHOOK, ""
        if self.mail:
            for site, address in self.addresses:
                if not site or (event.subject_kind == AlarmKind.SITE and event.subject == site):
                    yield MAIL, address

    def send_message(self, message: AlarmMessage) -> None:
        """Send a message by its channel, with the address of its evidence, or its path.

        Raises:
            DeliveryError: it was not accepted, or its channel is no longer configured.
        """
        channel = {MAIL: self.mail, WEBHOOK: self.webhook}.get(message.channel)
        if channel is None:
            raise DeliveryError(f"no settings for messages by {message.channel}")
        channel.send_message(message, f"{self.base_url}{message.evidence}")


def deliver_messages(
    outbox: AlarmOutbox, channels: AlarmChannels, clock_us: Callable[[], int]
) -> list[AlarmMessage]:
    """Send the messages that are due, for a minute; a failed one becomes due again later.

    Args:
        outbox: with the messages.
        channels: to send them by.
        clock_us: returns the time, in microseconds since 1970 UTC.

    Returns:
        the messages, failed ones with their error.
    """
    messages: list[AlarmMessage] = []
    end_us = clock_us() + MAX_ROUND_US
    while clock_us() <= end_us and (message := outbox.claim_message(clock_us(), LEASE_US)):
        with _hold_stop_signals():
            try:
                channels.send_message(message)
            except DeliveryError as error:
                due_us = None if error.permanent else _find_next_attempt(message, clock_us())
                messages.append(outbox.mark_failed(message, error.message, due_us=due_us))
            else:
                messages.append(outbox.mark_sent(message, clock_us()))
    return messages


@contextmanager
def _hold_stop_signals() -> Iterator[None]:
    """Hold SIGTERM and Ctrl-C back until the block ends, so that a sent message is marked."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals do not interrupt it
        return
    signals: list[int] = []
    before = {
        number: signal.signal(number, lambda received, _frame: signals.append(received))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for received in signals:
            signal.raise_signal(received)


def _find_next_attempt(message: AlarmMessage, now_us: int) -> int | None:
    """Return the time of the next attempt; None after the last one."""
    if message.attempts > len(RETRY_US):
        return None
    return now_us + RETRY_US[message.attempts - 1]
