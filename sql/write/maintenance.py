"""Maintenance of a results database: pruning, quarantine, deletion and integrity check.

Bulky columns and operations are pruned by age. The time steps of a measurement's pruned operations are
merged; metrics, totals and roll-ups stay. Measurements are quarantined, restored and deleted by
campaign, key or time, with an entry in the audit trail.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.ext.compiler import compiles

from treehammer.collectors.record.day_numbers import day_to_number
from treehammer.collectors.record.latency_histograms import LatencyHistogram
from treehammer.collectors.record.metric_catalogue import INT64_LIMIT
from treehammer.errors import StoreError
from treehammer.sql.core import measurement_sql
from treehammer.sql.core.measurement_columns import (
    PACKED_COLUMNS,
    DamagedValueError,
    decode_latency,
    decode_numbers,
    unpack_lists,
)
from treehammer.sql.core.rows import BAD_REPLICA, QUARANTINED, ReplicaRow
from treehammer.sql.core.schema import (
    ROLLUP_COUNTS,
    attempt,
    campaign,
    extra,
    job,
    measurement,
    operation,
    quality_flag,
    receipt,
    replica,
)
from treehammer.sql.engine.backend import display_url
from treehammer.sql.engine.database_engine import (
    backend_of,
    insert_values,
    load_rows,
    split_ids,
)
from treehammer.sql.engine.database_setup import count_rows, require_complete_schema
from treehammer.sql.read.measurement_queries import FETCH_ROWS, OperationRow, load_operations_of
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.write import audit_trail, quality_flags, rollups
from treehammer.text_formatting import format_time, pluralize

#: Prunable category -> column that holds it.
PRUNABLE: Mapping[str, sa.Column[Any]] = {
    "passes": measurement.c.passes,
    "logs": measurement.c.log_excerpt,
}
#: Prunable category of the time steps of operations, which are merged.
OPERATIONS = "operations"
#: Catalogue columns that may be missing although they were recorded.
PRUNED_COLUMNS = (*PACKED_COLUMNS, measurement.c.log_excerpt.name)
#: Columns in which merged rows agree.
_KEY_COLUMNS = ("side", "operation", "server", "generator_limited")
#: Measurements that are merged at once.
_CHUNK = 100
CHANGING_ACTIONS = QUARANTINE, UNQUARANTINE, DELETE = "quarantine", "unquarantine", "delete"
DELETE_CHECKS = "delete checks"
#: Number of measurements that a message names.
MAX_LISTED = 10
#: Column -> parser of its values. Many measurements share a histogram, none shares its passes.
_DECODERS: dict[sa.Column[Any], Callable[[Any], object]] = {
    measurement.c.read_latency_hist: lru_cache(maxsize=1 << 16)(decode_numbers),
    measurement.c.passes: unpack_lists,
    operation.c.latency: decode_latency,
}


@dataclass(frozen=True)
class PruneResult:
    """Effect of pruning, actual or predicted.

    Attributes:
        category: a key of :data:`PRUNABLE`, or :data:`OPERATIONS`.
        before_day: first day (UTC) that keeps everything.
        measurements: number of affected measurements.
        bytes: pruned size as stored (for texts: characters; for operations: of their histograms
            before they are merged).
    """

    category: str
    before_day: date
    measurements: int
    bytes: int


class _StoredSize(sa.sql.functions.GenericFunction[int]):
    """SQL function: bytes of a packed column, characters of a text."""

    inherit_cache = True
    type = sa.BigInteger()
    name = "length"


@compiles(_StoredSize, "oracle")
def _oracle_size(element: _StoredSize, compiler: Any, **kwargs: Any) -> str:
    # LENGTH does not accept BLOB.
    return f"DBMS_LOB.GETLENGTH({compiler.process(element.clauses, **kwargs)})"


def first_kept_day(days: int, today: date | None = None) -> date:
    """Compute the first day (UTC) of the last ``days``, including today."""
    return (today or datetime.now(UTC).date()) - timedelta(days=days - 1)


def measure_prunable(connection: Connection, category: str, before: date) -> PruneResult:
    """Measure the effect of :func:`prune_day` on all days before ``before``."""
    if category == OPERATIONS:
        return _measure_operations(connection, before)
    column = PRUNABLE[category]
    count, size = connection.execute(
        sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(_StoredSize(column)), 0)).where(
            measurement.c.day < day_to_number(before), column.is_not(None)
        )
    ).one()
    return PruneResult(category, before, int(count), int(size))


def _measure_operations(connection: Connection, before: date) -> PruneResult:
    old = measurement.c.day < day_to_number(before)
    ids = _select_mergeable(old).subquery()
    count = connection.scalar(sa.select(sa.func.count()).select_from(ids)) or 0
    size = connection.scalar(
        sa.select(sa.func.coalesce(sa.func.sum(_StoredSize(operation.c.latency)), 0)).where(
            operation.c.measurement_id.in_(sa.select(ids.c.measurement_id))
        )
    )
    return PruneResult(OPERATIONS, before, count, int(size or 0))


def list_prunable_days(connection: Connection, category: str, before: date) -> list[int]:
    """List the days (YYYYMMDD) with prunable data."""
    day = measurement.c.day
    query = sa.select(day).where(day < day_to_number(before))
    if category == OPERATIONS:
        ids = _select_mergeable(day < day_to_number(before))
        query = query.where(measurement.c.measurement_id.in_(ids))
    else:
        query = query.where(PRUNABLE[category].is_not(None))
    return list(connection.scalars(query.distinct().order_by(day)))


def prune_day(connection: Connection, category: str, day: int) -> None:
    """Prune the measurements of a day inside the write transaction."""
    if category == OPERATIONS:
        _prune_operations(connection, day)
        return
    column = PRUNABLE[category]
    connection.execute(
        sa.update(measurement)
        .where(measurement.c.day == day, column.is_not(None))
        .values({column.name: None})
    )


def insert_operations(
    connection: Connection, operations: Mapping[str, Sequence[OperationRow]]
) -> None:
    """Insert the operations of measurements, by identity."""
    rows = (
        {**row, "measurement_id": id_, "line": line}
        for id_, steps in operations.items()
        for line, row in enumerate(steps)
    )
    insert_values(connection, operation, rows)


def merge_steps(rows: Sequence[OperationRow]) -> list[OperationRow]:
    """Merge rows that differ in their time step alone; rows without another stay as they are."""
    groups: dict[tuple[Any, ...], list[OperationRow]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in _KEY_COLUMNS), []).append(row)
    return [steps[0] if len(steps) == 1 else _merge_rows(steps) for steps in groups.values()]


def _merge_rows(rows: Sequence[Mapping[str, Any]]) -> OperationRow:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    seconds = sum(columns["step_s"])
    latency = LatencyHistogram.sum(map(decode_latency, columns["latency"]))
    # Release 0.2.0 did not count them.
    counts = [count for count in columns["held"] if count is not None]
    failures: Counter[str] = Counter()
    for text in columns["failures"]:
        failures.update(json.loads(text))
    return {
        **rows[0],
        "step": min(columns["step"]),
        "step_start_us": min(columns["step_start_us"]),
        "step_s": seconds,
        "clients": max(columns["clients"]),
        **{name: min(sum(columns[name]), INT64_LIMIT - 1) for name in ROLLUP_COUNTS},
        "held": sum(counts) if counts else None,
        "lateness_max_s": max(columns["lateness_max_s"]),
        "generator_cpu": sum(row["generator_cpu"] * row["step_s"] for row in rows) / seconds,
        "failures": json.dumps(dict(sorted(failures.items()))),
        "latency": latency.encode() if latency.count else None,
    }


def is_merge_of(merged: Sequence[OperationRow], rows: Sequence[OperationRow]) -> bool:
    """Check whether rows that were pruned can come from others."""
    # Histograms are not compared as text, because releases of zlib compress differently.
    return len(merged) < len(rows) and [*map(_decode, merged)] == [*map(_decode, merge_steps(rows))]


def _decode(row: OperationRow) -> dict[str, Any]:
    latency = row["latency"]
    return {**row, "latency": [*decode_latency(str(latency or "")).bins()]}


def _select_mergeable(condition: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Select the identities of measurements with several steps to merge."""
    keys = (operation.c[name] for name in _KEY_COLUMNS)
    several = (
        sa.select(operation.c.measurement_id)
        .join(measurement)
        .where(condition)
        .group_by(operation.c.measurement_id, *keys)
        .having(sa.func.count() > 1)
    )
    return sa.select(several.subquery().c.measurement_id).distinct()


