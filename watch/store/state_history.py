"""States of sites: outcomes of their runs, the history of states, and exceptions from the rules.

A run is an attempt of a job, by test and site. The history lists changes of states and the rule sets by
which they were evaluated. Exceptions are announced downtimes, and overrides by people.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from operator import attrgetter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.record.outcome import Outcome
from treehammer.errors import StoreError
from treehammer.sql.core.column_types import text_equals
from treehammer.sql.core.measurement_sql import outcome_column
from treehammer.sql.core.rows import QUARANTINED
from treehammer.sql.core.schema import (
    dimension_tables,
    measurement,
    site_downtime,
    site_override,
    status_change,
    status_rule_set,
)
from treehammer.sql.core.subjects import CENTRAL, DOOR, KIND_WORDS, SUBJECT_KINDS, label_door
from treehammer.sql.core.watch_rows import DowntimeRow, OverrideRow, RuleSetRow, StatusChangeRow
from treehammer.sql.engine.database_engine import (
    insert_missing_rows,
    load_rows,
    select_latest,
    split_ids,
    upsert_rows,
)
from treehammer.sql.read.failure_counts import Period, ended_within, list_lost_attempts
from treehammer.sql.read.query_model import has_flag
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.write.store import Store

#: State of a central event while it lasts.
_LASTING = "critical"
_TABLE = status_change.c
_ORDER = (_TABLE.since_us, _TABLE.decided_us, _TABLE.id)
_HASHED = attrgetter("subject_kind", "site", "rule", "state", "cause", "since_us")
#: Severities of downtimes: the site does not work, or may not.
OUTAGE, AT_RISK = "outage", "at-risk"
_SUBJECT = dimension_tables["subject"].c


def name_subject(row: StatusChangeRow) -> str:
    """Return the word for the subject of a change."""
    is_of_all_doors = (row.subject_kind, row.site) == (CENTRAL, DOOR)
    return "all doors" if is_of_all_doors else KIND_WORDS[row.subject_kind]


def list_state_changes(
    store: ResultsReader,
    *,
    site: str | None = None,
    since_us: int = 0,
    rules: bool = False,
    superseded: bool = False,
    doors: bool = False,
) -> list[StatusChangeRow]:
    """List changes of states, oldest first.

    Args:
        store: the database.
        site: only of this site, as site of jobs or of storage.
        since_us: only changes at this time or later.
        rules: whether to add the changes of each rule's own state.
        superseded: whether to add changes that late results contradicted.
        doors: whether to add the doors of storages.
    """
    conditions = [_TABLE.since_us >= since_us, *_select_changes(site, rules=rules, doors=doors)]
    if not superseded:
        conditions.append(_TABLE.superseded_us.is_(None))
    query = sa.select(status_change).where(*conditions)
    return store.load_rows(StatusChangeRow, query.order_by(*_ORDER))


def _select_changes(
    site: str | None, *, rules: bool, doors: bool
) -> Iterator[sa.ColumnElement[bool]]:
    """Yield the conditions on the subjects of changes."""
    if not rules:
        yield _TABLE.rule.is_(None)
    of_site = text_equals(_TABLE.site, site or "") & _TABLE.subject_kind.in_(SUBJECT_KINDS)
    of_doors = _TABLE.subject_kind == DOOR
    if not doors:
        of_all_doors = (_TABLE.subject_kind == CENTRAL) & (_TABLE.site == DOOR)
        yield sa.not_(of_doors | of_all_doors)
    if site is not None:
        begin = label_door(site, "")
        # Not LIKE, which ignores the case of letters in SQLite.
        is_door_of_site = of_doors & (sa.func.substr(_TABLE.site, 1, len(begin)) == begin)
        yield of_site | is_door_of_site if doors else of_site


def list_current_states(
    store: ResultsReader,
    *,
    at_us: int | None = None,
    site: str | None = None,
    rules: bool = False,
    doors: bool = False,
) -> list[StatusChangeRow]:
    """List the latest change of each subject, which holds its current state, by kind and site.

    A site without any change is unknown.

    Args:
        store: the database.
        at_us: the states at this time instead.
        site: only this site, as site of jobs or of storage.
        rules: whether to add the latest change of each rule's own state.
        doors: whether to add the doors of storages.
    """
    holds = [_TABLE.superseded_us.is_(None), *_select_changes(site, rules=rules, doors=doors)]
    if at_us is not None:
        holds.append(_TABLE.since_us <= at_us)
    by = (_TABLE.subject_kind, _TABLE.site, _TABLE.rule)
    latest = select_latest(status_change, by, _ORDER, *holds)
    rows = store.load_rows(StatusChangeRow, latest)
    return sorted(rows, key=lambda row: (row.subject_kind, row.site, row.rule))


def list_standing_states(
    store: ResultsReader, site: str | None = None, *, doors: bool = False
) -> list[StatusChangeRow]:
    """List the current states, those of central events only while they last."""
    return [
        row
        for row in list_current_states(store, site=site, doors=doors)
        if row.subject_kind != CENTRAL or row.state == _LASTING
    ]


def find_change(store: ResultsReader, change_id: str) -> StatusChangeRow | None:
    """Find a change by its identity."""
    query = sa.select(status_change).where(_TABLE.id == change_id)
    return next(iter(store.load_rows(StatusChangeRow, query)), None)


def find_latest_rule_set(store: ResultsReader) -> RuleSetRow | None:
    """Find the rule set of the latest evaluation."""
    table = status_rule_set.c
    query = sa.select(status_rule_set).order_by(table.evaluated_us.desc(), table.version).limit(1)
    return next(iter(store.load_rows(RuleSetRow, query)), None)


def record_evaluation(
    store: Store,
    *,
    before: RuleSetRow | None,
    rule_set: RuleSetRow,
    superseded: Sequence[str],
    changes: Sequence[StatusChangeRow],
) -> bool:
    """Record an evaluation, unless another one was recorded since its data were read.

    Args:
        store: the database.
        before: the latest evaluation when the data were read.
        rule_set: the rules, with the time of this evaluation.
        superseded: identities of changes that it contradicts.
        changes: new changes; their identities are set here.

    Returns:
        whether it was recorded.
    """
    if find_latest_rule_set(store) != before:
        return False
    try:
        with store.writing_connection() as connection:
            if not _claim_evaluation(connection, before, rule_set):
                return False
            for chunk in split_ids(superseded):
                changed = sa.update(status_change).where(_TABLE.id.in_(chunk))
                connection.execute(changed.values(superseded_us=rule_set.evaluated_us))
            insert_missing_rows(connection, status_change, _with_identities(connection, changes))
            return True
    except StoreError:
        # Two first evaluations at the same moment insert the same rule set.
        if find_latest_rule_set(store) == before:
            raise
        return False


def _claim_evaluation(
    connection: Connection, before: RuleSetRow | None, rule_set: RuleSetRow
) -> bool:
    table = status_rule_set
    if before is not None:
        # Of two evaluations of the same state, the second finds another time here.
        claimed = connection.execute(
            sa.update(table)
            .where(table.c.version == before.version, table.c.evaluated_us == before.evaluated_us)
            .values(evaluated_us=max(before.evaluated_us, rule_set.evaluated_us - 1))
        )
        if claimed.rowcount != 1:
            return False
    values = {"started_us": rule_set.started_us, "evaluated_us": rule_set.evaluated_us}
    updated = connection.execute(
        sa.update(table).where(table.c.version == rule_set.version).values(values)
    )
    if not updated.rowcount:
        connection.execute(sa.insert(table), [vars(rule_set)])
    return True


def _with_identities(
    connection: Connection, changes: Iterable[StatusChangeRow]
) -> list[StatusChangeRow]:
    """Name each change by a hash; a change that returns after it was superseded gets another one."""
    result = []
    for change in changes:
        for repeats in count():
            content = json.dumps([*_HASHED(change), repeats])
            id_ = hashlib.sha256(content.encode()).hexdigest()[:24]
            if connection.scalar(sa.select(_TABLE.id).where(_TABLE.id == id_)) is None:
                result.append(replace(change, id=id_))
                break
    return result


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
    return store.load_rows(DowntimeRow, query.order_by(table.starts_us, table.id))


def list_outages(store: ResultsReader, ends_after_us: int) -> list[DowntimeRow]:
    """List the downtimes in which the site does not work, like :func:`list_downtimes`."""
    announced = list_downtimes(store, ends_after_us=ends_after_us)
    return [downtime for downtime in announced if downtime.severity == OUTAGE]


def replace_downtimes(
    store: Store, source: str, downtimes: Sequence[DowntimeRow], now_us: int
) -> DowntimeImport:
    """Write the downtimes of a source; its others are withdrawn, and those that have begun end."""
    table = site_downtime
    stored_query = sa.select(table).where(table.c.source == source)
    with store.writing_connection() as connection:
        existing = {row.id: row for row in load_rows(connection, DowntimeRow, stored_query)}
        imported = {row.id: row for row in downtimes}
        changed = [
            row
            for id_, row in imported.items()
            if id_ in existing and replace(existing[id_], imported_us=row.imported_us) != row
        ]
        withdrawn = [
            replace(row, ends_us=now_us)
            if row.starts_us < now_us
            else replace(row, withdrawn_us=now_us)
            for id_, row in existing.items()
            if id_ not in imported and row.ends_us > now_us and row.withdrawn_us is None
        ]
        insert_missing_rows(connection, table, imported.values())
        upsert_rows(connection, table, [*changed, *withdrawn])
    new = len(imported.keys() - existing.keys())
    return DowntimeImport(new, len(changed), len(imported) - new - len(changed), len(withdrawn))


def list_overrides(store: ResultsReader, *, ends_after_us: int = 0) -> list[OverrideRow]:
    """List the overrides that were in force after a time, oldest first."""
    table = site_override.c
    end = sa.func.coalesce(table.ended_us, table.until_us)
    query = sa.select(site_override).where(end > ends_after_us)
    return store.load_rows(OverrideRow, query.order_by(table.made_us, table.id))


def add_override(store: Store, override: OverrideRow) -> None:
    """Record an override under a new identity in place of the site's earlier ones, which end."""
    end_overrides(
        store, override.site, override.subject_kind, now_us=override.made_us, who=override.who
    )
    with store.writing_connection() as connection:
        row = replace(override, id=secrets.token_hex(8))
        insert_missing_rows(connection, site_override, [row])


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


