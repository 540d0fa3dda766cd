"""Messages by mail and webhook reach real servers once, and failures are repeated."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope
from click.testing import CliRunner
from local_servers import drip, serve_http, serve_tcp
from measurement_factory import build_alarm_event

from treehammer.analysis.alarms import alarm_delivery, mail_channel, webhook_channel
from treehammer.analysis.alarms.alarm_delivery import (
    LEASE_US,
    RETRY_US,
    AlarmChannels,
    deliver_messages,
)
from treehammer.analysis.alarms.mail_channel import MailServer, build_mail
from treehammer.analysis.alarms.webhook_channel import Webhook, sign_body
from treehammer.cli import cli
from treehammer.config import load_settings
from treehammer.errors import ConfigError, DeliveryError
from treehammer.sql.core.watch_rows import AlarmEvent, AlarmMessage
from treehammer.sql.watch.alarm_outbox import AlarmChange, AlarmOutbox
from treehammer.sql.write.store import Store

EVENT = build_alarm_event()
LATER = 1_800_000_000_000_000


class MailSink:
    """SMTP server that keeps accepted messages, and refuses some recipients."""

    def __init__(self) -> None:
        self.mails: list[Envelope] = []
        self.refusals: dict[str, str] = {}

    async def handle_RCPT(  # noqa: N802 - name given by aiosmtpd
        self, _server: Any, _session: Any, envelope: Envelope, address: str, _options: Any
    ) -> str:
        if address in self.refusals:
            return self.refusals[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(  # noqa: N802 - name given by aiosmtpd
        self, _server: Any, _session: Any, envelope: Envelope
    ) -> str:
        self.mails.append(envelope)
        return "250 accepted"


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


@pytest.fixture
def mail_sink() -> Iterator[tuple[MailSink, int]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    sink = MailSink()
    controller = Controller(sink, hostname="127.0.0.1", port=port)
    controller.start()
    yield sink, port
    controller.stop()


@pytest.fixture
def hook() -> Iterator[str]:
    HookSink.requests, HookSink.statuses = [], []
    with serve_http(HookSink) as port:
        yield f"http://127.0.0.1:{port}/hook"


@pytest.fixture
def outbox(store: Store) -> AlarmOutbox:
    return AlarmOutbox(store)


def record_event(outbox: AlarmOutbox, channels: AlarmChannels, event: AlarmEvent = EVENT) -> None:
    outbox.record_changes([AlarmChange(event)], {event.id: list(channels.list_recipients(event))})


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
    for _ in range(2):
        report = deliver_messages(outbox, channels, lambda: LATER)
        assert not report.failed
    assert sorted(mail.rcpt_tos[0] for mail in sink.mails) == ["admin@a.example", "ops@example.org"]
    mail = sink.mails[0].content
    assert isinstance(mail, bytes)
    assert b"Auto-Submitted: auto-generated" in mail
    assert b"Evidence: https://results.example.org/sites/SITE_%C3%84" in mail
    ((headers, body),) = HookSink.requests
    assert headers["X-Treehammer-Signature-256"] == sign_body("swordfish", body)
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


def test_mail_has_one_subject_line_and_a_fixed_identity() -> None:
    message = AlarmMessage("m1", "e1", "mail", "a@example.org", "waiting", 0, 0, 0, None, "")
    mails = [build_mail(message, EVENT, "/x", sender="Treehammer <th@example.org>") for _ in "ab"]
    assert isinstance(mails[0], EmailMessage)
    assert mails[0]["Subject"] == (
        "[treehammer] CRITICAL: site SITE_Ä, was OK: 3 of 4 tests failed"
    )
    assert mails[0]["Message-ID"] == mails[1]["Message-ID"] == "<m1@example.org>"
    assert mails[0]["Date"] == "Mon, 21 Sep 2026 14:13:20 +0000"


def test_failed_message_is_repeated_and_then_given_up(outbox: AlarmOutbox, hook: str) -> None:
    channels = AlarmChannels("warning", Webhook(hook))
    record_event(outbox, channels)
    clock = [LATER]
    HookSink.statuses = [503, 307, *[500] * len(RETRY_US)]
    for attempt, wait_us in enumerate(RETRY_US, 1):
        assert len(deliver_messages(outbox, channels, lambda: clock[0]).failed) == 1
        assert len(HookSink.requests) == attempt
        clock[0] += wait_us - 1
        assert not deliver_messages(outbox, channels, lambda: clock[0]).failed
        clock[0] += 1
    assert deliver_messages(outbox, channels, lambda: clock[0]).failed
    assert outbox.summarize().given_up == 1
    assert len({headers["X-Treehammer-Delivery"] for headers, _ in HookSink.requests}) == 1
    assert len({body for _, body in HookSink.requests}) == 1


def test_dripping_servers_do_not_hang_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_channel, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(mail_channel, "TOTAL_TIMEOUT_S", 0.5)
    message = AlarmMessage("m1", "e1", "mail", "a@example.org", "waiting", 0, 0, 0, None, "")
    with serve_tcp(drip) as port:
        server = MailServer("127.0.0.1", port, "none", "th@example.org")
        with pytest.raises(DeliveryError, match="the answer was not complete after"):
            Webhook(f"http://127.0.0.1:{port}/hook").send_message(message, EVENT, "")
        with pytest.raises(DeliveryError, match=r"127\.0\.0\.1: not done after"):
            server.send_message(message, EVENT, "")


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
    report = deliver_messages(outbox, channels, lambda: LATER)
    assert [message.recipient for message, _ in report.sent] == ["ops@example.org"]
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
    assert not deliver_messages(outbox, channels, lambda: LATER + LEASE_US - 1).sent
    assert deliver_messages(outbox, channels, lambda: LATER + LEASE_US).sent
    first, second = (headers["X-Treehammer-Delivery"] for headers, _ in HookSink.requests)
    assert first == second


def test_recipients_depend_on_severity_and_site() -> None:
    server = MailServer("mx", 25, "none", "th@example.org")
    channels = AlarmChannels("critical", None, server, [("", "all@x.y"), ("B", "b@x.y")])
    assert [one.address for one in channels.list_recipients(EVENT)] == ["all@x.y"]
    assert not list(channels.list_recipients(replace(EVENT, severity="warning")))
    at_b = replace(EVENT, subject="B")
    assert [one.address for one in channels.list_recipients(at_b)] == ["all@x.y", "b@x.y"]


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
    assert alarm_delivery.LEASE_US > 8 * 30_000_000


def test_notify_without_channels_names_their_settings(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'results.db'}"
    with Store.open(database):
        pass
    printed = CliRunner().invoke(cli, ["--database", database, "notify"], catch_exceptions=False)
    assert printed.stderr.startswith("0 sent, 0 failed")
    assert "set alarm_webhook_url or alarm_recipients" in printed.stderr
