"""Sums of a metric at one site and at the sites that did the same work, from the roll-ups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.collectors.job_spec import TIMED
from treehammer.collectors.record.outcome import Outcome
from treehammer.sql.core.measurement_sql import (
    GOOD_ROLLUPS,
    SubjectTable,
    credible_value,
    has_outcome,
    load_subjects,
    moment_sums,
    select_subjects,
)
from treehammer.sql.core.schema import (
    dimension_tables,
    measurement,
    rollup_column_names,
    rollup_day,
)
from treehammer.sql.engine.database_engine import load_by_ids
from treehammer.sql.read.query_model import Moments
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.read.site_history import WORKLOAD_COLUMNS, workload_key

#: Key of a workload; see :func:`.site_history.workload_key`.
WorkKey = tuple[str, ...]
Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
#: Other sites whose single days are read; a thousand sites have a million of them in a month.
MAX_DAILY_PEERS = 100


@dataclass(frozen=True)
class WorkSums:
    """A metric of the good measurements of some work at some sites, by columns.

    Arrays, because half a year of a site and its peers has some ten thousand rows. Several rows may
    have the same day, site and work.

    Attributes:
        sites: names that ``site`` refers to by place.
        works: values of :data:`.site_history.WORKLOAD_COLUMNS` that ``work`` refers to by place.
        day: YYYYMMDD.
        site: site of each row.
        work: work of each row.
        count: measurements that have the metric.
        total: sum of its values.
        squares: sum of their squares.
    """

    sites: Sequence[str]
    works: Sequence[WorkKey]
    day: Integers
    site: Integers
    work: Integers
    count: Floats
    total: Floats
    squares: Floats

    @classmethod
    def collect(cls, rows: Iterable[tuple[int, str, WorkKey, float, float, float]]) -> WorkSums:
        """Collect rows of day, site, work, count, total and squares."""
        days, sites, works, *sums = zip(*rows, strict=True) if (rows := [*rows]) else ((),) * 6
        site_places = {site: place for place, site in enumerate(dict.fromkeys(sites))}
        work_places = {work: place for place, work in enumerate(dict.fromkeys(works))}
        return cls(
            [*site_places],
            [*work_places],
            np.array(days, np.int64),
            np.array([site_places[site] for site in sites], np.int64),
            np.array([work_places[work] for work in works], np.int64),
            *(np.array(column, float) for column in sums),
        )

    def select_site(self, site: str) -> list[tuple[WorkKey, Moments]]:
        """Return work and moments of each row of a site."""
        places = np.flatnonzero(self.site == self.sites.index(site)) if site in self.sites else ()
        return [
            (
                self.works[self.work[place]],
                _moments(self.count[place], self.total[place], self.squares[place]),
            )
            for place in places
        ]


@dataclass(frozen=True)
class PeerSums:
    """Sums of the work that a site did, there and elsewhere.

    Attributes:
        totals: over the whole period, of all sites; the day of a row has no meaning.
        dailies: by day, of the site and at most :data:`MAX_DAILY_PEERS` others.
    """

    totals: WorkSums
    dailies: WorkSums


def load_peer_sums(
    store: ResultsReader, site: str, metric: str, days: tuple[int, int], only: Mapping[str, str]
) -> PeerSums:
    """Load the sums of timed measurements of a site's work, of every site that did it.

    Args:
        store: the database.
        site: the site.
        metric: one of :data:`~treehammer.sql.core.schema.ROLLUP_METRICS`.
        days: the first and the last day (YYYYMMDD).
        only: column of :data:`.site_history.WORKLOAD_COLUMNS` -> the value that it must have in
            :func:`.site_history.workload_key`.
    """
    with store.connection() as connection:
        subjects = _SharedWork.select(load_subjects(connection), site, only)
        if len(np.unique(subjects.site)) <= MAX_DAILY_PEERS:
            every = _load_dailies(connection, metric, days, subjects, None)
            return PeerSums(every, every)
        selection, sums = _select_sums(metric, days)
        whole, subject = sa.literal_column("0", sa.BigInteger), rollup_day.c.subject_id
        query = selection.add_columns(whole, subject, *map(sa.func.sum, sums)).group_by(subject)
        totals = subjects.collect(connection.execute(query).all())
        measured = np.unique(totals.site[totals.count > 0])
        peers = sorted({totals.sites[place] for place in measured} - {site})
        sites = None
        if len(peers) > MAX_DAILY_PEERS:  # evenly spaced ones
            places = range(0, MAX_DAILY_PEERS * len(peers), len(peers))
            sites = [site, *(peers[place // MAX_DAILY_PEERS] for place in places)]
        dailies = _load_dailies(connection, metric, days, subjects, sites)
    return PeerSums(totals, dailies)


#: Name of a part of a site's work, such as a host; work; moments.
PartSums = list[tuple[str, WorkKey, Moments]]


def load_door_sums(store: ResultsReader, site: str, metric: str, days: tuple[int, int]) -> PartSums:
    """Load the sums of a site's good timed measurements by door and work."""
    selection, sums = _select_sums(metric, days)
    subject = rollup_day.c.subject_id
    query = selection.add_columns(subject, *map(sa.func.sum, sums)).group_by(subject)
    with store.connection() as connection:
        subjects = load_subjects(connection)
        rows = connection.execute(query.where(subject.in_(select_subjects("site", [site])))).all()
    doors, works = subjects.index_column("door"), _index_work(subjects)
    return [(doors[id_] or "unknown", works.find_work(id_), _moments(*row)) for id_, *row in rows]


