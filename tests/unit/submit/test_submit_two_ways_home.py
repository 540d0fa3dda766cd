"""Measurements that came by the results service count like those that came with the job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from submit_makers import CREATED_US
from tracking_scene import NOW_US, Scene, attempt

from treehammer.collectors.record import Measurement
from treehammer.config import load
from treehammer.sql.rows import ReplicaRow
from treehammer.sql.selection import Selection
from treehammer.sql.store import Store
from treehammer.submit import resume
from treehammer.submit.attempts import ALL_THERE
from treehammer.submit.batch.base import AttemptStatus, JobState

SIGKILL = "the worker was ended by SIGKILL"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        yield Scene(tmp_path, store)


def posted(scene: Scene, *positions: int, job: int = 0, number: int = 1, **values: object) -> None:
    """Have measurements in the store whose sandbox is nowhere."""
    for position in positions:
        path = scene.record(job, position, attempt=number, **values)
        scene.store.add([Measurement.from_json(path.read_text())])
        path.unlink()


def failures(scene: Scene, job: int = 0) -> list[str]:
    return [row.failure_class for row in scene.attempts(job)]


def state(scene: Scene, job: int = 0) -> str:
    return next(j.state for j in scene.store.jobs(scene.campaign.id) if j.id == scene.ids[job])


def test_what_runs_elsewhere_is_seen_while_it_runs(scene: Scene) -> None:
    scene.batch.says("b.1", JobState.RUNNING, attempt(JobState.RUNNING, code=None))
    scene.tracker.refresh(scene.campaign)
    posted(scene, 1)
    assert scene.tracker.look(scene.campaign).done == 1


@pytest.mark.parametrize("code", [0, 75, None])
def test_a_lost_sandbox_loses_nothing_that_was_reported(scene: Scene, code: int | None) -> None:
    posted(scene, 1, 2)
    scene.batch.says("b.1", JobState.DONE, attempt(JobState.DONE, code=code))
    progress = scene.tracker.look(scene.campaign)
    assert failures(scene) == [""]
    assert not progress.failures
    assert scene.attempts(0)[0].message.startswith(ALL_THERE)
    assert "0 of 2 measurements came back" in scene.attempts(0)[0].message


def test_a_job_that_its_batch_system_lost_is_done_when_all_of_it_is_there(scene: Scene) -> None:
    posted(scene, 1, 2)
    posted(scene, 1, job=1)
    for batch_id in ("b.1", "b.2"):
        scene.batch.says(batch_id, JobState.LOST, attempt(JobState.LOST, 1, None, SIGKILL))
    progress = scene.tracker.look(scene.campaign)
    assert (state(scene, 0), state(scene, 1)) == ("done", "lost")
    assert progress.failures == {"local": {"lost": 1}}


def test_a_queue_that_was_removed_loses_nothing_that_was_reported(scene: Scene) -> None:
    scene.batch.says("b.1", JobState.RUNNING, attempt(JobState.RUNNING, code=None))
    scene.tracker.refresh(scene.campaign)
    posted(scene, 1, 2)
    scene.batch.statuses.clear()
    scene.tracker.refresh(scene.campaign)
    assert (state(scene), failures(scene)) == ("done", [""])


def test_a_start_that_never_began_is_not_needed_any_more(scene: Scene) -> None:
    posted(scene, 1, 2)
    evicted = attempt(JobState.LOST, 1, None, "held: its output could not be transferred")
    never = AttemptStatus(2, JobState.LOST, 0, NOW_US, None, "no machine took it", "submission")
    scene.batch.says("b.1", JobState.LOST, evicted, never)
    scene.tracker.refresh(scene.campaign)
    assert (state(scene), failures(scene)) == ("done", ["", ""])


def test_a_second_start_that_began_and_was_lost_is_lost(scene: Scene) -> None:
    posted(scene, 1, 2)
    lost = [attempt(JobState.LOST, number, None, SIGKILL) for number in (1, 2)]
    scene.batch.says("b.1", JobState.LOST, *lost)
    scene.tracker.refresh(scene.campaign)
    assert (state(scene), failures(scene)) == ("lost", ["", "lost"])


def test_what_is_sent_later_by_hand_mends_the_attempt(scene: Scene, tmp_path: Path) -> None:
    scene.batch.says("b.1", JobState.LOST, attempt(JobState.LOST, 1, None, SIGKILL))
    scene.batch.says("b.2", JobState.CANCELLED)
    scene.tracker.look(scene.campaign)
    assert (state(scene), failures(scene)) == ("lost", ["lost"])
    posted(scene, 1, 2)
    tracker = scene.tracker
    assert tracker.collect(scene.campaign).new == 0
    assert (state(scene), failures(scene)) == ("done", [""])
    message = scene.attempts(0)[0].message
    tracker.collect(scene.campaign)
    assert scene.attempts(0)[0].message == message, "once is enough"
    settings = load({"data_dir": tmp_path}, environ={}, folder=tmp_path)
    done = resume.resume(scene.tracker, scene.campaign, settings)
    assert done.unqueued == 1, "only the cancelled one is wanted again"


def test_both_ways_home_give_each_measurement_once(scene: Scene) -> None:
    scene.batch.says("b.1", JobState.DONE, attempt(JobState.DONE))
    for position in (1, 2):
        path = scene.record(0, position)
        scene.store.add([Measurement.from_json(path.read_text())])
    scene.tracker.refresh(scene.campaign)
    collected = scene.tracker.collect(scene.campaign)
    assert (collected.new, collected.known, collected.conflicting) == (0, 2, ())
    assert sum(row.measurements for row in scene.store.counts(scene.campaign.id)) == 2


def test_a_file_that_is_no_record_is_told_of_all_the_same(scene: Scene) -> None:
    scene.batch.says("b.1", JobState.DONE, attempt(JobState.DONE))
    posted(scene, 1, 2)
    bad = scene.record(0, 1).with_name("bad.json")
    bad.write_text("{")
    scene.tracker.refresh(scene.campaign)
    assert scene.tracker.collect(scene.campaign).set_aside
    for _ in range(2):
        scene.tracker.collect(scene.campaign)
        assert failures(scene) == ["upload"]


def test_what_was_reported_of_a_bad_replica_is_marked(scene: Scene) -> None:
    bad = ReplicaRow("1", 4, "set", "h", "local", "file", "f.root", "/f.root", False, "has 3 bytes")
    scene.store.add_replicas([bad])
    scene.batch.says("b.1", JobState.RUNNING, attempt(JobState.RUNNING, code=None))
    scene.tracker.look(scene.campaign)
    posted(scene, 1, dataset_hash="h", door="file", plausible=True, started_us=CREATED_US)
    scene.tracker.look(scene.campaign)
    (row,) = scene.store.measurements(Selection(), ["plausible", "implausible_why"])
    assert row == {"plausible": False, "implausible_why": "bad replica: has 3 bytes"}
