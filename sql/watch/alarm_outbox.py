"""Events that cause messages, and the outbox of these messages.

An event and its messages are written in one transaction, before anything is sent. Identities are
hashes of the event, so that several processes record the same event once. A message is leased by
the process that sends it; it becomes due again when that process dies.

Times are microseconds since 1970 UTC.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.metric_catalogue import MAX_TEXT
from treehammer.sql.core.schema import alarm_event, alarm_message, alarm_state
from treehammer.sql.core.watch_rows import AlarmEvent, AlarmMessage, AnnouncedState
from treehammer.sql.engine.row_mapping import fetch_rows
from treehammer.sql.write.store import Store

#: States of a message.
WAITING, SENT, GIVEN_UP = "waiting", "sent", "given up"
#: Maximum characters of a text, each of which may take several bytes.
MAX_TEXT_CHARS = MAX_TEXT // 8


@dataclass(frozen=True)
class Recipient:
    """Destination of messages: a mail address, or '' for the only one of the channel."""

    channel: str
    address: str = ""


@dataclass(frozen=True)
class AlarmChange:
    """Event to record, with the states before and after for a change of a state.

    Attributes:
        event: None if no message is due, as for the first state of a good subject.
        before: the announced state; None for none. If it is outdated, nothing is recorded.
        after: the state to record; None for events that do not change a state.
    """

    event: AlarmEvent | None
    before: AnnouncedState | None = None
    after: AnnouncedState | None = None


@dataclass(frozen=True)
class OutboxSummary:
    """Numbers of messages by state, and the time since which the oldest one waits."""

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
    """Announced states, events and messages in a database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def load_states(self) -> dict[tuple[str, str], AnnouncedState]:
        """Load the announced states by kind and subject."""
        with self._store.connection() as connection:
            found = fetch_rows(connection, AnnouncedState, sa.select(alarm_state))
        return {(one.kind, one.subject): one for one in found}

    def record_changes(
        self, changes: Sequence[AlarmChange], recipients: Mapping[str, Iterable[Recipient]]
    ) -> list[AlarmEvent]:
        """Record changes, events and their messages in one transaction; return the new events.

        Args:
            changes: to record; those that another process recorded are left out.
            recipients: of the messages, by the identity of the event.
        """
        if not changes:
            return []
        new: list[AlarmEvent] = []
        with self._store.writing_connection() as connection:
            for change in changes:
                if change.after and not _move_state(connection, change):
                    continue
                event = change.event
                if event and _insert_event(connection, event):
                    new.append(event)
                    _insert_messages(connection, event, recipients.get(event.id, ()))
        return new

    def claim_messages(
        self, now_us: int, lease_us: int, limit: int
    ) -> list[tuple[AlarmMessage, AlarmEvent]]:
        """Lease due messages, oldest first; other processes skip them until the lease ends."""
        table = alarm_message.c
        due = (
            sa.select(alarm_message)
            .join(alarm_event)
            .where(table.state == WAITING, table.due_us <= now_us, table.leased_until_us <= now_us)
            .order_by(alarm_event.c.happened_us, table.id)
            .limit(limit)
        )
        with self._store.writing_connection() as connection:
            claimed = []
            for message, event in _fetch_messages(connection, due):
                attempts, leased_until_us = message.attempts + 1, now_us + lease_us
                _update_message(
                    connection, message.id, attempts=attempts, leased_until_us=leased_until_us
                )
                leased = replace(message, attempts=attempts, leased_until_us=leased_until_us)
                claimed.append((leased, event))
        return claimed

    def mark_sent(self, message: AlarmMessage, now_us: int) -> None:
        """Record that a message was accepted by its recipient."""
        with self._store.writing_connection() as connection:
            _update_message(
                connection, message.id, state=SENT, sent_us=now_us, leased_until_us=0, error=""
            )

    def mark_failed(self, message: AlarmMessage, error: str, *, due_us: int | None) -> None:
        """Record a failed attempt; ``due_us`` is the time of the next one, None for none."""
        with self._store.writing_connection() as connection:
            _update_message(
                connection,
                message.id,
                state=GIVEN_UP if due_us is None else WAITING,
                due_us=message.due_us if due_us is None else due_us,
                leased_until_us=0,
                error=cut_text(error),
            )

    def summarize(self) -> OutboxSummary:
        """Count the messages by state."""
        table = alarm_message.c
        query = sa.select(table.state, sa.func.count()).group_by(table.state)
        oldest = (
            sa.select(sa.func.min(alarm_event.c.happened_us))
            .join(alarm_message, alarm_event.c.id == table.event_id)
            .where(table.state == WAITING)
        )
        with self._store.connection() as connection:
            counts = {state: int(number) for state, number in connection.execute(query)}
            oldest_us = connection.scalar(oldest)
        waiting, sent, given_up = (counts.get(state, 0) for state in (WAITING, SENT, GIVEN_UP))
        return OutboxSummary(waiting, sent, given_up, oldest_us)

    def list_events(self, limit: int) -> list[AlarmEvent]:
        """List the newest events."""
        order = (alarm_event.c.happened_us.desc(), alarm_event.c.id)
        with self._store.connection() as connection:
            query = sa.select(alarm_event).order_by(*order).limit(limit)
            return fetch_rows(connection, AlarmEvent, query)

    def list_messages(self, limit: int) -> list[tuple[AlarmMessage, AlarmEvent]]:
        """List the newest messages with their events."""
        order = (alarm_event.c.happened_us.desc(), alarm_message.c.id)
        query = sa.select(alarm_message).join(alarm_event).order_by(*order).limit(limit)
        with self._store.connection() as connection:
            return _fetch_messages(connection, query)


