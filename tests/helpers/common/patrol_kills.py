"""Patrol killed at random: campaigns lost or doubled, and budgets kept.

A patrol starts campaigns by time and by commit on this machine. It is killed with SIGKILL at a
random one of its function calls and started again, many times; at last it ends by itself. Every
start must then be one campaign whose jobs ran once, and no budget may ever be exceeded.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import treehammer
from treehammer import config
from treehammer.config import Settings
from treehammer.patrol.campaign_starts import CampaignStarter
from treehammer.patrol.patrol_file import read_patrol_file
from treehammer.patrol.patrol_service import Patrol, open_patrol
from treehammer.sql.core.rows import JobRow
from treehammer.sql.watch.patrol_report import fetch_report
from treehammer.sql.watch.patrol_starts import FINISHED, PatrolLease, PatrolStarts
from treehammer.sql.write.store import Store

#: Function calls after which a patrol is killed at the latest, counted from its begin or, for every
#: second patrol, from its first start. A start takes some 45,000.
MAX_CALLS, MAX_CALLS_OF_START = 100_000, 50_000
#: CPU hours of a day, of which a campaign without history reserves 120 s.
CPU_HOURS = 0.1

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
PATROL_TOML = """
[patrol]
look_every = "1s"
[budget]
cpu_hours = CPU_HOURS
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
_SOURCES = (_PACKAGE, str(Path(_PACKAGE).parents[1]))


@dataclass(frozen=True)
class KillReport:
    """Result of the kills.

    Attributes:
        kills: patrols that were killed.
        starts: starts that the patrols claimed.
        campaigns: campaigns in the database.
        lost: starts without a campaign, campaigns with jobs that did not end well, and commits
            without a start.
        doubled: campaigns without a start, jobs that were queued or ran more than once.
        over_budget: times that a site was charged more than its budget.
        unsettled: starts whose reservation was not settled.
        killed_in: state of the latest start -> kills.
        seconds: duration.
    """

    kills: int
    starts: int
    campaigns: int
    lost: int
    doubled: int
    over_budget: int
    unsettled: int
    killed_in: dict[str, int]
    seconds: float


