"""The local batch system, with its real runner and real processes."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from spool_bench import Bench

from treehammer.errors import BatchError
from treehammer.submit.batch.base import Description, JobState


def test_jobs_run_in_order_and_one_at_a_time(bench: Bench) -> None:
    ids = bench.batch(slots=1).submit("c1", [bench.job(f"j{i}", 0.15) for i in range(4)])
    assert bench.wait_final(list(ids.values())) == [JobState.DONE] * 4
    spans = [bench.times(batch_id) for batch_id in ids.values()]
    assert all([what for what, _, _ in span] == ["start", "end"] for span in spans)
    for before, after in itertools.pairwise(spans):
        assert before[1][2] <= after[0][2]


def test_two_slots_overlap_and_three_never_do(bench: Bench) -> None:
    ids = bench.batch(slots=2).submit("c1", [bench.job(f"j{i}", 0.6) for i in range(4)])
    bench.wait_final(list(ids.values()))
    events = sorted((when, what) for b in ids.values() for what, _, when in bench.times(b))
    level, highest = 0, 0
    for _, what in events:
        level += 1 if what == "start" else -1
        highest = max(highest, level)
    assert highest == 2


def test_the_runner_leaves_when_nothing_is_left_and_returns_for_more(bench: Bench) -> None:
    first = bench.batch().submit("c1", [bench.job("a")])
    bench.wait_final(list(first.values()))
    bench.wait(lambda: not bench.runner_pids())
    second = bench.batch().submit("c2", [bench.job("b")])
    assert bench.wait_final(list(second.values())) == [JobState.DONE]


def test_the_same_job_twice_is_harmless(bench: Bench) -> None:
    once = bench.batch().submit("c1", [bench.job("a"), bench.job("a")])
    again = bench.batch().submit("c1", [bench.job("a"), bench.job("b")])
    assert again["a"] == once["a"]
    bench.wait_final(list(again.values()))
    assert len(bench.batch_ids()) == 2
    assert len(bench.times(once["a"])) == 2


def test_exit_code_is_kept(bench: Bench) -> None:
    ids = bench.batch().submit("c1", [bench.job("a", mode="fail")])
    bench.wait_final([ids["a"]])
    (attempt,) = bench.batch().query([ids["a"]])[ids["a"]].attempts
    assert attempt.exit_code == 3
    assert 0 < attempt.started_us <= attempt.ended_us


def test_cancel_of_queued_and_running_ends_every_process(bench: Bench) -> None:
    batch = bench.batch()
    ids = batch.submit("c1", [bench.job("run", 600, "escape"), bench.job("wait", 600)])
    bench.wait(lambda: len(bench.processes(ids["run"])) >= 2)
    assert batch.cancel(ids.values()) == 2
    states = batch.query(ids.values())
    assert {s.state for s in states.values()} == {JobState.CANCELLED}
    assert not bench.processes(ids["run"])
    assert bench.times(ids["wait"]) == []
    assert batch.cancel(ids.values()) == 0


def test_cancel_kills_what_ignores_sigterm(bench: Bench) -> None:
    batch = bench.batch()
    ids = batch.submit("c1", [bench.job("deaf", 600, "stubborn")])
    bench.wait(lambda: len(bench.processes(ids["deaf"])) >= 2)
    batch.cancel(ids.values())
    assert batch.query(ids.values())[ids["deaf"]].state is JobState.CANCELLED
    assert not bench.processes(ids["deaf"])


def test_wall_limit_of_the_job(bench: Bench) -> None:
    ids = bench.batch().submit("c1", [bench.job("long", 600, wall_s=0.5), bench.job("next")])
    assert bench.wait_final(list(ids.values())) == [JobState.LOST, JobState.DONE]
    attempts = bench.batch().query([ids["long"]])[ids["long"]].attempts
    assert len(attempts) == 1
    assert "wall limit" in attempts[0].reason


def test_processes_that_outlive_the_worker_are_ended(bench: Bench) -> None:
    ids = bench.batch().submit("c1", [bench.job("a", 0.1, "escape")])
    bench.wait_final([ids["a"]])
    assert not bench.processes(ids["a"])


def test_a_killed_worker_is_tried_once_more_in_a_fresh_sandbox(bench: Bench) -> None:
    batch = bench.batch()
    ids = batch.submit("c1", [bench.job("a", mode="suicide")])
    assert bench.wait_final([ids["a"]]) == [JobState.LOST]
    status = batch.query([ids["a"]])[ids["a"]]
    assert [a.number for a in status.attempts] == [1, 2]
    assert all("SIGKILL" in a.reason for a in status.attempts)
    assert set(batch.sandboxes(ids["a"])) == {1, 2}


def test_killed_runner_loses_and_doubles_nothing(bench: Bench) -> None:
    batch = bench.batch()
    ids = batch.submit("c1", [bench.job(f"j{i}", 1.0) for i in range(4)])
    order = list(ids.values())
    for index in (0, 2):
        bench.wait(lambda i=index: bool(bench.times(order[i])))  # type: ignore[misc]
        bench.kill_runner()
        batch.query(order)  # as `status` would: starts the next runner
    assert bench.wait_final(order) == [JobState.DONE] * 4
    spans = [bench.times(batch_id) for batch_id in order]
    assert all([(w, a) for w, a, _ in span] == [("start", 1), ("end", 1)] for span in spans)
    for before, after in itertools.pairwise(spans):
        assert before[1][2] <= after[0][2], "a successor must count adopted jobs as running"


def test_job_that_ended_while_no_runner_lived_is_recognised(bench: Bench) -> None:
    batch = bench.batch()
    ids = batch.submit("c1", [bench.job("ends", 0.8), bench.job("dies", 600)])
    bench.wait(lambda: bool(bench.times(ids["ends"])))
    bench.kill_runner()
    bench.wait(lambda: len(bench.times(ids["ends"])) == 2)
    batch.query(ids.values())
    bench.wait(lambda: bool(bench.times(ids["dies"])))
    bench.kill_runner()
    for pid in bench.processes(ids["dies"]):
        os.kill(pid, signal.SIGKILL)
    batch.query(ids.values())
    bench.wait(lambda: len(bench.times(ids["dies"])) == 2)
    batch.cancel(ids.values())
    statuses = batch.query(ids.values())
    assert statuses[ids["ends"]].state is JobState.DONE
    first, second = statuses[ids["dies"]].attempts
    assert (first.state, second.state) == (JobState.LOST, JobState.CANCELLED)


def test_cancel_reaches_an_adopted_job(bench: Bench) -> None:
    batch = bench.batch()
    ids = batch.submit("c1", [bench.job("a", 600, "escape")])
    bench.wait(lambda: len(bench.processes(ids["a"])) >= 2)
    bench.kill_runner()
    assert batch.cancel(ids.values()) == 1
    assert batch.query(ids.values())[ids["a"]].state is JobState.CANCELLED
    assert not bench.processes(ids["a"])


def test_jobs_survive_the_killed_submitter(bench: Bench) -> None:
    script = textwrap.dedent(f"""
        import os, signal, sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from treehammer.submit.batch.base import Description
        from treehammer.submit.batch.local import LocalBatch
        text = Path({str(bench.folder / "text")!r}).read_text()
        job = Description("a", text, {{"stand_in.py": Path({str(bench.script)!r})}})
        LocalBatch(Path({str(bench.spool)!r})).submit("c1", [job])
        os.killpg(os.getpgid(0), signal.SIGKILL)
    """)
    (bench.folder / "text").write_text(bench.job("a", 0.5).text)
    ended = subprocess.run([sys.executable, "-c", script], start_new_session=True, check=False)
    assert ended.returncode == -signal.SIGKILL
    found = bench.batch().find(["a", "unknown"])
    assert set(found) == {"a"}
    assert bench.wait_final([found["a"]]) == [JobState.DONE]


def test_submission_is_all_or_nothing(bench: Bench) -> None:
    broken = Description("b", "", {"missing": bench.folder / "missing"})
    with pytest.raises(BatchError, match="Nothing was submitted"):
        bench.batch().submit("c1", [bench.job("a"), broken])
    assert bench.batch().find(["a", "b"]) == {}
    leftover = bench.spool / "incoming" / "000009-killed"
    leftover.mkdir()
    ids = bench.batch().submit("c1", [bench.job("a")])
    assert not leftover.exists()
    bench.wait_final([ids["a"]])


def test_a_description_that_cannot_run_is_lost_with_its_reason(bench: Bench) -> None:
    text = bench.job("a").text.replace(sys.executable, "/nonexistent/python")
    ids = bench.batch().submit(
        "c1", [Description("a", text, {}), Description("b", "no description", {}), bench.job("c")]
    )
    states = bench.wait_final(list(ids.values()))
    assert states == [JobState.LOST, JobState.LOST, JobState.DONE]
    statuses = bench.batch().query(ids.values())
    assert "/nonexistent/python" in statuses[ids["a"]].attempts[-1].reason
    assert "job description" in statuses[ids["b"]].attempts[-1].reason


def test_unknown_jobs_are_absent(bench: Bench) -> None:
    batch = bench.batch()
    assert batch.query(["000001-c.1", "../../etc.1", "nonsense", ""]) == {}
    assert batch.sandboxes("000001-c.1") == {}
    assert batch.cancel(["000001-c.1"]) == 0
