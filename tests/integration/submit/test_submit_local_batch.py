"""Local batch system with its real runner, and failures of its campaigns: SIGKILL and full disks."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from local_user import LocalUser
from small_disk import SmallDisk, mounted_small_disk
from spool_harness import SpoolHarness, is_alive

from treehammer.collectors.job_spec import RETRY_EXIT_CODE, JobState
from treehammer.errors import BatchError, ConfigError, ExitCode, NothingToDoError, StoreError
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns.tracker import StagedSubmissions


def test_runner_leaves_empty_queue_and_returns_for_new_jobs(spool: SpoolHarness) -> None:
    first = spool.make_batch().submit("c1", [spool.describe_job("a")])
    spool.wait_until_final(list(first.values()))
    spool.wait_for_status(lambda: not spool.runner_pids())
    second = spool.make_batch().submit("c2", [spool.describe_job("b")])
    assert spool.wait_until_final(list(second.values())) == [JobState.DONE]


def test_runner_sleeps_while_a_job_runs(spool: SpoolHarness) -> None:
    """It once kept a core busy beside the measurements: its own reading of the queue woke it.

    A runner of release 0.2, which has another lock, is asked to leave.
    """
    batch = spool.make_batch()
    (batch.root / "runner.lock").touch()
    ids = batch.submit("c1", [spool.describe_job("long", 600)])
    spool.wait_for_status(lambda: bool(spool.job_times(ids["long"])))
    (runner,) = map(psutil.Process, spool.runner_pids())

    def count_sleeps() -> int:
        return int(runner.num_ctx_switches().voluntary)

    before = count_sleeps()
    spool.wait_for_status(lambda: count_sleeps() >= before + 5)
    assert not (batch.root / "runner.lock").exists()
    batch.cancel(ids.values())


@pytest.mark.parametrize(
    "payload, is_runner_killed", [("escape", False), ("stubborn", False), ("escape", True)]
)
def test_cancel_ends_all_processes(
    spool: SpoolHarness, payload: str, is_runner_killed: bool
) -> None:
    batch = spool.make_batch()
    ids = batch.submit(
        "c1", [spool.describe_job("run", 600, payload), spool.describe_job("wait", 600)]
    )
    spool.wait_for_status(lambda: len(spool.job_pids(ids["run"])) >= 2)
    if is_runner_killed:
        spool.kill_runner()
    assert batch.cancel(ids.values()) == 2
    states = batch.query(ids.values())
    assert {s.state for s in states.values()} == {JobState.CANCELLED}
    assert not spool.job_pids(ids["run"])
    assert spool.job_times(ids["wait"]) == []
    assert batch.cancel(ids.values()) == 0


def test_processes_that_outlive_worker_are_killed(spool: SpoolHarness) -> None:
    ids = spool.make_batch().submit("c1", [spool.describe_job("a", 0.1, "escape")])
    spool.wait_until_final([ids["a"]])
    assert not spool.job_pids(ids["a"])


def test_killed_runner_loses_and_duplicates_nothing(spool: SpoolHarness) -> None:
    batch = spool.make_batch()
    ids = batch.submit("c1", [spool.describe_job(f"j{i}", 1.0) for i in range(4)])
    order = list(ids.values())
    for index in (0, 2):
        spool.wait_for_status(lambda i=index: bool(spool.job_times(order[i])))  # type: ignore[misc]
        spool.kill_runner()
        batch.query(order)  # as `status` would: starts the next runner
    assert spool.wait_until_final(order) == [JobState.DONE] * 4
    spans = [spool.job_times(batch_id) for batch_id in order]
    assert all([(w, a) for w, a, _ in span] == [("start", 1), ("end", 1)] for span in spans)
    for before, after in itertools.pairwise(spans):
        assert before[1][2] <= after[0][2], "the successor counts jobs that it found as running"


def test_job_that_ended_without_runner_is_recognized(spool: SpoolHarness) -> None:
    batch = spool.make_batch()
    ids = batch.submit("c1", [spool.describe_job("ends", 0.8), spool.describe_job("dies", 600)])
    spool.wait_for_status(lambda: bool(spool.job_times(ids["ends"])))
    spool.kill_runner()
    spool.wait_for_status(lambda: len(spool.job_times(ids["ends"])) == 2)
    batch.query(ids.values())
    spool.wait_for_status(lambda: bool(spool.job_times(ids["dies"])))
    spool.kill_runner()
    for pid in spool.job_pids(ids["dies"]):
        os.kill(pid, signal.SIGKILL)
    batch.query(ids.values())
    spool.wait_for_status(lambda: len(spool.job_times(ids["dies"])) == 2)
    batch.cancel(ids.values())
    statuses = batch.query(ids.values())
    assert statuses[ids["ends"]].state is JobState.DONE
    first, second = statuses[ids["dies"]].attempts
    assert (first.state, second.state) == (JobState.LOST, JobState.CANCELLED)


def submit_and_die(user: LocalUser, function: str, call: int = 1) -> None:
    """Submit in a process that kills itself at the nth call of a function."""
    user.run_and_kill(function, "submit", str(user.test), "--wait", call=call)


def test_submitter_killed_before_storing(local_user: LocalUser) -> None:
    submit_and_die(local_user, "sql.write.store:Store.add_campaign")
    assert isinstance(local_user.invoke_command("status").exception, NothingToDoError)
    assert not any(local_user.settings.spool_dir.glob("jobs/*"))


def test_submitter_killed_while_writing_the_spool(local_user: LocalUser) -> None:
    submit_and_die(local_user, "submit.batch.local_batch:stage_job", call=2)
    assert any(local_user.settings.spool_dir.glob("incoming/1"))
    printed = local_user.invoke_command("status", "last").output
    assert "2 × submission at local: the submission ended before this job was queued" in printed
    (site,) = json.loads(local_user.invoke_command("status", "last", "--json").stdout)
    assert (site["lost"], site["missing"]) == (2, {"submission": 4})
    campaign = local_user.last_campaign_id()
    assert f"2 jobs were never queued; to queue them: treehammer resume {campaign}" in printed
    assert "0 jobs released, 2 requeued" in local_user.invoke_command("resume", campaign).output
    assert not any(local_user.settings.spool_dir.glob("incoming/*"))
    assert "4 of 4" in local_user.invoke_command("status", "last", "--follow").output


@pytest.mark.parametrize(
    ("function", "is_resumed"),
    [
        ("submit.batch.local_batch:LocalBatch.submit", True),
        ("sql.write.store:Store.set_jobs", False),
        ("submit.campaigns.tracker:StagedSubmission.remove", True),
    ],
)
def test_resume_completes_what_a_killed_submitter_left(
    local_user: LocalUser, function: str, is_resumed: bool
) -> None:
    submit_and_die(local_user, function)
    if is_resumed:
        resumed = local_user.invoke_command("resume", "last")
        assert resumed.exception is None or isinstance(resumed.exception, NothingToDoError)
    assert "4 of 4" in local_user.invoke_command("status", "last", "--follow").output
    (site,) = json.loads(local_user.invoke_command("status", "last", "--json").stdout)
    assert (site["done"], site["failures"]) == (2, {})
    assert len(local_user.read_measurements()) == 4
    local_user.invoke_command("purge", "last")
    assert not any(local_user.settings.submissions_dir.iterdir())


def test_resume_without_the_staged_jobs_asks_for_another_submission(local_user: LocalUser) -> None:
    submit_and_die(local_user, "submit.batch.local_batch:LocalBatch.submit")
    (descriptions,) = local_user.settings.submissions_dir.glob("*/jobs.json")
    descriptions.unlink()
    local_user.invoke_command("status", "last")
    resumed = local_user.invoke_command("resume", "last")
    assert "2 jobs cannot be queued, because inputs are not on this machine" in resumed.output
    assert "no job can be queued" in str(resumed.exception)


def test_submission_that_the_database_refuses_is_named(
    local_user: LocalUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process had locked it: to repeat the command would measure twice."""
    refused = StoreError("locked", hint="Run it again.")
    with monkeypatch.context() as patch:
        patch.setattr(Store, "set_jobs", Mock(side_effect=refused))
        error = local_user.invoke_command("submit", str(local_user.test)).exception
    assert isinstance(error, StoreError)
    campaign = local_user.last_campaign_id()
    assert f"treehammer status {campaign} --follow. Else: Run it again." in error.hint
    assert "4 of 4" in local_user.invoke_command("status", "last", "--follow").output


