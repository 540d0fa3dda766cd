"""Rates of load tests that run, for commands that follow a campaign."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from treehammer.collectors.record.operation_steps import LOAD_PROGRESS_NAME, LoadProgress
from treehammer.submit.batch.local_batch import LocalBatch
from treehammer.submit.campaigns.campaign_outcome import describe_running_loads

STEP = {"step": 3, "step_s": 10, "done": 1000, "failed": 20, "bytes": 5_000_000}


class Spool:
    """A local queue with jobs ``a`` and ``b`` that run, and ``c``, which has ended."""

    def __init__(self, folder: Path) -> None:
        self.batch = LocalBatch(folder)
        with self.batch.transaction() as connection:
            for number, name in enumerate("abc"):
                attempt = {
                    "number": 1,
                    "state": "done" if name == "c" else "running",
                    "started_us": 1,
                    "ended_us": 0,
                    "exit_code": None,
                    "reason": "",
                }
                values = (number, f"x.{name}", name, attempt["state"], json.dumps([attempt]))
                connection.execute(
                    "INSERT INTO job (number, batch_id, job_id, wall_s, cpus, slots, together, "
                    "state, attempts) VALUES (?, ?, ?, 0, 1, 1, 0, ?, ?)",
                    values,
                )

    def write(self, job: str, text: str) -> None:
        path = self.batch.locate(f"x.{job}") / "attempt-1/work/1-1" / LOAD_PROGRESS_NAME
        path.parent.mkdir(parents=True)
        path.write_text(text)

    def describe(self) -> str:
        return describe_running_loads(self.batch.read_load_steps(["x.a", "x.b", "x.c"]))


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path)


def test_rates_of_running_jobs_are_added(spool: Spool) -> None:
    assert spool.describe() == ""
    for job, number in (("a", 3), ("b", 2), ("c", 9)):
        spool.write(job, json.dumps({**STEP, "step": number}))
    assert spool.describe() == "step 3, 2 jobs: 200 operations/s, 4 failed/s, 1 MB/s"


def test_folders_that_a_job_removes_meanwhile_are_left_out(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`submit --wait` and the load page continue."""
    for job in "ab":
        spool.write(job, json.dumps(STEP))
    scan = os.scandir

    def remove_and_scan(path: Any) -> Any:
        if str(path).endswith("b/attempt-1/work"):
            shutil.rmtree(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", remove_and_scan)
    assert spool.describe().startswith("step 3, 1 job: 100 operations/s")


def test_files_that_are_no_steps_are_left_out(spool: Spool) -> None:
    spool.write("a", '{"step": 1')
    spool.write("b", json.dumps({**STEP, "step_s": 0}))
    assert spool.describe() == ""


@pytest.mark.parametrize("value", [None, "undefined", "{}", "{1,2}", '{1,2,"x",4,5,6}', [1, 2], 7])
def test_attributes_that_are_no_steps_are_left_out(value: object) -> None:
    assert LoadProgress.from_attribute(value) is None
