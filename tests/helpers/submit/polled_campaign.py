"""A campaign at two sites of a pool that a test plays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from plan_factory import SHELL_TEST, FakeBatch, make_grid_plan, make_grid_site, make_settings

from treehammer.collectors.job_spec import JobState
from treehammer.collectors.record.day_numbers import current_us
from treehammer.sql.core.campaign_plan import CampaignPlan
from treehammer.sql.core.rows import CampaignRow, JobRow
from treehammer.sql.write.store import Store
from treehammer.submit.batch.interface import AttemptStatus, BatchEvent
from treehammer.submit.campaigns.campaign_polling import ExclusionGuard
from treehammer.submit.campaigns.tracker import CampaignTracker

TEST = SHELL_TEST.replace("[matrix]", 'repeats = 3\n[matrix]\nroot = ["none"]')


class PolledCampaign:
    """Campaign with six jobs at each of two sites."""

    def __init__(self, folder: Path, store: Store, action: str = "remove", plan: str = "") -> None:
        self.settings = replace(make_settings(folder), excluded_jobs=action)
        grid_plan = make_grid_plan(
            folder / "test", TEST, make_grid_site(), make_grid_site(name="SITE_B")
        )
        row = grid_plan.make_campaign_row()
        self.campaign: CampaignRow = (
            replace(row, plan=CampaignPlan.from_json(plan)) if plan else row
        )
        self.store = store
        store.add_campaign(self.campaign, grid_plan.make_job_rows())
        jobs = {job.id: f"1.{job.id}" for job in store.jobs(self.campaign.id)}
        self.batch = FakeBatch(folder, jobs, "htcondor@pool")
        guard = ExclusionGuard(self.settings)
        self.tracker = CampaignTracker(store, lambda _name: self.batch, guard=guard.apply)
        self.tracker.refresh_jobs(self.campaign)

    def jobs(self, site: str = "SITE_A") -> list[JobRow]:
        return [job for job in self.store.jobs(self.campaign.id) if job.site == site]

    def states(self, site: str = "SITE_A") -> list[str]:
        return sorted(job.state for job in self.jobs(site))

    def end_job(
        self, job: JobRow, state: JobState, *, number: int = 1, event: BatchEvent | None = None
    ) -> None:
        us = current_us() - 600 * 10**6
        attempt = AttemptStatus(number, state, us, us + 1, 1, "it ended", event)
        self.batch.set_status(job.batch_id, state, attempt)

    def poll(self) -> list[str]:
        self.tracker.refresh_jobs(self.campaign)
        return self.tracker.act_on_excluded_sites(self.campaign)
