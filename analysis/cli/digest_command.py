"""The verb ``digest``."""

from __future__ import annotations

from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime

import click

from treehammer.analysis.alarms.alarm_delivery import AlarmChannels
from treehammer.analysis.changes.weekly_digest import (
    WeeklyDigest,
    last_whole_week,
    load_digest,
    parse_week,
)
from treehammer.config import Settings
from treehammer.errors import ConfigError
from treehammer.sql.write.store import Store


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
