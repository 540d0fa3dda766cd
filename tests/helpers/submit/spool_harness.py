"""Spool with a stand-in for the worker, and access to the results of its jobs."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
from polling import wait_until

from treehammer.collectors.job_spec import JOB_MARK_VARIABLE, JobState
from treehammer.submit.batch.interface import JobDescription
from treehammer.submit.batch.local_batch import LocalBatch
from treehammer.submit.batch.local_runner import SLOT_VARIABLE, find_job_processes

# Writes the files of a real worker, runs for the given time, and logs its start and end.
STAND_IN_WORKER = """
import json, os, signal, subprocess, sys, time
cluster, number = os.getcwd().split(os.sep)[-3:-1]
JOURNAL = os.path.join(os.environ["JOURNAL"], f"{cluster}.{number}")
attempt, seconds, mode = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
def note(event):
    with open(JOURNAL, "a") as f:
        f.write("%s %d %.6f\\n" % (event, attempt, time.time()))

def account(**values):
    try:
        with open("attempt.json.tmp", "w") as f:
            json.dump({"attempt": attempt, **values}, f)
        os.rename("attempt.json.tmp", "attempt.json")
    except OSError:
        sys.exit(75)

note("start")
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if mode in ("stubborn", "escape"):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
account(ended_us=None)
time.sleep(seconds)
account(ended_us=time.time_ns() // 1000)
note("end")
"""


def is_alive(pid: int) -> bool:
    """Return whether a process runs, unlike one that was not reaped yet."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class SpoolHarness:
    """Describes jobs for the stand-in worker and reads their results."""

    def __init__(self, folder: Path, spool: Path | None = None) -> None:
        self.folder = folder
        self.spool = spool or folder / "spool"
        self.journal = folder / "journal"
        self.journal.mkdir(parents=True, exist_ok=True)
        self.script = folder / "stand_in.py"
        self.script.write_text(STAND_IN_WORKER)

    def make_batch(self, slots: int = 1) -> LocalBatch:
        return LocalBatch(self.spool, slots)

    def describe_job(
        self, job_id: str, seconds: float = 0.0, mode: str = "plain"
    ) -> JobDescription:
        arguments = ["stand_in.py", "$(ATTEMPT)", str(seconds), mode]
        text = "\n".join(
            [
                "[job]",
                f"executable = {json.dumps(sys.executable)}",
                f"arguments = {json.dumps(arguments)}",
                "[environment]",
                f"JOURNAL = {json.dumps(str(self.journal))}",
            ]
        )
        return JobDescription(job_id, text, {"stand_in.py": self.script})

    def job_times(self, batch_id: str) -> list[tuple[str, int, float]]:
        try:
            lines = (self.journal / batch_id).read_text().splitlines()
        except FileNotFoundError:
            return []
        rows = (line.split() for line in lines)
        return [(what, int(attempt), float(when)) for what, attempt, when in rows]

    def wait_for_status(self, test: Callable[[], bool]) -> None:
        wait_until(test, "the expected status of jobs and runner")

    def wait_until_final(self, batch_ids: list[str]) -> list[JobState]:
        batch = self.make_batch()
        self.wait_for_status(lambda: all(s.state.is_final for s in batch.query(batch_ids).values()))
        statuses = batch.query(batch_ids)
        return [statuses[batch_id].state for batch_id in batch_ids]

    def runner_pids(self) -> list[int]:
        processes = psutil.process_iter(["cmdline"])
        return [item.pid for item in processes if str(self.spool) in (item.info["cmdline"] or ())]

    def kill_runner(self) -> None:
        for pid in self.runner_pids():
            os.kill(pid, signal.SIGKILL)
        self.wait_for_status(lambda: not self.runner_pids())

    def job_pids(self, batch_id: str) -> list[int]:
        """List the pids of a job's live processes."""
        return [p.pid for p in find_job_processes(self._job(batch_id))]

    def worker_pids(self) -> list[int]:
        """List the pids of live workers, whose payloads do not know their slot."""
        parents = {
            process.pid: process.ppid()
            for process in psutil.process_iter(["environ"])
            if SLOT_VARIABLE in (environ := process.info["environ"] or {})
            and environ[JOB_MARK_VARIABLE].startswith(f"{self.spool}/")
        }
        return [pid for pid, parent in parents.items() if parent not in parents]

    def end_processes(self) -> dict[str, int]:
        """Kill all processes of every job; return batch id -> number of killed processes."""
        return {batch_id: self._kill_processes(batch_id) for batch_id in self.batch_ids()}

    def _kill_processes(self, batch_id: str) -> int:
        killed: set[int] = set()
        while pids := set(self.job_pids(batch_id)):
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed |= pids
            time.sleep(0.01)
        return len(killed)

    def _job(self, batch_id: str) -> Path:
        cluster, _, number = batch_id.rpartition(".")
        return self.spool / "jobs" / cluster / number

    def batch_ids(self) -> list[str]:
        folders = self.spool.glob("jobs/*/*/description.toml")
        return [f"{path.parent.parent.name}.{path.parent.name}" for path in folders]
