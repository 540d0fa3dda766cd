"""Storage of alarms: events and their causes, change points, and checks of ROOT releases.

Identities are hashes of the event, so that several processes record it once.

A watched series has days, and the change points found in them. A check compares two ROOT releases, or
two versions of a server, in finished campaigns, and requests the reruns that confirm it.

Times are microseconds since 1970 UTC.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa

from treehammer.collectors.job_spec import FINAL_JOB_STATES
from treehammer.sql.core.column_types import MAX_TEXT_CHARS
from treehammer.sql.core.measurement_sql import load_subjects
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.core.schema import (
    alarm_message,
    campaign,
    change_point,
    dimension_tables,
    job,
    measurement,
    patrol_start,
    release_check,
    watched_day,
    watched_series,
)
from treehammer.sql.core.watch_rows import (
    AlarmMessage,
    ChangePointRow,
    ReleaseCheck,
    WatchedDayRow,
    WatchedSeriesRow,
)
from treehammer.sql.engine.database_engine import (
    insert_missing_rows,
    insert_new_rows,
    select_latest,
    upsert_rows,
)
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.write.store import Store

#: Kind of the events of a changed state.
STATE = "state"
#: Severity of an event that is no news.
NO_SEVERITY = "none"
_TABLE = alarm_message.c
_IS_EVENT = _TABLE.channel.is_(None)
#: Beginning of the occasions of probes in searches for builds.
BISECT = "bisect:"
#: Finished campaigns that are examined at once.
MAX_EXAMINED = 20


def hash_identity(*parts: Any) -> str:
    """Return the identity of something named by these parts."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def cut_text(text: str) -> str:
    """Cut a text to the length that every database stores."""
    return text if len(text) <= MAX_TEXT_CHARS else text[: MAX_TEXT_CHARS - 1] + "…"