def test_unmarked_process_dies_with_its_worker(local_user: LocalUser) -> None:
    escaped = local_user.folder / "escaped"
    (local_user.test / "run.sh").write_text(
        "#!/bin/sh\nenv -i setsid sh -c 'sleep 600 & echo $! > $0.new; mv $0.new $0; wait' "
        f"{escaped} &\nwait\n"
    )
    local_user.invoke_command("submit", str(local_user.test), "-S", "repeats=1")
    bench = local_user.queue
    bench.wait_for_status(escaped.exists)
    payload = int(escaped.read_text())
    (worker,) = bench.worker_pids()
    os.kill(worker, signal.SIGKILL)
    bench.wait_for_status(lambda: not is_alive(payload))
    with StagedSubmissions(local_user.settings.submissions_dir).hold(local_user.last_campaign_id()):
        refused = local_user.invoke_command("cancel", "last").exception
    assert "1 job cancelled, and others are still being submitted" in str(refused)


def test_purge_removes_folders_and_keeps_measurements(local_user: LocalUser) -> None:
    local_user.write_payload(0.5)
    local_user.invoke_command("submit", str(local_user.test), "-S", "repeats=1")
    first = local_user.last_campaign_id()
    busy = local_user.invoke_command("purge", first).exception
    assert isinstance(busy, ConfigError)
    assert "jobs have not ended yet" in str(busy)
    local_user.invoke_command("status", "last", "--follow")
    assert isinstance(
        local_user.invoke_command("purge", "--older-than", "1").exception, NothingToDoError
    )
    assert any(local_user.settings.spool_dir.glob("jobs/*"))
    assert "measurements are in the database" in local_user.invoke_command("purge", first).output
    assert not any(local_user.settings.spool_dir.glob("jobs/*"))
    assert len(local_user.read_measurements()) == 2
    assert "0 new measurements" in local_user.invoke_command("collect", first).output
    (site,) = json.loads(local_user.invoke_command("status", first, "--json").stdout)
    assert (site["done"], site["failures"]) == (1, {})
    assert isinstance(local_user.invoke_command("purge").exception, ConfigError)
    assert isinstance(
        local_user.invoke_command("purge", "--older-than", "0").exception, NothingToDoError
    )


