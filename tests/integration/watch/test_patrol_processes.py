"""Patrols as processes: two at once, stopped, and killed at random moments."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

from captured_runs import commit_all, run_captured, run_git
from polling import wait_until
from postgres_fixture import SharedPostgresServer

import treehammer
from treehammer import config
from treehammer.config import Settings
from treehammer.sql.read.reader import ResultsReader
from treehammer.sql.write.store import Store
from treehammer.watch.patrol.campaign_starts import CampaignStarter
from treehammer.watch.patrol.patrol_file import PatrolFile, read_patrol_file
from treehammer.watch.patrol.patrol_service import Patrol, open_patrol
from treehammer.watch.store.patrol_report import PatrolReport, load_report
from treehammer.watch.store.patrol_starts import FINISHED, PatrolLease, PatrolStarts

TEST_TOML = """
[test]
name = "shell"
payload = "run.sh"
repeats = 1
rounds = 1
wall_limit_s = 60
[matrix]
style = ["one", "two"]
bundle = ["style"]
[metrics.answer]
unit = "1"
"""
PAYLOAD = """#!/bin/sh
echo '{"format": 1, "values": {}, "extras": {"answer": 42}, "failure": null}' > "$TREEHAMMER_RESULT"
"""
#: Seconds for each step; a few on an idle machine.
WAIT_S = 180
PATROL_TOML = """
[entries.clock]
test = "./test"
sites = ["local"]
every = "3s"
in_flight = 20
"""


def make_test(folder: Path) -> None:
    """Make a test of two short payloads in a folder."""
    test = folder / "test"
    test.mkdir(parents=True)
    (test / "test.toml").write_text(TEST_TOML)
    (test / "run.sh").write_text(PAYLOAD)
    (test / "run.sh").chmod(0o755)


@contextmanager
def run_patrol(folder: Path, name: str, url: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a patrol with a data folder of its own, as on another machine."""
    command = [sys.executable, "-m", "treehammer", "--data-dir", str(folder / name)]
    environment = {**os.environ, "TREEHAMMER_DATABASE": url}
    with (folder / f"{name}.log").open("w") as log:
        patrol = subprocess.Popen(
            [*command, "patrol", "run", "patrol.toml"], cwd=folder, env=environment, stderr=log
        )
        try:
            yield patrol
        finally:
            patrol.kill()
            patrol.wait()


def read_report(url: str) -> PatrolReport:
    with ResultsReader.open(url) as reader:
        return load_report(reader)


def test_one_of_two_patrols_leads_and_the_other_takes_over(
    tmp_path: Path, postgresql: SharedPostgresServer
) -> None:
    make_test(tmp_path)
    (tmp_path / "patrol.toml").write_text(PATROL_TOML)
    url = postgresql.url(postgresql.make_store_database())
    with run_patrol(tmp_path, "first", url) as first:
        wait_until(
            lambda: len(read_report(url).starts) >= 2, "the first patrol starts campaigns", WAIT_S
        )
        with run_patrol(tmp_path, "second", url) as second:
            log = tmp_path / "second.log"
            wait_until(
                lambda: "stands by" in log.read_text(), "the second patrol stands by", WAIT_S
            )
            before = read_report(url)
            assert before.lease is not None
            assert before.lease.holder.endswith("first")
            assert {start.holder for start in before.starts} == {before.lease.holder}
            first.send_signal(signal.SIGTERM)
            assert first.wait(60) == 0

            def second_has_started() -> bool:
                return any(start.holder.endswith("second") for start in read_report(url).starts)

            wait_until(second_has_started, "the second patrol takes over", WAIT_S)
            second.send_signal(signal.SIGTERM)
            assert second.wait(60) == 0
    starts = Counter(start.occasion for start in read_report(url).starts)
    assert set(starts.values()) == {1}


IDLE_PATROL_TOML = """
[entries.never]
test = "ttree-read"
sites = ["local"]
every = "1h"
quiet_hours = ["00:00-12:00", "12:00-00:00"]
"""


def test_sigterm_ends_a_patrol_and_its_lease(tmp_path: Path) -> None:
    (tmp_path / "patrol.toml").write_text(IDLE_PATROL_TOML)
    url = f"sqlite:///{tmp_path / 'results.db'}"
    words = ["--data-dir", ".", "patrol", "run", "patrol.toml"]
    command = [sys.executable, "-m", "treehammer", *words]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as patrol:
        assert patrol.stderr
        assert any(line.rstrip().endswith("leads") for line in patrol.stderr)
        once = run_captured([*command, "--once"], cwd=tmp_path)
        assert (once.returncode, "another patrol uses" in once.stderr) == (3, True)
        until = run_captured([*command, "--until", "1s"], cwd=tmp_path, timeout=30)
        assert (until.returncode, "waiting until" in until.stderr) == (0, True)
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE) as waiting:
            assert any(b"waiting" in line for line in waiting.stderr or ())
            waiting.terminate()
            assert waiting.wait(30) == -signal.SIGTERM
        assert read_report(url).has_leader
        patrol.send_signal(signal.SIGTERM)
        assert "patrol ends" in patrol.stderr.read()
    report = read_report(url)
    assert (patrol.returncode, report.has_leader) == (0, False)
    assert (report.entries[0].entry.note, report.entries[0].entry.next_us) == ("quiet hours", None)


