"""Checks of ROOT releases: comparisons of finished campaigns, and the reruns that confirm them.

Times are microseconds since 1970 UTC.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict

import sqlalchemy as sa

from treehammer.collectors.job_state import FINAL_JOB_STATES
from treehammer.sql.core.schema import (
    campaign,
    dimension_tables,
    job,
    measurement,
    release_check,
)
from treehammer.sql.core.watch_rows import ReleaseCheck
from treehammer.sql.engine.row_mapping import insert_missing_rows
from treehammer.sql.read.subject_table import load_subjects
from treehammer.sql.write.store import Store

#: Finished campaigns that are examined at once.
MAX_EXAMINED = 20


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
        existing_checks = sa.select(checks.id).where(
            sa.or_(checks.campaign_id == campaign.c.id, checks.rerun_id == campaign.c.id)
        )
        query = (
            sa.select(campaign.c.id)
            .where(campaign.c.created_us >= since_us)
            .where(~sa.exists(open_jobs), sa.exists(any_jobs), ~sa.exists(existing_checks))
            .order_by(campaign.c.created_us, campaign.c.id)
            .limit(MAX_EXAMINED)
        )
        with self._store.connection() as connection:
            return [str(id_) for (id_,) in connection.execute(query)]

    def is_finished(self, campaign_id: str) -> bool:
        """Return whether all jobs of a campaign ended; False for one without jobs."""
        query = sa.select(job.c.state).where(job.c.campaign_id == campaign_id).distinct()
        with self._store.connection() as connection:
            states = {*connection.scalars(query)}
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
        with self._store.connection() as connection:
            return load_subjects(connection).list_values("axis_root")

    def list_checks(
        self, *, states: Collection[str] = (), release: str | None = None
    ) -> list[ReleaseCheck]:
        """List checks, the newest first.

        Args:
            states: only these; empty for all.
            release: only those of this release against an earlier one.
        """
        table = release_check.c
        query = sa.select(release_check).order_by(table.checked_us.desc(), table.id)
        if states:
            query = query.where(table.state.in_(sorted(states)))
        if release is not None:
            query = query.where(table.b == release)
        return self._store.fetch_rows(ReleaseCheck, query)

    def add_checks(self, checks: Sequence[ReleaseCheck]) -> None:
        """Add checks; those that another process added are kept."""
        with self._store.writing_connection() as connection:
            insert_missing_rows(connection, release_check, checks)

    def update_check(self, before: ReleaseCheck, after: ReleaseCheck) -> bool:
        """Replace a check; False if another process changed it first."""
        table = release_check
        with self._store.writing_connection() as connection:
            is_unchanged = (
                table.c[name] == getattr(before, name) for name in ("id", "state", "changed_us")
            )
            result = connection.execute(sa.update(table).where(*is_unchanged).values(asdict(after)))
            return result.rowcount == 1
