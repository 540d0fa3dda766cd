"""The verbs ``changes``, ``digest`` and ``notify``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

import click

from treehammer.analysis.alarms.alarm_delivery import AlarmChannels
from treehammer.analysis.alarms.alarm_overview import require_measured_release
from treehammer.analysis.changes.change_text import (
    WeeklyDigest,
    last_whole_week,
    load_digest,
    make_change_record,
    parse_week,
    select_changes,
)
from treehammer.analysis.changes.change_update import update_changes
from treehammer.analysis.changes.daily_series import WINDOW_DAYS
from treehammer.analysis.status.status_rules import load_status_rules
from treehammer.collectors.record.day_numbers import day_to_number
from treehammer.config import Settings
from treehammer.errors import ConfigError, ExitCode
from treehammer.sql.core.watch_rows import AlarmMessage
from treehammer.sql.read.overview_queries import (
    JOB_SITE,
    STORAGE_SITE,
    build_unknown_site_error,
    list_sites,
)
from treehammer.sql.watch.alarms import SENT, AlarmOutbox, fetch_change_points
from treehammer.sql.write.store import Store
from treehammer.tables import TableColumn
from treehammer.terminal import on_interrupt, output_options, print_rows

_CHANGE_COLUMNS = (
    TableColumn("since", "since"),
    TableColumn("state", "state"),
    TableColumn("points_at", "points at"),
    TableColumn("quantity", "quantity"),
    TableColumn("test", "test"),
    TableColumn("change", "change", is_number=True),
    TableColumn("interval", "95 % interval"),
    TableColumn("cause", "changed on that day"),
    TableColumn("id", "change id"),
)
_MESSAGE_COLUMNS = (
    TableColumn("happened", "time, UTC"),
    TableColumn("title", "event"),
    TableColumn("channel", "channel"),
    TableColumn("recipient", "recipient"),
    TableColumn("state", "message"),
    TableColumn("error", "error"),
)
#: Messages that are listed.
MAX_LISTED = 200
_NO_CHANNEL = (
    "Events are recorded, but no message is sent: set alarm_webhook_url or alarm_recipients."
)


@click.command("changes")
@click.option("--site", default="", help="Changes of a site, as site of the jobs or storage.")
@click.option("--release", default="", help="Changes of a ROOT release.")
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d"]),
    help=f"First day of the changes [default: {WINDOW_DAYS} days ago].",
)
@click.option("--update", is_flag=True, help="Search the newest results first.")
@click.option("--rebuild", is_flag=True, help="Update from all results of the last 90 days.")
@output_options
@click.pass_obj
def changes_command(
    settings: Settings,
    site: str,
    release: str,
    since: datetime | None,
    update: bool,
    rebuild: bool,
    form: str,
) -> None:
    """List what became slower or faster, since when, and what it points at.

    Changes are steps in daily series: each release relative to a pinned control release in the same
    jobs, and the control itself. Run with --update once a day, such as from cron.

    \b
    Example: treehammer changes --update
             treehammer changes --site SITE_A --since 2026-03-01
    """
    now = datetime.now(UTC)
    first_day = since.date() if since else now.date() - timedelta(days=WINDOW_DAYS - 1)
    with Store.open(settings.database, create=False) as store:
        if update or rebuild:
            control = settings.control_release
            result = update_changes(store, now, control=control, rebuild=rebuild)
            click.echo(
                f"Read {result.days} days again; {result.series} series; {result.changes} changes, "
                f"{result.new} of them new.",
                err=True,
            )
            for identity, sites in result.nodes_by.items():
                click.echo(
                    f"Host names change at {', '.join(sorted(sites))}: nodes by {identity}.",
                    err=True,
                )
        changes = fetch_change_points(store, day_to_number(first_day))
        chosen = select_changes(changes, site, release)
        if not chosen:
            _require_known(store, site, release)
    print_rows([make_change_record(change) for change in chosen], _CHANGE_COLUMNS, form=form)
    if not chosen:
        click.echo("No changes found.", err=True)


def _require_known(store: Store, site: str, release: str) -> None:
    """Check that the names of a site and a release are not mistyped; '' is none."""
    if site and not any(site in list_sites(store, by) for by in (JOB_SITE, STORAGE_SITE)):
        raise build_unknown_site_error(store, site)
    if release:
        require_measured_release(store, release)


@click.command("digest")
@click.option("--week", default="", help="A week, such as 2026-W46 [default: the last whole one].")
@click.option("--html", is_flag=True, help="Print HTML instead of Markdown.")
@click.option("--mail", is_flag=True, help="Send it to alarm_recipients instead.")
@click.pass_obj
def digest_command(settings: Settings, week: str, html: bool, mail: bool) -> None:
    """Print or mail the week's failed sites and changes, each with a link to its evidence.

    Links need serve_url. Mail uses the settings of alarms.

    \b
    Example: treehammer digest --week 2026-W46
             treehammer digest --mail
    """
    try:
        first_day = parse_week(week) if week else last_whole_week(datetime.now(UTC).date())
    except ValueError:
        raise ConfigError(f"{week!r} is not a week; write 2026-W46", where="--week") from None
    with Store.open(settings.database, create=False) as store:
        digest = load_digest(store, first_day)
    if mail:
        count = _mail_digest(settings, digest)
        click.echo(f"Sent to {count} recipients.", err=True)
    else:
        write = digest.to_html if html else digest.to_markdown
        click.echo(write(settings.serve_url), nl=False)


def _mail_digest(settings: Settings, digest: WeeklyDigest) -> int:
    """Send the digest to the recipients of all sites' alarms; return their number."""
    channels = AlarmChannels.from_settings(settings)
    addresses = [address for site, address in channels.addresses if not site]
    if channels.mail is None or not addresses:
        raise ConfigError(
            "no recipients", where="digest --mail", hint="Set alarm_recipients in treehammer.toml."
        )
    for address in addresses:
        mail = EmailMessage()
        mail["Subject"] = digest.title
        mail["From"] = channels.mail.sender
        mail["To"] = address
        mail["Date"] = format_datetime(datetime.now(UTC))
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(digest.to_markdown(settings.serve_url))
        mail.add_alternative(digest.to_html(settings.serve_url), subtype="html")
        channels.mail.send_mail(mail)
    return len(addresses)


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
    print_rows(rows, _MESSAGE_COLUMNS, form=form)