def _prune_operations(connection: Connection, day: int) -> None:
    """Merge the steps of a day's measurements inside the write transaction."""
    ids = list(connection.scalars(_select_mergeable(measurement.c.day == day)))
    for start in range(0, len(ids), _CHUNK):
        chunk = ids[start : start + _CHUNK]
        merged = {
            id_: merge_steps(rows) for id_, rows in load_operations_of(connection, chunk).items()
        }
        connection.execute(sa.delete(operation).where(operation.c.measurement_id.in_(chunk)))
        insert_operations(connection, merged)
    subjects = sa.select(measurement.c.subject_id).where(measurement.c.day == day).distinct()
    rollups.rebuild_rollups(connection, [(day, id_) for id_ in connection.scalars(subjects)])


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

    def describe(self) -> str:
        """Describe the conditions; '' without any."""
        parts = [
            f"campaign {self.campaign_id}" if self.campaign_id else "",
            f"key {self.key_id}" if self.key_id else "",
            f"since {format_time(self.since_us)}" if self.since_us is not None else "",
            f"until {format_time(self.until_us)}" if self.until_us is not None else "",
        ]
        return ", ".join(filter(None, parts))

    @property
    def condition(self) -> sa.ColumnElement[bool]:
        """Condition on the table of measurements."""
        columns = measurement.c
        conditions = []
        if self.campaign_id:
            conditions.append(columns.campaign_id == self.campaign_id)
        if self.key_id:
            conditions.append(columns.job_id.in_(self._select_sent(audit_trail.MEASUREMENTS)))
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
        return self._select_sent(audit_trail.REPLICA)

    def _select_sent(self, kind: str) -> sa.Select[tuple[str]]:
        is_sent = receipt.c.key_id == self.key_id
        return sa.select(receipt.c.subject).where(is_sent, receipt.c.kind == kind)


