"""The outbox of alarms in every database."""

from __future__ import annotations

from dataclasses import replace

from measurement_factory import build_alarm_event

from treehammer.sql.core.watch_rows import AlarmMessage
from treehammer.sql.watch.alarms import NO_SEVERITY, AlarmOutbox
from treehammer.sql.write.store import Store

MAIL, HOOK = ("mail", "a@example.org"), ("webhook", "")
EVENT = build_alarm_event(happened_us=90, recorded_us=100, text="line\n" * 2000)


def record(store: Store, *events: AlarmMessage) -> list[AlarmMessage]:
    return AlarmOutbox(store).record_events(events, lambda _: [MAIL, HOOK, MAIL])


def test_event_is_recorded_once_with_its_messages(store: Store) -> None:
    outbox = AlarmOutbox(store)
    assert record(store, EVENT) == [EVENT]
    # A second process that saw the same change, or another one of the same state before.
    assert record(store, replace(EVENT, state="OK")) == []
    later = replace(EVENT, id="later", event_id="later", state="OK", recorded_us=101)
    quiet = replace(EVENT, id="quiet", event_id="quiet", subject="B", severity=NO_SEVERITY)
    release = replace(EVENT, id="slower", event_id="slower", kind="regression")
    assert record(store, later, quiet, release) == [later, release]
    assert outbox.load_states() == {("site", EVENT.subject): later, ("site", "B"): quiet}
    assert outbox.list_events(10) == [EVENT, later, release]
    messages = [message for message in outbox.list_messages(10) if message.event_id == EVENT.id]
    assert {(message.channel, message.recipient) for message in messages} == {MAIL, HOOK}
    assert {message.text for message in messages} == {EVENT.text}
    summary = outbox.summarize()
    assert (summary.waiting, summary.sent, summary.oldest_us) == (8, 0, 100)


def test_claimed_message_is_sent_by_one_process(store: Store) -> None:
    outbox = AlarmOutbox(store)
    record(store, EVENT)
    assert outbox.claim_message(99, 1000) is None  # not due
    first, other = outbox.claim_message(100, 1000), outbox.claim_message(100, 1000)
    assert first
    assert other
    assert first.id != other.id
    assert outbox.claim_message(1099, 1000) is None
    # The process that sent the first one died.
    outbox.mark_sent(other, 200)
    again = outbox.claim_message(1100, 1000)
    assert again
    assert (again.id, again.attempts) == (first.id, 2)
    outbox.mark_failed(again, "refused " * 1000, due_us=5000)
    assert outbox.claim_message(4999, 1000) is None
    again = outbox.claim_message(5000, 1000)
    assert again
    assert again.error.startswith("refused")
    outbox.mark_failed(again, "no such user", due_us=None)
    assert outbox.claim_message(10**15, 1000) is None
    summary = outbox.summarize()
    assert (summary.waiting, summary.sent, summary.given_up) == (0, 1, 1)
    assert summary.oldest_us is None


def test_late_attempt_does_not_repeat_a_sent_message(store: Store) -> None:
    outbox = AlarmOutbox(store)
    AlarmOutbox(store).record_events([EVENT], lambda _: [HOOK])
    late, timely = outbox.claim_message(100, 1000), outbox.claim_message(1100, 1000)
    assert late
    assert timely
    # Neither while the second attempt runs, nor after it.
    outbox.mark_failed(late, "timeout", due_us=1150)
    assert outbox.claim_message(1200, 1000) is None
    outbox.mark_sent(timely, 1200)
    outbox.mark_failed(late, "timeout", due_us=1250)
    assert outbox.claim_message(10**15, 1000) is None
    assert outbox.summarize().sent == 1
    # The first attempt was accepted after all, and the second one failed.
    outbox.mark_failed(timely, "timeout", due_us=None)
    assert outbox.summarize().sent == 1
