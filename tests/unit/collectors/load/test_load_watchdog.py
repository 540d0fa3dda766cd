"""Loads that hang end with a failure and their stacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Sends one operation through a client whose call never returns.
PAYLOAD = """
import ctypes, threading
from treehammer.collectors.kit import treehammer_load
from treehammer.collectors.kit.treehammer_load import load_driver, load_task, payload
from treehammer.collectors.kit.treehammer_load.clients.file_client import FileClient

def hang_in_client(self, flight):
    {hang}

payload.GRACE_S = load_task.GRACE_S = load_driver.REPORT_S = 0.2
load_task.PREPARATION_S = 0.2
FileClient.start = hang_in_client
treehammer_load.run({load})
"""


OPEN = "treehammer_load.open_files"
#: Creates the files first.
DELETE = "treehammer_load.delete_files, prepare=treehammer_load.create_files"


@pytest.mark.parametrize(
    "load, hang, message",
    [
        (OPEN, "threading.Event().wait()", "within 1.4 s after its last instant"),
        (DELETE, "threading.Event().wait()", "operations before or after the load took over 0.2 s"),
        (OPEN, "ctypes.PyDLL(None).pause()", ""),  # holds the interpreter, so that no Python runs
    ],
)
def test_load_that_hangs_ends_with_its_stacks(
    tmp_path: Path, load: str, hang: str, message: str
) -> None:
    job = {
        "format": 1,
        "execution": {
            "files": [{"url": f"{tmp_path}/data", "size": 1}],
            "variant": {"clients": 1, "rate_hz": 10},
            "seed": 1,
        },
        "settings": {"timeout_s": 0.2},
        "load": {
            "step_s": 0.2,
            "duration_s": 0.2,
            "writable": f"{tmp_path}/area" if load == DELETE else "",
        },
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    result = tmp_path / "result.json"
    places = {
        "TREEHAMMER_JOB": str(tmp_path / "job.json"),
        "TREEHAMMER_RESULT": str(result),
    }
    done = subprocess.run(
        [sys.executable, "-c", PAYLOAD.format(hang=hang, load=load)],
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "in hang_in_client" in done.stderr
    assert result.exists() == bool(message)
    if message:
        failure = json.loads(result.read_text())["failure"]
        assert (failure["failure_class"], failure["kind"]) == ("payload", "hang")
        assert message in failure["message"]