@dataclass(frozen=True)
class ScopeCount:
    """Number of measurements of a campaign at a site."""

    campaign_id: str
    site: str
    measurements: int


def count_scope(connection: Connection, scope: ChangeScope) -> list[ScopeCount]:
    """Count the measurements of a scope by campaign and site."""
    place = (measurement.c.campaign_id, measurement_sql.catalogue_column("site"))
    query = (
        sa.select(*place, sa.func.count())
        .select_from(measurement_sql.join_dimensions(("site",)))
        .where(scope.condition)
        .group_by(*place)
        .order_by(*place)
    )
    return [ScopeCount(id_, site or "", count) for id_, site, count in connection.execute(query)]


@dataclass(frozen=True)
class DatabaseChange:
    """Change of recorded results by an administrator.

    Attributes:
        action: :data:`QUARANTINE`, :data:`UNQUARANTINE`, :data:`DELETE` or :data:`DELETE_CHECKS`.
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
        changed = quality_flags.flag_measurements(
            connection,
            condition,
            QUARANTINED,
            change.reason or "no reason given",
            change.actor,
        )
    elif change.action == UNQUARANTINE:
        changed = quality_flags.remove_flags(connection, condition, QUARANTINED)
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
        for table in (operation, extra, quality_flag, measurement):
            connection.execute(sa.delete(table).where(table.c.measurement_id.in_(chunk)))
    rollups.rebuild_rollups(connection, owners)
    if scope.is_whole_campaign:
        of_campaign = sa.select(job.c.id).where(job.c.campaign_id == scope.campaign_id)
        connection.execute(sa.delete(attempt).where(attempt.c.job_id.in_(of_campaign)))
        connection.execute(sa.delete(job).where(job.c.campaign_id == scope.campaign_id))
        connection.execute(sa.delete(campaign).where(campaign.c.id == scope.campaign_id))
    return len(ids)


def _delete_checks(connection: Connection, scope: ChangeScope) -> int:
    """Delete checks of replicas, and the quality marks that no other check justifies."""
    ids = scope.sent_checks
    checks = load_rows(connection, ReplicaRow, sa.select(replica).where(replica.c.id.in_(ids)))
    for chunk in split_ids([check.id for check in checks]):
        connection.execute(sa.delete(replica).where(replica.c.id.in_(chunk)))
    marked = sa.or_(*(quality_flags.reads_replica(check) for check in checks), sa.false())
    removed = quality_flags.remove_flags(connection, marked, BAD_REPLICA)
    replicas = load_rows(connection, ReplicaRow, sa.select(replica))
    return removed - quality_flags.flag_bad_replica_reads(connection, replicas)


def check_database(url: str) -> dict[str, int]:
    """Check that a database is intact, complete and of this schema version.

    Returns:
        number of rows by table.

    Raises:
        NothingToDoError: no database exists.
        StoreError: it is damaged or of another version; the message gives the remedy.
    """
    with ResultsReader.open(url) as reader, reader.connection() as connection:
        backend_of(connection.engine).require_integrity(connection)
        require_complete_schema(connection)
        _require_undamaged_values(connection)
        return count_rows(connection)


def _require_undamaged_values(connection: Connection) -> None:
    """Refuse a database in which a list of numbers or a histogram cannot be read.

    Raises:
        StoreError: values are damaged; the message names measurements and the remedy.
    """
    for column, read in _DECODERS.items():
        ids = list(dict.fromkeys(_find_damaged_values(connection, column, read)))
        if ids:
            listed_ids = ", ".join(ids[:MAX_LISTED]) + (", …" if len(ids) > MAX_LISTED else "")
            quoted = ", ".join("'{}'".format(id_.replace("'", "''")) for id_ in ids[:MAX_LISTED])
            give_up = (
                f"UPDATE {column.table.name} SET {column.name} = NULL "  # noqa: S608 - for people to read
                f"WHERE measurement_id IN ({quoted});"
            )
            raise StoreError(
                f"{column.name} of {pluralize(len(ids), 'measurement')} is damaged: {listed_ids}",
                where=display_url(connection.engine.url),
                hint="Put the database back from a backup; or give these values up, and then run "
                f"'treehammer db rebuild':\n  {give_up}",
            )


def _find_damaged_values(
    connection: Connection, column: sa.Column[Any], read: Callable[[Any], object]
) -> Iterator[str]:
    # Untyped, because SQLite may return text from a binary column.
    value = sa.type_coerce(column, sa.types.NullType())
    query = sa.select(column.table.c.measurement_id, value).where(column.is_not(None))
    with connection.execute(query.execution_options(yield_per=FETCH_ROWS)) as rows:
        for id_, stored_value in rows:
            try:
                read(stored_value)
            except (DamagedValueError, TypeError):
                yield str(id_)
