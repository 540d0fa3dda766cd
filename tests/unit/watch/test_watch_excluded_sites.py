"""Plans and queued jobs at sites that states exclude."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from polled_campaign import PolledCampaign
from submission_desk import SubmissionDesk, list_doors, list_sites

from treehammer.collectors.job_spec import JobState
from treehammer.collectors.record.day_numbers import current_us
from treehammer.errors import ConfigError, NothingToDoError
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


@pytest.fixture
def desk(tmp_path: Path) -> SubmissionDesk:
    return SubmissionDesk(tmp_path)


def test_site_in_downtime_is_left_out_and_the_plan_says_so(desk: SubmissionDesk) -> None:
    desk.announce_downtime("SITE_B")
    plan = desk.plan()
    assert list_sites(plan) == ["SITE_A"]
    (note,) = plan.notes
    assert note.startswith("Site SITE_B is left out: jobs and storage excluded since ")
    assert note.endswith("downtimes.json: power cut.")
    assert [*plan.make_campaign_row().plan.excluded] == ["SITE_B"]
    done = desk.run("submit", str(desk.folder / "test"), "--sites", "all", "--dry-run")
    assert (done.exit_code, "SITE_B is left out" in done.output) == (0, True), done.output


def test_nothing_is_planned_where_all_sites_are_excluded(desk: SubmissionDesk) -> None:
    desk.announce_downtime("SITE_B")
    desk.override("SITE_A")
    with pytest.raises(NothingToDoError, match="no site of this request may be used") as caught:
        desk.plan()
    assert "critical by ada: disk burns" in caught.value.message
    assert "--include-excluded all" in caught.value.hint


@pytest.mark.parametrize("include", ["SITE_A", "all"])
@pytest.mark.parametrize(
    ("options", "subject", "note"),
    [
        ((), "SITE_A", "Site SITE_A is used nevertheless: jobs and storage excluded since"),
        (
            ("--door", "root"),
            "SITE_A:root",
            "Door root of site SITE_A is used nevertheless: excluded since",
        ),
    ],
    ids=["site", "door"],
)
def test_excluded_subject_is_included_on_request_and_marked(
    desk: SubmissionDesk, options: tuple[str, ...], subject: str, note: str, include: str
) -> None:
    desk.override("SITE_A", "critical", *options)
    plan = desk.plan(include)
    assert list_doors(plan) == ["SITE_A:root", "SITE_B:root"]
    assert plan.notes[0].startswith(note)
    assert [*plan.make_campaign_row().plan.included] == [subject]


def test_jobs_and_storage_are_excluded_apart(desk: SubmissionDesk) -> None:
    desk.override("SITE_A", "critical", "--storage")
    assert list_sites(desk.plan(sites=("SITE_B",), from_sites=("SITE_A",))) == ["SITE_A"]
    with pytest.raises(NothingToDoError):
        desk.plan(sites=("SITE_A",), from_sites=("SITE_B",))
    assert list_sites(desk.plan()) == ["SITE_B"]
    desk.override("SITE_B", "critical", "--jobs")
    assert list_sites(desk.plan(sites=("SITE_B",), from_sites=("SITE_A",))) == ["SITE_A"]
    with pytest.raises(NothingToDoError):
        desk.plan(sites=("SITE_B",), from_sites=("SITE_B",))


def test_first_usable_door_is_read(desk: SubmissionDesk) -> None:
    desk.override("SITE_A", "critical", "--door", "root")
    for plan in (desk.plan(), desk.plan(from_sites=("SITE_B",))):
        assert list_doors(plan) == ["SITE_A:https", "SITE_B:root"]
        assert plan.notes[0].startswith("Door root of site SITE_A is left out: excluded since ")
        assert [*plan.make_campaign_row().plan.excluded] == ["SITE_A:root"]


def test_site_without_usable_door_is_left_out(desk: SubmissionDesk) -> None:
    desk.override("SITE_A", "critical", "--door", "https")
    with pytest.raises(NothingToDoError, match="no usable door: door https excluded since"):
        desk.plan(sites=("SITE_A",), doors=("https",))
    desk.override("SITE_A", "critical", "--door", "root")
    left = desk.plan()
    assert list_sites(left) == ["SITE_B"]
    assert [*left.make_campaign_row().plan.excluded] == ["SITE_A"]


def test_override_of_a_door_is_shown_and_ends(desk: SubmissionDesk) -> None:
    desk.override("SITE_A", "critical", "--door", "https")
    rows = json.loads(desk.run("sites", "status", "--site", "SITE_A", "--json").stdout)
    assert [(row["site"], row["of"], row["use"], row["who"]) for row in rows] == [
        ("SITE_A:https", "door", "excluded", "ada")
    ]
    assert rows[0]["until"] > rows[0]["since"]
    assert "excluded" in desk.run("sites", "status").output
    ended = desk.run("sites", "end-override", "SITE_A", "--door", "https")
    assert ended.output.strip() == "SITE_A:https follows the rules again"
    assert desk.plan(sites=("SITE_A",), doors=("https",)).notes == ()


@pytest.mark.parametrize("command", ["override", "end-override"])
def test_unknown_door_cannot_be_overridden(desk: SubmissionDesk, command: str) -> None:
    words = ("critical", "--why", "x", "--until", "1h") if command == "override" else ()
    error = desk.run("sites", command, "SITE_A", *words, "--door", "htps").exception
    assert isinstance(error, ConfigError)
    assert error.message == "site SITE_A has no door 'htps'"
    assert error.hint == "Did you mean 'https'? Known: root, https."
    both = desk.run("sites", command, "SITE_A", *words, "--door", "https", "--jobs").exception
    assert isinstance(both, ConfigError)
