"""Tracking of jobs and attempts, and collection of their records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from plan_factory import CREATED_US, NOW_US, TrackingHarness, make_attempt_status

from treehammer.collectors.job_spec import NODE_EXIT_CODE, RETRY_EXIT_CODE, JobState
from treehammer.collectors.record.measurement_record import Measurement
from treehammer.config import Settings
from treehammer.errors import BatchError, ConfigError, StoreError
from treehammer.sql.core.rows import ReplicaRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.recording import AddResult
from treehammer.sql.write.store import Store
from treehammer.submit.batch.interface import AttemptStatus, BatchEvent, JobStatus
from treehammer.submit.campaigns import campaign_outcome, campaign_polling, submission
from treehammer.submit.campaigns.attempt_rows import ALL_MEASUREMENTS_STORED
from treehammer.submit.campaigns.tracker import RESUMABLE_S, StagedSubmissions

KILLED = make_attempt_status(JobState.LOST, 1, None, "the worker was killed by SIGKILL")
BAD_REPLICA = ReplicaRow(
    "1", 4, "set", "h", "local", "file", "f.root", "/f.root", False, "has 3 bytes"
)
FROM_BAD_REPLICA: dict[str, Any] = {
    "dataset_hash": "h", "door": "file", "plausible": True, "started_us": CREATED_US,
}  # fmt: skip


@pytest.fixture
def scene(tmp_path: Path, store: Store) -> TrackingHarness:
    return TrackingHarness(tmp_path, store)


def upload(scene: TrackingHarness, *positions: int, job: int = 0, **values: Any) -> None:
    """Store measurements as the results service does, without a sandbox."""
    for position in positions:
        path = scene.write_record(job, position, **values)
        scene.store.add([Measurement.from_json(path.read_text())])
        path.unlink()


def test_complete_job_is_collected_once(scene: TrackingHarness) -> None:
    for position in (1, 2):
        scene.write_record(0, position)
    scene.end_job(JobState.DONE)
    first, second = scene.tracker, scene.tracker
    assert first.collect_records(scene.campaign).new == 2
    assert first.collect_records(scene.campaign).existing == 0, "a tracker reads a file once"
    assert second.collect_records(scene.campaign).new == 0
    assert scene.collect().existing == 2
    assert scene.store.count_selected(Selection((scene.campaign.id,))) == 2
    assert scene.read_failures() == [""]


def test_records_of_running_job_are_collected(scene: TrackingHarness) -> None:
    scene.start_job()
    scene.write_record(0, 1)
    scene.write_record(0, 2, failure_class="evicted")
    assert scene.collect().new == 1
    total = scene.tracker.compute_progress(scene.campaign).total
    assert (total.measured, total.outstanding, total.planned, total.is_finished) == (1, 3, 4, False)
    scene.end_job(JobState.CANCELLED)
    assert scene.collect().new == 0, "the cancellation interrupted the second"
    upload(scene, 1, job=1)
    assert scene.tracker.update(scene.campaign).total.measured == 2


def end_jobs_with_records(scene: TrackingHarness) -> None:
    """End both jobs at the batch system, with a record of each on disk."""
    for job in (0, 1):
        scene.write_record(job, 1)
        scene.batch.set_status(f"b.{job + 1}", JobState.DONE, make_attempt_status(JobState.DONE))


def test_job_is_final_only_with_its_records(
    scene: TrackingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page stops asking when all jobs have ended; a resumption may queue one again meanwhile."""
    end_jobs_with_records(scene)
    queued, add = scene.store.jobs(scene.campaign.id)[0], scene.store.add

    def add_after_resumption(measurements: Iterable[Measurement]) -> AddResult:
        assert not scene.tracker.compute_progress(scene.campaign).is_finished
        scene.store.set_jobs([replace(queued, batch_id="b.3")])
        return add(measurements)

    monkeypatch.setattr(scene.store, "add", add_after_resumption)
    jobs = scene.tracker.update(scene.campaign).total.jobs
    assert jobs == {"queued": 1, "done": 1}