def _fetch_messages(
    connection: Connection, query: sa.Select[Any]
) -> list[tuple[AlarmMessage, AlarmEvent]]:
    """Fetch messages with their events; at most 1000."""
    messages = fetch_rows(connection, AlarmMessage, query)
    ids = {message.event_id for message in messages}
    of_messages = sa.select(alarm_event).where(alarm_event.c.id.in_(ids))
    events = {event.id: event for event in fetch_rows(connection, AlarmEvent, of_messages)}
    return [(message, events[message.event_id]) for message in messages]


def _move_state(connection: Connection, change: AlarmChange) -> bool:
    """Replace an announced state; False if it is no longer the expected one."""
    after = change.after
    assert after is not None
    identity = hash_identity(after.kind, after.subject)
    table = alarm_state
    known = connection.execute(
        sa.select(table.c.state, table.c.since_us).where(table.c.id == identity)
    ).first()
    expected = change.before and (change.before.state, change.before.since_us)
    if (known and tuple(known)) != expected:
        return False
    values = asdict(after)
    if known:
        connection.execute(sa.update(table).where(table.c.id == identity).values(values))
    else:
        connection.execute(sa.insert(table), [{"id": identity, **values}])
    return True


def _insert_event(connection: Connection, event: AlarmEvent) -> bool:
    known = sa.select(alarm_event.c.id).where(alarm_event.c.id == event.id)
    if connection.scalar(known) is not None:
        return False
    values = {**asdict(event), "title": cut_text(event.title)}
    connection.execute(sa.insert(alarm_event), [values])
    return True


def _insert_messages(
    connection: Connection, event: AlarmEvent, recipients: Iterable[Recipient]
) -> None:
    rows = [
        AlarmMessage(
            id=hash_identity(event.id, one.channel, one.address),
            event_id=event.id,
            channel=one.channel,
            recipient=one.address,
            state=WAITING,
            attempts=0,
            due_us=event.happened_us,
            leased_until_us=0,
            sent_us=None,
            error="",
        )
        for one in dict.fromkeys(recipients)
    ]
    if rows:
        connection.execute(sa.insert(alarm_message), [asdict(row) for row in rows])


def _update_message(connection: Connection, identity: str, **values: Any) -> None:
    connection.execute(
        sa.update(alarm_message).where(alarm_message.c.id == identity).values(values)
    )