class KilledPatrol:
    """A patrol in a folder of its own, started and killed as a child process.

    Args:
        folder: an empty folder.
        seed: of the random moments.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._random = random.Random(seed)
        flags = {"data_dir": folder / "data", "cache_dir": folder / "cache"}
        self.settings: Settings = config.load_settings(flags, environ={}, folder=folder)
        self._repository = folder / "repository"
        test = self._repository / "test"
        test.mkdir(parents=True)
        self._run_git("init", "--quiet", "--initial-branch=main")
        (test / "test.toml").write_text(TEST_TOML)
        (test / "run.sh").write_text(PAYLOAD)
        (test / "run.sh").chmod(0o755)
        self._last_commit = ""
        file = folder / "patrol.toml"
        file.write_text(PATROL_TOML.replace("CPU_HOURS", str(CPU_HOURS)))
        self._content = read_patrol_file(file)

    def run(self, kills: int) -> KillReport:
        """Kill patrols, let the last one end, and examine the database."""
        begin = time.monotonic()
        over_budget, killed_in = 0, Counter[str]()
        for number in range(kills):
            self._last_commit = self._commit(f"change {number}")
            in_start = number % 2 == 1
            calls = self._random.randint(1, MAX_CALLS_OF_START if in_start else MAX_CALLS)
            work = partial(self._run_until_killed, calls, in_start)
            if self._run_child(work) != -signal.SIGKILL:
                raise RuntimeError("the patrol ended before it was killed")
            over_budget += self._count_exceeded()
            killed_in[self._latest_state()] += 1
        if self._run_child(self._finish):
            raise RuntimeError("the last patrol failed")
        over_budget += self._count_exceeded()
        return self._examine(kills, over_budget, dict(killed_in), time.monotonic() - begin)

    def _commit(self, text: str) -> str:
        """Commit everything, also without changes; return the commit."""
        self._run_git("add", "--all")
        self._run_git("commit", "--quiet", "--allow-empty", "--message", text)
        return self._run_git("rev-parse", "HEAD")

    def _run_git(self, *arguments: str) -> str:
        command = (
            "git",
            "-c",
            "user.name=me",
            "-c",
            "user.email=me@localhost",
            "-c",
            "commit.gpgsign=false",
            *arguments,
        )
        done = subprocess.run(command, cwd=self._repository, check=True, capture_output=True)
        return done.stdout.decode().strip()

    # Child processes

    def _run_child(self, work: Callable[[], None]) -> int:
        """Run work in a child process and return its exit code; negative for a signal."""
        pid = os.fork()
        if not pid:
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _run_until_killed(self, calls: int, in_start: bool) -> None:
        left, is_counting = calls, not in_start

        def count(frame: FrameType, event: str, _argument: object) -> None:
            nonlocal left, is_counting
            is_counting = is_counting or frame.f_code is CampaignStarter.start_campaign.__code__
            if is_counting and event == "call" and frame.f_code.co_filename.startswith(_SOURCES):
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)

        with open_patrol(self.settings, self._content) as patrol:
            sys.setprofile(count)
            while True:
                patrol.run_round()
                time.sleep(0.05)

    def _finish(self) -> None:
        """Start the last commit, then run until every campaign has ended."""
        _, idea = self._content.entries.values()
        for entries in ({idea.name: idea}, {}):
            content = self._content.model_copy(update={"entries": entries})
            with open_patrol(self.settings, content) as patrol:
                self._drain(patrol)

    def _drain(self, patrol: Patrol) -> None:
        deadline = time.monotonic() + 300
        patrol.run_round()
        while self._list_states()[0]:
            if time.monotonic() > deadline:
                raise TimeoutError("campaigns have not ended within 300 s")
            time.sleep(0.3)
            patrol.run_round()

    # Examination

    def _list_states(self) -> tuple[int, list[str]]:
        """Return the number of campaigns in flight, and the states of all starts, newest first."""
        with Store.open(self.settings.database) as store:
            states = [one.state for one in fetch_report(store).starts]
            starts = PatrolStarts(store, PatrolLease(store, "reader")).list_open()
        return len(starts), states

    def _latest_state(self) -> str:
        try:
            return next(iter(self._list_states()[1]), "nothing claimed")
        except Exception:
            return "no database"

    def _count_exceeded(self) -> int:
        with Store.open(self.settings.database) as store:
            sites = fetch_report(store).sites
        return sum(one.use.cpu_s > CPU_HOURS * 3600 for one in sites)

    def _examine(
        self, kills: int, over_budget: int, killed_in: dict[str, int], seconds: float
    ) -> KillReport:
        with Store.open(self.settings.database) as store:
            outcome = _PatrolOutcome.read(store)
        return KillReport(
            kills,
            len(outcome.starts),
            len(outcome.campaigns),
            outcome.count_lost(f"commit:{self._last_commit}"),
            outcome.count_doubled(self._count_queued()),
            over_budget,
            outcome.unsettled,
            killed_in,
            round(seconds, 1),
        )

    def _count_queued(self) -> int:
        """Count the jobs that were ever queued."""
        return len(list(self.settings.spool_dir.glob("jobs/*/*/description.toml")))


@dataclass(frozen=True)
class _PatrolOutcome:
    """Starts, campaigns and jobs in the database of a patrol that has ended.

    Attributes:
        starts: campaign, state and occasion of each start with a campaign.
        unsettled: number of reservations without a use.
        attempts: number of attempts of each job.
        recorded: number of measurements of each job.
    """

    starts: Sequence[tuple[str, str, str]]
    unsettled: int
    campaigns: Set[str]
    jobs: Sequence[JobRow]
    attempts: Counter[str]
    recorded: Counter[str]

    @classmethod
    def read(cls, store: Store) -> _PatrolOutcome:
        """Read the outcome."""
        with store.connection() as connection:
            starts = connection.exec_driver_sql(
                "SELECT campaign_id, state, occasion FROM patrol_start WHERE campaign_id IS NOT NULL"
            ).all()
            unsettled = connection.exec_driver_sql(
                "SELECT COUNT(*) FROM patrol_charge WHERE used_cpu_s IS NULL"
            ).scalar_one()
        campaigns = {one.id for one in store.campaigns()}
        jobs = [job for id_ in campaigns for job in store.jobs(id_)]
        attempts = Counter(one.job_id for one in store.attempts(job.id for job in jobs))
        recorded = Counter[str]()
        for id_ in campaigns:
            recorded.update({job: n for (job, _), n in store.count_by_attempt(id_).items()})
        found = [(str(row[0]), str(row[1]), str(row[2])) for row in starts]
        return cls(found, int(unsettled), campaigns, jobs, attempts, recorded)

    @property
    def _started(self) -> Set[str]:
        return {campaign for campaign, _, _ in self.starts}

    def count_lost(self, last_occasion: str) -> int:
        """Count starts, campaigns and measurements that are missing."""
        lost = len(self._started - self.campaigns)
        lost += sum(state != FINISHED for _, state, _ in self.starts)
        lost += sum(self.recorded[job.id] < job.planned_measurements for job in self.jobs)
        return lost + (last_occasion not in {occasion for _, _, occasion in self.starts})

    def count_doubled(self, queued: int) -> int:
        """Count campaigns, jobs and measurements that are there twice, with ``queued`` jobs."""
        doubled = len(self.campaigns - self._started) + len(self.starts) - len(self._started)
        doubled += sum(self.attempts[job.id] > 1 for job in self.jobs)
        doubled += sum(self.recorded[job.id] > job.planned_measurements for job in self.jobs)
        return doubled + max(0, queued - len(self.jobs))


def main() -> None:
    """Kill a patrol in a folder and print the report as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(json.dumps(asdict(KilledPatrol(options.folder, options.seed).run(options.kills))))


if __name__ == "__main__":
    main()
