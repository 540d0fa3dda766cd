"""A campaign on this machine under seeded trouble, and what must be true when it is over.

``python tests/helpers/chaos.py kill|interrupt FOLDER SEED...`` runs one round for each seed.

The user's commands are forks of this process, as loading Python anew would take longer than they do;
runner, workers and payloads are what they always are.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from spool_bench import Bench

from treehammer import __main__ as face
from treehammer import config
from treehammer.sql.rows import CampaignRow
from treehammer.sql.selection import Selection
from treehammer.sql.store import Store, check_database
from treehammer.submit import following
from treehammer.submit.batch import processes

TEST = """
[test]
name = "chaos"
payload = "run.sh"
repeats = 3
rounds = 1
wall_limit_s = 60
[matrix]
mode = ["one", "two"]
bundle = ["mode"]
"""

# Each payload leaves the pids of itself and of a child that escapes its session.  Whoever meets
# one of an earlier payload alive was not alone.  A killed one that its new parent has not asked after
# yet, a zombie, is not alive.
PAYLOAD = """#!/bin/sh
for pid in $(cat {folder}/pids 2>/dev/null); do
  state=$(grep State "/proc/$pid/status" 2>/dev/null) || continue
  case "$state" in *zombie*) ;; *) echo "$$ met $pid: $state" >> {folder}/met ;; esac
