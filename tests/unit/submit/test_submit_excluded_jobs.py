"""Circuit breaker: stops failing sites until they are resumed."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from measurement_factory import make_measurement
from plan_factory import SHELL_TEST, make_grid_plan, make_grid_site, make_settings
from tracking_harness import FakeBatch

from treehammer.collectors.job_state import JobState
from treehammer.sql.core.rows import CampaignRow, JobRow
from treehammer.sql.write.store import Store
from treehammer.submit.batch.interface import AttemptStatus
from treehammer.submit.lifecycle import campaign_resume
from treehammer.submit.lifecycle.campaign_resume import resume_campaign
from treehammer.submit.planning.pacing import BreakerThreshold
from treehammer.submit.planning.submission_options import SubmissionOptions
from treehammer.submit.tracking import circuit_breaker
from treehammer.submit.tracking.failure_summary import summarize_failures
from treehammer.submit.tracking.tracker import CampaignTracker

TEST = SHELL_TEST.replace("[matrix]", 'repeats = 3\n[matrix]\nroot = ["none"]')


class Scene:
    """Campaign with six jobs at each of two sites."""

    def __init__(self, folder: Path, store: Store, threshold: BreakerThreshold | None) -> None:
        made = make_grid_plan(
            folder,
            TEST,
            make_grid_site(),
            make_grid_site(name="SITE_B"),
            options=SubmissionOptions(breaker=threshold),
        )
        self.campaign: CampaignRow = made.make_campaign_row()
        self.store = store
        store.add_campaign(self.campaign, made.make_job_rows())
        jobs = {job.id: f"1.{job.id}" for job in store.jobs(self.campaign.id)}
        self.batch = FakeBatch(folder, jobs, "htcondor@pool")
        self.tracker = CampaignTracker(store, lambda _name: self.batch)
        self.tracker.refresh_jobs(self.campaign)

    def jobs(self, site: str = "SITE_A") -> list[JobRow]:
        return [job for job in self.store.jobs(self.campaign.id) if job.site == site]

    def states(self, site: str = "SITE_A") -> list[str]:
        return [job.state for job in self.jobs(site)]

    def end_job(
        self, job: JobRow, state: JobState, *, number: int = 1, kind: str = "", us: int = 1_000_000
    ) -> None:
        attempt = AttemptStatus(number, state, us, us + 1, 1, "it ended", kind)
        self.batch.set_status(job.batch_id, state, attempt)

    def apply_breaker(self) -> list[str]:
        self.tracker.refresh_jobs(self.campaign)
        return circuit_breaker.stop_failing_sites(self.tracker, self.campaign)


def test_only_failing_site_is_stopped(tmp_path: Path, store: Store) -> None:
    scene = Scene(tmp_path / "test", store, BreakerThreshold(0.5, 3))
    for job in scene.jobs()[:2]:
        scene.end_job(job, JobState.LOST, kind="held")
    assert scene.apply_breaker() == []
    scene.end_job(scene.jobs()[2], JobState.LOST, kind="lost")
    (line,) = scene.apply_breaker()
    assert "SITE_A was stopped by the breaker: 3 of 3 jobs failed (2 held, 1 lost)" in line
    assert f"treehammer resume {scene.campaign.id} --sites SITE_A" in line
    assert sorted(scene.states()) == ["cancelled"] * 3 + ["lost"] * 3
    assert scene.states("SITE_B") == ["queued"] * 6
    cancelled = [job.id for job in scene.jobs() if job.state == "cancelled"]
    reasons = {attempt.message for attempt in store.attempts(cancelled)}
    assert reasons == {"stopped by the breaker: 3 of 3 jobs failed (2 held, 1 lost), breaker 50%/3"}
    assert scene.apply_breaker() == [line], "repeated on every call"


def test_small_campaign_is_judged_by_default(tmp_path: Path, store: Store) -> None:
    scene = Scene(tmp_path / "test", store, BreakerThreshold())
    for job in scene.jobs()[:2]:
        scene.end_job(job, JobState.LOST, kind="lost")
    assert scene.apply_breaker() == []
    scene.end_job(scene.jobs()[2], JobState.LOST, kind="lost")
    (line,) = scene.apply_breaker()
    assert "3 of 3 jobs failed (3 lost), breaker 50%/10 (the site has 6 jobs)" in line


def test_disabled_breaker_stops_nothing(tmp_path: Path, store: Store) -> None:
    scene = Scene(tmp_path / "test", store, None)
    for job in scene.jobs()[:5]:
        scene.end_job(job, JobState.LOST, kind="lost")
    assert scene.apply_breaker() == []
    assert scene.states()[5] == "queued"


def test_resumed_site_starts_with_no_failures(tmp_path: Path, store: Store) -> None:
    settings = make_settings(tmp_path)
    scene = Scene(tmp_path / "test", store, BreakerThreshold(0.5, 3))
    first, *others = scene.jobs()
    scene.end_job(first, JobState.LOST, number=campaign_resume.MAX_ATTEMPTS_IN_ALL, kind="lost")
    for job in others[:2]:
        scene.end_job(job, JobState.LOST, kind="lost")
    assert scene.apply_breaker()
    done = resume_campaign(scene.tracker, scene.campaign, settings, sites=["SITE_A"])
    assert done == campaign_resume.ResumeResult(released=0, requeued=5, exhausted=1, unqueued=0)
    assert set(scene.batch.requeued.values()) == {1}
    assert scene.apply_breaker() == [], "earlier failures do not count"
    assert scene.states() == ["lost", *["queued"] * 5]
    again = resume_campaign(scene.tracker, scene.campaign, settings, sites=["SITE_A"])
    assert again.requeued == 0, "nothing is queued twice"
    for job in scene.jobs()[1:3]:
        scene.end_job(job, JobState.LOST, number=2, kind="lost", us=time.time_ns())
    assert scene.apply_breaker() == [], "two of two failed since the stop"


def test_job_is_not_requeued_above_attempt_limit(tmp_path: Path, store: Store) -> None:
    scene = Scene(tmp_path / "test", store, None)
    first, second, *_ = scene.jobs()
    scene.end_job(first, JobState.LOST, number=campaign_resume.MAX_ATTEMPTS_IN_ALL, kind="evicted")
    scene.end_job(second, JobState.LOST, number=2, kind="evicted")
    scene.tracker.refresh_jobs(scene.campaign)
    done = resume_campaign(scene.tracker, scene.campaign, make_settings(tmp_path))
    assert (done.requeued, done.exhausted) == (1, 1)
    assert set(scene.batch.requeued.values()) == {2}


def test_unsupported_measurements_do_not_stop_site(tmp_path: Path, store: Store) -> None:
    scene = Scene(tmp_path / "test", store, BreakerThreshold(0.5, 3))
    for job in scene.jobs()[:4]:
        scene.end_job(job, JobState.DONE)
        fails: dict[str, Any] = {"failure_class": "software-setup", "failure_kind": "not-supported"}
        here: dict[str, Any] = {"campaign_id": scene.campaign.id, "site": job.site}
        store.add([make_measurement(job.id, **here, **fails)])
    scene.tracker.refresh_jobs(scene.campaign)
    for job in scene.jobs()[:4]:
        # The empty sandboxes of this test would count as failures.
        (attempt,) = store.attempts([job.id])
        store.set_attempts([replace(attempt, failure_class="")])
    assert circuit_breaker.stop_failing_sites(scene.tracker, scene.campaign) == []
    progress = scene.tracker.compute_progress(scene.campaign)
    assert (progress.total.failed, progress.total.measured) == (0, 4)
    (trouble,) = summarize_failures(store, scene.campaign)
    assert (trouble.failure, trouble.count) == ("not supported", 4)
