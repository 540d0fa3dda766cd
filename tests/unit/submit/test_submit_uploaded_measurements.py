"""Measurements that arrived through the results service count like collected ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from plan_factory import CREATED_US
from tracking_harness import NOW_US, TrackingHarness, make_attempt_status

from treehammer.collectors.job_state import JobState
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.config import load_settings
from treehammer.sql.core.rows import ReplicaRow
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.batch.interface import AttemptStatus
from treehammer.submit.lifecycle import campaign_resume
from treehammer.submit.tracking.attempt_rows import ALL_MEASUREMENTS_STORED

SIGKILL = "the worker was killed by SIGKILL"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[TrackingHarness]:
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        yield TrackingHarness(tmp_path, store)


def add_uploaded(
    scene: TrackingHarness, *positions: int, job: int = 0, number: int = 1, **values: object
) -> None:
    """Store measurements without a sandbox."""
    for position in positions:
        path = scene.write_record(job, position, attempt=number, **values)
        scene.store.add([Measurement.from_json(path.read_text())])
        path.unlink()


def failures(scene: TrackingHarness, job: int = 0) -> list[str]:
    return [row.failure_class for row in scene.read_attempts(job)]


def state(scene: TrackingHarness, job: int = 0) -> str:
    return next(j.state for j in scene.store.jobs(scene.campaign.id) if j.id == scene.ids[job])


def test_uploads_of_running_job_count_as_progress(scene: TrackingHarness) -> None:
    scene.batch.set_status(
        "b.1", JobState.RUNNING, make_attempt_status(JobState.RUNNING, code=None)
    )
    scene.tracker.refresh_jobs(scene.campaign)
    add_uploaded(scene, 1)
    assert scene.tracker.update(scene.campaign).finished_measurements == 1


@pytest.mark.parametrize("code", [0, 75, None])
def test_lost_sandbox_of_uploaded_job_is_no_failure(
    scene: TrackingHarness, code: int | None
) -> None:
    add_uploaded(scene, 1, 2)
    scene.batch.set_status("b.1", JobState.DONE, make_attempt_status(JobState.DONE, code=code))
    progress = scene.tracker.update(scene.campaign)
    assert failures(scene) == [""]
    assert not progress.failures
    assert scene.read_attempts(0)[0].message.startswith(ALL_MEASUREMENTS_STORED)
    assert "0 of 2 measurements arrived" in scene.read_attempts(0)[0].message


def test_lost_job_is_done_if_all_measurements_are_stored(
    scene: TrackingHarness,
) -> None:
    add_uploaded(scene, 1, 2)
    add_uploaded(scene, 1, job=1)
    for batch_id in ("b.1", "b.2"):
        scene.batch.set_status(
            batch_id, JobState.LOST, make_attempt_status(JobState.LOST, 1, None, SIGKILL)
        )
    progress = scene.tracker.update(scene.campaign)
    assert (state(scene, 0), state(scene, 1)) == ("done", "lost")
    assert progress.failures == {"local": {"lost": 1}}


def test_removed_queue_keeps_uploaded_job_done(scene: TrackingHarness) -> None:
    scene.batch.set_status(
        "b.1", JobState.RUNNING, make_attempt_status(JobState.RUNNING, code=None)
    )
    scene.tracker.refresh_jobs(scene.campaign)
    add_uploaded(scene, 1, 2)
    scene.batch.statuses.clear()
    scene.tracker.refresh_jobs(scene.campaign)
    assert (state(scene), failures(scene)) == ("done", [""])


def test_attempt_without_start_does_not_fail_complete_job(scene: TrackingHarness) -> None:
    add_uploaded(scene, 1, 2)
    evicted = make_attempt_status(
        JobState.LOST, 1, None, "held: its output could not be transferred"
    )
    never = AttemptStatus(2, JobState.LOST, 0, NOW_US, None, "no machine took it", "submission")
    scene.batch.set_status("b.1", JobState.LOST, evicted, never)
    scene.tracker.refresh_jobs(scene.campaign)
    assert (state(scene), failures(scene)) == ("done", ["", ""])


def test_lost_second_attempt_fails_the_job(scene: TrackingHarness) -> None:
    add_uploaded(scene, 1, 2)
    lost = [make_attempt_status(JobState.LOST, number, None, SIGKILL) for number in (1, 2)]
    scene.batch.set_status("b.1", JobState.LOST, *lost)
    scene.tracker.refresh_jobs(scene.campaign)
    assert (state(scene), failures(scene)) == ("lost", ["", "lost"])


def test_later_upload_clears_the_failure(scene: TrackingHarness, tmp_path: Path) -> None:
    scene.batch.set_status(
        "b.1", JobState.LOST, make_attempt_status(JobState.LOST, 1, None, SIGKILL)
    )
    scene.batch.set_status("b.2", JobState.CANCELLED)
    scene.tracker.update(scene.campaign)
    assert (state(scene), failures(scene)) == ("lost", ["lost"])
    add_uploaded(scene, 1, 2)
    tracker = scene.tracker
    assert tracker.collect_records(scene.campaign).new == 0
    assert (state(scene), failures(scene)) == ("done", [""])
    message = scene.read_attempts(0)[0].message
    tracker.collect_records(scene.campaign)
    assert scene.read_attempts(0)[0].message == message, "cleared only once"
    settings = load_settings({"data_dir": tmp_path}, environ={}, folder=tmp_path)
    done = campaign_resume.resume_campaign(scene.tracker, scene.campaign, settings)
    assert done.unqueued == 1, "only the cancelled job is selected"


def test_collected_and_uploaded_measurement_is_stored_once(scene: TrackingHarness) -> None:
    scene.batch.set_status("b.1", JobState.DONE, make_attempt_status(JobState.DONE))
    for position in (1, 2):
        path = scene.write_record(0, position)
        scene.store.add([Measurement.from_json(path.read_text())])
    scene.tracker.refresh_jobs(scene.campaign)
    collected = scene.tracker.collect_records(scene.campaign)
    assert (collected.new, collected.known, collected.conflicting) == (0, 2, ())
    assert sum(row.measurements for row in scene.store.count_measurements(scene.campaign.id)) == 2


def test_invalid_record_file_fails_complete_attempt(scene: TrackingHarness) -> None:
    scene.batch.set_status("b.1", JobState.DONE, make_attempt_status(JobState.DONE))
    add_uploaded(scene, 1, 2)
    bad = scene.write_record(0, 1).with_name("bad.json")
    bad.write_text("{")
    scene.tracker.refresh_jobs(scene.campaign)
    assert scene.tracker.collect_records(scene.campaign).rejected
    for _ in range(2):
        scene.tracker.collect_records(scene.campaign)
        assert failures(scene) == ["upload"]


def test_upload_from_bad_replica_is_marked(scene: TrackingHarness) -> None:
    bad = ReplicaRow("1", 4, "set", "h", "local", "file", "f.root", "/f.root", False, "has 3 bytes")
    scene.store.add_replicas([bad])
    scene.batch.set_status(
        "b.1", JobState.RUNNING, make_attempt_status(JobState.RUNNING, code=None)
    )
    scene.tracker.update(scene.campaign)
    add_uploaded(scene, 1, dataset_hash="h", door="file", plausible=True, started_us=CREATED_US)
    scene.tracker.update(scene.campaign)
    (row,) = scene.store.measurements(Selection(), ["plausible", "implausible_reasons"])
    assert row == {"plausible": False, "implausible_reasons": "bad replica: has 3 bytes"}
