"""The verb ``notify``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from treehammer.analysis.alarms.alarm_delivery import AlarmChannels
from treehammer.analysis.status.status_rules import load_status_rules
from treehammer.config import Settings
from treehammer.errors import ExitCode
from treehammer.sql.core.watch_rows import AlarmMessage
from treehammer.sql.watch.alarm_outbox import SENT, AlarmOutbox
from treehammer.sql.write.store import Store
from treehammer.tables import TableColumn
from treehammer.terminal import on_interrupt, output_options, print_rows

#: Messages that are listed.
MAX_LISTED = 200
_NO_CHANNEL = (
    "Events are recorded, but no message is sent: set alarm_webhook_url or alarm_recipients."
)


@click.command("notify")
@click.option("--list", "listing", is_flag=True, help="Show the latest messages; send nothing.")
@output_options
@click.pass_obj
@on_interrupt("unsent messages are kept")
def notify_command(settings: Settings, listing: bool, form: str) -> int:
    """Send messages about changed states, confirmed regressions and change points.

    The states of sites are evaluated first. Each event is recorded once and sent once to each
    recipient; patrol does the same all the time, and both may run together. The settings are those
    named alarm_… in treehammer config show. The exit code is 4 if a message could not be sent; it
    is sent again later.

    \b
    Example: treehammer notify
             treehammer notify --list
    """
    channels = AlarmChannels.from_settings(settings)
    with Store.open(settings.database, create=False) as store:
        if listing:
            _print_messages(AlarmOutbox(store).list_messages(MAX_LISTED), form)
            return ExitCode.DONE
        # Comparisons load scipy, which takes a third of a second.
        from treehammer.analysis.alarms.alarm_watch import watch_and_notify

        rules = load_status_rules(settings.status_rules)
        messages = watch_and_notify(store, rules, channels, lambda: time.time_ns() // 1000)
    _print_messages(messages, form)
    failed = sum(message.delivery != SENT for message in messages)
    click.echo(f"{len(messages) - failed} sent, {failed} failed", err=True)
    if not (channels.webhook or channels.mail):
        click.echo(_NO_CHANNEL, err=True)
    return ExitCode.INFRASTRUCTURE if failed else ExitCode.DONE


_COLUMNS = (
    TableColumn("happened", "time, UTC"),
    TableColumn("title", "event"),
    TableColumn("channel", "channel"),
    TableColumn("recipient", "recipient"),
    TableColumn("state", "message"),
    TableColumn("error", "error"),
)


def _print_messages(messages: Sequence[AlarmMessage], form: str) -> None:
    rows: list[dict[str, Any]] = [
        {
            "happened": f"{datetime.fromtimestamp(message.happened_us / 1e6, UTC):%Y-%m-%d %H:%M}",
            "title": message.title,
            "channel": message.channel,
            "recipient": message.recipient,
            "state": message.delivery,
            "attempts": message.attempts,
            "error": message.error,
            "message": message.id,
            "event": message.event_id,
            "evidence": message.evidence,
        }
        for message in messages
    ]
    print_rows(rows, _COLUMNS, form=form)
