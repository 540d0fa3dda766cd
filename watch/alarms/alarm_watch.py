"""Rounds of the watch: assess all subjects, and record events.

Events are changes of states, regressions that a rerun confirmed, and change points.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from treehammer.analysis.comparison.verdict_text import format_effect
from treehammer.collectors.record.day_numbers import DAY_US, epoch_day_to_number
from treehammer.sql.core.subjects import split_door_label
from treehammer.sql.core.watch_rows import AlarmMessage, ChangePointRow, ReleaseCheck
from treehammer.sql.write.store import Store
from treehammer.watch.alarms.alarm_overview import (
    NO_CAMPAIGN,
    CheckState,
    assess_all,
    describe_check,
    describe_step,
    link_check,
)
from treehammer.watch.alarms.release_checks import watch_campaigns
from treehammer.watch.alarms.subject_state import AlarmKind, AlarmLevel, SubjectState
from treehammer.watch.changes import change_points
from treehammer.watch.changes.daily_series import Attribution, ChangeState
from treehammer.watch.states.site_status import update_states
from treehammer.watch.states.state_timeline import OVERRIDE
from treehammer.watch.states.status_rules import StatusRules
from treehammer.watch.store.alarms import (
    NO_SEVERITY,
    STATE,
    EventTable,
    ReleaseCheckTable,
    cut_text,
    hash_identity,
    load_change_points,
)

#: Kinds of events beside changes of states.
REGRESSION, CHANGE_POINT = "regression", "change point"
#: States of checks that are announced.
ANNOUNCED_STATES = (CheckState.CONFIRMED, CheckState.FAILED)
#: Times since a change point was found, and since its day, within which it is news.
NEWS_US, RECENT_US = 7 * DAY_US, 30 * DAY_US


def record_events(store: Store, rules: StatusRules, now_us: int) -> list[AlarmMessage]:
    """Record the events since the last round; return the new ones.

    Rounds may run in several processes, and be interrupted at any time: each event is recorded once.

    Args:
        store: the database.
        rules: by which the states of sites are evaluated first.
        now_us: time of the round, in microseconds since 1970 UTC.
    """
    update_states(store, now_us, rules)
    watch_campaigns(store, now_us)
    event_table = EventTable(store)
    # The recorded states are loaded first: of two rounds, the one with outdated ones records nothing.
    recorded = event_table.load_states()
    events = [
        *find_state_changes(assess_all(store, now_us), recorded, now_us),
        *find_regressions(ReleaseCheckTable(store).list_checks(), now_us),
        *find_change_points(load_change_points(store), now_us),
    ]
    return event_table.record_events(events)


def find_state_changes(
    subjects: Iterable[SubjectState],
    announced: Mapping[tuple[str, str], AlarmMessage],
    now_us: int,
) -> Iterator[AlarmMessage]:
    """Find changes against the last recorded states, and trouble that a person has set since.

    Releases are left out, since their regressions are events of their own. During a downtime or a
    central event the recorded state stays, so that only a different state after it is news. The
    first sight of a subject is news only if it is in trouble.
    """
    for subject in subjects:
        if subject.kind is AlarmKind.RELEASE or subject.is_excused:
            continue
        before = announced.get((subject.kind, subject.name))
        is_trouble = subject.level in (AlarmLevel.WARNING, AlarmLevel.CRITICAL)
        is_set = is_trouble and subject.rule.startswith(f"{OVERRIDE}/")
        if (
            before is None
            or before.state != subject.level
            or (is_set and (subject.since_us or 0) > before.happened_us)
        ):
            yield _build_state_event(subject, before, now_us)


def find_regressions(checks: Iterable[ReleaseCheck], now_us: int) -> Iterator[AlarmMessage]:
    """Find confirmed regressions and failures; the table of events knows which ones are old."""
    announced = (check for check in checks if check.state in ANNOUNCED_STATES)
    return (_build_regression_event(check, now_us) for check in announced)


def list_slowdowns(changes: Iterable[ChangePointRow], now_us: int) -> list[ChangePointRow]:
    """List the confirmed change points that are news and made reading slower.

    A change of long ago that is found now, such as at the first search, is not announced.
    """
    recent_day = epoch_day_to_number(max(0, -(-(now_us - RECENT_US) // DAY_US))) or 0
    return [
        change
        for change in changes
        if change.state == ChangeState.CONFIRMED
        and change_points.is_regression(change)
        and change.found_us >= now_us - NEWS_US
        and (change.until_day or change.day) >= recent_day
    ]


def find_change_points(changes: Iterable[ChangePointRow], now_us: int) -> Iterator[AlarmMessage]:
    """Find the slowdowns that are announced."""
    return (_build_change_event(change, now_us) for change in list_slowdowns(changes, now_us))


def _build_state_event(
    subject: SubjectState, before: AlarmMessage | None, now_us: int
) -> AlarmMessage:
    level, previous = subject.level, AlarmLevel(before.state) if before else None
    # The worse state counts, since the recovery from it matters as much.
    severity = "critical" if AlarmLevel.CRITICAL in (level, previous) else "warning"
    if previous is None and level in (AlarmLevel.OK, AlarmLevel.UNKNOWN):
        severity = NO_SEVERITY
    was = f", was {previous}" if previous not in (None, level) else ""
    rule = f"Rule: {subject.rule}" if subject.rule else None
    return _build_event(
        # Each event has one successor: of processes that see another state, the first one counts.
        (STATE, subject.kind, subject.name, before.id if before else None),
        kind=STATE,
        subject_kind=subject.kind,
        subject=subject.name,
        state=level,
        severity=severity,
        happened_us=subject.since_us if subject.since_us is not None else now_us,
        recorded_us=max(now_us, before.recorded_us + 1) if before else now_us,
        title=f"{level}: {subject.title}{was}: {subject.summary}",
        text="\n".join(filter(None, (subject.summary, *subject.details, rule))),
        evidence=subject.evidence,
    )


def _build_change_event(change: ChangePointRow, now_us: int) -> AlarmMessage:
    kinds = {Attribution.SITE: AlarmKind.SITE, Attribution.STORAGE: AlarmKind.SITE}
    kind = kinds.get(Attribution(change.attribution), AlarmKind.RELEASE)
    return _build_event(
        (CHANGE_POINT, change.id),
        kind=CHANGE_POINT,
        subject_kind=kind if change.subject else AlarmKind.CENTRAL,
        subject=change.subject,
        state=AlarmLevel.WARNING,
        severity="warning",
        happened_us=change.found_us,
        recorded_us=now_us,
        title=f"Change: {change_points.describe_change(change)}",
        text=f"{change.days_before + change.days_after} days were measured."
        if change.until_day
        else f"{change.days_before} days before and {change.days_after} since were measured.",
        evidence=f"/changes/{quote(change.id, safe='')}",
    )


def _build_regression_event(check: ReleaseCheck, now_us: int) -> AlarmMessage:
    effect = "" if check.effect is None else f" by up to {format_effect(check.effect)}"
    confirmed = f"Confirmed by rerun {check.reruns}, campaign {check.rerun_id}."
    if check.state == CheckState.FAILED:
        confirmed = f"Campaign {check.campaign_id}." if check.campaign_id != NO_CAMPAIGN else ""
    return _build_event(
        (REGRESSION, check.id),
        kind=REGRESSION,
        subject_kind=AlarmKind.SITE if check.server else AlarmKind.RELEASE,
        subject=split_door_label(check.server)[0] if check.server else check.b,
        state=AlarmLevel.CRITICAL,
        severity="critical",
        happened_us=check.changed_us,
        recorded_us=now_us,
        title=f"Regression: {describe_step(check)}{effect}",
        text="\n".join([describe_check(check), check.text, confirmed]),
        evidence=link_check(check),
    )


def _build_event(identity: tuple[str | None, ...], *, title: str, **values: Any) -> AlarmMessage:
    """Build an event; processes that see the same one build the same identity."""
    id_ = hash_identity(*identity)
    return AlarmMessage(id=id_, event_id=id_, title=cut_text(title), **values)
