"""The verb ``notify``."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import click

from treehammer.analysis.alarms.alarm_delivery import AlarmChannels
from treehammer.analysis.status.status_rules import load_status_rules
from treehammer.config import Settings
from treehammer.errors import ExitCode
from treehammer.sql.core.watch_rows import AlarmEvent, AlarmMessage
from treehammer.sql.watch.alarm_outbox import AlarmOutbox
from treehammer.sql.write.store import Store
from treehammer.tables import TableColumn
from treehammer.terminal import on_interrupt, output_options, print_rows

#: Messages and events that are listed.
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
            rows = _list_rows(AlarmOutbox(store).list_messages(MAX_LISTED))
            print_rows(rows, _COLUMNS, form=form)
            return ExitCode.DONE
        # Comparisons load scipy, which takes a third of a second.
        from treehammer.analysis.alarms.alarm_watch import watch_and_notify

        rules = load_status_rules(settings.status_rules)
        report = watch_and_notify(store, rules, channels, lambda: time.time_ns() // 1000)
    failed = {message.id: reason for message, _, reason in report.failed}
    pairs = [*report.sent, *((message, event) for message, event, _ in report.failed)]
    rows = [{**row, "error": failed.get(row["message"], "")} for row in _list_rows(pairs)]
    for row in rows:
        row["state"] = "failed" if row["message"] in failed else "sent"
    print_rows(rows, _COLUMNS, form=form)
    click.echo(f"{len(report.sent)} sent, {len(report.failed)} failed", err=True)
    if not (channels.webhook or channels.mail):
        click.echo(_NO_CHANNEL, err=True)
    return ExitCode.INFRASTRUCTURE if report.failed else ExitCode.DONE


_COLUMNS = (
    TableColumn("happened", "time, UTC"),
    TableColumn("title", "event"),
    TableColumn("channel", "channel"),
    TableColumn("recipient", "recipient"),
    TableColumn("state", "message"),
    TableColumn("error", "error"),
)


def _list_rows(pairs: Iterable[tuple[AlarmMessage, AlarmEvent]]) -> list[dict[str, Any]]:
    return [
        {
            "happened": f"{datetime.fromtimestamp(event.happened_us / 1e6, UTC):%Y-%m-%d %H:%M}",
            "title": event.title,
            "channel": message.channel,
            "recipient": message.recipient,
            "state": message.state,
            "attempts": message.attempts,
            "error": message.error,
            "message": message.id,
            "event": event.id,
            "evidence": event.evidence,
        }
        for message, event in pairs
    ]
