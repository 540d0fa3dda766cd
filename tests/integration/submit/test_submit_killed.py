"""kill -9 of each process at each stage, one at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from spool_bench import Bench
from submit_desk import Desk

from treehammer.errors import ConfigError, NothingToDo
from treehammer.sql.store import Store
from treehammer.submit.batch import processes
from treehammer.submit.batch.launch import ATTEMPT
from treehammer.submit.batch.runner import Running
from treehammer.submit.batch.spool import JobFolder
from treehammer.submit.submissions import Submissions

KILL_AT = """
import os, signal, sys
from treehammer import config
from treehammer.submit import campaign
from treehammer.submit.batch import local, spool
owner, name, calls = {owner}, {name!r}, []
real = getattr(owner, name)
def deadly(*args, **kwargs):
    calls.append(name)
    if len(calls) == {call}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **kwargs)
setattr(owner, name, deadly)
settings = config.load({{"data_dir": {data!r}}}, environ={{}})
campaign.run(campaign.Request({test!r}), settings)
"""


def submit_and_die(desk: Desk, owner: str, name: str, call: int = 1) -> None:
    """Submit in a process that kills itself when it calls a function for the nth time."""
    data, test = str(desk.settings.data_dir), str(desk.test)
    code = KILL_AT.format(owner=owner, name=name, call=call, data=data, test=test)
    done = subprocess.run([sys.executable, "-c", code], check=False, start_new_session=True)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "owner, name", [("campaign", "make_plan"), ("campaign", "describe")], ids=["plan", "render"]
)
def test_submitter_killed_before_it_stored_anything(desk: Desk, owner: str, name: str) -> None:
    submit_and_die(desk, owner, name)
    assert isinstance(desk.types("status").exception, NothingToDo)
    assert not any(desk.settings.spool_dir.glob("*/*"))


def test_submitter_killed_while_it_wrote_the_spool(desk: Desk) -> None:
    submit_and_die(desk, "spool", "stage", call=2)
    assert any(desk.settings.spool_dir.glob("incoming/*/1"))
    printed = desk.types("status", "last").output
    assert "2 × submission at local: the submission ended before this job was queued" in printed
    (site,) = json.loads(desk.types("status", "last", "--json").stdout)
    assert (site["lost"], site["failures"]) == (2, {"submission": 2})
    assert desk.types("submit", str(desk.test), "-S", "repeats=1").return_value == 0
    assert not any(desk.settings.spool_dir.glob("incoming/*"))
    assert "2 of 2" in desk.types("status", "last", "--follow").output


def test_submitter_killed_after_the_jobs_were_queued(desk: Desk) -> None:
    submit_and_die(desk, "local.LocalBatch", "_ensure_runner")
    assert "4 of 4" in desk.types("status", "last", "--follow").output
    (site,) = json.loads(desk.types("status", "last", "--json").stdout)
    assert (site["done"], site["failures"]) == (2, {})


def test_a_submission_under_way_is_told_from_a_dead_one(tmp_path: Path) -> None:
    submissions = Submissions(tmp_path / "submissions")
    assert submissions.under_way("here") is None
    with submissions.making("here") as folder:
        assert folder.is_dir()
        assert Submissions(tmp_path / "submissions").under_way("here") is True
    assert submissions.under_way("here") is None
    with pytest.raises(KeyboardInterrupt), submissions.making("here") as folder:
        raise KeyboardInterrupt
    assert submissions.under_way("here") is False
    assert not folder.exists()


def test_what_cleaned_its_environment_dies_with_its_worker(desk: Desk) -> None:
    escaped = desk.folder / "escaped"
    (desk.test / "run.sh").write_text(
        "#!/bin/sh\nenv -i setsid sh -c 'sleep 600 & echo $! > $0.new; mv $0.new $0; wait' "
        f"{escaped} &\nwait\n"
    )
    desk.types("submit", str(desk.test), "-S", "repeats=1")
    bench = Bench(desk.folder / "bench", spool=desk.settings.spool_dir)
    bench.wait(escaped.exists, 60)
    payload = int(escaped.read_text())
    (worker,) = desk.settings.spool_dir.glob("jobs/*/*/attempt-1.pid")
    os.kill(int(worker.read_text().split()[0]), signal.SIGKILL)
    bench.wait(lambda: not processes.start_time(payload), 60)
    desk.types("cancel", "last")


def test_a_pid_that_was_used_again_is_not_the_worker(tmp_path: Path) -> None:
    job = JobFolder("000001-c.1", tmp_path)
    running = Running(job, slot=1, deadline=0.0)
    me, started = os.getpid(), processes.start_time(os.getpid())
    assert running.pid(1) == 0
    job.pid_file(1).write_text(f"{me} {started}")
    assert running.pid(1) == me
    job.pid_file(1).write_text(f"{me} {started - 1}")
    assert running.pid(1) == 0


def test_a_worker_that_asks_for_it_is_started_again(bench: Bench) -> None:
    temporary = bench.job("a")
    script = bench.folder / "asks.py"
    script.write_text("import sys; sys.exit(75 if sys.argv[1] == '1' else 0)")
    text = temporary.text.replace("stand_in.py", "asks.py")
    assert ATTEMPT in text
    job = type(temporary)("a", text, {"asks.py": script})
    ids = bench.batch().submit("c1", [job])
    bench.wait_final([ids["a"]], 60)
    first, second = bench.batch().query([ids["a"]])[ids["a"]].attempts
    assert (first.exit_code, first.state.value) == (75, "lost")
    assert "asks for another attempt" in first.reason
    assert (second.exit_code, second.state.value) == (0, "done")


def test_purge_gives_back_the_room_and_keeps_the_measurements(desk: Desk) -> None:
    desk.payload(0.5)
    desk.types("submit", str(desk.test), "-S", "repeats=1")
    first = desk.submitted_id()
    busy = desk.types("purge", first).exception
    assert isinstance(busy, ConfigError)
    assert "jobs are under way" in str(busy)
    desk.types("status", "last", "--follow")
    assert isinstance(desk.types("purge", "--older-than", "1").exception, NothingToDo)
    assert any(desk.settings.spool_dir.glob("jobs/*"))
    assert "measurements are in the database" in desk.types("purge", first).output
    assert not any(desk.settings.spool_dir.glob("jobs/*"))
    assert len(desk.rows()) == 2
    assert "0 new measurements" in desk.types("collect", first).output
    (site,) = json.loads(desk.types("status", first, "--json").stdout)
    assert (site["done"], site["failures"]) == (1, {})
    assert isinstance(desk.types("purge").exception, ConfigError)
    assert isinstance(desk.types("purge", "--older-than", "0").exception, NothingToDo)


def test_a_damaged_record_is_accounted_for_and_kept(desk: Desk) -> None:
    desk.types("submit", str(desk.test), "-S", "repeats=1")
    bench = Bench(desk.folder / "bench", spool=desk.settings.spool_dir)
    bench.wait_final(bench.batch_ids(), 60)
    record = next(iter(desk.settings.spool_dir.glob("jobs/*/*/*/records/*.json")))
    record.write_text("{")
    printed = desk.types("status", "last")
    assert "1 × upload at local: not a record" in printed.output
    refused = desk.types("purge", "last").exception
    assert isinstance(refused, ConfigError)
    assert "records-refused" in str(refused)
    with Store.open(desk.settings.database) as store:
        assert sum(row.measurements for row in store.counts(desk.submitted_id())) == 1


def test_a_runner_leaves_when_its_spool_was_removed(bench: Bench) -> None:
    ids = bench.batch().submit("c1", [bench.job("a", 1.0)])
    bench.wait(lambda: bool(bench.times(ids["a"])), 60)
    bench.spool.rename(bench.folder / "removed")
    bench.wait(lambda: not bench.runner_pids(), 60)
    bench.wait(lambda: len(bench.times(ids["a"])) == 2, 60)
