"""Test whose jobs start together, with a payload that begins at the instant and reports it."""

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
from treehammer.submit.batch.local_jobs import stage_job
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

PAYLOAD = """#!/usr/bin/env python3
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
    (folder / "begin").write_text(PAYLOAD)
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