class EventTable:
    """Events in a database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def load_states(self) -> dict[tuple[str, str], AlarmMessage]:
        """Load the last event of a state of each subject, by kind and name."""
        by = (_TABLE.subject_kind, _TABLE.subject)
        latest = select_latest(
            alarm_message, by, [_TABLE.recorded_us], _IS_EVENT, _TABLE.kind == STATE
        )
        rows = self._store.load_rows(AlarmMessage, latest)
        return {(row.subject_kind, row.subject): row for row in rows}

    def record_events(self, events: Iterable[AlarmMessage]) -> list[AlarmMessage]:
        """Record events in one transaction; return those that no other process recorded."""
        events = list(events)
        if not events:
            return []
        new = []
        with self._store.writing_connection() as connection:
            for event in events:
                if connection.scalar(sa.select(_TABLE.id).where(_TABLE.id == event.id)) is None:
                    connection.execute(sa.insert(alarm_message), [asdict(event)])
                    new.append(event)
        return [event for event in new if event.severity != NO_SEVERITY]

    def list_events(self, limit: int) -> list[AlarmMessage]:
        """List the newest events."""
        order = (_TABLE.happened_us.desc(), _TABLE.id)
        query = sa.select(alarm_message).where(_IS_EVENT, _TABLE.severity != NO_SEVERITY)
        return self._store.load_rows(AlarmMessage, query.order_by(*order).limit(limit))


def load_change_points(store: ResultsReader, first: int = 0) -> list[ChangePointRow]:
    """Load the changes since a day (YYYYMMDD) with drifts that last into it, newest first."""
    table = change_point.c
    query = sa.select(change_point).where(_lasts_until(first))
    order = (table.day.desc(), table.test_name, table.metric, table.id)
    return store.load_rows(ChangePointRow, query.order_by(*order))


def _lasts_until(day: int) -> sa.ColumnElement[bool]:
    """Return the condition that a change is of a day or later, or a drift that lasts until then."""
    return sa.or_(change_point.c.day >= day, change_point.c.until_day >= day)


def find_change_point(store: ResultsReader, identity: str) -> ChangePointRow | None:
    """Find a change by its identity; None for an unknown one."""
    query = sa.select(change_point).where(change_point.c.id == identity)
    return next(iter(store.load_rows(ChangePointRow, query)), None)


def replace_change_points(store: Store, rows: Iterable[ChangePointRow], first: int) -> None:
    """Write the changes since a day (YYYYMMDD) in place of the stored ones."""
    with store.writing_connection() as connection:
        connection.execute(sa.delete(change_point).where(_lasts_until(first)))
        insert_missing_rows(connection, change_point, rows)


def replace_watched_days(
    store: Store,
    series: Iterable[WatchedSeriesRow],
    days: Sequence[WatchedDayRow],
    first: int,
    last: int,
) -> None:
    """Write all watched days from day ``first`` to ``last`` (YYYYMMDD) in place of the stored ones."""
    with store.writing_connection() as connection:
        connection.execute(sa.delete(watched_day).where(watched_day.c.day.between(first, last)))
        upsert_rows(connection, watched_series, series)
        insert_new_rows(connection, watched_day, days)


def load_watched_series(store: ResultsReader, **values: str) -> list[WatchedSeriesRow]:
    """Load the series with these values of their columns."""
    table = watched_series
    query = sa.select(table).where(*(table.c[name] == value for name, value in values.items()))
    return store.load_rows(WatchedSeriesRow, query.order_by(table.c.id))


def load_watched_days(
    store: ResultsReader, first: int, last: int, /, **values: str
) -> list[WatchedDayRow]:
    """Load the days from ``first`` to ``last`` of the series with these values, by series and day."""
    table = watched_day
    query = sa.select(table).where(table.c.day.between(first, last))
    if values:
        conditions = (watched_series.c[name] == value for name, value in values.items())
        query = query.where(
            table.c.series_id.in_(sa.select(watched_series.c.id).where(*conditions))
        )
    return store.load_rows(WatchedDayRow, query.order_by(table.c.series_id, table.c.day))


def find_last_watched_day(store: ResultsReader) -> int | None:
    """Find the last stored day (YYYYMMDD); None without any."""
    with store.connection() as connection:
        last_day = connection.scalar(sa.select(sa.func.max(watched_day.c.day)))
    return None if last_day is None else int(last_day)


class ReleaseCheckTable:
    """Checks of releases in a database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list_unchecked_campaigns(self, since_us: int) -> list[str]:
        """List finished campaigns created since a time that were not examined, oldest first.

        A campaign that confirms another one, or is a probe of a search, is not examined by itself.
        """
        checks = release_check.c
        open_jobs = sa.select(job.c.id).where(
            job.c.campaign_id == campaign.c.id, job.c.state.not_in(sorted(FINAL_JOB_STATES))
        )
        probes = sa.select(patrol_start.c.campaign_id).where(
            patrol_start.c.campaign_id == campaign.c.id, patrol_start.c.occasion.startswith(BISECT)
        )
        any_jobs = sa.select(job.c.id).where(job.c.campaign_id == campaign.c.id)
        existing_checks = sa.select(checks.id).where(
            sa.or_(checks.campaign_id == campaign.c.id, checks.rerun_id == campaign.c.id)
        )
        query = (
            sa.select(campaign.c.id)
            .where(campaign.c.created_us >= since_us)
            .where(~sa.exists(open_jobs), sa.exists(any_jobs), ~sa.exists(existing_checks))
            .where(~sa.exists(probes))
            .order_by(campaign.c.created_us, campaign.c.id)
            .limit(MAX_EXAMINED)
        )
        with self._store.connection() as connection:
            return [str(id_) for (id_,) in connection.execute(query)]

    def list_earlier_campaigns(self, campaign_id: str, limit: int) -> list[CampaignRow]:
        """List the last campaigns of the same test before another one, the newest first."""
        this = campaign.alias()
        query = (
            sa.select(campaign)
            .join(this, this.c.test_name == campaign.c.test_name)
            .where(this.c.id == campaign_id, campaign.c.created_us < this.c.created_us)
            .order_by(campaign.c.created_us.desc(), campaign.c.id)
            .limit(limit)
        )
        return self._store.load_rows(CampaignRow, query)

    def is_finished(self, campaign_id: str) -> bool:
        """Return whether all jobs of a campaign ended; False for one without jobs."""
        query = sa.select(job.c.state).where(job.c.campaign_id == campaign_id).distinct()
        with self._store.connection() as connection:
            states = {*connection.scalars(query)}
        return bool(states) and states <= FINAL_JOB_STATES

    def list_releases(self, campaign_id: str) -> list[str]:
        """List the ROOT releases that a campaign measured."""
        subject = dimension_tables["subject"].c
        query = (
            sa.select(subject.axis_root)
            .join(measurement, measurement.c.subject_id == subject.id)
            .where(measurement.c.campaign_id == campaign_id, subject.axis_root.is_not(None))
            .distinct()
        )
        with self._store.connection() as connection:
            return sorted(str(value) for (value,) in connection.execute(query))

    def list_servers(self, campaign_id: str) -> list[dict[str, Any]]:
        """List the versions of servers that a campaign read from, by door, each with its last use."""
        subject, storage = dimension_tables["subject"], dimension_tables["storage"]
        columns = (
            *(subject.c[name] for name in ("site", "storage_site", "door")),
            *(storage.c[name] for name in ("server_version", "origin_version")),
        )
        query = (
            sa.select(*columns, sa.func.max(measurement.c.started_us).label("last_us"))
            .join(subject, measurement.c.subject_id == subject.c.id)
            .join(storage, measurement.c.storage_id == storage.c.id)
            .where(measurement.c.campaign_id == campaign_id)
            .group_by(*columns)
        )
        with self._store.connection() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    def list_measured_releases(self) -> list[str]:
        """List all ROOT releases that were measured."""
        with self._store.connection() as connection:
            return load_subjects(connection).list_values("axis_root")

    def list_checks(
        self, *, states: Collection[str] = (), release: str | None = None
    ) -> list[ReleaseCheck]:
        """List checks, the newest first.

        Args:
            states: only these; empty for all.
            release: only those of this release against an earlier one.
        """
        table = release_check.c
        query = sa.select(release_check).order_by(table.checked_us.desc(), table.id)
        if states:
            query = query.where(table.state.in_(sorted(states)))
        if release is not None:
            query = query.where(table.b == release)
        return self._store.load_rows(ReleaseCheck, query)

    def add_checks(self, checks: Sequence[ReleaseCheck]) -> None:
        """Add checks; those that another process added are kept."""
        with self._store.writing_connection() as connection:
            insert_missing_rows(connection, release_check, checks)

    def update_check(self, before: ReleaseCheck, after: ReleaseCheck) -> bool:
        """Replace a check; False if another process changed it first."""
        table = release_check
        with self._store.writing_connection() as connection:
            is_unchanged = (
                table.c[name] == getattr(before, name) for name in ("id", "state", "changed_us")
            )
            result = connection.execute(sa.update(table).where(*is_unchanged).values(asdict(after)))
            return result.rowcount == 1
