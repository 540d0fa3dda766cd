"""Messages by mail."""

from __future__ import annotations

import smtplib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime, parseaddr

from treehammer.errors import DeliveryError
from treehammer.sql.core.watch_rows import AlarmEvent, AlarmMessage

#: Seconds for each step of the conversation with the server, and for all of it.
TIMEOUT_S, TOTAL_TIMEOUT_S = 30.0, 60.0
#: Seconds between attempts to end a conversation that took too long.
_REPEAT_S = 0.5
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
            server = self._make_client()
            with _limit_time(server, TOTAL_TIMEOUT_S):
                self._log_in(server)
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

    def _make_client(self) -> smtplib.SMTP:
        """Make a client that is not connected yet."""
        if self.tls != TLS:
            return smtplib.SMTP(timeout=TIMEOUT_S)
        client = smtplib.SMTP_SSL(timeout=TIMEOUT_S, context=ssl.create_default_context())
        client._host = self.host  # type: ignore[attr-defined]  # what the certificate must name
        return client

    def _log_in(self, server: smtplib.SMTP) -> None:
        try:
            server.connect(self.host, self.port)
            if self.tls == STARTTLS:
                server.starttls(context=ssl.create_default_context())
            if self.user:
                server.login(self.user, self.password)
        except BaseException:
            server.close()
            raise


@contextmanager
def _limit_time(server: smtplib.SMTP, limit_s: float) -> Iterator[None]:
    """End the waits of a client after a time; its own limit counts for each step.

    Raises:
        TimeoutError: the time was over.
    """
    done, late = threading.Event(), threading.Event()

    def watch() -> None:
        if done.wait(limit_s):
            return
        late.set()
        while not done.wait(_REPEAT_S):
            if server.sock:
                with suppress(OSError):
                    # That of TLS would change its state, which another thread uses.
                    socket.socket.shutdown(server.sock, socket.SHUT_RDWR)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except (smtplib.SMTPException, OSError) as error:
        if late.is_set():
            raise TimeoutError(f"not done after {limit_s:.0f} s") from error
        raise
    finally:
        done.set()
        watcher.join()


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