done
setsid sleep 300 &
echo "$$ $!" >> {folder}/pids
sleep 0.1
echo '{{"format": 1, "values": {{}}, "extras": {{}}, "failure": null}}' > "$TREEHAMMER_RESULT"
"""

#: A round that is not over after so many seconds hangs.
PATIENCE_S = 240.0


class Round:
    """One user with one campaign and one seed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.dice = random.Random(seed)
        self.settings = config.load({"data_dir": folder / "data"}, environ={}, folder=folder)
        self.bench = Bench(folder / "bench", spool=self.settings.spool_dir)
        self.said = folder / "said"
        self.test = folder / "test"
        self.test.mkdir()
        (self.test / "test.toml").write_text(TEST)
        payload = self.test / "run.sh"
        payload.write_text(PAYLOAD.format(folder=folder))
        payload.chmod(0o755)
        following.POLL_S = 0.2
        self.deadline = time.monotonic() + PATIENCE_S

    # -- the user

    def fork(self, action: Callable[[], object]) -> int:
        """Do something in a process of its own; its pid."""
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            said = self.said.open("w")
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
            action()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def types(self, *words: str) -> int:
        """Type a command; its pid."""

        def run() -> None:
            sys.argv = ["treehammer", "--data-dir", str(self.settings.data_dir), *words]
            face.main()

        return self.fork(run)

    def submits(self) -> int:
        """Type the submission; its pid."""
        return self.types("submit", str(self.test), "--wait", "-P", "root=none")

    def ended(self, pid: int, seconds: float) -> int | None:
        """Exit code as subprocess gives it, None while it lives after so many seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        assert time.monotonic() < self.deadline, f"it hangs\n{self.log()}"
        return None

    def finish(self, pid: int) -> int:
        """Wait for the end of a command; its exit code."""
        while (code := self.ended(pid, 1.0)) is None:
            pass
        return code

    def log(self) -> str:
        """What the runners said, and the last command."""
        files = (self.settings.spool_dir / "runner.log", self.said)
        return "\n".join(f.read_text(errors="replace") for f in files if f.exists())

    def workers(self) -> list[int]:
        """Pids of the living workers."""
        found = []
        for path in self.settings.spool_dir.glob("jobs/*/*/attempt-*.pid"):
            with suppress(OSError, ValueError):
                pid, started = map(int, path.read_text().split())
                if processes.start_time(pid) == started:
                    found.append(pid)
        return found

    def known(self) -> list[CampaignRow]:
        """The campaigns the database has."""
        if not (self.settings.data_dir / "results.db").exists():
            return []
        with Store.open(self.settings.database) as store:
            return store.campaigns()

    # -- trouble

    def kill(self, command: int, whom: str) -> None:
        """Kill some of the processes at work."""
        victims = {
            "submitter": [command],
            "runner": self.bench.runner_pids(),
            "worker": self.workers(),
        }
        chosen = [pid for name, pids in victims.items() if whom in (name, "all") for pid in pids]
        for pid in chosen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kills(self, times: int = 5) -> None:
        """Submit, and kill again and again; whoever submitted looks again."""
        command = self.submits()
        for _ in range(times):
            code = self.ended(command, self.dice.uniform(0.0, 1.2))
            if code is None:
                whom = self.dice.choice(["submitter", "runner", "worker", "worker", "all"])
                self.kill(command, whom)
                if whom not in ("submitter", "all"):
                    continue
                self.finish(command)
            else:
                no_runner = code == 4 and "runner does not start" in self.said.read_text()
                assert code in (0, 1) or no_runner, self.log()
            command = self.types("status", "last", "--follow") if self.known() else self.submits()
        self.finish(command)
        self.complete()

    def interrupts(self, times: int = 4) -> None:
        """Submit and collect, and press Ctrl-C again and again."""
        for number in range(times):
            last = number == times - 1
            command = self.submits() if number % 2 == 0 else self.types("collect")
            code = self.ended(command, self.dice.uniform(0.0, 4.0 if last else 1.0))
            if code is None:
                os.kill(command, signal.SIGINT)
                code = self.finish(command)
            said = self.said.read_text()
            assert "Traceback" not in said, said
            # 3: there was nothing to collect yet; -2: it had not begun, or was through.
            assert code in (0, 1, 3, 130, -signal.SIGINT), f"{code}\n{said}"
            if code == 130:  # before the verb began there is nothing to say
                assert (
                    "treehammer: interrupted; " in said
                    or not said.partition("treehammer")[0].strip()
                )
            if "nothing was submitted" in said or "none of the jobs" in said:
                assert not self.queued(), said
        self.complete()

    def queued(self) -> bool:
        """Whether any job of the newest campaign is in the queue."""
        newest = self.known()[:1]
        found = (self.settings.spool_dir.glob(f"jobs/*-{row.id}") for row in newest)
        return any(any(paths) for paths in found)

    def complete(self) -> None:
        """As a user does in the end: submit unless something was, and see every campaign through."""
        if not self.known():
            assert self.finish(self.submits()) == 0, self.log()
        for row in self.known():
            assert self.finish(self.types("status", row.id, "--follow")) == 0, self.log()
            assert self.finish(self.types("collect", row.id)) == 0, self.log()

    # -- what must be true

    def check(self) -> Counter[str]:
        """Every job accounted for, nothing lost, nothing doubled; counts what came of the jobs."""
        seen: Counter[str] = Counter()
        check_database(self.settings.database)
        with Store.open(self.settings.database) as store:
            for campaign in store.campaigns():
                seen += self._check_campaign(store, campaign)
        met = self.folder / "met"
        assert not met.exists(), met.read_text()
        assert not list((self.settings.spool_dir / "cancel").iterdir())
        alive = [pid for pid in self._payload_pids() if processes.start_time(pid)]
        assert not alive, f"payloads live on: {alive}"
        return seen

    def _payload_pids(self) -> list[int]:
        path = self.folder / "pids"
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def _check_campaign(self, store: Store, campaign: CampaignRow) -> Counter[str]:
        jobs = store.jobs(campaign.id)
        assert len(jobs) == campaign.planned_jobs
        attempts = store.attempts(job.id for job in jobs)
        columns = ("measurement_id", "job_id", "attempt", "round", "position", "failure_class")
        rows = list(store.measurements(Selection((campaign.id,)), columns))
        files = self.settings.spool_dir.glob(f"jobs/*-{campaign.id}/*/attempt-*/records/*.json")
        assert sorted(f.stem for f in files) == sorted(str(r["measurement_id"]) for r in rows)
        places = Counter((r["job_id"], r["attempt"], r["round"], r["position"]) for r in rows)
        assert not places or max(places.values()) == 1
        seen: Counter[str] = Counter()
        for job in jobs:
            mine = [attempt for attempt in attempts if attempt.job_id == job.id]
            assert [a.number for a in mine] == list(range(1, len(mine) + 1)), mine
            assert len(mine) in (1, 2), mine
            last = mine[-1]
            counted = [r for r in rows if r["job_id"] == job.id and r["attempt"] == last.number]
            for attempt in mine[:-1]:
                assert attempt.failure_class == "lost", attempt
            if job.state == "done" and not last.failure_class:
                assert len(counted) == job.planned_measurements
                seen["measured"] += len(counted)
            else:
                assert job.state in ("lost", "done"), job
                assert last.failure_class in ("lost", "submission", "evicted"), last
                seen["failed"] += job.planned_measurements
            seen["again"] += len(mine) - 1
        assert seen["measured"] + seen["failed"] == campaign.planned_measurements
        return seen

    def clean(self) -> None:
        """End what is left of the round."""
        self.bench.kill_runner()
        self.bench.end_processes()
        for pid in self._payload_pids():
            with suppress(OSError):
                if b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)


def rounds(what: str, folder: Path, seeds: list[int]) -> Iterator[tuple[int, Counter[str]]]:
    """Run a round for each seed and check it; its folder stays where it failed."""
    for seed in seeds:
        place = Path(tempfile.mkdtemp(prefix=f"{what}-{seed}-", dir=folder))
        trouble = Round(place, seed)
        try:
            {"kill": trouble.kills, "interrupt": trouble.interrupts}[what]()
            seen = trouble.check()
        finally:
            trouble.clean()
        shutil.rmtree(place)
        yield seed, seen


if __name__ == "__main__":
    for seed, seen in rounds(sys.argv[1], Path(sys.argv[2]), [int(s) for s in sys.argv[3:]]):
        print(seed, dict(seen), flush=True)
