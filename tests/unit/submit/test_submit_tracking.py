"""Tracking of jobs and attempts, and collection of their records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from plan_factory import CREATED_US
from tracking_harness import NOW_US, TrackingHarness, make_attempt_status

from treehammer.collectors.job_state import JobState
from treehammer.errors import BatchError
from treehammer.sql.core.rows import ReplicaRow
from treehammer.sql.read.measurement_selection import Selection
from treehammer.sql.write.store import Store
from treehammer.submit.batch.interface import AttemptStatus, JobStatus
from treehammer.submit.tracking.submission_locks import SUBMITTER_GRACE_S


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[TrackingHarness]:
    with Store.open(f"sqlite:///{tmp_path / 'results.db'}") as store:
        yield TrackingHarness(tmp_path, store)


def test_batch_ids_of_killed_submitter_are_found(
    scene: TrackingHarness,
) -> None:
    assert {job.batch_id for job in scene.tracker.refresh_jobs(scene.campaign)} == {"b.1", "b.2"}
    assert {job.batch_id for job in scene.store.jobs(scene.campaign.id)} == {"b.1", "b.2"}


def test_states_and_attempts_are_copied(scene: TrackingHarness) -> None:
    scene.batch.set_status(
        "b.1", JobState.RUNNING, make_attempt_status(JobState.RUNNING, code=None)
    )
    states = {job.id: job.state for job in scene.tracker.refresh_jobs(scene.campaign)}
    assert states == {scene.ids[0]: "running", scene.ids[1]: "queued"}
    (row,) = scene.read_attempts(0)
    assert (row.state, row.failure_class, row.exit_code) == ("running", "", None)


def test_complete_job_is_collected_once(scene: TrackingHarness) -> None:
    for position in (1, 2):
        scene.write_record(0, position)
    scene.batch.set_status("b.1", JobState.DONE, make_attempt_status(JobState.DONE))
    scene.tracker.refresh_jobs(scene.campaign)
    first, second = scene.tracker, scene.tracker
    assert first.collect_records(scene.campaign).new == 2
    assert first.collect_records(scene.campaign).known == 0, (
        "the same tracker does not read them again"
    )
    assert (
        second.collect_records(scene.campaign).new,
        scene.tracker.collect_records(scene.campaign).known,
    ) == (
        0,
        2,
    )
    assert sum(row.measurements for row in scene.store.count_measurements(scene.campaign.id)) == 2
    assert scene.read_attempts(0)[0].failure_class == ""


def test_records_of_running_job_are_collected(scene: TrackingHarness) -> None:
    scene.batch.set_status(
        "b.1", JobState.RUNNING, make_attempt_status(JobState.RUNNING, code=None)
    )
    scene.write_record(0, 1)
    scene.tracker.refresh_jobs(scene.campaign)
    assert scene.tracker.collect_records(scene.campaign).new == 1
    progress = scene.tracker.compute_progress(scene.campaign)
    assert (
        progress.finished_measurements,
        progress.planned_measurements,
        progress.is_finished,
    ) == (1, 4, False)


def test_measurements_of_bad_replica_are_marked(scene: TrackingHarness) -> None:
    scene.batch.set_status(
        "b.1", JobState.RUNNING, make_attempt_status(JobState.RUNNING, code=None)
    )
    for position in (1, 2):
        scene.write_record(0, position, dataset_hash="h", door="file", plausible=True, started_us=5)
    bad = ReplicaRow("1", 4, "set", "h", "local", "file", "f.root", "/f.root", False, "has 3 bytes")
    scene.store.add_replicas([bad])
    scene.tracker.refresh_jobs(scene.campaign)
    assert scene.tracker.collect_records(scene.campaign).new == 2
    rows = scene.store.measurements(Selection(), ["plausible", "implausible_reasons"])
    assert {(row["plausible"], row["implausible_reasons"]) for row in rows} == {
        (False, "bad replica: has 3 bytes")
    }


def test_incomplete_job_is_lost_with_reason(scene: TrackingHarness) -> None:
    scene.write_record(0, 1)
    (scene.batch.make_sandbox("b.1") / "worker.err").write_text("no job.json here\x00\n")
    scene.batch.set_status("b.1", JobState.DONE, make_attempt_status(JobState.DONE, code=2))
    scene.tracker.refresh_jobs(scene.campaign)
    (row,) = scene.read_attempts(0)
    assert row.failure_class == "lost"
    assert "1 of 2 measurements arrived" in row.message
    assert "exit code 2" in row.message
    assert "no job.json here?" in row.message
    assert scene.tracker.compute_progress(scene.campaign).failures == {"local": {"lost": 1}}


def test_stopped_worker_counts_as_evicted(scene: TrackingHarness) -> None:
    folder = scene.batch.make_sandbox("b.1")
    (folder / "attempt.json").write_text(json.dumps({"stopped_by": "SIGTERM"}))
    scene.batch.set_status("b.1", JobState.DONE, make_attempt_status(JobState.DONE, code=1))
    scene.tracker.refresh_jobs(scene.campaign)
    assert scene.read_attempts(0)[0].failure_class == "evicted"


def test_every_attempt_is_kept(scene: TrackingHarness) -> None:
    scene.write_record(0, 1, attempt=1)
    for position in (1, 2):
        scene.write_record(0, position, attempt=2)
    lost = make_attempt_status(JobState.LOST, 1, None, "the worker was ended by SIGKILL")
    scene.batch.set_status("b.1", JobState.DONE, lost, make_attempt_status(JobState.DONE, 2))
    scene.tracker.refresh_jobs(scene.campaign)
    assert [(a.number, a.failure_class) for a in scene.read_attempts(0)] == [(1, "lost"), (2, "")]
    assert "SIGKILL" in scene.read_attempts(0)[0].message
    assert scene.tracker.collect_records(scene.campaign).new == 3


def test_cancelled_jobs_are_not_failures(scene: TrackingHarness) -> None:
    cancelled = make_attempt_status(JobState.CANCELLED, reason="cancelled")
    scene.batch.set_status("b.1", JobState.CANCELLED, cancelled)
    scene.batch.set_status("b.2", JobState.CANCELLED)
    scene.tracker.refresh_jobs(scene.campaign)
    progress = scene.tracker.compute_progress(scene.campaign)
    assert progress.is_finished
    assert not progress.failures


@pytest.mark.parametrize(
    "content, reason",
    [
        ("{", "not JSON"),
        ('{"values": {}, "extras": {}}', "missing"),
        (b"\xff\xfe", "utf-8"),
    ],
)
def test_invalid_record_file_is_moved_aside(
    scene: TrackingHarness, content: str | bytes, reason: str
) -> None:
    good = scene.write_record(0, 1)
    bad = good.with_name("bad.json")
    bad.write_bytes(content if isinstance(content, bytes) else content.encode())
    scene.batch.set_status("b.1", JobState.DONE, make_attempt_status(JobState.DONE))
    scene.tracker.refresh_jobs(scene.campaign)
    collected = scene.tracker.collect_records(scene.campaign)
    assert collected.new == 1
    (rejected,) = collected.rejected
    assert reason in rejected.reason
    assert rejected.path.is_file()
    assert not bad.exists()
    assert not scene.tracker.collect_records(scene.campaign).rejected


def test_record_of_another_job_is_moved_aside(scene: TrackingHarness) -> None:
    scene.write_record(0, 1, job_id=scene.ids[1])
    scene.batch.set_status("b.1", JobState.DONE, make_attempt_status(JobState.DONE))
    scene.tracker.refresh_jobs(scene.campaign)
    (rejected,) = scene.tracker.collect_records(scene.campaign).rejected
    assert scene.ids[1] in rejected.reason


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"failure_class": "good"}, "failure_class must be one of"),
        ({"day": 20991399}, "day must be the UTC day of started_us"),
        ({"measurement_id": "another's"}, "measurement_id is not that of"),
        (
            {"plausible": False, "implausible_reasons": "bad replica: says I"},
            "must not contain 'bad replica:'",
        ),
    ],
)
def test_inconsistent_record_is_moved_aside(
    scene: TrackingHarness, changes: dict[str, Any], reason: str
) -> None:
    """The service rejects the same records."""
    scene.write_record(0, 1)
    scene.write_record(0, 2, **changes)
    scene.batch.set_status("b.1", JobState.DONE, make_attempt_status(JobState.DONE))
    scene.tracker.refresh_jobs(scene.campaign)
    collected = scene.tracker.collect_records(scene.campaign)
    assert collected.new == 1
    (rejected,) = collected.rejected
    assert reason in rejected.reason


def test_conflicting_record_is_reported(
    scene: TrackingHarness,
) -> None:
    scene.batch.set_status(
        "b.1", JobState.RUNNING, make_attempt_status(JobState.RUNNING, code=None)
    )
    scene.write_record(0, 1, load1_start=1.0)
    scene.tracker.refresh_jobs(scene.campaign)
    scene.tracker.collect_records(scene.campaign)
    path = scene.write_record(0, 1, load1_start=2.0)
    assert scene.tracker.collect_records(scene.campaign).conflicting == (path.stem,)


def test_unqueued_jobs_are_lost_after_grace_period(scene: TrackingHarness) -> None:
    scene.batch.jobs.clear()
    scene.batch.statuses.clear()
    assert {job.state for job in scene.tracker.refresh_jobs(scene.campaign)} == {"queued"}, (
        "another process may still be submitting"
    )
    scene.now_us = CREATED_US + int(SUBMITTER_GRACE_S * 1e6) + 1
    assert {job.state for job in scene.tracker.refresh_jobs(scene.campaign)} == {"lost"}
    assert scene.read_attempts(0)[0].failure_class == "submission"


def test_removed_queue_loses_running_jobs_only(
    scene: TrackingHarness,
) -> None:
    for position in (1, 2):
        scene.write_record(0, position)
    scene.batch.set_status("b.1", JobState.DONE, make_attempt_status(JobState.DONE))
    scene.batch.set_status(
        "b.2", JobState.RUNNING, make_attempt_status(JobState.RUNNING, code=None)
    )
    scene.tracker.refresh_jobs(scene.campaign)
    scene.batch.statuses.clear()
    states = {job.id: job.state for job in scene.tracker.refresh_jobs(scene.campaign)}
    assert states == {scene.ids[0]: "done", scene.ids[1]: "lost"}
    (row,) = scene.read_attempts(1)
    assert (row.failure_class, row.started_us) == ("lost", CREATED_US + 1)


def test_remaining_time_follows_the_pace(scene: TrackingHarness) -> None:
    scene.batch.set_status(
        "b.1", JobState.RUNNING, make_attempt_status(JobState.RUNNING, code=None)
    )
    scene.write_record(0, 1)
    scene.tracker.refresh_jobs(scene.campaign)
    remaining = scene.tracker.compute_progress(scene.campaign).remaining_s
    assert remaining == pytest.approx(30, rel=1e-3), "one of four measurements took ten seconds"


def test_silent_batch_system_changes_nothing(
    scene: TrackingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.batch.set_status(
        "b.1", JobState.RUNNING, make_attempt_status(JobState.RUNNING, code=None)
    )
    scene.tracker.refresh_jobs(scene.campaign)
    before = scene.store.jobs(scene.campaign.id)

    def silent(batch_ids: Iterable[str]) -> Mapping[str, JobStatus]:
        raise BatchError("it does not answer")

    monkeypatch.setattr(scene.batch, "query", silent)
    with pytest.raises(BatchError, match="does not answer"):
        scene.tracker.refresh_jobs(scene.campaign)
    assert scene.store.jobs(scene.campaign.id) == before
    assert len(scene.read_attempts(0)) == 1


def test_failure_reason_of_batch_system_is_kept(scene: TrackingHarness) -> None:
    held = AttemptStatus(
        3, JobState.LOST, CREATED_US, NOW_US, None, "no such file", "held", "slot1@x"
    )
    scene.batch.set_status("b.1", JobState.HELD, held)
    scene.batch.statuses["b.2"] = JobStatus("b.2", JobState.LOST, (), "lost", "removed by hand")
    scene.tracker.refresh_jobs(scene.campaign)
    (row,) = scene.read_attempts(0)
    assert (row.number, row.failure_class) == (3, "held")
    assert row.message.endswith("at slot1@x: no such file")
    (row,) = scene.read_attempts(1)
    assert (row.failure_class, row.message) == ("lost", "removed by hand")
