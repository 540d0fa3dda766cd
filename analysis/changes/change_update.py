"""Update of watched series and change points in the database."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from itertools import chain

from treehammer.analysis.changes.change_search import Change, find_changes
from treehammer.analysis.changes.daily_series import (
    DAY_TOLERANCE,
    WINDOW_DAYS,
    DailySeries,
    NodeIdentity,
)
from treehammer.analysis.changes.job_points import (
    POINT_COLUMNS,
    SeriesFamily,
    average_points,
    build_families,
    collect_points,
)
from treehammer.collectors.job_spec import TIMED
from treehammer.collectors.record.day_numbers import day_to_number, number_to_day
from treehammer.sql.core.evidence import ChangedSeries, ChangeEvidence
from treehammer.sql.core.watch_rows import ChangePointRow
from treehammer.sql.read.query_model import Condition, Selection
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.watch import alarms
from treehammer.sql.write.store import Store

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
    read_from = first_day if rebuild else _find_first_to_read(store, first_day)
    _average_days(store, read_from, today, control, keep_controls=not rebuild)
    window = day_to_number(first_day), day_to_number(today)
    families = build_families(
        alarms.fetch_watched_series(store),
        alarms.fetch_watched_days(store, *window),
    )
    earlier = alarms.fetch_change_points(store, window[0])
    rows = list(_find_rows(families, earlier, int(now.timestamp() * 1e6)))
    alarms.replace_change_points(store, rows, window[0])
    new = {row.id for row in rows} - {row.id for row in earlier}
    return UpdateResult(
        (today - read_from).days + 1,
        sum(map(len, families.values())),
        len(new),
        len(rows),
        _list_nameless_sites(chain.from_iterable(families.values())),
    )


def _list_nameless_sites(series: Iterable[DailySeries]) -> Mapping[NodeIdentity, Collection[str]]:
    sites: dict[NodeIdentity, set[str]] = {}
    for member in series:
        if member.nodes_by not in (None, NodeIdentity.HOST):
            sites.setdefault(member.nodes_by, set()).add(member.place.site)
    return sites


def _find_first_to_read(store: ResultsReader, first_day: date) -> date:
    number = alarms.find_last_watched_day(store)
    last_day = number_to_day(number) if number else None
    return max(first_day, last_day - timedelta(days=LATE_DAYS)) if last_day else first_day


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
    stored = alarms.fetch_watched_series(store) if keep_controls else []
    controls = {row.test_name: row.control for row in stored}
    points = collect_points(store.measurements(selection, POINT_COLUMNS), controls, control)
    alarms.replace_watched_days(store, *average_points(points), *days)


def _find_rows(
    families: Mapping[SeriesFamily, Sequence[DailySeries]],
    stored: Iterable[ChangePointRow],
    now_us: int,
) -> Iterable[ChangePointRow]:
    unclaimed = list(stored)
    for family, series in families.items():
        places = {member.identity: member for member in series}
        for change in find_changes(series, family.kind):
            row = _build_row(family, change, places, now_us)
            earlier = next((candidate for candidate in unclaimed if _is_same(candidate, row)), None)
            if earlier:
                unclaimed.remove(earlier)
                same_state = earlier.state == row.state
                found_us = earlier.found_us if same_state else now_us
                row = replace(row, id=earlier.id, found_us=found_us)
            yield row


def _is_same(change: ChangePointRow, other: ChangePointRow) -> bool:
    """Return whether two findings are one change, whose day and attribution may become clearer."""
    days = [number_to_day(row.day) for row in (change, other)]
    return (
        (change.kind, change.metric, change.test_name, change.control)
        == (other.kind, other.metric, other.test_name, other.control)
        and days[0] is not None
        and days[1] is not None
        and abs((days[0] - days[1]).days) <= DAY_TOLERANCE
        and (change.attribution, change.subject) == (other.attribution, other.subject)
    )


def _build_row(
    family: SeriesFamily, change: Change, series: Mapping[str, DailySeries], now_us: int
) -> ChangePointRow:
    day = day_to_number(date.fromordinal(change.day))
    group = change.group
    naming = (*family, day, group.attribution, group.subject, now_us, sorted(group.members))
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
    )


def _list_changed_series(change: Change, series: Mapping[str, DailySeries]) -> list[ChangedSeries]:
    """List the changed series with their own sizes, the largest first."""
    steps = {step.identity: step for step in change.steps}
    changed = [
        ChangedSeries(
            **vars(series[identity].place),
            nodes_by=series[identity].nodes_by,
            effect=steps[identity].size if identity in steps else None,
            error=steps[identity].error if identity in steps else None,
        )
        for identity in change.group.members
    ]
    return sorted(changed, key=lambda row: -abs(row.effect or 0))