@dataclass(frozen=True)
class RunOutcome:
    """Outcome of one attempt of a job in one test, at a site that reads from a storage site.

    Attributes:
        site: site of the job.
        storage_site: site whose storage was read; '' if the job did not get that far.
        test: name of the test.
        campaign_id: its campaign.
        job_id: the job.
        attempt: number of the attempt.
        ended_us: end of its last measurement, or of the attempt.
        outcomes: number of measurements by outcome label; a failed attempt without any counts as one.
        measurement_id: a measurement that is not good, else any; '' without one.
        by_door: label of the door, with its storage -> the part of the run that read through it.
    """

    site: str
    storage_site: str
    test: str
    campaign_id: str
    job_id: str
    attempt: int
    ended_us: int
    outcomes: Mapping[str, int]
    measurement_id: str
    by_door: Mapping[str, RunOutcome] = field(default_factory=dict)


def list_run_outcomes(store: ResultsReader, from_us: int, to_us: int) -> list[RunOutcome]:
    """List the runs that ended after ``from_us`` and until ``to_us``, by their end."""
    period = Period(from_us, to_us)
    with store.connection() as connection:
        runs = list(_list_measured_runs(connection, period))
        runs += _list_failed_attempts(connection, period)
    return sorted(runs, key=lambda run: (run.ended_us, run.job_id, run.attempt, run.test))


