"""One round of the watch: compare finished campaigns, assess all subjects, record events."""

from __future__ import annotations

from collections.abc import Callable

from treehammer.analysis.alarms.alarm_delivery import (
    AlarmChannels,
    DeliveryReport,
    deliver_messages,
)
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
from treehammer.sql.core.watch_rows import AlarmEvent
from treehammer.sql.watch.alarm_outbox import AlarmOutbox
from treehammer.sql.watch.change_points import fetch_change_points
from treehammer.sql.watch.release_checks import ReleaseCheckTable
from treehammer.sql.write.store import Store


def record_events(
    store: Store, rules: StatusRules, channels: AlarmChannels, now_us: int
) -> list[AlarmEvent]:
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
    confirmed = ReleaseCheckTable(store).list_checks(states=(CheckState.CONFIRMED,))
    changes = [
        *find_state_changes(assess_all(store, now_us), outbox.load_states(), now_us),
        *find_regressions(confirmed),
        *find_change_points(fetch_change_points(store), now_us),
    ]
    recipients = {
        one.event.id: list(channels.list_recipients(one.event)) for one in changes if one.event
    }
    return outbox.record_changes(changes, recipients)


def watch_and_notify(
    store: Store, rules: StatusRules, channels: AlarmChannels, clock_us: Callable[[], int]
) -> DeliveryReport:
    """Record events and send all messages that are due; called by patrol and ``treehammer notify``."""
    record_events(store, rules, channels, clock_us())
    return deliver_messages(AlarmOutbox(store), channels, clock_us)
