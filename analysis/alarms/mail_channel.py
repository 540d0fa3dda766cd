"""Messages by mail."""

from __future__ import annotations

import smtplib
import ssl
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, parseaddr

from treehammer.errors import DeliveryError
from treehammer.sql.core.watch_rows import AlarmEvent, AlarmMessage

#: Seconds for each step of the conversation with the server.
TIMEOUT_S = 30.0
#: Maximum characters of a subject line.
MAX_SUBJECT = 150
NO_TLS, STARTTLS, TLS = "none", "starttls", "tls"


@dataclass(frozen=True)
class MailServer:
    """Server that accepts mail.

    Attributes:
        host: its name.
        port: its port.
        tls: ``none``, ``starttls`` or ``tls``.
        user: to log in as; '' for no login.
        password: of the user.
        sender: address that mail comes from.
    """

    host: str
    port: int
    tls: str
    sender: str
    user: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"MailServer({self.host!r}, {self.port})"

    def send_message(self, message: AlarmMessage, event: AlarmEvent, link: str) -> None:
        """Send a message to its recipient.

        Raises:
            DeliveryError: it was not accepted.
        """
        self.send_mail(build_mail(message, event, link, sender=self.sender))

    def send_mail(self, mail: EmailMessage) -> None:
        """Send a mail to its recipient.

        Raises:
            DeliveryError: it was not accepted.
        """
        try:
            server = self._connect()
            try:
                server.send_message(mail)
            finally:
                # The mail is accepted by now: a broken farewell must not repeat it.
                with suppress(smtplib.SMTPException, OSError):
                    server.quit()
        except smtplib.SMTPRecipientsRefused as error:
            codes = [code for code, _ in error.recipients.values()]
            raise DeliveryError(
                f"the mail server refused the recipient: {error.recipients}",
                permanent=all(code >= 500 for code in codes),
            ) from error
        except (smtplib.SMTPException, OSError) as error:
            raise DeliveryError(f"mail server {self.host}: {error}") from error

    def _connect(self) -> smtplib.SMTP:
        if self.tls == TLS:
            server: smtplib.SMTP = smtplib.SMTP_SSL(
                self.host, self.port, timeout=TIMEOUT_S, context=ssl.create_default_context()
            )
        else:
            server = smtplib.SMTP(self.host, self.port, timeout=TIMEOUT_S)
        try:
            if self.tls == STARTTLS:
                server.starttls(context=ssl.create_default_context())
            if self.user:
                server.login(self.user, self.password)
        except BaseException:
            server.close()
            raise
        return server


def build_mail(message: AlarmMessage, event: AlarmEvent, link: str, *, sender: str) -> EmailMessage:
    """Build the mail; its Message-ID is that of the message, so that a repetition is recognized."""
    mail = EmailMessage()
    mail["Subject"] = f"[treehammer] {_one_line(event.title)}"[:MAX_SUBJECT]
    mail["From"] = sender
    mail["To"] = message.recipient
    mail["Date"] = format_datetime(datetime.fromtimestamp(event.happened_us / 1e6, UTC))
    domain = parseaddr(sender)[1].rpartition("@")[2] or "localhost"
    mail["Message-ID"] = f"<{message.id}@{domain}>"
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Treehammer-Event"] = event.id
    mail["X-Treehammer-State"] = event.state
    mail.set_content(f"{event.title}\n\n{event.text}\n\nEvidence: {link}\n")
    return mail


def _one_line(text: str) -> str:
    return " ".join(text.split())
