"""Command ``db audit``: the audit trail, also as it grows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime

import click

from treehammer.config import Settings
from treehammer.durations import SECOND_US
from treehammer.errors import ConfigError
from treehammer.sql.core.rows import AuditRow
from treehammer.sql.write.store import Store
from treehammer.tables import TableColumn
from treehammer.terminal import CSV, JSON, output_options, print_rows
from treehammer.text_formatting import format_time

#: Seconds between two looks for new entries.
POLL_S = 2.0
#: Entries shown before new ones when following.
SHOWN_BEFORE = 10
#: Seconds for which clocks of services and a slow transaction may delay an entry.
_LATE_US = 120_000_000


@click.command("audit")
@click.option(
    "--action", "actions", multiple=True, help="Only entries with this action; may be repeated."
)
@click.option("--since", metavar="TIME", help="Only entries at TIME (UTC) or later.")
@click.option("-f", "--follow", is_flag=True, help="Print new entries as they come, until Ctrl-C.")
@output_options
@click.pass_obj
def audit_command(
    settings: Settings, actions: tuple[str, ...], since: str | None, follow: bool, form: str
) -> None:
    """List changes of recorded results, keys and sign-ins, and refused requests, newest first.

    With --follow the newest come last, one line each, with --json one object each.

    Example: treehammer db audit --action refuse --since 2026-03-01
    """
    if follow and form == CSV:
        raise click.UsageError("--follow prints text or, with --json, objects, but no CSV.")
    since_us = parse_time(since, "--since") if since else 0

    def is_wanted(entry: AuditRow) -> bool:
        return not actions or entry.action in actions

    with Store.open(settings.database, create=False) as store:
        if follow:
            for entry in filter(is_wanted, _follow_entries(store, since_us)):
                click.echo(_format_line(entry, form))
            return
        rows = [asdict(entry) for entry in filter(is_wanted, store.list_changes(since_us))]
    columns = [
        TableColumn("changed_us", "time (UTC)", format_time),
        TableColumn("action", "action"),
        TableColumn("actor", "by"),
        TableColumn("scope", "subject"),
        TableColumn("reason", "reason"),
        TableColumn("measurements", "number", is_number=True),
    ]
    print_rows(rows, columns, form=form)


def _follow_entries(store: Store, since_us: int) -> Iterator[AuditRow]:
    """Yield the last entries, oldest first, then new ones forever."""
    entries = store.list_changes(since_us)[::-1]
    yield from entries if since_us else entries[-SHOWN_BEFORE:]
    time_by_id = {entry.id: entry.changed_us for entry in entries}
    while True:
        time.sleep(POLL_S)
        newest_us = max(time_by_id.values(), default=since_us)
        for entry in reversed(store.list_changes(max(newest_us - _LATE_US, since_us))):
            if entry.id not in time_by_id:
                yield entry
                time_by_id[entry.id] = entry.changed_us


def _format_line(entry: AuditRow, form: str) -> str:
    if form == JSON:
        return json.dumps(asdict(entry))
    cells = (format_time(entry.changed_us), entry.action, entry.actor, entry.scope, entry.reason)
    return "  ".join(filter(None, (*cells, str(entry.measurements or ""))))


def parse_time(text: str, option: str) -> int:
    """Parse a date or a date and time, by default in UTC, into microseconds since 1970.

    Raises:
        ConfigError: it is neither.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"must be a time such as 2026-03-01 or 2026-03-01T12:00, not {text[:40]!r}",
            where=option,
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * SECOND_US)