def test_abandoned_spool_can_be_removed(spool: SpoolHarness) -> None:
    ids = spool.make_batch().submit("c1", [spool.describe_job("a")])
    assert spool.wait_until_final(list(ids.values())) == [JobState.DONE]
    assert spool.runner_pids(), "it waits for further jobs"
    spool.make_batch().abandon()
    shutil.rmtree(spool.spool)
    spool.wait_for_status(lambda: not spool.runner_pids())


def test_runner_leaves_removed_spool(spool: SpoolHarness) -> None:
    ids = spool.make_batch().submit("c1", [spool.describe_job("a", 1.0)])
    spool.wait_for_status(lambda: bool(spool.job_times(ids["a"])))
    spool.spool.rename(spool.folder / "removed")
    new_ids = spool.make_batch().submit("c2", [spool.describe_job("b")])
    assert spool.wait_until_final(list(new_ids.values())) == [JobState.DONE]
    spool.wait_for_status(lambda: len(spool.job_times(ids["a"])) == 2)
    spool.wait_for_status(lambda: not spool.runner_pids())


SIZE_MB = 48

GOOD = (
    """echo '{"format": 1, "values": {}, "extras": {}, "failure": null}' > "$TREEHAMMER_RESULT"\n"""
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mounted_small_disk(tmp_path / "disk", SIZE_MB) as small_disk:
        yield small_disk


@pytest.fixture
def tight(tmp_path: Path, disk: SmallDisk) -> Iterator[LocalUser]:
    """A desk whose queue lies on the small disk, and its database elsewhere."""
    desk = LocalUser(tmp_path, disk.folder / "data", f"sqlite:///{tmp_path / 'results.db'}")
    yield desk
    desk.end_processes()


def run_test(desk: LocalUser, payload: str) -> None:
    (desk.test / "run.sh").write_text(f"#!/bin/sh\n{payload}")


@pytest.mark.parametrize("room", [20_000, 600_000], ids=["to render", "to queue"])
def test_submission_onto_a_full_disk_is_refused_whole(
    tight: LocalUser, disk: SmallDisk, room: int
) -> None:
    disk.fill_disk(leave=room)
    error = tight.invoke_command("submit", str(tight.test), "-S", "repeats=8").exception
    assert isinstance(error, BatchError)
    assert error.exit_code is ExitCode.INFRASTRUCTURE
    assert error.where.startswith(str(tight.settings.data_dir))
    assert "No space left on device" in str(error)
    assert "Free disk space" in str(error)
    spool = tight.settings.spool_dir
    assert not any(spool.glob("jobs/*"))
    assert not any(spool.glob("incoming/*"))
    disk.free_space()
    assert tight.invoke_command("submit", str(tight.test)).return_value == 0
    assert len(list(spool.glob("jobs/*/*/description.toml"))) == 2
    tight.invoke_command("cancel", "last")


def test_records_that_find_no_room_are_measured_again(tight: LocalUser, disk: SmallDisk) -> None:
    once = tight.folder / "once"
    run_test(tight, f"{GOOD}if mkdir {once}; then cat /dev/zero > {disk.filler}; fi\nexit 0\n")
    tight.invoke_command("submit", str(tight.test), "-S", "repeats=2")
    bench = tight.queue
    first = sorted(tight.settings.spool_dir.glob("jobs/*/1"))[0]
    bench.wait_for_status(lambda: once.exists() and not bench.job_pids(_id(first)))
    disk.free_space()
    campaign = tight.last_campaign_id()
    tight.invoke_command("status", campaign, "--follow")
    with Store.open(tight.settings.database) as store:
        jobs = store.jobs(campaign)
        attempts = sorted((store.attempts([job.id]) for job in jobs), key=len)
        came = store.count_by_attempt(campaign)
    assert [[a.exit_code for a in of_job] for of_job in attempts] == [[0], [RETRY_EXIT_CODE, 0]]
    full = attempts[1][0]
    # With room for both records, if not for the account of the attempt, nothing is lost.
    whole = came.get((full.job_id, 1)) == 2
    assert full.failure_class == ("" if whole else "lost")
    (site,) = json.loads(tight.invoke_command("status", "last", "--json").stdout)
    assert (site["done"], site["failures"]) == (2, {}), "made good by the second attempt"


def _id(job: Path) -> str:
    return f"{job.parent.name}.{job.name}"


def test_payload_that_fills_its_folder_fails_clearly(tight: LocalUser, disk: SmallDisk) -> None:
    run_test(tight, f"seq 50000 > own; cat /dev/zero > big || {{ rm own; exit 7; }}\n{GOOD}")
    done = tight.invoke_command("submit", str(tight.test), "--wait", "-S", "repeats=1")
    assert done.return_value == 1
    assert "2 × payload at local: " in done.output
    rows = tight.read_measurements("failure_kind", "failure_message", "failure_transient")
    assert len(rows) == 2, "the record of the first found room, and the second ran"
    for row in rows:
        assert (row["failure_class"], row["failure_kind"]) == ("payload", "disk-full")
        assert f"The disk of its work folder is full, {disk.folder}: " in str(
            row["failure_message"]
        )
        assert row["failure_transient"]


def test_collecting_into_a_full_database_keeps_the_records(tmp_path: Path, disk: SmallDisk) -> None:
    desk = LocalUser(tmp_path, database=f"sqlite:///{disk.folder / 'results.db'}")
    desk.invoke_command("submit", str(desk.test), "-S", "repeats=2")
    bench = desk.queue
    bench.wait_until_final(bench.batch_ids())
    disk.fill_disk()
    error = desk.invoke_command("collect").exception
    assert isinstance(error, StoreError)
    assert error.exit_code is ExitCode.INFRASTRUCTURE
    assert str(disk.folder / "results.db") in str(error)
    # SQLite tells of it in one way or another, as it finds the log or its index without room.
    assert "Free space" in error.hint or "Check space" in error.hint
    disk.free_space()
    assert "4 new measurements, 0 known" in desk.invoke_command("collect").output
    assert "0 new measurements, 4 known" in desk.invoke_command("collect").output
    assert check_database(desk.settings.database)["measurement"] == 4
    (site,) = json.loads(desk.invoke_command("status", "last", "--json").stdout)
    assert (site["done"], site["failures"]) == (2, {})
