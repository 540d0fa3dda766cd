"""Rates of load tests that run on this machine, for commands that follow a campaign."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from treehammer.collectors.record.operation_steps import LOAD_PROGRESS_NAME
from treehammer.submit.campaigns.campaign_outcome import describe_running_loads


def describe(folder: Path) -> str:
    return describe_running_loads(folder / job for job in "ab")


def write_step(folder: Path, job: str, text: str) -> None:
    path = folder / job / "work" / "1-1" / LOAD_PROGRESS_NAME
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_rates_of_running_jobs_are_added(tmp_path: Path) -> None:
    assert describe(tmp_path) == ""
    for job, number in (("a", 3), ("b", 2), ("c", 9)):
        step = {"step": number, "step_s": 10, "done": 1000, "failed": 20, "bytes": 5_000_000}
        write_step(tmp_path, job, json.dumps(step))
    line = "step 3, 2 jobs: 200 operations/s, 4 failed/s, 1 MB/s"
    assert describe(tmp_path) == line


def test_folders_that_a_job_removes_meanwhile_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`submit --wait` and the load page continue."""
    step = {"step": 3, "step_s": 10, "done": 1000, "failed": 20, "bytes": 5_000_000}
    write_step(tmp_path, "a", json.dumps(step))
    write_step(tmp_path, "b", json.dumps(step))
    scan = os.scandir

    def remove_and_scan(path: Any) -> Any:
        if str(path).endswith("b/work/1-1"):
            shutil.rmtree(path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", remove_and_scan)
    assert describe(tmp_path).startswith("step 3, 1 job: 100 operations/s")


def test_files_that_are_no_steps_are_left_out(tmp_path: Path) -> None:
    write_step(tmp_path, "a", '{"step": 1')
    write_step(tmp_path, "b", '{"step": 1, "step_s": 0, "done": 1, "failed": 0, "bytes": 0}')
    assert describe(tmp_path) == ""
