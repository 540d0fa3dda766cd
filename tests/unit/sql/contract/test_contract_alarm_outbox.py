"""The outbox of alarms in every database."""

from __future__ import annotations

from dataclasses import replace

from measurement_factory import build_alarm_event

from treehammer.sql.core.watch_rows import AlarmEvent, AnnouncedState
from treehammer.sql.watch.alarm_outbox import AlarmChange, AlarmOutbox, Recipient
from treehammer.sql.write.store import Store

MAIL, HOOK = Recipient("mail", "a@example.org"), Recipient("webhook")
EVENT = build_alarm_event(happened_us=100, text="line\n" * 2000)
GOOD = AnnouncedState("site", EVENT.subject, "OK", 50)
BAD = replace(GOOD, state="CRITICAL", since_us=100)


def record(store: Store, *changes: AlarmChange) -> list[AlarmEvent]:
    return AlarmOutbox(store).record_changes(changes, {EVENT.id: [MAIL, HOOK, MAIL]})


def test_event_is_recorded_once_with_its_messages(store: Store) -> None:
    outbox = AlarmOutbox(store)
    assert record(store, AlarmChange(None, None, GOOD)) == []
    change = AlarmChange(EVENT, GOOD, BAD)
    assert record(store, change) == [EVENT]
    # A second process that saw the same change.
    assert record(store, change) == []
    assert record(store, AlarmChange(EVENT, BAD, replace(BAD, since_us=101))) == []
    assert outbox.load_states() == {("site", EVENT.subject): replace(BAD, since_us=101)}
    assert outbox.list_events(10) == [EVENT]
    assert {(m.channel, m.recipient) for m, _ in outbox.list_messages(10)} == {
        ("mail", "a@example.org"),
        ("webhook", ""),
    }
    summary = outbox.summarize()
    assert (summary.waiting, summary.sent, summary.oldest_us) == (2, 0, 100)


def test_change_of_an_outdated_state_is_refused(store: Store) -> None:
    record(store, AlarmChange(None, None, BAD))
    assert record(store, AlarmChange(EVENT, GOOD, BAD)) == []
    assert record(store, AlarmChange(EVENT, None, BAD)) == []
    assert AlarmOutbox(store).list_events(10) == []


def test_leased_message_is_sent_by_one_process(store: Store) -> None:
    outbox = AlarmOutbox(store)
    record(store, AlarmChange(EVENT))
    assert outbox.claim_messages(99, 1000, 5) == []  # not due
    first = outbox.claim_messages(100, 1000, 1)
    other = outbox.claim_messages(100, 1000, 5)
    assert len(first) == len(other) == 1
    assert first[0][0].id != other[0][0].id
    assert first[0][1] == EVENT
    assert outbox.claim_messages(1099, 1000, 5) == []
    # The process that sent the first one died.
    outbox.mark_sent(other[0][0], 200)
    ((again, _),) = outbox.claim_messages(1100, 1000, 5)
    assert (again.id, again.attempts) == (first[0][0].id, 2)
    outbox.mark_failed(again, "refused " * 1000, due_us=5000)
    assert outbox.claim_messages(4999, 1000, 5) == []
    ((again, _),) = outbox.claim_messages(5000, 1000, 5)
    assert again.error.startswith("refused")
    outbox.mark_failed(again, "no such user", due_us=None)
    assert outbox.claim_messages(10**15, 1000, 5) == []
    summary = outbox.summarize()
    assert (summary.waiting, summary.sent, summary.given_up) == (0, 1, 1)
    assert summary.oldest_us is None
