"""One round of the watch: compare finished campaigns, assess all subjects, record events."""

from __future__ import annotations

from collections.abc import Callable

from treehammer.analysis.alarms.alarm_delivery import AlarmChannels, deliver_messages
from treehammer.analysis.alarms.alarm_events import (
    find_change_points,
    find_regressions,
    find_state_changes,
)
from treehammer.analysis.alarms.alarm_overview import assess_all
from treehammer.analysis.alarms.regression_watch import watch_campaigns
from treehammer.analysis.alarms.release_state import CheckState
from treehammer.analysis.status.status_rules import StatusRules
from treehammer.analysis.status.status_update import update_states
from treehammer.sql.core.watch_rows import AlarmMessage
from treehammer.sql.watch.alarm_outbox import AlarmOutbox
from treehammer.sql.watch.change_points import fetch_change_points
from treehammer.sql.watch.release_checks import ReleaseCheckTable
from treehammer.sql.write.store import Store


def record_events(
    store: Store, rules: StatusRules, channels: AlarmChannels, now_us: int
) -> list[AlarmMessage]:
    """Record the events since the last round, with their messages; return the new ones.

    Rounds may run in several processes, and be interrupted at any time: each event is recorded once.

    Args:
        store: the database.
        rules: by which the states of sites are evaluated first.
        channels: whose recipients get messages.
        now_us: time of the round, in microseconds since 1970 UTC.
    """
    update_states(store, now_us, rules)
    watch_campaigns(store, now_us)
    outbox = AlarmOutbox(store)
    # The recorded states are loaded first: of two rounds, the one with outdated ones records nothing.
    recorded = outbox.load_states()
    confirmed = ReleaseCheckTable(store).list_checks(states=(CheckState.CONFIRMED,))
    events = [
        *find_state_changes(assess_all(store, now_us), recorded, now_us),
        *find_regressions(confirmed, now_us),
        *find_change_points(fetch_change_points(store), now_us),
    ]
    return outbox.record_events(events, channels.list_recipients)


def watch_and_notify(
    store: Store, rules: StatusRules, channels: AlarmChannels, clock_us: Callable[[], int]
) -> list[AlarmMessage]:
    """Record events and send the messages that are due; return these, failed ones with an error."""
    record_events(store, rules, channels, clock_us())
    return deliver_messages(AlarmOutbox(store), channels, clock_us)
