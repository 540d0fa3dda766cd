"""Checks of ROOT releases: comparisons of finished campaigns, and the reruns that confirm them.

Times are microseconds since 1970 UTC.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

import sqlalchemy as sa

from treehammer.collectors.job_state import FINAL_JOB_STATES
from treehammer.sql.core.schema import (
    campaign,
    dimension_tables,
    job,
    measurement,
    release_check,
)
from treehammer.sql.write.store import Store

#: Finished campaigns that are examined at once.
MAX_EXAMINED = 20


@dataclass(frozen=True)
class ReleaseCheck:
    """Comparison of release ``b`` with ``a`` in one campaign, and its reruns.

    Attributes:
        id: hash of campaign and releases.
        campaign_id: the campaign that was compared first.
        test_name: its test.
        a: the base; '' where the campaign compares no releases.
        b: the other release.
        state: a value of :class:`treehammer.analysis.alarms.release_state.CheckState`.
        comparison_id: the stored comparison that decided last.
        compared: variants and metrics with a statistical verdict.
        slower: of them the slower ones.
        effect: the largest of their effects, in ln.
        text: the slower variants, one a line.
        reruns: number of reruns that were started.
        rerun_id: campaign of the last rerun; '' before the first.
        checked_us: time of the first comparison.
        changed_us: time of the last change of the state.
    """

    id: str
    campaign_id: str
    test_name: str
    a: str
    b: str
    state: str
    comparison_id: str
    compared: int
    slower: int
    effect: float | None
    text: str
    reruns: int
    rerun_id: str
    checked_us: int
    changed_us: int


_FIELDS = tuple(field.name for field in fields(ReleaseCheck))
_COLUMNS = [release_check.c[name] for name in _FIELDS]
_TEXTS = {name for name in _FIELDS if ReleaseCheck.__annotations__[name] == "str"}


class ReleaseCheckTable:
    """Checks of releases in a database."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list_unchecked_campaigns(self, since_us: int) -> list[str]:
        """List finished campaigns created since a time that were not examined, oldest first.

        A campaign that confirms another one is not examined by itself.
        """
        checks = release_check.c
        open_jobs = sa.select(job.c.id).where(
            job.c.campaign_id == campaign.c.id, job.c.state.not_in(sorted(FINAL_JOB_STATES))
        )
        any_jobs = sa.select(job.c.id).where(job.c.campaign_id == campaign.c.id)
        known = sa.select(checks.id).where(
            sa.or_(checks.campaign_id == campaign.c.id, checks.rerun_id == campaign.c.id)
        )
        query = (
            sa.select(campaign.c.id)
            .where(campaign.c.created_us >= since_us)
            .where(~sa.exists(open_jobs), sa.exists(any_jobs), ~sa.exists(known))
            .order_by(campaign.c.created_us, campaign.c.id)
            .limit(MAX_EXAMINED)
        )
        with self._store.connection() as connection:
            return [str(id_) for (id_,) in connection.execute(query)]

    def is_finished(self, campaign_id: str) -> bool:
        """Whether all jobs of a campaign ended; False for one without jobs."""
        query = (
            sa.select(job.c.state, sa.func.count())
            .where(job.c.campaign_id == campaign_id)
            .group_by(job.c.state)
        )
        with self._store.connection() as connection:
            states = {state for state, _ in connection.execute(query)}
        return bool(states) and states <= FINAL_JOB_STATES

    def list_releases(self, campaign_id: str) -> list[str]:
        """List the ROOT releases that a campaign measured."""
        subject = dimension_tables["subject"].c
        query = (
            sa.select(subject.axis_root)
            .join(measurement, measurement.c.subject_id == subject.id)
            .where(measurement.c.campaign_id == campaign_id, subject.axis_root.is_not(None))
            .distinct()
        )
        with self._store.connection() as connection:
            return sorted(str(value) for (value,) in connection.execute(query))

    def list_measured_releases(self) -> list[str]:
        """List all ROOT releases that were measured."""
        column = dimension_tables["subject"].c.axis_root
        query = sa.select(column).where(column.is_not(None)).distinct()
        with self._store.connection() as connection:
            return sorted(str(value) for (value,) in connection.execute(query))

    def list_checks(
        self, *, states: Collection[str] = (), release: str | None = None
    ) -> list[ReleaseCheck]:
        """List checks, the newest first.

        Args:
            states: only these; empty for all.
            release: only those of this release against an earlier one.
        """
        table = release_check.c
        query = sa.select(*_COLUMNS).order_by(table.checked_us.desc(), table.id)
        if states:
            query = query.where(table.state.in_(sorted(states)))
        if release is not None:
            query = query.where(table.b == release)
        with self._store.connection() as connection:
            return [_parse_check(row) for row in connection.execute(query)]

    def add_checks(self, checks: Sequence[ReleaseCheck]) -> None:
        """Add checks; those that another process added are kept."""
        with self._store.writing_connection() as connection:
            for one in checks:
                known = sa.select(release_check.c.id).where(release_check.c.id == one.id)
                if connection.scalar(known) is None:
                    values = dict(zip(_FIELDS, astuple(one), strict=True))
                    connection.execute(sa.insert(release_check), [values])

    def update_check(self, before: ReleaseCheck, after: ReleaseCheck) -> bool:
        """Replace a check; False if another process changed it first."""
        table = release_check
        values = dict(zip(_FIELDS, astuple(after), strict=True))
        with self._store.writing_connection() as connection:
            done = connection.execute(
                sa.update(table)
                .where(
                    table.c.id == before.id,
                    table.c.state == before.state,
                    table.c.changed_us == before.changed_us,
                )
                .values(values)
            )
            return done.rowcount == 1


def _parse_check(row: sa.Row[Any]) -> ReleaseCheck:
    values: dict[str, Any] = dict(zip(_FIELDS, row, strict=True))
    values |= {name: values[name] or "" for name in _TEXTS}
    return ReleaseCheck(**values)
