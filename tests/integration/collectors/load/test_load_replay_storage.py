"""A recording by the XRootD client's own plug-in, replayed against a real server."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from storage_alone import run_storage

from treehammer.collectors.record.xrootd_recording import parse_recording
from treehammer.collectors.software import providers
from treehammer.collectors.worker.run.input_files import RecorderPlugin
from treehammer.testbed import network
from treehammer.testbed.components.xrootd_storage import (
    DATASET_FOLDER,
    XrootdStorage,
    storage_folder,
)

#: Opens a file twice at a time, and reads it in between; a stat is answered from the open.
PROGRAM = """
import sys, time
from XRootD import client
first, second = client.File(), client.File()
for file in (first, second):
    assert file.open(sys.argv[1])[0].ok
assert first.stat()[1].size == 500_000
assert first.stat(True)[1].size == 500_000
for number in range(20):
    assert first.read(1000 * number, 5000)[0].ok
    time.sleep(0.02)
assert second.vector_read([(0, 10), (400_000, 90_000)])[0].ok
assert len(second.read(499_000, 5000)[1]) == 1000
first.close()
second.close()
"""
PAYLOAD = """
import treehammer_load as t
t.run(t.replay_recording, prepare=t.load_recording)
"""


@pytest.fixture(scope="module")
def placed() -> Iterator[tuple[str, Path]]:
    """URL prefix of a server, and its dataset ``rec`` with the file ``data``."""
    with run_storage(network.PROXY) as part:
        folder = find_folder(part)
        folder.mkdir(exist_ok=True)
        (folder / "data").write_bytes(os.urandom(500_000))
        (found,) = [one for one in part.doors("SITE_A") if one.name == "root"]
        yield found.prefix, folder


def find_folder(part: XrootdStorage) -> Path:
    return storage_folder(part.box, "SITE_A") / DATASET_FOLDER.lstrip("/") / "rec"


def run(
    software: providers.SoftwareSetup, folder: Path, text: str, *words: str, **env: str
) -> None:
    (folder / "script.py").write_text(text)
    done = subprocess.run(
        [*software.build_command("python", "script.py"), *words],
        env={**software.env, **env},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_recorded_operations_are_performed_again(
    software: providers.SoftwareSetup, placed: tuple[str, Path], tmp_path: Path
) -> None:
    door, dataset = placed
    plugin = RecorderPlugin(str(tmp_path), str(tmp_path), "1-1")
    run(software, tmp_path, PROGRAM, f"{door}/rec/data", **plugin.environment)
    assert plugin.keep_recording(door_url=door, started_us=1, ended_us=2)
    recorded = (tmp_path / "recordings" / "1-1.csv").read_text()
    operations = parse_recording(recorded.splitlines(keepends=True))
    assert {each.handle for each in operations} == {0, 1}

    (dataset / "recording.csv").write_text(recorded)
    (dataset / "recording.json").write_text(json.dumps({"process": {"door_url": door}}))
    names = ("recording.csv", "recording.json")
    job = {
        "format": 1,
        "execution": {
            "files": [
                {"url": f"{door}/rec/{name}", "size": (dataset / name).stat().st_size}
                for name in names
            ],
            "variant": {"clients": 3, "factor": 1.0},
            "seed": 1,
        },
        "settings": {"replace": ""},
        "door_url": door,
        "load": {"step_s": 1.0, "duration_s": 60.0},
    }
    (tmp_path / "job.json").write_text(json.dumps(job))
    places = {name: str(tmp_path / f"{name.lower()}.json") for name in ("JOB", "RESULT")}
    run(software, tmp_path, PAYLOAD, **{f"TREEHAMMER_{k}": v for k, v in places.items()})
    result = json.loads((tmp_path / "result.json").read_text())
    done: dict[str, int] = {}
    for row in result["operations"]:
        assert row["failures"] == "{}"
        assert row["server"] == door.partition("://")[2].partition("/")[0]
        done[row["operation"]] = done.get(row["operation"], 0) + row["done"]
    assert done == {"open": 6, "stat": 3, "read": 63, "vector_read": 3, "close": 6}
    moved = sum(row["bytes"] for row in result["operations"])
    assert moved == 3 * (20 * 5000 + 90_010 + 1000)
    figures = result["extras"]
    assert figures["skipped_operations"] == 1  # the stat that the client answered itself
    limited = all(row["generator_limited"] for row in result["operations"])
    assert limited or {"open_p999_s", "read_p999_s", "vector_read_p999_s"} & {*figures}
    # The schedule is never ahead of the recording.
    assert figures["time_ratio"] > 0.95
    assert 0 <= figures["timing_error_p50_s"] <= figures["timing_error_max_s"]