def load_node_sums(
    store: ResultsReader, site: str, metric: str, days: tuple[int, int]
) -> dict[str, PartSums]:
    """Load the same by ``host`` and by ``cpu_model``, from the measurements."""
    table, node = measurement.c, dimension_tables["node"].c
    query = (
        sa.select(table.subject_id, table.node_id, *moment_sums(credible_value(table[metric])))
        .where(
            table.subject_id.in_(select_subjects("site", [site])),
            table.day.between(*days),
            table.kind == TIMED,
            has_outcome(Outcome.GOOD),
        )
        .group_by(table.subject_id, table.node_id)
    )
    sums_by_kind: dict[str, PartSums] = {"host": [], "cpu_model": []}
    with store.connection() as connection:
        works = _index_work(load_subjects(connection))
        rows = connection.execute(query).all()
        nodes_query = sa.select(node.id, node.host, node.cpu_model)
        node_rows = load_by_ids(connection, nodes_query, node.id, (row[1] for row in rows))
        nodes = {id_: names for id_, *names in node_rows}
    for subject, node_id, *sums in rows:
        work, moments = works.find_work(subject), _moments(*sums)
        for kind, name in zip(sums_by_kind, nodes[node_id], strict=True):
            sums_by_kind[kind].append((name or "unknown", work, moments))
    return sums_by_kind


def _moments(count: float, total: float, squares: float) -> Moments:
    return Moments(int(count), float(total), float(squares))


@dataclass(frozen=True)
class _SharedWork:
    """Subjects with work that a site has done, too, by columns.

    Attributes:
        sites: all sites.
        works: all works.
        subject: numbers of the subjects, ascending.
        site: place of the site of each.
        work: place of the work of each.
    """

    sites: Sequence[str]
    works: Sequence[WorkKey]
    subject: Integers
    site: Integers
    work: Integers

    @classmethod
    def select(cls, table: SubjectTable, site: str, only: Mapping[str, str]) -> _SharedWork:
        every = _index_work(table)
        required_values = [(WORKLOAD_COLUMNS.index(name), value) for name, value in only.items()]
        place_of_site = every.sites.index(site) if site in every.sites else -1
        works_of_site = [
            work
            for work in np.unique(every.work[every.site == place_of_site])
            if all(every.works[work][place] == value for place, value in required_values)
        ]
        is_selected = np.isin(every.work, works_of_site)
        columns = (every.subject[is_selected], every.site[is_selected], every.work[is_selected])
        return cls(every.sites, every.works, *columns)

    def find_work(self, subject: int) -> WorkKey:
        """Return the work of a subject by its number."""
        return self.works[int(self.work[np.searchsorted(self.subject, subject)])]

    def collect(self, rows: Iterable[Sequence[Any]]) -> WorkSums:
        """Collect rows of day, subject, count, total and squares; others' work is left out."""
        # By columns, because a month of some sites has ten thousand rows.
        days, ids, *sums = zip(*rows, strict=True) if (rows := [*rows]) else ((),) * 5
        subjects = np.array(ids, np.int64)
        is_shared = np.isin(subjects, self.subject)
        places = np.searchsorted(self.subject, subjects[is_shared])
        return WorkSums(
            self.sites,
            self.works,
            np.array(days, np.int64)[is_shared],
            self.site[places],
            self.work[places],
            *(np.array(column, float)[is_shared] for column in sums),
        )


@lru_cache(maxsize=2)
def _index_work(table: SubjectTable) -> _SharedWork:
    """Number the sites and works of all subjects."""
    sites: dict[str, int] = {}
    works: dict[WorkKey, int] = {}
    places = [
        (
            id_,
            sites.setdefault(site or "", len(sites)),
            works.setdefault(workload_key(texts), len(works)),
        )
        for id_, site, *texts in table.select("id", "site", *WORKLOAD_COLUMNS)
    ]
    columns = np.array(sorted(places), np.int64).reshape(-1, 3).T
    return _SharedWork([*sites], [*works], *columns)


def _select_sums(metric: str, days: tuple[int, int]) -> tuple[sa.Select[Any], list[sa.Column[Any]]]:
    """Return the selection of good timed measurements, and the columns of the sums."""
    table = rollup_day.c
    query = sa.select().where(table.day.between(*days), *GOOD_ROLLUPS)
    return query, [table[name] for name in rollup_column_names(metric)]


def _load_dailies(
    connection: Connection,
    metric: str,
    days: tuple[int, int],
    subjects: _SharedWork,
    sites: Sequence[str] | None,
) -> WorkSums:
    """Load the sums by day, of some sites or of all."""
    selection, sums = _select_sums(metric, days)
    query = selection.add_columns(rollup_day.c.day, rollup_day.c.subject_id, *sums)
    if sites is not None:
        query = query.where(rollup_day.c.subject_id.in_(select_subjects("site", sites)))
    return subjects.collect(connection.execute(query).all())
