"""Local batch system with its real runner and processes."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from spool_harness import SpoolHarness

from treehammer.collectors.job_spec import JobState
from treehammer.errors import BatchError
from treehammer.submit.batch.interface import JobDescription


def test_jobs_run_in_order_and_one_at_a_time(spool: SpoolHarness) -> None:
    ids = spool.make_batch(slots=1).submit(
        "c1", [spool.describe_job(f"j{i}", 0.15) for i in range(4)]
    )
    assert spool.wait_until_final(list(ids.values())) == [JobState.DONE] * 4
    spans = [spool.job_times(batch_id) for batch_id in ids.values()]
    assert all([event for event, _, _ in span] == ["start", "end"] for span in spans)
    for before, after in itertools.pairwise(spans):
        assert before[1][2] <= after[0][2]


def test_two_slots_run_two_jobs_at_once(spool: SpoolHarness) -> None:
    ids = spool.make_batch(slots=2).submit(
        "c1", [spool.describe_job(f"j{i}", 0.6) for i in range(4)]
    )
    spool.wait_until_final(list(ids.values()))
    events = sorted((when, event) for b in ids.values() for event, _, when in spool.job_times(b))
    level, highest = 0, 0
    for _, event in events:
        level += 1 if event == "start" else -1
        highest = max(highest, level)
    assert highest == 2


def test_jobs_take_a_slot_for_each_cpu(spool: SpoolHarness) -> None:
    cpus = {"one": 1, "two": 2, "six": 6, "last": 1}
    ids = spool.make_batch(slots=2).submit(
        "c1", [spool.describe_job(name, 0.3, cpus=count) for name, count in cpus.items()]
    )
    assert spool.wait_until_final(list(ids.values())) == [JobState.DONE] * 4
    spans = [spool.job_times(ids[name]) for name in cpus]
    for before, after in itertools.pairwise(spans):
        assert before[1][2] <= after[0][2]


def test_runner_leaves_empty_queue_and_returns_for_new_jobs(spool: SpoolHarness) -> None:
    first = spool.make_batch().submit("c1", [spool.describe_job("a")])
    spool.wait_until_final(list(first.values()))
    spool.wait_for_status(lambda: not spool.runner_pids())
    second = spool.make_batch().submit("c2", [spool.describe_job("b")])
    assert spool.wait_until_final(list(second.values())) == [JobState.DONE]


def test_repeated_job_is_queued_once(spool: SpoolHarness) -> None:
    once = spool.make_batch().submit("c1", [spool.describe_job("a"), spool.describe_job("a")])
    again = spool.make_batch().submit("c1", [spool.describe_job("a"), spool.describe_job("b")])
    assert again["a"] == once["a"]
    spool.wait_until_final(list(again.values()))
    assert len(spool.batch_ids()) == 2
    assert len(spool.job_times(once["a"])) == 2


def test_cancelled_jobs_are_queued_again_once(spool: SpoolHarness) -> None:
    batch = spool.make_batch()
    jobs = [spool.describe_job("a", 60), spool.describe_job("b", 0.1), spool.describe_job("c")]
    first = batch.submit("c1", jobs)
    spool.wait_for_status(lambda: bool(spool.job_times(first["a"])))
    batch.cancel(first.values())
    assert spool.wait_until_final(list(first.values())) == [JobState.CANCELLED] * 3
    earlier = {first["b"]: 0, first["c"]: 4}
    again = batch.requeue(earlier, lambda _job, sent: sent)
    assert set(again) == set(earlier)
    assert batch.requeue(earlier, lambda _job, sent: sent) == again
    assert spool.wait_until_final(list(again.values())) == [JobState.DONE] * 2
    # Attempts continue to count from the last one.
    assert [spool.job_times(new)[0][1] for new in again.values()] == [1, 5]
    assert list(batch.sandboxes(again[first["c"]])) == [5]
    assert batch.find(["a", "b"]) == {"a": first["a"], "b": again[first["b"]]}


def test_requeued_jobs_are_purged_with_their_earlier_cluster(spool: SpoolHarness) -> None:
    batch = spool.make_batch()
    first = batch.submit("c1", [spool.describe_job("a"), spool.describe_job("b")])
    spool.wait_until_final(list(first.values()))
    again = batch.requeue({first["a"]: 1}, lambda _job, sent: sent)
    spool.wait_until_final(list(again.values()))
    assert batch.purge([again[first["a"]]]) > 0
    assert batch.find(["a", "b"]) == first
    assert batch.purge([first["a"], first["b"]]) > 0
    assert batch.find(["a", "b"]) == {}


def test_requeued_job_has_replaced_inputs(spool: SpoolHarness, tmp_path: Path) -> None:
    batch = spool.make_batch()
    first = batch.submit("c1", [spool.describe_job("a")])
    spool.wait_until_final(list(first.values()))
    token = tmp_path / "token"
    token.write_text("new")
    again = batch.requeue({first["a"]: 1}, lambda _job, sent: {**sent, "token": token})
    spool.wait_until_final(list(again.values()))
    assert (batch.sandboxes(again[first["a"]])[2] / "token").read_text() == "new"


def test_exit_code_is_kept(spool: SpoolHarness) -> None:
    ids = spool.make_batch().submit("c1", [spool.describe_job("a", mode="fail")])
    spool.wait_until_final([ids["a"]])
    (attempt,) = spool.make_batch().query([ids["a"]])[ids["a"]].attempts
    assert attempt.exit_code == 3
    assert 0 < attempt.started_us <= attempt.ended_us


def test_cancel_ends_all_processes(spool: SpoolHarness) -> None:
    batch = spool.make_batch()
    ids = batch.submit(
        "c1", [spool.describe_job("run", 600, "escape"), spool.describe_job("wait", 600)]
    )
    spool.wait_for_status(lambda: len(spool.job_pids(ids["run"])) >= 2)
    assert batch.cancel(ids.values()) == 2
    states = batch.query(ids.values())
    assert {s.state for s in states.values()} == {JobState.CANCELLED}
    assert not spool.job_pids(ids["run"])
    assert spool.job_times(ids["wait"]) == []
    assert batch.cancel(ids.values()) == 0


def test_cancel_kills_processes_that_ignore_sigterm(spool: SpoolHarness) -> None:
    batch = spool.make_batch()
    ids = batch.submit("c1", [spool.describe_job("deaf", 600, "stubborn")])
    spool.wait_for_status(lambda: len(spool.job_pids(ids["deaf"])) >= 2)
    batch.cancel(ids.values())
    assert batch.query(ids.values())[ids["deaf"]].state is JobState.CANCELLED
    assert not spool.job_pids(ids["deaf"])


def test_job_over_wall_limit_is_lost(spool: SpoolHarness) -> None:
    ids = spool.make_batch().submit(
        "c1", [spool.describe_job("long", 600, wall_s=0.5), spool.describe_job("next")]
    )
    assert spool.wait_until_final(list(ids.values())) == [JobState.LOST, JobState.DONE]
    attempts = spool.make_batch().query([ids["long"]])[ids["long"]].attempts
    assert len(attempts) == 1
    assert "wall limit" in attempts[0].reason


def test_processes_that_outlive_worker_are_killed(spool: SpoolHarness) -> None:
    ids = spool.make_batch().submit("c1", [spool.describe_job("a", 0.1, "escape")])
    spool.wait_until_final([ids["a"]])
    assert not spool.job_pids(ids["a"])


def test_killed_worker_is_retried_in_new_sandbox(spool: SpoolHarness) -> None:
    batch = spool.make_batch()
    ids = batch.submit("c1", [spool.describe_job("a", mode="suicide")])
    assert spool.wait_until_final([ids["a"]]) == [JobState.LOST]
    status = batch.query([ids["a"]])[ids["a"]]
    assert [a.number for a in status.attempts] == [1, 2]
    assert all("SIGKILL" in a.reason for a in status.attempts)
    assert set(batch.sandboxes(ids["a"])) == {1, 2}


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
        assert before[1][2] <= after[0][2], "the successor counts adopted jobs as running"


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


def test_cancel_ends_adopted_job(spool: SpoolHarness) -> None:
    batch = spool.make_batch()
    ids = batch.submit("c1", [spool.describe_job("a", 600, "escape")])
    spool.wait_for_status(lambda: len(spool.job_pids(ids["a"])) >= 2)
    spool.kill_runner()
    assert batch.cancel(ids.values()) == 1
    assert batch.query(ids.values())[ids["a"]].state is JobState.CANCELLED
    assert not spool.job_pids(ids["a"])


def test_jobs_survive_killed_submitter(spool: SpoolHarness) -> None:
    script = textwrap.dedent(f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from treehammer.submit.batch.interface import JobDescription
        from treehammer.submit.batch.local_batch import LocalBatch
        text = Path({str(spool.folder / "text")!r}).read_text()
        job = JobDescription("a", text, {{"stand_in.py": Path({str(spool.script)!r})}})
        LocalBatch(Path({str(spool.spool)!r})).submit("c1", [job])
        os.killpg(os.getpgid(0), signal.SIGKILL)
    """)
    (spool.folder / "text").write_text(spool.describe_job("a", 0.5).text)
    ended = subprocess.run([sys.executable, "-c", script], start_new_session=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    found = spool.make_batch().find(["a", "unknown"])
    assert set(found) == {"a"}
    assert spool.wait_until_final([found["a"]]) == [JobState.DONE]


def test_submission_is_all_or_nothing(spool: SpoolHarness) -> None:
    broken = JobDescription("b", "", {"missing": spool.folder / "missing"})
    with pytest.raises(BatchError, match="Nothing was submitted"):
        spool.make_batch().submit("c1", [spool.describe_job("a"), broken])
    assert spool.make_batch().find(["a", "b"]) == {}
    leftover = spool.spool / "incoming" / "000009-killed"
    leftover.mkdir()
    ids = spool.make_batch().submit("c1", [spool.describe_job("a")])
    assert not leftover.exists()
    spool.wait_until_final([ids["a"]])


def test_invalid_description_is_lost_with_reason(spool: SpoolHarness) -> None:
    text = spool.describe_job("a").text.replace(sys.executable, "/nonexistent/python")
    ids = spool.make_batch().submit(
        "c1",
        [
            JobDescription("a", text, {}),
            JobDescription("b", "no description", {}),
            spool.describe_job("c"),
        ],
    )
    states = spool.wait_until_final(list(ids.values()))
    assert states == [JobState.LOST, JobState.LOST, JobState.DONE]
    statuses = spool.make_batch().query(ids.values())
    assert "/nonexistent/python" in statuses[ids["a"]].attempts[-1].reason
    assert "job description" in statuses[ids["b"]].attempts[-1].reason


def test_unknown_jobs_are_absent(spool: SpoolHarness) -> None:
    batch = spool.make_batch()
    assert batch.query(["000001-c.1", "../../etc.1", "nonsense", ""]) == {}
    assert batch.sandboxes("000001-c.1") == {}
    assert batch.cancel(["000001-c.1"]) == 0
