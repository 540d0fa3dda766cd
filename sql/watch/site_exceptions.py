"""Exceptions from the rules for the states of sites: announced downtimes, and overrides by people."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from treehammer.sql.core.schema import site_downtime, site_override
from treehammer.sql.core.watch_rows import DowntimeRow, OverrideRow
from treehammer.sql.engine.row_mapping import fetch_rows, insert_missing_rows, upsert_rows
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.write.store import Store

#: Severities of downtimes: the site does not work, or may not.
OUTAGE, AT_RISK = "outage", "at-risk"


@dataclass(frozen=True)
class DowntimeImport:
    """Number of downtimes that an import found new, changed, unchanged and withdrawn."""

    new: int
    changed: int
    unchanged: int
    withdrawn: int


def list_downtimes(store: ResultsReader, *, ends_after_us: int = 0) -> list[DowntimeRow]:
    """List the downtimes that end after a time, by their start; without withdrawn ones."""
    table = site_downtime.c
    query = sa.select(site_downtime).where(
        table.ends_us > ends_after_us, table.withdrawn_us.is_(None)
    )
    return store.fetch_rows(DowntimeRow, query.order_by(table.starts_us, table.id))


def replace_downtimes(
    store: Store, source: str, downtimes: Sequence[DowntimeRow], now_us: int
) -> DowntimeImport:
    """Write the downtimes of a source; its others that have not ended are withdrawn."""
    table = site_downtime
    stored_query = sa.select(table).where(table.c.source == source)
    with store.writing_connection() as connection:
        stored = {row.id: row for row in fetch_rows(connection, DowntimeRow, stored_query)}
        imported = {row.id: row for row in downtimes}
        changed = [
            row
            for id_, row in imported.items()
            if id_ in stored and replace(stored[id_], imported_us=row.imported_us) != row
        ]
        withdrawn = [
            replace(row, withdrawn_us=now_us)
            for id_, row in stored.items()
            if id_ not in imported and row.ends_us > now_us and row.withdrawn_us is None
        ]
        insert_missing_rows(connection, table, imported.values())
        upsert_rows(connection, table, [*changed, *withdrawn])
    new = len(imported.keys() - stored.keys())
    return DowntimeImport(new, len(changed), len(imported) - new - len(changed), len(withdrawn))


def list_overrides(store: ResultsReader, *, ends_after_us: int = 0) -> list[OverrideRow]:
    """List the overrides that were in force after a time, oldest first."""
    table = site_override.c
    end = sa.func.coalesce(table.ended_us, table.until_us)
    query = sa.select(site_override).where(end > ends_after_us)
    return store.fetch_rows(OverrideRow, query.order_by(table.made_us, table.id))


def add_override(store: Store, override: OverrideRow) -> OverrideRow:
    """Record an override in place of the site's earlier ones, which end; return it with its identity."""
    added = replace(override, id=secrets.token_hex(8))
    end_overrides(
        store, override.site, override.subject_kind, now_us=override.made_us, who=override.who
    )
    with store.writing_connection() as connection:
        insert_missing_rows(connection, site_override, [added])
    return added


def end_overrides(
    store: Store, site: str, subject_kind: str = "", *, now_us: int, who: str
) -> list[OverrideRow]:
    """End the overrides of a site that are in force, and return them.

    Args:
        store: the database.
        site: name of the site.
        subject_kind: end only those for this kind; '' for any.
        now_us: the time.
        who: the person who ends them.
    """
    ended = [
        replace(row, ended_us=now_us, ended_by=who)
        for row in list_overrides(store, ends_after_us=now_us)
        if row.site == site and (not subject_kind or row.subject_kind == subject_kind)
    ]
    with store.writing_connection() as connection:
        upsert_rows(connection, site_override, ended)
    return ended
