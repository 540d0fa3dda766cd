"""History of one site: its workloads, and the software of its doors and nodes by day.

Roll-ups keep the last measurement of each variant and day, so that single ones are read for the
diagnosis of a site's newest work alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from treehammer.collectors.job_spec import CLING, PAIRED, TIMED
from treehammer.collectors.record.metric_catalogue import Value
from treehammer.collectors.record.outcome import Outcome
from treehammer.hctests.definition.model import drop_release_axis
from treehammer.sql.core import measurement_sql
from treehammer.sql.core.column_types import text_equals
from treehammer.sql.core.measurement_sql import GOOD_ROLLUPS, has_outcome, select_subjects
from treehammer.sql.core.schema import (
    dimension_tables,
    measurement,
    rollup_day,
)
from treehammer.sql.read.measurement_queries import name_values
from treehammer.sql.read.query_model import FigureGroup
from treehammer.sql.read.reader import ResultsReader

_SUBJECT = dimension_tables["subject"].c
_STORAGE = dimension_tables["storage"].c
_SOFTWARE = dimension_tables["software"].c
_NODE = dimension_tables["node"].c


#: Compiler of loops at a site, or why its nodes have none.  A test may require ROOT's interpreter.
_LOOP_COMPILER = sa.case(
    (_SOFTWARE.loop_fallback.is_not(None), sa.literal(f"{CLING}: ") + _SOFTWARE.loop_fallback),
    (_SOFTWARE.loop_compiler != CLING, _SOFTWARE.loop_compiler),
)


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
    test, variant, *further_texts = (str(value or "") for value in values)
    return test, drop_release_axis(variant), *further_texts


def group_workload_key(group: FigureGroup) -> tuple[str, ...]:
    """Return the key of the work of a group, whose columns include :data:`WORKLOAD_COLUMNS`."""
    return workload_key(group.by[name] for name in WORKLOAD_COLUMNS)


@dataclass(frozen=True, order=True)
class ContextAspect:
    """Something that may change: of a door, a release or the nodes."""

    component: str
    attribute: str


NODES, LOOP_COMPILER = "worker nodes", "loop compiler"
#: Attribute of a door whose changes are upgrades of its server.
SERVER_VERSION = "server version"
#: Aspect -> day (YYYYMMDD) -> values.
ContextHistory = Mapping[ContextAspect, Mapping[int, frozenset[str]]]


def list_workloads(store: ResultsReader, site: str) -> list[Workload]:
    """List the workloads that a site ever measured; none for an unknown site."""
    names = ("test_name", "variant", "axis_root", "dataset", "door", "door_protocol")
    columns = [_SUBJECT[name] for name in names]
    query = (
        sa.select(*columns, _SUBJECT.variant_label)
        .where(text_equals(_SUBJECT.site, site))
        .distinct()
    )
    labels: dict[tuple[str, ...], set[str]] = defaultdict(set)
    with store.connection() as connection:
        for *texts, label in connection.execute(query.order_by(*columns)):
            labels[tuple(text or "" for text in texts)].add(label or "")
    return [
        Workload(*(*texts, common_label(recorded_labels)))
        for texts, recorded_labels in labels.items()
    ]


def common_label(labels: Collection[str]) -> str:
    """Return the only label of a variant, or '' if campaigns used several."""
    return "".join(labels) if len(labels) == 1 else ""


def list_recorded_variants(
    store: ResultsReader, variants: Iterable[str], site: str | None
) -> list[str]:
    """List the recorded variants that equal these except for the release, at one or all sites."""
    requested = set(map(drop_release_axis, variants))
    query = sa.select(_SUBJECT.variant).distinct()
    if site is not None:
        query = query.where(text_equals(_SUBJECT.site, site))
    with store.connection() as connection:
        recorded = connection.scalars(query)
        return sorted(
            variant for variant in recorded if variant and drop_release_axis(variant) in requested
        )


def has_measured_before(store: ResultsReader, site: str, day: int) -> bool:
    """Return whether a site has a measurement of an earlier day (UTC, YYYYMMDD)."""
    table = rollup_day.c
    query = (
        sa.select(table.day)
        .where(table.subject_id.in_(select_subjects("site", [site])), table.day < day)
        .limit(1)
    )
    with store.connection() as connection:
        return connection.scalar(query) is not None


def load_newest(
    store: ResultsReader,
    site: str,
    days: tuple[int, int],
    limit: int,
    columns: Sequence[str],
    *,
    solo: bool = False,
) -> list[dict[str, Value]]:
    """Load the newest good timed measurements of a site.

    Args:
        store: the database.
        site: the site.
        days: the first and the last day (YYYYMMDD).
        limit: how many at most.
        columns: names of the catalogue.
        solo: leave out those of paired mode.
    """
    table, subjects = measurement.c, select_subjects("site", [site])
    if solo:
        mode = _SUBJECT.run_mode
        subjects = subjects.where(sa.or_(mode.is_(None), mode != PAIRED))
    good = (
        table.subject_id.in_(subjects),
        table.day.between(*days),
        table.kind == TIMED,
        has_outcome(Outcome.GOOD),
    )
    # Read from the index alone; only rows from the oldest of these times on are looked up.
    times = sa.select(table.started_us).where(*good).order_by(table.started_us.desc())
    newest = times.limit(limit).subquery("newest")
    since_us = sa.select(sa.func.min(newest.c.started_us)).scalar_subquery()
    query = measurement_sql.select_columns(columns).where(*good, table.started_us >= since_us)
    query = query.order_by(table.started_us.desc(), table.measurement_id).limit(limit)
    with store.connection() as connection:
        return [*name_values(connection.execute(query), columns)]


def load_history(store: ResultsReader, site: str, first: int, last: int) -> ContextHistory:
    """Load versions of doors, releases and nodes from day ``first`` to ``last`` (YYYYMMDD).

    The last good timed measurement of each variant and day (UTC) is used.
    """
    history: dict[ContextAspect, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    query: sa.Select[Any] = sa.select(
        rollup_day.c.day,
        _SUBJECT.door,
        _SUBJECT.door_protocol,
        _SUBJECT.axis_root,
        _STORAGE.server_version,
        _STORAGE.address_family,
        _SOFTWARE.root_version,
        _SOFTWARE.root_commit,
        _SOFTWARE.root_provider,
        _NODE.os_name,
        _LOOP_COMPILER.label("compiler"),
    ).select_from(rollup_day)
    query = _join_dimensions(query.where(*_list_conditions([site], first, last)))
    with store.connection() as connection:
        for row in connection.execute(query):
            for aspect, text in _list_aspects(row):
                if text:
                    history[aspect][int(row.day)].add(text)
    return {
        aspect: {number: frozenset(texts) for number, texts in sorted(days.items())}
        for aspect, days in sorted(history.items())
    }


def _list_aspects(row: Any) -> Iterator[tuple[ContextAspect, str | None]]:
    """Yield the context that a row of the history states, with None or '' where it is unknown."""
    door = f"door {row.door or ''} ({row.door_protocol or 'unknown'})"
    yield ContextAspect(door, SERVER_VERSION), row.server_version
    yield ContextAspect(door, "address family"), row.address_family
    parts = (row.root_version, (row.root_commit or "")[:40], row.root_provider)
    build = ", ".join(filter(None, parts)) if row.axis_root != "none" else ""
    yield ContextAspect(f"ROOT {row.axis_root or ''}", "build"), build
    yield ContextAspect(NODES, "operating system"), row.os_name
    yield ContextAspect(NODES, LOOP_COMPILER), row.compiler


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
    LOOP_COMPILER: _LOOP_COMPILER,
    "state of the client's cache": _STORAGE.client_cache_state,
    "state of the server's cache": _STORAGE.server_cache_state,
}


def load_conditions(
    store: ResultsReader, sites: Collection[str], first: int, last: int
) -> dict[str, dict[str, frozenset[str]]]:
    """Load the conditions under which sites worked last: site -> title -> values.

    The last good timed measurement is used, of each series on its last day from ``first`` to
    ``last`` (YYYYMMDD). Conditions without a report are left out.
    """
    table = rollup_day.c
    latest = (
        sa.select(table.subject_id, sa.func.max(table.day).label("day"))
        .where(*_list_conditions(sites, first, last))
        .group_by(table.subject_id)
        .subquery("latest")
    )
    is_latest = sa.and_(
        table.subject_id == latest.c.subject_id, table.day == latest.c.day, *GOOD_ROLLUPS
    )
    # Many series were measured on the same nodes.
    query: sa.Select[Any] = (
        sa.select(_SUBJECT.site, *CONDITIONS.values()).distinct().select_from(latest)
    )
    query = _join_dimensions(query.join(rollup_day, is_latest))
    conditions: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    with store.connection() as connection:
        for site, *values in connection.execute(query):
            for title, value in zip(CONDITIONS, values, strict=True):
                if value not in (None, ""):
                    conditions[site or ""][title].add(
                        f"{value:g}" if isinstance(value, float) else str(value)
                    )
    return {
        site: {title: frozenset(values) for title, values in titles.items()}
        for site, titles in conditions.items()
    }


def _list_conditions(
    sites: Collection[str], first: int, last: int
) -> tuple[sa.ColumnElement[bool], ...]:
    """Return conditions of roll-ups: good timed measurements of sites in some days."""
    table, subjects = rollup_day.c, select_subjects("site", sites)
    return table.subject_id.in_(subjects), table.day.between(first, last), *GOOD_ROLLUPS


def _join_dimensions(query: sa.Select[Any]) -> sa.Select[Any]:
    """Join roll-ups to the dimensions of their last measurements."""
    return (
        query.join(dimension_tables["subject"], _SUBJECT.id == rollup_day.c.subject_id)
        .join(dimension_tables["storage"], _STORAGE.id == rollup_day.c.storage_id)
        .join(dimension_tables["node"], _NODE.id == rollup_day.c.node_id)
        .join(dimension_tables["software"], _SOFTWARE.id == rollup_day.c.software_id)
    )
