"""Folders of tests: jobs that start together and report the instant, and a library over commits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from treehammer.collectors.record.measurement_record import Measurement
from treehammer.config import Settings
from treehammer.submit.batch.local_batch import stage_job
from treehammer.submit.campaigns.campaign_request import CampaignRequest, plan_request
from treehammer.submit.campaigns.job_rendering import render_jobs
from treehammer.submit.campaigns.job_reporting import reporting_for_submission

LOAD_TOML = """
[test]
name = "begin"
payload = "begin"
repeats = 4
rounds = 1
wall_limit_s = 120
memory_limit_mb = 100
[load]
together = true
wait_s = 300
lead_s = 1
step_s = 1
duration_s = 60
ceiling = {clients = 8}
"""

STARTING_PAYLOAD = """#!/usr/bin/env python3
import json, os, time

with open(os.environ["TREEHAMMER_JOB"], encoding="utf-8") as stream:
    load = json.load(stream)["load"]
if load["start_us"] is not None:
    time.sleep(max(0, load["start_us"] / 1e6 + load["first_step"] * load["step_s"] - time.time()))
values = {"load_started_us": time.time_ns() // 1000}
with open(os.environ["TREEHAMMER_RESULT"], "w", encoding="utf-8") as stream:
    json.dump({"format": 1, "values": values}, stream)
"""


def write_load_test(folder: Path, **changes: str) -> Path:
    """Write the test; ``changes`` replace lines of test.toml by their keys."""
    folder.mkdir()
    lines = LOAD_TOML.splitlines()
    for key, value in changes.items():
        lines = [f"{key} = {value}" if line.startswith(f"{key} = ") else line for line in lines]
    (folder / "test.toml").write_text("\n".join(lines) + "\n")
    (folder / "begin").write_text(STARTING_PAYLOAD)
    (folder / "begin").chmod(0o755)
    return folder


class WorkerProcesses:
    """Workers of a load test that run without a batch system, each when the test says so.

    With a service they meet there, otherwise in a folder.
    """

    def __init__(self, test: Path, settings: Settings, folder: Path, *, service: bool) -> None:
        plan = plan_request(CampaignRequest(str(test)), settings, fetch=False)
        rendered = folder / "rendered"
        rendered.mkdir(parents=True)
        jobs = list(plan.jobs)
        if service:
            jobs = [
                replace(job, spec=replace(job.spec, load=replace(job.spec.load, folder="")))
                for job in jobs
                if job.spec.load
            ]
        reporting = reporting_for_submission(settings, plan.options) if service else None
        self._folders: list[Path] = []
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for number, job in enumerate(render_jobs(plan, rendered, jobs, service=reporting)):
            self._folders.append(folder / str(number) / "inputs")
            stage_job(job, folder / str(number))

    def start(self, *numbers: int) -> None:
        """Start the workers of these jobs."""
        for number in numbers:
            with (self._folders[number] / "worker.log").open("wb") as log:
                self._processes[number] = subprocess.Popen(
                    [sys.executable, "worker.pyz", "run", "job.json"],
                    cwd=self._folders[number],
                    env={"PATH": os.environ["PATH"]},
                    stdout=log,
                    stderr=log,
                )

    def break_software(self, number: int) -> None:
        """Let a job request software that does not exist."""
        path = self._folders[number] / "job.json"
        job = json.loads(path.read_text())
        software = {"request": "path:/none", "provider": "path", "version": "", "location": "/none"}
        for execution in job["executions"]:
            execution["software"] = software
        path.write_text(json.dumps(job))

    def wait(self) -> None:
        """Wait for the end of all started workers."""
        for process in self._processes.values():
            process.wait(timeout=300)

    def read_values(self, number: int) -> Mapping[str, object]:
        """Return the values of a job's only measurement."""
        (path,) = (self._folders[number] / "records").glob("*.json")
        return Measurement.from_json(path.read_text()).values

    def read_log(self, number: int) -> str:
        """Return the output of a job's worker."""
        return (self._folders[number] / "worker.log").read_text()

    def __enter__(self) -> WorkerProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.terminate()
            process.wait()


TEST_TOML = """
[test]
name = "library"
payload = "measure.py"
repeats = 1
rounds = 1
wall_limit_s = 60
[matrix]
root = ["none"]
[metrics.steps_done]
unit = "1"
better = "lower"
exact = true
"""

# The time is made of steps, so that it depends on the library and not on the machine's load.
LIBRARY_PAYLOAD = """
import json, os, random, sys
sys.path.insert(0, os.environ["TREEHAMMER_SOFTWARE"])
import library
steps = library.count_steps(1000)
seconds = 1e-6 * steps * random.gauss(1, 0.004)
values = {"cpu_per_event_s": seconds, "wall_per_event_s": seconds, "loop_cpu_s": 3.0}
with open(os.environ["TREEHAMMER_RESULT"], "w") as stream:
    json.dump({"format": 1, "values": values, "extras": {"steps_done": steps}}, stream)
"""


def run_git(folder: Path, *arguments: str) -> str:
    """Run Git with a fixed author."""
    author = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *author, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def make_library(folder: Path, commits: int, changed: int, broken: int = -1) -> list[str]:
    """Make a repository; from the commit ``changed`` on (from 0) the library does 30 % more steps.

    ``broken`` is the number of a commit that cannot be built.  Returns the commits, oldest first.
    """
    folder.mkdir()
    run_git(folder, "init", "--quiet", "--initial-branch", "main")
    for number in range(commits):
        factor = 1.3 if number >= changed else 1.0
        (folder / "library.py.in").write_text(
            f"# revision {number}\ndef count_steps(n):\n    return int({factor} * n)\n"
        )
        (folder / "build.sh").write_text(
            f"exit {int(number == broken)}\n"
            if number == broken
            else "cp library.py.in library.py\n"
        )
        run_git(folder, "add", ".")
        run_git(folder, "commit", "--quiet", "--message", f"Revise library, part {number}")
    return run_git(folder, "log", "--reverse", "--format=%H").splitlines()


def make_test(folder: Path) -> Path:
    """Write the test that measures a build of the library."""
    folder.mkdir()
    (folder / "test.toml").write_text(TEST_TOML)
    (folder / "measure.py").write_text(LIBRARY_PAYLOAD)
    return folder
