"""Counts of a test's good and failed measurements by commit and site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from treehammer.sql.core.schema import campaign, measurement
from treehammer.sql.read.failure_counts import SUBMISSION_DAYS, Period, Tally
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.read.subject_table import load_subjects

#: Campaigns of other commits, and of the same ones, that are read besides, the newest first.
MAX_OTHER_CAMPAIGNS = 3


@dataclass
class CommitCounts:
    """Measurements of a test at one commit: good and bad ones by site.

    Attributes:
        commit: the commit.
        submitted_us: time of its first campaign in the period.
        good: good measurements by site.
        bad: failed and implausible ones by site.
    """

    commit: str
    submitted_us: int
    good: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)

    @property
    def tally(self) -> Tally:
        """Measurements at all sites."""
        return Tally(self.bad.total(), self.bad.total() + self.good.total())


def fetch_commit_counts(
    store: ResultsReader, test: str, campaign_ids: Iterable[str], period: Period
) -> list[CommitCounts]:
    """Count a test's measurements at the commits of some campaigns, and at the last ones before.

    Args:
        store: the database.
        test: name of the test.
        campaign_ids: campaigns of the failures.
        period: campaigns of other commits are searched from some days before it until its end.

    Returns:
        by commit, the newest first; none if the test had one commit only.
    """
    searched = period.extend(SUBMISSION_DAYS)
    query = (
        sa.select(campaign.c.id, campaign.c.commit_id, campaign.c.created_us)
        .where(
            campaign.c.created_us.between(searched.from_us, searched.to_us),
            campaign.c.test_name == test,
        )
        .order_by(campaign.c.created_us.desc(), campaign.c.id)
    )
    failing = set(campaign_ids)
    with store.connection() as connection:
        rows = [tuple(row) for row in connection.execute(query)]
        commits = {commit for id_, commit, _ in rows if id_ in failing}
        if not commits or commits >= {commit for _, commit, _ in rows}:
            return []
        others = [id_ for id_, commit, _ in rows if commit not in commits][:MAX_OTHER_CAMPAIGNS]
        same = [id_ for id_, commit, _ in rows if commit in commits and id_ not in failing]
        chosen = {*failing, *others, *same[:MAX_OTHER_CAMPAIGNS]}
        counts: dict[str, CommitCounts] = {}
        commit_of = {}
        for id_, commit, created_us in rows:
            counted = counts.setdefault(commit, CommitCounts(commit or "", created_us))
            counted.submitted_us = min(counted.submitted_us, created_us)
            commit_of[id_] = commit
        _add_campaigns(connection, chosen & commit_of.keys(), commit_of, counts)
    return [one for one in counts.values() if one.good or one.bad]


def _add_campaigns(
    connection: Connection,
    ids: Collection[str],
    commit_of: Mapping[str, str],
    counts: Mapping[str, CommitCounts],
) -> None:
    """Add the measurements of campaigns to the counts of their commits."""
    table = measurement.c
    groups = (table.campaign_id, table.subject_id, table.plausible, table.failure_class)
    query = sa.select(*groups, sa.func.count()).where(table.campaign_id.in_(ids)).group_by(*groups)
    site_of = load_subjects(connection).index_column("site")
    for id_, subject, plausible, failure_class, count in connection.execute(query):
        counted = counts[commit_of[id_]]
        side = counted.good if plausible and not failure_class else counted.bad
        side[site_of[subject] or ""] += count
