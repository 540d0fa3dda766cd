"""Messages by mail and webhook reach real servers once, and failures are repeated."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from local_servers import (
    MailSink,
    drip,
    make_authority,
    parse_mails,
    serve_http,
    serve_mail,
    serve_tcp,
)
from measurement_factory import build_alarm_event

from treehammer.analysis.alarms import alarm_delivery
from treehammer.analysis.alarms.alarm_delivery import (
    LEASE_US,
    RETRY_US,
    AlarmChannels,
    MailServer,
    Webhook,
    deliver_messages,
)
from treehammer.cli import cli
from treehammer.config import load_settings
from treehammer.errors import ConfigError, DeliveryError
from treehammer.sql.watch.alarms import AlarmOutbox
from treehammer.sql.write.store import Store

EVENT = build_alarm_event()
MESSAGE = replace(EVENT, id="m1", channel="mail", recipient="a@example.org")
LATER = 1_800_000_000_000_000


class SlowSink(MailSink):
    """Mailboxes of a server that keeps a mail, and answers too late."""

    async def answer(self) -> str:
        """Return the answer to a mail that was received."""
        await asyncio.sleep(0.7)
        return await super().answer()


class HookSink(BaseHTTPRequestHandler):
    """Webhook that keeps requests and answers with the next status."""

    requests: list[tuple[dict[str, str], bytes]] = []
    statuses: list[int] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.requests.append((dict(self.headers), body))
        self.send_response(self.statuses.pop(0) if self.statuses else 204)
        self.send_header("Location", "/elsewhere")
        self.end_headers()


def greet_forever(connection: socket.socket) -> None:
    """Send line after line of a greeting."""
    with suppress(OSError):
        while True:
            connection.sendall(b"220-mail\r\n")
            time.sleep(0.05)


@pytest.fixture
def mail_sink() -> Iterator[tuple[MailSink, int]]:
    sink = MailSink()
    with serve_mail(sink) as port:
        yield sink, port


@pytest.fixture
def hook() -> Iterator[str]:
    HookSink.requests, HookSink.statuses = [], []
    with serve_http(HookSink) as port:
        yield f"http://127.0.0.1:{port}/hook"


@pytest.fixture
def outbox(store: Store) -> AlarmOutbox:
    return AlarmOutbox(store)


def record_event(outbox: AlarmOutbox, channels: AlarmChannels) -> None:
    assert outbox.record_events([EVENT], channels.list_recipients) == [EVENT]


def deliver(outbox: AlarmOutbox, channels: AlarmChannels, now_us: int = LATER) -> list[str]:
    """Send what is due at a time; return the deliveries."""
    return [row.delivery for row in deliver_messages(outbox, channels, lambda: now_us)]


def test_event_reaches_each_recipient_once(
    outbox: AlarmOutbox, mail_sink: tuple[MailSink, int], hook: str, tmp_path: Path
) -> None:
    sink, port = mail_sink
    secret = tmp_path / "secret"
    secret.write_text("swordfish\n")
    channels = AlarmChannels.from_settings(
        load_settings(
            {
                "alarm_webhook_url": hook,
                "alarm_webhook_secret_file": secret,
                "alarm_smtp_server": f"127.0.0.1:{port}",
                "alarm_sender": "th@example.org",
                "alarm_recipients": "ops@example.org, SITE_Ä=admin@a.example, SITE_B=b@b.example",
                "serve_url": "https://results.example.org",
            },
            environ={},
            folder=tmp_path,
        )
    )
    record_event(outbox, channels)
    assert deliver(outbox, channels) == ["sent"] * 3
    assert deliver(outbox, channels) == []
    assert sorted(mail.rcpt_tos[0] for mail in sink.mails) == ["admin@a.example", "ops@example.org"]
    mail = parse_mails(sink)[0]
    assert mail["Auto-Submitted"] == "auto-generated"
    assert "Evidence: https://results.example.org/sites/SITE_%C3%84" in mail.get_content()
    assert mail["Subject"] == "[treehammer] CRITICAL: site SITE_Ä, was OK: 3 of 4 tests failed"
    assert mail["Date"] == "Mon, 21 Sep 2026 14:13:20 +0000"
    ((headers, body),) = HookSink.requests
    digest = hmac.new(b"swordfish", body, hashlib.sha256).hexdigest()
    assert headers["X-Treehammer-Signature-256"] == f"sha256={digest}"
    assert (
        json.loads(body).items()
        >= {
            "id": "event",
            "delivery": headers["X-Treehammer-Delivery"],
            "state": "CRITICAL",
            "subject": "SITE_Ä",
            "link": "https://results.example.org/sites/SITE_%C3%84",
        }.items()
    )


def test_failed_message_is_repeated_and_then_given_up(outbox: AlarmOutbox, hook: str) -> None:
    channels = AlarmChannels("warning", Webhook(hook))
    record_event(outbox, channels)
    now_us = LATER
    HookSink.statuses = [503, 307, *[500] * len(RETRY_US)]
    for attempt, wait_us in enumerate(RETRY_US, 1):
        assert deliver(outbox, channels, now_us) == ["waiting"]
        assert len(HookSink.requests) == attempt
        assert deliver(outbox, channels, now_us + wait_us - 1) == []
        now_us += wait_us
    assert deliver(outbox, channels, now_us) == ["given up"]
    assert outbox.summarize().given_up == 1
    assert len({headers["X-Treehammer-Delivery"] for headers, _ in HookSink.requests}) == 1
    assert len({body for _, body in HookSink.requests}) == 1


def test_dripping_servers_do_not_hang_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alarm_delivery, "TIMEOUT_S", 0.5)
    with (
        serve_tcp(drip) as port,
        pytest.raises(DeliveryError, match="the answer was not complete after"),
    ):
        Webhook(f"http://127.0.0.1:{port}/hook").send_message(MESSAGE, "")
    with serve_tcp(greet_forever) as port:
        server = MailServer("127.0.0.1", port, "none", "th@example.org")
        with pytest.raises(DeliveryError, match=r"127\.0\.0\.1: .* not complete after \d s"):
            server.send_message(MESSAGE, "")


def test_permanent_refusal_is_given_up_at_once(
    outbox: AlarmOutbox, mail_sink: tuple[MailSink, int], hook: str
) -> None:
    sink, port = mail_sink
    sink.refusals = {"gone@example.org": "550 no such user", "busy@example.org": "451 later"}
    server = MailServer("127.0.0.1", port, "none", "th@example.org")
    addresses = [("", f"{name}@example.org") for name in ("gone", "busy", "ops")]
    channels = AlarmChannels("warning", Webhook(hook), server, addresses)
    HookSink.statuses = [410]
    record_event(outbox, channels)
    rows = deliver_messages(outbox, channels, lambda: LATER)
    assert [row.recipient for row in rows if row.delivery == "sent"] == ["ops@example.org"]
    summary = outbox.summarize()
    assert (summary.sent, summary.waiting, summary.given_up) == (1, 1, 2)


def test_message_of_a_killed_process_is_sent_again_with_its_identity(
    outbox: AlarmOutbox, hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = AlarmChannels("warning", Webhook(hook))
    record_event(outbox, channels)

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(AlarmOutbox, "mark_sent", die)
    with pytest.raises(KeyboardInterrupt):
        deliver_messages(outbox, channels, lambda: LATER)
    monkeypatch.undo()
    assert deliver(outbox, channels, LATER + LEASE_US - 1) == []
    assert deliver(outbox, channels, LATER + LEASE_US) == ["sent"]
    first, second = (headers["X-Treehammer-Delivery"] for headers, _ in HookSink.requests)
    assert first == second


def test_stop_signal_waits_until_the_sent_message_is_marked(
    outbox: AlarmOutbox, hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = AlarmChannels("warning", Webhook(hook))
    record_event(outbox, channels)
    answer = HookSink.do_POST

    def interrupt(sink: HookSink) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        answer(sink)

    monkeypatch.setattr(HookSink, "do_POST", interrupt)
    # Commands that other tests ran in this process may have left another handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            deliver(outbox, channels)
    finally:
        signal.signal(signal.SIGINT, before)
    assert outbox.summarize().sent == 1


def test_lost_answer_is_repeated_with_the_same_identity(
    outbox: AlarmOutbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarm_delivery, "TIMEOUT_S", 0.5)
    addresses = [("", "a@example.org")]
    slow, prompt = SlowSink(), MailSink()
    with serve_mail(slow) as port:
        server = MailServer("127.0.0.1", port, "none", "th@example.org")
        channels = AlarmChannels("warning", None, server, addresses)
        record_event(outbox, channels)
        assert deliver(outbox, channels) == ["waiting"]
    with serve_mail(prompt) as port:
        channels = replace(channels, mail=replace(server, port=port))
        assert deliver(outbox, channels, LATER + RETRY_US[0]) == ["sent"]
    (first,), (second,) = parse_mails(slow), parse_mails(prompt)
    assert first["Message-ID"] == second["Message-ID"]
    assert first.as_string() == second.as_string()


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_mail_is_encrypted_for_a_known_server_only(
    tls: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, certificate = MailSink(), make_authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    options: dict[str, Any] = (
        {"ssl_context": context}
        if tls == "tls"
        else {"tls_context": context, "require_starttls": True}
    )
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serve_mail(sink, **options) as port:
        MailServer("127.0.0.1", port, tls, "th@example.org").send_message(MESSAGE, "")
        assert [mail.rcpt_tos for mail in sink.mails] == [["a@example.org"]]
        # Another name of the same server, and a server of an unknown authority.
        for host, authorities in (("localhost", str(certificate)), ("127.0.0.1", os.devnull)):
            monkeypatch.setenv("SSL_CERT_FILE", authorities)
            with pytest.raises(DeliveryError, match="CERTIFICATE_VERIFY_FAILED"):
                MailServer(host, port, tls, "th@example.org").send_message(MESSAGE, "")
    assert len(sink.mails) == 1


def test_recipients_depend_on_severity_and_site() -> None:
    server = MailServer("mx", 25, "none", "th@example.org")
    channels = AlarmChannels("critical", None, server, [("", "all@x.y"), ("B", "b@x.y")])
    assert list(channels.list_recipients(EVENT)) == [("mail", "all@x.y")]
    assert not list(channels.list_recipients(replace(EVENT, severity="warning")))
    at_b = replace(EVENT, subject="B")
    addresses = [address for _, address in channels.list_recipients(at_b)]
    assert addresses == ["all@x.y", "b@x.y"]


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("alarm_webhook_url", "http://example.org/x", "must begin with https"),
        ("alarm_smtp_server", "mail.example.org", "HOST:PORT"),
        ("alarm_recipients", "SITE_A", "mail addresses"),
        ("alarm_recipients", "a@b.c\nBcc: x@y.z", "mail addresses"),
        ("alarm_sender", "nobody", "a mail address"),
        ("alarm_minimum", "info", "one of warning, critical"),
    ],
)
def test_wrong_setting_is_refused(name: str, value: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_settings({name: value}, environ={}, folder=tmp_path)


def test_no_secret_is_shown() -> None:
    assert "token" not in repr(Webhook("https://hooks.example.org/token", "token"))
    assert "token" not in repr(MailServer("mx", 25, "tls", "a@b.c", "user", "token"))
    assert LEASE_US > 2 * alarm_delivery.TIMEOUT_S * 1e6


def test_notify_without_channels_names_their_settings(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'results.db'}"
    with Store.open(database):
        pass
    printed = CliRunner().invoke(cli, ["--database", database, "notify"], catch_exceptions=False)
    assert printed.stderr.startswith("0 sent, 0 failed")
    assert "set alarm_webhook_url or alarm_recipients" in printed.stderr
