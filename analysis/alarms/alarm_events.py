"""Events of alarms: changes of states, regressions that a rerun confirmed, and change points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from urllib.parse import quote

from treehammer.analysis.alarms.alarm_levels import AlarmKind, AlarmLevel, SubjectState
from treehammer.analysis.alarms.release_state import CheckState, describe_check, link_check
from treehammer.analysis.changes import change_text
from treehammer.analysis.changes.change_terms import Attribution, ChangeState
from treehammer.analysis.comparison.wording.verdict_text import format_effect
from treehammer.collectors.record.day_numbers import DAY_US, number_to_day
from treehammer.sql.core.watch_rows import AlarmEvent, AnnouncedState, ChangePointRow, ReleaseCheck
from treehammer.sql.watch.alarm_outbox import AlarmChange, hash_identity

#: Kinds of events.
STATE, REGRESSION, CHANGE_POINT = "state", "regression", "change point"
#: Severities of events, in order.
SEVERITIES = ("warning", "critical")
#: Times since a change point was found, and since its day, within which it is news.
NEWS_US, RECENT_US = 7 * DAY_US, 30 * DAY_US


def find_state_changes(
    subjects: Iterable[SubjectState],
    announced: Mapping[tuple[str, str], AnnouncedState],
    now_us: int,
) -> Iterator[AlarmChange]:
    """Find changes against the announced states.

    Releases are left out, since their regressions are events of their own. During a downtime or a
    central event the announced state stays, so that only a different state after it is news. The
    first sight of a subject is an event only if it is in trouble.
    """
    for one in subjects:
        if one.kind is AlarmKind.RELEASE or one.is_excused:
            continue
        before = announced.get((one.kind, one.name))
        if before and before.state == one.level:
            continue
        after = AnnouncedState(one.kind, one.name, one.level, now_us)
        yield AlarmChange(_build_state_event(one, before, now_us), before, after)


def find_regressions(checks: Iterable[ReleaseCheck]) -> Iterator[AlarmChange]:
    """Find the regressions that a rerun confirmed; the outbox knows which ones are old."""
    for one in checks:
        if one.state == CheckState.CONFIRMED:
            yield AlarmChange(_build_regression_event(one))


def find_change_points(changes: Iterable[ChangePointRow], now_us: int) -> Iterator[AlarmChange]:
    """Find the confirmed change points that are news and made reading slower.

    A change of long ago that is found now, such as at the first search, is not announced.
    """
    for one in changes:
        is_news = one.found_us >= now_us - NEWS_US and _day_us(one.day) >= now_us - RECENT_US
        if one.state == ChangeState.CONFIRMED and change_text.is_regression(one) and is_news:
            yield AlarmChange(_build_change_event(one))


def reaches_severity(event: AlarmEvent, minimum: str) -> bool:
    """Return whether an event is as severe as the minimum."""
    return SEVERITIES.index(event.severity) >= SEVERITIES.index(minimum)


def _build_state_event(
    subject: SubjectState, before: AnnouncedState | None, now_us: int
) -> AlarmEvent | None:
    level, previous = subject.level, AlarmLevel(before.state) if before else None
    if previous is None and level in (AlarmLevel.OK, AlarmLevel.UNKNOWN):
        return None
    was = f", was {previous}" if previous else ""
    lines = [subject.summary, *subject.details]
    return AlarmEvent(
        # Processes that see the same change build the same identity.
        id=hash_identity(STATE, subject.kind, subject.name, before and before.since_us, level),
        kind=STATE,
        subject_kind=subject.kind,
        subject=subject.name,
        state=level,
        severity=_find_severity(level, previous),
        happened_us=subject.since_us if subject.since_us is not None else now_us,
        title=f"{level}: {subject.title}{was}: {subject.summary}",
        text="\n".join([*lines, *([f"Rule: {subject.rule}"] if subject.rule else [])]),
        evidence=subject.evidence,
    )


def _build_change_event(change: ChangePointRow) -> AlarmEvent:
    kinds = {Attribution.SITE: AlarmKind.SITE, Attribution.STORAGE: AlarmKind.SITE}
    kind = kinds.get(Attribution(change.attribution), AlarmKind.RELEASE)
    return AlarmEvent(
        id=hash_identity(CHANGE_POINT, change.id),
        kind=CHANGE_POINT,
        subject_kind=AlarmKind.CENTRAL if not change.subject else kind,
        subject=change.subject,
        state=AlarmLevel.WARNING,
        severity="warning",
        happened_us=change.found_us,
        title=f"Change: {change_text.describe_change(change)}",
        text=f"{change.days_before} days before and {change.days_after} since were measured.",
        evidence=f"/changes/{quote(change.id, safe='')}",
    )


def _day_us(day: int) -> int:
    """Return the start of a day (YYYYMMDD); 0 for none."""
    found = number_to_day(day)
    return (
        int(datetime(found.year, found.month, found.day, tzinfo=UTC).timestamp() * 1e6)
        if found
        else 0
    )


def _find_severity(*levels: AlarmLevel | None) -> str:
    """Return the severity of the worse state, since the recovery from it matters as much."""
    return "critical" if AlarmLevel.CRITICAL in levels else "warning"


def _build_regression_event(check: ReleaseCheck) -> AlarmEvent:
    effect = "" if check.effect is None else f" by up to {format_effect(check.effect)}"
    return AlarmEvent(
        id=hash_identity(REGRESSION, check.id),
        kind=REGRESSION,
        subject_kind=AlarmKind.RELEASE,
        subject=check.b,
        state=AlarmLevel.CRITICAL,
        severity="critical",
        happened_us=check.changed_us,
        title=f"Regression: {check.test_name} is slower with ROOT {check.b} than with {check.a}"
        f"{effect}",
        text="\n".join(
            [
                describe_check(check),
                check.text,
                f"Confirmed by rerun {check.reruns}, campaign {check.rerun_id}.",
            ]
        ),
        evidence=link_check(check),
    )
