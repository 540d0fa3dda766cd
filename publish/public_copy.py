"""Copy of a database with what a site publishes: chosen campaigns, without keys, people and hosts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.publish.public_names import PublicNames, load_hosts, load_people
from treehammer.sql.core import schema
from treehammer.sql.core.column_types import DocumentText, StoredText
from treehammer.sql.core.evidence import VerdictEvidence
from treehammer.sql.core.measurement_columns import DIMENSIONS
from treehammer.sql.engine.database_engine import read_transaction, write_transaction
from treehammer.sql.engine.database_setup import opened_engine
from treehammer.sql.read.measurement_queries import FETCH_ROWS
from treehammer.sql.write.rollups import rebuild_rollups

#: Rows that are written at once.
_CHUNK = 500
#: Tables that are copied, in an order that keys allow. Those with keys, sessions, uploads, flags,
#: overrides, messages and starts are not.
_OF_CAMPAIGNS = (schema.measurement, schema.job)
_OF_COMPARISONS = (schema.verdict, schema.pair)
#: Tables whose rows belong to no campaign.
_OF_ALL = (
    schema.rollup_day,
    schema.instruction_count,
    schema.watched_series,
    schema.watched_day,
    schema.change_point,
    schema.release_check,
)


@dataclass(frozen=True)
class PublicCopy:
    """A copy, and the names that it lacks.

    Attributes:
        url: of the copy.
        campaigns: number of its campaigns.
        names: of hosts with those that replace them; without any, hosts are published.
        people: names of people; without any, people are published.
    """

    url: str
    campaigns: int
    names: PublicNames
    people: frozenset[str]


def copy_public(
    source: str, file: Path, campaigns: Sequence[str], *, with_hosts: bool, with_people: bool
) -> PublicCopy:
    """Copy what is published into a new SQLite file.

    Args:
        source: URL of the database.
        file: to write.
        campaigns: identities of the campaigns to publish; empty for all of the database.
        with_hosts: keep the names of hosts.
        with_people: keep the names of people.

    Raises:
        NothingToDoError: there is no database.
        StoreError: a database fails.
    """
    url = f"sqlite:///{file}"
    with (
        opened_engine(source, create=False) as from_,
        opened_engine(url, create=True) as to,
        read_transaction(from_) as old,
        write_transaction(to) as new,
    ):
        names = PublicNames([] if with_hosts else load_hosts(old))
        people = frozenset(() if with_people else load_people(old))
        for table, condition in _select_rows(old, campaigns):
            _copy_rows(old, new, table, condition, names, with_people=with_people)
        if campaigns:
            rebuild_rollups(new)
        count = new.scalar(sa.select(sa.func.count()).select_from(schema.campaign)) or 0
    return PublicCopy(url, count, names, people)


def _copy_rows(
    old: Connection,
    new: Connection,
    table: sa.Table,
    condition: sa.ColumnElement[bool],
    names: PublicNames,
    *,
    with_people: bool,
) -> None:
    """Copy the rows of a table as they are stored, apart from the names in their texts."""
    columns = table.columns.values()
    raw = sa.table(table.name, *(sa.column(column.name) for column in columns))
    cleaned = [place for place, column in enumerate(columns) if _may_have_names(column)]
    hidden = [] if with_people else [
        (place, _HIDERS[column.name])
        for place, column in enumerate(columns)
        if column.name in _HIDERS
    ]  # fmt: skip
    fields, marks = ", ".join(column.name for column in columns), ", ".join("?" * len(columns))
    query = sa.select(raw).where(condition).execution_options(yield_per=FETCH_ROWS)
    with old.execute(query) as result:
        while rows := [list(row) for row in islice(result, _CHUNK)]:
            for row in rows:
                for place in cleaned:
                    if row[place]:
                        row[place] = names.replace(row[place], hides_people=not with_people)
                for place, hide in hidden:
                    row[place] = hide(row[place])
            text = f"INSERT INTO {table.name} ({fields}) VALUES ({marks})"  # noqa: S608
            new.exec_driver_sql(text, [*map(tuple, rows)])


def _may_have_names(column: sa.Column[Any]) -> bool:
    """Return whether texts of a column may name hosts and people: no numbers, no identities."""
    is_identity = column.primary_key or column.foreign_keys or column.name.endswith("_id")
    return isinstance(column.type, StoredText | DocumentText) and not is_identity


def _hide_submitter(plan: str) -> str:
    document = json.loads(plan)
    return json.dumps({key: value for key, value in document.items() if key != "submitter"})


#: Column with a person -> removes that person from its value.
_HIDERS: Mapping[str, Callable[[Any], Any]] = {"plan": _hide_submitter, "submitter": lambda _: None}


def _select_rows(
    connection: Connection, campaigns: Sequence[str]
) -> Iterator[tuple[sa.Table, sa.ColumnElement[bool]]]:
    """Yield the tables to copy, each with the condition of its rows."""
    measured = schema.measurement.c
    is_published = measured.campaign_id.in_(campaigns) if campaigns else sa.true()
    for dimension in DIMENSIONS:
        used = sa.column("id").in_(sa.select(measured[dimension.key]).where(is_published))
        # Roll-ups and changes outlive the measurements that they were made of.
        yield schema.dimension_tables[dimension.name], used if campaigns else sa.true()
    yield schema.campaign, sa.column("id").in_(campaigns) if campaigns else sa.true()
    for table in _OF_CAMPAIGNS:
        yield table, sa.column("campaign_id").in_(campaigns) if campaigns else sa.true()
    identities = sa.select(measured.measurement_id).where(is_published)
    yield schema.extra, sa.column("measurement_id").in_(identities)
    comparisons = _list_comparisons(connection, campaigns) if campaigns else ()
    for table in _OF_COMPARISONS:
        yield table, sa.column("comparison_id").in_(comparisons) if campaigns else sa.true()
    if not campaigns:
        yield from ((table, sa.true()) for table in _OF_ALL)


def _list_comparisons(connection: Connection, campaigns: Sequence[str]) -> list[str]:
    """List the comparisons that use measurements of these campaigns alone."""
    table, pairs = schema.verdict.c, schema.pair.c
    paired: dict[str, set[str]] = {}
    for comparison, campaign in connection.execute(
        sa.select(pairs.comparison_id, pairs.campaign_id).distinct()
    ):
        paired.setdefault(comparison, set()).add(campaign)
    query = sa.select(table.comparison_id, table.evidence).where(table.line == 0)
    return [
        comparison
        for comparison, evidence in connection.execute(query)
        if _find_campaigns(evidence) or paired.get(comparison)
        if {*(_find_campaigns(evidence) or paired[comparison])} <= {*campaigns}
    ]


def _find_campaigns(evidence: VerdictEvidence) -> Sequence[str]:
    """Find the campaigns that a comparison was limited to."""
    return evidence.campaigns or ()