def _list_failed_attempts(connection: Connection, period: Period) -> Iterator[RunOutcome]:
    """List failed attempts that returned no measurement."""
    for run in list_lost_attempts(connection, Period(period.from_us + 1, period.to_us)):
        yield RunOutcome(
            site=run.site,
            storage_site="",
            test=run.test,
            campaign_id=run.campaign_id,
            job_id=run.job_id,
            attempt=run.attempt,
            ended_us=run.started_us,
            outcomes={run.sign.failure: 1},
            measurement_id="",
        )


def _list_measured_runs(connection: Connection, period: Period) -> Iterator[RunOutcome]:
    """List runs by their measurements, without those in quarantine, which say nothing of a site."""
    table = measurement.c
    outcome = outcome_column()
    key = (table.job_id, table.attempt, _SUBJECT.test_name, _SUBJECT.site, _SUBJECT.storage_site)
    query = (
        sa.select(
            *key,
            table.campaign_id,
            _SUBJECT.door,
            outcome.label("outcome"),
            sa.func.count(),
            sa.func.max(table.ended_us),
            sa.func.min(table.measurement_id),
        )
        .select_from(measurement.join(dimension_tables["subject"]))
        .where(*ended_within(period), sa.not_(has_flag(QUARANTINED)))
        .group_by(*key, table.campaign_id, _SUBJECT.door, outcome)
    )
    groups: dict[tuple[Any, ...], list[_Group]] = defaultdict(list)
    for *names, door, label, number, ended_us, example in connection.execute(query):
        group = _Group(door or "", label, int(number), int(ended_us), example)
        groups[tuple(names)].append(group)
    for (job_id, attempt, test, site, storage, campaign_id), rows in groups.items():
        run = RunOutcome(
            site=site or "",
            storage_site=storage or site or "",
            test=test or "",
            campaign_id=campaign_id,
            job_id=job_id,
            attempt=int(attempt),
            ended_us=0,
            outcomes={},
            measurement_id="",
        )
        yield replace(_add_groups(run, rows), by_door=_split_by_door(run, rows))


class _Group(NamedTuple):
    """Measurements of a run with the same door and outcome."""

    door: str
    outcome: str
    measurements: int
    ended_us: int
    example: str


def _add_groups(run: RunOutcome, groups: Iterable[_Group]) -> RunOutcome:
    """Return a run with the outcomes of some of its measurements."""
    # Labels of outcomes that are not good come first.
    ordered = sorted(
        groups,
        key=lambda group: (group.outcome == Outcome.GOOD.value, group.outcome, group.example),
    )
    outcomes: Counter[str] = Counter()
    for group in ordered:
        outcomes[group.outcome] += group.measurements
    ended_us = max(group.ended_us for group in ordered)
    return replace(
        run, ended_us=ended_us, outcomes=dict(outcomes), measurement_id=ordered[0].example
    )


def _split_by_door(run: RunOutcome, groups: Iterable[_Group]) -> dict[str, RunOutcome]:
    """Return the parts of a run by the label of their door."""
    by_door: defaultdict[str, list[_Group]] = defaultdict(list)
    for group in groups:
        if group.door and run.storage_site:
            by_door[label_door(run.storage_site, group.door)].append(group)
    return {label: _add_groups(run, parts) for label, parts in by_door.items()}