def test_list_of_campaigns_stores_records_with_final_states(
    scene: TrackingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_jobs_with_records(scene)
    tracker = scene.tracker

    def refuse(_records: object) -> AddResult:
        raise StoreError("there is no room left to write")

    with monkeypatch.context() as patch:
        patch.setattr(scene.store, "add", refuse)
        ((row,), (remark,)) = campaign_polling.list_campaigns(tracker)
    assert "may have changed since the last status: there is no room left" in remark
    assert (row["jobs"], row["collected"]) == ({"queued": 2}, 0)
    ((row,), remarks) = campaign_polling.list_campaigns(tracker)
    assert (row["jobs"], row["collected"], remarks) == ({"done": 2}, 2, [])
    monkeypatch.setattr(tracker, "update", None)
    assert campaign_polling.list_campaigns(tracker) == ([row], []), "no job is open"


@pytest.mark.parametrize("is_uploaded", [False, True])
def test_measurement_of_bad_replica_is_marked(scene: TrackingHarness, is_uploaded: bool) -> None:
    scene.store.add_replicas([BAD_REPLICA])
    scene.start_job()
    if is_uploaded:
        upload(scene, 1, **FROM_BAD_REPLICA)
    else:
        scene.write_record(0, 1, **FROM_BAD_REPLICA)
    scene.tracker.update(scene.campaign)
    (row,) = scene.store.measurements(Selection(), ["plausible", "implausible_reasons"])
    assert row == {"plausible": False, "implausible_reasons": "bad replica: has 3 bytes"}


@pytest.mark.parametrize("code", [RETRY_EXIT_CODE, NODE_EXIT_CODE, 126, 127])
def test_worker_that_its_node_cannot_run_says_why(scene: TrackingHarness, code: int) -> None:
    (scene.make_sandbox() / "worker.err").write_text("SITE_A: there is no Python 3.9.\n")
    scene.end_job(JobState.DONE, make_attempt_status(JobState.DONE, code=code))
    (row,) = scene.read_attempts()
    failure_class = "lost" if code == RETRY_EXIT_CODE else "software-setup"
    assert (row.failure_class, row.message.endswith("no Python 3.9.")) == (failure_class, True)


def test_incomplete_job_is_lost_with_reason(scene: TrackingHarness) -> None:
    scene.write_record(0, 1)
    (scene.make_sandbox() / "worker.err").write_text("no job.json here\x00\n")
    scene.end_job(JobState.DONE, make_attempt_status(JobState.DONE, code=2))
    (row,) = scene.read_attempts()
    assert row.failure_class == "lost"
    for words in ("1 of 2 measurements arrived", "exit code 2", "no job.json here?"):
        assert words in row.message
    scene.collect()
    count = scene.tracker.compute_progress(scene.campaign).sites["local"]
    assert (count.measured, dict(count.missing), count.failures) == (1, {"lost": 1}, {})


def test_attempt_that_repeats_an_end_is_no_failure(scene: TrackingHarness) -> None:
    """The batch system lost the end of the first attempt and started the job again."""
    for position in (1, 2):
        scene.write_record(0, position, attempt=1)
    (scene.make_sandbox(attempt=2) / "attempt.json").write_text('{"repeats": 1}')
    scene.end_job(JobState.DONE, KILLED, make_attempt_status(JobState.DONE, 2))
    scene.collect()
    assert [attempt.failure_class for attempt in scene.read_attempts()] == ["", ""]
    assert scene.read_attempts()[1].message.startswith("attempt 1 had ended")
    assert scene.tracker.compute_progress(scene.campaign).sites["local"].measured == 2


def test_every_attempt_is_kept(scene: TrackingHarness) -> None:
    scene.write_record(0, 1, attempt=1)
    for position in (1, 2):
        scene.write_record(0, position, attempt=2)
    scene.end_job(JobState.DONE, KILLED, make_attempt_status(JobState.DONE, 2))
    attempts = scene.read_attempts()
    assert [(a.number, a.failure_class) for a in attempts] == [(1, "lost"), (2, "")]
    assert "SIGKILL" in attempts[0].message
    assert scene.collect().new == 3


def test_record_in_transfer_is_read_when_complete(scene: TrackingHarness) -> None:
    path = scene.write_record(0, 1)
    content = path.read_bytes()
    path.write_bytes(content[:40])
    scene.start_job()
    collected = scene.collect()
    assert (collected.new, collected.rejected) == (0, ())
    path.write_bytes(content)
    assert scene.collect().new == 1
    assert scene.read_failures() == [""]


@pytest.mark.parametrize(
    "changes, reason",
    [
        (b"{", "not JSON"),
        (b'{"values": {}, "extras": {}}', "missing"),
        (b"\xff\xfe", "utf-8"),
        ({"failure_class": "good"}, "failure_class must be one of"),
        ({"day": 20991399}, "day must be the UTC day of started_us"),
        ({"measurement_id": "another's"}, "measurement_id is not that of"),
        ({"plausible": False, "implausible_reasons": "bad replica: says I"}, "must not contain 'bad replica:'"),
        ({"job_id": "another job"}, "another job"),
    ],
)  # fmt: skip
def test_invalid_record_is_moved_aside(
    scene: TrackingHarness, changes: bytes | dict[str, Any], reason: str
) -> None:
    """The service rejects the same records."""
    scene.write_record(0, 1)
    bad = scene.write_record(0, 2, **({} if isinstance(changes, bytes) else changes))
    if isinstance(changes, bytes):
        bad.write_bytes(changes)
    scene.end_job(JobState.DONE)
    collected = scene.collect()
    assert collected.new == 1
    (rejected,) = collected.rejected
    assert reason in rejected.reason
    assert rejected.path.is_file()
    assert not bad.exists()
    assert not scene.collect().rejected


def test_conflicting_record_is_reported(scene: TrackingHarness) -> None:
    scene.start_job()
    scene.write_record(0, 1, load1_start=1.0)
    scene.collect()
    path = scene.write_record(0, 1, load1_start=2.0)
    assert scene.collect().conflicting == (path.stem,)


def test_unqueued_jobs_of_others_are_lost_after_a_month(scene: TrackingHarness) -> None:
    scene.batch.jobs.clear()
    scene.batch.statuses.clear()
    assert scene.refresh() == ["queued"] * 2, "another process may still be submitting"
    scene.now_us = CREATED_US + int(RESUMABLE_S * 1e6) - 1
    assert scene.refresh() == ["queued"] * 2
    scene.now_us += 2
    assert scene.refresh() == ["lost"] * 2
    assert scene.read_failures() == ["submission"]


@pytest.mark.parametrize("is_here", [True, False])
def test_removed_queue_loses_running_jobs_only(scene: TrackingHarness, is_here: bool) -> None:
    scene.end_job(JobState.DONE)
    scene.start_job(1)
    if is_here:
        scene.batch.statuses.clear()
    else:
        scene.batch.campaigns = []
        scene.end_job(JobState.LOST, job=1)
        assert scene.refresh() == ["done", "running"], "its submitter follows it"
        with pytest.raises(ConfigError, match=r"another installation(?s:.*)gone, remove the jobs"):
            scene.tracker.cancel(scene.campaign)
        scene.now_us += int(RESUMABLE_S * 1e6)
    assert scene.refresh() == ["done", "lost"]
    (row,) = scene.read_attempts(1)
    assert (row.failure_class, row.started_us) == ("lost", CREATED_US + 1)


def test_silent_batch_system_changes_nothing(
    scene: TrackingHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.start_job()
    before = scene.store.jobs(scene.campaign.id)

    def silent(batch_ids: Iterable[str]) -> Mapping[str, JobStatus]:
        raise BatchError("it does not answer")

    monkeypatch.setattr(scene.batch, "query", silent)
    with pytest.raises(BatchError, match="does not answer"):
        scene.refresh()
    assert scene.store.jobs(scene.campaign.id) == before


def test_failure_reason_of_batch_system_is_kept(scene: TrackingHarness) -> None:
    held = AttemptStatus(
        3, JobState.LOST, CREATED_US, NOW_US, None, "no such file", BatchEvent.HELD, "slot1@x"
    )
    removed = JobStatus("b.2", JobState.LOST, (), BatchEvent.LOST, "removed by hand")
    scene.batch.statuses["b.2"] = removed
    scene.end_job(JobState.HELD, held)
    (row,) = scene.read_attempts()
    assert (row.number, row.failure_class) == (3, "held")
    assert row.message.endswith("at slot1@x: no such file")
    (row,) = scene.read_attempts(1)
    assert (row.failure_class, row.message) == ("lost", "removed by hand")


@pytest.mark.parametrize("code", [0, 75, None])
def test_lost_sandbox_of_uploaded_job_is_no_failure(
    scene: TrackingHarness, code: int | None
) -> None:
    upload(scene, 1, 2)
    scene.end_job(JobState.DONE, make_attempt_status(JobState.DONE, code=code))
    assert not scene.tracker.update(scene.campaign).total.lost
    (row,) = scene.read_attempts()
    assert row.failure_class == ""
    assert row.message.startswith(ALL_MEASUREMENTS_STORED)
    assert "0 of 2 measurements arrived" in row.message
    assert ("ended well" in row.message) == (code == 0)


def test_removed_queue_keeps_uploaded_job_done(scene: TrackingHarness) -> None:
    scene.start_job()
    upload(scene, 1, 2)
    scene.batch.statuses.clear()
    assert (scene.refresh()[0], scene.read_failures()) == ("done", [""])


def test_only_first_of_lost_attempts_has_its_measurements(scene: TrackingHarness) -> None:
    upload(scene, 1, 2)
    upload(scene, 1, 2, job=1)
    idle = make_attempt_status(JobState.DONE, 2)
    never = AttemptStatus(
        3, JobState.LOST, 0, NOW_US, None, "no machine took it", BatchEvent.SUBMISSION
    )
    scene.end_job(JobState.LOST, KILLED, idle, never)
    scene.end_job(JobState.LOST, KILLED, make_attempt_status(JobState.LOST, 2, None), job=1)
    assert scene.refresh() == ["done", "lost"], "an attempt that did nothing loses nothing"
    assert (scene.read_failures(0), scene.read_failures(1)) == (["", "", ""], ["", "lost"])


def test_later_upload_clears_the_failure(scene: TrackingHarness, settings: Settings) -> None:
    scene.batch.set_status("b.2", JobState.CANCELLED)
    scene.end_job(JobState.LOST, KILLED)
    scene.tracker.update(scene.campaign)
    assert (scene.refresh()[0], scene.read_failures()) == ("lost", ["lost"])
    upload(scene, 1, 2)
    tracker = scene.tracker
    assert tracker.collect_records(scene.campaign).new == 0
    assert (scene.refresh()[0], scene.read_failures()) == ("done", [""])
    message = scene.read_attempts()[0].message
    tracker.collect_records(scene.campaign)
    assert scene.read_attempts()[0].message == message, "cleared only once"
    done = submission.resume_campaign(scene.tracker, scene.campaign, settings)
    assert (done.requeued, done.unqueued) == (1, 0), "only the cancelled job is selected"


def test_removed_job_with_stopped_measurements_is_resumed(
    scene: TrackingHarness, settings: Settings
) -> None:
    """The worker reports what SIGTERM interrupted; that measures nothing."""
    reason = "removed from the queue: via condor_rm (by user alice)"
    scene.end_job(JobState.LOST, make_attempt_status(JobState.LOST, 1, None, reason))
    upload(scene, 1)
    upload(scene, 2, failure_class="evicted", failure_message="SIGTERM reached the worker")
    scene.tracker.update(scene.campaign)
    assert scene.refresh()[0] == "lost"
    (attempt,) = scene.read_attempts()
    assert (attempt.failure_class, reason in attempt.message) == ("lost", True)
    done = submission.resume_campaign(scene.tracker, scene.campaign, settings)
    assert done.requeued == 1
    assert campaign_outcome.summarize_failures(scene.store, scene.campaign) == []


@pytest.mark.parametrize("compiler", [{}, {"loop_compiler": "cling"}])
def test_node_is_named_only_by_cling(scene: TrackingHarness, compiler: dict[str, Any]) -> None:
    """A payload that fails before its loop also fails in the build of the loop."""
    upload(scene, 1, failure_class="payload", loop_fallback="its build ended with 1", **compiler)
    notes = list(campaign_outcome.describe_compilers(scene.store, scene.campaign))
    assert len(notes) == len(compiler)


@pytest.mark.parametrize("positions, failures", [((1,), ["evicted"]), ((1, 2), [""])])
def test_stopped_last_attempt_is_complete_only_with_all_measurements(
    scene: TrackingHarness, positions: tuple[int, ...], failures: list[str]
) -> None:
    for position in (1, 2):
        failure: dict[str, Any] = {} if position in positions else {"failure_class": "evicted"}
        scene.write_record(0, position, **failure)
    (scene.make_sandbox() / "attempt.json").write_text('{"stopped_by": "SIGTERM"}')
    scene.end_job(JobState.DONE)
    scene.tracker.update(scene.campaign)
    assert scene.read_failures() == failures


def test_invalid_record_file_fails_complete_attempt(scene: TrackingHarness) -> None:
    upload(scene, 1, 2)
    scene.write_record(0, 1).with_name("\udcff.json").write_text("{")
    (scene.make_sandbox() / "rejected-records").touch()  # it cannot be moved aside
    (scene.make_sandbox() / "attempt.json").write_text(r'{"stopped_by": "\ud800"}')
    scene.end_job(JobState.DONE)
    assert scene.collect().rejected
    for _ in range(2):
        scene.collect()
        assert scene.read_failures() == ["upload"]


def test_live_submission_is_distinguished_from_dead_one(tmp_path: Path) -> None:
    submissions = StagedSubmissions(tmp_path / "submissions")
    assert submissions.is_under_way("here") is None
    with submissions.hold("here") as staged:
        assert staged.rendered.is_dir()
        assert StagedSubmissions(tmp_path / "submissions").is_under_way("here") is True
        staged.remove()
    assert submissions.is_under_way("here") is None
    with pytest.raises(KeyboardInterrupt), submissions.hold("here") as staged:
        raise KeyboardInterrupt
    assert submissions.is_under_way("here") is False
    assert not staged.rendered.exists()
