"""Quarantine, restoration and deletion of measurements by campaign, key or time, with an audit trail."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.sql.core import measurement_view
from treehammer.sql.core.rows import ReplicaRow
from treehammer.sql.core.schema import (
    attempt,
    campaign,
    extra,
    job,
    measurement,
    operation,
    receipt,
    replica,
)
from treehammer.sql.engine.row_mapping import fetch_rows, split_ids
from treehammer.sql.write import audit_trail, ownership, quality_flags, rollups

QUARANTINE, RESTORE, DELETE = "quarantine", "restore", "delete"
DELETE_CHECKS = "delete checks"


@dataclass(frozen=True)
class ChangeScope:
    """Measurements to change: those that meet all given conditions, of which one is required.

    Attributes:
        campaign_id: identity of their campaign; '' for any.
        key_id: key with which their job was sent to the service; '' for any.
        since_us: earliest start; None for any.
        until_us: start before which they began; None for any.
    """

    campaign_id: str = ""
    key_id: str = ""
    since_us: int | None = None
    until_us: int | None = None

    @property
    def condition(self) -> sa.ColumnElement[bool]:
        """Condition on the table of measurements."""
        columns = measurement.c
        conditions = []
        if self.campaign_id:
            conditions.append(columns.campaign_id == self.campaign_id)
        if self.key_id:
            conditions.append(columns.job_id.in_(self._select_sent(ownership.MEASUREMENTS)))
        if self.since_us is not None:
            conditions.append(columns.started_us >= self.since_us)
        if self.until_us is not None:
            conditions.append(columns.started_us < self.until_us)
        if not conditions:
            raise ValueError("a scope needs a condition")
        return sa.and_(*conditions)

    @property
    def is_whole_campaign(self) -> bool:
        """Whether a campaign is meant with everything in it."""
        bounds = (self.since_us, self.until_us)
        return bool(self.campaign_id) and not self.key_id and bounds == (None, None)

    @property
    def sent_checks(self) -> sa.Select[tuple[str]]:
        """Identities of the checks of replicas that the key sent."""
        return self._select_sent(ownership.REPLICA)

    def _select_sent(self, kind: str) -> sa.Select[tuple[str]]:
        sent = receipt.c.key_id == self.key_id
        return sa.select(receipt.c.subject).where(sent, receipt.c.kind == kind)


@dataclass(frozen=True)
class ScopeCount:
    """Number of measurements of a campaign at a site."""

    campaign_id: str
    site: str
    measurements: int


def count_scope(connection: Connection, scope: ChangeScope) -> list[ScopeCount]:
    """Count the measurements of a scope by campaign and site."""
    place = (measurement.c.campaign_id, measurement_view.catalogue_column("site"))
    query = (
        sa.select(*place, sa.func.count())
        .select_from(measurement_view.join_dimensions(("site",)))
        .where(scope.condition)
        .group_by(*place)
        .order_by(*place)
    )
    return [ScopeCount(id_, site or "", count) for id_, site, count in connection.execute(query)]


@dataclass(frozen=True)
class DatabaseChange:
    """Change of recorded results by an administrator.

    Attributes:
        action: :data:`QUARANTINE`, :data:`RESTORE`, :data:`DELETE` or :data:`DELETE_CHECKS`.
        scope: measurements that are meant.
        actor: user and host.
        changed_us: time of the change.
        reason: for people; '' for none.
        title: the scope in words.
    """

    action: str
    scope: ChangeScope
    actor: str
    changed_us: int
    reason: str
    title: str


def apply_change(connection: Connection, change: DatabaseChange) -> int:
    """Change measurements and their roll-ups, and add an entry to the audit trail.

    Args:
        connection: connection of a write transaction.
        change: to apply.

    Returns:
        number of changed measurements.
    """
    condition = change.scope.condition
    if change.action == QUARANTINE:
        flag = quality_flags.QUARANTINE_PREFIX + (change.reason or "no reason given")
        changed = quality_flags.add_flag(connection, condition, flag)
    elif change.action == RESTORE:
        changed = quality_flags.remove_flags(connection, condition, quality_flags.QUARANTINE_PREFIX)
    elif change.action == DELETE_CHECKS:
        changed = _delete_checks(connection, change.scope)
    else:
        changed = _delete_measurements(connection, change.scope)
    entry = audit_trail.make_entry(
        change.action,
        change.actor,
        change.title,
        now_us=change.changed_us,
        reason=change.reason,
        count=changed,
    )
    audit_trail.add_entries(connection, [entry])
    return changed


def _delete_measurements(connection: Connection, scope: ChangeScope) -> int:
    """Delete measurements, and a whole campaign with its jobs; verdicts computed from them stay.

    So do the owner and receipts of a campaign: its jobs may report again, and no other sender may
    take their place.
    """
    owners = quality_flags.find_rollup_keys(connection, scope.condition)
    query = sa.select(measurement.c.measurement_id).where(scope.condition)
    ids = [*connection.scalars(query)]
    owners |= rollups.find_superseded_owners(connection, ids)
    for chunk in split_ids(ids):
        for table in (operation, extra, measurement):
            connection.execute(sa.delete(table).where(table.c.measurement_id.in_(chunk)))
    rollups.rebuild_rollups(connection, sorted(owners))
    if scope.is_whole_campaign:
        of_campaign = sa.select(job.c.id).where(job.c.campaign_id == scope.campaign_id)
        connection.execute(sa.delete(attempt).where(attempt.c.job_id.in_(of_campaign)))
        connection.execute(sa.delete(job).where(job.c.campaign_id == scope.campaign_id))
        connection.execute(sa.delete(campaign).where(campaign.c.id == scope.campaign_id))
    return len(ids)


def _delete_checks(connection: Connection, scope: ChangeScope) -> int:
    """Delete checks of replicas, and the quality marks that no other check justifies."""
    sent = scope.sent_checks
    checks = fetch_rows(connection, ReplicaRow, sa.select(replica).where(replica.c.id.in_(sent)))
    for chunk in split_ids([check.id for check in checks]):
        connection.execute(sa.delete(replica).where(replica.c.id.in_(chunk)))
    marked = sa.or_(*(quality_flags.reads_replica(check) for check in checks), sa.false())
    removed = quality_flags.remove_flags(connection, marked, quality_flags.BAD_REPLICA_PREFIX)
    left = fetch_rows(connection, ReplicaRow, sa.select(replica))
    return removed - quality_flags.flag_bad_replica_reads(connection, left)