KILLS = 4
#: Function calls after which a patrol is killed at the latest, counted from its begin or, for every
#: second patrol, from its first start. A start takes some 45,000.
MAX_CALLS, MAX_CALLS_OF_START = 100_000, 50_000
#: CPU hours of a day, of which a campaign without history reserves 120 s.
CPU_HOURS = 0.1
KILLED_PATROL_TOML = f"""
[patrol]
look_every = "1s"
[budget]
cpu_hours = {CPU_HOURS}
[entries.clock]
test = "./repository/test"
sites = ["local"]
every = "1s"
in_flight = 6
[entries.idea]
repository = "./repository"
path = "test"
branch = "main"
sites = ["local"]
in_flight = 6
"""
_PACKAGE = str(Path(treehammer.__file__).parent.resolve())
SOURCES = (_PACKAGE, str(Path(_PACKAGE).parents[1]))


def run_child(work: Callable[[], None]) -> int:
    """Run work in a forked process and return its exit code; negative for a signal."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def run_until_killed(
    settings: Settings, content: PatrolFile, max_calls: int, in_start: bool
) -> None:
    """Run a patrol, and kill this process after some of the patrol's function calls."""
    calls, is_counting = 0, not in_start

    def count_call(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls, is_counting
        is_counting = is_counting or frame.f_code is CampaignStarter.start_campaign.__code__
        if is_counting and event == "call" and frame.f_code.co_filename.startswith(SOURCES):
            calls += 1
            if calls == max_calls:
                os.kill(os.getpid(), signal.SIGKILL)

    with open_patrol(settings, content) as patrol:
        sys.setprofile(count_call)
        while True:
            patrol.run_round()
            time.sleep(0.05)


def finish_campaigns(settings: Settings, content: PatrolFile) -> None:
    """Start the last commit, then run until every campaign has ended."""
    idea = {"idea": content.entries["idea"]}
    for entries in (idea, {}):
        last = content.model_copy(update={"entries": entries})
        with open_patrol(settings, last) as patrol, Store.open(settings.database) as store:
            starts = PatrolStarts(store, PatrolLease(store, "reader"))

            def is_drained(patrol: Patrol = patrol, starts: PatrolStarts = starts) -> bool:
                patrol.run_round()
                return not starts.list_open()

            wait_until(is_drained, "campaigns have not ended", 300)


def test_killed_patrol_starts_each_campaign_once(tmp_path: Path) -> None:
    """Every start is one campaign whose jobs ran once, and no budget is ever exceeded."""
    flags = {"data_dir": tmp_path / "data", "cache_dir": tmp_path / "cache"}
    settings = config.load_settings(flags, environ={}, folder=tmp_path)
    repository = tmp_path / "repository"
    make_test(repository)
    run_git(repository, "init", "--quiet", "--initial-branch=main")
    (tmp_path / "patrol.toml").write_text(KILLED_PATROL_TOML)
    content = read_patrol_file(tmp_path / "patrol.toml")
    dice = random.Random(19)
    for number in range(KILLS):
        last_commit = commit_all(repository, f"change {number}")
        in_start = number % 2 == 1
        calls = dice.randint(1, MAX_CALLS_OF_START if in_start else MAX_CALLS)
        work = partial(run_until_killed, settings, content, calls, in_start)
        assert run_child(work) == -signal.SIGKILL
        check_budgets(settings)
    assert run_child(partial(finish_campaigns, settings, content)) == 0
    check_budgets(settings)
    with Store.open(settings.database) as store:
        with store.connection() as connection:
            starts = connection.exec_driver_sql(
                "SELECT campaign_id, state, occasion FROM patrol_start WHERE campaign_id IS NOT NULL"
            ).all()
            unsettled = "SELECT COUNT(*) FROM patrol_charge WHERE used_cpu_s IS NULL"
            assert connection.exec_driver_sql(unsettled).scalar_one() == 0
        campaigns = [campaign.id for campaign in store.campaigns()]
        jobs = [job for campaign in campaigns for job in store.jobs(campaign)]
        attempts = Counter(attempt.job_id for attempt in store.attempts(job.id for job in jobs))
        recorded = Counter[str]()
        for campaign in campaigns:
            counts = store.count_by_attempt(campaign)
            recorded.update({job: count for (job, _), count in counts.items()})
    assert campaigns
    assert sorted(start[0] for start in starts) == sorted(campaigns)
    assert {start[1] for start in starts} == {FINISHED}
    assert f"commit:{last_commit}" in {start[2] for start in starts}
    assert recorded == {job.id: job.planned_measurements for job in jobs}
    assert set(attempts.values()) <= {1}
    assert len(list(settings.spool_dir.glob("jobs/*/*/description.toml"))) <= len(jobs)


def check_budgets(settings: Settings) -> None:
    with Store.open(settings.database) as store:
        assert all(site.use.cpu_s <= CPU_HOURS * 3600 for site in load_report(store).sites)
