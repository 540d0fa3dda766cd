"""Lease that makes one of several patrols on a database the leader."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.errors import StoreError
from treehammer.sql.core.schema import patrol_lease
from treehammer.sql.core.watch_rows import PatrolLeaseRow
from treehammer.sql.engine.database_engine import read_clock
from treehammer.sql.engine.row_mapping import fetch_rows, upsert_rows
from treehammer.sql.write.store import Store

#: Seconds for which a lease is valid after its last renewal.
LEASE_S = 60.0
_NAME = "patrol"

#: Returns the time of the database, microseconds since 1970 UTC.
Clock = Callable[[Connection], int]


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
            now_us, row = self.clock(connection), fetch_lease(connection)
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
            row = fetch_lease(connection)
            if row and (row.holder, row.epoch) == (self.holder, self._epoch):
                expired = sa.update(patrol_lease).values(expires_us=self.clock(connection))
                connection.execute(expired.where(patrol_lease.c.name == _NAME))
            self._epoch = None

    def require(self, connection: Connection) -> int:
        """Check in a write transaction that this patrol leads, and return the time.

        Raises:
            LeaseLostError: it does not; the transaction must be rolled back.
        """
        now_us, row = self.clock(connection), fetch_lease(connection)
        held = row is not None and (row.holder, row.epoch) == (self.holder, self._epoch)
        if row is None or not held or row.expires_us <= now_us:
            raise LeaseLostError(
                "another patrol has become the leader" if row and not held else "the lease expired",
                where=self.holder,
                hint="Nothing was started; this patrol continues as a stand-by.",
            )
        return now_us


def fetch_lease(connection: Connection) -> PatrolLeaseRow | None:
    """Fetch the lease, valid or expired; None if there was never a patrol."""
    rows = fetch_rows(connection, PatrolLeaseRow, sa.select(patrol_lease))
    return rows[0] if rows else None
