"""Recipients of messages, and the delivery of those that wait in the outbox.

A message is claimed before it is sent and marked afterwards. If the process is killed in
between, the message is sent again with the same identity when its lease ends, and receivers drop the
copy.
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from treehammer.analysis.alarms.alarm_levels import AlarmKind
from treehammer.analysis.alarms.message_channels import MailServer, Webhook
from treehammer.config import Settings
from treehammer.durations import SECOND_US
from treehammer.errors import DeliveryError
from treehammer.private_files import read_secret_file
from treehammer.setting_parsers import split_recipients
from treehammer.sql.core.watch_rows import AlarmMessage
from treehammer.sql.watch.alarm_outbox import NO_SEVERITY, AlarmOutbox

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
    held: list[int] = []
    before = {
        number: signal.signal(number, lambda received, _frame: held.append(received))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for received in held:
            signal.raise_signal(received)


def _find_next_attempt(message: AlarmMessage, now_us: int) -> int | None:
    """Return the time of the next attempt; None after the last one."""
    if message.attempts > len(RETRY_US):
        return None
    return now_us + RETRY_US[message.attempts - 1]
