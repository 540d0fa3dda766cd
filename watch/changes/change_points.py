"""Change points: their update in the database, their words and selection."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from itertools import chain
from operator import attrgetter
from statistics import fmean
from typing import Any

from treehammer.analysis.comparison.verdict_text import format_effect, format_interval, title_metric
from treehammer.collectors.job_spec import TIMED
from treehammer.collectors.record.day_numbers import DAY_US, day_to_number, number_to_day
from treehammer.sql.core.evidence import ChangedSeries, ChangeEvidence
from treehammer.sql.core.watch_rows import ChangePointRow, WatchedSeriesRow
from treehammer.sql.read.query_model import Condition, Selection
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.write.maintenance import CHANGING_ACTIONS
from treehammer.sql.write.store import Store
from treehammer.text_formatting import join_names
from treehammer.watch.changes import WINDOW_DAYS
from treehammer.watch.changes.change_search import Change, find_changes
from treehammer.watch.changes.daily_series import (
    DAY_TOLERANCE,
    Attribution,
    ChangeState,
    DailySeries,
    NodeIdentity,
    SeriesKind,
)
from treehammer.watch.changes.job_points import (
    POINT_COLUMNS,
    SeriesFamily,
    average_points,
    build_families,
    list_points,
)
from treehammer.watch.store import alarms

#: Columns that two findings of one change share.
_SAME = attrgetter("kind", "metric", "test_name", "control", "attribution", "subject")
#: Days that are read again at each update: results may arrive late.
LATE_DAYS = 7


@dataclass(frozen=True)
class UpdateResult:
    """Counts of an update: days read again, watched series, new and all changes of the window.

    ``nodes_by`` maps the properties that identify nodes to the sites whose host names change.
    """

    days: int
    series: int
    new: int
    changes: int
    nodes_by: Mapping[NodeIdentity, Collection[str]] = field(default_factory=dict)


def update_changes(
    store: Store, now: datetime, *, control: str = "", rebuild: bool = False
) -> UpdateResult:
    """Average the newest days, search the last 90 days for changes, and store both.

    A change that is found again keeps its identity. A provisional one that later days do not
    support is removed, and so is a change of the window that late results contradict.

    Args:
        store: the database.
        now: time of the update.
        control: release to pin for tests without a stored control.
        rebuild: read all days of the window again, such as after a change of the pinned control.
    """
    today = now.astimezone(UTC).date()
    first_day = today - timedelta(days=WINDOW_DAYS - 1)
    read_from = first_day
    # A change by an administrator may concern measurements of any day.
    changes = store.list_changes(int(now.timestamp() * 1e6) - LATE_DAYS * DAY_US)
    is_changed = any(change.action in CHANGING_ACTIONS for change in changes)
    if not (rebuild or is_changed) and (number := alarms.find_last_watched_day(store)):
        last_day = number_to_day(number) or first_day
        read_from = max(first_day, last_day - timedelta(days=LATE_DAYS))
    _average_days(store, read_from, today, control, keep_controls=not rebuild)
    window = day_to_number(first_day), day_to_number(today)
    families = build_families(
        alarms.load_watched_series(store),
        alarms.load_watched_days(store, *window),
    )
    earlier = alarms.load_change_points(store, window[0])
    rows = list(_find_rows(families, earlier, int(now.timestamp() * 1e6)))
    alarms.replace_change_points(store, rows, window[0])
    new = {row.id for row in rows} - {row.id for row in earlier}
    nameless: defaultdict[NodeIdentity, set[str]] = defaultdict(set)
    for member in chain.from_iterable(families.values()):
        if member.nodes_by not in (None, NodeIdentity.HOST):
            nameless[member.nodes_by].add(member.place.site)
    return UpdateResult(
        (today - read_from).days + 1,
        sum(map(len, families.values())),
        len(new),
        len(rows),
        nameless,
    )


def _average_days(
    store: Store, first_day: date, last_day: date, control: str, *, keep_controls: bool
) -> None:
    days = day_to_number(first_day), day_to_number(last_day)
    selection = Selection(
        conditions=(
            Condition("day", ">=", days[0]),
            Condition("day", "<=", days[1]),
            Condition("kind", "=", TIMED),
        )
    )
    rows = alarms.load_watched_series(store) if keep_controls else []
    controls = {row.test_name: row.control for row in rows}
    points = list_points(store.measurements(selection, POINT_COLUMNS), controls, control)
    alarms.replace_watched_days(store, *average_points(points), *days)


def _find_rows(
    families: Mapping[SeriesFamily, Sequence[DailySeries]],
    rows: Iterable[ChangePointRow],
    now_us: int,
) -> Iterable[ChangePointRow]:
    unclaimed = list(rows)
    for family, series in families.items():
        places = {member.identity: member for member in series}
        for change in find_changes(series, family.kind):
            row = _build_row(family, change, places, now_us)
            same = (candidate for candidate in unclaimed if _is_same(candidate, row))
            # One of the same day comes first: what lasts after an incident begins near it.
            earlier = min(same, key=lambda candidate: candidate.day != row.day, default=None)
            if earlier:
                unclaimed.remove(earlier)
                found_us = earlier.found_us if earlier.state == row.state else now_us
                row = replace(row, id=earlier.id, found_us=found_us)
            yield row


def _is_same(change: ChangePointRow, other: ChangePointRow) -> bool:
    """Return whether two findings are one change, whose day and attribution may become clearer.

    The days of a drift are those of the search.
    """
    if bool(change.until_day) != bool(other.until_day) or _SAME(change) != _SAME(other):
        return False
    day, other_day = number_to_day(change.day), number_to_day(other.day)
    is_near = day and other_day and abs((day - other_day).days) <= DAY_TOLERANCE
    return bool(change.until_day or is_near)


def _build_row(
    family: SeriesFamily, change: Change, series: Mapping[str, DailySeries], now_us: int
) -> ChangePointRow:
    day = day_to_number(date.fromordinal(change.day))
    group = change.group
    # A drift is seen on some evenings and not on others: for a while it is the same one.
    time = now_us // (WINDOW_DAYS * DAY_US) if change.until else (day, now_us)
    members = [] if change.until and group.subject else sorted(group.members)
    naming = (*family, time, group.attribution, group.subject, members)
    return ChangePointRow(
        id=hashlib.sha256(json.dumps(naming).encode()).hexdigest()[:12],
        found_us=now_us,
        updated_us=now_us,
        day=day,
        state=change.state.value,
        kind=family.kind.value,
        metric=family.metric,
        test_name=family.test_name,
        control=family.control,
        attribution=group.attribution.value,
        subject=group.subject,
        effect=change.size,
        low=change.interval[0],
        high=change.interval[1],
        p_value=change.p,
        days_before=change.days_before,
        days_after=change.days_after,
        seconded=change.seconded,
        cause="; ".join(map(str, change.causes)),
        evidence=ChangeEvidence(tuple(_list_changed_series(change, series))),
        until_day=day_to_number(date.fromordinal(change.until)) if change.until else None,
    )


def _list_changed_series(change: Change, series: Mapping[str, DailySeries]) -> list[ChangedSeries]:
    """List the changed series with their own sizes, the largest first."""
    changed = [
        ChangedSeries(
            **vars(series[identity].place),
            nodes_by=series[identity].nodes_by,
            effect=step.mean if step else None,
            error=step.se if step else None,
        )
        for identity in change.group.members
        for step in [change.steps.get(identity)]
    ]
    return sorted(changed, key=lambda row: -abs(row.effect or 0))


#: Attribution -> its wording; ``{}`` is the subject.
_SUBJECTS: Mapping[str, str] = {
    Attribution.SITE: "site {}",
    Attribution.RELEASE: "ROOT {}",
    Attribution.STORAGE: "storage {}",
    Attribution.CENTRAL: "everywhere",
    Attribution.UNKNOWN: "cause unknown",
}


def name_subject(change: ChangePointRow) -> str:
    """Name the subject to which a change is attributed."""
    return _SUBJECTS.get(change.attribution, "{}").format(change.subject)


def format_day(day: int) -> str:
    """Format a day number as an ISO date."""
    date_ = number_to_day(day)
    return date_.isoformat() if date_ else str(day)


def describe_quantity(change: ChangePointRow) -> str:
    """Describe the quantity that changed, and how nodes are identified if not by name."""
    metric = title_metric(change.metric)
    if change.kind == SeriesKind.LEVEL:
        properties = [name for name in list_node_identities(change) if name != NodeIdentity.HOST]
        nodes = f" (nodes by {' and '.join(properties)})" if properties else ""
        return f"{metric} of {change.control or change.test_name}{nodes}"
    return f"{metric} relative to {change.control}"


def describe_change(change: ChangePointRow) -> str:
    """Describe a change in one sentence."""
    state = ", provisional" if change.state == ChangeState.PROVISIONAL else ""
    is_unknown = change.attribution == Attribution.UNKNOWN
    where = f", at {join_names(_list_sites(change))}" if is_unknown else ""
    cause = f"; changed on that day: {change.cause}" if change.cause else ""
    return (
        f"{title_subject(change)}{where}: {describe_quantity(change)} of {change.test_name} "
        f"{format_change(change)} {describe_time(change)}{state}{cause}"
    )


def describe_time(change: ChangePointRow) -> str:
    """Describe since when a step holds, or in which time a drift did: ``steadily from … to …``."""
    if change.until_day:
        return f"steadily from {format_day(change.day)} to {format_day(change.until_day)}"
    return f"since {format_day(change.day)}"


def title_subject(change: ChangePointRow) -> str:
    """Name the subject of a change at the beginning of a sentence."""
    name = name_subject(change)
    return f"{name[0].upper()}{name[1:]}"


def format_change(change: ChangePointRow) -> str:
    """Format the size of a change with its interval."""
    return f"{format_effect(change.effect)} ({format_interval(change)})"


def _list_sites(change: ChangePointRow) -> list[str]:
    return sorted({series.site for series in change.evidence.series if series.site})


def is_regression(change: ChangePointRow) -> bool:
    """Return whether a change made reading slower."""
    return change.effect > 0


def list_node_identities(change: ChangePointRow) -> list[str]:
    """List the properties by which nodes were recognized; none for ratios."""
    names = {series.nodes_by for series in change.evidence.series}
    return [name.value for name in NodeIdentity if name in names]


def select_changes(
    changes: Iterable[ChangePointRow], site: str = "", release: str = ""
) -> list[ChangePointRow]:
    """Select the changes of a site (as site or storage) and of a release.

    A change everywhere is one of each site. Levels concern the control release alone.
    """
    selection = []
    for change in changes:
        series = change.evidence.series
        releases = {member.release for member in series}
        if change.kind == SeriesKind.LEVEL:
            releases = {change.control}
        is_of_site = any(site in (member.site, member.storage_site) for member in series)
        if (not site or is_of_site) and (not release or release in releases):
            selection.append(change)
    return selection


def make_change_record(change: ChangePointRow) -> dict[str, Any]:
    """Make the record of a change for tables, pages and programs."""
    return {
        "id": change.id,
        "since": format_day(change.day),
        "until": format_day(change.until_day) if change.until_day else None,
        "state": change.state,
        "points_at": name_subject(change),
        "attribution": change.attribution,
        "subject": change.subject,
        "quantity": describe_quantity(change),
        "kind": change.kind,
        "metric": change.metric,
        "test": change.test_name,
        "control": change.control,
        "change": format_effect(change.effect),
        "interval": format_interval(change),
        "effect": change.effect,
        "low": change.low,
        "high": change.high,
        "p": change.p_value,
        "days_before": change.days_before,
        "days_after": change.days_after,
        "seconded": change.seconded,
        "cause": change.cause,
        "sites": _list_sites(change),
    }


def average_steps(
    store: ResultsReader, change: ChangePointRow, first: int, last: int
) -> dict[int, float]:
    """Average the changed series by day, each relative to its own mean before a step, or start of a drift."""
    steps: dict[int, list[float]] = defaultdict(list)
    for series_days in _load_changed_days(store, change, first, last).values():
        before = [value for day, value in series_days.items() if day < change.day]
        if change.until_day:
            base = fmean(series_days.values()) - change.effect / 2
        elif before:
            base = fmean(before)
        else:
            continue
        for day, value in series_days.items():
            steps[day].append(value - base)
    return {day: fmean(steps[day]) for day in sorted(steps)}


def _load_changed_days(
    store: ResultsReader, change: ChangePointRow, first: int, last: int
) -> Mapping[str, Mapping[int, float]]:
    """Load the values of the changed series by day."""
    selection = {"kind": change.kind, "metric": change.metric, "test_name": change.test_name}
    places = {_locate(series, series.variant) for series in change.evidence.series}
    changed_ids = {
        series.id
        for series in alarms.load_watched_series(store, **selection)
        # Levels of nodes have no variant.
        if {_locate(series, series.variant_label), _locate(series, "")} & places
    }
    values: dict[str, dict[int, float]] = defaultdict(dict)
    for row in alarms.load_watched_days(store, first, last, **selection):
        if row.series_id in changed_ids:
            values[row.series_id][row.day] = row.value
    return values


def _locate(series: ChangedSeries | WatchedSeriesRow, variant: str) -> tuple[str, ...]:
    return series.site, series.storage_site, series.door, series.release, variant
