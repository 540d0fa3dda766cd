"""State of the patrols for people: leader, entries, starts, budgets and sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.sql.core.schema import patrol_entry, patrol_site, patrol_start
from treehammer.sql.core.watch_rows import (
    PatrolEntryRow,
    PatrolLeaseRow,
    PatrolSiteRow,
    PatrolStartRow,
)
from treehammer.sql.engine.database_engine import load_rows, read_clock, upsert_rows
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.write.store import Store
from treehammer.watch.store.patrol_starts import (
    NOTED,
    OPEN_STATES,
    Clock,
    PatrolLease,
    SiteCharge,
    SiteLimits,
    load_lease,
    load_use,
    utc_day,
)

#: Latest starts in a report.
MAX_STARTS = 50


@dataclass(frozen=True)
class EntryReport:
    """An entry with its last start, the last one that has ended, and its campaigns in flight."""

    entry: PatrolEntryRow
    last: PatrolStartRow | None
    open_campaigns: tuple[str, ...]
    last_ended: PatrolStartRow | None = None

    @property
    def result(self) -> str:
        """Result of the campaign that ended last: its failures or other remarks, else ``good``."""
        if self.last_ended is None:
            return ""
        return self.last_ended.message or "good"


@dataclass(frozen=True)
class SiteReport:
    """Limits of a site, with the use of the present day."""

    site: PatrolSiteRow
    use: SiteCharge

    @property
    def cpu_left_s(self) -> float | None:
        """CPU seconds left today; None without a limit."""
        limit = self.site.cpu_limit_s
        return None if limit is None else max(0.0, limit - self.use.cpu_s)

    @property
    def bytes_left(self) -> int | None:
        """Bytes left today; None without a limit."""
        limit = self.site.bytes_limit
        return None if limit is None else max(0, limit - self.use.bytes)


@dataclass(frozen=True)
class PatrolReport:
    """One state of the patrols.

    Attributes:
        now_us: time of the database.
        lease: of the leader, valid or expired; None if there was never a patrol.
        entries: in the order of the file.
        sites: with a limit or a charge, by name.
        starts: latest ones, newest first.
    """

    now_us: int
    lease: PatrolLeaseRow | None
    entries: tuple[EntryReport, ...]
    sites: tuple[SiteReport, ...]
    starts: tuple[PatrolStartRow, ...]

    @property
    def has_leader(self) -> bool:
        """Whether a patrol leads now."""
        return self.lease is not None and self.lease.expires_us > self.now_us


def load_report(reader: ResultsReader, clock: Clock = read_clock) -> PatrolReport:
    """Load the state of the patrols, from one state of the database."""
    with reader.connection() as connection:
        now_us = clock(connection)
        order = sa.select(patrol_entry).order_by(patrol_entry.c.line, patrol_entry.c.name)
        entries = load_rows(connection, PatrolEntryRow, order)
        starts = (
            sa.select(patrol_start)
            .where(patrol_start.c.state != NOTED)
            .order_by(
                patrol_start.c.claimed_us.desc(), patrol_start.c.entry, patrol_start.c.occasion
            )
            .limit(MAX_STARTS)
        )
        use = load_use(connection, utc_day(now_us))
        by_site = sa.select(patrol_site).order_by(patrol_site.c.site)
        sites = load_rows(connection, PatrolSiteRow, by_site)
        return PatrolReport(
            now_us,
            load_lease(connection),
            tuple(_report_entry(connection, entry) for entry in entries),
            tuple(SiteReport(row, use.get(row.site, SiteCharge())) for row in sites),
            tuple(load_rows(connection, PatrolStartRow, starts)),
        )


def _report_entry(connection: Connection, entry: PatrolEntryRow) -> EntryReport:
    table = patrol_start
    entry_starts = sa.select(table).where(table.c.entry == entry.name, table.c.state != NOTED)
    newest = entry_starts.order_by(table.c.claimed_us.desc()).limit(1)
    last = load_rows(connection, PatrolStartRow, newest)
    ended = load_rows(connection, PatrolStartRow, newest.where(table.c.state.not_in(OPEN_STATES)))
    running = entry_starts.where(table.c.state.in_(OPEN_STATES)).order_by(table.c.claimed_us)
    ids = tuple(row.campaign_id for row in load_rows(connection, PatrolStartRow, running))
    return EntryReport(entry, last[0] if last else None, ids, ended[0] if ended else None)


def write_entries(store: Store, lease: PatrolLease, entries: Iterable[PatrolEntryRow]) -> None:
    """Replace the entries by those of the leader's file.

    Raises:
        LeaseLostError: this patrol does not lead.
    """
    rows = list(entries)
    with store.writing_connection() as connection:
        lease.require(connection)
        names = [row.name for row in rows]
        connection.execute(sa.delete(patrol_entry).where(patrol_entry.c.name.not_in(names)))
        upsert_rows(connection, patrol_entry, rows)


def write_limits(store: Store, lease: PatrolLease, limits: Mapping[str, SiteLimits]) -> None:
    """Write the daily limits of sites; sites that are missing have none any more.

    Raises:
        LeaseLostError: this patrol does not lead.
    """
    with store.writing_connection() as connection:
        lease.require(connection)
        stored_sites = {str(row[0]) for row in connection.execute(sa.select(patrol_site.c.site))}
        rows = [
            PatrolSiteRow(site, site_limits.cpu_s, site_limits.bytes)
            for site in sorted(stored_sites | set(limits))
            for site_limits in (limits.get(site, SiteLimits()),)
        ]
        upsert_rows(connection, patrol_site, rows)
