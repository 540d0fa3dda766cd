"""Events that cause messages, and these messages, in one table.

An event and its messages are written in one transaction, before anything is sent. Identities are
hashes of the event, so that several processes record it once. A message that is claimed becomes due
again after a lease, in case that the process dies.

Times are microseconds since 1970 UTC.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.metric_catalogue import MAX_TEXT
from treehammer.sql.core.schema import alarm_message
from treehammer.sql.core.watch_rows import AlarmMessage
from treehammer.sql.engine.row_mapping import fetch_rows, select_latest
from treehammer.sql.write.store import Store

#: Kind of the events of a changed state.
STATE = "state"
#: States of a delivery.
WAITING, SENT, GIVEN_UP = "waiting", "sent", "given up"
#: Severity of an event that causes no message.
NO_SEVERITY = "none"
#: Maximum characters of a text, each of which may take several bytes.
MAX_TEXT_CHARS = MAX_TEXT // 8

_TABLE = alarm_message.c
_IS_EVENT = _TABLE.channel.is_(None)


@dataclass(frozen=True)
class OutboxSummary:
    """Numbers of messages by delivery, and the time since which the oldest one waits."""

    waiting: int
    sent: int
    given_up: int
    oldest_us: int | None


def hash_identity(*parts: Any) -> str:
    """Return the identity of something named by these parts."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def cut_text(text: str) -> str:
    """Cut a text to the length that every database stores."""
    return text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"


class AlarmOutbox:
    """Events and messages in a database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def load_states(self) -> dict[tuple[str, str], AlarmMessage]:
        """Load the last event of a state of each subject, by kind and name."""
        by = (_TABLE.subject_kind, _TABLE.subject)
        latest = select_latest(
            alarm_message, by, [_TABLE.recorded_us], _IS_EVENT, _TABLE.kind == STATE
        )
        rows = self._store.fetch_rows(AlarmMessage, latest)
        return {(row.subject_kind, row.subject): row for row in rows}

    def record_events(
        self,
        events: Iterable[AlarmMessage],
        list_recipients: Callable[[AlarmMessage], Iterable[tuple[str, str]]],
    ) -> list[AlarmMessage]:
        """Record events and their messages in one transaction; return the new ones.

        Args:
            events: to record; those that another process recorded are left out.
            list_recipients: returns channel and address of each recipient of an event.
        """
        events = list(events)
        if not events:
            return []
        with self._store.writing_connection() as connection:
            new = [event for event in events if _insert_event(connection, event)]
            for event in new:
                _insert_messages(connection, event, list_recipients(event))
        return [event for event in new if event.severity != NO_SEVERITY]

    def claim_message(self, now_us: int, lease_us: int) -> AlarmMessage | None:
        """Claim the oldest message that is due; other processes skip it for the lease."""
        due = (
            sa.select(alarm_message)
            .where(_TABLE.delivery == WAITING, _TABLE.due_us <= now_us)
            .order_by(_TABLE.recorded_us, _TABLE.id)
            .limit(1)
        )
        with self._store.writing_connection() as connection:
            message = next(iter(fetch_rows(connection, AlarmMessage, due)), None)
            if message is None:
                return None
            claimed = replace(message, attempts=message.attempts + 1, due_us=now_us + lease_us)
            _update_message(connection, claimed)
        return claimed

    def mark_sent(self, message: AlarmMessage, now_us: int) -> AlarmMessage:
        """Record that a message was accepted by its recipient; return it."""
        sent = replace(message, delivery=SENT, due_us=now_us, error="")
        with self._store.writing_connection() as connection:
            _update_message(connection, sent)
        return sent

    def mark_failed(self, message: AlarmMessage, error: str, *, due_us: int | None) -> AlarmMessage:
        """Record a failed attempt; ``due_us`` is the time of the next one, None for none.

        An attempt that outlasted its lease changes nothing, since a later one decides.
        """
        failed = replace(
            message,
            delivery=GIVEN_UP if due_us is None else WAITING,
            due_us=message.due_us if due_us is None else due_us,
            error=cut_text(error),
        )
        is_latest = (_TABLE.delivery == WAITING, _TABLE.attempts == message.attempts)
        with self._store.writing_connection() as connection:
            _update_message(connection, failed, *is_latest)
        return failed

    def summarize(self) -> OutboxSummary:
        """Count the messages by delivery."""
        query = sa.select(_TABLE.delivery, sa.func.count()).group_by(_TABLE.delivery)
        oldest = sa.select(sa.func.min(_TABLE.recorded_us)).where(_TABLE.delivery == WAITING)
        with self._store.connection() as connection:
            counts = {delivery: int(number) for delivery, number in connection.execute(query)}
            oldest_us = connection.scalar(oldest)
        waiting, sent, given_up = (counts.get(name, 0) for name in (WAITING, SENT, GIVEN_UP))
        return OutboxSummary(waiting, sent, given_up, oldest_us)

    def list_events(self, limit: int) -> list[AlarmMessage]:
        """List the newest events."""
        return self._list_newest(limit, _IS_EVENT, _TABLE.severity != NO_SEVERITY)

    def list_messages(self, limit: int) -> list[AlarmMessage]:
        """List the newest messages."""
        return self._list_newest(limit, ~_IS_EVENT)

    def _list_newest(self, limit: int, *chosen: sa.ColumnElement[bool]) -> list[AlarmMessage]:
        order = (_TABLE.happened_us.desc(), _TABLE.id)
        return self._store.fetch_rows(
            AlarmMessage, sa.select(alarm_message).where(*chosen).order_by(*order).limit(limit)
        )


def _update_message(
    connection: Connection, message: AlarmMessage, *chosen: sa.ColumnElement[bool]
) -> None:
    names = ("delivery", "attempts", "due_us", "error")
    values = {name: getattr(message, name) for name in names}
    chosen = (_TABLE.id == message.id, *chosen)
    connection.execute(sa.update(alarm_message).where(*chosen).values(values))


def _insert_event(connection: Connection, event: AlarmMessage) -> bool:
    """Insert an event; False if it is recorded."""
    if connection.scalar(sa.select(_TABLE.id).where(_TABLE.id == event.id)) is not None:
        return False
    connection.execute(sa.insert(alarm_message), [asdict(event)])
    return True


def _insert_messages(
    connection: Connection, event: AlarmMessage, recipients: Iterable[tuple[str, str]]
) -> None:
    rows = [
        replace(
            event,
            id=hash_identity(event.id, channel, address),
            channel=channel,
            recipient=address,
            delivery=WAITING,
            due_us=event.recorded_us,
        )
        for channel, address in dict.fromkeys(recipients)
    ]
    if rows:
        connection.execute(sa.insert(alarm_message), [asdict(row) for row in rows])
