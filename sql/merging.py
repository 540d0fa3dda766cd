"""Campaigns, jobs and attempts of another installation, merged with those that are here.

Only jobs that were over are taken in: the installation that submitted a job follows it, and here its
batch system would be asked for it in vain.  Of jobs that are here already, those that are not over
are followed here and left alone; of the others, who knows a later attempt is right.
"""

from __future__ import annotations

from collections.abc import Iterable

from treehammer.sql.companions import rows_of
from treehammer.sql.incoming import Incoming
from treehammer.sql.rows import OVER, AttemptRow, CampaignRow, JobRow, ReplicaRow
from treehammer.sql.store import Store


def merge(store: Store, incoming: Incoming, *, dry_run: bool) -> int:
    """Take in what travels with measurements; what is known stays.

    Returns:
        how many campaigns were not there.
    """
    here = {campaign.id for campaign in store.campaigns()}
    new: dict[str, CampaignRow] = {}
    for batch in incoming.companion("campaign"):
        new |= {row.id: row for row in rows_of(CampaignRow, batch) if row.id not in here}
    if dry_run:
        return len(new)
    for campaign in new.values():
        store.add_campaign(campaign, [])
    merger = _Jobs(store)
    for batch in incoming.companion("job"):
        merger.add_jobs(rows_of(JobRow, batch))
    for batch in incoming.companion("attempt"):
        merger.add_attempts(rows_of(AttemptRow, batch))
    for batch in incoming.companion("replica"):
        store.add_replicas(rows_of(ReplicaRow, batch))
    return len(new)


class _Jobs:
    """Takes in jobs, then attempts."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._campaigns = {campaign.id: campaign for campaign in store.campaigns()}
        #: Jobs that are over, here and there.
        self._over: set[str] = set()
        #: Those of them that are not the same in both.
        self._otherwise: dict[str, JobRow] = {}

    def add_jobs(self, jobs: Iterable[JobRow]) -> None:
        by_campaign: dict[str, list[JobRow]] = {}
        for job in jobs:
            if job.state in OVER and job.campaign_id in self._campaigns:
                by_campaign.setdefault(job.campaign_id, []).append(job)
        for id_, some in by_campaign.items():
            here = {job.id: job for job in self._store.jobs(id_)}
            missing = [job for job in some if job.id not in here]
            self._store.add_campaign(self._campaigns[id_], missing)
            both = [job for job in some if job.id in here and here[job.id].state in OVER]
            self._over |= {job.id for job in (*missing, *both)}
            self._otherwise |= {job.id: job for job in both if job != here[job.id]}

    def add_attempts(self, attempts: Iterable[AttemptRow]) -> None:
        some = [attempt for attempt in attempts if attempt.job_id in self._over]
        here: dict[str, set[int]] = {}
        for attempt in self._store.attempts(attempt.job_id for attempt in some):
            here.setdefault(attempt.job_id, set()).add(attempt.number)
        missing = [a for a in some if a.number not in here.get(a.job_id, ())]
        later = {a.job_id for a in missing if a.number > max(here.get(a.job_id, (0,)))}
        self._store.set_attempts(missing)
        self._store.set_jobs(self._otherwise[id_] for id_ in later & self._otherwise.keys())
