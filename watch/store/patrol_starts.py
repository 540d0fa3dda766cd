"""Starts of campaigns by a patrol: claimed before anything is submitted, each exactly once.

A lease makes one of several patrols on a database the leader; only the leader claims starts.

A start goes through these states; each change is one transaction, so that a patrol can be killed at
any time and continues from the last one:

``claimed``
    identity and request are fixed and its cost is reserved; nothing was submitted.
``stored``
    the campaign is in the database; its jobs are being submitted.
``submitted``
    the batch systems have its jobs.
``finished``, ``failed``
    all jobs have ended, or the request could not be submitted; the cost is settled.
``noted``
    existed before the patrol began to follow it; no campaign.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.day_numbers import DAY_US
from treehammer.errors import StoreError
from treehammer.sql.core import schema
from treehammer.sql.core.schema import patrol_lease
from treehammer.sql.core.watch_rows import PatrolChargeRow, PatrolLeaseRow, PatrolStartRow
from treehammer.sql.engine.database_engine import (
    insert_missing_rows,
    load_rows,
    read_clock,
    split_ids,
    upsert_rows,
)
from treehammer.sql.write.store import Store

#: Seconds for which a lease is valid after its last renewal.
LEASE_S = 60.0
_NAME = "patrol"
#: Returns the time of the database, microseconds since 1970 UTC.
Clock = Callable[[Connection], int]
CLAIMED, STORED, SUBMITTED = "claimed", "stored", "submitted"
FINISHED, FAILED, NOTED = "finished", "failed", "noted"
#: States of campaigns that count as in flight.
OPEN_STATES = (CLAIMED, STORED, SUBMITTED)
#: Beginning of the occasions of probes, which do not count as campaigns in flight.
PROBE = "probe:"
_start, _charge = schema.patrol_start, schema.patrol_charge


class LeaseLostError(StoreError):
    """Another patrol has become the leader."""


class PatrolLease:
    """Lease on behalf of one patrol, checked in the transactions that it protects.

    All times are those of the database, so that clocks of machines do not matter. The epoch grows
    with every change of the holder, which distinguishes claims of a deposed leader from later ones.

    Args:
        store: database of the patrols.
        holder: name of this patrol, unique among running processes. A lease under this name is
            taken over at once.
        duration_s: seconds until an unrenewed lease expires.
        clock: the database's clock.
    """

    def __init__(
        self, store: Store, holder: str, duration_s: float = LEASE_S, clock: Clock = read_clock
    ) -> None:
        self.holder = holder
        self.duration_s = duration_s
        self.clock = clock
        self._store = store
        self._epoch: int | None = None
        self._lock = threading.Lock()

    @property
    def epoch(self) -> int:
        """Epoch under which this patrol leads; 0 if it does not."""
        return self._epoch or 0

    def acquire(self) -> bool:
        """Acquire or renew the lease; False if another patrol holds it."""
        with self._lock, self._store.writing_connection() as connection:
            now_us, row = self.clock(connection), load_lease(connection)
            if row and row.holder != self.holder and row.expires_us > now_us:
                self._epoch = None
                return False
            renewed = row and row.holder == self.holder and row.epoch == self._epoch
            if row is None or not renewed:
                epoch = row.epoch + 1 if row else 1
                row = PatrolLeaseRow(_NAME, self.holder, epoch, now_us, now_us)
            lease = replace(row, expires_us=now_us + round(self.duration_s * 1e6))
            upsert_rows(connection, patrol_lease, [lease])
            self._epoch = row.epoch
            return True

    def release(self) -> None:
        """Let the lease expire now, if it is held."""
        with self._lock, self._store.writing_connection() as connection:
            row = load_lease(connection)
            if row and (row.holder, row.epoch) == (self.holder, self._epoch):
                expired = sa.update(patrol_lease).values(expires_us=self.clock(connection))
                connection.execute(expired.where(patrol_lease.c.name == _NAME))
            self._epoch = None

    def require(self, connection: Connection) -> int:
        """Check in a write transaction that this patrol leads, and return the time.

        Raises:
            LeaseLostError: it does not; the transaction must be rolled back.
        """
        now_us, row = self.clock(connection), load_lease(connection)
        leads = row is not None and (row.holder, row.epoch) == (self.holder, self._epoch)
        if row is None or not leads or row.expires_us <= now_us:
            raise LeaseLostError(
                "another patrol leads" if row and not leads else "the lease expired",
                where=self.holder,
                hint="Nothing was started; this patrol continues as a stand-by.",
            )
        return now_us


def load_lease(connection: Connection) -> PatrolLeaseRow | None:
    """Load the lease, valid or expired; None if there was never a patrol."""
    rows = load_rows(connection, PatrolLeaseRow, sa.select(patrol_lease))
    return rows[0] if rows else None


@dataclass(frozen=True)
class SiteLimits:
    """Limits of a site per UTC day; None for no limit."""

    cpu_s: float | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class SiteCharge:
    """CPU seconds and bytes at a site: of a campaign, or of a day, settled or else reserved."""

    cpu_s: float = 0.0
    bytes: int = 0


def utc_day(now_us: int) -> int:
    """Return the UTC day of a time, in days since 1970."""
    return now_us // DAY_US


def load_use(connection: Connection, day: int) -> dict[str, SiteCharge]:
    """Load the charges of each site on a day."""
    table = _charge.c
    cpu_s = sa.func.sum(sa.func.coalesce(table.used_cpu_s, table.reserved_cpu_s))
    size = sa.func.sum(sa.func.coalesce(table.used_bytes, table.reserved_bytes))
    query = sa.select(table.site, cpu_s, size).where(table.day == day).group_by(table.site)
    rows = connection.execute(query)
    return {str(site): SiteCharge(float(used_s), int(used)) for site, used_s, used in rows}


def find_exhausted_sites(
    connection: Connection, charges: Sequence[PatrolChargeRow], limits: Mapping[str, SiteLimits]
) -> tuple[str, ...]:
    """Return the sites whose limits the further charges, all of one day, would exceed."""
    if not charges:
        return ()
    use_by_site = load_use(connection, charges[0].day)
    exhausted = []
    for row in charges:
        use, limit = use_by_site.get(row.site, SiteCharge()), limits.get(row.site, SiteLimits())
        over_cpu = limit.cpu_s is not None and use.cpu_s + row.reserved_cpu_s > limit.cpu_s
        over_bytes = limit.bytes is not None and use.bytes + row.reserved_bytes > limit.bytes
        if over_cpu or over_bytes:
            exhausted.append(row.site)
    return tuple(exhausted)


@dataclass(frozen=True)
class ClaimResult:
    """Result of a claim: the claimed start, or the reason why there is none.

    Attributes:
        start: the claimed start; None if there is none.
        reason: for people; '' for a claim.
        exhausted: sites whose budget does not suffice.
    """

    start: PatrolStartRow | None
    reason: str = ""
    exhausted: tuple[str, ...] = ()


class PatrolStarts:
    """Claims, submissions and settlements of starts in a database."""

    def __init__(self, store: Store, lease: PatrolLease) -> None:
        self._store = store
        self._lease = lease

    # Reading

    def list_open(self) -> list[PatrolStartRow]:
        """List the starts whose campaigns are in flight, oldest first."""
        query = sa.select(_start).where(_start.c.state.in_(OPEN_STATES))
        order = (_start.c.claimed_us, _start.c.entry, _start.c.occasion)
        return self._store.load_rows(PatrolStartRow, query.order_by(*order))

    def charges(self, campaign_id: str) -> list[PatrolChargeRow]:
        """List the reserved or used cost of a campaign, by site."""
        query = sa.select(_charge).where(_charge.c.campaign_id == campaign_id)
        return self._store.load_rows(PatrolChargeRow, query.order_by(_charge.c.site))

    def find_start(self, entry: str, occasion: str) -> PatrolStartRow | None:
        """Find the start of an entry on an occasion."""
        with self._store.connection() as connection:
            return _load_start(connection, entry, occasion)

    def find_campaign(self, campaign_id: str) -> PatrolStartRow | None:
        """Find the start of a campaign; None for one that no patrol started."""
        query = sa.select(_start).where(_start.c.campaign_id == campaign_id)
        return next(iter(self._store.load_rows(PatrolStartRow, query)), None)

    def find_earlier_start(self, start: PatrolStartRow, kind: str) -> PatrolStartRow | None:
        """Find the last finished start of the same entry before another one.

        Args:
            start: the other one.
            kind: beginning of its occasion.
        """
        earlier = (_start.c.state == FINISHED, _start.c.claimed_us < start.claimed_us)
        return self._find_latest(start.entry, kind, *earlier)

    def find_latest_occasion(self, entry: str, kind: str, *, without: str) -> str:
        """Find the last occasion of a kind that an entry started or noted; '' for none.

        Args:
            entry: name of the entry.
            kind: beginning of the occasion.
            without: an occasion to pass over.
        """
        conditions = (_start.c.occasion != without, _start.c.state != FAILED)
        latest = self._find_latest(entry, kind, *conditions)
        return latest.occasion if latest else ""

    def _find_latest(
        self, entry: str, kind: str, *conditions: sa.ColumnElement[bool]
    ) -> PatrolStartRow | None:
        of_kind = _start.c.occasion.startswith(kind, autoescape=True)
        query = sa.select(_start).where(_start.c.entry == entry, of_kind, *conditions)
        newest = query.order_by(_start.c.claimed_us.desc(), _start.c.occasion).limit(1)
        return next(iter(self._store.load_rows(PatrolStartRow, newest)), None)

    def find_existing(self, entry: str, occasions: Collection[str]) -> set[str]:
        """Return those of some occasions that have a start, or were noted."""
        existing: set[str] = set()
        with self._store.connection() as connection:
            for chunk in split_ids(occasions):
                query = sa.select(_start.c.occasion).where(
                    _start.c.entry == entry, _start.c.occasion.in_(chunk)
                )
                existing.update(str(row[0]) for row in connection.execute(query))
        return existing

    # Claims

    def claim(
        self,
        start: PatrolStartRow,
        charges: Mapping[str, SiteCharge],
        limits: Mapping[str, SiteLimits],
        in_flight: int,
    ) -> ClaimResult:
        """Claim an occasion: fix its campaign and reserve its cost, or neither.

        Args:
            start: the start; its state, time, epoch and holder are filled in.
            charges: site -> cost to reserve on the present day.
            limits: site -> daily limits.
            in_flight: campaigns of the entry that may be in flight, with this one.

        Raises:
            LeaseLostError: this patrol does not lead; nothing was claimed.
        """
        with self._store.writing_connection() as connection:
            now_us = self._lease.require(connection)
            if _load_start(connection, start.entry, start.occasion):
                return ClaimResult(None, "this occasion has started already")
            running = sa.select(sa.func.count()).where(
                _start.c.entry == start.entry,
                _start.c.state.in_(OPEN_STATES),
                _start.c.occasion.not_like(f"{PROBE}%"),
            )
            if int(connection.execute(running).scalar_one()) >= in_flight:
                return ClaimResult(None, f"in_flight = {in_flight} reached")
            day = utc_day(now_us)
            rows = [
                PatrolChargeRow(start.campaign_id, site, day, cost.cpu_s, cost.bytes)
                for site, cost in charges.items()
            ]
            if exhausted := find_exhausted_sites(connection, rows, limits):
                sites = ", ".join(exhausted)
                return ClaimResult(None, f"the day's budget does not suffice: {sites}", exhausted)
            claimed = replace(
                start,
                state=CLAIMED,
                claimed_us=now_us,
                epoch=self._lease.epoch,
                holder=self._lease.holder,
            )
            insert_missing_rows(connection, _start, [claimed])
            insert_missing_rows(connection, _charge, rows)
            return ClaimResult(claimed)

    def note_existing(self, entry: str, occasions: Mapping[str, str]) -> None:
        """Note occasions, each with a message, that existed before; they start no campaign.

        Raises:
            LeaseLostError: this patrol does not lead; nothing was noted.
        """
        leader = self._lease.epoch, self._lease.holder
        with self._store.writing_connection() as connection:
            times = (self._lease.require(connection),) * 3
            rows = [
                PatrolStartRow(entry, occasion, "", NOTED, *times, *leader, "", message)
                for occasion, message in occasions.items()
            ]
            insert_missing_rows(connection, _start, rows)

    def take_over(self, start: PatrolStartRow) -> PatrolStartRow | None:
        """Take over a claim of an earlier leader, unless its campaign is in the database.

        Returns:
            the start as taken over; None if it is not a claim any more, or its campaign is stored:
            then the patrol that stored it has to complete it.

        Raises:
            LeaseLostError: this patrol does not lead.
        """
        with self._store.writing_connection() as connection:
            self._lease.require(connection)
            now = _load_start(connection, start.entry, start.occasion)
            if now is None or now.state != CLAIMED:
                return None
            claim = replace(now, epoch=self._lease.epoch, holder=self._lease.holder)
            upsert_rows(connection, _start, [claim])
            return claim

    def permit_campaign(self, start: PatrolStartRow) -> Callable[[Connection], None]:
        """Return the condition on which the campaign of a claim may be stored.

        It runs in the campaign's transaction and moves the start to ``stored``; so a deposed leader
        whose claim was taken over cannot submit it as well.
        """

        def permit(connection: Connection) -> None:
            now = _load_start(connection, start.entry, start.occasion)
            is_held = now is not None and (now.holder, now.epoch) == (start.holder, start.epoch)
            if now is None or not is_held or now.state not in (CLAIMED, STORED):
                raise LeaseLostError(
                    f"campaign {start.campaign_id} belongs to another patrol now",
                    where=f"{start.entry}: {start.occasion}",
                    hint="Nothing was submitted.",
                )
            upsert_rows(connection, _start, [replace(now, state=STORED)])

        return permit

    # Progress

    def mark_submitted(self, start: PatrolStartRow, message: str = "") -> None:
        """Record that the batch systems have the jobs of a stored campaign."""
        with self._store.writing_connection() as connection:
            now = _load_start(connection, start.entry, start.occasion)
            if now is not None and now.state == STORED:
                text = message or now.message
                upsert_rows(connection, _start, [replace(now, state=SUBMITTED, message=text)])

    def settle(
        self,
        start: PatrolStartRow,
        used: Mapping[str, SiteCharge],
        *,
        state: str = FINISHED,
        message: str = "",
    ) -> bool:
        """End a start, and replace its reservations by the cost, at once.

        Args:
            start: the start.
            used: site -> cost of the campaign; sites that are missing were not used.
            state: ``finished`` or ``failed``.
            message: for people; '' keeps the present one.

        Returns:
            False if it was settled before; nothing changed.
        """
        with self._store.writing_connection() as connection:
            now_us = self._lease.clock(connection)
            now = _load_start(connection, start.entry, start.occasion)
            if now is None or now.state not in OPEN_STATES:
                return False
            ended = replace(now, state=state, finished_us=now_us, message=message or now.message)
            upsert_rows(connection, _start, [ended])
            query = sa.select(_charge).where(_charge.c.campaign_id == start.campaign_id)
            charges = [
                replace(row, used_cpu_s=cost.cpu_s, used_bytes=cost.bytes)
                for row in load_rows(connection, PatrolChargeRow, query)
                for cost in (used.get(row.site, SiteCharge()),)
            ]
            upsert_rows(connection, _charge, charges)
            return True


def _load_start(connection: Connection, entry: str, occasion: str) -> PatrolStartRow | None:
    query = sa.select(_start).where(_start.c.entry == entry, _start.c.occasion == occasion)
    rows: Sequence[PatrolStartRow] = load_rows(connection, PatrolStartRow, query)
    return rows[0] if rows else None
