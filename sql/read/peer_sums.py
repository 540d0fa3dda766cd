"""Sums of a metric at one site and at the sites that did the same work, from the roll-ups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.job_spec import TIMED
from treehammer.collectors.record.outcome import Outcome
from treehammer.sql.core.schema import dimension_tables, rollup_column_names, rollup_day
from treehammer.sql.read.figure_query import Moments
from treehammer.sql.read.figure_sql import FIGURE_FETCH_ROWS
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.read.site_history import WORKLOAD_COLUMNS, workload_key

_SUBJECT = dimension_tables["subject"].c

#: Key of a workload; see :func:`.site_history.workload_key`.
WorkKey = tuple[str, ...]
#: Other sites whose single days are read; a thousand sites have a million of them in a month.
MAX_DAILY_PEERS = 100


class DailySums(NamedTuple):
    """A metric of a site's good measurements of one workload on one day (YYYYMMDD).

    The workload has the values of :data:`.site_history.WORKLOAD_COLUMNS`. The sums are those of
    :class:`.figure_query.Moments`, as plain numbers, since half a year has some ten thousand.
    """

    day: int
    site: str
    workload: WorkKey
    value_count: int
    total: float
    squares: float


@dataclass(frozen=True)
class PeerSums:
    """Sums of the work that a site did, there and elsewhere.

    Attributes:
        totals: site, work and moments over the whole period, of all sites.
        dailies: by day, of the site and at most :data:`MAX_DAILY_PEERS` others.
    """

    totals: Sequence[tuple[str, WorkKey, Moments]]
    dailies: Sequence[DailySums]


def fetch_peer_sums(
    store: ResultsReader, site: str, metric: str, days: tuple[int, int], only: Mapping[str, str]
) -> PeerSums:
    """Fetch the sums of timed measurements of a site's work, of every site that did it.

    Args:
        store: the database.
        site: the site.
        metric: one of :data:`~treehammer.sql.core.schema.ROLLUP_METRICS`.
        days: the first and the last day (YYYYMMDD).
        only: column of :data:`.site_history.WORKLOAD_COLUMNS` -> the value that it must have in
            :func:`.site_history.workload_key`.
    """
    with store.connection() as connection:
        subjects = _list_subjects(connection, site, only)
        totals = _fetch_totals(connection, metric, days, subjects)
        peers = sorted({name for name, _, _ in totals} - {site})
        chosen = [site, *_space_evenly(peers)] if len(peers) > MAX_DAILY_PEERS else None
        dailies = [*_fetch_dailies(connection, metric, days, subjects, chosen)]
    return PeerSums(totals, dailies)


def _list_subjects(
    connection: Connection, site: str, only: Mapping[str, str]
) -> dict[int, tuple[str, WorkKey]]:
    """List site and work of all subjects with work that the site has done, too."""
    wanted = [(WORKLOAD_COLUMNS.index(name), value) for name, value in only.items()]
    columns = (_SUBJECT[name] for name in WORKLOAD_COLUMNS)
    known: dict[int, tuple[str, WorkKey]] = {}
    works: dict[WorkKey, WorkKey] = {}
    for id_, of_site, *texts in connection.execute(sa.select(_SUBJECT.id, _SUBJECT.site, *columns)):
        work = workload_key(texts)
        if all(work[place] == value for place, value in wanted):
            # Equal tuples share one object, which compares faster.
            known[id_] = of_site or "", works.setdefault(work, work)
    own = {work for of_site, work in known.values() if of_site == site}
    return {id_: one for id_, one in known.items() if one[1] in own}


def _select_sums(metric: str, days: tuple[int, int]) -> tuple[sa.Select[Any], list[sa.Column[Any]]]:
    """Return the selection of good timed measurements, and the columns of the sums."""
    table = rollup_day.c
    query = sa.select().where(
        table.day.between(*days), table.kind == TIMED, table.outcome == Outcome.GOOD.value
    )
    return query, [table[name] for name in rollup_column_names(metric)]


def _fetch_totals(
    connection: Connection,
    metric: str,
    days: tuple[int, int],
    subjects: Mapping[int, tuple[str, WorkKey]],
) -> list[tuple[str, WorkKey, Moments]]:
    chosen, sums = _select_sums(metric, days)
    subject = rollup_day.c.subject_id
    query = chosen.add_columns(subject, *map(sa.func.sum, sums)).group_by(subject)
    found: dict[tuple[str, WorkKey], Moments] = defaultdict(Moments)
    for id_, number, total, squares in connection.execute(query):
        if id_ in subjects and number:
            found[subjects[id_]] += Moments(int(number), float(total), float(squares))
    return [(*key, moments) for key, moments in found.items()]


def _fetch_dailies(
    connection: Connection,
    metric: str,
    days: tuple[int, int],
    subjects: Mapping[int, tuple[str, WorkKey]],
    sites: Sequence[str] | None,
) -> Iterator[DailySums]:
    """Fetch the sums by day, of some sites or of all."""
    chosen, sums = _select_sums(metric, days)
    query = chosen.add_columns(rollup_day.c.day, rollup_day.c.subject_id, *sums)
    if sites is not None:
        without_site = _SUBJECT.site.is_(None) if "" in sites else sa.false()
        is_chosen = sa.or_(_SUBJECT.site.in_(sites), without_site)
        of_sites = sa.select(_SUBJECT.id).where(is_chosen)
        query = query.where(rollup_day.c.subject_id.in_(of_sites))
    for day, subject, number, total, squares in connection.execute(
        query.execution_options(yield_per=FIGURE_FETCH_ROWS)
    ):
        if subject in subjects:
            yield DailySums(day, *subjects[subject], int(number), total, squares)


def _space_evenly(names: Sequence[str]) -> list[str]:
    """Choose :data:`MAX_DAILY_PEERS` of more names, evenly spaced."""
    return [names[place * len(names) // MAX_DAILY_PEERS] for place in range(MAX_DAILY_PEERS)]
