"""Local campaign whose commands are interrupted, and checks of its outcome.

``python -m interrupt_rounds FOLDER SEED...`` runs one round for each seed, with the helper folders on
PYTHONPATH.

The user's commands are forks of this process, because starting Python takes longer than a command;
runner, workers and payloads are real.
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

from spool_harness import SpoolHarness, is_alive

from treehammer import __main__ as face
from treehammer import config
from treehammer.sql.core.rows import CampaignRow
from treehammer.sql.read.query_model import Selection
from treehammer.sql.write.maintenance import check_database
from treehammer.sql.write.store import Store
from treehammer.submit.campaigns import campaign_polling

TEST_TOML = """
[test]
name = "chaos"
payload = "run.sh"
repeats = 3
rounds = 1
wall_limit_s = 60
[matrix]
style = ["one", "two"]
bundle = ["style"]
"""

# Each payload records its pid and that of a child in another session.  A payload that meets a live
# process of an earlier payload was not alone.  Killed processes that are not reaped yet (zombies) do
# not count.
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

#: Seconds after which a round counts as hanging.
TIMEOUT_S = 240.0


class InterruptedCampaign:
    """One user with one campaign and one seed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.settings = config.load_settings(
            {"data_dir": folder / "data"}, environ={}, folder=folder
        )
        self.bench = SpoolHarness(folder / "bench", spool=self.settings.spool_dir)
        self.output = folder / "output"
        self.test = folder / "test"
        self.test.mkdir()
        (self.test / "test.toml").write_text(TEST_TOML)
        payload = self.test / "run.sh"
        payload.write_text(PAYLOAD.format(folder=folder))
        payload.chmod(0o755)
        campaign_polling.LOCAL_POLL_S = 0.2
        self.deadline = time.monotonic() + TIMEOUT_S

    # -- commands of the user

    def run_forked(self, action: Callable[[], object]) -> int:
        """Run a function in a forked process and return its pid."""
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            output = self.output.open("w")
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
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

    def start_command(self, *words: str) -> int:
        """Start a treehammer command and return its pid."""

        def run() -> None:
            sys.argv = ["treehammer", "--data-dir", str(self.settings.data_dir), *words]
            face.main()

        return self.run_forked(run)

    def start_submission(self) -> int:
        """Start the submission and return its pid."""
        return self.start_command("submit", str(self.test), "--wait", "-P", "root=none")

    def wait_exit_code(self, pid: int, seconds: float) -> int | None:
        """Return the exit code as subprocess does; None if the process lives longer than ``seconds``."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            ended_pid, status = os.waitpid(pid, os.WNOHANG)
            if ended_pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        assert time.monotonic() < self.deadline, f"it hangs\n{self.read_logs()}"
        return None

    def wait_for_command(self, pid: int) -> int:
        """Wait for the end of a command and return its exit code."""
        while (code := self.wait_exit_code(pid, 1.0)) is None:
            pass
        return code

    def read_logs(self) -> str:
        """Read the runner's log and the output of the last command."""
        files = (self.settings.spool_dir / "runner.log", self.output)
        return "\n".join(f.read_text(errors="replace") for f in files if f.exists())

    def campaign_ids(self) -> list[CampaignRow]:
        """List the campaigns in the database."""
        if not (self.settings.data_dir / "results.db").exists():
            return []
        with Store.open(self.settings.database) as store:
            return store.campaigns()

    # -- interruption

    def interrupt_repeatedly(self, times: int = 4) -> None:
        """Submit and collect, and press Ctrl-C repeatedly."""
        for number in range(times):
            last = number == times - 1
            command = self.start_submission() if number % 2 == 0 else self.start_command("collect")
            code = self.wait_exit_code(command, self.random.uniform(0.0, 4.0 if last else 1.0))
            if code is None:
                os.kill(command, signal.SIGINT)
                code = self.wait_for_command(command)
            output = self.output.read_text()
            assert "Traceback" not in output, output
            # 3: nothing to collect yet; -2: interrupted before the start or after the end.
            assert code in (0, 1, 3, 130, -signal.SIGINT), f"{code}\n{output}"
            if code == 130:  # no message before the command starts
                assert (
                    "treehammer: interrupted; " in output
                    or not output.partition("treehammer")[0].strip()
                )
            if "nothing was submitted" in output or "none of the jobs" in output:
                assert not self.has_queued_jobs(), output
        self.complete_campaigns()

    def has_queued_jobs(self) -> bool:
        """Whether any job of the newest campaign is in the queue."""
        newest = self.campaign_ids()[:1]
        folders = (self.settings.spool_dir.glob(f"jobs/*-{row.id}") for row in newest)
        return any(any(paths) for paths in folders)

    def complete_campaigns(self) -> None:
        """Submit unless something was submitted, and complete every campaign."""
        if not self.campaign_ids():
            assert self.wait_for_command(self.start_submission()) == 0, self.read_logs()
        for row in self.campaign_ids():
            # 1 if a job was lost, as one is that was killed twice.
            assert self.wait_for_command(self.start_command("status", row.id, "--follow")) in (
                0,
                1,
            ), self.read_logs()
            assert self.wait_for_command(self.start_command("collect", row.id)) == 0, (
                self.read_logs()
            )

    # -- checks

    def check_outcome(self) -> Counter[str]:
        """Check that no job is lost or counted twice; return counts of outcomes."""
        seen: Counter[str] = Counter()
        check_database(self.settings.database)
        with Store.open(self.settings.database) as store:
            for campaign in store.campaigns():
                seen += self._check_campaign(store, campaign)
        met = self.folder / "met"
        assert not met.exists(), met.read_text()
        alive = [pid for pid in self._payload_pids() if is_alive(pid)]
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
            job_attempts = [attempt for attempt in attempts if attempt.job_id == job.id]
            assert [a.number for a in job_attempts] == list(range(1, len(job_attempts) + 1)), (
                job_attempts
            )
            assert len(job_attempts) in (1, 2), job_attempts
            last = job_attempts[-1]
            counted = [r for r in rows if r["job_id"] == job.id and r["attempt"] == last.number]
            for attempt in job_attempts[:-1]:
                assert attempt.failure_class == "lost", attempt
            if job.state == "done" and not last.failure_class:
                assert len(counted) == job.planned_measurements
                seen["measured"] += len(counted)
            else:
                assert job.state in ("lost", "done"), job
                assert last.failure_class in ("lost", "submission", "evicted"), last
                seen["failed"] += job.planned_measurements
            seen["retried"] += len(job_attempts) - 1
        assert seen["measured"] + seen["failed"] == campaign.planned_measurements
        return seen

    def end_processes(self) -> None:
        """End the remaining processes of the round."""
        self.bench.kill_runner()
        self.bench.end_processes()
        for pid in self._payload_pids():
            with suppress(OSError):
                if b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)


def run_rounds(folder: Path, seeds: list[int]) -> Iterator[tuple[int, Counter[str]]]:
    """Run and check a round for each seed; the folder of a failed round is kept."""
    for seed in seeds:
        place = Path(tempfile.mkdtemp(prefix=f"{seed}-", dir=folder))
        interrupted = InterruptedCampaign(place, seed)
        try:
            interrupted.interrupt_repeatedly()
            outcomes = interrupted.check_outcome()
        finally:
            interrupted.end_processes()
        shutil.rmtree(place)
        yield seed, outcomes


if __name__ == "__main__":
    for seed, outcomes in run_rounds(Path(sys.argv[1]), [int(s) for s in sys.argv[2:]]):
        print(seed, dict(outcomes), flush=True)
