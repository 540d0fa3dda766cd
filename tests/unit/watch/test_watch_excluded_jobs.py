"""Queued jobs of sites that states exclude."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from polled_campaign import PolledCampaign

from treehammer.collectors.job_spec import JobState
from treehammer.collectors.record.day_numbers import current_us
from treehammer.sql.core.watch_rows import OverrideRow
from treehammer.sql.write.store import Store
from treehammer.submit.batch.interface import AttemptStatus, BatchEvent
from treehammer.submit.campaigns.submission import resume_campaign
from treehammer.watch.states.site_status import update_states
from treehammer.watch.states.status_rules import load_shipped_rules
from treehammer.watch.store import state_history


class Scene(PolledCampaign):
    """Campaign whose first site people exclude."""

    def override(self, state: str, door: str = "") -> None:
        now_us = current_us()
        subject = (f"SITE_A:{door}", "door") if door else ("SITE_A", "")
        row = OverrideRow("", *subject, state, "ada", "disk burns", now_us, 2 * now_us)
        state_history.add_override(self.store, row)
        update_states(self.store, current_us(), load_shipped_rules())


def test_failing_site_is_found_by_the_rules_and_its_queue_is_removed(
    tmp_path: Path, store: Store
) -> None:
    scene = Scene(tmp_path, store)
    for job in scene.jobs()[:3]:
        scene.end_job(job, JobState.LOST, event=BatchEvent.LOST)
    (line,) = scene.poll()
    assert line.startswith(
        "Site SITE_A: 3 queued jobs removed, site excluded: jobs probe only since"
    )
    assert "critical by exclusion: the last 3 runs of 1 test failed" in line
    assert f"treehammer resume {scene.campaign.id} --sites SITE_A" in line
    assert scene.states() == ["cancelled"] * 3 + ["lost"] * 3
    assert scene.states("SITE_B") == ["queued"] * 6
    assert scene.poll() == [line], "repeated on every call"
    total = scene.tracker.compute_progress(scene.campaign).total
    assert total.missing["excluded"] == sum(job.planned_measurements for job in scene.jobs()[:3])
    assert total.lost == total.missing["lost"], "an excluded site has lost nothing"


def test_running_jobs_go_on_and_the_others_are_removed(tmp_path: Path, store: Store) -> None:
    scene = Scene(tmp_path, store)
    started_us = current_us()
    running = AttemptStatus(1, JobState.RUNNING, started_us, 0, None, "")
    scene.batch.set_status(scene.jobs()[0].batch_id, JobState.RUNNING, running)
    scene.override("critical")
    (line,) = scene.poll()
    assert "excluded since" in line
    assert "until" in line
    assert "by ada: disk burns" in line
    assert scene.states() == ["cancelled"] * 5 + ["running"]


@pytest.mark.parametrize("action", ["remove", "hold"])
def test_queued_jobs_of_a_bad_door_do_not_start(tmp_path: Path, store: Store, action: str) -> None:
    scene = Scene(tmp_path, store, action)
    (door,) = {job.door for job in scene.jobs()}
    first, *others = scene.jobs()
    store.set_jobs([replace(first, door="other")])
    scene.override("critical", door)
    (line,) = scene.poll()
    assert line.startswith(f"Site SITE_A: {len(others)} queued jobs ")
    assert f"site excluded: door {door} excluded since" in line
    scene.poll()
    state = "held" if action == "hold" else "cancelled"
    assert scene.states() == sorted([state] * 5 + ["queued"])


def test_queue_is_held_back_and_released(tmp_path: Path, store: Store) -> None:
    scene = Scene(tmp_path, store, "hold")
    scene.override("critical")
    (line,) = scene.poll()
    assert line.startswith("Site SITE_A: 6 queued jobs held back, site excluded: jobs and storage")
    scene.poll()
    assert scene.states() == ["held"] * 6
    scene.override("ok")
    assert scene.poll() == ["Held jobs of sites that are usable again were released"]
    scene.poll()
    assert scene.states() == ["queued"] * 6


@pytest.mark.parametrize(
    ("action", "plan"), [("keep", ""), ("remove", '{"included": {"SITE_A": ""}}')]
)
def test_jobs_are_left_alone_where_somebody_wants_it(
    tmp_path: Path, store: Store, action: str, plan: str
) -> None:
    scene = Scene(tmp_path, store, action, plan)
    scene.override("critical")
    assert scene.poll() == []
    assert scene.states() == ["queued"] * 6


def test_local_jobs_evaluate_nothing(tmp_path: Path, store: Store) -> None:
    scene = Scene(tmp_path, store)
    store.set_jobs(replace(job, batch_system="local") for job in store.jobs(scene.campaign.id))
    assert scene.tracker.act_on_excluded_sites(scene.campaign) == []
    assert state_history.find_latest_rule_set(store) is None


def test_resumption_follows_the_states(tmp_path: Path, store: Store) -> None:
    scene = Scene(tmp_path, store)
    scene.override("critical")
    scene.poll()
    left = resume_campaign(scene.tracker, scene.campaign, scene.settings)
    assert (left.requeued, [*left.excluded]) == (0, ["SITE_A"])
    assert "by ada: disk burns" in left.excluded["SITE_A"]
    scene.override("ok")
    done = resume_campaign(scene.tracker, scene.campaign, scene.settings)
    assert (done.requeued, done.excluded) == (6, {})
    assert scene.states() == ["queued"] * 6
    again = resume_campaign(scene.tracker, scene.campaign, scene.settings)
    assert again.requeued == 0, "nothing is queued twice"
    scene.override("critical")
    scene.poll()
    included = resume_campaign(
        scene.tracker, scene.campaign, scene.settings, include_excluded=["SITE_A"]
    )
    assert included.requeued == 6
    # The next command, and one that follows the campaign since, leave these jobs in the queue.
    assert scene.poll() == []
    assert scene.states() == ["queued"] * 6
