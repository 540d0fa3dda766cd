"""History of one site: its workloads, and the software of its doors and nodes by day.

Queries read only a site's entries in one index, and one row per variant and day.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from treehammer.collectors.job_spec import PAIRED, TIMED
from treehammer.collectors.record.outcome import Outcome
from treehammer.hctests.matrix.identity import drop_release_axis
from treehammer.sql.core.schema import (
    dimension_tables,
    measurement,
    rollup_day,
)
from treehammer.sql.read.figure_query import FigureGroup
from treehammer.sql.read.reader import ResultsReader

_SUBJECT = dimension_tables["subject"].c
_STORAGE = dimension_tables["storage"].c
_SOFTWARE = dimension_tables["software"].c
_NODE = dimension_tables["node"].c
#: Second use of the measurements in a query; its hundred columns take a millisecond to copy.
_OTHER = measurement.alias("other")


@dataclass(frozen=True)
class Workload:
    """Something that a site measured; its variant as recorded, with :func:`common_label`."""

    test: str
    variant: str
    root: str
    dataset: str
    door: str
    protocol: str
    variant_label: str


#: Columns that are equal for the same work at any site; see :func:`workload_key`.
WORKLOAD_COLUMNS = ("test_name", "variant", "axis_root", "dataset_hash", "door_protocol")


def workload_key(values: Iterable[object]) -> tuple[str, ...]:
    """Return the key of the work of a measurement with these values of :data:`WORKLOAD_COLUMNS`: equal for the same.

    The variant is compared by its axes; its label names only the axes that vary in its campaign, and
    the release is left out of it, as it has a column of its own.
    """
    test, variant, *others = (str(value or "") for value in values)
    return test, drop_release_axis(variant), *others


def group_workload_key(group: FigureGroup) -> tuple[str, ...]:
    """Return the key of the work of a group, whose columns include :data:`WORKLOAD_COLUMNS`."""
    return workload_key(group.by[name] for name in WORKLOAD_COLUMNS)


@dataclass(frozen=True, order=True)
class ContextAspect:
    """Something that may change: of a door, a release or the nodes."""

    component: str
    attribute: str


#: Attribute of a door whose changes are upgrades of its server.
SERVER_VERSION = "server version"
#: Aspect -> day (YYYYMMDD) -> values.
ContextHistory = Mapping[ContextAspect, Mapping[int, frozenset[str]]]


def list_workloads(store: ResultsReader, site: str) -> list[Workload]:
    """List the workloads that a site ever measured; none for an unknown site."""
    columns = (
        _SUBJECT.test_name,
        _SUBJECT.variant,
        _SUBJECT.axis_root,
        _SUBJECT.dataset,
        _SUBJECT.door,
        _SUBJECT.door_protocol,
    )
    query = sa.select(*columns, _SUBJECT.variant_label).where(_is_site(site)).distinct()
    labels: dict[tuple[str, ...], set[str]] = defaultdict(set)
    with store.connection() as connection:
        for *texts, label in connection.execute(query.order_by(*columns)):
            labels[tuple(text or "" for text in texts)].add(label or "")
    return [Workload(*(*texts, common_label(found))) for texts, found in labels.items()]


def common_label(labels: Collection[str]) -> str:
    """Return the only label of a variant, or '' if campaigns used several."""
    return "".join(labels) if len(labels) == 1 else ""


def list_recorded_variants(
    store: ResultsReader, variants: Iterable[str], site: str | None = None
) -> list[str]:
    """List the recorded variants that equal these except for the release, at one or all sites."""
    wanted = set(map(drop_release_axis, variants))
    query = sa.select(_SUBJECT.variant).distinct()
    if site is not None:
        query = query.where(_is_site(site))
    with store.connection() as connection:
        known = connection.scalars(query)
        return sorted(one for one in known if one and drop_release_axis(one) in wanted)


def has_measured_before(store: ResultsReader, site: str, day: int) -> bool:
    """Return whether a site has a measurement of an earlier day (UTC, YYYYMMDD)."""
    mine = sa.select(_SUBJECT.id).where(_is_site(site))
    table = rollup_day.c
    query = sa.select(table.day).where(table.subject_id.in_(mine), table.day < day).limit(1)
    with store.connection() as connection:
        return connection.scalar(query) is not None


def list_newest_solo(
    store: ResultsReader, site: str, first: int, last: int, limit: int
) -> list[str]:
    """List the newest good timed measurements of a site outside of paired mode, by identity.

    Args:
        store: the database.
        site: the site.
        first: the first day (YYYYMMDD).
        last: the last one.
        limit: how many at most.
    """
    table = measurement.c
    solo = sa.or_(_SUBJECT.run_mode.is_(None), _SUBJECT.run_mode != PAIRED)
    good = (
        table.subject_id.in_(sa.select(_SUBJECT.id).where(_is_site(site), solo)),
        table.day.between(first, last),
        table.kind == TIMED,
        table.plausible == sa.true(),
        table.failure_class.is_(None),
    )
    # Read from the index alone; only rows from the oldest of these times on are looked up.
    times = sa.select(table.started_us).where(*good).order_by(table.started_us.desc())
    newest = times.limit(limit).subquery("newest")
    query = (
        sa.select(table.measurement_id)
        .where(
            *good, table.started_us >= sa.select(sa.func.min(newest.c.started_us)).scalar_subquery()
        )
        .order_by(table.started_us.desc(), table.measurement_id)
        .limit(limit)
    )
    with store.connection() as connection:
        return list(connection.scalars(query))


def fetch_history(store: ResultsReader, site: str, first: int, last: int) -> ContextHistory:
    """Fetch versions of doors, releases and nodes from day ``first`` to ``last`` (YYYYMMDD).

    The last good timed measurement of each variant and day (UTC) is used.
    """
    found: dict[ContextAspect, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    with store.connection() as connection:
        for number, door, protocol, root, server, family, *software, system in connection.execute(
            _history_query(site, first, last)
        ):
            thing = f"door {door or ''} ({protocol or 'unknown'})"
            build = ", ".join(text for text in _shorten_commit(*software) if text)
            for aspect, text in (
                (ContextAspect(thing, SERVER_VERSION), server),
                (ContextAspect(thing, "address family"), family),
                (ContextAspect(f"ROOT {root or ''}", "build"), build),
                (ContextAspect("worker nodes", "operating system"), system),
            ):
                if text:
                    found[aspect][int(number)].add(text)
    return {
        aspect: {number: frozenset(texts) for number, texts in sorted(days.items())}
        for aspect, days in sorted(found.items())
    }


#: Title of a condition of work -> its column.
CONDITIONS: Mapping[str, Any] = {
    "storage server": _STORAGE.server_version,
    "address family": _STORAGE.address_family,
    "CPU model": _NODE.cpu_model,
    "usable cores": _NODE.cores_allowed,
    "CPU limit (cores)": _NODE.cgroup_cpu_limit,
    "memory limit (bytes)": _NODE.cgroup_memory_limit_bytes,
    "operating system": _NODE.os_name,
    "kernel": _NODE.kernel,
    "container": _NODE.container,
    "state of the client's cache": _STORAGE.client_cache_state,
    "state of the server's cache": _STORAGE.server_cache_state,
}


def fetch_conditions(
    store: ResultsReader, sites: Collection[str], first: int, last: int
) -> dict[str, dict[str, frozenset[str]]]:
    """Fetch the conditions under which sites worked last: site -> title -> values.

    The last good timed measurement is used, of each series on its last day from ``first`` to
    ``last`` (YYYYMMDD). Conditions that nobody reported are left out.
    """
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    with store.connection() as connection:
        for site, *values in connection.execute(_conditions_query(sites, first, last)):
            for title, value in zip(CONDITIONS, values, strict=True):
                if value not in (None, ""):
                    found[site or ""][title].add(
                        f"{value:g}" if isinstance(value, float) else str(value)
                    )
    return {
        site: {title: frozenset(values) for title, values in titles.items()}
        for site, titles in found.items()
    }


def _conditions_query(sites: Collection[str], first: int, last: int) -> sa.Select[Any]:
    theirs = sa.select(_SUBJECT.id).where(sa.or_(*map(_is_site, sites)))
    day = rollup_day.c.day
    last_day = _select_measured(theirs, first, last).add_columns(sa.func.max(day).label("day"))
    latest = last_day.group_by(rollup_day.c.subject_id).subquery("latest")
    return _join_latest(sa.select(_SUBJECT.site, *CONDITIONS.values()), latest)


def _history_query(site: str, first: int, last: int) -> sa.Select[Any]:
    mine = sa.select(_SUBJECT.id).where(_is_site(site))
    by = (rollup_day.c.subject_id, rollup_day.c.day)
    days = _select_measured(mine, first, last).add_columns(rollup_day.c.day)
    latest = days.group_by(*by).subquery("latest")
    columns = (
        latest.c.day,
        _SUBJECT.door,
        _SUBJECT.door_protocol,
        _SUBJECT.axis_root,
        _STORAGE.server_version,
        _STORAGE.address_family,
        _SOFTWARE.root_version,
        _SOFTWARE.root_commit,
        _SOFTWARE.root_provider,
        _NODE.os_name,
    )
    return _join_latest(sa.select(*columns), latest).join(
        dimension_tables["software"], _SOFTWARE.id == measurement.c.software_id
    )


def _select_measured(subjects: sa.Select[Any], first: int, last: int) -> sa.Select[Any]:
    """Select subjects with good timed measurements in some days."""
    table = rollup_day.c
    return sa.select(table.subject_id).where(
        table.subject_id.in_(subjects),
        table.day.between(first, last),
        table.kind == TIMED,
        table.outcome == Outcome.GOOD.value,
    )


def _join_latest(query: sa.Select[Any], latest: sa.Subquery) -> sa.Select[Any]:
    """Read columns of dimensions of the last good timed measurement of subjects and days."""
    last_us = sa.select(sa.func.max(_OTHER.c.started_us)).where(_is_good(_OTHER, latest))
    return (
        query.select_from(latest)
        .join(
            measurement,
            sa.and_(
                _is_good(measurement, latest),
                measurement.c.started_us == last_us.scalar_subquery(),
            ),
        )
        .join(dimension_tables["subject"], _SUBJECT.id == measurement.c.subject_id)
        .join(dimension_tables["storage"], _STORAGE.id == measurement.c.storage_id)
        .join(dimension_tables["node"], _NODE.id == measurement.c.node_id)
    )


def _is_good(table: sa.FromClause, latest: sa.Subquery) -> sa.ColumnElement[bool]:
    """Condition that a measurement is good, timed, and of a subject and day."""
    return sa.and_(
        table.c.subject_id == latest.c.subject_id,
        table.c.day == latest.c.day,
        table.c.kind == TIMED,
        table.c.plausible == sa.true(),
        table.c.failure_class.is_(None),
    )


def _shorten_commit(
    version: str | None, commit: str | None, provider: str | None
) -> Iterable[str | None]:
    return version, commit and commit[:40], provider


def _is_site(site: str) -> sa.ColumnElement[bool]:
    return _SUBJECT.site == site if site else _SUBJECT.site.is_(None)
